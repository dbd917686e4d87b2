//! `/api/v1/master-key`: the key that seals all secrets can be replaced, and never read.

use axum::Json;
use axum::extract::State;
use cofer_model::Moment;
use serde::Serialize;

use crate::app::App;
use crate::auth::Writer;
use crate::http::ApiError;
use crate::http::error::Envelope;

#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct Rotated {
    /// Tells keys apart; says nothing about the key.
    fingerprint: String,
    /// How many secrets were sealed anew.
    secrets: usize,
}

/// Makes a new master key and seals every secret anew with it, all or none.
#[utoipa::path(post, path = "/api/v1/master-key/rotate", tag = "secrets", security(("bearer" = ["admin:write"])),
    responses((status = 200, body = Rotated), (status = "default", body = Envelope)))]
pub async fn rotate(State(app): State<App>, Writer(caller): Writer) -> Result<Json<Rotated>, ApiError> {
    caller.require_all_projects()?;
    let rotation = app.keyring.rotate(Moment::now()).await?;
    Ok(Json(Rotated { fingerprint: rotation.fingerprint, secrets: rotation.secrets }))
}
