//! The settings of hosted servers, decided.

use std::time::Duration;

use cofer_model::{NetworkMode, ProjectName, ProviderName};
use serde::Deserialize;
use uuid::Uuid;

use super::{Layer, SettingsError, text};

const DEFAULT_MESSAGE_BYTES_MAX: usize = 16 << 20;
const DEFAULT_CALL_QUEUE_MAX: usize = 256;
const DEFAULT_STOP_GRACE: Duration = Duration::from_secs(30);
const DEFAULT_NPX_BASE_IMAGE: &str = "node:22-slim";
const DEFAULT_UVX_BASE_IMAGE: &str = "python:3.13-slim";

/// What holds for every hosted server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostingSettings {
    pub enabled: bool,
    /// The mark on everything of ours in an engine; made once where none is given.
    pub instance: Option<String>,
    /// Tried before the others.
    pub default_provider: Option<ProviderName>,
    pub require_sandbox: bool,
    pub default_network: NetworkMode,
    /// The engine's network for servers that may reach the world.
    pub network_name: Option<String>,
    pub message_bytes_max: usize,
    pub call_queue_max: usize,
    pub stop_grace: Duration,
    pub crash_loop: CrashLoopSettings,
    pub npx_base_image: String,
    pub uvx_base_image: String,
}

/// `[crash_loop]` in the file, as it was written.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CrashLoopLayer {
    threshold: Option<usize>,
    window_ms: Option<u64>,
    delays_ms: Option<Vec<u64>>,
    stable_ms: Option<u64>,
}

/// When a server that keeps crashing is given a rest, and for how long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CrashLoopSettings {
    pub threshold: usize,
    pub window: Duration,
    pub delays: Vec<Duration>,
    pub stable: Duration,
}

impl CrashLoopSettings {
    fn decide(layer: CrashLoopLayer) -> Result<Self, SettingsError> {
        let ms = Duration::from_millis;
        let delays = layer.delays_ms.unwrap_or_else(|| vec![5_000, 15_000, 45_000, 120_000, 300_000]);
        let decided = Self {
            threshold: layer.threshold.unwrap_or(3),
            window: ms(layer.window_ms.unwrap_or(60_000)),
            delays: delays.into_iter().map(ms).collect(),
            stable: ms(layer.stable_ms.unwrap_or(60_000)),
        };
        match (decided.threshold, decided.delays.is_empty()) {
            (0, _) => Err(SettingsError::Zero("crash_loop.threshold")),
            (_, true) => Err(SettingsError::Zero("crash_loop.delays_ms")),
            _ => Ok(decided),
        }
    }
}

impl HostingSettings {
    pub(super) fn decide(flags: &Layer, file: &Layer) -> Result<Self, SettingsError> {
        let default_provider =
            word("default_provider", flags.default_provider.as_ref(), file.default_provider.as_ref())?;
        let default_network =
            word("default_network", flags.default_network.as_ref(), file.default_network.as_ref())?;
        let either = |flag: &Option<String>, file: &Option<String>| text(flag.clone(), file.clone());
        let decided = Self {
            enabled: flags.enable_agent_workspaces.or(file.enable_agent_workspaces).unwrap_or(true),
            instance: either(&flags.instance, &file.instance),
            default_provider,
            require_sandbox: flags.require_sandbox.or(file.require_sandbox).unwrap_or_default(),
            default_network: default_network.unwrap_or(NetworkMode::Egress),
            network_name: either(&flags.network_name, &file.network_name),
            message_bytes_max: flags
                .max_message_bytes
                .or(file.max_message_bytes)
                .unwrap_or(DEFAULT_MESSAGE_BYTES_MAX),
            call_queue_max: flags.call_queue_max.or(file.call_queue_max).unwrap_or(DEFAULT_CALL_QUEUE_MAX),
            stop_grace: flags
                .stop_grace_ms
                .or(file.stop_grace_ms)
                .map_or(DEFAULT_STOP_GRACE, Duration::from_millis),
            crash_loop: CrashLoopSettings::decide(file.crash_loop.clone().unwrap_or_default())?,
            npx_base_image: either(&flags.npx_base_image, &file.npx_base_image)
                .unwrap_or_else(|| DEFAULT_NPX_BASE_IMAGE.to_owned()),
            uvx_base_image: either(&flags.uvx_base_image, &file.uvx_base_image)
                .unwrap_or_else(|| DEFAULT_UVX_BASE_IMAGE.to_owned()),
        };
        // Engines take as a label's value what may be a project's name.
        let is_a_name =
            |name: &String| ProjectName::try_from(name.clone()).is_ok() || Uuid::try_parse(name).is_ok();
        if !decided.instance.as_ref().is_none_or(is_a_name) {
            return Err(SettingsError::Instance);
        }
        if decided.message_bytes_max == 0 {
            return Err(SettingsError::Zero("max_message_bytes"));
        }
        if decided.call_queue_max == 0 {
            return Err(SettingsError::Zero("call_queue_max"));
        }
        Ok(decided)
    }
}

/// One of a closed set, or a refusal that lists them.
fn word<T: std::str::FromStr<Err = cofer_model::UnknownWord>>(
    name: &'static str,
    flag: Option<&String>,
    file: Option<&String>,
) -> Result<Option<T>, SettingsError> {
    let given = text(flag.cloned(), file.cloned());
    given.map(|given| given.parse()).transpose().map_err(|source| SettingsError::Word { name, source })
}
