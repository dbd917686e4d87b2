//! What every way of running a sandbox can do.
//!
//! The verbs are few, all may be repeated, and none is an engine's own: the same ones fit a container engine, a micro-VM, a
//! cluster and a service elsewhere. What a provider cannot do it says in [`Capabilities`], which are asked, not assumed.
//!
//! ```text
//!   fetch_image ─► launch ─► (attach) ─► … ends by itself, or stop ─► destroy
//!                     │                        │
//!                   stderr ─► LogSink        watch tells, look knows
//! ```
//!
//! A sandbox carries its [`Owner`] as labels, so that whoever comes after a SIGKILL finds it again with `list`. Its name is made
//! of the owner's id: the engine itself refuses a second sandbox for one owner.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use cofer_model::{Isolation, Kind, Moment, NetworkMode, PortMapping, ProviderName, ResourceLimits};
use futures_util::stream::BoxStream;
use secrecy::SecretString;
use serde::Serialize;
use tokio::io::{AsyncRead, AsyncWrite};
use uuid::Uuid;

#[async_trait]
pub trait Provider: fmt::Debug + Send + Sync {
    fn name(&self) -> ProviderName;

    /// Asks whether it can be used now, and what it can do. Answers within seconds.
    async fn examine(&self) -> Result<Capabilities, SandboxError>;

    /// Sees to it that the image is there: looks, and pulls it if it is not.
    async fn fetch_image(&self, image: &str, progress: ProgressSink) -> Result<(), SandboxError>;

    /// Builds an image from files (one of them `Dockerfile`) unless one of this name is there.
    async fn build_image(&self, recipe: &ImageRecipe, progress: ProgressSink) -> Result<(), SandboxError>;

    /// Makes a sandbox and starts it. Nothing that it says is lost: its streams are attached first. A sandbox of the same owner that
    /// is still there, from an earlier run, is destroyed before. When this fails, or is dropped half-way, nothing is left that
    /// `list` does not find.
    async fn launch(&self, spec: &SandboxSpec, logs: LogSink) -> Result<Launched, SandboxError>;

    /// A fresh pair of streams to a sandbox that runs, where [`Capabilities::reattach`] says that this can be. One that is
    /// [`Stdio::LogOnly`] can always be attached: its output goes to the log again, and the pair carries nothing.
    async fn attach(&self, id: &SandboxId, logs: LogSink) -> Result<Streams, SandboxError>;

    /// How it does; `None` when it is gone.
    async fn look(&self, id: &SandboxId) -> Result<Option<Sighting>, SandboxError>;

    /// All of this instance's sandboxes, also those that have ended.
    async fn list(&self, instance: &str) -> Result<Vec<Sighting>, SandboxError>;

    /// Tells of ends as they happen. The stream ends when the engine goes away; whoever watches asks again and looks, because
    /// news may have been missed meanwhile.
    async fn watch(&self, instance: &str) -> Result<BoxStream<'static, SandboxId>, SandboxError>;

    /// SIGTERM, `grace`, SIGKILL. Returns when it has ended. One that has ended, or is gone, is fine.
    async fn stop(&self, id: &SandboxId, grace: Duration) -> Result<(), SandboxError>;

    /// Ends it at once if it runs, and removes it and whatever was made for it alone, but not its volumes. One that is gone is fine.
    async fn destroy(&self, id: &SandboxId) -> Result<(), SandboxError>;

    /// What it uses now.
    async fn usage(&self, id: &SandboxId) -> Result<Usage, SandboxError>;

    /// All of this instance's volumes.
    async fn volumes(&self, instance: &str) -> Result<Vec<Volume>, SandboxError>;

    /// Whether there is a volume of this name. Who cannot tell says yes: what may be there may be somebody's.
    async fn has_volume(&self, _name: &str) -> Result<bool, SandboxError> {
        Ok(true)
    }

    /// Refused while a sandbox has it. One that is gone is fine.
    async fn remove_volume(&self, name: &str) -> Result<(), SandboxError>;

    /// Runs one more program in a sandbox that runs; its stderr goes nowhere. It ends when it likes: dropping the streams closes its stdin.
    async fn exec(&self, _id: &SandboxId, _argv: &[String]) -> Result<Streams, SandboxError> {
        Err(self.cannot("run a second program in a sandbox"))
    }

    /// What an image that is there says of itself.
    async fn image(&self, _image: &str) -> Result<ImageAbout, SandboxError> {
        Err(self.cannot("tell of an image"))
    }

    /// Makes an image of a sandbox as it is now, without its volumes and without what Cofer put there; and sends it to its registry when
    /// the name has one.
    async fn checkpoint(
        &self,
        _id: &SandboxId,
        _image: &str,
        _progress: ProgressSink,
    ) -> Result<(), SandboxError> {
        Err(self.cannot("make an image of a sandbox"))
    }

    /// A network of one's own, on which sandboxes find each other by name, with a way out. One of the same owner that is there is fine.
    async fn make_network(&self, _name: &str, _owner: &Owner) -> Result<(), SandboxError> {
        Err(self.cannot("make a network"))
    }

    /// Puts a sandbox that runs on one more network, under these names. One that is on it is fine.
    async fn join_network(
        &self,
        _id: &SandboxId,
        _network: &str,
        _aliases: &[String],
    ) -> Result<(), SandboxError> {
        Err(self.cannot("put a sandbox on a network"))
    }

    /// All of this instance's networks.
    async fn networks(&self, _instance: &str) -> Result<Vec<Network>, SandboxError> {
        Err(self.cannot("tell of networks"))
    }

    /// Refused while a sandbox is on it. One that is gone is fine.
    async fn remove_network(&self, _name: &str) -> Result<(), SandboxError> {
        Err(self.cannot("remove a network"))
    }

    /// The answer of those that lack a verb.
    fn cannot(&self, what: &str) -> SandboxError {
        SandboxError::Unsupported { provider: self.name(), reason: format!("it does not {what}") }
    }
}

/// What a provider can do here and now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[expect(clippy::struct_excessive_bools, reason = "each is one answer to one question, shown as such")]
pub struct Capabilities {
    /// Such as `Docker 20.10.24 at unix:///run/docker.sock`.
    #[serde(skip)]
    pub description: String,
    #[serde(skip)]
    pub isolation: Isolation,
    pub memory_limit: bool,
    pub cpu_limit: bool,
    pub pids_limit: bool,
    /// `quota` is enforced by the engine; `watched` by looking and stopping the filler.
    pub disk_limit: DiskLimit,
    pub volumes: bool,
    pub ports: bool,
    pub networks: Vec<NetworkMode>,
    /// Whether streams can be attached anew to a sandbox that runs.
    pub reattach: bool,
    pub pull: bool,
    pub build: bool,
    /// Whether a sandbox's root is the user who runs the engine. If not, what it writes to a bind mount is root's, or somebody else's.
    #[serde(skip)]
    pub rootless: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum DiskLimit {
    Quota,
    Watched,
}

/// The provider's own name for a sandbox.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SandboxId(pub String);

impl fmt::Display for SandboxId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Whose sandbox it is. Written on it as labels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Which Cofer: several may share an engine.
    pub instance: String,
    /// Such as `mcp_server`.
    pub kind: String,
    pub id: Uuid,
    /// For people: part of the sandbox's name.
    pub name: String,
    /// Which attempt. Later attempts have larger numbers.
    pub run: u64,
}

/// What to run, and within which limits.
#[derive(Clone, Debug)]
pub struct SandboxSpec {
    pub owner: Owner,
    pub image: String,
    /// Instead of the image's own; it is then the first process itself, without an init of the engine's before it.
    pub entrypoint: Option<Vec<String>>,
    pub cmd: Option<Vec<String>>,
    /// Anybody who may ask the engine can read it.
    pub environment: Vec<(String, SecretString)>,
    pub user: Option<String>,
    pub workdir: Option<String>,
    pub volumes: Vec<VolumeMount>,
    pub binds: Vec<BindMount>,
    /// None: as much as there is.
    pub limits: Option<ResourceLimits>,
    pub rights: Rights,
    pub network: NetworkMode,
    /// Instead of the engine's own network, for [`NetworkMode::Egress`].
    pub network_name: Option<String>,
    /// What others on that network may call it.
    pub aliases: Vec<String>,
    pub ports: Vec<PortMapping>,
    pub stdio: Stdio,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stdio {
    /// Stdin and stdout are streams for us; stderr is the log.
    Bridged,
    /// No stdin; stdout and stderr are the log.
    LogOnly,
    /// Neither stdin nor a log: what it says is lost.
    None,
}

/// What a sandbox's root may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rights {
    /// Nothing that others may not: for programs of others.
    Dropped,
    /// What the engine gives by default, so that packages can be installed.
    Ordinary,
}

/// A directory or a file of this machine, and where it is seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BindMount {
    pub source: PathBuf,
    pub target: String,
    pub read_only: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Network {
    pub name: String,
    pub owner: Owner,
}

/// What an image says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImageAbout {
    pub id: String,
    pub entrypoint: Vec<String>,
    pub cmd: Vec<String>,
    /// Such as `PATH=/usr/bin`.
    pub environment: Vec<String>,
    /// Root, if it does not say.
    pub user: Option<String>,
    pub workdir: Option<String>,
}

/// A volume that outlives the sandbox, and where it is mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeMount {
    pub name: String,
    pub path: String,
    /// What is written on the volume when it is made: whose it is.
    pub owner: VolumeOwner,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeOwner {
    pub instance: String,
    pub project_id: Uuid,
    pub server: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Volume {
    pub name: String,
    pub path: String,
    pub owner: VolumeOwner,
    pub size_bytes: Option<u64>,
    /// Whether a sandbox has it.
    pub in_use: bool,
}

/// A sandbox that runs.
#[derive(Debug)]
pub struct Launched {
    pub id: SandboxId,
    /// For [`Stdio::Bridged`].
    pub streams: Option<Streams>,
    pub endpoints: Vec<Endpoint>,
    /// What could not be had, for the person who asked, such as a limit that this engine does not enforce.
    pub warnings: Vec<String>,
}

/// Its stdin and stdout. Stderr goes to the [`LogSink`] while stdout is read.
pub struct Streams {
    pub stdin: Box<dyn AsyncWrite + Send + Unpin>,
    pub stdout: Box<dyn AsyncRead + Send + Unpin>,
}

impl fmt::Debug for Streams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Streams").finish_non_exhaustive()
    }
}

/// Where a published port can be reached on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    pub container_port: u16,
    pub host_port: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogStream {
    Stdout,
    Stderr,
}

/// Takes what a sandbox says to its log, as it comes. Must not wait.
pub type LogSink = Arc<dyn Fn(LogStream, &[u8]) + Send + Sync>;

/// Takes what is being done, for whoever waits, such as `pulling: 3 of 7 layers`.
pub type ProgressSink = Arc<dyn Fn(String) + Send + Sync>;

/// A sandbox as it was seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sighting {
    pub id: SandboxId,
    pub owner: Owner,
    pub state: SandboxState,
    pub endpoints: Vec<Endpoint>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SandboxState {
    /// Made, and not started (yet).
    Made,
    Running {
        since: Moment,
    },
    Ended(Exit),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exit {
    pub code: Option<i64>,
    pub signal: Option<i64>,
    pub cause: ExitCause,
    pub at: Moment,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitCause {
    /// Its own doing, or somebody's signal.
    Itself,
    /// It wanted more memory than it may have.
    OutOfMemory,
    /// It wrote more than it may; we ended it.
    DiskLimit,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Usage {
    /// Since it started, in nanoseconds of one processor.
    pub cpu_nanos: u64,
    pub memory_bytes: u64,
    pub memory_limit_bytes: u64,
    pub pids: u64,
    /// Root filesystem and volumes together; `None` where nobody could tell.
    pub disk_bytes: Option<u64>,
}

/// How to make an image.
#[derive(Clone, Debug)]
pub struct ImageRecipe {
    /// Name and tag of the result.
    pub image: String,
    /// The image that it is made from; it must be there or be pulled.
    pub base: String,
    /// Path and content.
    pub files: Vec<(String, Vec<u8>)>,
}

/// Why a sandbox could not be had, or asked.
#[derive(Clone, Debug, thiserror::Error)]
pub enum SandboxError {
    /// Nobody answers, or not in time. It may be better later.
    #[error("{provider} is not available: {reason}")]
    Unavailable { provider: ProviderName, reason: String },
    #[error("image `{image}` is not there and could not be pulled: {reason}")]
    ImageMissing { image: String, reason: String },
    #[error("image `{image}` could not be built: {reason}")]
    BuildFailed { image: String, reason: String },
    /// The engine does not take what was asked for.
    #[error("{provider} refused: {reason}")]
    Refused { provider: ProviderName, reason: String },
    #[error("{provider} cannot do that: {reason}")]
    Unsupported { provider: ProviderName, reason: String },
    #[error("sandbox {id} is gone")]
    Gone { id: SandboxId },
    #[error("volume `{name}` is in use")]
    VolumeInUse { name: String },
    #[error("network `{name}` is in use")]
    NetworkInUse { name: String },
    #[error("image `{image}` was made, and could not be sent to its registry: {reason}")]
    NotPushed { image: String, reason: String },
    /// A command inside, which is not to be had: no such program, directory or user.
    #[error("the command was not started: {reason}")]
    NotStarted { reason: String },
}

impl SandboxError {
    /// The part of what was asked for that is to blame, where it is one.
    pub fn field(&self) -> Option<&'static str> {
        matches!(self, Self::ImageMissing { .. }).then_some("image")
    }

    pub fn kind(&self) -> Kind {
        match self {
            Self::Unavailable { .. } | Self::NotPushed { .. } => Kind::Unavailable,
            Self::ImageMissing { .. }
            | Self::BuildFailed { .. }
            | Self::Refused { .. }
            | Self::Unsupported { .. }
            | Self::NotStarted { .. } => Kind::Invalid,
            Self::Gone { .. } => Kind::NotFound,
            Self::VolumeInUse { .. } | Self::NetworkInUse { .. } => Kind::Conflict,
        }
    }
}
