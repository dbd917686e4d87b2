//! Holds sandboxes to their disk limit by watching, because few engines have a quota and none has one over a root filesystem and
//! volumes together.
//!
//! Each sandbox that runs has a guard. On the engine's machine the guard looks at the free space ([`gauge`](crate::gauge)), and when
//! the limit may be near it holds the sandbox still, measures, and lets it go on or ends it: nobody writes while it is measured, and
//! nobody is ended who is within the limit. Such a guard is a thread that goes before others, because a writer does not wait for a
//! busy runtime. Where it has no right to hold a sandbox still, it measures as it runs; where it cannot see the files, it asks the
//! engine now and then.
//!
//! ```text
//!   look ──► look ──► near ──► freeze ──► measure ──► within: thaw, look
//!                                                └──► past: remember, kill, thaw
//! ```

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio_util::task::AbortOnDropHandle;

use crate::connection::{ANSWER_MAX, EngineError, Measure, Open};
use crate::containers::Shared;
use crate::disk::{Extent, free_bytes};
use crate::freezer::Freezer;
use crate::gauge::{Gauge, Next};
use crate::sightings::{self, Seen};
use crate::{ExitCause, SandboxId, SandboxState};

const FREEZE_TAKES: Duration = Duration::from_millis(2);
const FREEZE_MAX: Duration = Duration::from_millis(200);
const FREEZE_LOOK_AFTER: Duration = Duration::from_micros(500);
const ENGINE_KILL_TAKES: Duration = Duration::from_millis(100);
const ENGINE_KILL_MAX: Duration = Duration::from_mins(1);
const KILL_AGAIN_AFTER: Duration = Duration::from_millis(100);
const ASK_ENGINE_EVERY: Duration = Duration::from_secs(5);
/// In steps of niceness.
const HASTE: i32 = 10;
/// A guard walks directories, one open at a time for each level.
const STACK_BYTES: usize = 128 << 10;

/// The guards of all sandboxes that run.
#[derive(Default)]
pub(crate) struct DiskWatch {
    guards: Mutex<HashMap<SandboxId, Guard>>,
}

struct Guard {
    duty: Duty,
    extent: Extent,
}

/// Who does it. Either ends when this is dropped.
enum Duty {
    Beside(Sentry),
    Asking(AbortOnDropHandle<()>),
}

impl Duty {
    fn is_over(&self) -> bool {
        match self {
            Self::Beside(sentry) => sentry.thread.is_finished(),
            Self::Asking(task) => task.is_finished(),
        }
    }
}

/// A thread that stands by one sandbox.
struct Sentry {
    relieved: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Drop for Sentry {
    fn drop(&mut self) {
        self.relieved.store(true, Ordering::Relaxed);
        self.thread.thread().unpark();
    }
}

impl DiskWatch {
    /// Sets a guard on a sandbox that runs, unless it has one.
    pub fn begin(&self, provider: &Arc<Shared>, open: &Open, seen: &Seen) {
        let Some(limit) = seen.disk_limit else { return };
        let id = &seen.sighting.id;
        if provider.exits.is_known(id) {
            return; // It is being ended, and has not ended yet.
        }
        let mut guards = self.guards.lock().unwrap_or_else(PoisonError::into_inner);
        if guards.get(id).is_some_and(|guard| !guard.duty.is_over()) {
            return;
        }
        let extent = extent(seen);
        let post = Post {
            provider: Arc::downgrade(provider),
            open: open.clone(),
            id: id.clone(),
            limit: limit.bytes(),
            extent: extent.clone(),
            freezer: Freezer::of(seen.pid, &id.0),
        };
        // A Cofer that was killed in the wrong millisecond left it frozen.
        if let Some(freezer) = post.freezer.as_ref().filter(|_| !seen.paused) {
            let _ = freezer.thaw();
        }
        match post.take_up(extent.is_within_reach()) {
            Ok(duty) => _ = guards.insert(id.clone(), Guard { duty, extent }),
            Err(error) => tracing::warn!(sandbox = %id, "the disk of sandbox {id} is not watched: {error}"),
        }
    }

    pub fn end(&self, id: &SandboxId) {
        self.guards.lock().unwrap_or_else(PoisonError::into_inner).remove(id);
    }

    /// Where a sandbox's bytes are, if they can be seen from here.
    pub fn extent(&self, id: &SandboxId) -> Option<Extent> {
        let guards = self.guards.lock().unwrap_or_else(PoisonError::into_inner);
        guards.get(id).map(|guard| guard.extent.clone())
    }
}

fn extent(seen: &Seen) -> Extent {
    let layer = seen
        .inspected
        .graph_driver
        .as_ref()
        .and_then(|driver| driver.data.as_ref()?.get("UpperDir").map(PathBuf::from));
    let mounts = seen.inspected.mounts.iter().flatten().filter(|mount| mount.kind == "volume");
    let volumes = mounts.map(|mount| PathBuf::from(&mount.source));
    // Without the layer the rest is not the whole.
    let directories = layer.map(|layer| std::iter::once(layer).chain(volumes).collect()).unwrap_or_default();
    Extent { container: seen.sighting.id.0.clone(), directories }
}

/// What a guard knows.
#[derive(Clone)]
struct Post {
    provider: Weak<Shared>,
    open: Open,
    id: SandboxId,
    limit: u64,
    extent: Extent,
    freezer: Option<Freezer>,
}

/// What came of a measurement.
struct Finding {
    used: u64,
    free: u64,
    took: Duration,
    ended: bool,
}

impl Post {
    fn take_up(self, within_reach: bool) -> io::Result<Duty> {
        if !within_reach {
            let asking = tokio::spawn(async move { self.ask_now_and_then().await });
            return Ok(Duty::Asking(AbortOnDropHandle::new(asking)));
        }
        let relieved = Arc::new(AtomicBool::new(false));
        let (told, runtime) = (relieved.clone(), Handle::current());
        let thread = std::thread::Builder::new().name("disk guard".to_owned()).stack_size(STACK_BYTES);
        let thread = thread.spawn(move || match self.stand_beside(&told) {
            Ok(Some(used)) => _ = runtime.spawn(async move { self.end(used).await }),
            Ok(None) => {}
            // Its files are gone, and so is the sandbox.
            Err(error) => {
                tracing::debug!(sandbox = %self.id, "sandbox {} is watched no more: {error}", self.id);
            }
        })?;
        Ok(Duty::Beside(Sentry { relieved, thread }))
    }

    /// On the machine where the files are. Tells what the sandbox used when it was past its limit.
    fn stand_beside(&self, relieved: &AtomicBool) -> io::Result<Option<u64>> {
        // Refused to whoever lacks the right, and then the guard is as fast as others.
        let _ = rustix::process::setpriority_process(None, -HASTE);
        let filesystems = self.extent.filesystems();
        let first = self.measure(&filesystems, Hold::Running)?;
        let reaction = if self.freezer.is_some() { FREEZE_TAKES } else { ENGINE_KILL_TAKES };
        let mut gauge = Gauge::new(self.limit, reaction, Instant::now(), first.free, first.used);
        // It may have been full before: a volume outlives its sandbox, and a limit may be lowered.
        let mut next =
            if first.used > self.limit { Next::MeasureClosely } else { Next::Look(Duration::ZERO) };
        while !relieved.load(Ordering::Relaxed) {
            match next {
                Next::Look(wait) => std::thread::park_timeout(wait),
                Next::Measure | Next::MeasureClosely => {
                    let hold = if next == Next::MeasureClosely { Hold::Still } else { Hold::Running };
                    let found = self.measure(&filesystems, hold)?;
                    gauge.measured(Instant::now(), found.took, found.free, found.used);
                    if found.ended || self.is_lost(&gauge) {
                        return Ok(Some(found.used));
                    }
                }
            }
            next = gauge.look(Instant::now(), free_bytes(&filesystems)?);
        }
        Ok(None)
    }

    /// Whether one that cannot be held still would be past its limit before it could be ended.
    fn is_lost(&self, gauge: &Gauge) -> bool {
        self.freezer.is_none() && gauge.expected_after(ENGINE_KILL_TAKES) > self.limit
    }

    fn measure(&self, filesystems: &[PathBuf], hold: Hold) -> io::Result<Finding> {
        let start = Instant::now();
        let (used, ended) = match self.freezer.as_ref().filter(|_| hold == Hold::Still) {
            None => (self.used()?, false),
            Some(freezer) => {
                freezer.freeze()?;
                let outcome = self.measure_while_it_freezes(freezer);
                freezer.thaw()?;
                outcome?
            }
        };
        Ok(Finding { used, free: free_bytes(filesystems)?, took: start.elapsed(), ended })
    }

    fn used(&self) -> io::Result<u64> {
        match &self.freezer {
            Some(freezer) => self.extent.used_bytes_of(freezer.processes()?, self.limit),
            None => self.extent.used_bytes(),
        }
    }

    /// What it uses once it stands still, and whether it was ended. A process in the middle of a write does not stand still before
    /// that is done, and it may be a long one; but it can be killed, so whoever passes the limit meanwhile is not waited for.
    fn measure_while_it_freezes(&self, freezer: &Freezer) -> io::Result<(u64, bool)> {
        let deadline = Instant::now() + FREEZE_MAX;
        loop {
            let is_final = freezer.is_frozen()? || Instant::now() >= deadline;
            let used = self.used()?;
            if used > self.limit {
                self.remember();
                freezer.kill()?;
                return Ok((used, true));
            }
            if is_final {
                return Ok((used, false));
            }
            std::thread::sleep(FREEZE_LOOK_AFTER);
        }
    }

    fn remember(&self) {
        if let Some(provider) = self.provider.upgrade() {
            provider.exits.remember(&self.id, ExitCause::DiskLimit);
        }
    }

    async fn end(&self, used: u64) {
        self.remember();
        let Self { id, limit, .. } = self;
        tracing::warn!(sandbox = %id, used, limit, "sandbox {id} wrote {used} bytes, which is past its limit of {limit}; ending it");
        // Also where it was done already: the engine's own way is the one that is sure, if not always at the first try.
        let deadline = Instant::now() + ENGINE_KILL_MAX;
        while self.is_running().await && Instant::now() < deadline {
            let kill = self.open.client.kill_container(&id.0, None);
            if let Err(error) = self.open.within(ANSWER_MAX, kill).await {
                tracing::debug!(sandbox = %id, "sandbox {id} could not be ended: {}", error.message());
            }
            tokio::time::sleep(KILL_AGAIN_AFTER).await;
        }
    }

    async fn is_running(&self) -> bool {
        let seen = self.open.inspect(&self.id.0, Measure::Nothing).await;
        match seen.map(sightings::read) {
            Ok(Some(seen)) => matches!(seen.sighting.state, SandboxState::Running { .. }),
            Ok(None) => false,
            Err(error) => !error.is_not_found(),
        }
    }

    /// Where the files cannot be seen. When the engine does not answer, whoever lists what runs sets a new guard.
    async fn ask_now_and_then(&self) {
        loop {
            tokio::time::sleep(ASK_ENGINE_EVERY).await;
            match told_by_engine(&self.open, &self.id).await {
                Ok(used) if used > self.limit => return self.end(used).await,
                Ok(_) => {}
                Err(error) => {
                    tracing::debug!(sandbox = %self.id, "sandbox {} is watched no more: {}", self.id, error.message());
                    return;
                }
            }
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hold {
    Running,
    Still,
}

/// What the engine itself says of a sandbox's layer and volumes, which takes it a while.
pub(crate) async fn told_by_engine(open: &Open, id: &SandboxId) -> Result<u64, EngineError> {
    let inspected = open.inspect(&id.0, Measure::Size).await?;
    let names: Vec<String> = inspected.mounts.into_iter().flatten().filter_map(|mount| mount.name).collect();
    let mut total = inspected.size_rw.unwrap_or_default();
    if !names.is_empty() {
        let volumes = open.volume_sizes().await?;
        total += names.iter().filter_map(|name| volumes.get(name)).sum::<u64>();
    }
    Ok(total)
}
