//! A client, from its `initialize` to its end; or, where each request stands alone, from one to the next (see [`crate::visitors`]).
//!
//! It outlives its servers and its own connections: what is for it is put into outboxes, from which whatever connection it has now is
//! fed. What a server asks of it waits here for its answer, under a number of ours, so that no two servers' questions are mixed up.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cofer_mcp::era::{Introduction, STANDALONE_VERSION};
use cofer_mcp::message::{METHOD_NOT_FOUND, Reply, RpcError, notification, request};
use cofer_mcp::{Face, Question, raw};
use serde_json::value::RawValue;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::listening::Wanted;
use crate::outbox::Outbox;

/// Streams of answered calls that a client whose connection broke may still read from.
const STREAMS_KEPT_MAX: usize = 32;
const SUBSCRIPTIONS_MAX: usize = 4096;
const QUESTIONS_MAX: usize = 256;
/// A person may have to answer.
pub(crate) const QUESTION_PATIENCE: Duration = Duration::from_mins(10);
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// From the chattiest to the gravest.
const LEVELS: [&str; 8] = ["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"];

/// The client has not said what it wants: it gets what servers send by themselves.
const LEVEL_UNSET: u8 = u8::MAX;

#[derive(Debug)]
pub struct Session {
    pub id: String,
    /// Who opened it; nobody else may use it. `None` where nobody is asked who they are.
    pub owner: Option<uuid::Uuid>,
    pub protocol_version: &'static str,
    pub face: Face,
    /// By what a client is known again whose requests stand alone.
    looks: Option<Arc<str>>,
    /// What belongs to no call.
    pub general: Arc<Outbox>,
    /// The last message of it that a connection has carried.
    general_heard: AtomicU64,
    /// Whether it was ever told which tools there are.
    has_listed: AtomicBool,
    level: AtomicU8,
    next_stream: AtomicU64,
    open: Mutex<Open>,
    /// A question has come that its client must be told of in an answer.
    asked: Notify,
    /// What a client that only listens wants to hear of.
    pub(crate) wanted: Option<Wanted>,
    closed: CancellationToken,
}

#[derive(Debug)]
struct Open {
    questions: HashMap<u64, Pending>,
    last_answer: Option<Instant>,
    /// With how each is called off, which is done once.
    calls: BTreeMap<Arc<str>, Option<oneshot::Sender<()>>>,
    streams: VecDeque<Arc<Outbox>>,
    subscriptions: HashSet<String>,
    last_used: Instant,
    /// Connections that read from it now.
    readers: usize,
}

/// A question that waits for the client's answer.
#[derive(Debug)]
struct Pending {
    question: Question,
    at: Instant,
    /// Which conversation it comes from, if it comes from one.
    desk: Option<u64>,
    /// Where the client was told.
    stream: Arc<Outbox>,
    /// What the server calls its progress.
    token: Option<Box<RawValue>>,
}

impl Open {
    /// What nobody has answered for so long, nobody will; its server hears so.
    fn drop_stale_questions(&mut self) {
        self.questions.retain(|_, asked| asked.at.elapsed() < QUESTION_PATIENCE);
    }
}

static NEXT_QUESTION: AtomicU64 = AtomicU64::new(1);

impl Session {
    pub(crate) fn new(owner: Option<uuid::Uuid>, protocol_version: &'static str, face: Face) -> Self {
        let open = Open {
            questions: HashMap::new(),
            last_answer: None,
            calls: BTreeMap::new(),
            streams: VecDeque::new(),
            subscriptions: HashSet::new(),
            last_used: Instant::now(),
            readers: 0,
        };
        Self {
            id: uuid::Uuid::new_v4().simple().to_string(),
            owner,
            protocol_version,
            looks: None,
            face,
            general: Arc::new(Outbox::new(0)),
            general_heard: AtomicU64::new(0),
            has_listed: AtomicBool::new(false),
            level: AtomicU8::new(LEVEL_UNSET),
            next_stream: AtomicU64::new(1),
            open: Mutex::new(open),
            asked: Notify::new(),
            wanted: None,
            closed: CancellationToken::new(),
        }
    }

    /// A client whose requests stand alone.
    pub(crate) fn visiting(owner: Option<uuid::Uuid>, introduction: &Introduction<'_>) -> Self {
        let looks = Some(looks_of(owner, introduction));
        Self { looks, ..Self::new(owner, STANDALONE_VERSION, introduction.face()) }
    }

    /// A client that only listens.
    pub(crate) fn listening(
        owner: Option<uuid::Uuid>,
        introduction: &Introduction<'_>,
        wanted: Wanted,
    ) -> Self {
        let session = Self { wanted: Some(wanted), ..Self::visiting(owner, introduction) };
        session.note_listed();
        session
    }

    /// Whether each of its requests stands alone, as since 2026-07-28.
    pub fn is_standalone(&self) -> bool {
        self.protocol_version == STANDALONE_VERSION
    }

    pub(crate) fn looks(&self) -> Option<&Arc<str>> {
        self.looks.as_ref()
    }

    /// By what its conversations are known.
    pub(crate) fn conversation(&self) -> &str {
        self.looks.as_deref().unwrap_or(&self.id)
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn note_use(&self) {
        self.open().last_used = Instant::now();
    }

    /// How long nobody has used it; nothing while somebody reads from it or a call is under way.
    pub(crate) fn unused_for(&self) -> Duration {
        let open = self.open();
        if open.readers > 0 || !open.calls.is_empty() { Duration::ZERO } else { open.last_used.elapsed() }
    }

    /// While the guard lives, somebody reads.
    pub fn reads(self: &Arc<Self>) -> Reading {
        self.open().readers += 1;
        Reading(self.clone())
    }

    /// A stream for one call. It can be read again for a while, if anything was said on it.
    pub(crate) fn stream(&self) -> Arc<Outbox> {
        Arc::new(Outbox::new(self.next_stream.fetch_add(1, Ordering::Relaxed)))
    }

    /// From now on it can be found again by a client whose connection broke.
    pub fn keep(&self, stream: &Arc<Outbox>) {
        let mut open = self.open();
        if open.streams.len() >= STREAMS_KEPT_MAX {
            open.streams.pop_front();
        }
        open.streams.push_back(stream.clone());
    }

    /// The stream of this number, as in the id of an event.
    pub fn find_stream(&self, number: u64) -> Option<Arc<Outbox>> {
        if number == 0 {
            return Some(self.general.clone());
        }
        self.open().streams.iter().find(|stream| stream.stream == number).cloned()
    }

    /// A call under way: cancelled through what is returned, by the client or with the session. `None` if the id is in use.
    pub(crate) fn begin_call(self: &Arc<Self>, id: &RawValue) -> Option<Underway> {
        let mut open = self.open();
        open.last_used = Instant::now();
        if open.calls.contains_key(id.get()) {
            return None;
        }
        let (cancel, cancelled) = oneshot::channel();
        let id: Arc<str> = id.get().into();
        open.calls.insert(id.clone(), Some(cancel).filter(|_| !self.is_closed()));
        Some(Underway { session: self.clone(), id, cancelled })
    }

    pub(crate) fn cancel_call(&self, id: &str) {
        if let Some(call) = self.open().calls.get_mut(id) {
            // Whoever waits at the other end hears that this one is gone.
            drop(call.take());
        }
    }

    /// Passes a server's question on to the client, on the stream that it belongs to.
    pub(crate) fn ask(&self, desk: Option<u64>, stream: &Arc<Outbox>, question: Question) {
        if !self.can_answer(&question) {
            let refusal =
                RpcError::new(METHOD_NOT_FOUND, "the client behind this gateway cannot answer this");
            return question.answer(Reply::Error(refusal));
        }
        let number = NEXT_QUESTION.fetch_add(1, Ordering::Relaxed);
        let token = token_of(&question);
        let own =
            token.as_ref().and_then(|_| raw::with(question.params.as_ref()?, &TOKEN, &number.to_string()));
        let message = request(number, &question.method, own.as_deref().or(question.params.as_deref()));
        {
            let mut open = self.open();
            open.drop_stale_questions();
            if open.questions.len() >= QUESTIONS_MAX {
                return;
            }
            let (at, stream) = (Instant::now(), stream.clone());
            open.questions.insert(number, Pending { question, at, desk, stream, token });
        }
        if self.is_standalone() {
            self.asked.notify_one();
        } else {
            stream.push(message);
        }
    }

    /// A server takes back what it asked in this conversation. Whether it was asked of this client.
    pub(crate) fn called_off(&self, desk: u64, id: &RawValue, params: &RawValue) -> bool {
        let is_it = |asked: &Pending| {
            asked.desk == Some(desk) && asked.question.id().is_some_and(|own| own.get() == id.get())
        };
        let found = {
            let mut open = self.open();
            let number = open.questions.iter().find(|(_, asked)| is_it(asked)).map(|(number, _)| *number);
            number.and_then(|number| open.questions.remove(&number).map(|asked| (number, asked)))
        };
        let Some((number, Pending { question, stream, .. })) = found else { return false };
        question.forget();
        if let Some(params) = raw::with(params, &["requestId"], &number.to_string())
            && !self.is_standalone()
        {
            let place = if stream.has_ended() { &self.general } else { &stream };
            place.push(notification("notifications/cancelled", Some(&params)));
        }
        true
    }

    /// The client says how far it is with what it was asked under this number.
    pub(crate) fn is_at(&self, number: u64, params: &RawValue) {
        let open = self.open();
        let Some(Pending { question, token: Some(token), .. }) = open.questions.get(&number) else { return };
        if let Some(params) = raw::with(params, &["progressToken"], token.get()) {
            question.tell("notifications/progress", Some(&params));
        }
    }

    /// Waits until there is a question that its client must be told of.
    pub(crate) async fn is_asked(&self) {
        loop {
            let asked = self.asked.notified();
            if !self.open().questions.is_empty() {
                return;
            }
            asked.await;
        }
    }

    /// What is asked of it, by number, as an answer may say it.
    pub(crate) fn input_requests(&self) -> String {
        let open = self.open();
        let mut numbers: Vec<_> = open.questions.iter().collect();
        numbers.sort_by_key(|(number, _)| **number);
        let one = |(number, Pending { question, .. }): (&u64, &Pending)| {
            let params = question.params.as_deref().map_or("{}", RawValue::get);
            format!("\"{number}\":{{\"method\":{},\"params\":{params}}}", raw::quoted(&question.method))
        };
        format!("{{{}}}", numbers.into_iter().map(one).collect::<Vec<_>>().join(","))
    }

    /// How much longer a call may take that is out of time, because of what its client is, or was, asked meanwhile.
    pub(crate) fn more_time(&self, timeout: Duration) -> Option<Instant> {
        let mut open = self.open();
        open.drop_stale_questions();
        let now = Instant::now();
        let later = match open.questions.values().map(|asked| asked.at).min() {
            Some(asked_at) => (asked_at + QUESTION_PATIENCE).min(now + LOOK_AGAIN),
            None => open.last_answer? + timeout,
        };
        Some(later).filter(|later| *later > now)
    }

    /// What a client did not say that it can do is not asked of it.
    fn can_answer(&self, question: &Question) -> bool {
        let needed = match question.method.as_str() {
            "sampling/createMessage" => "sampling",
            "elicitation/create" => "elicitation",
            "roots/list" => "roots",
            _ => return true,
        };
        raw::at(&self.face.capabilities, &[needed]).is_some()
    }

    /// The client's answer to the question of this number.
    pub(crate) fn answered(&self, number: u64, reply: Reply) {
        let question = {
            let mut open = self.open();
            open.last_answer = Some(Instant::now());
            open.questions.remove(&number)
        };
        if let Some(asked) = question {
            asked.question.answer(reply);
        }
    }

    /// Nobody will answer what it was asked.
    pub(crate) fn forget_questions(&self) {
        let questions = std::mem::take(&mut self.open().questions);
        // Each tells its server; not under our lock.
        drop(questions);
    }

    pub(crate) fn set_level(&self, level: &str) -> bool {
        let Some(place) = LEVELS.iter().position(|known| *known == level) else { return false };
        self.level.store(u8::try_from(place).unwrap_or(0), Ordering::Relaxed);
        true
    }

    /// What one request says of it: nothing where it says nothing.
    pub(crate) fn set_level_of_request(&self, level: Option<&str>) -> bool {
        let Some(level) = level else {
            self.level.store(LEVEL_UNSET, Ordering::Relaxed);
            return true;
        };
        self.set_level(level)
    }

    pub(crate) fn level_if_set(&self) -> Option<u8> {
        Some(self.level.load(Ordering::Relaxed)).filter(|level| *level != LEVEL_UNSET)
    }

    /// What a request that stands alone wants to hear of.
    pub(crate) fn level_of_request(&self) -> Option<u8> {
        self.level_if_set().filter(|_| self.is_standalone())
    }

    /// Whether it wants to hear of something this grave. What it does not know is heard.
    pub(crate) fn wants_level(&self, level: &str) -> bool {
        let least = match self.level_if_set() {
            Some(level) => usize::from(level),
            // A request that does not ask for them is told no messages.
            None if self.is_standalone() => return false,
            None => 0,
        };
        LEVELS.iter().position(|known| *known == level).is_none_or(|place| place >= least)
    }

    pub(crate) fn subscribe(&self, uri: &str) -> bool {
        let mut open = self.open();
        open.subscriptions.len() < SUBSCRIPTIONS_MAX && {
            open.subscriptions.insert(uri.to_owned());
            true
        }
    }

    pub(crate) fn unsubscribe(&self, uri: &str) {
        self.open().subscriptions.remove(uri);
    }

    pub(crate) fn is_subscribed(&self, uri: &str) -> bool {
        self.open().subscriptions.contains(uri)
    }

    pub(crate) fn subscriptions(&self) -> Vec<String> {
        self.open().subscriptions.iter().cloned().collect()
    }

    pub fn general_heard(&self) -> u64 {
        self.general_heard.load(Ordering::Relaxed)
    }

    /// Whether this message is the asking connection's to carry: of several that a client has open, one carries each.
    pub fn claim_general(&self, number: u64) -> bool {
        self.general_heard.fetch_max(number, Ordering::Relaxed) < number
    }

    /// From now on it hears when the tools are others.
    pub(crate) fn note_listed(&self) {
        self.has_listed.store(true, Ordering::Release);
    }

    pub(crate) fn has_listed(&self) -> bool {
        self.has_listed.load(Ordering::Acquire)
    }

    /// Says something that belongs to no call.
    pub(crate) fn tell(&self, method: &str, params: Option<&RawValue>) {
        match &self.wanted {
            None => self.general.push(notification(method, params)),
            Some(wanted) => {
                wanted.told(method, params).into_iter().for_each(|message| self.general.push(message));
            }
        }
    }

    /// Ends it: calls are cancelled, questions go unanswered, readers hear.
    pub(crate) fn close(&self) {
        self.closed.cancel();
        self.general.end();
        let (questions, calls) = {
            let mut open = self.open();
            (std::mem::take(&mut open.questions), std::mem::take(&mut open.calls))
        };
        drop(calls);
        // Each tells its server that nobody is there any more; not under our lock.
        drop(questions);
    }

    pub fn is_closed(&self) -> bool {
        self.closed.is_cancelled()
    }

    /// Waits for its end.
    pub async fn closed(&self) {
        self.closed.cancelled().await;
    }
}

/// Where a message says what its progress is called.
pub(crate) const TOKEN: [&str; 2] = ["_meta", "progressToken"];

fn token_of(question: &Question) -> Option<Box<RawValue>> {
    let params = question.params.as_deref().filter(|params| params.get().contains("progressToken"))?;
    raw::at(params, &TOKEN).map(ToOwned::to_owned)
}

/// Whoever has the same token and says the same of itself is the same client.
pub(crate) fn looks_of(owner: Option<uuid::Uuid>, introduction: &Introduction<'_>) -> Arc<str> {
    let client_info = introduction.client_info.map_or("", RawValue::get);
    let mut owner_text = uuid::Uuid::encode_buffer();
    let owner = owner.unwrap_or_default().simple().encode_lower(&mut owner_text);
    [owner, introduction.capabilities.get(), client_info].join(" ").into()
}

/// The name of a level by its place.
pub(crate) fn level_name(level: u8) -> &'static str {
    LEVELS.get(usize::from(level)).copied().unwrap_or("debug")
}

/// Somebody reads from this session.
#[derive(Debug)]
pub struct Reading(Arc<Session>);

impl Drop for Reading {
    fn drop(&mut self) {
        let mut open = self.0.open();
        open.readers -= 1;
        open.last_used = Instant::now();
    }
}

/// A call of a session. Forgotten when dropped.
#[derive(Debug)]
pub(crate) struct Underway {
    session: Arc<Session>,
    id: Arc<str>,
    /// Comes to an end when the call is called off.
    pub cancelled: oneshot::Receiver<()>,
}

impl Drop for Underway {
    fn drop(&mut self) {
        // Or what is forgotten below would wake whoever has just been answered.
        self.cancelled.close();
        let mut open = self.session.open();
        open.calls.remove(&self.id);
        open.last_used = Instant::now();
    }
}
