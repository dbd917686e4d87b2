//! All tools of a project as one list, and who answers to which name.
//!
//! It is made anew when anything it is made of changes, and read by everybody meanwhile: the pages that clients get are already written.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use cofer_mcp::mirror::Mirrored;
use cofer_mcp::raw;
use cofer_model::{Namespacing, ServerId};
use serde_json::value::RawValue;

use crate::lists::{Items, List};
use crate::names::{self, Offer};
use crate::native::{NATIVE, Native};
use crate::upstream::Upstream;

/// So many tools a page: a client that knows no pages sees this many at least.
const PAGE_TOOLS: usize = 2000;

/// Who answers.
#[derive(Clone, Debug)]
pub(crate) enum Answerer {
    Server(Arc<Upstream>),
    Native(Arc<Native>),
}

impl Answerer {
    pub(crate) fn server_name(&self) -> &str {
        match self {
            Self::Server(upstream) => upstream.name(),
            Self::Native(_) => NATIVE,
        }
    }

    fn server_id(&self) -> Option<ServerId> {
        match self {
            Self::Server(upstream) => Some(upstream.entry.id),
            Self::Native(_) => None,
        }
    }
}

/// Where a call of this name goes.
#[derive(Clone, Debug)]
pub(crate) struct Route {
    pub answerer: Answerer,
    /// What the server itself calls it.
    pub name: Arc<str>,
    /// Arguments that its calls repeat in headers.
    pub mirrored: Arc<[Mirrored]>,
    /// Its server says that a second call does no more than the first.
    pub is_safe_to_repeat: bool,
}

/// A tool, for people.
#[derive(Clone, Debug)]
pub struct ListedTool {
    /// What it is called here.
    pub name: String,
    /// What leads to it: its name, or the qualified one where its name leads to another server's.
    pub called_as: String,
    pub server: String,
    /// To the letter as its server describes it.
    pub raw: Arc<RawValue>,
    pub enabled: bool,
    /// The server whose tool of the same name answers instead.
    pub shadowed_by: Option<String>,
}

/// Two servers offer a tool of the same name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Warning {
    /// The one that is hidden, and the one that answers.
    pub about: [Option<ServerId>; 2],
    tool: String,
    servers: [String; 2],
    /// What leads to the hidden one.
    qualified: String,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { tool, servers: [hidden, by], qualified, .. } = self;
        write!(
            f,
            "`{tool}` is offered by `{hidden}` and by `{by}`; `{by}` answers, and `{qualified}` leads to the other"
        )
    }
}

impl Warning {
    /// All that these say of one pair of servers, in few words.
    pub(crate) fn summary(warnings: &[&Self]) -> String {
        let [first, .., last] = warnings else { return warnings.iter().map(ToString::to_string).collect() };
        let Self { servers: [hidden, by], qualified, .. } = first;
        format!(
            "{} tools, from `{}` to `{}`, are offered by `{hidden}` and by `{by}`; `{by}` answers, and names like `{qualified}` lead to the others",
            warnings.len(),
            first.tool,
            last.tool
        )
    }
}

#[derive(Debug)]
pub(crate) struct Catalogue {
    routes: HashMap<String, Route>,
    pub tools: Vec<ListedTool>,
    /// The answer to `tools/list`, page by page.
    pages: Vec<Box<RawValue>>,
    pub warnings: Vec<Warning>,
    /// How many servers' lists it is made of.
    pub listed: usize,
}

impl Default for Catalogue {
    fn default() -> Self {
        let (routes, tools, warnings) = (HashMap::new(), Vec::new(), Vec::new());
        Self { routes, tools, pages: pages(&[]), warnings, listed: 0 }
    }
}

impl Catalogue {
    pub(crate) fn make(
        upstreams: &[(Arc<Upstream>, Option<Items>)],
        natives: &[Arc<Native>],
        mode: Namespacing,
    ) -> Self {
        let listed = upstreams.iter().filter(|(_, tools)| tools.is_some()).count();
        let mut catalogue = Self { listed, ..Self::default() };
        let answerers: Vec<(Answerer, Items)> =
            natives_first(natives)
                .chain(upstreams.iter().filter_map(|(upstream, tools)| {
                    Some((Answerer::Server(upstream.clone()), tools.clone()?))
                }))
                .collect();
        let names: Vec<(&str, Vec<Option<&str>>)> = answerers
            .iter()
            .map(|(answerer, tools)| {
                let usable = |key: &str| !key.is_empty() && is_enabled(answerer, key);
                let names = tools.iter().map(|tool| Some(tool.key.as_str()).filter(|key| usable(key)));
                (answerer.server_name(), names.collect())
            })
            .collect();
        let offers = names::offers(&names, mode);
        let mut offered = Vec::new();
        for offer in &offers {
            let (answerer, tools) = &answerers[offer.server];
            catalogue.add(answerer, &tools[offer.item], offer, &answerers, &mut offered);
        }
        catalogue.add_disabled(&answerers);
        catalogue.pages = pages(&offered);
        catalogue
    }

    fn add(
        &mut self,
        answerer: &Answerer,
        tool: &crate::lists::Item,
        offer: &Offer,
        answerers: &[(Answerer, Items)],
        offered: &mut Vec<String>,
    ) {
        let mirrored = tool.mirrored.clone();
        let (name, is_safe_to_repeat) = (tool.key.as_str().into(), is_safe_to_repeat(&tool.raw));
        let route = Route { answerer: answerer.clone(), name, mirrored, is_safe_to_repeat };
        let qualified = names::qualified(answerer.server_name(), &tool.key);
        self.routes.entry(qualified).or_insert_with(|| route.clone());
        let shadowed_by = offer.shadowed_by.map(|by| &answerers[by].0);
        match shadowed_by {
            None => {
                self.routes.insert(offer.name.clone(), route);
                offered.push(renamed(&tool.raw, &tool.key, &offer.name));
            }
            Some(by) => {
                let servers = [answerer, by];
                self.warnings.push(Warning {
                    about: servers.map(Answerer::server_id),
                    tool: tool.key.clone(),
                    servers: servers.map(|server| server.server_name().to_owned()),
                    qualified: offer.name.clone(),
                });
            }
        }
        let server = answerer.server_name().to_owned();
        let name = if shadowed_by.is_some() { tool.key.clone() } else { offer.name.clone() };
        let (raw, called_as) = (tool.raw.clone(), offer.name.clone());
        let shadowed_by = shadowed_by.map(|by| by.server_name().to_owned());
        self.tools.push(ListedTool { name, called_as, server, raw, enabled: true, shadowed_by });
    }

    fn add_disabled(&mut self, answerers: &[(Answerer, Items)]) {
        for (answerer, tools) in answerers {
            for tool in tools.iter().filter(|tool| !tool.key.is_empty() && !is_enabled(answerer, &tool.key)) {
                let (name, server) = (tool.key.clone(), answerer.server_name().to_owned());
                let (raw, called_as) = (tool.raw.clone(), tool.key.clone());
                let shadowed_by = None;
                self.tools.push(ListedTool { name, called_as, server, raw, enabled: false, shadowed_by });
            }
        }
    }

    /// Whether clients see the same.
    pub(crate) fn offers_the_same(&self, other: &Self) -> bool {
        let (ours, theirs) = (self.pages.iter(), other.pages.iter());
        ours.map(|page| page.get()).eq(theirs.map(|page| page.get()))
    }

    pub(crate) fn route(&self, name: &str) -> Option<&Route> {
        self.routes.get(name)
    }

    /// A page, with the cursor of the next one. `None` for a cursor that is none of ours.
    pub(crate) fn page(&self, cursor: Option<&str>) -> Option<&RawValue> {
        let number = match cursor {
            None => 0,
            Some(cursor) => cursor.strip_prefix("page-")?.parse::<usize>().ok()?,
        };
        self.pages.get(number).map(|page| &**page)
    }
}

/// One page at least.
fn pages(offered: &[String]) -> Vec<Box<RawValue>> {
    let last = offered.len().saturating_sub(1) / PAGE_TOOLS;
    let page = |number: usize| {
        let tools = offered.chunks(PAGE_TOOLS).nth(number).unwrap_or_default().join(",");
        let next =
            if number < last { format!(",\"nextCursor\":\"page-{}\"", number + 1) } else { String::new() };
        // Made of what was JSON before.
        RawValue::from_string(format!("{{\"tools\":[{tools}]{next}}}"))
            .unwrap_or_else(|_| RawValue::NULL.to_owned())
    };
    (0..=last).map(page).collect()
}

fn natives_first(natives: &[Arc<Native>]) -> impl Iterator<Item = (Answerer, Items)> {
    natives.iter().map(|native| {
        let item = crate::lists::Item::read(List::Tools, native.description.clone());
        (Answerer::Native(native.clone()), Arc::from([item]))
    })
}

fn is_enabled(answerer: &Answerer, name: &str) -> bool {
    match answerer {
        Answerer::Server(upstream) => !upstream.is_disabled(name),
        Answerer::Native(_) => true,
    }
}

fn is_safe_to_repeat(tool: &RawValue) -> bool {
    let says = |hint| raw::at(tool, &["annotations", hint]).is_some_and(|said| said.get() == "true");
    tool.get().contains("Hint") && (says("readOnlyHint") || says("idempotentHint"))
}

/// The description under the name that it has here.
fn renamed(tool: &RawValue, own: &str, offered: &str) -> String {
    if own == offered {
        return tool.get().to_owned();
    }
    raw::with(tool, &["name"], &raw::quoted(offered))
        .map_or_else(|| tool.get().to_owned(), |tool| tool.get().to_owned())
}
