//! What is so: published on a `watch` after every change, and read by whoever asks.

use cofer_model::{ContainerStatus, HostedStatus, Isolation, LastExit, Moment, ProviderName};
use cofer_sandbox::{Endpoint, SandboxId};

use crate::plan::Facts;

#[derive(Clone, Debug, PartialEq)]
pub struct Truth {
    /// How many commands have been taken in. Whoever gave one waits for a truth that has seen it.
    pub seen: u64,
    pub status: HostedStatus,
    /// Why, where that is not plain from the status: the engine's reason, the crash, the missing secret.
    pub reason: Option<String>,
    /// What is being done, for whoever waits: `pulling image: 3 of 7 layers`.
    pub progress: Option<String>,
    pub container_status: ContainerStatus,
    pub run: u64,
    /// What there is of it, from its launch until it is destroyed: to be remembered, so that the next life finds it.
    pub sandbox: Option<SandboxId>,
    /// Whose that is.
    pub provider: Option<ProviderName>,
    /// Whether hands were shaken with it, or as good as.
    pub greeted: bool,
    pub isolation: Option<Isolation>,
    pub bridge_connected: bool,
    /// Since when this sandbox runs.
    pub running_since: Option<Moment>,
    pub restart_count: u64,
    pub last_crash: Option<Moment>,
    pub last_exit: Option<LastExit>,
    pub crash_loop: CrashLoop,
    /// When it is tried again by itself: after a crash, or after a start that failed.
    pub next_try: Option<std::time::Instant>,
    pub endpoints: Vec<Endpoint>,
    pub facts: Facts,
    /// The last start failed for a reason that trying again does not help: why.
    pub start_failure: Option<StartFailure>,
    /// It was told to go, and nothing of it is left.
    pub gone: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CrashLoop {
    pub active: bool,
    /// How many delays have been taken; 0 outside of a crash loop.
    pub step: usize,
    pub next_restart_at: Option<Moment>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StartFailure {
    pub kind: cofer_model::Kind,
    pub message: String,
    /// The part of its registration that is to blame, where it is one.
    pub field: Option<&'static str>,
}

impl StartFailure {
    pub(crate) fn new(kind: cofer_model::Kind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), field: None }
    }
}
