//! What a start needs, drawn up anew for each: secrets may have changed since, and so may the engines.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use cofer_model::{Isolation, Kind, LastExit, Mask, Moment, RestartPolicy};
use cofer_sandbox::{Provider, SandboxId, SandboxSpec};
use serde::{Deserialize, Serialize};

/// Draws up the plan. Owned by whoever knows the configuration.
#[async_trait]
pub trait Planner: fmt::Debug + Send + Sync {
    /// For this attempt. Resolves secrets, picks the provider, and answers within seconds.
    async fn plan(&self, run: u64) -> Result<Plan, PlanError>;
}

/// Everything about one start.
#[derive(Clone, Debug)]
pub struct Plan {
    pub provider: Arc<dyn Provider>,
    pub isolation: Isolation,
    pub spec: SandboxSpec,
    /// Hides the secrets of this server in what it says.
    pub mask: Arc<Mask>,
    pub restart_policy: RestartPolicy,
    pub bridge: Bridge,
    pub health_interval: Duration,
    /// Said in the history when it starts, such as that there is no sandbox but a plain container.
    pub warnings: Vec<String>,
}

/// How the server is spoken to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Bridge {
    /// JSON-RPC, a line each, over its stdin and stdout.
    Stdio { in_flight_max: usize, queue_max: usize, message_bytes_max: usize },
    /// By its clients, over HTTP; we only look whether it lives, at this path.
    Http { path: String },
}

/// Why there can be no start now.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub struct PlanError {
    /// [`Kind::Unavailable`] is tried again soon; anything else waits for a person, or the slow clock.
    pub kind: Kind,
    /// For the person who reads the status.
    pub message: String,
}

/// What is remembered of a server from an earlier life of Cofer.
///
/// A launch that was under way when Cofer was killed may have left a sandbox that nobody remembers. It carries its owner's labels: a
/// new launch replaces it, and otherwise whoever lists sandboxes destroys those that are in nobody's memory or truth.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    /// Attempts so far: later ones have larger numbers.
    pub runs: u64,
    pub restart_count: u64,
    pub last_crash: Option<Moment>,
    pub last_exit: Option<LastExit>,
    /// The sandbox that was there when it was last heard of ([`Truth::sandbox`](crate::Truth::sandbox)). It is taken over, or destroyed.
    pub sandbox: Option<Adoptable>,
}

/// A sandbox that may be taken over, with what was learnt when it was greeted: it is not greeted twice.
#[derive(Clone, Debug)]
pub struct Adoptable {
    /// Whose it is: the plan may choose another provider today, and then this one is asked to destroy it.
    pub provider: Arc<dyn Provider>,
    pub id: SandboxId,
    pub run: u64,
    /// Only one that has been greeted is taken over, because it is not greeted again.
    pub greeted: bool,
    pub facts: Facts,
}

/// What a server said of itself.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Facts {
    pub protocol_version: Option<String>,
    pub server_info: Option<serde_json::Value>,
    pub tool_count: Option<u64>,
}
