//! One project: its servers in registration order, its catalogue, its clients.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};
use std::time::Duration;

use cofer_mcp::mirror::Mirrored;
use cofer_model::{Namespacing, ProjectId, ServerId};
use futures_util::future::join_all;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::catalogue::{Answerer, Catalogue, ListedTool, Warning};
use crate::desk::Desk;
use crate::lists::{Item, Items, List};
use crate::session::{Session, level_name};
use crate::tasks::Tasks;
use crate::upstream::{Change, LiveState, Upstream};
use crate::visitors::Visitors;
use crate::{House, OpenSession, ServerEntry};

/// Names that two servers share are told of so often; the list of tools has them all.
const CLASHES_TOLD_MAX: usize = 10_000;
/// A server may answer anything that a client makes up.
const METHODS_LEARNT_MAX: usize = 256;

/// What a project is made of, as the registry knows it.
#[derive(Debug)]
pub struct ProjectEntry {
    pub id: ProjectId,
    pub name: String,
    pub namespacing: Namespacing,
    pub repeat_safe_calls: bool,
    /// In registration order.
    pub servers: Vec<ServerEntry>,
}

/// Who is not in a list, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    pub server: String,
    pub reason: String,
}

/// All tools of a project.
#[derive(Clone, Debug)]
pub struct Listing {
    pub tools: Vec<ListedTool>,
    pub missing: Vec<Missing>,
    pub warnings: Vec<String>,
}

#[derive(Debug)]
pub struct Project {
    me: Weak<Self>,
    pub id: ProjectId,
    /// Whoever takes over what has changed in the registry.
    pub(crate) turn: tokio::sync::Mutex<()>,
    pub(crate) house: Arc<House>,
    servers: RwLock<Servers>,
    catalogue: RwLock<Arc<Catalogue>>,
    /// What was told of names that two servers share.
    clashes_told: Mutex<HashSet<Warning>>,
    sessions: RwLock<HashMap<String, Arc<Session>>>,
    pub(crate) visitors: Visitors,
    pub(crate) tasks: Tasks,
    /// Which server's resource this is, as far as it was learnt.
    pub(crate) resource_homes: Mutex<HashMap<String, ServerId>>,
    /// Which server has answered a method that is none of ours.
    method_homes: Mutex<HashMap<String, ServerId>>,
}

#[derive(Debug, Clone)]
struct Servers {
    /// The project's own.
    name: Arc<str>,
    namespacing: Namespacing,
    repeat_safe_calls: bool,
    upstreams: Arc<[Arc<Upstream>]>,
}

impl Project {
    pub(crate) fn new(house: Arc<House>, entry: ProjectEntry) -> Arc<Self> {
        let project = Arc::new_cyclic(|me: &Weak<Self>| Self {
            me: me.clone(),
            id: entry.id,
            turn: tokio::sync::Mutex::default(),
            house,
            servers: RwLock::new(Servers {
                name: entry.name.as_str().into(),
                namespacing: entry.namespacing,
                repeat_safe_calls: entry.repeat_safe_calls,
                upstreams: Arc::new([]),
            }),
            catalogue: RwLock::default(),
            clashes_told: Mutex::default(),
            sessions: RwLock::default(),
            visitors: Visitors::default(),
            tasks: Tasks::default(),
            resource_homes: Mutex::default(),
            method_homes: Mutex::default(),
        });
        project.take(entry);
        project
    }

    /// The registry has changed. What stayed the same keeps its conversations; what did not is closed.
    pub(crate) fn take(&self, entry: ProjectEntry) {
        let closed = {
            let mut servers = self.servers.write().unwrap_or_else(PoisonError::into_inner);
            let mut old: HashMap<ServerId, Arc<Upstream>> =
                servers.upstreams.iter().map(|upstream| (upstream.entry.id, upstream.clone())).collect();
            let upstreams = entry.servers.into_iter().map(|entry| {
                let same = |old: &Arc<Upstream>| {
                    old.entry.fingerprint == entry.fingerprint && old.entry.name == entry.name
                };
                match old.remove(&entry.id) {
                    Some(known) if same(&known) => {
                        known.set_disabled(entry.disabled);
                        known
                    }
                    changed => {
                        if let Some(changed) = changed {
                            changed.close();
                        }
                        Upstream::new(self.me.clone(), entry, self.house.slot_rules)
                    }
                }
            });
            servers.upstreams = upstreams.collect();
            servers.namespacing = entry.namespacing;
            servers.repeat_safe_calls = entry.repeat_safe_calls;
            servers.name = entry.name.into();
            old
        };
        for (_, upstream) in closed {
            upstream.close();
        }
        self.remake();
    }

    pub(crate) fn upstreams(&self) -> Arc<[Arc<Upstream>]> {
        self.servers.read().unwrap_or_else(PoisonError::into_inner).upstreams.clone()
    }

    /// What it is called now.
    pub fn name(&self) -> Arc<str> {
        self.servers.read().unwrap_or_else(PoisonError::into_inner).name.clone()
    }

    pub(crate) fn namespacing(&self) -> Namespacing {
        self.servers.read().unwrap_or_else(PoisonError::into_inner).namespacing
    }

    /// Whether calls that say they can be repeated are, when their server ends in the middle.
    pub(crate) fn repeats_safe_calls(&self) -> bool {
        self.servers.read().unwrap_or_else(PoisonError::into_inner).repeat_safe_calls
    }

    pub(crate) fn upstream(&self, id: ServerId) -> Option<Arc<Upstream>> {
        self.upstreams().iter().find(|upstream| upstream.entry.id == id).cloned()
    }

    /// All servers, those first that are likely to answer a method that is none of ours: who did before, then who is there. So nobody
    /// waits for a server that is down while another one knows.
    pub(crate) fn likeliest_for(&self, method: &str) -> Vec<Arc<Upstream>> {
        let home = self.method_homes.lock().unwrap_or_else(PoisonError::into_inner).get(method).copied();
        let mut upstreams = self.upstreams().to_vec();
        upstreams.sort_by_key(|upstream| (Some(upstream.entry.id) != home, !upstream.is_connected()));
        upstreams
    }

    pub(crate) fn learn_method(&self, method: &str, upstream: &Upstream) {
        let mut homes = self.method_homes.lock().unwrap_or_else(PoisonError::into_inner);
        if homes.len() < METHODS_LEARNT_MAX || homes.contains_key(method) {
            homes.insert(method.to_owned(), upstream.entry.id);
        }
    }

    pub(crate) fn state(&self, id: ServerId) -> Option<LiveState> {
        self.upstream(id).map(|upstream| upstream.state())
    }

    /// Makes the catalogue anew. Clients hear of it if their list is another one.
    fn remake(&self) {
        let Servers { name, namespacing, upstreams, .. } =
            self.servers.read().unwrap_or_else(PoisonError::into_inner).clone();
        let known: Vec<_> =
            upstreams.iter().map(|upstream| (upstream.clone(), upstream.known(List::Tools))).collect();
        let catalogue = Arc::new(Catalogue::make(&known, &self.house.natives, namespacing));
        let old = {
            let mut current = self.catalogue.write().unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *current, catalogue.clone())
        };
        self.warn(&name, &catalogue);
        if !old.offers_the_same(&catalogue) {
            // To who has never asked, nothing has changed.
            self.each_session(|session| {
                if session.has_listed() {
                    session.tell("notifications/tools/list_changed", None);
                }
            });
        }
    }

    /// Tells of names that two servers share, each once, those of one pair of servers together: one that changes its list all the time
    /// fills no history.
    fn warn(&self, project: &str, catalogue: &Catalogue) {
        let mut new: BTreeMap<_, Vec<&Warning>> = BTreeMap::new();
        {
            let mut told = self.clashes_told.lock().unwrap_or_else(PoisonError::into_inner);
            for warning in &catalogue.warnings {
                if told.len() < CLASHES_TOLD_MAX && told.insert(warning.clone()) {
                    new.entry(warning.about).or_default().push(warning);
                }
            }
        }
        for (about, warnings) in new {
            let text = Warning::summary(&warnings);
            tracing::warn!(%project, "project {project}: {text}");
            about.into_iter().flatten().for_each(|server| self.house.registry.warned(server, &text));
        }
    }

    pub(crate) fn catalogue(&self) -> Arc<Catalogue> {
        self.catalogue.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn server_changed(&self, upstream: &Upstream, change: Change, tools: Option<&Items>) {
        if let Some(tools) = tools {
            self.house.registry.tools_found(
                self.id,
                upstream.entry.id,
                tools.iter().map(|tool| tool.raw.clone()).collect(),
            );
        }
        match change {
            Change::Tools => self.remake(),
            Change::Prompts => {
                self.each_session(|session| session.tell("notifications/prompts/list_changed", None));
            }
            Change::Resources => {
                self.each_session(|session| session.tell("notifications/resources/list_changed", None));
            }
        }
    }

    /// Asks those whose list nobody knows yet, all at once; says who did not answer in time.
    pub(crate) async fn complete(
        &self,
        list: List,
        patience: Duration,
    ) -> (Vec<(Arc<Upstream>, Items)>, Vec<Missing>) {
        let upstreams = self.upstreams();
        let asked =
            upstreams.iter().map(async |upstream| (upstream.clone(), upstream.items(list, patience).await));
        let (mut there, mut missing) = (Vec::new(), Vec::new());
        for (upstream, items) in join_all(asked).await {
            match items {
                Ok(items) => there.push((upstream, items)),
                Err(reason) => missing.push(Missing { server: upstream.name().to_owned(), reason }),
            }
        }
        (there, missing)
    }

    /// How long clients may keep this list: as long as the shortest-lived of its parts is good.
    pub(crate) fn lifetime(&self, list: List) -> Duration {
        self.upstreams().iter().map(|upstream| upstream.lifetime(list)).min().unwrap_or_default()
    }

    /// The catalogue after everybody had a chance to say what they offer.
    pub(crate) async fn whole_catalogue(&self) -> (Arc<Catalogue>, Vec<Missing>) {
        let all_known = self.upstreams().iter().all(|upstream| upstream.known(List::Tools).is_some());
        let missing =
            if all_known { Vec::new() } else { self.complete(List::Tools, self.house.list_patience).await.1 };
        // A list that came this moment may be known before the catalogue was made of it.
        let known = self.upstreams().iter().filter(|upstream| upstream.known(List::Tools).is_some()).count();
        if self.catalogue().listed < known {
            self.remake();
        }
        (self.catalogue(), missing)
    }

    /// Every tool, for people.
    pub async fn tools(&self) -> Listing {
        let (catalogue, missing) = self.whole_catalogue().await;
        let warnings = catalogue.warnings.iter().map(ToString::to_string).collect();
        Listing { tools: catalogue.tools.clone(), missing, warnings }
    }

    /// Whether this tool's calls are for a person to see.
    pub fn displays(&self, tool: &str) -> bool {
        let catalogue = self.catalogue();
        match catalogue.route(tool).map(|route| &route.answerer) {
            Some(Answerer::Native(native)) => native.handler.is_display(),
            _ => false,
        }
    }

    /// Arguments of a tool that its calls repeat in headers.
    pub fn mirrored(&self, tool: &str) -> Arc<[Mirrored]> {
        self.catalogue().route(tool).map(|route| route.mirrored.clone()).unwrap_or_default()
    }

    /// The catalogue that has a tool of this name, if any does. One that is not known may be of a server that nobody has asked yet.
    pub(crate) async fn catalogue_with(&self, name: &str) -> Arc<Catalogue> {
        let catalogue = self.catalogue();
        if catalogue.route(name).is_some() {
            return catalogue;
        }
        Box::pin(self.whole_catalogue()).await.0
    }

    pub(crate) fn admit(&self, session: Arc<Session>) {
        let open = OpenSession { project: self.me.clone(), session: Arc::downgrade(&session) };
        let mut sessions_open = self.house.sessions_open.write().unwrap_or_else(PoisonError::into_inner);
        sessions_open.insert(session.id.clone(), open);
        drop(sessions_open);
        self.sessions.write().unwrap_or_else(PoisonError::into_inner).insert(session.id.clone(), session);
    }

    /// Ends a client's session and everything that was its own.
    pub fn dismiss(&self, id: &str) -> bool {
        let session = self.sessions.write().unwrap_or_else(PoisonError::into_inner).remove(id);
        self.house.sessions_open.write().unwrap_or_else(PoisonError::into_inner).remove(id);
        let Some(session) = session else { return false };
        session.close();
        for upstream in self.upstreams().iter() {
            upstream.leaves(&session);
        }
        true
    }

    /// Those of these capabilities that servers have, as far as they have said; where several have one, all that they say of it.
    pub(crate) fn capabilities_of_servers(&self, names: &[&str]) -> serde_json::Map<String, Value> {
        let mut all = serde_json::Map::new();
        for (name, said) in self.upstreams().iter().flat_map(|upstream| upstream.capabilities()) {
            if !names.contains(&name.as_str()) {
                continue;
            }
            match (all.get_mut(&name), said) {
                (Some(Value::Object(known)), Value::Object(more)) => known.extend(more),
                (_, said) => _ = all.insert(name, said),
            }
        }
        all
    }

    /// Ends the sessions that nobody has used for so long.
    pub(crate) fn dismiss_unused(&self, unused: Duration) {
        let old: Vec<String> = {
            let sessions = self.sessions.read().unwrap_or_else(PoisonError::into_inner);
            sessions
                .values()
                .filter(|session| session.unused_for() >= unused)
                .map(|session| session.id.clone())
                .collect()
        };
        for id in old {
            self.dismiss(&id);
        }
        self.visitors.forget_unused(unused);
        for upstream in self.upstreams().iter() {
            upstream.forget_visitors();
        }
    }

    pub(crate) fn each_session(&self, tell: impl Fn(&Arc<Session>)) {
        let sessions: Vec<_> =
            self.sessions.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect();
        sessions.iter().for_each(tell);
    }

    /// What a new conversation with this server must be told: the chattiest level that anybody wants, and what is subscribed to.
    pub(crate) fn agreed(&self, upstream: &Upstream, desk: &Desk) -> (Option<&'static str>, Vec<String>) {
        let sessions = self.sessions.read().unwrap_or_else(PoisonError::into_inner);
        let sessions: Vec<_> =
            sessions.values().filter(|session| desk.whose().concerns(session)).cloned().collect();
        let level = sessions.iter().filter_map(|session| session.level_if_set()).min().map(level_name);
        let homes = self.resource_homes.lock().unwrap_or_else(PoisonError::into_inner);
        let is_its = |uri: &String| homes.get(uri) == Some(&upstream.entry.id);
        let mut uris: Vec<_> =
            sessions.iter().flat_map(|session| session.subscriptions()).filter(is_its).collect();
        uris.sort();
        uris.dedup();
        (level, uris)
    }

    pub(crate) fn close(&self) {
        let sessions: Vec<String> =
            self.sessions.read().unwrap_or_else(PoisonError::into_inner).keys().cloned().collect();
        for id in sessions {
            self.dismiss(&id);
        }
        self.visitors.forget_unused(Duration::ZERO);
        for upstream in self.upstreams().iter() {
            upstream.close();
        }
    }
}

/// For those who only need to know what something is called.
pub(crate) fn find<'a>(items: &'a [Item], key: &str) -> Option<&'a Item> {
    items.iter().find(|item| item.key == key)
}

/// Who is missing, as it is said in `_meta`.
pub(crate) fn missing_meta(missing: &[Missing]) -> Option<Box<RawValue>> {
    if missing.is_empty() {
        return None;
    }
    let list: Vec<_> =
        missing.iter().map(|one| serde_json::json!({"server": one.server, "reason": one.reason})).collect();
    serde_json::value::to_raw_value(&serde_json::json!({"cofer/missing": list})).ok()
}
