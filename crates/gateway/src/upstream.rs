//! One server of a project: its conversations, shared or one for each client, and what it offers.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};
use std::time::Duration;

use cofer_mcp::message::{Notification, Reply};
use cofer_mcp::{Face, raw};
use cofer_model::{Circuit, ExternalStatus, Kind, ServerId, SessionMode};
use serde_json::value::RawValue;
use tokio_util::task::AbortOnDropHandle;

use crate::desk::{Desk, Whose};
use crate::dial::Dial;
use crate::lists::{self, Item, Items, Kept, List, ListError, same};
use crate::project::Project;
use crate::session::Session;
use crate::slot::{Connection, Slot, SlotRules, Standing, Unreached};

/// A server that changes its list in a burst is asked once.
const CHANGES_TOGETHER: Duration = Duration::from_millis(50);
/// A server that ends what is listened to is not asked again at once.
const LISTEN_AGAIN: Duration = Duration::from_secs(1);

/// A server as the registry knows it.
#[derive(Debug)]
pub struct ServerEntry {
    pub id: ServerId,
    pub name: String,
    /// Changes with everything that makes a conversation another one.
    pub fingerprint: u64,
    pub sessions: SessionMode,
    pub dial: Arc<dyn Dial>,
    /// What it offered last; `None` if nobody has asked yet.
    pub tools: Option<Vec<Box<RawValue>>>,
    /// Tools that somebody switched off.
    pub disabled: HashSet<String>,
}

/// What a server says has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Tools,
    Prompts,
    Resources,
}

impl Change {
    fn of(list: List) -> Self {
        match list {
            List::Tools => Self::Tools,
            List::Prompts => Self::Prompts,
            List::Resources | List::Templates => Self::Resources,
        }
    }
}

/// How it stands, for people.
#[derive(Clone, Debug)]
pub struct LiveState {
    pub status: ExternalStatus,
    /// Why it is not connected, in words for people and without secrets.
    pub last_error: Option<String>,
    pub circuit: Circuit,
    /// `None` where nobody has asked it yet.
    pub tool_count: Option<u64>,
    pub protocol_version: Option<String>,
}

impl LiveState {
    /// Nobody has asked for it yet.
    pub const fn idle() -> Self {
        Self {
            status: ExternalStatus::Idle,
            last_error: None,
            circuit: Circuit::closed(),
            tool_count: None,
            protocol_version: None,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Upstream {
    me: Weak<Self>,
    project: Weak<Project>,
    pub entry: ServerEntry,
    rules: SlotRules,
    shared: Slot,
    /// Each client's own, by session.
    own: Mutex<HashMap<String, Arc<Slot>>>,
    asks: AtomicBool,
    disabled: RwLock<HashSet<String>>,
    tools: Kept,
    prompts: Kept,
    resources: Kept,
    templates: Kept,
    /// By kind of change: one look is under way, and another is wanted.
    looking: Mutex<Vec<(Change, bool)>>,
    /// Listens to a server that says nothing by itself.
    listening: Mutex<Option<AbortOnDropHandle<()>>>,
    /// What it said that it can do.
    capabilities: RwLock<serde_json::Map<String, serde_json::Value>>,
}

impl Upstream {
    pub(crate) fn new(project: Weak<Project>, mut entry: ServerEntry, rules: SlotRules) -> Arc<Self> {
        Arc::new_cyclic(|me: &Weak<Self>| {
            let tools = Kept::default();
            if let Some(known) = entry.tools.take() {
                tools.set(known.into_iter().map(|tool| Item::read(List::Tools, tool)).collect());
            }
            let disabled = RwLock::new(std::mem::take(&mut entry.disabled));
            let shared = slot(me, &entry, Face::default(), Whose::Everybodys, rules);
            Self {
                me: me.clone(),
                project,
                entry,
                rules,
                shared,
                own: Mutex::default(),
                asks: AtomicBool::new(false),
                disabled,
                tools,
                prompts: Kept::default(),
                resources: Kept::default(),
                templates: Kept::default(),
                looking: Mutex::default(),
                listening: Mutex::default(),
                capabilities: RwLock::default(),
            }
        })
    }

    pub(crate) fn name(&self) -> &str {
        &self.entry.name
    }

    pub(crate) fn is_disabled(&self, tool: &str) -> bool {
        self.disabled.read().unwrap_or_else(PoisonError::into_inner).contains(tool)
    }

    pub(crate) fn set_disabled(&self, disabled: HashSet<String>) {
        *self.disabled.write().unwrap_or_else(PoisonError::into_inner) = disabled;
    }

    /// The conversation for this client, or everybody's.
    pub(crate) async fn connection(
        &self,
        session: Option<&Arc<Session>>,
    ) -> Result<Arc<Connection>, Unreached> {
        match session.filter(|_| self.is_per_client()) {
            Some(session) => self.own_slot(session).connection().await,
            None => self.shared.connection().await,
        }
    }

    /// The same, if it is open.
    pub(crate) fn open_connection(&self, session: Option<&Arc<Session>>) -> Option<Arc<Connection>> {
        match session.filter(|_| self.is_per_client()) {
            Some(session) => self.own_slot(session).open_connection(),
            None => self.shared.open_connection(),
        }
    }

    pub(crate) fn is_connected(&self) -> bool {
        matches!(self.shared.place().standing, Standing::Connected(_))
    }

    fn is_per_client(&self) -> bool {
        self.entry.dial.takes_many()
            && match self.entry.sessions {
                SessionMode::Auto => self.asks.load(Ordering::Relaxed),
                SessionMode::Shared => false,
                SessionMode::PerClient => true,
            }
    }

    fn own_slot(&self, session: &Arc<Session>) -> Arc<Slot> {
        let mut own = self.own.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(slot) = own.get(session.conversation()) {
            return slot.clone();
        }
        let whose = Whose::of(session);
        let slot = Arc::new(slot(&self.me, &self.entry, session.face.clone(), whose, self.rules));
        own.insert(session.conversation().to_owned(), slot.clone());
        slot
    }

    /// A client is gone, and with it its conversation.
    pub(crate) fn leaves(&self, session: &Session) {
        let slot = self.own.lock().unwrap_or_else(PoisonError::into_inner).remove(&session.id);
        if let Some(slot) = slot {
            slot.close();
        }
    }

    /// Conversations of visitors that nobody has used for long have ended by themselves.
    pub(crate) fn forget_visitors(&self) {
        let mut own = self.own.lock().unwrap_or_else(PoisonError::into_inner);
        own.retain(|_, slot| !slot.is_visitors() || !matches!(slot.place().standing, Standing::Idle));
    }

    pub(crate) fn close(&self) {
        self.shared.close();
        for (_, slot) in self.own.lock().unwrap_or_else(PoisonError::into_inner).drain() {
            slot.close();
        }
    }

    /// It asks its client things, so it needs to know which client it talks to.
    pub(crate) fn note_question(&self) {
        if !self.asks.swap(true, Ordering::Relaxed) {
            tracing::info!(server.id = %self.entry.id, "server {} asks its client: each client gets a session of its own", self.name());
        }
    }

    /// Does not wait for the next try, and looks at the tools anew.
    pub(crate) async fn refresh(&self) -> Result<(), Unreached> {
        let connection = self.shared.reconnect().await?;
        let fetched = self.fetch_from(&connection, List::Tools).await;
        let items = fetched.map_err(|error| Unreached {
            kind: Kind::Upstream,
            reason: error.to_string().into(),
            retry_after: None,
        })?;
        self.take(List::Tools, &items);
        Ok(())
    }

    fn kept(&self, list: List) -> &Kept {
        match list {
            List::Tools => &self.tools,
            List::Prompts => &self.prompts,
            List::Resources => &self.resources,
            List::Templates => &self.templates,
        }
    }

    pub(crate) fn known(&self, list: List) -> Option<Items> {
        self.kept(list).get()
    }

    /// The whole list; asked of the server if nobody has yet, and then waited for this long at most.
    pub(crate) async fn items(&self, list: List, patience: Duration) -> Result<Items, String> {
        let kept = self.kept(list);
        if let Some(items) = kept.get() {
            return Ok(items);
        }
        let Some(me) = self.me.upgrade() else { return Err("the server was removed".to_owned()) };
        let ask = move || {
            tokio::spawn(async move {
                let outcome = me.fetch(list).await;
                me.kept(list).answered(&outcome);
                if let (List::Tools, Ok(items)) = (list, &outcome) {
                    me.tell_project(Change::Tools, Some(items));
                }
                outcome
            })
        };
        let answer = kept.answer(patience, ask).await;
        answer.unwrap_or_else(|| {
            let why = self.shared.place().last_error.as_deref().map(ToOwned::to_owned);
            Err(why.unwrap_or_else(|| format!("it did not answer {} in time", list.method())))
        })
    }

    async fn fetch(&self, list: List) -> Result<Items, String> {
        let connection = self.shared.connection().await.map_err(|unreached| unreached.reason.to_string())?;
        self.fetch_from(&connection, list).await.map_err(|error| error.to_string())
    }

    async fn fetch_from(&self, connection: &Connection, list: List) -> Result<Items, ListError> {
        let (items, lifetime) = lists::fetch(&connection.dialled, list).await?;
        self.kept(list).set_lifetime(lifetime);
        Ok(items)
    }

    /// How much longer its list is good. One that is not any more is looked at anew, for who asks next; but nobody is woken for that.
    pub(crate) fn lifetime(&self, list: List) -> Duration {
        let kept = self.kept(list);
        if kept.is_stale() && self.is_connected() {
            self.changed(Change::of(list), &Whose::Everybodys);
        }
        kept.lifetime().unwrap_or_default()
    }

    /// Takes over a list that was fetched. Who is interested hears if it is another one.
    fn take(&self, list: List, items: &Items) {
        let kept = self.kept(list);
        if kept.get().is_none_or(|old| !same(&old, items)) {
            kept.set(items.clone());
            self.tell_project(Change::of(list), (list == List::Tools).then_some(items));
        }
    }

    fn tell_project(&self, change: Change, tools: Option<&Items>) {
        if let Some(project) = self.project.upgrade() {
            project.server_changed(self, change, tools);
        }
    }

    /// The server says that a list has changed: looked at, once for many such words, and told only if it is so.
    /// Looked at in the conversation in which it was said: each may be with a process of its own.
    pub(crate) fn changed(&self, change: Change, whose: &Whose) {
        {
            let mut looking = self.looking.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some((_, again)) = looking.iter_mut().find(|(what, _)| *what == change) {
                *again = true;
                return;
            }
            looking.push((change, false));
        }
        let Some(me) = self.me.upgrade() else { return };
        let whose = whose.clone();
        tokio::spawn(async move { while me.look(change, &whose).await {} });
    }

    /// The open conversation of these.
    async fn conversation_of(&self, whose: &Whose) -> Result<Arc<Connection>, Unreached> {
        let own = |key: &str| self.own.lock().unwrap_or_else(PoisonError::into_inner).get(key).cloned();
        let own = match whose {
            Whose::Everybodys => None,
            Whose::Session(session) => session.upgrade().and_then(|session| own(&session.id)),
            Whose::Visitor(looks) => own(looks),
        };
        match own {
            Some(own) => own.connection().await,
            None => self.shared.connection().await,
        }
    }

    /// Whether another look is wanted.
    async fn look(&self, change: Change, whose: &Whose) -> bool {
        tokio::time::sleep(CHANGES_TOGETHER).await;
        {
            let mut looking = self.looking.lock().unwrap_or_else(PoisonError::into_inner);
            looking.iter_mut().filter(|(what, _)| *what == change).for_each(|(_, again)| *again = false);
        }
        if let Ok(connection) = self.conversation_of(whose).await {
            self.look_through(&connection, change).await;
        }
        let mut looking = self.looking.lock().unwrap_or_else(PoisonError::into_inner);
        let again = looking.iter().any(|(what, again)| *what == change && *again);
        if !again {
            looking.retain(|(what, _)| *what != change);
        }
        again
    }

    async fn look_through(&self, connection: &Connection, change: Change) {
        let wanted: &[List] = match change {
            Change::Tools => &[List::Tools],
            Change::Prompts => &[List::Prompts],
            Change::Resources => &[List::Resources, List::Templates],
        };
        for list in wanted {
            match self.fetch_from(connection, *list).await {
                Ok(items) => self.take(*list, &items),
                Err(error) => {
                    tracing::warn!(server.id = %self.entry.id, "the lists of server {} may have changed, but: {error}", self.name());
                }
            }
        }
    }

    /// A conversation has opened: what was agreed on before is agreed on again, and the lists may be others by now.
    fn opened(&self, connection: Arc<Connection>, is_shared: bool) {
        let Some(me) = self.me.upgrade() else { return };
        let Some(project) = self.project.upgrade() else { return };
        if let Some(tools) = self.known(List::Tools) {
            connection.dialled.held.learn_tools(&tools);
        }
        let (level, subscriptions) = project.agreed(self, connection.desk.as_ref());
        let capabilities = connection.dialled.hands.capabilities.as_ref();
        if let Some(capabilities) = capabilities.and_then(serde_json::Value::as_object) {
            capabilities.clone_into(&mut self.capabilities.write().unwrap_or_else(PoisonError::into_inner));
        }
        let (level, subscriptions) = if connection.dialled.is_standalone() {
            if is_shared {
                self.listen(&connection, &subscriptions);
            }
            (None, Vec::new())
        } else {
            (level, subscriptions)
        };
        tokio::spawn(async move {
            let pump = &connection.dialled.pump;
            if let Some(level) = level {
                connection.set_level(level).await;
            }
            for uri in subscriptions {
                let params = RawValue::from_string(format!("{{\"uri\":{}}}", raw::quoted(&uri))).ok();
                let _ = pump.call_aside("resources/subscribe", params, Duration::from_secs(10)).await;
            }
            if !is_shared {
                return;
            }
            me.look_through(&connection, Change::Tools).await;
            for (list, change) in [(List::Prompts, Change::Prompts), (List::Resources, Change::Resources)] {
                if me.known(list).is_some() {
                    me.look_through(&connection, change).await;
                }
            }
        });
    }

    pub(crate) fn capabilities(&self) -> serde_json::Map<String, serde_json::Value> {
        self.capabilities.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// A server whose requests stand alone says what changes to who listens, and only that.
    fn listen(&self, connection: &Arc<Connection>, uris: &[String]) {
        let params = serde_json::json!({"notifications": {
            "toolsListChanged": true,
            "promptsListChanged": true,
            "resourcesListChanged": true,
            "resourceSubscriptions": uris,
        }});
        let params = serde_json::value::to_raw_value(&params).ok();
        let params = connection.dialled.dressed(params, &Face::default(), None);
        let pump = connection.dialled.pump.clone();
        let task = tokio::spawn(async move {
            // It is over with the conversation, or when the server says that it does not offer this.
            while let Ok(Reply::Result(_)) =
                pump.call_aside_patiently("subscriptions/listen", params.clone()).await
            {
                tokio::time::sleep(LISTEN_AGAIN).await;
            }
        });
        *self.listening.lock().unwrap_or_else(PoisonError::into_inner) = Some(AbortOnDropHandle::new(task));
    }

    /// Clients want to hear of other resources than before.
    pub(crate) fn subscriptions_changed(&self) {
        let connection = match &self.shared.place().standing {
            Standing::Connected(connection) if connection.dialled.is_standalone() => connection.clone(),
            _ => return,
        };
        if let Some(project) = self.project.upgrade() {
            let (_, uris) = project.agreed(self, &connection.desk);
            self.listen(&connection, &uris);
        }
    }

    /// A client wants to hear more, or less: said to the conversations that are open.
    pub(crate) fn tell_level(&self, session: &Session) {
        let own = self.own.lock().unwrap_or_else(PoisonError::into_inner).get(&session.id).cloned();
        for connection in
            [Some(self.shared.place()), own.as_ref().map(|own| own.place())].into_iter().flatten()
        {
            let Standing::Connected(connection) = &connection.standing else { continue };
            let Some(project) = self.project.upgrade() else { return };
            let (Some(level), _) = project.agreed(self, &connection.desk) else { continue };
            let connection = connection.clone();
            tokio::spawn(async move { connection.set_level(level).await });
        }
    }

    /// Something that a client says of itself, for its own conversation if it has one.
    pub(crate) fn pass_down(&self, session: &Session, method: &str, params: Option<&RawValue>) {
        let own = self.own.lock().unwrap_or_else(PoisonError::into_inner).get(&session.id).cloned();
        if let Some(own) = own
            && let Standing::Connected(connection) = &own.place().standing
        {
            connection.dialled.pump.notify(method, params);
        }
    }

    /// Told to who subscribed to it; in a client's own conversation, to that client alone.
    pub(crate) fn resource_updated(&self, said: &Notification, whose: &Whose) {
        let Some(uri) = said.params.as_deref().and_then(|params| raw::text_at(params, &["uri"])) else {
            return;
        };
        let tell = |session: &Arc<Session>| {
            if session.is_subscribed(&uri) && whose.concerns(session) {
                session.tell(&said.method, said.params.as_deref());
            }
        };
        self.each_session(tell);
    }

    pub(crate) fn each_session(&self, tell: impl Fn(&Arc<Session>)) {
        if let Some(project) = self.project.upgrade() {
            project.each_session(tell);
        }
    }

    pub(crate) fn state(&self) -> LiveState {
        let place = self.shared.place();
        let (status, retry_at, protocol_version) = match &place.standing {
            Standing::Idle | Standing::Closed => (ExternalStatus::Idle, None, None),
            Standing::Connecting => (ExternalStatus::Connecting, None, None),
            Standing::Connected(connection) => {
                (ExternalStatus::Connected, None, connection.dialled.hands.protocol_version.clone())
            }
            Standing::Waiting { retry_at, .. } => (ExternalStatus::Unavailable, Some(*retry_at), None),
            Standing::Failed { .. } => (ExternalStatus::Error, None, None),
        };
        LiveState {
            status,
            last_error: place.last_error.as_deref().map(ToOwned::to_owned),
            circuit: Circuit { state: place.circuit, failures: place.failures, retry_at },
            tool_count: self.known(List::Tools).map(|tools| tools.len() as u64),
            protocol_version,
        }
    }
}

fn slot(me: &Weak<Upstream>, entry: &ServerEntry, face: Face, whose: Whose, rules: SlotRules) -> Slot {
    let is_shared = whose.is_everybodys();
    let desk = Desk::new(me.clone(), whose);
    let owner = me.clone();
    let opened = Arc::new(move |connection| {
        if let Some(upstream) = owner.upgrade() {
            upstream.opened(connection, is_shared);
        }
    });
    Slot::new(entry.dial.clone(), face, desk, rules, opened)
}
