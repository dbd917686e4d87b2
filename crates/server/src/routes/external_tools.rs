//! `/api/v1/projects/:project/mcp-servers/:server/tools` and `…/refresh`: what a server offers, hosted ones included.

use axum::Json;
use axum::extract::State;
use cofer_model::{Project, Reference};
use cofer_store::RegisteredServer;
use serde::Deserialize;

use super::project;
use crate::app::App;
use crate::auth::{Reader, Writer};
use crate::http::ApiError;
use crate::http::error::Envelope;
use crate::http::extract::{Body, Path};
use crate::registry::ToolStatus;

#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ChangeTool {
    /// One that is switched off is offered to nobody.
    enabled: bool,
}

/// The tools that a server listed last, in its order.
#[utoipa::path(get, path = "/api/v1/projects/{project}/mcp-servers/{server}/tools", tag = "external servers",
    security(("bearer" = ["admin:read"])),
    params(("project" = String, Path, description = "Id or name"), ("server" = String, Path, description = "Id or name")),
    responses((status = 200, body = [ToolStatus]), (status = "default", body = Envelope)))]
pub async fn list(
    State(app): State<App>,
    Reader(caller): Reader,
    Path((reference, server)): Path<(String, String)>,
) -> Result<Json<Vec<ToolStatus>>, ApiError> {
    let project = project(&app, &caller, &reference).await?;
    let server = registered(&app, &project, &server).await?;
    app.gateway.found().await;
    Ok(Json(tools(&app, &server).await?))
}

/// Switches a tool on or off. It stays so when the server lists it again.
#[utoipa::path(patch, path = "/api/v1/projects/{project}/mcp-servers/{server}/tools/{name}", tag = "external servers",
    security(("bearer" = ["admin:write"])),
    params(("project" = String, Path, description = "Id or name"), ("server" = String, Path, description = "Id or name"),
        ("name" = String, Path, description = "The tool's, as its server has it")),
    request_body = ChangeTool,
    responses((status = 200, body = ToolStatus), (status = "default", body = Envelope)))]
pub async fn change(
    State(app): State<App>,
    Writer(caller): Writer,
    Path((reference, server, name)): Path<(String, String, String)>,
    Body(ChangeTool { enabled }): Body<ChangeTool>,
) -> Result<Json<ToolStatus>, ApiError> {
    let project = project(&app, &caller, &reference).await?;
    let server = registered(&app, &project, &server).await?;
    let no_such_tool = || ApiError::not_found("tool", &Reference::Name(name.clone()));
    app.gateway.found().await;
    if !app.store.set_tool_enabled(server.id, &name, enabled).await? {
        return Err(no_such_tool());
    }
    app.registry_changed(project.id).await;
    let found = tools(&app, &server).await?.into_iter().find(|tool| tool.name == name);
    found.map(Json).ok_or_else(no_such_tool)
}

/// Connects to a server now and lists its tools anew.
#[utoipa::path(post, path = "/api/v1/projects/{project}/mcp-servers/{server}/refresh", tag = "external servers",
    security(("bearer" = ["admin:write"])),
    params(("project" = String, Path, description = "Id or name"), ("server" = String, Path, description = "Id or name")),
    responses((status = 200, body = [ToolStatus]), (status = "default", body = Envelope)))]
pub async fn refresh(
    State(app): State<App>,
    Writer(caller): Writer,
    Path((reference, server)): Path<(String, String)>,
) -> Result<Json<Vec<ToolStatus>>, ApiError> {
    let project = project(&app, &caller, &reference).await?;
    let server = registered(&app, &project, &server).await?;
    app.gateway.refresh(project.id, server.id).await?;
    Ok(Json(tools(&app, &server).await?))
}

/// The server that a caller points at, hosted or external.
async fn registered(app: &App, project: &Project, text: &str) -> Result<RegisteredServer, ApiError> {
    let Ok(reference) = text.parse::<Reference>();
    let is_it = |server: &RegisteredServer| match &reference {
        Reference::Id(id) => server.id.0 == *id,
        Reference::Name(name) => server.name.as_str() == name,
    };
    let found = app.store.registered_servers(project.id).await?.into_iter().find(is_it);
    found.ok_or_else(|| ApiError::not_found("server", &reference))
}

async fn tools(app: &App, server: &RegisteredServer) -> Result<Vec<ToolStatus>, ApiError> {
    let tools = app.store.tools_of_server(server.id).await?;
    Ok(tools.into_iter().map(|tool| ToolStatus::of(tool, &server.name)).collect())
}
