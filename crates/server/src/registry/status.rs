//! What callers see of an external server.

use cofer_gateway::LiveState;
use cofer_model::{
    Circuit, ExternalConfig, ExternalServer, ExternalStatus, LoginState, Moment, ProductId, ProjectName,
    ServerId, ServerName, SessionMode, Transport,
};
use serde::Serialize;

#[derive(Clone, Debug, Serialize, utoipa::ToSchema)]
pub struct ExternalServerStatus {
    pub id: ServerId,
    pub name: ServerName,
    pub project: ProjectName,
    /// The product that brought it.
    pub product_id: Option<ProductId>,
    pub description: String,
    pub transport: Transport,
    /// As it was written; passwords that are no `${NAME}` are masked.
    #[schema(value_type = Object)]
    pub config: ExternalConfig,
    pub enabled: bool,
    pub session: SessionMode,
    pub status: ExternalStatus,
    pub last_error: Option<String>,
    /// `null` for a server that has not asked for a login.
    pub login: Option<LoginState>,
    pub circuit: Circuit,
    /// `null` before it was ever asked.
    pub tool_count: Option<u64>,
    pub protocol_version: Option<String>,
    pub created_at: Moment,
    pub updated_at: Moment,
}

impl ExternalServerStatus {
    /// `discovered` is how many tools are known from before.
    pub(crate) fn of(
        server: ExternalServer,
        project: &ProjectName,
        live: LiveState,
        login: Option<LoginState>,
        discovered: Option<u64>,
    ) -> Self {
        Self {
            id: server.id,
            name: server.name,
            project: project.clone(),
            product_id: server.product_id,
            description: server.description,
            transport: server.config.transport(),
            config: server.config.shown(),
            enabled: server.enabled,
            session: server.session,
            status: live.status,
            last_error: live.last_error,
            login,
            circuit: live.circuit,
            tool_count: live.tool_count.or(discovered),
            protocol_version: live.protocol_version,
            created_at: server.created_at,
            updated_at: server.updated_at,
        }
    }
}
