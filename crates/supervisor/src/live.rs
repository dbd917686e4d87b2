//! The run that is there now, for callers: who to speak to, and whom to ask about it.

use std::sync::Arc;

use cofer_mcp::Pump;
use cofer_sandbox::{Provider, SandboxId};
use tokio::time::Instant;

#[derive(Debug)]
pub(crate) struct Live {
    pub run: u64,
    pub provider: Arc<dyn Provider>,
    pub sandbox: SandboxId,
    /// None for a server that is spoken to over HTTP.
    pub pump: Option<Pump>,
    /// When it was launched, if that was by us.
    pub born_at: Option<Instant>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Stage {
    pub live: Option<Arc<Live>>,
    /// Whether it may be called; otherwise callers hear at once that it is not there.
    pub takes_calls: bool,
}
