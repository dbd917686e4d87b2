//! `/api/v1/mcp/hosted` (and `/api/v1/mcp/servers`, the same): servers that Cofer runs.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use cofer_model::{HostedConfig, HostedEvent, Project, ProjectId, Reference, ServerName, Wanted};
use cofer_store::RecordedEvent;
use serde::Deserialize;
use uuid::Uuid;

use crate::app::App;
use crate::auth::{Caller, Reader, Writer};
use crate::hosting::{Change, Entry, Making, Outcome, Registration, ServerStatus};
use crate::http::ApiError;
use crate::http::error::Envelope;
use crate::http::extract::{Body, Path, Query};
use crate::http::paging::Limit;

/// Which project a server's name is looked for in.
#[derive(Debug, Default, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct InProject {
    /// Id or name; default the token's project, else `default`. Not needed with an id.
    #[param(value_type = Option<String>)]
    project: Option<Reference>,
}

impl InProject {
    pub(super) fn project(&self) -> Option<&Reference> {
        self.project.as_ref()
    }
}

/// The server in a path, as this caller may know it.
pub(super) async fn server(
    app: &App,
    caller: &Caller,
    project: Option<&Reference>,
    text: &str,
) -> Result<Arc<Entry>, ApiError> {
    let Ok(reference) = text.parse::<Reference>();
    let project = project_id(app, caller, project).await?;
    let found =
        app.hosting.find(project, &reference).filter(|entry| caller.may_see(entry.planner.project_id));
    found.ok_or_else(|| ApiError::not_found("server", &reference))
}

async fn project_id(
    app: &App,
    caller: &Caller,
    named: Option<&Reference>,
) -> Result<Option<ProjectId>, ApiError> {
    match named {
        Some(reference) => Ok(Some(caller.project(&app.store, reference).await?.id)),
        None => Ok(caller.confined_to()),
    }
}

async fn status_of(app: &App, entry: Arc<Entry>) -> Json<ServerStatus> {
    let mut statuses = app.hosting.statuses(vec![entry]).await;
    Json(statuses.swap_remove(0))
}

/// All hosted servers that the token may see, in the order of registration.
#[utoipa::path(get, path = "", tag = "hosted servers", security(("bearer" = ["admin:read"])), params(InProject),
    responses((status = 200, body = [ServerStatus]), (status = "default", body = Envelope)))]
pub async fn list(
    State(app): State<App>,
    Reader(caller): Reader,
    Query(which): Query<InProject>,
) -> Result<Json<Vec<ServerStatus>>, ApiError> {
    let project = project_id(&app, &caller, which.project.as_ref()).await?;
    let mut entries = app.hosting.all();
    entries.retain(|entry| {
        caller.may_see(entry.planner.project_id)
            && project.is_none_or(|only| only == entry.planner.project_id)
    });
    Ok(Json(app.hosting.statuses(entries).await))
}

/// Registers a server and starts it.
#[utoipa::path(post, path = "", tag = "hosted servers", security(("bearer" = ["admin:write"])),
    request_body = Registration,
    responses((status = 201, body = ServerStatus), (status = "default", body = Envelope)))]
pub async fn register(
    State(app): State<App>,
    Writer(caller): Writer,
    Body(registration): Body<Registration>,
) -> Result<(StatusCode, Json<ServerStatus>), ApiError> {
    let (project, name, config) = decided(&app, &caller, registration).await?;
    let entry = app.hosting.register(&project, name, config).await?;
    app.registry_changed(project.id).await;
    Ok((StatusCode::CREATED, status_of(&app, entry).await))
}

/// Where it is to be, what it is called, and what it is, with everything decided that was left open.
async fn decided(
    app: &App,
    caller: &Caller,
    registration: Registration,
) -> Result<(Project, ServerName, HostedConfig), ApiError> {
    let named = registration.project.clone().or_else(|| Some(Reference::Id(caller.confined_to()?.0)));
    let default = || Reference::Name(cofer_model::project::DEFAULT_PROJECT.to_owned());
    let project = caller.project(&app.store, &named.unwrap_or_else(default)).await?;
    let name = registration.name.clone();
    let config = registration.decide(app.hosting.settings().default_network)?;
    Ok((project, name, config))
}

#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct MakingSo {
    /// Tells what would be done, and does nothing.
    #[serde(default)]
    dry_run: bool,
}

/// Makes a server what is said here, whatever it was: registers it, changes it, or does nothing where it is so already.
#[utoipa::path(put, path = "/{server}", tag = "hosted servers", security(("bearer" = ["admin:write"])),
    params(("server" = String, Path, description = "Its name, as in the body"), MakingSo), request_body = Registration,
    responses((status = 200, body = Outcome), (status = 201, body = Outcome), (status = "default", body = Envelope)))]
pub async fn make_so(
    State(app): State<App>,
    Writer(caller): Writer,
    Path(path_name): Path<String>,
    Query(MakingSo { dry_run }): Query<MakingSo>,
    Body(registration): Body<Registration>,
) -> Result<(StatusCode, Json<Outcome>), ApiError> {
    let (project, name, config) = decided(&app, &caller, registration).await?;
    if path_name != name.as_str() {
        return Err(ApiError::invalid("name", "the body names another server than the path"));
    }
    let project_id = project.id;
    let making = Making::find(&app.hosting, project, name, config);
    let ((action, fields), before) = (making.told(), making.entry());
    let is_new = before.is_none() && !dry_run;
    let entry = if dry_run { before } else { Some(making.make(&app.hosting).await?) };
    if is_new {
        app.registry_changed(project_id).await;
    }
    let server = match entry {
        Some(entry) => Some(status_of(&app, entry).await.0),
        None => None,
    };
    let status = if is_new { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, Json(Outcome { action, fields, server })))
}

/// One server.
#[utoipa::path(get, path = "/{server}", tag = "hosted servers", security(("bearer" = ["admin:read"])),
    params(("server" = String, Path, description = "Id or name"), InProject),
    responses((status = 200, body = ServerStatus), (status = "default", body = Envelope)))]
pub async fn show(
    State(app): State<App>,
    Reader(caller): Reader,
    Path(reference): Path<String>,
    Query(which): Query<InProject>,
) -> Result<Json<ServerStatus>, ApiError> {
    let entry = server(&app, &caller, which.project.as_ref(), &reference).await?;
    Ok(status_of(&app, entry).await)
}

/// Changes its configuration, which takes effect in a new container.
#[utoipa::path(patch, path = "/{server}", tag = "hosted servers", security(("bearer" = ["admin:write"])),
    params(("server" = String, Path, description = "Id or name"), InProject), request_body = Change,
    responses((status = 200, body = ServerStatus), (status = "default", body = Envelope)))]
pub async fn change(
    State(app): State<App>,
    Writer(caller): Writer,
    Path(reference): Path<String>,
    Query(which): Query<InProject>,
    Body(change): Body<Change>,
) -> Result<Json<ServerStatus>, ApiError> {
    let entry = server(&app, &caller, which.project.as_ref(), &reference).await?;
    app.hosting.change(&entry, change).await?;
    Ok(status_of(&app, entry).await)
}

/// Ends it with SIGTERM (SIGKILL after ten seconds) and starts it in a new container. Forgets its crashes.
#[utoipa::path(post, path = "/{server}/restart", tag = "hosted servers", security(("bearer" = ["admin:write"])),
    params(("server" = String, Path, description = "Id or name"), InProject),
    responses((status = 200, body = ServerStatus), (status = "default", body = Envelope)))]
pub async fn restart(
    State(app): State<App>,
    Writer(caller): Writer,
    Path(reference): Path<String>,
    Query(which): Query<InProject>,
) -> Result<Json<ServerStatus>, ApiError> {
    let entry = server(&app, &caller, which.project.as_ref(), &reference).await?;
    app.hosting.restart(&entry).await?;
    Ok(status_of(&app, entry).await)
}

/// Stops it until it is started again, also over restarts of Cofer.
#[utoipa::path(post, path = "/{server}/stop", tag = "hosted servers", security(("bearer" = ["admin:write"])),
    params(("server" = String, Path, description = "Id or name"), InProject),
    responses((status = 200, body = ServerStatus), (status = "default", body = Envelope)))]
pub async fn stop(
    State(app): State<App>,
    Writer(caller): Writer,
    Path(reference): Path<String>,
    Query(which): Query<InProject>,
) -> Result<Json<ServerStatus>, ApiError> {
    let entry = server(&app, &caller, which.project.as_ref(), &reference).await?;
    app.hosting.want(&entry, Wanted::Stopped).await?;
    Ok(status_of(&app, entry).await)
}

/// Starts one that was stopped.
#[utoipa::path(post, path = "/{server}/start", tag = "hosted servers", security(("bearer" = ["admin:write"])),
    params(("server" = String, Path, description = "Id or name"), InProject),
    responses((status = 200, body = ServerStatus), (status = "default", body = Envelope)))]
pub async fn start(
    State(app): State<App>,
    Writer(caller): Writer,
    Path(reference): Path<String>,
    Query(which): Query<InProject>,
) -> Result<Json<ServerStatus>, ApiError> {
    let entry = server(&app, &caller, which.project.as_ref(), &reference).await?;
    app.hosting.start(&entry).await?;
    Ok(status_of(&app, entry).await)
}

#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct Removal {
    /// Removes its volumes, too.
    #[serde(default)]
    delete_volumes: bool,
    /// Id or name.
    #[param(value_type = Option<String>)]
    project: Option<Reference>,
}

/// Ends a server and forgets it. Its volumes stay unless asked for.
#[utoipa::path(delete, path = "/{server}", tag = "hosted servers", security(("bearer" = ["admin:write"])),
    params(("server" = String, Path, description = "Id or name"), Removal),
    responses((status = 204), (status = "default", body = Envelope)))]
pub async fn remove(
    State(app): State<App>,
    Writer(caller): Writer,
    Path(reference): Path<String>,
    Query(removal): Query<Removal>,
) -> Result<StatusCode, ApiError> {
    let entry = server(&app, &caller, removal.project.as_ref(), &reference).await?;
    app.hosting.remove(&entry).await?;
    app.registry_changed(entry.planner.project_id).await;
    if removal.delete_volumes {
        app.hosting.remove_volumes_of(&entry).await?;
    }
    tracing::info!(server.id = %entry.planner.id, "server {} removed", entry.planner.name);
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct Page {
    /// At most so many.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u32>,
    /// Where the page before ended: its `X-Next-Cursor`.
    cursor: Option<Uuid>,
    /// Id or name.
    #[param(value_type = Option<String>)]
    project: Option<Reference>,
}

/// What happened to it, newest first.
#[utoipa::path(get, path = "/{server}/events", tag = "hosted servers", security(("bearer" = ["admin:read"])),
    params(("server" = String, Path, description = "Id or name"), Page),
    responses((status = 200, body = [HostedEvent], headers(("X-Next-Cursor" = String, description = "Where the next page begins; missing on the last"))),
        (status = "default", body = Envelope)))]
pub async fn events(
    State(app): State<App>,
    Reader(caller): Reader,
    Path(reference): Path<String>,
    Query(page): Query<Page>,
) -> Result<Response, ApiError> {
    let entry = server(&app, &caller, page.project.as_ref(), &reference).await?;
    let limit = Limit::of(page.limit)?;
    let found = app.hosting.events(entry.planner.id, page.cursor, limit.and_one_more()).await?;
    Ok(limit.page(found, |last| last.id.to_string(), |RecordedEvent { event, .. }| event))
}
