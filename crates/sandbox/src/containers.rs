//! Sandboxes as containers of an engine: Docker, Podman, and gVisor, which is a runtime of either.
//!
//! One provider serves all three; they differ in which engine is looked for and which runtime is asked for. The parts are next
//! door: `launch` shapes a container, `making` and `ending` see to its beginning and its end, `streams` carries its bytes,
//! `sightings` reads it back, `disk_watch` holds it to its limit, `exits` knows why it ended.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use bollard::query_parameters::EventsOptionsBuilder;
use cofer_model::{Isolation, NetworkMode, ProviderName};
use futures_util::stream::{self, BoxStream};
use futures_util::{StreamExt as _, TryStreamExt as _};
use tokio_util::task::AbortOnDropHandle;

use crate::connection::{ANSWER_MAX, Connection, EngineSettings, Measure, Need, Open, Variable};
use crate::disk_watch::{self, DiskWatch};
use crate::engine::EngineKind;
use crate::exits::Exits;
use crate::launch::Latitude;
use crate::making::Unfinished;
use crate::sightings::{self, Seen};
use crate::streams::Wanted;
use crate::{
    Capabilities, DiskLimit, ImageAbout, ImageRecipe, Launched, LogSink, Network, Owner, ProgressSink,
    Provider, SandboxError, SandboxId, SandboxSpec, SandboxState, Sighting, Stdio, Streams, Usage, Volume,
    checkpoints, images, networks, usage, volumes,
};

/// How many containers are inspected at a time when all are listed.
const LOOKS_AT_ONCE: usize = 8;
/// News from before the question is asked for as well, because some may happen while it is on its way.
const NEWS_OVERLAP: Duration = Duration::from_secs(2);

/// A provider over an engine. Clones are the same provider.
#[derive(Clone)]
pub struct EngineProvider {
    pub(crate) shared: Arc<Shared>,
}

pub(crate) struct Shared {
    pub name: ProviderName,
    connection: Connection,
    /// What the engine was found not to take is not tried again.
    pub latitude: Mutex<Latitude>,
    /// One image at a time: of two that Podman builds at once, one may take the other's files away.
    building: tokio::sync::Mutex<()>,
    /// Those who carry the output of sandboxes without streams to their log.
    pub drains: Mutex<HashMap<SandboxId, AbortOnDropHandle<()>>>,
    pub exits: Exits,
    disk: DiskWatch,
}

impl fmt::Debug for EngineProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EngineProvider").field("connection", &self.shared.connection).finish_non_exhaustive()
    }
}

impl EngineProvider {
    pub fn docker(settings: EngineSettings, variable: Variable) -> Self {
        Self::new(ProviderName::Docker, Need::Any(EngineKind::Docker), settings, variable)
    }

    pub fn podman(settings: EngineSettings, variable: Variable) -> Self {
        Self::new(ProviderName::Podman, Need::Any(EngineKind::Podman), settings, variable)
    }

    /// Docker with a gVisor runtime, else a Podman that runs gVisor by default.
    pub fn gvisor(settings: EngineSettings, variable: Variable) -> Self {
        Self::new(ProviderName::Gvisor, Need::Gvisor, settings, variable)
    }

    fn new(name: ProviderName, need: Need, settings: EngineSettings, variable: Variable) -> Self {
        let shared = Shared {
            name,
            connection: Connection::new(name, need, settings, variable),
            latitude: Mutex::new(Latitude { quota: true, file_size_limit: true }),
            building: tokio::sync::Mutex::default(),
            drains: Mutex::default(),
            exits: Exits::default(),
            disk: DiskWatch::default(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// The runtime to ask for. Podman is given its own from outside.
    pub(crate) fn runtime<'a>(&self, open: &'a Open) -> Option<&'a str> {
        let asks = self.shared.name == ProviderName::Gvisor && open.engine.kind == EngineKind::Docker;
        open.engine.gvisor_runtime().filter(|_| asks)
    }

    pub(crate) fn latitude(&self) -> Latitude {
        *self.shared.latitude.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn open(&self) -> Result<Open, SandboxError> {
        self.shared.connection.open().await
    }
}

impl EngineProvider {
    /// What the engine knows of it, with what we know of its end. `None` for one that is gone or none of ours.
    pub(crate) async fn inspect(&self, open: &Open, id: &SandboxId) -> Result<Option<Seen>, SandboxError> {
        match open.inspect(&id.0, Measure::Nothing).await {
            Ok(inspected) => {
                let mut seen = sightings::read(inspected);
                if let Some(seen) = &mut seen {
                    self.shared.exits.explain(seen).await;
                    self.guard(open, seen);
                }
                Ok(seen)
            }
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(open.failed(error)),
        }
    }

    /// Whoever is seen running is guarded from then on, so that a Cofer that comes back guards what it finds.
    fn guard(&self, open: &Open, seen: &Seen) {
        match seen.sighting.state {
            SandboxState::Made => {}
            SandboxState::Running { .. } => self.shared.disk.begin(&self.shared, open, seen),
            SandboxState::Ended(_) => self.shared.disk.end(&seen.sighting.id),
        }
    }

    /// What it holds, measured here if that can be, else by the engine.
    async fn disk_bytes(&self, open: &Open, id: &SandboxId) -> Option<u64> {
        let extent = self.shared.disk.extent(id)?;
        let measured = tokio::task::spawn_blocking(move || {
            extent.is_within_reach().then(|| extent.used_bytes().ok()).flatten()
        });
        match measured.await.ok().flatten() {
            Some(bytes) => Some(bytes),
            None => disk_watch::told_by_engine(open, id).await.ok(),
        }
    }

    fn filters(&self, instance: &str) -> Vec<String> {
        vec![
            format!("{}={instance}", sightings::INSTANCE),
            format!("{}={}", sightings::PROVIDER, self.shared.name),
        ]
    }

    async fn ids(&self, open: &Open, instance: &str) -> Result<Vec<SandboxId>, SandboxError> {
        let containers =
            open.containers(&self.filters(instance)).await.map_err(|error| open.failed(error))?;
        Ok(containers.into_iter().map(|container| SandboxId(container.id)).collect())
    }
}

#[async_trait]
impl Provider for EngineProvider {
    fn name(&self) -> ProviderName {
        self.shared.name
    }

    async fn examine(&self) -> Result<Capabilities, SandboxError> {
        let open = self.shared.connection.examine().await?;
        let engine = &open.engine;
        let under_gvisor = self.runtime(&open).is_some() || engine.is_gvisor_by_default();
        Ok(Capabilities {
            description: format!("{} {} at {}", engine.kind, engine.version, engine.endpoint),
            isolation: if under_gvisor { Isolation::Gvisor } else { Isolation::Container },
            memory_limit: engine.enforces.memory,
            cpu_limit: engine.enforces.cpu,
            pids_limit: engine.enforces.pids,
            // A quota, where the engine has one, knows nothing of volumes; the watch is over both.
            disk_limit: DiskLimit::Watched,
            volumes: true,
            ports: true,
            networks: NetworkMode::ALL.to_vec(),
            // Podman closes a sandbox's stdin when whoever was attached goes away.
            reattach: engine.kind == EngineKind::Docker,
            pull: true,
            build: true,
            rootless: engine.rootless,
        })
    }

    async fn fetch_image(&self, image: &str, progress: ProgressSink) -> Result<(), SandboxError> {
        images::fetch(&self.open().await?, image, &progress).await
    }

    async fn build_image(&self, recipe: &ImageRecipe, progress: ProgressSink) -> Result<(), SandboxError> {
        let _turn = self.shared.building.lock().await;
        images::build(&self.open().await?, recipe, &progress).await
    }

    async fn launch(&self, spec: &SandboxSpec, logs: LogSink) -> Result<Launched, SandboxError> {
        let open = self.open().await?;
        Self::refuse_the_impossible(&open, spec)?;
        let mut unfinished = Unfinished::new(self.clone(), open);
        match self.bring_up(spec, logs, &mut unfinished).await {
            Ok(launched) => {
                unfinished.finish();
                Ok(launched)
            }
            Err(error) => {
                unfinished.undo().await;
                Err(error)
            }
        }
    }

    async fn attach(&self, id: &SandboxId, logs: LogSink) -> Result<Streams, SandboxError> {
        let open = self.open().await?;
        let seen = self.inspect(&open, id).await?.ok_or_else(|| SandboxError::Gone { id: id.clone() })?;
        // Podman would start one that has ended anew.
        if !matches!(seen.sighting.state, SandboxState::Running { .. }) {
            return Err(SandboxError::Gone { id: id.clone() });
        }
        match seen.stdio {
            Stdio::Bridged if open.engine.kind == EngineKind::Podman => {
                Err(open.unsupported("Podman closes the stdin of a sandbox with the first connection to it"))
            }
            Stdio::Bridged => Ok(self.take_streams(&open, id, Wanted::All).await?.bridged_to(&seen, logs)),
            Stdio::None => Err(open.unsupported("this sandbox was made without streams")),
            Stdio::LogOnly => {
                let attached = self.take_streams(&open, id, Wanted::OutputOnly).await?;
                self.drain(id, attached, logs);
                Ok(Streams { stdin: Box::new(tokio::io::sink()), stdout: Box::new(tokio::io::empty()) })
            }
        }
    }

    async fn look(&self, id: &SandboxId) -> Result<Option<Sighting>, SandboxError> {
        Ok(self.inspect(&self.open().await?, id).await?.map(|seen| seen.sighting))
    }

    async fn list(&self, instance: &str) -> Result<Vec<Sighting>, SandboxError> {
        let open = self.open().await?;
        let ids = self.ids(&open, instance).await?;
        let looks = stream::iter(ids).map(|id| {
            let open = &open;
            async move { self.inspect(open, &id).await }
        });
        let seen: Vec<Option<Seen>> = looks.buffer_unordered(LOOKS_AT_ONCE).try_collect().await?;
        Ok(seen.into_iter().flatten().map(|seen| seen.sighting).collect())
    }

    async fn watch(&self, instance: &str) -> Result<BoxStream<'static, SandboxId>, SandboxError> {
        let open = self.open().await?;
        open.within(ANSWER_MAX, open.client.ping()).await.map_err(|error| open.failed(error))?;
        let filters = HashMap::from([
            ("type", vec!["container".to_owned()]),
            // Podman filters by its own word for it.
            ("event", vec!["die".to_owned(), "died".to_owned()]),
            ("label", vec![format!("{}={instance}", sightings::INSTANCE)]),
        ]);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let since = now.saturating_sub(NEWS_OVERLAP).as_secs().to_string();
        let events =
            open.client.events(Some(EventsOptionsBuilder::new().since(&since).filters(&filters).build()));
        // The first failure is the engine's going away, and the end of the news.
        let provider = self.shared.name;
        let ids = events.take_while(|event| std::future::ready(event.is_ok())).filter_map(move |event| {
            let of_this_provider = |attributes: &HashMap<String, String>| {
                attributes.get(sightings::PROVIDER).is_some_and(|name| name == provider.as_str())
            };
            // Podman takes several labels for alternatives, so the second one is looked at here.
            let actor = event.ok().and_then(|event| event.actor);
            let actor = actor.filter(|actor| actor.attributes.as_ref().is_some_and(of_this_provider));
            std::future::ready(actor.and_then(|actor| actor.id).map(SandboxId))
        });
        Ok(ids.boxed())
    }

    async fn stop(&self, id: &SandboxId, grace: Duration) -> Result<(), SandboxError> {
        let open = self.open().await?;
        let Some(seen) = self.inspect(&open, id).await? else { return Ok(()) };
        if !matches!(seen.sighting.state, SandboxState::Running { .. }) {
            return Ok(());
        }
        self.signal(&open, id, "SIGTERM").await?;
        match tokio::time::timeout(grace, self.ended(&open, id)).await {
            Ok(ended) => ended,
            Err(_elapsed) => self.kill(&open, &seen).await,
        }
    }

    async fn destroy(&self, id: &SandboxId) -> Result<(), SandboxError> {
        let open = self.open().await?;
        if let Some(seen) = self.inspect(&open, id).await? {
            self.kill(&open, &seen).await?;
            self.remove(&open, id).await?;
        }
        self.shared.drains.lock().unwrap_or_else(PoisonError::into_inner).remove(id);
        self.shared.disk.end(id);
        self.shared.exits.forget(id);
        Ok(())
    }

    async fn usage(&self, id: &SandboxId) -> Result<Usage, SandboxError> {
        let open = self.open().await?;
        match usage::ask(&open, &id.0).await {
            Ok(usage) => Ok(Usage { disk_bytes: self.disk_bytes(&open, id).await, ..usage }),
            Err(error) if error.is_not_found() => Err(SandboxError::Gone { id: id.clone() }),
            Err(error) => Err(open.failed(error)),
        }
    }

    async fn volumes(&self, instance: &str) -> Result<Vec<Volume>, SandboxError> {
        volumes::list(&self.open().await?, instance).await
    }

    async fn has_volume(&self, name: &str) -> Result<bool, SandboxError> {
        volumes::is_there(&self.open().await?, name).await
    }

    async fn remove_volume(&self, name: &str) -> Result<(), SandboxError> {
        volumes::remove(&self.open().await?, name).await
    }

    async fn exec(&self, id: &SandboxId, argv: &[String]) -> Result<Streams, SandboxError> {
        self.start_exec(&self.open().await?, id, argv).await
    }

    async fn image(&self, image: &str) -> Result<ImageAbout, SandboxError> {
        images::about(&self.open().await?, image).await
    }

    async fn checkpoint(
        &self,
        id: &SandboxId,
        image: &str,
        progress: ProgressSink,
    ) -> Result<(), SandboxError> {
        checkpoints::make(&self.open().await?, id, image, &progress).await
    }

    async fn make_network(&self, name: &str, owner: &Owner) -> Result<(), SandboxError> {
        networks::make(&self.open().await?, name, owner).await
    }

    async fn join_network(
        &self,
        id: &SandboxId,
        network: &str,
        aliases: &[String],
    ) -> Result<(), SandboxError> {
        networks::join(&self.open().await?, id, network, aliases).await
    }

    async fn networks(&self, instance: &str) -> Result<Vec<Network>, SandboxError> {
        networks::list(&self.open().await?, instance).await
    }

    async fn remove_network(&self, name: &str) -> Result<(), SandboxError> {
        networks::remove(&self.open().await?, name).await
    }
}
