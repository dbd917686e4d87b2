//! What a server offers, all pages of it: fetched once however many ask, kept to the letter, fetched anew when it says so.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cofer_mcp::message::{METHOD_NOT_FOUND, Reply};
use cofer_mcp::{CallError, Handshake, Pump, raw};
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::sync::OnceCell;

const PAGES_MAX: usize = 1000;
const ITEMS_MAX: usize = 50_000;
const PAGE_TIMEOUT: Duration = Duration::from_secs(30);

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
    pub raw: Box<RawValue>,
}

impl Item {
    pub(crate) fn read(list: List, raw: Box<RawValue>) -> Self {
        Self { key: raw::text_at(&raw, &[list.key()]).unwrap_or_default().into_owned(), raw }
    }
}

pub(crate) type Items = Arc<[Item]>;

/// Whether two lists say the same.
pub(crate) fn same(one: &[Item], other: &[Item]) -> bool {
    one.len() == other.len() && one.iter().zip(other).all(|(one, other)| one.raw.get() == other.raw.get())
}

/// One list of one server: empty until somebody asks.
#[derive(Debug, Default)]
pub(crate) struct Kept(Mutex<Arc<OnceCell<Items>>>);

impl Kept {
    pub(crate) fn cell(&self) -> Arc<OnceCell<Items>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn get(&self) -> Option<Items> {
        self.cell().get().cloned()
    }

    pub(crate) fn set(&self, items: Items) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(OnceCell::new_with(Some(items)));
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

/// Fetches all pages. A server that does not offer this kind offers none.
pub(crate) async fn fetch(pump: &Pump, hands: &Handshake, list: List) -> Result<Items, ListError> {
    let offers = |capabilities: &serde_json::Value| capabilities.get(list.capability()).is_some();
    if !hands.capabilities.as_ref().is_none_or(offers) {
        return Ok(Arc::new([]));
    }
    let method = list.method();
    let (mut items, mut cursor) = (Vec::new(), None::<String>);
    for _ in 0..PAGES_MAX {
        let params = cursor.as_deref().map(|cursor| format!("{{\"cursor\":{}}}", raw::quoted(cursor)));
        let params = params.and_then(|params| RawValue::from_string(params).ok());
        let page = match pump.call_aside(method, params, PAGE_TIMEOUT).await {
            Ok(Reply::Result(page)) => page,
            Ok(Reply::Error(error)) if error.code == METHOD_NOT_FOUND => return Ok(Arc::new([])),
            Ok(Reply::Error(error)) => return Err(ListError::Refused { method, message: error.message }),
            Err(error) => return Err(ListError::NoAnswer { method, error }),
        };
        let next = take_page(list, &page, &mut items)?;
        match next {
            None => return Ok(items.into()),
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
