//! What a server offers, all pages of it: fetched once however many ask, kept to the letter, fetched anew when it says so.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cofer_mcp::message::{METHOD_NOT_FOUND, Reply};
use cofer_mcp::mirror::{self, Mirrored};
use cofer_mcp::{CallError, Face, raw};
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};

use crate::dial::Dialled;

const PAGES_MAX: usize = 1000;
const ITEMS_MAX: usize = 50_000;
const PAGE_TIMEOUT: Duration = Duration::from_secs(30);
/// No list is taken for good for longer, whatever its server says.
const LIFETIME_MAX: Duration = Duration::from_hours(1);
/// However short a list is good for, it is not looked at anew more often.
const LOOKED_AT_EVERY: Duration = Duration::from_secs(1);
/// A refusal within this time is one worth waiting for.
const SOON: Duration = Duration::from_secs(2);

/// The four kinds of lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum List {
    Tools,
    Prompts,
    Resources,
    Templates,
}

impl List {
    pub(crate) fn method(self) -> &'static str {
        match self {
            Self::Tools => "tools/list",
            Self::Prompts => "prompts/list",
            Self::Resources => "resources/list",
            Self::Templates => "resources/templates/list",
        }
    }

    /// The list that this method asks for.
    pub(crate) fn of(method: &str) -> Option<Self> {
        [Self::Tools, Self::Prompts, Self::Resources, Self::Templates]
            .into_iter()
            .find(|list| list.method() == method)
    }

    /// The field of the answer that has the items.
    pub(crate) fn field(self) -> &'static str {
        match self {
            Self::Tools => "tools",
            Self::Prompts => "prompts",
            Self::Resources => "resources",
            Self::Templates => "resourceTemplates",
        }
    }

    fn capability(self) -> &'static str {
        match self {
            Self::Tools => "tools",
            Self::Prompts => "prompts",
            Self::Resources | Self::Templates => "resources",
        }
    }

    /// The field by which an item is asked for.
    fn key(self) -> &'static str {
        match self {
            Self::Tools | Self::Prompts => "name",
            Self::Resources => "uri",
            Self::Templates => "uriTemplate",
        }
    }
}

/// A tool, a prompt, a resource or a template, as its server described it.
#[derive(Clone, Debug)]
pub struct Item {
    /// Its name or address; empty where the server gave none, and then nobody can ask for it.
    pub key: String,
    pub raw: Arc<RawValue>,
    /// Arguments of a tool that its calls repeat in headers.
    pub mirrored: Arc<[Mirrored]>,
}

impl Item {
    pub(crate) fn read(list: List, raw: Box<RawValue>) -> Self {
        let mut key = raw::text_at(&raw, &[list.key()]).unwrap_or_default().into_owned();
        let mirrored = if list == List::Tools { mirror::mirrored(&raw) } else { Ok(Arc::default()) };
        let mirrored = mirrored.unwrap_or_else(|why| {
            // A client over HTTP could not call it, so it is not offered.
            tracing::warn!("tool `{key}` is not offered: {why}");
            key.clear();
            Arc::default()
        });
        Self { key, raw: raw.into(), mirrored }
    }
}

pub(crate) type Items = Arc<[Item]>;

/// Whether two lists say the same.
pub(crate) fn same(one: &[Item], other: &[Item]) -> bool {
    one.len() == other.len() && one.iter().zip(other).all(|(one, other)| one.raw.get() == other.raw.get())
}

/// One list of one server: empty until somebody asks.
#[derive(Debug, Default)]
pub(crate) struct Kept(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    items: Option<Items>,
    /// Since when and for how long its server takes what it said for good; nothing where it did not say.
    good: Option<(Instant, Duration)>,
    asked: Option<Asked>,
    /// It was waited for in vain: who asks next does not wait again, and hears of it when it comes.
    is_silent: bool,
}

/// The server is being asked, once however many want to know.
#[derive(Clone, Debug)]
struct Asked {
    since: Instant,
    answer: Shared<BoxFuture<'static, Result<Items, String>>>,
}

impl Kept {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn get(&self) -> Option<Items> {
        self.state().items.clone()
    }

    pub(crate) fn set(&self, items: Items) {
        let mut state = self.state();
        state.items = Some(items);
        state.is_silent = false;
    }

    pub(crate) fn set_lifetime(&self, lifetime: Option<Duration>) {
        self.state().good = lifetime.map(|lifetime| (Instant::now(), lifetime.min(LIFETIME_MAX)));
    }

    /// How much longer it is good; none where its server did not say.
    pub(crate) fn lifetime(&self) -> Option<Duration> {
        self.state().good.map(|(since, lifetime)| lifetime.saturating_sub(since.elapsed()))
    }

    /// Whether it is time to look at it anew.
    pub(crate) fn is_stale(&self) -> bool {
        self.state().good.is_some_and(|(since, lifetime)| since.elapsed() >= lifetime.max(LOOKED_AT_EVERY))
    }

    /// What the server answers, waited for this long at most, counted from when it was asked. `ask` starts asking it, which goes on
    /// without us and ends with [`Kept::answered`].
    pub(crate) async fn answer(
        &self,
        patience: Duration,
        ask: impl FnOnce() -> JoinHandle<Result<Items, String>>,
    ) -> Option<Result<Items, String>> {
        let (asked, patience) = {
            let mut state = self.state();
            if let Some(items) = &state.items {
                return Some(Ok(items.clone()));
            }
            let patience = if state.is_silent { Duration::ZERO } else { patience };
            let asked = state.asked.get_or_insert_with(|| {
                let asking = ask();
                let answer =
                    async move { asking.await.unwrap_or_else(|_| Err("it could not be asked".to_owned())) };
                Asked { since: Instant::now(), answer: answer.boxed().shared() }
            });
            (asked.clone(), patience)
        };
        let answer = timeout_at(asked.since + patience, asked.answer).await.ok();
        if answer.is_none() {
            self.state().is_silent = true;
        }
        answer
    }

    /// It has answered, or failed to.
    pub(crate) fn answered(&self, outcome: &Result<Items, String>) {
        let mut state = self.state();
        let asked = state.asked.take();
        match outcome {
            Ok(items) => {
                state.items = Some(items.clone());
                state.is_silent = false;
            }
            // One that says soon that it cannot costs nobody any time.
            Err(_) => state.is_silent = asked.is_some_and(|asked| asked.since.elapsed() > SOON),
        }
    }
}

#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum ListError {
    #[error("{method} was not answered: {error}")]
    NoAnswer { method: &'static str, error: CallError },
    #[error("{method} was refused: {message}")]
    Refused { method: &'static str, message: String },
    #[error("the answer to {method} is no list")]
    NoList { method: &'static str },
    #[error("{method} comes to no end: more than {PAGES_MAX} pages or {ITEMS_MAX} items, or a page twice")]
    Endless { method: &'static str },
}

/// Fetches all pages, and for how long the shortest-lived of them is good. A server that does not offer this kind offers none.
pub(crate) async fn fetch(dialled: &Dialled, list: List) -> Result<(Items, Option<Duration>), ListError> {
    let none = || (Items::from([]), Some(LIFETIME_MAX));
    let offers = |capabilities: &serde_json::Value| capabilities.get(list.capability()).is_some();
    if !dialled.hands.capabilities.as_ref().is_none_or(offers) {
        return Ok(none());
    }
    let method = list.method();
    let (mut items, mut cursor, mut lifetime) = (Vec::new(), None::<String>, Some(LIFETIME_MAX));
    for _ in 0..PAGES_MAX {
        let params = cursor.as_deref().map(|cursor| format!("{{\"cursor\":{}}}", raw::quoted(cursor)));
        let params = params.and_then(|params| RawValue::from_string(params).ok());
        let params = dialled.dressed(params, &Face::default(), None);
        let page = match dialled.pump.call_aside(method, params, PAGE_TIMEOUT).await {
            Ok(Reply::Result(page)) => page,
            Ok(Reply::Error(error)) if error.code == METHOD_NOT_FOUND => return Ok(none()),
            Ok(Reply::Error(error)) => return Err(ListError::Refused { method, message: error.message }),
            Err(error) => return Err(ListError::NoAnswer { method, error }),
        };
        let next = take_page(list, &page, &mut items)?;
        lifetime = lifetime.zip(lifetime_of(&page)).map(|(one, other)| one.min(other));
        match next {
            None => {
                if list == List::Tools {
                    dialled.held.learn_tools(&items);
                }
                return Ok((items.into(), lifetime));
            }
            Some(next) if items.len() <= ITEMS_MAX && cursor.as_ref() != Some(&next) => cursor = Some(next),
            Some(_) => return Err(ListError::Endless { method }),
        }
    }
    Err(ListError::Endless { method })
}

fn take_page(list: List, page: &RawValue, items: &mut Vec<Item>) -> Result<Option<String>, ListError> {
    #[derive(Deserialize)]
    struct Page<'a>(#[serde(borrow)] Vec<&'a RawValue>);
    let page_items = raw::at(page, &[list.field()]).and_then(|items| serde_json::from_str(items.get()).ok());
    let Page(page_items) = page_items.ok_or(ListError::NoList { method: list.method() })?;
    items.extend(page_items.into_iter().map(|item| Item::read(list, item.to_owned())));
    Ok(raw::text_at(page, &["nextCursor"]).map(std::borrow::Cow::into_owned))
}

fn lifetime_of(page: &RawValue) -> Option<Duration> {
    raw::at(page, &["ttlMs"])?.get().parse().ok().map(Duration::from_millis)
}
