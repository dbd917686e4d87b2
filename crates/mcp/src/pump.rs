//! The pump: calls go down a server's stdin, answers come up its stdout, each to its own caller.
//!
//! Two tasks. The *router* owns everything that changes: who waits in line, who waits for which answer. It reads, and never
//! waits for a write: a server that does not read its stdin must not keep us from reading its stdout. The *writer* owns
//! stdin and does nothing else.
//!
//! ```text
//!               permits (queue_max + in_flight_max)          one line at a time
//!   call() ──────────► waiting line ──────────► in flight ──────────► writer ─► stdin
//!      ▲ leaves: gives up its place    leaves: `cancelled` is sent, a late answer is dropped
//!      └───────────────────────────── answer, matched by id ◄─────── router ◄── stdout
//! ```
//!
//! The waiter travels with the call. When the router ends, for whatever reason, every waiter hears.
//!
//! Whoever looks after the server asks *aside*: its greeting and its pings take nobody's place in the line, and a server that never
//! answers them is served calls all the same.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use cofer_model::Kind;
use serde_json::value::RawValue;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, broadcast, mpsc, oneshot, watch};

use crate::lines::{Line, Lines};
use crate::message::{self, Incoming, Notification, Reply};
use crate::spotter::IdSpotter;

/// Notifications kept for a subscriber that is slow; older ones are dropped for that subscriber alone.
const NOTIFICATIONS_KEPT: usize = 256;
/// Longer notifications are not published: with as many kept as above, subscribers would hold too much of a hostile server's text.
const NOTIFICATION_BYTES_MAX: usize = 1 << 20;
/// Answers to the server's questions that wait for the writer. A server that asks and does not read loses answers, nobody
/// else does. What we say ourselves is bounded by the calls it is about.
const ANSWERS_WAITING_MAX: usize = 256;
/// How long answers that are already on their way up are waited for when nothing can be sent down any more.
const LAST_ANSWERS_GRACE: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Calls that the server works on at once.
    pub in_flight_max: usize,
    /// Calls that wait for their turn. One more is refused.
    pub queue_max: usize,
    /// Longest line taken. A longer answer fails its call alone.
    pub message_bytes_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { in_flight_max: 1, queue_max: 256, message_bytes_max: 16 << 20 }
    }
}

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    #[error("too many calls wait for this server")]
    QueueFull,
    #[error("no answer in time")]
    Timeout,
    #[error("the answer cannot be read")]
    Unreadable,
    #[error("the answer is longer than the {bytes_max} bytes taken")]
    TooLong { bytes_max: usize },
    /// It ended before this call reached it.
    #[error("the server is gone")]
    Gone,
    /// It ended while it had this call.
    #[error("the server ended before it answered; the call may have been executed")]
    MayHaveExecuted,
}

impl CallError {
    pub fn kind(self) -> Kind {
        match self {
            Self::QueueFull => Kind::LimitExceeded,
            Self::Timeout => Kind::Timeout,
            Self::Unreadable | Self::TooLong { .. } | Self::MayHaveExecuted => Kind::Upstream,
            Self::Gone => Kind::Unavailable,
        }
    }
}

/// How a pump came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The server closed its stdout, or it broke.
    Stdout,
    /// The server's stdin could not be written to.
    Stdin,
    /// Everybody let go of it, or it was told to.
    Closed,
}

/// The callers' end. Cheap to clone; the pump ends when the last one is gone.
#[derive(Clone, Debug)]
pub struct Pump {
    /// One channel for everything, so that all of it happens in the order in which it was asked for.
    inbox: mpsc::UnboundedSender<Command>,
    /// What bounds the calls in it: who has no permit cannot send.
    permits: Arc<Semaphore>,
    /// How many permits there are when nobody asks for anything.
    permits_max: usize,
    notifications: broadcast::Sender<Arc<Notification>>,
    voice: Arc<Voice>,
    ended: watch::Receiver<Option<Ended>>,
}

/// How much the server has said. Counting costs nothing that a caller would notice; only listeners pay for being told.
#[derive(Debug, Default)]
struct Voice {
    lines: AtomicU64,
    listeners: AtomicUsize,
    spoke: Notify,
}

impl Voice {
    fn heard_a_line(&self) {
        self.lines.fetch_add(1, Ordering::SeqCst);
        if self.listeners.load(Ordering::SeqCst) > 0 {
            self.spoke.notify_waiters();
        }
    }
}

/// Counts as a listener while it lives.
struct Listening<'a>(&'a Voice);

impl<'a> Listening<'a> {
    fn to(voice: &'a Voice) -> Self {
        voice.listeners.fetch_add(1, Ordering::SeqCst);
        Self(voice)
    }
}

impl Drop for Listening<'_> {
    fn drop(&mut self) {
        self.0.listeners.fetch_sub(1, Ordering::SeqCst);
    }
}

enum Command {
    Call(Call),
    /// Nobody waits for this one any more.
    LetGo(u64),
    Notify(Vec<u8>),
    Close,
}

struct Call {
    ticket: u64,
    method: String,
    params: Option<Box<RawValue>>,
    waiter: Waiter,
}

struct Waiter {
    reply: oneshot::Sender<Result<Reply, CallError>>,
    may_be_cancelled: bool,
    /// A place in the line; who asks aside has none.
    permit: Option<OwnedSemaphorePermit>,
}

impl Pump {
    /// Starts pumping between these two ends of a server.
    pub fn start(
        stdin: impl AsyncWrite + Send + Unpin + 'static,
        stdout: impl AsyncRead + Send + Unpin + 'static,
        limits: Limits,
    ) -> Self {
        Self::start_publishing(stdin, stdout, limits, Self::publisher())
    }

    /// For subscribers who outlive one life of a server: what each of its pumps is to publish to.
    pub fn publisher() -> broadcast::Sender<Arc<Notification>> {
        broadcast::channel(NOTIFICATIONS_KEPT).0
    }

    /// As [`Pump::start`], publishing what the server says by itself there.
    pub fn start_publishing(
        stdin: impl AsyncWrite + Send + Unpin + 'static,
        stdout: impl AsyncRead + Send + Unpin + 'static,
        limits: Limits,
        notifications: broadcast::Sender<Arc<Notification>>,
    ) -> Self {
        let (inbox, commands) = mpsc::unbounded_channel();
        let (to_writer, from_router) = mpsc::channel(1);
        let voice = Arc::new(Voice::default());
        let (ending, ended) = watch::channel(None);
        let router = Router {
            lines: Lines::new(stdout, limits.message_bytes_max),
            limits,
            commands,
            to_writer,
            notifications: notifications.clone(),
            voice: voice.clone(),
            line: VecDeque::new(),
            asides: VecDeque::new(),
            asked_aside: VecDeque::new(),
            in_flight: HashMap::new(),
            in_flight_aside: 0,
        };
        let writer = tokio::spawn(write(stdin, from_router));
        tokio::spawn(async move {
            let end = router.run().await;
            // It may wait for a server that does not read, and would do so for ever.
            writer.abort();
            ending.send_replace(Some(end));
        });
        let permits_max = (limits.queue_max + limits.in_flight_max).min(Semaphore::MAX_PERMITS);
        Self {
            inbox,
            permits: Arc::new(Semaphore::new(permits_max)),
            permits_max,
            notifications,
            voice,
            ended,
        }
    }

    /// Asks, and waits for the answer. Time in the waiting line counts. Who drops this gives up their place.
    pub async fn call(
        &self,
        method: &str,
        params: Option<Box<RawValue>>,
        timeout: Duration,
    ) -> Result<Reply, CallError> {
        let permit = self.permits.clone().try_acquire_owned().map_err(|_| CallError::QueueFull)?;
        self.ask(method, params, timeout, Some(permit)).await
    }

    /// Asks beside the line: at once, whatever is in flight. For whoever looks after the server, one question at a time.
    pub async fn call_aside(
        &self,
        method: &str,
        params: Option<Box<RawValue>>,
        timeout: Duration,
    ) -> Result<Reply, CallError> {
        self.ask(method, params, timeout, None).await
    }

    async fn ask(
        &self,
        method: &str,
        params: Option<Box<RawValue>>,
        timeout: Duration,
        permit: Option<OwnedSemaphorePermit>,
    ) -> Result<Reply, CallError> {
        let (reply, answer) = oneshot::channel();
        let leaving = Leaving { ticket: next_ticket(), inbox: &self.inbox };
        // The protocol does not allow `initialize` to be cancelled.
        let waiter = Waiter { reply, may_be_cancelled: method != "initialize", permit };
        let call = Call { ticket: leaving.ticket, method: method.to_owned(), params, waiter };
        self.inbox.send(Command::Call(call)).map_err(|_| CallError::Gone)?;
        match tokio::time::timeout(timeout, answer).await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(_router_gone)) => Err(CallError::Gone),
            Err(_elapsed) => Err(CallError::Timeout),
        }
    }

    /// Whether no call waits or is in flight.
    pub fn is_idle(&self) -> bool {
        self.permits.available_permits() == self.permits_max
    }

    /// How many lines the server has said so far.
    pub fn lines_heard(&self) -> u64 {
        self.voice.lines.load(Ordering::SeqCst)
    }

    /// Waits until the server has said more lines than these.
    pub async fn hears_more_than(&self, lines: u64) {
        let _listening = Listening::to(&self.voice);
        loop {
            let spoke = self.voice.spoke.notified();
            tokio::pin!(spoke);
            // From here on no word is missed: whoever counts after this look also tells.
            spoke.as_mut().enable();
            if self.lines_heard() > lines {
                return;
            }
            spoke.await;
        }
    }

    /// Tells the server something. Lost if the server does not read.
    pub fn notify(&self, method: &str, params: Option<&RawValue>) {
        // A pump that has ended has nobody to tell.
        let _ = self.inbox.send(Command::Notify(message::notification(method, params)));
    }

    /// What the server says from now on without being asked.
    pub fn notifications(&self) -> broadcast::Receiver<Arc<Notification>> {
        self.notifications.subscribe()
    }

    /// Ends the pump. For whoever knows that the server is dead while something still holds its stdout.
    pub fn close(&self) {
        // An error says that it has ended already.
        let _ = self.inbox.send(Command::Close);
    }

    /// Waits for its end.
    pub async fn ended(&self) -> Ended {
        let mut ended = self.ended.clone();
        match ended.wait_for(Option::is_some).await {
            Ok(end) => end.unwrap_or(Ended::Closed),
            Err(_router_gone) => Ended::Closed,
        }
    }
}

/// A number for each call, unique in this process: no two servers, and no two lives of one, ever share an id.
///
/// The first is drawn at random: a server that was taken over may still answer the calls of the process that had it before, and
/// such an answer must find nobody. It stays below 2^53, because some servers read numbers as floating point.
fn next_ticket() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    use std::sync::LazyLock;
    static NEXT: LazyLock<AtomicU64> =
        LazyLock::new(|| AtomicU64::new(RandomState::new().hash_one("ticket") >> 16));
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Tells the router that nobody waits for this any more. After the answer that is no news.
struct Leaving<'a> {
    ticket: u64,
    inbox: &'a mpsc::UnboundedSender<Command>,
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        // A router that is gone has let everybody go already.
        let _ = self.inbox.send(Command::LetGo(self.ticket));
    }
}

async fn write(mut stdin: impl AsyncWrite + Unpin, mut lines: mpsc::Receiver<Vec<u8>>) {
    while let Some(line) = lines.recv().await {
        let written = async {
            stdin.write_all(&line).await?;
            stdin.flush().await
        };
        if let Err(error) = written.await {
            tracing::debug!("a server's stdin broke: {error}");
            return;
        }
    }
}

struct Router<R> {
    lines: Lines<R>,
    limits: Limits,
    commands: mpsc::UnboundedReceiver<Command>,
    to_writer: mpsc::Sender<Vec<u8>>,
    notifications: broadcast::Sender<Arc<Notification>>,
    voice: Arc<Voice>,
    /// Who waits for their turn, first come first served.
    line: VecDeque<Call>,
    /// What else is to be written, before any call.
    asides: VecDeque<Vec<u8>>,
    /// Who need not wait for a turn.
    asked_aside: VecDeque<Call>,
    in_flight: HashMap<u64, Waiter>,
    /// How many of those were asked aside.
    in_flight_aside: usize,
}

/// Everything that may happen.
enum Cause {
    Line(std::io::Result<Option<Line>>),
    Command(Option<Command>),
    WriterReady,
    WriterGone,
}

impl<R: AsyncRead + Unpin> Router<R> {
    async fn run(mut self) -> Ended {
        let end = loop {
            let something_to_write =
                !self.asides.is_empty() || !self.asked_aside.is_empty() || self.has_turn();
            let cause = tokio::select! {
                line = self.lines.next() => Cause::Line(line),
                command = self.commands.recv() => Cause::Command(command),
                Ok(_) = self.to_writer.reserve(), if something_to_write => Cause::WriterReady,
                () = self.to_writer.closed() => Cause::WriterGone,
            };
            match cause {
                Cause::Line(Ok(Some(line))) => self.take(line),
                Cause::Line(Ok(None) | Err(_)) => break Ended::Stdout,
                Cause::Command(Some(Command::Call(call))) => self.queue(call),
                Cause::Command(Some(Command::LetGo(ticket))) => self.let_go(ticket),
                Cause::Command(Some(Command::Notify(line))) => self.asides.push_back(line),
                Cause::Command(Some(Command::Close) | None) => break Ended::Closed,
                Cause::WriterReady => self.write_next(),
                Cause::WriterGone => {
                    self.take_last_answers().await;
                    break Ended::Stdin;
                }
            }
        };
        self.tell_everybody();
        end
    }

    /// A server that answers and exits: its stdin is gone, its answer is still in the pipe.
    async fn take_last_answers(&mut self) {
        let read = async {
            while let Ok(Some(line)) = self.lines.next().await {
                self.take(line);
            }
        };
        // Something else may hold its stdout open.
        let _ = tokio::time::timeout(LAST_ANSWERS_GRACE, read).await;
    }

    fn queue(&mut self, call: Call) {
        match call.waiter.permit {
            Some(_) => self.line.push_back(call),
            None => self.asked_aside.push_back(call),
        }
    }

    fn has_turn(&self) -> bool {
        !self.line.is_empty() && self.in_flight.len() - self.in_flight_aside < self.limits.in_flight_max
    }

    /// There is room for one line: the writer takes it at once.
    fn write_next(&mut self) {
        let line = match self.asides.pop_front() {
            Some(line) => line,
            None => match self.asked_aside.pop_front().or_else(|| self.line.pop_front()) {
                Some(call) => {
                    self.in_flight_aside += usize::from(call.waiter.permit.is_none());
                    let line = message::request(call.ticket, &call.method, call.params.as_deref());
                    self.in_flight.insert(call.ticket, call.waiter);
                    line
                }
                None => return,
            },
        };
        // Only this task sends, and it was told that there is room; a writer that is gone is noticed next.
        let _ = self.to_writer.try_send(line);
    }

    fn take(&mut self, line: Line) {
        self.voice.heard_a_line();
        let line = match line {
            Line::Whole(line) => line,
            Line::TooLong { id } => {
                let error = CallError::TooLong { bytes_max: self.limits.message_bytes_max };
                return self.answer(id, Err(error));
            }
        };
        match Incoming::parse(&line) {
            Incoming::Reply { id, reply } => self.answer(Some(id), Ok(reply)),
            Incoming::Request { id, method } if self.asides.len() < ANSWERS_WAITING_MAX => {
                self.asides.push_back(message::answer(id, &method));
            }
            // It asks, and does not read what it gets.
            Incoming::Request { .. } => {}
            Incoming::Notification { method, .. } if line.len() > NOTIFICATION_BYTES_MAX => {
                let method: String = method.chars().take(64).collect();
                tracing::debug!(bytes = line.len(), "a notification `{method}` was too long to be published");
            }
            Incoming::Notification { method, params } => {
                let params = params.map(ToOwned::to_owned);
                // Nobody may be listening.
                let _ =
                    self.notifications.send(Arc::new(Notification { method: method.into_owned(), params }));
            }
            Incoming::Noise => {
                let mut spotter = IdSpotter::default();
                spotter.watch(&line);
                self.answer(spotter.id(), Err(CallError::Unreadable));
            }
        }
    }

    /// An answer that nobody waits for any more finds nobody.
    fn answer(&mut self, id: Option<u64>, outcome: Result<Reply, CallError>) {
        if let Some(waiter) = id.and_then(|id| self.land(id)) {
            let _ = waiter.reply.send(outcome);
        }
    }

    /// It is no longer in flight.
    fn land(&mut self, ticket: u64) -> Option<Waiter> {
        let waiter = self.in_flight.remove(&ticket)?;
        self.in_flight_aside -= usize::from(waiter.permit.is_none());
        Some(waiter)
    }

    fn let_go(&mut self, ticket: u64) {
        if let Some(waiter) = self.land(ticket) {
            if waiter.may_be_cancelled {
                self.asides.push_back(message::cancelled(ticket));
            }
        } else if let Some(place) = self.asked_aside.iter().position(|call| call.ticket == ticket) {
            self.asked_aside.remove(place);
        } else if let Some(place) = self.line.iter().position(|call| call.ticket == ticket) {
            self.line.remove(place);
        }
    }

    /// Whoever's call was sent cannot know whether it was executed. The others can.
    fn tell_everybody(&mut self) {
        self.commands.close();
        while let Ok(command) = self.commands.try_recv() {
            if let Command::Call(call) = command {
                self.queue(call);
            }
        }
        for call in self.asked_aside.drain(..).chain(self.line.drain(..)) {
            let _ = call.waiter.reply.send(Err(CallError::Gone));
        }
        for (_, waiter) in self.in_flight.drain() {
            let _ = waiter.reply.send(Err(CallError::MayHaveExecuted));
        }
    }
}
