//! `/api/v1/projects/:project/mcp-servers`: servers that live elsewhere.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use cofer_model::{ExternalServer, ExternalStatus, Kind, LoginState, Moment, Project, Reference, ServerName};
use cofer_store::{ServerKind, StoreError};

use super::project;
use crate::app::App;
use crate::auth::{Reader, Writer};
use crate::http::ApiError;
use crate::http::error::Envelope;
use crate::http::extract::{Body, Path};
use crate::registry::{Change, ExternalServerStatus, Registration};

/// All external servers of a project, in the order of registration.
#[utoipa::path(get, path = "/api/v1/projects/{project}/mcp-servers", tag = "external servers",
    security(("bearer" = ["admin:read"])), params(("project" = String, Path, description = "Id or name")),
    responses((status = 200, body = [ExternalServerStatus]), (status = "default", body = Envelope)))]
pub async fn list(
    State(app): State<App>,
    Reader(caller): Reader,
    Path(reference): Path<String>,
) -> Result<Json<Vec<ExternalServerStatus>>, ApiError> {
    let project = project(&app, &caller, &reference).await?;
    let servers = app.store.external_servers(project.id).await?;
    Ok(Json(statuses(&app, &project, servers).await?))
}

/// Registers a server. Nothing is connected until somebody uses it.
#[utoipa::path(post, path = "/api/v1/projects/{project}/mcp-servers", tag = "external servers",
    security(("bearer" = ["admin:write"])), params(("project" = String, Path, description = "Id or name")),
    request_body = Registration,
    responses((status = 201, body = ExternalServerStatus), (status = "default", body = Envelope)))]
pub async fn register(
    State(app): State<App>,
    Writer(caller): Writer,
    Path(reference): Path<String>,
    Body(registration): Body<Registration>,
) -> Result<(StatusCode, Json<ExternalServerStatus>), ApiError> {
    let project = project(&app, &caller, &reference).await?;
    let new = registration.decide(project.id)?;
    let created = app.store.create_external_server(&new, Moment::now()).await;
    let id = created.map_err(|error| refused(error, &new.name, &project))?;
    app.registry_changed(project.id).await;
    tracing::info!(server.id = %id, "external server {} of project {} registered", new.name, project.name);
    let server = external(&app, &project, &Reference::Id(id.0)).await?;
    Ok((StatusCode::CREATED, Json(status(&app, &project, server).await?)))
}

/// One server.
#[utoipa::path(get, path = "/api/v1/projects/{project}/mcp-servers/{server}", tag = "external servers",
    security(("bearer" = ["admin:read"])),
    params(("project" = String, Path, description = "Id or name"), ("server" = String, Path, description = "Id or name")),
    responses((status = 200, body = ExternalServerStatus), (status = "default", body = Envelope)))]
pub async fn show(
    State(app): State<App>,
    Reader(caller): Reader,
    Path((reference, server)): Path<(String, String)>,
) -> Result<Json<ExternalServerStatus>, ApiError> {
    let project = project(&app, &caller, &reference).await?;
    let Ok(server) = server.parse();
    let server = external(&app, &project, &server).await?;
    Ok(Json(status(&app, &project, server).await?))
}

/// Changes a server. Whatever is connected is connected anew, at its next use, where that matters.
#[utoipa::path(patch, path = "/api/v1/projects/{project}/mcp-servers/{server}", tag = "external servers",
    security(("bearer" = ["admin:write"])),
    params(("project" = String, Path, description = "Id or name"), ("server" = String, Path, description = "Id or name")),
    request_body = Change,
    responses((status = 200, body = ExternalServerStatus), (status = "default", body = Envelope)))]
pub async fn change(
    State(app): State<App>,
    Writer(caller): Writer,
    Path((reference, server)): Path<(String, String)>,
    Body(change): Body<Change>,
) -> Result<Json<ExternalServerStatus>, ApiError> {
    let project = project(&app, &caller, &reference).await?;
    let Ok(server) = server.parse();
    let old = external(&app, &project, &server).await?;
    let name = change.name.clone().unwrap_or_else(|| old.name.clone());
    let change = change.decide(&old.config)?;
    let changed = app.store.change_external_server(old.id, &change, Moment::now()).await;
    if !changed.map_err(|error| refused(error, &name, &project))? {
        return Err(ApiError::not_found("server", &server));
    }
    app.registry_changed(project.id).await;
    let server = external(&app, &project, &Reference::Id(old.id.0)).await?;
    Ok(Json(status(&app, &project, server).await?))
}

/// Closes the connection to a server and forgets it with its tools.
#[utoipa::path(delete, path = "/api/v1/projects/{project}/mcp-servers/{server}", tag = "external servers",
    security(("bearer" = ["admin:write"])),
    params(("project" = String, Path, description = "Id or name"), ("server" = String, Path, description = "Id or name")),
    responses((status = 204), (status = "default", body = Envelope)))]
pub async fn remove(
    State(app): State<App>,
    Writer(caller): Writer,
    Path((reference, server)): Path<(String, String)>,
) -> Result<StatusCode, ApiError> {
    let project = project(&app, &caller, &reference).await?;
    let Ok(server) = server.parse();
    let found = external(&app, &project, &server).await?;
    if !app.store.delete_external_server(found.id).await? {
        return Err(ApiError::not_found("server", &server));
    }
    app.registry_changed(project.id).await;
    app.shelf.forget(found.id);
    app.logins.removed(found.id);
    tracing::info!(server.id = %found.id, "external server {} of project {} removed", found.name, project.name);
    Ok(StatusCode::NO_CONTENT)
}

/// The external server that a caller points at.
pub(super) async fn external(
    app: &App,
    project: &Project,
    reference: &Reference,
) -> Result<ExternalServer, ApiError> {
    if let Some(server) = app.store.external_server(project.id, reference).await? {
        return Ok(server);
    }
    let servers = app.store.registered_servers(project.id).await?;
    let hosted = servers.into_iter().find(|server| {
        server.kind == ServerKind::Hosted
            && match reference {
                Reference::Id(id) => server.id.0 == *id,
                Reference::Name(name) => server.name.as_str() == name,
            }
    });
    let not_here = |hosted: cofer_store::RegisteredServer| {
        let (name, id) = (hosted.name, hosted.id);
        let message = format!("server `{name}` is one that Cofer hosts; it is at /api/v1/mcp/hosted/{id}");
        ApiError::new(Kind::NotFound, message)
    };
    Err(hosted.map_or_else(|| ApiError::not_found("server", reference), not_here))
}

async fn status(
    app: &App,
    project: &Project,
    server: ExternalServer,
) -> Result<ExternalServerStatus, ApiError> {
    let mut statuses = statuses(app, project, vec![server]).await?;
    Ok(statuses.swap_remove(0))
}

async fn statuses(
    app: &App,
    project: &Project,
    servers: Vec<ExternalServer>,
) -> Result<Vec<ExternalServerStatus>, ApiError> {
    let discovered = app.store.tool_counts(project.id).await?;
    let logins = app.store.logins(project.id).await?;
    let status = |server: ExternalServer| {
        let (mut live, tools) =
            (app.gateway.state(project.id, server.id), discovered.get(&server.id).copied());
        let login = app.logins.state(server.id, logins.get(&server.id).copied());
        if login == Some(LoginState::Required) {
            // A connection that is open is of no use until somebody logs in.
            live.status = ExternalStatus::Error;
            live.last_error = Some(app.logins.words(server.id, server.name.as_str()));
        }
        ExternalServerStatus::of(server, &project.name, live, login, tools)
    };
    Ok(servers.into_iter().map(status).collect())
}

fn refused(error: StoreError, name: &ServerName, project: &Project) -> ApiError {
    if error.kind() != Kind::Conflict {
        return error.into();
    }
    let message = format!(
        "project {} has a server `{name}` already; choose another name, or remove that one",
        project.name
    );
    ApiError::new(Kind::Conflict, message).with("field", "name")
}
