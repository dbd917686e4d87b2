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

use std::borrow::Cow;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use cofer_model::Kind;
use serde_json::value::RawValue;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{broadcast, mpsc, oneshot, watch};

use crate::ear::Ear;
use crate::lines::Lines;
use crate::message::{self, Notification, Reply};
use crate::router::Router;
use crate::voice::Voice;

/// Notifications kept for a subscriber that is slow; older ones are dropped for that subscriber alone.
const NOTIFICATIONS_KEPT: usize = 256;

/// What nearly everybody asks for.
const CALL: &str = "tools/call";

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
    permits: Arc<Permits>,
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
    pub method: Cow<'static, str>,
    pub params: Option<Box<RawValue>>,
    pub waiter: Waiter,
}

pub(crate) struct Waiter {
    pub reply: oneshot::Sender<Result<Reply, CallError>>,
    pub may_be_cancelled: bool,
    /// A place in the line; who asks aside has none.
    pub permit: Option<Permit>,
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
        let permits = Permits {
            taken: AtomicUsize::new(0),
            max: limits.queue_max.saturating_add(limits.in_flight_max),
        };
        Self { inbox, permits: Arc::new(permits), notifications, voice, ended }
    }

    /// Asks, and waits for the answer. Time in the waiting line counts. Who drops this gives up their place.
    pub async fn call(
        &self,
        method: &str,
        params: Option<Box<RawValue>>,
        timeout: Duration,
    ) -> Result<Reply, CallError> {
        let permit = self.permits.take()?;
        self.ask(method, params, timeout, Some(permit)).await
    }

    /// The same for whoever keeps the time themselves. It is asked at once.
    pub fn call_patiently(
        &self,
        method: &str,
        params: Option<Box<RawValue>>,
    ) -> Result<Awaited<'_>, CallError> {
        self.ask_patiently(method, params, Some(self.permits.take()?))
    }

    /// Asks beside the line something that may not be answered for hours.
    pub async fn call_aside_patiently(
        &self,
        method: &str,
        params: Option<Box<RawValue>>,
    ) -> Result<Reply, CallError> {
        self.ask_patiently(method, params, None)?.await
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
        permit: Option<Permit>,
    ) -> Result<Reply, CallError> {
        let answer = self.ask_patiently(method, params, permit)?;
        tokio::time::timeout(timeout, answer).await.unwrap_or(Err(CallError::Timeout))
    }

    fn ask_patiently(
        &self,
        method: &str,
        params: Option<Box<RawValue>>,
        permit: Option<Permit>,
    ) -> Result<Awaited<'_>, CallError> {
        let (reply, answer) = oneshot::channel();
        let ticket = next_ticket();
        // The protocol does not allow `initialize` to be cancelled.
        let waiter = Waiter { reply, may_be_cancelled: method != "initialize", permit };
        let method = if method == CALL { CALL.into() } else { method.to_owned().into() };
        let call = Call { ticket, method, params, waiter };
        self.inbox.send(Command::Call(call)).map_err(|_| CallError::Gone)?;
        Ok(Awaited { ticket, inbox: &self.inbox, answer, is_answered: false })
    }

    /// Whether no call waits or is in flight.
    pub fn is_idle(&self) -> bool {
        self.permits.taken.load(Ordering::Acquire) == 0
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

/// How many calls wait or are in flight, and how many may.
#[derive(Debug)]
struct Permits {
    taken: AtomicUsize,
    max: usize,
}

impl Permits {
    fn take(self: &Arc<Self>) -> Result<Permit, CallError> {
        let one_more = |taken| (taken < self.max).then_some(taken + 1);
        match self.taken.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_more) {
            Ok(_) => Ok(Permit(self.clone())),
            Err(_all_taken) => Err(CallError::QueueFull),
        }
    }
}

/// A call's place. Given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Permit(Arc<Permits>);

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.taken.fetch_sub(1, Ordering::AcqRel);
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

/// An answer that is waited for. Who drops it before it came gives up their place.
#[derive(Debug)]
pub struct Awaited<'a> {
    ticket: u64,
    inbox: &'a mpsc::UnboundedSender<Command>,
    answer: oneshot::Receiver<Result<Reply, CallError>>,
    is_answered: bool,
}

impl Future for Awaited<'_> {
    type Output = Result<Reply, CallError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let answer = ready!(Pin::new(&mut self.answer).poll(cx));
        self.is_answered = answer.is_ok();
        Poll::Ready(answer.unwrap_or(Err(CallError::Gone)))
    }
}

impl Drop for Awaited<'_> {
    fn drop(&mut self) {
        if !self.is_answered {
            // A router that is gone has let everybody go already.
            let _ = self.inbox.send(Command::LetGo(self.ticket));
        }
    }
}
