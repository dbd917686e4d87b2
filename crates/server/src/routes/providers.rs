//! `/api/v1/providers`: what sandboxes can be had here. `/api/v1/mcp/volumes`: what servers left and keep.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use cofer_model::{Isolation, Kind, ProjectName, ProviderName, Reference};
use cofer_sandbox::Capabilities;
use serde::Serialize;

use crate::app::App;
use crate::auth::{Reader, Writer};
use crate::http::ApiError;
use crate::http::error::Envelope;
use crate::http::extract::Path;

#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct ProviderStatus {
    name: ProviderName,
    available: bool,
    /// Why not.
    reason: Option<String>,
    isolation: Option<Isolation>,
    #[schema(value_type = Option<Object>)]
    capabilities: Option<Capabilities>,
}

/// Each way to run a sandbox: whether it can be used here, and what it can do.
#[utoipa::path(get, path = "/api/v1/providers", tag = "hosted servers", security(("bearer" = ["admin:read"])),
    responses((status = 200, body = [ProviderStatus]), (status = "default", body = Envelope)))]
pub async fn list(State(app): State<App>, Reader(_caller): Reader) -> Json<Vec<ProviderStatus>> {
    let report = app.hosting.providers().report().await;
    let status = |report: cofer_sandbox::ProviderReport| ProviderStatus {
        name: report.name,
        available: report.is_available(),
        reason: report.reason(),
        isolation: report.isolation(),
        capabilities: report.outcome.ok(),
    };
    Json(report.into_iter().map(status).collect())
}

#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct VolumeStatus {
    name: String,
    server: String,
    /// `null` when the project is gone.
    project: Option<ProjectName>,
    path: String,
    size_bytes: Option<u64>,
    /// Whether a server has it, or will when it starts.
    in_use: bool,
    provider: ProviderName,
}

/// All volumes of hosted servers, also of those that are gone.
#[utoipa::path(get, path = "/api/v1/mcp/volumes", tag = "hosted servers", security(("bearer" = ["admin:read"])),
    responses((status = 200, body = [VolumeStatus]), (status = "default", body = Envelope)))]
pub async fn volumes(
    State(app): State<App>,
    Reader(caller): Reader,
) -> Result<Json<Vec<VolumeStatus>>, ApiError> {
    let projects = app.store.projects().await?;
    let mut found = Vec::new();
    for (provider, volume) in app.hosting.volumes().await? {
        let project = projects.iter().find(|project| project.id.0 == volume.owner.project_id);
        if !caller.may_see(cofer_model::ProjectId(volume.owner.project_id)) {
            continue;
        }
        found.push(VolumeStatus {
            in_use: volume.in_use || app.hosting.claims_volume(&volume.name).is_some(),
            name: volume.name,
            server: volume.owner.server,
            project: project.map(|project| project.name.clone()),
            path: volume.path,
            size_bytes: volume.size_bytes,
            provider,
        });
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(Json(found))
}

/// Removes a volume that no server has.
#[utoipa::path(delete, path = "/api/v1/mcp/volumes/{name}", tag = "hosted servers", security(("bearer" = ["admin:write"])),
    params(("name" = String, Path, description = "The volume's name")),
    responses((status = 204), (status = "default", body = Envelope)))]
pub async fn remove_volume(
    State(app): State<App>,
    Writer(caller): Writer,
    Path(name): Path<String>,
) -> Result<StatusCode, ApiError> {
    let volumes = app.hosting.volumes().await?;
    let found = volumes.into_iter().find(|(_, volume)| {
        volume.name == name && caller.may_see(cofer_model::ProjectId(volume.owner.project_id))
    });
    let (provider, volume) =
        found.ok_or_else(|| ApiError::not_found("volume", &Reference::Name(name.clone())))?;
    if let Some(entry) = app.hosting.claims_volume(&name) {
        let message = format!(
            "volume `{name}` belongs to server `{}`; remove that first (`cofer server rm --volumes` removes both)",
            entry.planner.name
        );
        return Err(ApiError::new(Kind::Conflict, message));
    }
    app.hosting.providers().get(provider).remove_volume(&volume.name).await?;
    tracing::info!("volume {name} removed");
    Ok(StatusCode::NO_CONTENT)
}
