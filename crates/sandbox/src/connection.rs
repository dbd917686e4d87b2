//! The way to an engine: found when it is needed, kept while it answers, found again when it went away.
//!
//! A failure is remembered for a moment only, so that many who ask at once do not each wait for the same deadline, and so that
//! an engine that comes back is used at once. That the engine is there is believed for a few seconds, what it said of itself for
//! longer: Podman asks the machine's package manager before it answers that. Every request has a deadline, because an engine that
//! hangs is as bad as one that is gone.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bollard::Docker;
use bollard::errors::Error;
use cofer_model::ProviderName;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::sync::Mutex;

use crate::SandboxError;
use crate::engine::{self, Engine, EngineKind};
use crate::plain;
use crate::sightings::{Inspected, Listed};

/// For requests that only ask.
pub(crate) const ANSWER_MAX: Duration = Duration::from_secs(10);
/// For requests that make, start, end or remove something: a busy engine takes its time.
pub(crate) const DEED_MAX: Duration = Duration::from_mins(1);

/// How long an engine may be in two minds about a container.
const PASSING_MAX: Duration = Duration::from_secs(5);
pub(crate) const ASK_AGAIN_AFTER: Duration = Duration::from_millis(20);
const FAILURE_REMEMBERED_FOR: Duration = Duration::from_millis(500);
const PRESENCE_BELIEVED_FOR: Duration = Duration::from_secs(3);
const DESCRIPTION_BELIEVED_FOR: Duration = Duration::from_mins(1);

/// Reads a variable of the environment, wherever that is.
pub type Variable = Arc<dyn Fn(&str) -> Option<String> + Send + Sync>;

/// Which engines serve a provider, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    Any(EngineKind),
    /// One that runs containers under gVisor.
    Gvisor,
}

/// Where the settings say the engines are.
#[derive(Clone, Debug, Default)]
pub struct EngineSettings {
    pub docker_host: Option<String>,
    pub podman_host: Option<String>,
}

impl EngineSettings {
    fn of(&self, kind: EngineKind) -> Option<&str> {
        match kind {
            EngineKind::Docker => self.docker_host.as_deref(),
            EngineKind::Podman => self.podman_host.as_deref(),
        }
    }
}

pub(crate) struct Connection {
    provider: ProviderName,
    need: Need,
    settings: EngineSettings,
    variable: Variable,
    known: Mutex<Known>,
}

enum Known {
    Nothing,
    Open { open: Open, described_at: Instant, present_at: Instant },
    Failed { reason: String, at: Instant },
}

/// An engine that answered, and the client to talk to it.
#[derive(Clone)]
pub(crate) struct Open {
    pub engine: Arc<Engine>,
    pub client: Docker,
    provider: ProviderName,
    /// Set when it did not answer: the next one who asks looks for it anew.
    silent: Arc<AtomicBool>,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("provider", &self.provider)
            .field("need", &self.need)
            .finish_non_exhaustive()
    }
}

impl Connection {
    pub fn new(provider: ProviderName, need: Need, settings: EngineSettings, variable: Variable) -> Self {
        Self { provider, need, settings, variable, known: Mutex::new(Known::Nothing) }
    }

    /// The engine as it was last known, or found now.
    pub async fn open(&self) -> Result<Open, SandboxError> {
        let mut known = self.known.lock().await;
        match &*known {
            Known::Open { open, .. } if open.answers() => Ok(open.clone()),
            Known::Failed { reason, at } if at.elapsed() < FAILURE_REMEMBERED_FOR => {
                Err(self.unavailable(reason))
            }
            _ => self.find(&mut known).await,
        }
    }

    /// The engine, asked again whether it is there, and what it is, if that was a while ago.
    pub async fn examine(&self) -> Result<Open, SandboxError> {
        let mut known = self.known.lock().await;
        if let Known::Open { open, present_at, .. } = &mut *known
            && open.answers()
            && present_at.elapsed() >= PRESENCE_BELIEVED_FOR
            && open.within(ANSWER_MAX, open.client.ping()).await.is_ok()
        {
            *present_at = Instant::now();
        }
        match &*known {
            Known::Open { open, described_at, present_at }
                if open.answers()
                    && described_at.elapsed() < DESCRIPTION_BELIEVED_FOR
                    && present_at.elapsed() < PRESENCE_BELIEVED_FOR =>
            {
                Ok(open.clone())
            }
            Known::Failed { reason, at } if at.elapsed() < FAILURE_REMEMBERED_FOR => {
                Err(self.unavailable(reason))
            }
            _ => self.find(&mut known).await,
        }
    }

    fn unavailable(&self, reason: &str) -> SandboxError {
        SandboxError::Unavailable { provider: self.provider, reason: reason.to_owned() }
    }

    async fn find(&self, known: &mut Known) -> Result<Open, SandboxError> {
        match self.look_everywhere().await {
            Ok(open) => {
                let now = Instant::now();
                *known = Known::Open { open: open.clone(), described_at: now, present_at: now };
                Ok(open)
            }
            Err(reason) => {
                let error = self.unavailable(&reason);
                *known = Known::Failed { reason, at: Instant::now() };
                Err(error)
            }
        }
    }

    async fn look_everywhere(&self) -> Result<Open, String> {
        match self.need {
            Need::Any(kind) => self.look(kind).await,
            Need::Gvisor => {
                let mut reasons = Vec::new();
                for kind in [EngineKind::Docker, EngineKind::Podman] {
                    match self.look(kind).await {
                        Ok(open) if open.engine.gvisor_runtime().is_some() => return Ok(open),
                        Ok(open) => reasons.push(no_gvisor(&open.engine)),
                        Err(reason) => reasons.push(reason),
                    }
                }
                Err(reasons.join("; "))
            }
        }
    }

    async fn look(&self, kind: EngineKind) -> Result<Open, String> {
        let found = engine::open(kind, self.settings.of(kind), |name| (self.variable)(name)).await;
        let (engine, client) = found.map_err(|none| none.to_string())?;
        Ok(Open { engine: Arc::new(engine), client, provider: self.provider, silent: Arc::default() })
    }
}

fn no_gvisor(engine: &Engine) -> String {
    let Engine { kind, version, endpoint, .. } = engine;
    match kind {
        EngineKind::Docker => {
            format!("{kind} {version} at {endpoint} has no gVisor runtime (`runsc install` registers it)")
        }
        EngineKind::Podman => format!(
            "{kind} {version} at {endpoint} does not run gVisor by default (`podman --runtime runsc system service` does)"
        ),
    }
}

/// What came of a request.
#[derive(Debug)]
pub(crate) enum EngineError {
    /// The engine said no.
    Answered { status: u16, message: String },
    /// The engine said nothing, or nothing that can be understood.
    Silent { reason: String },
}

impl EngineError {
    pub fn silent(error: &dyn std::error::Error) -> Self {
        Self::Silent { reason: chain(error) }
    }

    pub fn is_not_found(&self) -> bool {
        // Podman says it in words where somebody else was faster.
        let in_words = |message: &str| message.ends_with("no such container");
        matches!(self, Self::Answered { status, message } if *status == 404 || in_words(message))
    }

    pub fn is_conflict(&self) -> bool {
        matches!(self, Self::Answered { status: 409, .. })
    }

    /// Podman says such things of a container that is ending while it is asked; a moment later it knows better.
    pub fn is_passing(&self) -> bool {
        let in_words = |message: &str| {
            message.ends_with("no such process") || message.contains("container state improper")
        };
        matches!(self, Self::Answered { status: 500, message } if in_words(message))
    }

    pub fn message(&self) -> &str {
        match self {
            Self::Answered { message, .. } => message,
            Self::Silent { reason } => reason,
        }
    }

    pub fn of(self, provider: ProviderName) -> SandboxError {
        match self {
            Self::Answered { message, .. } => SandboxError::Refused { provider, reason: message },
            Self::Silent { reason } => SandboxError::Unavailable { provider, reason },
        }
    }
}

impl From<Error> for EngineError {
    fn from(error: Error) -> Self {
        match error {
            Error::DockerResponseServerError { status_code, message } => {
                Self::Answered { status: status_code, message: message.trim().to_owned() }
            }
            Error::DockerStreamError { error } => Self::Answered { status: 500, message: error },
            other => Self::Silent { reason: chain(&other) },
        }
    }
}

/// The whole story of a failure in one line: the outermost cause alone says only that the client failed.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}

/// The engine's reason, in its own words.
fn message(body: &[u8]) -> String {
    #[derive(Deserialize)]
    struct Told {
        message: String,
    }
    let told = serde_json::from_slice::<Told>(body).map(|told| told.message);
    told.unwrap_or_else(|_| String::from_utf8_lossy(body).trim().to_owned())
}

/// Whether an inspection also measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Measure {
    Nothing,
    Size,
}

impl Open {
    /// One request, within its deadline.
    pub async fn within<T>(
        &self,
        deadline: Duration,
        request: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, EngineError> {
        let outcome = match tokio::time::timeout(deadline, request).await {
            Ok(outcome) => outcome.map_err(EngineError::from),
            Err(_elapsed) => Err(EngineError::Silent {
                reason: format!("{} did not answer within {deadline:?}", self.engine.kind),
            }),
        };
        if matches!(outcome, Err(EngineError::Silent { .. })) {
            self.silent.store(true, Ordering::Relaxed);
        }
        outcome
    }

    /// What the engine tells of a container: with [`Measure::Size`], also what its writable layer holds, which takes the engine
    /// a while.
    pub async fn inspect(&self, id: &str, measure: Measure) -> Result<Inspected, EngineError> {
        let size = u8::from(measure == Measure::Size);
        self.get_when_it_can_be_told(&format!("/containers/{id}/json?size={size}")).await
    }

    /// All containers with these labels, whatever their state.
    pub async fn containers(&self, labels: &[String]) -> Result<Vec<Listed>, EngineError> {
        let filters = serde_json::json!({ "label": labels }).to_string();
        let path = format!("/containers/json?all=1&filters={}", plain::escaped(&filters));
        self.get_when_it_can_be_told(&path).await
    }

    /// Asks again what the engine cannot tell at this moment, such as of a container that is just ending.
    async fn get_when_it_can_be_told<T: DeserializeOwned>(&self, path: &str) -> Result<T, EngineError> {
        let deadline = Instant::now() + PASSING_MAX;
        loop {
            match self.get(path).await {
                Err(error) if error.is_passing() && Instant::now() < deadline => {
                    tokio::time::sleep(ASK_AGAIN_AFTER).await;
                }
                outcome => return outcome,
            }
        }
    }

    /// What each volume holds, by name; the engine walks them all.
    pub async fn volume_sizes(&self) -> Result<HashMap<String, u64>, EngineError> {
        #[derive(Deserialize)]
        #[serde(rename_all = "PascalCase")]
        struct DiskUsage {
            volumes: Option<Vec<VolumeUsage>>,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "PascalCase")]
        struct VolumeUsage {
            name: String,
            usage_data: Option<UsageData>,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "PascalCase")]
        struct UsageData {
            size: i64,
        }
        let usage: DiskUsage = self.get("/system/df").await?;
        let size = |volume: VolumeUsage| Some((volume.name, u64::try_from(volume.usage_data?.size).ok()?));
        Ok(usage.volumes.into_iter().flatten().filter_map(size).collect())
    }

    /// Asks for something whose shape is ours to read.
    async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, EngineError> {
        let version = self.client.client_version();
        let path = format!("/v{}.{}{path}", version.major_version, version.minor_version);
        let request = async { Ok(plain::get(&self.engine.endpoint, &path).await?) };
        let answer = self.within(ANSWER_MAX, request).await?;
        match answer.status {
            200 => serde_json::from_slice(&answer.after_head).map_err(|error| EngineError::silent(&error)),
            status => Err(EngineError::Answered { status, message: message(&answer.after_head) }),
        }
    }

    fn answers(&self) -> bool {
        !self.silent.load(Ordering::Relaxed)
    }

    /// A request's failure, as a sandbox's.
    pub fn failed(&self, error: EngineError) -> SandboxError {
        error.of(self.provider)
    }

    pub fn refused(&self, reason: impl Into<String>) -> SandboxError {
        SandboxError::Refused { provider: self.provider, reason: reason.into() }
    }

    pub fn unsupported(&self, reason: impl Into<String>) -> SandboxError {
        SandboxError::Unsupported { provider: self.provider, reason: reason.into() }
    }
}
