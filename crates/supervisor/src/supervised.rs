//! The handle of one supervised server: tell it, ask it, call it. Cheap to clone; the driver ends when the last one is gone.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cofer_mcp::{CallError, Notification, Pump, Reply};
use cofer_model::{HostedEvent, HostedEventKind, HostedStatus, Kind, Moment, ServerId, ServerName, Wanted};
use serde_json::json;
use serde_json::value::RawValue;
use tokio::sync::{Notify, broadcast, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::driver::{Driver, Held};
use crate::inbox::Inbox;
use crate::live::Stage;
use crate::logs::LogBook;
use crate::machine::{Command, Machine};
use crate::plan::{Memory, Planner};
use crate::rules::Rules;
use crate::truth::Truth;
use crate::usage::{UsageDesk, UsageNow};

/// Takes what happened, for the history. Must not wait.
pub type History = Arc<dyn Fn(ServerId, HostedEvent) + Send + Sync>;

/// What callers are told to wait when nobody knows better.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// Calls that time out come by the hundred from a server that hangs; the history holds so many of them in a while.
const TIMEOUTS_TOLD_MAX: u32 = 10;
const TIMEOUTS_WHILE: Duration = Duration::from_mins(1);
/// What an engine may take beyond the grace before we leave without it.
const ENGINE_SLACK: Duration = Duration::from_secs(20);

#[derive(Clone)]
pub struct Supervised {
    shared: Arc<Shared>,
    truth: watch::Receiver<Truth>,
    stage: watch::Receiver<Stage>,
    _driver: Arc<DropGuard>,
}

pub(crate) struct Shared {
    id: ServerId,
    pub inbox: Inbox,
    pub hint: Notify,
    pub logs: Arc<LogBook>,
    pub notifications: broadcast::Sender<Arc<Notification>>,
    usage: Arc<UsageDesk>,
    timeouts: Mutex<TimeoutsTold>,
    history: History,
}

#[derive(Debug, Default)]
struct TimeoutsTold {
    since: Option<Instant>,
    told: u32,
    untold: u64,
}

/// Why a call was not answered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallRefused {
    #[error("the server is {status}{}", reason.as_deref().map(|reason| format!(": {reason}")).unwrap_or_default())]
    NotReady { status: HostedStatus, reason: Option<String>, retry_after: Duration },
    #[error("this server is called at its own HTTP endpoint")]
    NoBridge,
    #[error(transparent)]
    Pump(CallError),
}

impl CallRefused {
    pub fn kind(&self) -> Kind {
        match self {
            Self::NotReady { .. } => Kind::Unavailable,
            Self::NoBridge => Kind::Conflict,
            Self::Pump(error) => error.kind(),
        }
    }
}

impl fmt::Debug for Supervised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Supervised").field("id", &self.shared.id).finish_non_exhaustive()
    }
}

impl Supervised {
    /// Starts to look after it. Nothing happens until something is wanted.
    pub fn start(
        id: ServerId,
        name: ServerName,
        planner: Arc<dyn Planner>,
        memory: Memory,
        rules: Arc<Rules>,
        history: History,
    ) -> Self {
        let shared = Arc::new(Shared {
            id,
            inbox: Inbox::default(),
            hint: Notify::new(),
            logs: Arc::new(LogBook::new(rules.log_lines_max, rules.log_bytes_max)),
            notifications: Pump::publisher(),
            usage: Arc::default(),
            timeouts: Mutex::default(),
            history: history.clone(),
        });
        let machine = Machine::new(rules.clone(), spread(id, rules.unavailable_spread), &memory);
        let (truth, truth_seen) = watch::channel(machine.truth());
        let (stage, stage_seen) = watch::channel(Stage::default());
        let abandoned = CancellationToken::new();
        let guard = Arc::new(abandoned.clone().drop_guard());
        let held = memory.sandbox.map(|found| Held::new(found.run, Some((found.provider, found.id))));
        let driver = Driver {
            id,
            name,
            planner,
            rules,
            history,
            shared: shared.clone(),
            machine,
            held,
            tasks: JoinSet::new(),
            attempts: 0,
            truth,
            stage,
            progress: watch::channel((0, String::new())).0,
            abandoned,
        };
        tokio::spawn(driver.run());
        Self { shared, truth: truth_seen, stage: stage_seen, _driver: guard }
    }

    /// Whether it should run. Saying it again is nothing; see [`Supervised::start_now`] for a person who insists.
    ///
    /// Each command returns its number: it has been taken in when [`Truth::seen`] is as large.
    pub fn want(&self, wanted: Wanted) -> u64 {
        self.shared.inbox.tell(Command::Want(wanted))
    }

    /// It should run, and an attempt that waits for an engine or a person is made now. A crash loop keeps its waits.
    pub fn start_now(&self) -> u64 {
        self.shared.inbox.tell(Command::Start)
    }

    /// Ends it politely and starts it in a new sandbox, with all counters at nought. One that is stopped starts.
    pub fn restart(&self) -> u64 {
        self.shared.inbox.tell(Command::Restart)
    }

    /// Its configuration has changed: if it should run, it runs in a new sandbox by a new plan, tried at once.
    pub fn reconfigure(&self) -> u64 {
        self.shared.inbox.tell(Command::Reconfigure)
    }

    /// Ends it for good; [`Truth::gone`] says when nothing is left. While the engine is away it is tried again and again.
    pub fn remove(&self) -> u64 {
        self.shared.inbox.tell(Command::Remove)
    }

    /// Look now: its sandbox may have ended.
    pub fn exited_hint(&self) {
        self.shared.hint.notify_one();
    }

    pub fn truth(&self) -> watch::Receiver<Truth> {
        self.truth.clone()
    }

    /// Has its history say something that others have found out about it.
    pub fn warn(&self, message: &str) {
        let (at, message) = (Moment::now(), message.to_owned());
        let event = HostedEvent { at, kind: HostedEventKind::Warning, message, details: json!({}) };
        (self.shared.history)(self.shared.id, event);
    }

    pub fn logs(&self) -> &LogBook {
        &self.shared.logs
    }

    /// What the server says without being asked, whichever run it is in.
    pub fn notifications(&self) -> broadcast::Receiver<Arc<Notification>> {
        self.shared.notifications.subscribe()
    }

    /// What it uses; `None` when it does not run or the engine has not said. The engine is waited for until then; after that this
    /// answers with what was so before.
    pub async fn usage(&self, until: Instant) -> Option<UsageNow> {
        let live = self.stage.borrow().live.clone()?;
        self.shared.usage.ask(&live, until).await
    }

    /// The run that takes calls now, to be spoken to without asking here each time. It ends with that run.
    pub fn line(&self) -> Result<Pump, CallRefused> {
        let live = {
            let stage = self.stage.borrow();
            stage.live.clone().filter(|_| stage.takes_calls)
        };
        live.ok_or_else(|| self.not_ready())?.pump.clone().ok_or(CallRefused::NoBridge)
    }

    /// Calls the server. Answers at once when it is not there; a call is never sent twice.
    pub async fn call(
        &self,
        method: &str,
        params: Option<Box<RawValue>>,
        timeout: Duration,
    ) -> Result<Reply, CallRefused> {
        match self.line()?.call(method, params, timeout).await {
            Ok(reply) => Ok(reply),
            Err(CallError::Gone) => Err(self.not_ready()),
            Err(CallError::Timeout) => {
                self.shared.tell_timeout(method, timeout);
                Err(CallRefused::Pump(CallError::Timeout))
            }
            Err(error) => Err(CallRefused::Pump(error)),
        }
    }

    fn not_ready(&self) -> CallRefused {
        let truth = self.truth.borrow();
        let now = Instant::now().into_std();
        let retry_after =
            truth.next_try.map_or(RETRY_AFTER, |at| at.saturating_duration_since(now).max(RETRY_AFTER));
        // It has ended this very moment, and nobody has said so yet.
        let status = match truth.status {
            HostedStatus::Ready | HostedStatus::Unresponsive => HostedStatus::Restarting,
            status => status,
        };
        CallRefused::NotReady { status, reason: truth.reason.clone(), retry_after }
    }

    /// Cofer ends: SIGTERM, `grace`, SIGKILL, and nothing is left of it. Returns when that is done, or cannot be in time; then the
    /// next life of Cofer finds what is left.
    pub async fn shut_down(&self, grace: Duration) {
        self.shared.inbox.tell(Command::ShutDown { grace });
        let mut truth = self.truth.clone();
        // The driver lets go of its end when it ends.
        let ended = async { while truth.changed().await.is_ok() {} };
        if tokio::time::timeout(grace + ENGINE_SLACK, ended).await.is_err() {
            tracing::warn!(server.id = %self.shared.id, "server {} could not be ended in time", self.shared.id);
        }
    }
}

impl Shared {
    fn tell_timeout(&self, method: &str, timeout: Duration) {
        let untold = {
            let mut timeouts = self.timeouts.lock().unwrap_or_else(PoisonError::into_inner);
            if timeouts.since.is_none_or(|since| since.elapsed() >= TIMEOUTS_WHILE) {
                timeouts.since = Some(Instant::now());
                timeouts.told = 0;
            }
            if timeouts.told == TIMEOUTS_TOLD_MAX {
                timeouts.untold += 1;
                return;
            }
            timeouts.told += 1;
            std::mem::take(&mut timeouts.untold)
        };
        let method: String = method.chars().take(128).collect();
        let event = HostedEvent {
            at: Moment::now(),
            kind: HostedEventKind::CallTimedOut,
            message: format!("`{method}` was not answered within {timeout:?}"),
            details: json!({
                "method": method,
                "timeout_ms": u64::try_from(timeout.as_millis()).ok(),
                "others_before": untold,
            }),
        };
        (self.history)(self.id, event);
    }
}

/// A part of the whole spread, the same for the same server: its id is as good as a draw.
fn spread(id: ServerId, whole: Duration) -> Duration {
    let [.., a, b] = *id.0.as_bytes();
    whole.mul_f64(f64::from(u16::from_be_bytes([a, b])) / f64::from(u16::MAX))
}
