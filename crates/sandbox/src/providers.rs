//! All ways of running a sandbox, by name, and the choice among them.
//!
//! Who asks for one gets that one or the reason why not. Who asks for none gets the settings' favourite, else the strongest that is
//! available, in a fixed order; when none is, the error tells the reason of each.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use cofer_model::{Isolation, Kind, ProviderName};
use futures_util::stream::BoxStream;

use crate::connection::{EngineSettings, Variable};
use crate::containers::EngineProvider;
use crate::{
    Capabilities, ImageRecipe, Launched, LogSink, ProgressSink, Provider, SandboxError, SandboxId,
    SandboxSpec, Sighting, Streams, Usage, Volume,
};

/// Tried in this order when nobody asks for one: the strongest isolation first.
const ORDER: [ProviderName; 5] = [
    ProviderName::Gvisor,
    ProviderName::Firecracker,
    ProviderName::E2b,
    ProviderName::Docker,
    ProviderName::Podman,
];

/// Every provider there is. Clones share them.
#[derive(Clone, Debug)]
pub struct Providers {
    all: Arc<[Arc<dyn Provider>]>,
}

/// A provider that was chosen, and what it can do.
#[derive(Clone, Debug)]
pub struct Pick {
    pub provider: Arc<dyn Provider>,
    pub capabilities: Capabilities,
}

/// How one provider does.
#[derive(Clone, Debug)]
pub struct ProviderReport {
    pub name: ProviderName,
    /// What it can do, or why it is not available.
    pub outcome: Result<Capabilities, SandboxError>,
}

impl ProviderReport {
    pub fn is_available(&self) -> bool {
        self.outcome.is_ok()
    }

    pub fn reason(&self) -> Option<String> {
        self.outcome.as_ref().err().map(reason)
    }

    pub fn isolation(&self) -> Option<Isolation> {
        self.outcome.as_ref().ok().map(|capabilities| capabilities.isolation)
    }
}

/// Why no provider was had.
#[derive(Clone, Debug, thiserror::Error)]
pub enum PickError {
    #[error(transparent)]
    Asked(SandboxError),
    #[error("{provider} isolates with a plain container only, and `require_sandbox` asks for more")]
    TooWeak { provider: ProviderName },
    #[error("no provider is available: {}", Reasons(.0))]
    None(Vec<(ProviderName, String)>),
}

impl PickError {
    pub fn kind(&self) -> Kind {
        match self {
            Self::Asked(error) => error.kind(),
            Self::TooWeak { .. } => Kind::Invalid,
            Self::None(_) => Kind::Unavailable,
        }
    }
}

struct Reasons<'a>(&'a [(ProviderName, String)]);

impl fmt::Display for Reasons<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let each: Vec<_> = self.0.iter().map(|(name, reason)| format!("{name}: {reason}")).collect();
        f.write_str(&each.join("; "))
    }
}

/// The reason alone, where the name is told beside it.
fn reason(error: &SandboxError) -> String {
    match error {
        SandboxError::Unavailable { reason, .. }
        | SandboxError::Refused { reason, .. }
        | SandboxError::Unsupported { reason, .. } => reason.clone(),
        other => other.to_string(),
    }
}

impl Providers {
    pub fn new(settings: &EngineSettings, variable: &Variable) -> Self {
        let provider = |name: &ProviderName| -> Arc<dyn Provider> {
            let (settings, variable) = (settings.clone(), variable.clone());
            match name {
                ProviderName::Gvisor => Arc::new(EngineProvider::gvisor(settings, variable)),
                ProviderName::Docker => Arc::new(EngineProvider::docker(settings, variable)),
                ProviderName::Podman => Arc::new(EngineProvider::podman(settings, variable)),
                ProviderName::Firecracker => {
                    Arc::new(NotYet { name: *name, reason: "micro-VMs come with a later version" })
                }
                ProviderName::E2b => {
                    Arc::new(NotYet { name: *name, reason: "E2B's service comes with a later version" })
                }
                ProviderName::Kubernetes => {
                    Arc::new(NotYet { name: *name, reason: "clusters come with a later version" })
                }
            }
        };
        Self::of(ProviderName::ALL.iter().map(provider))
    }

    /// These, instead of the real ones: for tests of whoever uses them.
    pub fn of(all: impl IntoIterator<Item = Arc<dyn Provider>>) -> Self {
        Self { all: all.into_iter().collect() }
    }

    pub fn get(&self, name: ProviderName) -> Arc<dyn Provider> {
        let found = self.all.iter().find(|provider| provider.name() == name).cloned();
        found.unwrap_or_else(|| Arc::new(NotYet { name, reason: "it is not set up here" }))
    }

    /// How each does, all asked at once.
    pub async fn report(&self) -> Vec<ProviderReport> {
        let each = self.all.iter().map(|provider| async move {
            ProviderReport { name: provider.name(), outcome: provider.examine().await }
        });
        futures_util::future::join_all(each).await
    }

    /// The provider asked for, and no other; else the first that is available, the settings' favourite before the rest.
    pub async fn pick(
        &self,
        asked: Option<ProviderName>,
        default: Option<ProviderName>,
        require_sandbox: bool,
    ) -> Result<Pick, PickError> {
        if let Some(name) = asked {
            let pick = self.try_one(name).await.map_err(PickError::Asked)?;
            return if pick.is_strong_enough(require_sandbox) {
                Ok(pick)
            } else {
                Err(PickError::TooWeak { provider: name })
            };
        }
        let mut reasons = Vec::new();
        let rest = ORDER.into_iter().filter(|name| Some(*name) != default);
        for name in default.into_iter().chain(rest) {
            match self.try_one(name).await {
                Ok(pick) if pick.is_strong_enough(require_sandbox) => return Ok(pick),
                Ok(_) => reasons
                    .push((name, "it is a plain container, and `require_sandbox` asks for more".to_owned())),
                Err(error) => reasons.push((name, reason(&error))),
            }
        }
        Err(PickError::None(reasons))
    }

    async fn try_one(&self, name: ProviderName) -> Result<Pick, SandboxError> {
        let provider = self.get(name);
        let capabilities = provider.examine().await?;
        Ok(Pick { provider, capabilities })
    }
}

impl Pick {
    fn is_strong_enough(&self, require_sandbox: bool) -> bool {
        !require_sandbox || self.capabilities.isolation != Isolation::Container
    }
}

/// A provider that has a name and nothing more, so that asking for it is answered with a reason.
#[derive(Debug)]
struct NotYet {
    name: ProviderName,
    reason: &'static str,
}

impl NotYet {
    fn no<T>(&self) -> Result<T, SandboxError> {
        Err(SandboxError::Unavailable { provider: self.name, reason: self.reason.to_owned() })
    }
}

#[async_trait]
impl Provider for NotYet {
    fn name(&self) -> ProviderName {
        self.name
    }

    async fn examine(&self) -> Result<Capabilities, SandboxError> {
        self.no()
    }

    async fn fetch_image(&self, _: &str, _: ProgressSink) -> Result<(), SandboxError> {
        self.no()
    }

    async fn build_image(&self, _: &ImageRecipe, _: ProgressSink) -> Result<(), SandboxError> {
        self.no()
    }

    async fn launch(&self, _: &SandboxSpec, _: LogSink) -> Result<Launched, SandboxError> {
        self.no()
    }

    async fn attach(&self, _: &SandboxId, _: LogSink) -> Result<Streams, SandboxError> {
        self.no()
    }

    async fn look(&self, _: &SandboxId) -> Result<Option<Sighting>, SandboxError> {
        self.no()
    }

    async fn list(&self, _: &str) -> Result<Vec<Sighting>, SandboxError> {
        self.no()
    }

    async fn watch(&self, _: &str) -> Result<BoxStream<'static, SandboxId>, SandboxError> {
        self.no()
    }

    async fn stop(&self, _: &SandboxId, _: Duration) -> Result<(), SandboxError> {
        self.no()
    }

    async fn destroy(&self, _: &SandboxId) -> Result<(), SandboxError> {
        self.no()
    }

    async fn usage(&self, _: &SandboxId) -> Result<Usage, SandboxError> {
        self.no()
    }

    async fn volumes(&self, _: &str) -> Result<Vec<Volume>, SandboxError> {
        self.no()
    }

    async fn remove_volume(&self, _: &str) -> Result<(), SandboxError> {
        self.no()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nowhere() -> Providers {
        let settings = EngineSettings {
            docker_host: Some("unix:///nowhere/docker.sock".into()),
            podman_host: Some("unix:///nowhere/podman.sock".into()),
        };
        let variable: Variable = Arc::new(|_: &str| None);
        Providers::new(&settings, &variable)
    }

    #[tokio::test]
    async fn when_none_is_available_each_tells_its_reason() {
        let error = nowhere().pick(None, None, false).await.unwrap_err();
        let text = error.to_string();
        for part in [
            "gvisor: ",
            "firecracker: ",
            "e2b: ",
            "docker: Docker does not answer at unix:///nowhere/docker.sock",
            "podman: ",
        ] {
            assert!(text.contains(part), "{part} is not in {text}");
        }
        assert_eq!(error.kind(), Kind::Unavailable);
    }

    #[tokio::test]
    async fn one_that_was_asked_for_is_the_only_one_tried() {
        let error = nowhere()
            .pick(Some(ProviderName::Firecracker), Some(ProviderName::Docker), false)
            .await
            .unwrap_err();
        assert_eq!(error.to_string(), "firecracker is not available: micro-VMs come with a later version");
    }

    #[tokio::test]
    async fn the_settings_favourite_is_tried_first_and_the_others_after_it() {
        let error = nowhere().pick(None, Some(ProviderName::Podman), false).await.unwrap_err();
        let PickError::None(reasons) = error else { panic!("{error}") };
        let tried: Vec<_> = reasons.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(tried, ["podman", "gvisor", "firecracker", "e2b", "docker"]);
    }
}
