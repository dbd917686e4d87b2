//! Holds sandboxes to their disk limit by watching, because few engines have a quota and none has one over a root filesystem and
//! volumes together.
//!
//! Each sandbox that runs has a guard. On the engine's machine the guard looks at the free space ([`gauge`](crate::gauge)), and when
//! the limit may be near it holds the sandbox still, measures, and lets it go on or ends it: nobody writes while it is measured, and
//! nobody is ended who is within the limit. Where it has no right to that, it measures as it runs; where it cannot see the files, it
//! asks the engine now and then.

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use tokio_util::task::AbortOnDropHandle;

use crate::connection::{EngineError, Measure, Open};
use crate::containers::Shared;
use crate::disk::{Extent, free_bytes};
use crate::freezer::Freezer;
use crate::gauge::{Gauge, Next};
use crate::sightings::Seen;
use crate::{ExitCause, SandboxId};

const FREEZE_TAKES: Duration = Duration::from_millis(2);
const ENGINE_KILL_TAKES: Duration = Duration::from_millis(100);
const ASK_ENGINE_EVERY: Duration = Duration::from_secs(5);

/// The guards of all sandboxes that run.
#[derive(Default)]
pub(crate) struct DiskWatch {
    guards: Mutex<HashMap<SandboxId, Guard>>,
}

struct Guard {
    task: AbortOnDropHandle<()>,
    extent: Extent,
}

impl DiskWatch {
    /// Sets a guard on a sandbox that runs, unless it has one.
    pub fn begin(&self, provider: &Arc<Shared>, open: &Open, seen: &Seen) {
        let Some(limit) = seen.disk_limit else { return };
        let id = &seen.sighting.id;
        let mut guards = self.guards.lock().unwrap_or_else(PoisonError::into_inner);
        if guards.get(id).is_some_and(|guard| !guard.task.is_finished()) {
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
        let task = AbortOnDropHandle::new(tokio::spawn(post.stand()));
        guards.insert(id.clone(), Guard { task, extent });
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
    async fn stand(self) {
        let extent = self.extent.clone();
        let within_reach =
            tokio::task::spawn_blocking(move || extent.is_within_reach()).await.unwrap_or(false);
        let outcome = if within_reach { self.stand_beside().await } else { self.ask_now_and_then().await };
        if let Err(error) = outcome {
            // Its files are gone, and so is the sandbox; or the engine is, and whoever lists what runs sets a new guard.
            tracing::debug!(sandbox = %self.id, "the disk of sandbox {} is watched no more: {error}", self.id);
        }
    }

    /// On the machine where the files are.
    async fn stand_beside(&self) -> io::Result<()> {
        let filesystems = self.extent.filesystems();
        let first = self.measure(&filesystems, Hold::Running).await?;
        let reaction = if self.freezer.is_some() { FREEZE_TAKES } else { ENGINE_KILL_TAKES };
        let mut gauge = Gauge::new(self.limit, reaction, Instant::now(), first.free, first.used);
        // It may have been full before: a volume outlives its sandbox, and a limit may be lowered.
        let mut next =
            if first.used > self.limit { Next::MeasureClosely } else { Next::Look(Duration::ZERO) };
        loop {
            match next {
                Next::Look(wait) => tokio::time::sleep(wait).await,
                Next::Measure | Next::MeasureClosely => {
                    let hold = if next == Next::MeasureClosely { Hold::Still } else { Hold::Running };
                    let found = self.measure(&filesystems, hold).await?;
                    gauge.measured(Instant::now(), found.took, found.free, found.used);
                    if found.ended || self.is_lost(&gauge) {
                        self.end(gauge.used()).await;
                        return Ok(());
                    }
                }
            }
            next = gauge.look(Instant::now(), free_bytes(&filesystems)?);
        }
    }

    /// Whether one that cannot be held still would be past its limit before it could be ended.
    fn is_lost(&self, gauge: &Gauge) -> bool {
        self.freezer.is_none() && gauge.expected_after(ENGINE_KILL_TAKES) > self.limit
    }

    async fn measure(&self, filesystems: &[PathBuf], hold: Hold) -> io::Result<Finding> {
        let (post, filesystems) = (self.clone(), filesystems.to_vec());
        // In one piece, so that it is thawed whatever becomes of the guard.
        tokio::task::spawn_blocking(move || post.measure_now(&filesystems, hold)).await?
    }

    fn measure_now(&self, filesystems: &[PathBuf], hold: Hold) -> io::Result<Finding> {
        let start = Instant::now();
        let freezer = self.freezer.as_ref().filter(|_| hold == Hold::Still);
        if let Some(freezer) = freezer {
            freezer.freeze()?;
        }
        let used = self.extent.used_bytes();
        let ended = freezer.is_some() && used.as_ref().is_ok_and(|used| *used > self.limit);
        if let Some(freezer) = freezer {
            if ended {
                self.remember();
                let _ = freezer.kill();
            }
            freezer.thaw()?;
        }
        Ok(Finding { used: used?, free: free_bytes(filesystems)?, took: start.elapsed(), ended })
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
        // Also where it was done already: the engine's own way is the one that is sure.
        let kill = self.open.client.kill_container(&id.0, None);
        let _ = self.open.within(ENGINE_KILL_MAX, kill).await;
    }

    /// Where the files cannot be seen.
    async fn ask_now_and_then(&self) -> io::Result<()> {
        loop {
            tokio::time::sleep(ASK_ENGINE_EVERY).await;
            match told_by_engine(&self.open, &self.id).await {
                Ok(used) if used > self.limit => {
                    self.end(used).await;
                    return Ok(());
                }
                Ok(_) => {}
                Err(error) => return Err(io::Error::other(error.message().to_owned())),
            }
        }
    }
}

const ENGINE_KILL_MAX: Duration = Duration::from_secs(10);

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
