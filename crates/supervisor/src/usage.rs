//! What a server uses, asked for rarely however often it is read.

use std::time::Duration;

use cofer_sandbox::{SandboxId, Usage};
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};

use crate::live::Live;

/// An engine is not asked more often than this for one server.
const FRESH: Duration = Duration::from_secs(2);
const DEADLINE: Duration = Duration::from_secs(1);

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
}

#[derive(Debug)]
struct Last {
    of: SandboxId,
    asked_at: Instant,
    /// When the numbers are from, and the processor time by then.
    sampled: Option<(Instant, u64)>,
    usage: Option<UsageNow>,
}

impl UsageDesk {
    pub(crate) async fn ask(&self, live: &Live) -> Option<UsageNow> {
        let mut last = self.last.lock().await;
        let before = last.take().filter(|last| last.of == live.sandbox);
        if let Some(fresh) = before.as_ref().filter(|last| last.asked_at.elapsed() < FRESH) {
            let usage = fresh.usage;
            *last = before;
            return usage;
        }
        let earlier = before.as_ref().map_or(live.born_at.map(|at| (at, 0)), |last| last.sampled);
        let asked_at = Instant::now();
        let answer = timeout(DEADLINE, live.provider.usage(&live.sandbox)).await;
        let next = match answer {
            Ok(Ok(usage)) => {
                let now = Instant::now();
                let usage_now = read(&usage, now, earlier);
                Last {
                    of: live.sandbox.clone(),
                    asked_at,
                    sampled: Some((now, usage.cpu_nanos)),
                    usage: Some(usage_now),
                }
            }
            Ok(Err(_)) | Err(_) => Last {
                of: live.sandbox.clone(),
                asked_at,
                sampled: earlier,
                usage: before.and_then(|last| last.usage),
            },
        };
        let usage = next.usage;
        *last = Some(next);
        usage
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
