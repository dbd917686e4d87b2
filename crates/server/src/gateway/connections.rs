//! The registry's view of the gateway: how each server stands, and who is told when a row changes.

use std::sync::Arc;

use async_trait::async_trait;
use cofer_gateway::Gateway;
use cofer_model::{ProjectId, ServerId};

use crate::registry::{Connections, LiveState, RefreshError};

#[derive(Debug)]
pub(super) struct Connected(pub Arc<Gateway>);

#[async_trait]
impl Connections for Connected {
    fn state(&self, project: ProjectId, server: ServerId) -> LiveState {
        let Some(state) = self.0.state(project, server) else { return LiveState::idle() };
        LiveState {
            status: state.status,
            last_error: state.last_error,
            circuit: state.circuit,
            tool_count: state.tool_count,
            protocol_version: state.protocol_version,
        }
    }

    async fn refresh(&self, project: ProjectId, server: ServerId) -> Result<(), RefreshError> {
        let refreshed = self.0.refresh(project, server).await;
        refreshed.map_err(|failed| RefreshError { kind: failed.kind, message: failed.message })
    }

    async fn changed(&self, project: ProjectId, _server: ServerId) {
        self.project_changed(project).await;
    }

    /// The gateway looks for itself what has become of it.
    async fn project_changed(&self, project: ProjectId) {
        if let Err(error) = self.0.changed(project).await {
            tracing::warn!(%project, "what changed in project {project} is not known to the gateway yet: {error}");
        }
    }
}
