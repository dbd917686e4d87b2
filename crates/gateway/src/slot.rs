//! A place for one conversation with a server: empty until it is used, made once however many ask for it at once, made anew when it
//! breaks off, given up when nobody used it for long.
//!
//! ```text
//!              used                  hands shaken
//!   idle ─────────────► connecting ───────────────► connected ── unused for long ──► idle
//!                        ▲  ▲   │ fails                 │ breaks off
//!              time over │  │   └───────► waiting ◄─────┘        (callers hear at once, and when it is tried next)
//!                        └──│────────────────┘
//!                     used  └───────── failed                    (not the server's fault: the next use tries again)
//! ```
//!
//! One task, started at the first use, does all of it; everybody else reads where it stands.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cofer_mcp::Face;
use cofer_model::{CircuitState, Kind, Moment};
use futures_util::FutureExt;
use serde_json::value::RawValue;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::breaker::{Breaker, BreakerRules};
use crate::desk::{Desk, Whose};
use crate::dial::{Dial, DialError, Dialled};
use crate::session::level_name;

const LEVEL_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Debug)]
pub struct SlotRules {
    pub connect_timeout: Duration,
    pub idle_after: Duration,
    pub breaker: BreakerRules,
}

impl Default for SlotRules {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(30),
            idle_after: Duration::from_mins(10),
            breaker: BreakerRules::default(),
        }
    }
}

/// A conversation that is open.
#[derive(Debug)]
pub(crate) struct Connection {
    pub dialled: Dialled,
    pub desk: Arc<Desk>,
    since: Instant,
    /// In milliseconds since then.
    last_used_ms: AtomicU64,
    /// The chattiest level that it was told for a request that stands alone.
    told_level: AtomicU8,
}

impl Connection {
    pub(crate) fn note_use(&self) {
        let ms = u64::try_from(self.since.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last_used_ms.store(ms, Ordering::Relaxed);
    }

    /// Whether the server said in its handshake that it has this.
    pub(crate) fn offers(&self, capability: &str) -> bool {
        self.dialled.hands.capabilities.as_ref().is_some_and(|all| all.get(capability).is_some())
    }

    /// Has it log what one request wants to hear of. It is not told again to be quieter: who does not want it is not told.
    pub(crate) async fn at_least_as_chatty(&self, level: u8) {
        if self.told_level.fetch_min(level, Ordering::Relaxed) > level {
            self.set_level(level_name(level)).await;
        }
    }

    /// How grave what it logs must be, for a server that logs at all.
    pub(crate) async fn set_level(&self, level: &str) {
        if self.offers("logging") && !self.dialled.is_standalone() {
            let params = RawValue::from_string(format!("{{\"level\":\"{level}\"}}")).ok();
            // One that refuses says more than is wanted; who does not want it is not told.
            let _ = self.dialled.pump.call_aside("logging/setLevel", params, LEVEL_TIMEOUT).await;
        }
    }

    /// When it will have been unused for so long, if it is not used before.
    fn idle_at(&self, idle_after: Duration) -> Instant {
        let busy = self.desk.is_busy() || !self.dialled.pump.is_idle();
        let last = if busy {
            Instant::now()
        } else {
            self.since + Duration::from_millis(self.last_used_ms.load(Ordering::Relaxed))
        };
        last + idle_after
    }
}

#[derive(Clone, Debug)]
pub(crate) enum Standing {
    Idle,
    Connecting,
    Connected(Arc<Connection>),
    Waiting { retry_at: Moment, until: Instant, kind: Kind, reason: Arc<str> },
    Failed { kind: Kind, reason: Arc<str> },
    Closed,
}

#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub standing: Standing,
    /// How many attempts were begun: who asks anew is not told of an old failure.
    attempts: u64,
    pub circuit: CircuitState,
    pub failures: u32,
    /// What went wrong last, until it goes right.
    pub last_error: Option<Arc<str>>,
}

/// Why there is no conversation now.
#[derive(Clone, Debug)]
pub(crate) struct Unreached {
    pub kind: Kind,
    pub reason: Arc<str>,
    pub retry_after: Option<Duration>,
}

#[derive(Debug)]
pub(crate) struct Slot {
    place: watch::Sender<Place>,
    shared: Arc<Shared>,
    began: AtomicBool,
    is_visitors: bool,
    /// What the task needs, until it is started.
    keeper: Mutex<Option<Keeper>>,
    _ends_with_us: DropGuard,
}

#[derive(Debug, Default)]
struct Shared {
    used: Notify,
    /// Somebody will not wait for the next try.
    try_now: Notify,
    closing: CancellationToken,
}

/// Told of each conversation that opens, before anybody uses it.
pub(crate) type Opened = Arc<dyn Fn(Arc<Connection>) + Send + Sync>;

impl Slot {
    pub(crate) fn new(dial: Arc<dyn Dial>, face: Face, desk: Desk, rules: SlotRules, opened: Opened) -> Self {
        let place = Place {
            standing: Standing::Idle,
            attempts: 0,
            circuit: CircuitState::Admitting,
            failures: 0,
            last_error: None,
        };
        let (place, _) = watch::channel(place);
        let shared = Arc::<Shared>::default();
        let guard = shared.closing.clone().drop_guard();
        let is_visitors = matches!(desk.whose(), Whose::Visitor(_));
        let keeper = Keeper {
            dial,
            face,
            desk: Arc::new(desk),
            rules,
            opened: Hook(opened),
            breaker: Breaker::new(rules.breaker),
            place: place.clone(),
            shared: shared.clone(),
        };
        Self {
            place,
            shared,
            began: AtomicBool::new(false),
            is_visitors,
            keeper: Mutex::new(Some(keeper)),
            _ends_with_us: guard,
        }
    }

    pub(crate) fn place(&self) -> watch::Ref<'_, Place> {
        self.place.borrow()
    }

    /// The conversation, made if there is none. Waits for an attempt that is under way, not for the next one.
    pub(crate) async fn connection(&self) -> Result<Arc<Connection>, Unreached> {
        match self.open_connection() {
            Some(connection) => Ok(connection),
            None => self.wait_for_connection().await,
        }
    }

    /// The conversation, if it is open.
    pub(crate) fn open_connection(&self) -> Option<Arc<Connection>> {
        let place = self.place.borrow();
        let Standing::Connected(connection) = &place.standing else { return None };
        if connection.dialled.pump.has_ended() {
            return None;
        }
        connection.note_use();
        Some(connection.clone())
    }

    async fn wait_for_connection(&self) -> Result<Arc<Connection>, Unreached> {
        self.begin();
        let mut place = self.place.subscribe();
        let attempts = place.borrow().attempts;
        loop {
            {
                let place = place.borrow_and_update();
                match &place.standing {
                    Standing::Connected(connection) if !connection.dialled.pump.has_ended() => {
                        connection.note_use();
                        return Ok(connection.clone());
                    }
                    // It has ended this moment: what becomes of that is told next.
                    Standing::Connected(_) | Standing::Connecting => {}
                    Standing::Waiting { until, kind, reason, .. } => {
                        let retry_after = Some(until.saturating_duration_since(Instant::now()));
                        return Err(Unreached { kind: *kind, reason: reason.clone(), retry_after });
                    }
                    Standing::Failed { kind, reason } if place.attempts > attempts => {
                        return Err(Unreached { kind: *kind, reason: reason.clone(), retry_after: None });
                    }
                    Standing::Idle | Standing::Failed { .. } => self.shared.used.notify_one(),
                    Standing::Closed => return Err(closed()),
                }
            }
            if place.changed().await.is_err() {
                return Err(closed());
            }
        }
    }

    /// Does not wait for the next try, and waits for its outcome.
    pub(crate) async fn reconnect(&self) -> Result<Arc<Connection>, Unreached> {
        self.begin();
        let mut place = self.place.subscribe();
        let (waits, attempts) = {
            let place = place.borrow();
            (matches!(place.standing, Standing::Waiting { .. }), place.attempts)
        };
        if waits {
            self.shared.try_now.notify_one();
            let _ = place.wait_for(|place| place.attempts > attempts).await;
        }
        self.wait_for_connection().await
    }

    fn begin(&self) {
        if !self.began.swap(true, Ordering::AcqRel)
            && let Some(keeper) = self.keeper.lock().unwrap_or_else(PoisonError::into_inner).take()
        {
            tokio::spawn(keeper.run());
        }
    }

    /// Whether it is for a client whose requests stand alone.
    pub(crate) fn is_visitors(&self) -> bool {
        self.is_visitors
    }

    pub(crate) fn close(&self) {
        self.shared.closing.cancel();
    }
}

fn closed() -> Unreached {
    Unreached { kind: Kind::Unavailable, reason: "the server was removed".into(), retry_after: None }
}

struct Hook(Opened);

impl std::fmt::Debug for Hook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Hook")
    }
}

#[derive(Debug)]
struct Keeper {
    dial: Arc<dyn Dial>,
    face: Face,
    desk: Arc<Desk>,
    rules: SlotRules,
    opened: Hook,
    breaker: Breaker,
    place: watch::Sender<Place>,
    shared: Arc<Shared>,
}

/// What to do next.
enum Next {
    Rest,
    Connect,
    Wait { span: Duration, kind: Kind, reason: Arc<str> },
    Close,
}

impl Keeper {
    async fn run(mut self) {
        let shared = self.shared.clone();
        let work = async {
            let mut next = Next::Rest;
            loop {
                next = match next {
                    Next::Rest => {
                        self.shared.used.notified().await;
                        Next::Connect
                    }
                    Next::Connect => self.connect().await,
                    Next::Wait { span, kind, reason } => self.wait(span, kind, reason).await,
                    Next::Close => return,
                };
            }
        };
        shared.closing.run_until_cancelled(work).await;
        self.publish(Standing::Closed);
    }

    async fn connect(&mut self) -> Next {
        self.breaker.tries();
        self.place.send_modify(|place| {
            // At once: a new number beside an old failure would tell who waits for this attempt of the one before.
            place.attempts += 1;
            place.standing = Standing::Connecting;
            place.circuit = self.breaker.circuit();
        });
        let dialling = timeout(self.rules.connect_timeout, self.dial.dial(&self.face, self.desk.clone()));
        let outcome = dialling.await.unwrap_or_else(|_| {
            let span = self.rules.connect_timeout.as_secs();
            Err(DialError::of_server(
                Kind::Timeout,
                format!("it did not answer the handshake within {span} s"),
            ))
        });
        match outcome {
            Ok(dialled) => self.look_after(dialled).await,
            Err(error) => self.not_connected(error),
        }
    }

    fn not_connected(&mut self, error: DialError) -> Next {
        let reason: Arc<str> = error.message.into();
        self.place.send_modify(|place| place.last_error = Some(reason.clone()));
        match (error.counts, error.retry_after) {
            (false, None) => self.rest(Standing::Failed { kind: error.kind, reason }),
            (false, Some(span)) => Next::Wait { span, kind: error.kind, reason },
            (true, _) => Next::Wait { span: self.breaker.fails(luck()), kind: Kind::Unavailable, reason },
        }
    }

    async fn look_after(&mut self, dialled: Dialled) -> Next {
        self.breaker.connects();
        let connection = Arc::new(Connection {
            dialled,
            desk: self.desk.clone(),
            since: Instant::now(),
            last_used_ms: AtomicU64::new(0),
            told_level: AtomicU8::new(u8::MAX),
        });
        (self.opened.0)(connection.clone());
        self.place.send_modify(|place| place.last_error = None);
        self.publish(Standing::Connected(connection.clone()));
        let idle = async {
            loop {
                let at = connection.idle_at(self.rules.idle_after);
                if at <= Instant::now() {
                    return;
                }
                sleep_until(at).await;
            }
        };
        tokio::select! {
            _ = connection.dialled.pump.ended() => {}
            () = idle => {
                return self.rest(Standing::Idle);
            }
        }
        let reason = connection
            .dialled
            .held
            .last_words()
            .await
            .unwrap_or_else(|| "the connection broke off".to_owned());
        let reason: Arc<str> = reason.into();
        self.place.send_modify(|place| place.last_error = Some(reason.clone()));
        let span = self.breaker.drops(connection.since.elapsed(), self.dial.first_wait(), luck());
        Next::Wait { span, kind: Kind::Unavailable, reason }
    }

    /// Does nothing until it is used again: from now on, whatever was asked for before.
    fn rest(&self, standing: Standing) -> Next {
        forget(&self.shared.used);
        self.publish(standing);
        Next::Rest
    }

    async fn wait(&mut self, span: Duration, kind: Kind, reason: Arc<str>) -> Next {
        if !span.is_zero() {
            let until = Instant::now() + span;
            forget(&self.shared.try_now);
            self.publish(Standing::Waiting { retry_at: Moment::now().after(span), until, kind, reason });
            tokio::select! {
                () = sleep(span) => {}
                () = self.shared.try_now.notified() => {}
                () = self.shared.closing.cancelled() => return Next::Close,
            }
        }
        Next::Connect
    }

    fn publish(&self, standing: Standing) {
        self.place.send_modify(|place| {
            place.standing = standing;
            place.circuit = self.breaker.circuit();
            place.failures = self.breaker.failures();
        });
    }
}

/// Takes back a word that came when nobody waited for it.
fn forget(word: &Notify) {
    let _ = word.notified().now_or_never();
}

/// Between 0 and 1, as good as any.
fn luck() -> f64 {
    let [.., a, b] = *uuid::Uuid::new_v4().as_bytes();
    f64::from(u16::from_be_bytes([a, b])) / f64::from(u16::MAX)
}
