//! The pump: calls go down a server's stdin, answers come up its stdout, each to its own caller.
//!
//! One task, the *router*, owns everything that changes: who waits in line, who waits for which answer, what is being written. It
//! waits to read and to write at once, so that a server which does not read its stdin does not keep us from reading its
//! stdout. A task of its own for stdin would be one more to wake for each call, and waking is what a call costs.
//!
//! ```text
//!               permits (queue_max + in_flight_max)          one line at a time
//!   call() ──────────► waiting line ──────────► in flight ──────────► router ─► stdin
//!      ▲ leaves: gives up its place    leaves: `cancelled` is sent, a late answer is dropped
//!      └───────────────────────────── answer, matched by id ◄─────── router ◄── stdout
//! ```
//!
//! The waiter travels with the call. When the router ends, for whatever reason, every waiter hears.
//!
//! Whoever looks after the server asks *aside*: its greeting and its pings take nobody's place in the line, and a server that never
//! answers them is served calls all the same.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cofer_model::Kind;
use serde_json::value::RawValue;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, broadcast, mpsc, oneshot, watch};

use crate::ear::Ear;
use crate::lines::Lines;
use crate::message::{self, Notification, Reply};
use crate::router::Router;
use crate::voice::Voice;

/// Notifications kept for a subscriber that is slow; older ones are dropped for that subscriber alone.
const NOTIFICATIONS_KEPT: usize = 256;

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

pub(crate) enum Command {
    Call(Call),
    /// Nobody waits for this one any more.
    LetGo(u64),
    /// A line as it is: a notification, or an answer to the server.
    Say(Vec<u8>),
    /// From now on this one hears what the server says by itself.
    Listen(Arc<dyn Ear>),
    Close,
}

pub(crate) struct Call {
    pub ticket: u64,
    pub method: String,
    pub params: Option<Box<RawValue>>,
    pub waiter: Waiter,
}

pub(crate) struct Waiter {
    pub reply: oneshot::Sender<Result<Reply, CallError>>,
    pub may_be_cancelled: bool,
    /// A place in the line; who asks aside has none.
    pub permit: Option<OwnedSemaphorePermit>,
}

impl Pump {
    /// Starts pumping between these two ends of a server. What is written to `stdin` is not flushed: it must not hold anything back.
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
        let voice = Arc::new(Voice::default());
        let (ending, ended) = watch::channel(None);
        let router = Router::new(
            Lines::new(stdout, limits.message_bytes_max),
            stdin,
            limits,
            commands,
            inbox.downgrade(),
            notifications.clone(),
            voice.clone(),
        );
        tokio::spawn(async move {
            let end = router.run().await;
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

    /// The same for whoever keeps the time themselves.
    pub async fn call_patiently(
        &self,
        method: &str,
        params: Option<Box<RawValue>>,
    ) -> Result<Reply, CallError> {
        let permit = self.permits.clone().try_acquire_owned().map_err(|_| CallError::QueueFull)?;
        self.ask_patiently(method, params, Some(permit)).await
    }

    /// Asks beside the line something that may not be answered for hours.
    pub async fn call_aside_patiently(
        &self,
        method: &str,
        params: Option<Box<RawValue>>,
    ) -> Result<Reply, CallError> {
        self.ask_patiently(method, params, None).await
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
        let answer = self.ask_patiently(method, params, permit);
        tokio::time::timeout(timeout, answer).await.unwrap_or(Err(CallError::Timeout))
    }

    async fn ask_patiently(
        &self,
        method: &str,
        params: Option<Box<RawValue>>,
        permit: Option<OwnedSemaphorePermit>,
    ) -> Result<Reply, CallError> {
        let (reply, answer) = oneshot::channel();
        let mut leaving = Leaving { ticket: next_ticket(), inbox: &self.inbox, answered: false };
        // The protocol does not allow `initialize` to be cancelled.
        let waiter = Waiter { reply, may_be_cancelled: method != "initialize", permit };
        let call = Call { ticket: leaving.ticket, method: method.to_owned(), params, waiter };
        self.inbox.send(Command::Call(call)).map_err(|_| CallError::Gone)?;
        match answer.await {
            Ok(outcome) => {
                leaving.answered = true;
                outcome
            }
            Err(_router_gone) => Err(CallError::Gone),
        }
    }

    /// Whether no call waits or is in flight.
    pub fn is_idle(&self) -> bool {
        self.permits.available_permits() == self.permits_max
    }

    /// How many lines the server has said so far.
    pub fn lines_heard(&self) -> u64 {
        self.voice.lines()
    }

    /// Waits until the server has said more lines than these.
    pub async fn hears_more_than(&self, lines: u64) {
        self.voice.hears_more_than(lines).await;
    }

    /// Tells the server something. Lost if the server does not read.
    pub fn notify(&self, method: &str, params: Option<&RawValue>) {
        // A pump that has ended has nobody to tell.
        let _ = self.inbox.send(Command::Say(message::notification(method, params)));
    }

    /// Has this ear hear what the server says by itself, before anything that is asked for after this. There is one ear at a time.
    pub fn listen(&self, ear: Arc<dyn Ear>) {
        // A pump that has ended says nothing any more.
        let _ = self.inbox.send(Command::Listen(ear));
    }

    /// Whether it has ended.
    pub fn has_ended(&self) -> bool {
        self.inbox.is_closed()
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

/// Tells the router that nobody waits for this any more, unless it was answered.
struct Leaving<'a> {
    ticket: u64,
    inbox: &'a mpsc::UnboundedSender<Command>,
    answered: bool,
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        if !self.answered {
            // A router that is gone has let everybody go already.
            let _ = self.inbox.send(Command::LetGo(self.ticket));
        }
    }
}
