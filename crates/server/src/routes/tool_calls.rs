//! `/api/v1/projects/:project/tool-calls`: what was called, newest first.

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderName, HeaderValue};
use axum::response::{IntoResponse, Response};
use cofer_model::{CallFilter, CallId, CallStatus, Moment, Project, RunId, ToolCallRecord};
use cofer_store::CallCursor;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use uuid::Uuid;

use super::project;
use crate::app::App;
use crate::auth::Reader;
use crate::http::ApiError;
use crate::http::error::Envelope;
use crate::http::extract::{Path, Query};

pub(super) const NEXT_CURSOR: HeaderName = HeaderName::from_static("x-next-cursor");
const CALLS_DEFAULT: u32 = 100;
const CALLS_MAX: u32 = 1000;

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
    let limit = limit(which.limit)?;
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

/// How many are on a page.
pub(super) fn limit(asked: Option<u32>) -> Result<u32, ApiError> {
    let limit = asked.unwrap_or(CALLS_DEFAULT);
    if !(1..=CALLS_MAX).contains(&limit) {
        return Err(ApiError::invalid("limit", format!("a page has 1 to {CALLS_MAX}")));
    }
    Ok(limit)
}

/// One page of calls, and where the next begins.
pub(super) async fn page(
    app: &App,
    project: &Project,
    filter: &CallFilter,
    cursor: Option<&str>,
    limit: u32,
) -> Result<Response, ApiError> {
    let cursor = cursor.map(read_cursor).transpose()?;
    let mut found = app.store.tool_calls(project.id, filter, cursor, limit + 1).await?;
    let more = found.len() > limit as usize;
    found.truncate(limit as usize);
    let next = found.last().filter(|_| more).map(|last| write_cursor(last.created_at, last.id.0));
    let calls: Vec<_> = found.into_iter().map(ToolCall::from).collect();
    let mut response = Json(calls).into_response();
    if let Some(next) = next.and_then(|next| HeaderValue::from_str(&next).ok()) {
        response.headers_mut().insert(NEXT_CURSOR, next);
    }
    Ok(response)
}

pub(super) fn write_cursor(created_at: Moment, id: Uuid) -> String {
    format!("{}_{}", created_at.unix_ms(), id.simple())
}

pub(super) fn read_cursor(text: &str) -> Result<CallCursor, ApiError> {
    let read = || {
        let (ms, id) = text.split_once('_').filter(|(_, id)| id.len() == 32)?;
        let ms = ms.parse().ok().filter(|ms| (0..=253_402_300_799_000).contains(ms))?;
        Some(CallCursor { created_at: Moment::from_unix_ms(ms), id: CallId(Uuid::try_parse(id).ok()?) })
    };
    let refused = || ApiError::invalid("cursor", "a cursor is the `X-Next-Cursor` of the page before");
    read().ok_or_else(refused)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_reads_back_and_nothing_else_is_one() {
        let cursor = CallCursor { created_at: Moment::now(), id: CallId::generate() };
        assert_eq!(read_cursor(&write_cursor(cursor.created_at, cursor.id.0)).unwrap(), cursor);
        for bad in [
            "",
            "x",
            "1_",
            "1_2",
            "-5_00000000000000000000000000000000",
            "9999999999999999_00000000000000000000000000000000",
        ] {
            assert!(read_cursor(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn what_is_no_json_is_shown_as_a_text() {
        let shown = |text: &str| as_json(text.to_owned()).unwrap().get().to_owned();
        assert_eq!(shown("{ \"a\":1e400 }"), "{ \"a\":1e400 }");
        assert_eq!(shown("{\"broken"), "\"{\\\"broken\"");
    }
}
