//! The settings of environments as tools of every project and as something to read of, decided.

use std::path::PathBuf;

use super::Layer;
use super::gateway::is_loopback;

/// Who may make environments through the MCP endpoint, and of what.
#[derive(Clone, Debug, Default)]
pub struct EnvironmentSettings {
    /// Directories whose repositories may be a source. Without any, there are no tools of environments.
    pub sources: Vec<PathBuf>,
    /// Named, but not offered, because others than this machine could reach them.
    pub held_back: bool,
    /// Whether environments may be read of: nobody but this machine can ask, or the operator said that others may.
    pub shown: bool,
}

impl EnvironmentSettings {
    pub(super) fn decide(flags: &Layer, file: &Layer, listen: &str) -> Self {
        let named = if flags.environment_sources.is_empty() {
            &file.environment_sources
        } else {
            &flags.environment_sources
        };
        let exposed = flags.expose_environments.or(file.expose_environments).unwrap_or(false);
        let shown = exposed || is_loopback(listen);
        let held_back = !named.is_empty() && !shown;
        Self { sources: if held_back { Vec::new() } else { named.clone() }, held_back, shown }
    }
}
