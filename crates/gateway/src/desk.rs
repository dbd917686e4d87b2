//! What comes up from a server by itself, and to whom it goes.
//!
//! A call that a client made through a session has a stream of its own to that client; while it is under way it is written down here,
//! under a number that is also its progress token, so tokens of different clients are never mixed up. What names no call goes to
//! the one call there is; and where calls of several clients are under way at once, a question cannot be placed: it is refused, and
//! from then on each client of this server gets a conversation of its own.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use cofer_mcp::message::{INTERNAL_ERROR, Notification, Reply, RpcError, notification};
use cofer_mcp::{Ear, Question, raw};
use serde_json::value::RawValue;

use crate::outbox::Outbox;
use crate::session::Session;
use crate::upstream::{Change, Upstream};

#[derive(Debug)]
pub(crate) struct Desk {
    /// Tells apart the questions of servers that count alike.
    number: u64,
    upstream: Weak<Upstream>,
    whose: Whose,
    calls: Mutex<BTreeMap<u64, Call>>,
}

/// Whose conversation it is.
#[derive(Clone, Debug)]
pub(crate) enum Whose {
    Everybodys,
    /// One client's.
    Session(Weak<Session>),
    /// One client's, whose requests stand alone: it is known by its looks.
    Visitor(Arc<str>),
}

impl Whose {
    pub(crate) fn of(session: &Arc<Session>) -> Self {
        match session.looks() {
            Some(looks) => Self::Visitor(looks.clone()),
            None => Self::Session(Arc::downgrade(session)),
        }
    }

    pub(crate) fn is_everybodys(&self) -> bool {
        matches!(self, Self::Everybodys)
    }

    /// Whether what is said in it is for this client.
    pub(crate) fn concerns(&self, session: &Session) -> bool {
        match self {
            Self::Everybodys => true,
            Self::Session(client) => client.upgrade().is_some_and(|client| client.id == session.id),
            Self::Visitor(looks) => session.looks() == Some(looks),
        }
    }
}

#[derive(Clone, Debug)]
struct Call {
    session: Arc<Session>,
    stream: Arc<Outbox>,
}

static NEXT_NUMBER: AtomicU64 = AtomicU64::new(1);

/// A number for a call, and the token by which the server speaks of its progress.
pub(crate) fn next_number() -> u64 {
    NEXT_NUMBER.fetch_add(1, Ordering::Relaxed)
}

impl Desk {
    pub(crate) fn new(upstream: Weak<Upstream>, whose: Whose) -> Self {
        Self { number: next_number(), upstream, whose, calls: Mutex::default() }
    }

    pub(crate) fn whose(&self) -> &Whose {
        &self.whose
    }

    fn calls(&self) -> MutexGuard<'_, BTreeMap<u64, Call>> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes a call down until what is returned is dropped.
    pub(crate) fn enter(&self, number: u64, session: &Arc<Session>, stream: &Arc<Outbox>) -> Entered<'_> {
        self.calls().insert(number, Call { session: session.clone(), stream: stream.clone() });
        Entered { desk: self, number }
    }

    pub(crate) fn is_busy(&self) -> bool {
        !self.calls().is_empty()
    }

    /// The stream for what names no call.
    fn place(&self) -> Place {
        let calls = self.calls();
        let mut all = calls.values();
        match (&self.whose, all.next(), all.next()) {
            (_, Some(only), None) => Place::Call(only.clone()),
            (Whose::Session(client), ..) => client.upgrade().map_or(Place::Nobody, Place::Client),
            // Each of its calls can be answered with a question: the latest is as good as any.
            (Whose::Visitor(_), Some(_), Some(_)) => {
                let latest = calls.last_key_value();
                latest.map_or(Place::Nobody, |(_, call)| Place::Call(call.clone()))
            }
            (_, None, _) => Place::Nobody,
            (Whose::Everybodys, Some(first), Some(second)) => {
                let one_client =
                    std::iter::once(second).chain(all).all(|call| call.session.id == first.session.id);
                if one_client { Place::Client(first.session.clone()) } else { Place::Several }
            }
        }
    }

    fn progress(&self, params: &RawValue) {
        let number =
            raw::at(params, &["progressToken"]).and_then(|token| token.get().trim_matches('"').parse().ok());
        let call = number.and_then(|number: u64| self.calls().get(&number).cloned());
        let Some((call, token)) = call.and_then(|call| call.stream.token().map(|token| (call, token))) else {
            return;
        };
        if let Some(params) = raw::with(params, &["progressToken"], token.get()) {
            call.stream.push(notification("notifications/progress", Some(&params)));
        }
    }

    /// The server takes back a question. The client knows it by another number; one that nobody waits for is nobody's.
    fn called_off(&self, params: &RawValue) {
        let Some(id) = raw::at(params, &["requestId"]) else { return };
        let mut clients: Vec<_> = self.calls().values().map(|call| call.session.clone()).collect();
        if let Whose::Session(client) = &self.whose {
            clients.extend(client.upgrade());
        }
        let take_back = |client: &Session| client.called_off(self.number, id, params);
        // Most are taken back because their call is over, and then its client has none here any more.
        if !clients.iter().any(|client| take_back(client))
            && let Some(upstream) = self.upstream.upgrade()
        {
            upstream.each_session(|client| {
                take_back(client);
            });
        }
    }

    /// To everybody with a call under way; if there is nobody, to whoever may want to know.
    fn pass_on(&self, said: &Notification) {
        let level = said.params.as_deref().and_then(|params| raw::text_at(params, &["level"]));
        let is_log = said.method == "notifications/message";
        let wants =
            |session: &Session| !is_log || level.as_deref().is_none_or(|level| session.wants_level(level));
        let message = notification(&said.method, said.params.as_deref());
        match self.place() {
            Place::Call(call) if wants(&call.session) => call.stream.push(message),
            Place::Client(session) if wants(&session) => session.general.push(message),
            Place::Call(_) | Place::Client(_) => {}
            Place::Several | Place::Nobody => {
                let Some(upstream) = self.upstream.upgrade() else { return };
                upstream.each_session(|session| {
                    if wants(session) {
                        session.general.push(message.clone());
                    }
                });
            }
        }
    }
}

/// Where something belongs that names no call.
enum Place {
    Call(Call),
    Client(Arc<Session>),
    Several,
    Nobody,
}

impl Ear for Desk {
    fn hears(&self, said: Notification) {
        let change = match said.method.as_str() {
            "notifications/progress" => {
                return said.params.as_deref().map_or((), |params| self.progress(params));
            }
            "notifications/cancelled" => {
                return said.params.as_deref().map_or((), |params| self.called_off(params));
            }
            "notifications/tools/list_changed" => Change::Tools,
            "notifications/prompts/list_changed" => Change::Prompts,
            "notifications/resources/list_changed" => Change::Resources,
            "notifications/resources/updated" => {
                let Some(upstream) = self.upstream.upgrade() else { return };
                return upstream.resource_updated(&said, &self.whose);
            }
            _ => return self.pass_on(&said),
        };
        if let Some(upstream) = self.upstream.upgrade() {
            upstream.changed(change, &self.whose);
        }
    }

    fn is_asked(&self, question: Question) {
        if let Some(upstream) = self.upstream.upgrade()
            && question.method != "roots/list"
        {
            upstream.note_question();
        }
        match self.place() {
            Place::Call(call) => call.session.ask(Some(self.number), &call.stream, question),
            Place::Client(session) => session.ask(Some(self.number), &session.general, question),
            Place::Nobody if question.method == "roots/list" => {
                let none = RawValue::from_string(r#"{"roots":[]}"#.to_owned());
                question.answer(Reply::Result(none.unwrap_or_else(|_| RawValue::NULL.to_owned())));
            }
            Place::Nobody | Place::Several => {
                let why =
                    "it cannot be told which client this is for; from now on each has a session of its own";
                question.answer(Reply::Error(RpcError::new(INTERNAL_ERROR, why)));
            }
        }
    }
}

/// A call that is written down.
#[derive(Debug)]
pub(crate) struct Entered<'a> {
    desk: &'a Desk,
    number: u64,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        self.desk.calls().remove(&self.number);
    }
}
