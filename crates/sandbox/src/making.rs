//! Making a sandbox: volumes, container, streams, start, in this order; and taking back what was made when that fails half-way.
//!
//! ```text
//!   volumes ─► container ─► attach ─► start ─► guard ─► launched
//!      └──────────┴───────────┴─────────┴── failure, or dropped: all of it is undone
//! ```

use std::sync::{Arc, PoisonError};

use bollard::models::{ContainerCreateBody, ExecConfig};
use bollard::query_parameters::{CreateContainerOptionsBuilder, StartContainerOptions};
use cofer_model::NetworkMode;
use tokio_util::task::AbortOnDropHandle;

use crate::connection::{DEED_MAX, EngineError, Open};
use crate::containers::EngineProvider;
use crate::launch::{self, Latitude};
use crate::sightings::{self, Seen};
use crate::streams::{self, AttachError, Target, Wanted};
use crate::{
    BindMount, Launched, LogSink, Provider as _, SandboxError, SandboxId, SandboxSpec, Sighting, Stdio,
    Streams, volumes,
};

impl EngineProvider {
    /// What no engine can do.
    pub(crate) fn refuse_the_impossible(open: &Open, spec: &SandboxSpec) -> Result<(), SandboxError> {
        if !spec.ports.is_empty() && spec.network != NetworkMode::Egress {
            return Err(open.unsupported(format!(
                "{} publishes no ports of a sandbox whose network is `{}`; `egress` does",
                open.engine.kind, spec.network
            )));
        }
        let unlabelled = |bind: &&BindMount| bind.source.to_string_lossy().contains(':');
        if let Some(bind) = spec.binds.iter().find(unlabelled).filter(|_| open.engine.selinux) {
            return Err(open.unsupported(format!(
                "under SELinux {} mounts no path with a colon in it, such as {}",
                open.engine.kind,
                bind.source.display()
            )));
        }
        Ok(())
    }

    /// Makes, attaches and starts; what is made is written into `unfinished` as soon as it is.
    pub(crate) async fn bring_up(
        &self,
        spec: &SandboxSpec,
        logs: LogSink,
        unfinished: &mut Unfinished,
    ) -> Result<Launched, SandboxError> {
        let open = unfinished.open.clone();
        let made = volumes::make(&open, &spec.volumes).await;
        let (made, outcome) = made.map_or_else(|(made, error)| (made, Err(error)), |made| (made, Ok(())));
        unfinished.volumes = made;
        outcome?;
        let attached = loop {
            let mut latitude = self.latitude();
            latitude.quota &= open.engine.may_have_quota;
            match self.make_and_start(&open, spec, latitude, unfinished).await {
                Ok(attached) => break attached,
                Err(error) if self.learn(latitude, &error) => unfinished.remove_container().await,
                Err(error) => return Err(error),
            }
        };
        let id = unfinished.id.clone().ok_or_else(|| open.refused("it gave the sandbox no name"))?;
        let seen = self.inspect(&open, &id).await?.ok_or_else(|| SandboxError::Gone { id: id.clone() })?;
        let streams = match spec.stdio {
            Stdio::Bridged => attached.map(|attached| attached.bridged_to(&seen, logs)),
            Stdio::LogOnly | Stdio::None => {
                if let Some(attached) = attached {
                    self.drain(&id, attached, logs);
                }
                None
            }
        };
        Ok(Launched {
            id,
            streams,
            endpoints: seen.sighting.endpoints,
            warnings: launch::warnings(spec, &open.engine),
        })
    }

    /// Whether a refusal was about something that can be done without.
    pub(crate) fn learn(&self, tried: Latitude, error: &SandboxError) -> bool {
        let SandboxError::Refused { reason, .. } = error else { return false };
        let about_quota = tried.quota && (reason.contains("storage-opt") || reason.contains("quota"));
        let about_files = tried.file_size_limit && reason.contains("rlimit");
        let mut latitude = self.shared.latitude.lock().unwrap_or_else(PoisonError::into_inner);
        latitude.quota &= !about_quota;
        latitude.file_size_limit &= !about_files;
        about_quota || about_files
    }

    pub(crate) async fn make_and_start(
        &self,
        open: &Open,
        spec: &SandboxSpec,
        latitude: Latitude,
        unfinished: &mut Unfinished,
    ) -> Result<Option<streams::Attached>, SandboxError> {
        let (id, made) = self.make(open, spec, latitude).await?;
        unfinished.take_over(made);
        let wanted = match spec.stdio {
            Stdio::Bridged => Some(Wanted::All),
            Stdio::LogOnly => Some(Wanted::OutputOnly),
            Stdio::None => None,
        };
        let attached = match wanted {
            Some(wanted) => Some(self.take_streams(open, &id, wanted).await?),
            None => None,
        };
        let start = open.client.start_container(&id.0, None::<StartContainerOptions>);
        open.within(DEED_MAX, start).await.map_err(|error| open.failed(error))?;
        Ok(attached)
    }

    /// Makes the container, after whatever this owner still has was taken away.
    pub(crate) async fn make(
        &self,
        open: &Open,
        spec: &SandboxSpec,
        latitude: Latitude,
    ) -> Result<(SandboxId, Unfinished), SandboxError> {
        let name = launch::container_name(&spec.owner);
        let labels = sightings::labels(spec, self.shared.name);
        let body = launch::create_body(spec, &open.engine, self.runtime(open), labels, latitude);
        let mut earlier_was_destroyed = false;
        loop {
            match self.create(open, &name, body.clone()).await {
                Ok(made) => return Ok(made),
                Err(error) if error.is_not_found() => {
                    return Err(SandboxError::ImageMissing {
                        image: spec.image.clone(),
                        reason: error.message().to_owned(),
                    });
                }
                Err(error) if is_name_taken(&error) && !earlier_was_destroyed => {
                    self.destroy_earlier(open, &name, spec).await?;
                    earlier_was_destroyed = true;
                }
                Err(error) => return Err(open.failed(error)),
            }
        }
    }

    /// In a task of its own: an engine goes on making what it was asked for, whoever has left meanwhile; and then it is taken away.
    async fn create(
        &self,
        open: &Open,
        name: &str,
        body: ContainerCreateBody,
    ) -> Result<(SandboxId, Unfinished), EngineError> {
        let options = CreateContainerOptionsBuilder::new().name(name).build();
        let mut made = Unfinished::new(self.clone(), open.clone());
        let creating = tokio::spawn(async move {
            let open = &made.open;
            let create = open.client.create_container(Some(options), body);
            let id = SandboxId(open.within(DEED_MAX, create).await?.id);
            made.id = Some(id.clone());
            Ok((id, made))
        });
        creating.await.unwrap_or_else(|ended| Err(EngineError::silent(&ended)))
    }

    /// The name is taken: by an earlier run of the same owner, or by somebody else's container, which is left alone.
    pub(crate) async fn destroy_earlier(
        &self,
        open: &Open,
        name: &str,
        spec: &SandboxSpec,
    ) -> Result<(), SandboxError> {
        match self.inspect(open, &SandboxId(name.to_owned())).await? {
            Some(Seen { sighting: Sighting { id, owner, .. }, .. })
                if owner.id == spec.owner.id && owner.instance == spec.owner.instance =>
            {
                self.destroy(&id).await
            }
            Some(_) => {
                Err(open.refused(format!("a container named `{name}` is there and belongs to somebody else")))
            }
            None => Ok(()),
        }
    }

    pub(crate) async fn take_streams(
        &self,
        open: &Open,
        id: &SandboxId,
        wanted: Wanted,
    ) -> Result<streams::Attached, SandboxError> {
        let target =
            Target { endpoint: &open.engine.endpoint, version: open.client.client_version(), id, wanted };
        streams::attach(target).await.map_err(|error| not_attached(open, id, &error))
    }

    /// Starts a second program; its stdin and stdout are ours, its stderr nobody's.
    pub(crate) async fn start_exec(
        &self,
        open: &Open,
        id: &SandboxId,
        argv: &[String],
    ) -> Result<Streams, SandboxError> {
        let config = ExecConfig {
            attach_stdin: Some(true),
            attach_stdout: Some(true),
            attach_stderr: Some(true),
            cmd: Some(argv.to_vec()),
            ..Default::default()
        };
        let made = match open.within(DEED_MAX, open.client.create_exec(&id.0, config)).await {
            Ok(made) => made,
            // Docker says 409, and Podman the same in words, of one that does not run.
            Err(error) if error.is_not_found() || error.is_conflict() || error.is_passing() => {
                return Err(SandboxError::Gone { id: id.clone() });
            }
            Err(error) => return Err(open.failed(error)),
        };
        let (endpoint, version) = (&open.engine.endpoint, open.client.client_version());
        let started = streams::start_exec(endpoint, version, &made.id).await;
        let attached = started.map_err(|error| not_attached(open, id, &error))?;
        Ok(attached.bridged(Arc::new(|_, _| ())))
    }

    /// Carries output to the log until the sandbox ends.
    pub(crate) fn drain(&self, id: &SandboxId, attached: streams::Attached, logs: LogSink) {
        let task = tokio::spawn(attached.drain_into(logs));
        let mut drains = self.shared.drains.lock().unwrap_or_else(PoisonError::into_inner);
        drains.retain(|_, drain| !drain.is_finished());
        drains.insert(id.clone(), AbortOnDropHandle::new(task));
    }
}

fn not_attached(open: &Open, id: &SandboxId, error: &AttachError) -> SandboxError {
    match error {
        AttachError::Refused { status: 404, .. } => SandboxError::Gone { id: id.clone() },
        AttachError::Refused { .. } => open.refused(error.to_string()),
        AttachError::TooLate | AttachError::Connection(_) => open.failed(EngineError::silent(error)),
    }
}

/// Docker says it by the status; Podman, of this version, by the words alone.
fn is_name_taken(error: &EngineError) -> bool {
    error.is_conflict() || error.message().contains("is already in use")
}

/// What a launch has made so far. Dropped before the launch is done, it takes that away.
pub(crate) struct Unfinished {
    provider: EngineProvider,
    open: Open,
    id: Option<SandboxId>,
    volumes: Vec<String>,
}

impl Unfinished {
    pub fn new(provider: EngineProvider, open: Open) -> Self {
        Self { provider, open, id: None, volumes: Vec::new() }
    }

    fn take_over(&mut self, mut container: Self) {
        self.id = container.id.take();
    }

    pub async fn undo(mut self) {
        self.remove_container().await;
        for volume in std::mem::take(&mut self.volumes) {
            // One that cannot be removed is found again among the volumes.
            let _ = volumes::remove(&self.open, &volume).await;
        }
    }

    async fn remove_container(&mut self) {
        if let Some(id) = self.id.take()
            && let Err(error) = self.provider.destroy(&id).await
        {
            tracing::warn!(sandbox = %id, "sandbox {id}, whose launch failed, could not be removed: {error}");
        }
    }

    pub fn finish(mut self) {
        self.id = None;
        self.volumes.clear();
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if self.id.is_none() && self.volumes.is_empty() {
            return;
        }
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let rest = Self {
                provider: self.provider.clone(),
                open: self.open.clone(),
                id: self.id.take(),
                volumes: std::mem::take(&mut self.volumes),
            };
            runtime.spawn(rest.undo());
        }
    }
}
