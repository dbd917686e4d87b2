//! `POST /api/v1/mcp/hosted/:id/call`: one call over the bridge. The hot path: what is only carried is not parsed.

use std::time::{Duration, Instant};

use axum::Json;
use axum::extract::{FromRef, State};
use axum::http::StatusCode;
use axum::response::IntoResponse;
use cofer_gateway::{CallFailed, Caller as Recorded, ToolAsked};
use cofer_mcp::{CallError, Reply, RpcError, raw};
use cofer_model::{Kind, Moment, Reference};
use cofer_supervisor::CallRefused;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::hosted::{InProject, server};
use super::mcp::json;
use crate::app::App;
use crate::auth::{Caller, Writer};
use crate::hosting::Entry;
use crate::http::ApiError;
use crate::http::error::Envelope;
use crate::http::express::{CallAnswer, Posted};
use crate::http::extract::{Body, BodyLimits, Path, Query};
use crate::http::observe::Trace;
use crate::telemetry::metrics;

const METHOD_CHARS_MAX: usize = 256;
const TIMEOUT_MS_MAX: u64 = 24 * 60 * 60 * 1000;

#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Call {
    /// Such as `tools/list`.
    #[schema(min_length = 1, max_length = 256)]
    method: String,
    #[schema(value_type = Option<serde_json::Value>)]
    params: Option<Box<RawValue>>,
    /// Waiting for others included; default the server's `call_timeout_ms`.
    #[schema(minimum = 1, maximum = 86_400_000)]
    timeout_ms: Option<u64>,
}

/// What the server answered.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct Outcome {
    /// Anything; `null` beside an error.
    #[schema(value_type = serde_json::Value)]
    result: Option<Box<RawValue>>,
    /// `code`, `message` and perhaps `data`, as the server sent them.
    #[schema(value_type = Option<Object>, required = true)]
    error: Option<RpcError>,
}

/// Statuses that the server's own errors share with ours.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "it describes answers, and is none")]
pub enum Failed {
    ByServer(Outcome),
    ByCofer(Envelope),
}

/// Calls a method of the server. When the caller leaves, the server is told.
#[utoipa::path(post, path = "/{server}/call", tag = "hosted servers", security(("bearer" = ["admin:write"])),
    params(("server" = String, Path, description = "Id or name"), InProject), request_body = Call,
    responses((status = 200, body = Outcome, description = "The server's result"),
        (status = 400, body = Failed, description = "The server's own error -32700, -32600 or -32602"),
        (status = 404, body = Failed, description = "The server's own error -32601"),
        (status = 502, body = Failed, description = "Another error of the server's own"),
        (status = "default", body = Envelope)))]
pub async fn call(
    State(app): State<App>,
    Writer(caller): Writer,
    Path(reference): Path<String>,
    Query(which): Query<InProject>,
    Trace(trace_id): Trace,
    Body(call): Body<Call>,
) -> Result<CallAnswer, ApiError> {
    perform(&app, &caller, trace_id, which.project(), &reference, call).await
}

/// The same past the router, in the token's own project or the default one.
pub(crate) async fn express(
    app: &App,
    reference: &str,
    trace_id: &str,
    posted: &mut Posted,
) -> Result<CallAnswer, ApiError> {
    if let Some(message) = app.hosting.refusal() {
        return Err(ApiError::new(Kind::Unavailable, message));
    }
    let Writer(caller) = Writer::admitted(&posted.asking(), app).await?;
    let body = posted.take_body();
    let Body(call) = Body::read(&posted.said.headers, body, BodyLimits::from_ref(app)).await?;
    perform(app, &caller, trace_id.to_owned(), None, reference, call).await
}

async fn perform(
    app: &App,
    caller: &Caller,
    trace_id: String,
    project: Option<&Reference>,
    reference: &str,
    call: Call,
) -> Result<CallAnswer, ApiError> {
    let entry = server(app, caller, project, reference).await?;
    let timeout = check(&call, &entry)?;
    entry.note_use(Moment::now());
    let began = Instant::now();
    let recorded = Recorded { name: caller.name(), trace_id, ..Recorded::default() };
    let tool = tool_of(&call);
    let recording = tool.as_ref().map(|tool| {
        let planner = &entry.planner;
        let taken_down = app.gateway.take_down(planner.project_id, tool, &recorded);
        taken_down.to(planner.name.as_str(), planner.mask())
    });
    let outcome = entry.supervised.call(&call.method, call.params, timeout).await;
    metrics::hosted_call(outcome_name(&outcome), began.elapsed());
    let outcome = outcome.map_err(|refused| refusal(&entry, &refused, timeout));
    if let Some(mut recording) = recording {
        recording.finish(outcome.as_ref().map_err(failure).as_ref().copied()).await;
    }
    match outcome? {
        Reply::Result(result) => {
            let body = [r#"{"result":"#, result.get(), r#","error":null}"#].concat();
            Ok(json(StatusCode::OK, body.into_bytes()))
        }
        Reply::Error(error) => {
            let status = status_of(&error);
            Ok((status, Json(Outcome { result: None, error: Some(error) })).into_response().into())
        }
    }
}

/// The tool that it calls, if it calls one.
fn tool_of(call: &Call) -> Option<ToolAsked> {
    let params = call.params.as_deref();
    let arguments = || params.and_then(|params| raw::at(params, &["arguments"])).map(ToOwned::to_owned);
    let nameless = || ToolAsked { name: String::new(), arguments: arguments() };
    (call.method == "tools/call").then(|| params.and_then(ToolAsked::read).unwrap_or_else(nameless))
}

/// A refusal of ours, for the record.
fn failure(error: &ApiError) -> CallFailed {
    let may_have_executed = error.details.contains_key("may_have_executed");
    let (kind, message) = (error.kind, error.message.clone());
    CallFailed { kind, message, may_have_executed, server_ended: false, retry_after: None }
}

fn check(call: &Call, entry: &Entry) -> Result<Duration, ApiError> {
    if !(1..=METHOD_CHARS_MAX).contains(&call.method.len()) {
        return Err(ApiError::invalid("method", format!("a method has 1 to {METHOD_CHARS_MAX} characters")));
    }
    let timeout_ms = call.timeout_ms.unwrap_or_else(|| entry.planner.blueprint().config.call_timeout_ms);
    if !(1..=TIMEOUT_MS_MAX).contains(&timeout_ms) {
        return Err(ApiError::invalid("timeout_ms", format!("a timeout is 1 to {TIMEOUT_MS_MAX} ms")));
    }
    Ok(Duration::from_millis(timeout_ms))
}

/// What JSON-RPC's codes are in HTTP.
fn status_of(error: &RpcError) -> StatusCode {
    match error.code {
        -32700 | -32600 | -32602 => StatusCode::BAD_REQUEST,
        -32601 => StatusCode::NOT_FOUND,
        _ => StatusCode::BAD_GATEWAY,
    }
}

fn refusal(entry: &Entry, refused: &CallRefused, timeout: Duration) -> ApiError {
    let name = &entry.planner.name;
    match refused {
        CallRefused::NotReady { status, reason, retry_after } => {
            let reason = reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
            ApiError::new(Kind::Unavailable, format!("server `{name}` is {status}{reason}"))
                .with("status", status.as_str())
                .retry_after(retry_after.as_secs().max(1))
        }
        CallRefused::NoBridge => ApiError::new(
            Kind::Conflict,
            format!("server `{name}` has no stdio bridge; it is called directly at its endpoint"),
        ),
        CallRefused::Pump(error) => {
            let message = match error {
                CallError::Timeout => format!(
                    "server `{name}` did not answer within {} ms; it goes on running, and its late answer is dropped",
                    timeout.as_millis()
                ),
                error => format!("server `{name}`: {error}"),
            };
            let api = ApiError::new(error.kind(), message);
            let executed = matches!(
                error,
                CallError::MayHaveExecuted
                    | CallError::Unreadable
                    | CallError::TooLong { .. }
                    | CallError::Timeout
            );
            if executed { api.with("may_have_executed", true) } else { api }
        }
    }
}

fn outcome_name(outcome: &Result<Reply, CallRefused>) -> &'static str {
    match outcome {
        Ok(Reply::Result(_)) => "result",
        Ok(Reply::Error(_)) => "error",
        Err(CallRefused::NotReady { .. } | CallRefused::NoBridge) => "refused",
        Err(CallRefused::Pump(error)) => error.kind().code(),
    }
}
