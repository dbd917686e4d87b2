//! `/api/v1/projects/:project/secrets`: values go in and are never shown again.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use cofer_model::secret::SECRET_BYTES_MAX;
use cofer_model::{Moment, Reference, SecretEntry, SecretName};
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;

use super::project;
use crate::app::App;
use crate::auth::{Reader, Writer};
use crate::http::ApiError;
use crate::http::error::Envelope;
use crate::http::extract::{Body, Path};

#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PutSecret {
    #[schema(value_type = String, format = Password, min_length = 1, max_length = 65_536)]
    value: SecretString,
}

/// Names, never values.
#[utoipa::path(get, path = "/api/v1/projects/{project}/secrets", tag = "secrets", security(("bearer" = ["admin:read"])),
    params(("project" = String, Path, description = "Id or name")),
    responses((status = 200, body = [SecretEntry]), (status = "default", body = Envelope)))]
pub async fn list(
    State(app): State<App>,
    Reader(caller): Reader,
    Path(reference): Path<String>,
) -> Result<Json<Vec<SecretEntry>>, ApiError> {
    let project = project(&app, &caller, &reference).await?;
    Ok(Json(app.store.secrets(project.id).await?))
}

/// Keeps a secret, replacing an earlier value.
#[utoipa::path(put, path = "/api/v1/projects/{project}/secrets/{name}", tag = "secrets", security(("bearer" = ["admin:write"])),
    params(("project" = String, Path, description = "Id or name"), ("name" = SecretName, Path, description = "As in ${NAME}")),
    request_body = PutSecret,
    responses((status = 200, body = SecretEntry), (status = "default", body = Envelope)))]
pub async fn put(
    State(app): State<App>,
    Writer(caller): Writer,
    Path((reference, name)): Path<(String, String)>,
    Body(PutSecret { value }): Body<PutSecret>,
) -> Result<Json<SecretEntry>, ApiError> {
    let project = project(&app, &caller, &reference).await?;
    let name = SecretName::try_from(name).map_err(|error| ApiError::invalid("name", error.to_string()))?;
    check_value(&value)?;
    let entry = app.keyring.put_secret(project.id, &name, &value, Moment::now()).await?;
    tracing::info!(project.id = %project.id, "secret {name} of project {} set", project.name);
    Ok(Json(entry))
}

/// Forgets a secret.
#[utoipa::path(delete, path = "/api/v1/projects/{project}/secrets/{name}", tag = "secrets", security(("bearer" = ["admin:write"])),
    params(("project" = String, Path, description = "Id or name"), ("name" = SecretName, Path, description = "As in ${NAME}")),
    responses((status = 204), (status = "default", body = Envelope)))]
pub async fn remove(
    State(app): State<App>,
    Writer(caller): Writer,
    Path((reference, name)): Path<(String, String)>,
) -> Result<StatusCode, ApiError> {
    let project = project(&app, &caller, &reference).await?;
    let no_such_secret = || ApiError::not_found("secret", &Reference::Name(name.clone()));
    let valid = SecretName::try_from(name.clone()).map_err(|_| no_such_secret())?;
    if !app.store.delete_secret(project.id, &valid).await? {
        return Err(no_such_secret());
    }
    tracing::info!(project.id = %project.id, "secret {valid} of project {} deleted", project.name);
    Ok(StatusCode::NO_CONTENT)
}

fn check_value(value: &SecretString) -> Result<(), ApiError> {
    let bytes = value.expose_secret().len();
    if (1..=SECRET_BYTES_MAX).contains(&bytes) {
        return Ok(());
    }
    Err(ApiError::invalid(
        "value",
        format!("a secret is 1 to {SECRET_BYTES_MAX} bytes; this one has {bytes}"),
    ))
}
