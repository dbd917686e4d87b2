//! `/api/v1/projects/:project/tool-calls`: what was called, newest first.

use std::time::Duration;

use axum::extract::State;
use axum::response::Response;
use cofer_model::{CallFilter, CallId, CallStatus, Moment, Project, RunId, ToolCallRecord};
use cofer_store::CallCursor;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::time::timeout;
use uuid::Uuid;

use super::project;
use crate::app::App;
use crate::auth::Reader;
use crate::http::ApiError;
use crate::http::error::Envelope;
use crate::http::extract::{Path, Query};
use crate::http::paging::{Cursor, Limit};

/// How long calls that have ended are waited for to be in the record.
const RECORDED_MAX: Duration = Duration::from_secs(1);

#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct Which {
    /// The tool's name, as it was called.
    tool: Option<String>,
    /// The name of the server that answered.
    server: Option<String>,
    status: Option<CallStatus>,
    run_id: Option<Uuid>,
    /// This moment and later.
    since: Option<Moment>,
    /// Before this moment.
    until: Option<Moment>,
    /// At most so many.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u32>,
    /// Where the page before ended: its `X-Next-Cursor`.
    #[param(pattern = r"^[0-9]{1,15}_[0-9a-f]{32}$")]
    cursor: Option<String>,
}

#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct ToolCall {
    id: CallId,
    run_id: Option<RunId>,
    tool_name: String,
    server: String,
    #[schema(value_type = Value)]
    input: Option<Box<RawValue>>,
    #[schema(value_type = Value)]
    output: Option<Box<RawValue>>,
    status: CallStatus,
    duration_ms: Option<i64>,
    step_number: Option<i64>,
    caller: Option<String>,
    trace_id: Option<String>,
    created_at: Moment,
}

impl From<ToolCallRecord> for ToolCall {
    fn from(record: ToolCallRecord) -> Self {
        Self {
            id: record.id,
            run_id: record.run_id,
            tool_name: record.tool_name,
            server: record.server,
            input: record.input.and_then(as_json),
            output: record.output.and_then(as_json),
            status: record.status,
            duration_ms: record.duration_ms,
            step_number: record.step_number,
            caller: record.caller,
            trace_id: record.trace_id,
            created_at: record.created_at,
        }
    }
}

/// To the letter where it is JSON; as a text where it is not.
pub(super) fn as_json(text: String) -> Option<Box<RawValue>> {
    match serde_json::from_str::<&RawValue>(&text) {
        Ok(_) => RawValue::from_string(text).ok(),
        Err(_) => serde_json::value::to_raw_value(&text).ok(),
    }
}

/// Calls of tools, by whichever door they came, newest first.
#[utoipa::path(get, path = "/api/v1/projects/{project}/tool-calls", tag = "tools", security(("bearer" = ["admin:read"])),
    params(("project" = String, Path, description = "Id or name"), Which),
    responses((status = 200, body = [ToolCall], headers(("X-Next-Cursor" = String, description = "Where the next page begins; missing on the last"))),
        (status = "default", body = Envelope)))]
pub async fn list(
    State(app): State<App>,
    Reader(caller): Reader,
    Path(reference): Path<String>,
    Query(which): Query<Which>,
) -> Result<Response, ApiError> {
    let project = project(&app, &caller, &reference).await?;
    let limit = Limit::of(which.limit)?;
    let filter = CallFilter {
        tool: which.tool,
        server: which.server,
        status: which.status,
        run_id: which.run_id.map(RunId),
        since: which.since,
        until: which.until,
    };
    page(&app, &project, &filter, which.cursor.as_deref(), limit).await
}

/// One page of calls, and where the next begins.
pub(super) async fn page(
    app: &App,
    project: &Project,
    filter: &CallFilter,
    cursor: Option<&str>,
    limit: Limit,
) -> Result<Response, ApiError> {
    let cursor = cursor.map(Cursor::read).transpose()?;
    if cursor.is_none() {
        // Who was answered finds the call here. A database that does not keep up says so itself.
        let _ = timeout(RECORDED_MAX, app.gateway.recorded()).await;
    }
    let after = cursor.map(|at| CallCursor { created_at: at.created_at, id: CallId(at.id) });
    let found = app.store.tool_calls(project.id, filter, after, limit.and_one_more()).await?;
    let end = |last: &ToolCallRecord| Cursor { created_at: last.created_at, id: last.id.0 }.write();
    Ok(limit.page(found, end, ToolCall::from))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_json_is_shown_as_a_text() {
        let shown = |text: &str| as_json(text.to_owned()).unwrap().get().to_owned();
        assert_eq!(shown("{ \"a\":1e400 }"), "{ \"a\":1e400 }");
        assert_eq!(shown("{\"broken"), "\"{\\\"broken\"");
    }
}
