//! What a server uses, asked for rarely however often it is read, and not waited for long: an engine that is busy with other servers
//! answers late, and whoever wants to know how all servers do is told what was known before.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cofer_sandbox::{SandboxId, Usage};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout, timeout_at};

use crate::live::Live;

/// An engine is not asked more often than this for one server.
const FRESH: Duration = Duration::from_secs(2);
const DEADLINE: Duration = Duration::from_secs(5);
/// Of all servers, so many are asked about at a time.
static ASKED_AT_ONCE: Semaphore = Semaphore::const_new(8);

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct UsageNow {
    /// Of one processor, since it was last asked.
    pub cpu_percent: f64,
    pub memory_bytes: u64,
    pub memory_limit_bytes: u64,
    pub pids: u64,
    pub disk_bytes: Option<u64>,
}

/// Whoever asks while it is being asked waits for the same answer.
#[derive(Debug, Default)]
pub(crate) struct UsageDesk {
    last: Mutex<Option<Last>>,
    turn: Arc<tokio::sync::Mutex<()>>,
}

#[derive(Clone, Debug)]
struct Last {
    of: SandboxId,
    asked_at: Instant,
    /// When the numbers are from, and the processor time by then.
    sampled: Option<(Instant, u64)>,
    usage: Option<UsageNow>,
}

impl UsageDesk {
    /// The engine is waited for until then, and goes on being asked.
    pub(crate) async fn ask(self: &Arc<Self>, live: &Arc<Live>, until: Instant) -> Option<UsageNow> {
        if !self.is_fresh(live) {
            // What comes too late is told next time.
            let _ = match self.turn.clone().try_lock_owned() {
                Ok(turn) => {
                    let (desk, live) = (self.clone(), live.clone());
                    let asking = tokio::spawn(async move {
                        desk.ask_engine(&live).await;
                        drop(turn);
                    });
                    timeout_at(until, asking).await.map(drop)
                }
                Err(_being_asked) => timeout_at(until, self.turn.lock()).await.map(drop),
            };
        }
        self.last_of(live).and_then(|last| last.usage)
    }

    fn last(&self) -> MutexGuard<'_, Option<Last>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn last_of(&self, live: &Live) -> Option<Last> {
        self.last().clone().filter(|last| last.of == live.sandbox)
    }

    fn is_fresh(&self, live: &Live) -> bool {
        self.last_of(live).is_some_and(|last| last.asked_at.elapsed() < FRESH)
    }

    async fn ask_engine(&self, live: &Live) {
        // It is never closed.
        let _place = ASKED_AT_ONCE.acquire().await;
        let before = self.last_of(live);
        let earlier = before.as_ref().map_or(live.born_at.map(|at| (at, 0)), |last| last.sampled);
        let asked_at = Instant::now();
        let answer = timeout(DEADLINE, live.provider.usage(&live.sandbox)).await;
        let (sampled, usage) = match answer {
            Ok(Ok(usage)) => {
                let now = Instant::now();
                (Some((now, usage.cpu_nanos)), Some(read(&usage, now, earlier)))
            }
            Ok(Err(_)) | Err(_) => (earlier, before.and_then(|last| last.usage)),
        };
        *self.last() = Some(Last { of: live.sandbox.clone(), asked_at, sampled, usage });
    }
}

fn read(usage: &Usage, now: Instant, earlier: Option<(Instant, u64)>) -> UsageNow {
    let cpu_percent = earlier.map_or(0.0, |(at, cpu_nanos)| {
        let used = Duration::from_nanos(usage.cpu_nanos.saturating_sub(cpu_nanos)).as_secs_f64();
        let elapsed = now.duration_since(at).as_secs_f64();
        if elapsed > 0.0 { 100.0 * used / elapsed } else { 0.0 }
    });
    UsageNow {
        cpu_percent,
        memory_bytes: usage.memory_bytes,
        memory_limit_bytes: usage.memory_limit_bytes,
        pids: usage.pids,
        disk_bytes: usage.disk_bytes,
    }
}
