//! `/api/v1/projects`: the tenants.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use cofer_model::{Kind, Moment, Namespacing, Project, ProjectName};
use cofer_store::{NewProject, ProjectChange};
use serde::Deserialize;

use super::project;
use crate::app::App;
use crate::auth::{Reader, Writer};
use crate::http::ApiError;
use crate::http::error::Envelope;
use crate::http::extract::{Body, Path};

const DESCRIPTION_CHARS_MAX: usize = 4096;

#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateProject {
    name: ProjectName,
    #[serde(default)]
    #[schema(max_length = 4096, pattern = r"^[^\x00]*$")]
    description: String,
    #[serde(default)]
    namespacing: Namespacing,
    #[serde(default)]
    repeat_safe_calls: bool,
}

/// What is not named stays as it is.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ChangeProject {
    name: Option<ProjectName>,
    #[schema(max_length = 4096, pattern = r"^[^\x00]*$")]
    description: Option<String>,
    namespacing: Option<Namespacing>,
    repeat_safe_calls: Option<bool>,
}

/// All projects that the token may see.
#[utoipa::path(get, path = "/api/v1/projects", tag = "projects", security(("bearer" = ["admin:read"])),
    responses((status = 200, body = [Project]), (status = "default", body = Envelope)))]
pub async fn list(State(app): State<App>, Reader(caller): Reader) -> Result<Json<Vec<Project>>, ApiError> {
    let mut projects = app.store.projects().await?;
    projects.retain(|project| caller.may_see(project.id));
    Ok(Json(projects))
}

/// Makes a project. Needs a token for all projects.
#[utoipa::path(post, path = "/api/v1/projects", tag = "projects", security(("bearer" = ["admin:write"])),
    request_body = CreateProject,
    responses((status = 201, body = Project), (status = "default", body = Envelope)))]
pub async fn create(
    State(app): State<App>,
    Writer(caller): Writer,
    Body(new): Body<CreateProject>,
) -> Result<(StatusCode, Json<Project>), ApiError> {
    caller.require_all_projects()?;
    check_description(&new.description)?;
    let CreateProject { name, description, namespacing, repeat_safe_calls } = new;
    let new = NewProject { name, description, namespacing, repeat_safe_calls };
    let project =
        app.store.create_project(&new, Moment::now()).await.map_err(|error| match error.kind() {
            Kind::Conflict => name_taken(&new.name),
            _ => error.into(),
        })?;
    tracing::info!(project.id = %project.id, "project {} created", project.name);
    Ok((StatusCode::CREATED, Json(project)))
}

/// One project.
#[utoipa::path(get, path = "/api/v1/projects/{project}", tag = "projects", security(("bearer" = ["admin:read"])),
    params(("project" = String, Path, description = "Id or name")),
    responses((status = 200, body = Project), (status = "default", body = Envelope)))]
pub async fn show(
    State(app): State<App>,
    Reader(caller): Reader,
    Path(reference): Path<String>,
) -> Result<Json<Project>, ApiError> {
    Ok(Json(project(&app, &caller, &reference).await?))
}

/// Changes a project's name, description or settings.
#[utoipa::path(patch, path = "/api/v1/projects/{project}", tag = "projects", security(("bearer" = ["admin:write"])),
    params(("project" = String, Path, description = "Id or name")), request_body = ChangeProject,
    responses((status = 200, body = Project), (status = "default", body = Envelope)))]
pub async fn change(
    State(app): State<App>,
    Writer(caller): Writer,
    Path(reference): Path<String>,
    Body(change): Body<ChangeProject>,
) -> Result<Json<Project>, ApiError> {
    let current = project(&app, &caller, &reference).await?;
    let renamed = change.name.as_ref().is_some_and(|name| *name != current.name);
    if current.is_default() && renamed {
        return Err(ApiError::new(Kind::Conflict, "the project `default` always exists and keeps its name"));
    }
    change.description.as_deref().map_or(Ok(()), check_description)?;
    let ChangeProject { name, description, namespacing, repeat_safe_calls } = change;
    let change = ProjectChange { name, description, namespacing, repeat_safe_calls };
    let changed = app.store.change_project(current.id, &change, Moment::now()).await;
    app.doorkeeper.forget();
    app.hosting.rows_may_have_changed();
    let changed = changed.map_err(|error| match (error.kind(), &change.name) {
        (Kind::Conflict, Some(name)) => name_taken(name),
        _ => error.into(),
    })?;
    app.registry_changed(current.id).await;
    Ok(Json(changed.ok_or_else(|| gone(&reference))?))
}

/// Removes a project with its servers, secrets, tokens and records.
#[utoipa::path(delete, path = "/api/v1/projects/{project}", tag = "projects", security(("bearer" = ["admin:write"])),
    params(("project" = String, Path, description = "Id or name")),
    responses((status = 204), (status = "default", body = Envelope)))]
pub async fn remove(
    State(app): State<App>,
    Writer(caller): Writer,
    Path(reference): Path<String>,
) -> Result<StatusCode, ApiError> {
    let project = project(&app, &caller, &reference).await?;
    caller.require_all_projects()?;
    if project.is_default() {
        return Err(ApiError::new(
            Kind::Conflict,
            "the project `default` always exists and cannot be deleted",
        ));
    }
    let removed = app.store.delete_project(project.id).await;
    app.doorkeeper.forget();
    if !removed? {
        return Err(gone(&reference));
    }
    app.hosting.rows_may_have_changed();
    app.registry_changed(project.id).await;
    tracing::info!(project.id = %project.id, "project {} deleted", project.name);
    Ok(StatusCode::NO_CONTENT)
}

fn check_description(text: &str) -> Result<(), ApiError> {
    if text.chars().count() <= DESCRIPTION_CHARS_MAX && !text.contains('\0') {
        return Ok(());
    }
    let message = format!("a description is at most {DESCRIPTION_CHARS_MAX} characters, none of them NUL");
    Err(ApiError::invalid("description", message))
}

fn name_taken(name: &ProjectName) -> ApiError {
    ApiError::new(Kind::Conflict, format!("there is a project `{name}` already; choose another name"))
        .with("field", "name")
}

/// It was there when the request began.
fn gone(reference: &str) -> ApiError {
    let Ok(reference) = reference.parse();
    ApiError::not_found("project", &reference)
}
