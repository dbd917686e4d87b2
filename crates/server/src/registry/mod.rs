//! The registry: external servers as people register, change and look at them.
//!
//! ```text
//!   routes ─► request (the rules) ─► rows ──────┐
//!      │                                        ├─► status (what callers see)
//!      └────► Connections (what is so now) ─────┘
//! ```
//!
//! A row says what is wanted. Who connects, and how that goes, is behind [`Connections`]: rows are written first, and whoever is
//! connected hears of it after.

mod request;
mod status;
mod tool;

use std::fmt;

use async_trait::async_trait;
use cofer_model::{Circuit, ExternalStatus, Kind, ProjectId, ServerId};

use crate::http::ApiError;
pub(crate) use request::check_config;
pub use request::{Change, Registration};
pub use status::ExternalServerStatus;
pub use tool::ToolStatus;

/// How the connection to one server does right now.
#[derive(Clone, Debug, PartialEq)]
pub struct LiveState {
    pub status: ExternalStatus,
    /// Why it is not connected, in words for people and without secrets.
    pub last_error: Option<String>,
    pub circuit: Circuit,
    /// `None` where it never said; then what was discovered before counts.
    pub tool_count: Option<u64>,
    pub protocol_version: Option<String>,
}

impl LiveState {
    /// Nobody has asked for it yet.
    pub const fn idle() -> Self {
        Self {
            status: ExternalStatus::Idle,
            last_error: None,
            circuit: Circuit::closed(),
            tool_count: None,
            protocol_version: None,
        }
    }
}

/// Why a server could not be connected to and asked for its tools, in words for people.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct RefreshError {
    pub kind: Kind,
    pub message: String,
}

impl From<RefreshError> for ApiError {
    fn from(error: RefreshError) -> Self {
        Self::new(error.kind, error.message)
    }
}

/// Whoever holds the connections to servers. Asking never connects; only `refresh` does.
#[async_trait]
pub trait Connections: fmt::Debug + Send + Sync {
    fn state(&self, project: ProjectId, server: ServerId) -> LiveState;

    /// Connects now, whatever the breaker says, and lists the tools anew, which are in the store when this comes back.
    async fn refresh(&self, project: ProjectId, server: ServerId) -> Result<(), RefreshError>;

    /// The row of this server, or one of its tools, is not what it was, or is gone.
    /// Known to whoever holds the connections when this comes back.
    async fn changed(&self, project: ProjectId, server: ServerId);

    /// The project has other settings, or is gone with all its servers.
    async fn project_changed(&self, project: ProjectId);
}
