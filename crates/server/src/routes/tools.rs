//! `/api/v1/projects/:project/tools`: all tools of a project as one list, and the calling of one.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use cofer_gateway::{CallFailed, Caller as Recorded, ListedTool, Missing, Project};
use cofer_mcp::{Reply, raw};
use cofer_model::{Kind, Reference};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::app::App;
use crate::auth::{Caller, ToolUser};
use crate::http::ApiError;
use crate::http::error::Envelope;
use crate::http::extract::{Body, Path};
use crate::http::observe::Trace;

const NAME_CHARS_MAX: usize = 1024;
const TIMEOUT_MS_MAX: u64 = 24 * 60 * 60 * 1000;

/// All tools of a project.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = Tools)]
pub struct WholeList {
    tools: Vec<Tool>,
    /// Servers whose tools are not known now.
    missing: Vec<MissingServer>,
    warnings: Vec<String>,
}

#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct MissingServer {
    server: String,
    reason: String,
}

#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct Tool {
    name: String,
    /// The name to call it by: its own, or the long one where another server's tool answers to that.
    called_as: String,
    server: String,
    #[schema(value_type = Option<String>)]
    title: Option<Box<RawValue>>,
    #[schema(value_type = Option<String>)]
    description: Option<Box<RawValue>>,
    #[schema(value_type = Option<Object>)]
    input_schema: Option<Box<RawValue>>,
    #[schema(value_type = Option<Object>)]
    output_schema: Option<Box<RawValue>>,
    #[schema(value_type = Option<Object>)]
    annotations: Option<Box<RawValue>>,
    enabled: bool,
    /// The server whose tool of this name answers instead.
    shadowed_by: Option<String>,
}

impl Tool {
    fn of(listed: ListedTool) -> Self {
        let part = |name: &str| raw::at(&listed.raw, &[name]).map(ToOwned::to_owned);
        Self {
            title: part("title"),
            description: part("description"),
            input_schema: part("inputSchema"),
            output_schema: part("outputSchema"),
            annotations: part("annotations"),
            name: listed.name,
            called_as: listed.called_as,
            server: listed.server,
            enabled: listed.enabled,
            shadowed_by: listed.shadowed_by,
        }
    }
}

#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ToolCall {
    #[schema(min_length = 1, max_length = 1024)]
    name: String,
    /// As the tool's `input_schema` has it.
    #[schema(value_type = Option<Object>)]
    arguments: Option<Box<RawValue>>,
    /// Default 60000.
    #[schema(minimum = 1, maximum = 86_400_000)]
    timeout_ms: Option<u64>,
}

/// Every tool of hosted, external and native servers.
#[utoipa::path(get, path = "/api/v1/projects/{project}/tools", tag = "tools", security(("bearer" = ["tools:call"])),
    params(("project" = String, Path, description = "Id or name")),
    responses((status = 200, body = WholeList), (status = "default", body = Envelope)))]
pub async fn list(
    State(app): State<App>,
    ToolUser(caller): ToolUser,
    Path(reference): Path<Reference>,
) -> Result<Json<WholeList>, ApiError> {
    let listing = project(&app, &caller, &reference).await?.tools().await;
    let missing = |Missing { server, reason }| MissingServer { server, reason };
    Ok(Json(WholeList {
        tools: listing.tools.into_iter().map(Tool::of).collect(),
        missing: listing.missing.into_iter().map(missing).collect(),
        warnings: listing.warnings,
    }))
}

/// Calls a tool. When the caller leaves, its server is told.
#[utoipa::path(post, path = "/api/v1/projects/{project}/tools/call", tag = "tools", security(("bearer" = ["tools:call"])),
    params(("project" = String, Path, description = "Id or name")), request_body = ToolCall,
    responses((status = 200, body = Object, description = "The MCP result: `content`, `structuredContent`, `isError`"),
        (status = "default", body = Envelope)))]
pub async fn call(
    State(app): State<App>,
    ToolUser(caller): ToolUser,
    Path(reference): Path<Reference>,
    trace_id: Trace,
    Body(call): Body<ToolCall>,
) -> Result<Response, ApiError> {
    let timeout = check(&call)?;
    let project = project(&app, &caller, &reference).await?;
    let params = params(&call)?;
    let caller = Recorded { name: caller.name(), trace_id: trace_id.0, ..Recorded::default() };
    match project.call_tool(&call.name, params, timeout, &caller).await {
        Ok(Reply::Result(result)) => {
            let json = [(header::CONTENT_TYPE, "application/json")];
            Ok((StatusCode::OK, json, String::from(Box::<str>::from(result))).into_response())
        }
        Ok(Reply::Error(error)) => {
            let refused =
                ApiError::new(Kind::Upstream, format!("the server refused the call: {}", error.message));
            let details = serde_json::to_value(&error).unwrap_or_default();
            Err(refused.with("error", details))
        }
        Err(failed) => Err(failed.into()),
    }
}

/// The project, ready to be asked.
pub(crate) async fn project(
    app: &App,
    caller: &Caller,
    reference: &Reference,
) -> Result<std::sync::Arc<Project>, ApiError> {
    let project = caller.project(&app.store, reference).await?;
    let ready =
        app.gateway.project(project.id).await.map_err(|error| ApiError::new(Kind::Unavailable, error))?;
    ready.ok_or_else(|| ApiError::not_found("project", reference))
}

fn check(call: &ToolCall) -> Result<Option<Duration>, ApiError> {
    if !(1..=NAME_CHARS_MAX).contains(&call.name.len()) {
        return Err(ApiError::invalid("name", format!("a tool's name has 1 to {NAME_CHARS_MAX} characters")));
    }
    if call.arguments.as_ref().is_some_and(|arguments| !arguments.get().starts_with('{')) {
        return Err(ApiError::invalid("arguments", "the arguments are a JSON object"));
    }
    match call.timeout_ms {
        Some(ms) if !(1..=TIMEOUT_MS_MAX).contains(&ms) => {
            Err(ApiError::invalid("timeout_ms", format!("a timeout is 1 to {TIMEOUT_MS_MAX} ms")))
        }
        ms => Ok(ms.map(Duration::from_millis)),
    }
}

/// As `tools/call` has them.
fn params(call: &ToolCall) -> Result<Box<RawValue>, ApiError> {
    let arguments = call.arguments.as_deref().map_or("{}", RawValue::get);
    let params = format!("{{\"name\":{},\"arguments\":{arguments}}}", raw::quoted(&call.name));
    RawValue::from_string(params).map_err(|_| ApiError::invalid("arguments", "the arguments are no JSON"))
}

impl From<CallFailed> for ApiError {
    fn from(failed: CallFailed) -> Self {
        let error =
            Self::new(failed.kind, failed.message).with("may_have_executed", failed.may_have_executed);
        match failed.retry_after {
            Some(after) => error.retry_after(after.as_secs().max(1)),
            None => error,
        }
    }
}
