//! An engine made of nothing: sandboxes are tasks, their streams are in memory, and it goes away when told to.

mod server;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use cofer_model::{Isolation, Moment, NetworkMode, ProviderName};
use cofer_sandbox::{
    Capabilities, DiskLimit, Endpoint, Exit, ExitCause, ImageRecipe, Launched, LogSink, LogStream,
    ProgressSink, Provider, SandboxError, SandboxId, SandboxSpec, SandboxState, Sighting, Streams, Usage,
    Volume,
};
use futures_util::stream::BoxStream;
use tokio::io::DuplexStream;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

pub(crate) use server::Manners;

/// An engine tells of an exit a little after the streams have ended.
const EXIT_LAG: Duration = Duration::from_millis(20);

#[derive(Debug, Default)]
pub(crate) struct Engine {
    inner: Mutex<Inner>,
    pub usage_asked: AtomicU64,
}

#[derive(Debug, Default)]
struct Inner {
    away: bool,
    next: u64,
    boxes: BTreeMap<SandboxId, Sandbox>,
    launches: u64,
    /// The most sandboxes that ever ran at once.
    running_max: usize,
    launch_takes: Duration,
    /// What the next launches come to, the last first.
    launch_failures: Vec<LaunchFailure>,
    manners: Manners,
    reattach: bool,
    /// Where the ports of its sandboxes are published.
    endpoints: Vec<Endpoint>,
}

#[derive(Clone, Debug)]
pub(crate) enum LaunchFailure {
    Refused,
    /// The sandbox is made, and the engine hangs up.
    HalfMade,
}

#[derive(Debug)]
struct Sandbox {
    sighting: Sighting,
    kill: CancellationToken,
    attach: mpsc::Sender<DuplexStream>,
    /// Ends the streams and leaves the server alone.
    cut: Arc<tokio::sync::Notify>,
}

impl Engine {
    pub(crate) fn new() -> Arc<Self> {
        let engine = Self::default();
        engine.inner().reattach = true;
        Arc::new(engine)
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap()
    }

    pub(crate) fn go_away(&self) {
        let mut inner = self.inner();
        inner.away = true;
        inner.boxes.values().for_each(|sandbox| sandbox.cut.notify_one());
    }

    pub(crate) fn come_back(&self) {
        self.inner().away = false;
    }

    pub(crate) fn mind(&self, manners: Manners) {
        self.inner().manners = manners;
    }

    pub(crate) fn fail_next(&self, failure: LaunchFailure) {
        self.inner().launch_failures.push(failure);
    }

    pub(crate) fn launch_takes(&self, span: Duration) {
        self.inner().launch_takes = span;
    }

    pub(crate) fn publishes(&self, host_port: u16) {
        self.inner().endpoints = vec![Endpoint { container_port: 80, host_port }];
    }

    /// Destroys what nobody remembers, as Cofer does when it starts.
    pub(crate) fn sweep_except(&self, remembered: Option<&SandboxId>) {
        self.inner().boxes.retain(|id, sandbox| {
            let known = remembered == Some(id);
            if !known {
                sandbox.kill.cancel();
            }
            known
        });
    }

    pub(crate) fn cannot_reattach(&self) {
        self.inner().reattach = false;
    }

    pub(crate) fn launches(&self) -> u64 {
        self.inner().launches
    }

    pub(crate) fn running_max(&self) -> usize {
        self.inner().running_max
    }

    /// Everything that is there, ended or not.
    pub(crate) fn boxes(&self) -> Vec<Sighting> {
        self.inner().boxes.values().map(|sandbox| sandbox.sighting.clone()).collect()
    }

    pub(crate) fn running(&self) -> usize {
        self.boxes().iter().filter(|seen| matches!(seen.state, SandboxState::Running { .. })).count()
    }

    /// A crash from outside, as `docker kill` does.
    pub(crate) fn kill_all(&self) {
        self.inner().boxes.values().for_each(|sandbox| sandbox.kill.cancel());
    }

    fn here(&self) -> Result<MutexGuard<'_, Inner>, SandboxError> {
        let inner = self.inner();
        if inner.away {
            return Err(SandboxError::Unavailable {
                provider: ProviderName::Docker,
                reason: "gone fishing".to_owned(),
            });
        }
        Ok(inner)
    }

    fn ended(&self, id: &SandboxId, exit: Exit) {
        if let Some(sandbox) = self.inner().boxes.get_mut(id) {
            sandbox.sighting.state = SandboxState::Ended(exit);
        }
    }
}

fn killed() -> Exit {
    Exit { code: Some(137), signal: Some(9), cause: ExitCause::Itself, at: Moment::now() }
}

/// What tests hold, so that sandboxes can find their engine.
#[derive(Clone, Debug)]
pub(crate) struct Fake(pub Arc<Engine>);

#[async_trait]
impl Provider for Fake {
    fn name(&self) -> ProviderName {
        ProviderName::Docker
    }

    async fn examine(&self) -> Result<Capabilities, SandboxError> {
        let reattach = self.0.here()?.reattach;
        Ok(Capabilities {
            description: "in memory".to_owned(),
            isolation: Isolation::Container,
            memory_limit: true,
            cpu_limit: true,
            pids_limit: true,
            disk_limit: DiskLimit::Quota,
            volumes: true,
            ports: true,
            networks: NetworkMode::ALL.to_vec(),
            reattach,
            pull: true,
            build: true,
            rootless: false,
        })
    }

    async fn fetch_image(&self, image: &str, progress: ProgressSink) -> Result<(), SandboxError> {
        progress(format!("pulling {image}: 1 of 2 layers"));
        let _here = self.0.here()?;
        match image {
            "missing" => Err(SandboxError::ImageMissing {
                image: image.to_owned(),
                reason: "no such image".to_owned(),
            }),
            _ => Ok(()),
        }
    }

    async fn build_image(&self, _: &ImageRecipe, _: ProgressSink) -> Result<(), SandboxError> {
        Ok(())
    }

    async fn launch(&self, spec: &SandboxSpec, logs: LogSink) -> Result<Launched, SandboxError> {
        let takes = self.0.here()?.launch_takes;
        tokio::time::sleep(takes).await;
        let failure = {
            let mut inner = self.0.here()?;
            inner.boxes.retain(|_, old| {
                let ours = old.sighting.owner.id == spec.owner.id;
                if ours {
                    old.kill.cancel();
                }
                !ours
            });
            inner.launch_failures.pop()
        };
        if let Some(LaunchFailure::Refused) = failure {
            return Err(SandboxError::Refused {
                provider: ProviderName::Docker,
                reason: "bad port".to_owned(),
            });
        }
        let (ours, theirs) = tokio::io::duplex(1 << 16);
        let (attach, attached) = mpsc::channel(4);
        let (kill, cut) = (CancellationToken::new(), Arc::new(tokio::sync::Notify::new()));
        let (id, manners) = {
            let mut inner = self.0.inner();
            inner.next += 1;
            inner.launches += 1;
            let id = SandboxId(format!("box-{}", inner.next));
            let state = SandboxState::Running { since: Moment::now() };
            let sighting =
                Sighting { id: id.clone(), owner: spec.owner.clone(), state, endpoints: Vec::new() };
            inner.boxes.insert(
                id.clone(),
                Sandbox { sighting, kill: kill.clone(), attach: attach.clone(), cut: cut.clone() },
            );
            (id, inner.manners.clone())
        };
        let running = self.0.running();
        let mut inner = self.0.inner();
        inner.running_max = inner.running_max.max(running);
        drop(inner);
        let (engine, sandbox) = (self.0.clone(), id.clone());
        tokio::spawn(async move {
            let log = |line: &str| logs(LogStream::Stderr, format!("{line}\n").as_bytes());
            let serving = server::serve(theirs, attached, &cut, &manners, log);
            let exit = kill.run_until_cancelled(serving).await.unwrap_or_else(killed);
            tokio::time::sleep(EXIT_LAG).await;
            engine.ended(&sandbox, exit);
        });
        if let Some(LaunchFailure::HalfMade) = failure {
            return Err(SandboxError::Unavailable {
                provider: ProviderName::Docker,
                reason: "hung up".to_owned(),
            });
        }
        let (stdout, stdin) = tokio::io::split(ours);
        let streams = Streams { stdin: Box::new(stdin), stdout: Box::new(stdout) };
        Ok(Launched {
            id,
            streams: Some(streams),
            endpoints: self.0.inner().endpoints.clone(),
            warnings: Vec::new(),
        })
    }

    async fn attach(&self, id: &SandboxId, _: LogSink) -> Result<Streams, SandboxError> {
        let attach = self.0.here()?.boxes.get(id).map(|sandbox| sandbox.attach.clone());
        let attach = attach.ok_or_else(|| SandboxError::Gone { id: id.clone() })?;
        let (ours, theirs) = tokio::io::duplex(1 << 16);
        attach.send(theirs).await.map_err(|_| SandboxError::Gone { id: id.clone() })?;
        let (stdout, stdin) = tokio::io::split(ours);
        Ok(Streams { stdin: Box::new(stdin), stdout: Box::new(stdout) })
    }

    async fn look(&self, id: &SandboxId) -> Result<Option<Sighting>, SandboxError> {
        Ok(self.0.here()?.boxes.get(id).map(|sandbox| sandbox.sighting.clone()))
    }

    async fn list(&self, _: &str) -> Result<Vec<Sighting>, SandboxError> {
        drop(self.0.here()?);
        Ok(self.0.boxes())
    }

    async fn watch(&self, _: &str) -> Result<BoxStream<'static, SandboxId>, SandboxError> {
        Ok(Box::pin(futures_util::stream::pending()))
    }

    async fn stop(&self, id: &SandboxId, grace: Duration) -> Result<(), SandboxError> {
        let (kill, stubborn) = match self.0.here()? {
            inner if inner.boxes.contains_key(id) => (inner.boxes[id].kill.clone(), inner.manners.stubborn),
            _ => return Ok(()),
        };
        if stubborn {
            tokio::time::sleep(grace).await;
        }
        kill.cancel();
        tokio::time::sleep(2 * EXIT_LAG).await;
        Ok(())
    }

    async fn destroy(&self, id: &SandboxId) -> Result<(), SandboxError> {
        if let Some(sandbox) = self.0.here()?.boxes.remove(id) {
            sandbox.kill.cancel();
        }
        Ok(())
    }

    async fn usage(&self, id: &SandboxId) -> Result<Usage, SandboxError> {
        let asked = self.0.usage_asked.fetch_add(1, Ordering::SeqCst) + 1;
        tokio::time::sleep(Duration::from_millis(100)).await;
        if !self.0.here()?.boxes.contains_key(id) {
            return Err(SandboxError::Gone { id: id.clone() });
        }
        Ok(Usage {
            cpu_nanos: asked * 1_000_000_000,
            memory_bytes: 5,
            memory_limit_bytes: 10,
            pids: 2,
            disk_bytes: None,
        })
    }

    async fn volumes(&self, _: &str) -> Result<Vec<Volume>, SandboxError> {
        Ok(Vec::new())
    }

    async fn remove_volume(&self, _: &str) -> Result<(), SandboxError> {
        Ok(())
    }
}
