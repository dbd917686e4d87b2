//! Is it alive, is it ready, how is it doing, and what can it do?

use std::time::Duration;

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use bytes::Bytes;
use serde::Serialize;

use crate::app::App;
use crate::auth::Reader;
use crate::http::ApiError;
use crate::http::error::{Envelope, chain};
use crate::telemetry::metrics;

const DATABASE_DEADLINE: Duration = Duration::from_secs(2);

#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct Alive {
    #[schema(value_type = String)]
    status: &'static str,
    #[schema(value_type = String)]
    version: &'static str,
}

/// Whether the process is alive.
#[utoipa::path(get, path = "/healthz", tag = "health", responses((status = 200, body = Alive)))]
pub async fn healthz() -> Json<Alive> {
    Json(Alive { status: "ok", version: env!("CARGO_PKG_VERSION") })
}

#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct Readiness {
    ready: bool,
    parts: Vec<Part>,
}

#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct Part {
    #[schema(value_type = String)]
    name: &'static str,
    ready: bool,
    /// Why not.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

impl Part {
    fn new(name: &'static str, reason: Option<String>) -> Self {
        Self { name, ready: reason.is_none(), reason }
    }
}

/// Whether it can take work, and if not, which part cannot.
#[utoipa::path(get, path = "/readyz", tag = "health",
    responses((status = 200, body = Readiness), (status = 503, body = Readiness)))]
pub async fn readyz(State(app): State<App>) -> Response {
    let parts = vec![Part::new("database", database_trouble(&app).await)];
    let ready = parts.iter().all(|part| part.ready);
    let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let mut response = (status, Json(Readiness { ready, parts })).into_response();
    if !ready {
        response.headers_mut().insert(header::RETRY_AFTER, 1.into());
    }
    response
}

/// What keeps the database from answering. The caller may be a stranger, so only the log gets the details.
async fn database_trouble(app: &App) -> Option<String> {
    let answer = tokio::time::timeout(DATABASE_DEADLINE, app.store.ping()).await;
    metrics::database_is(matches!(answer, Ok(Ok(()))));
    match answer {
        Ok(Ok(())) => None,
        Ok(Err(error)) => {
            tracing::warn!("the database failed its check: {}", chain(&error));
            Some(error.to_string())
        }
        Err(_elapsed) => Some(format!("the database did not answer within {DATABASE_DEADLINE:?}")),
    }
}

/// Figures for Prometheus.
#[utoipa::path(get, path = "/metrics", tag = "health", security(("bearer" = ["admin:read"])),
    responses((status = 200, body = String, content_type = "text/plain"), (status = "default", body = Envelope)))]
pub async fn metrics(State(app): State<App>, reader: Result<Reader, ApiError>) -> Result<Response, ApiError> {
    // Open means open: then everybody sees the figures of all projects.
    let reader = if app.settings.open_metrics { None } else { Some(reader?.0) };
    let may_see = |project| reader.as_ref().is_none_or(|caller| caller.may_see(project));
    let page = metrics::render(&app.metrics, &app.gateway) + &app.hosting.figures(may_see).await;
    Ok(([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], page).into_response())
}

/// The description of this API, written once.
#[derive(Clone, Debug)]
pub struct Document(Bytes);

impl Document {
    pub fn of(document: &utoipa::openapi::OpenApi) -> Self {
        Self(serde_json::to_vec(document).unwrap_or_default().into())
    }
}

/// This document.
#[utoipa::path(get, path = "/api/openapi.json", tag = "health", security(("bearer" = ["admin:read"])),
    responses((status = 200, body = Object), (status = "default", body = Envelope)))]
pub async fn openapi(
    State(app): State<App>,
    Extension(Document(document)): Extension<Document>,
    reader: Result<Reader, ApiError>,
) -> Result<Response, ApiError> {
    if !app.settings.open_openapi {
        reader?;
    }
    Ok(([(header::CONTENT_TYPE, "application/json")], document).into_response())
}
