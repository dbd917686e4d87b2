//! `/api/v1/projects/:project/agent-runs`: conversations, under way and past.

use axum::Json;
use axum::body::Body as Bytes;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use cofer_agent::Asked;
use cofer_model::{
    CallFilter, Kind, MessageId, Moment, Project, Reference, RunFilter, RunId, RunMessage, RunRecord,
    RunStatus, Speaker, Usage,
};
use cofer_store::{CallCursor, RunCursor};
use futures_util::stream;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use uuid::Uuid;

use super::tool_calls::{self, ToolCall, as_json};
use crate::agents::no_such_run;
use crate::app::App;
use crate::auth::{AgentUser, Caller};
use crate::http::ApiError;
use crate::http::error::{Envelope, chain};
use crate::http::extract::{Body, Path, Query};
use crate::http::paging::{Cursor, Limit, not_a_cursor};

const EXPORTED_AT_ONCE: u32 = 200;

#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct Which {
    status: Option<RunStatus>,
    model: Option<String>,
    /// Begun at this moment or later.
    since: Option<Moment>,
    /// Begun before this moment.
    until: Option<Moment>,
    /// At most so many.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u32>,
    /// Where the page before ended: its `X-Next-Cursor`.
    #[param(pattern = r"^[0-9]{1,15}_[0-9a-f]{32}$")]
    cursor: Option<String>,
}

#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct Page {
    /// At most so many.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u32>,
    /// Where the page before ended: its `X-Next-Cursor`.
    cursor: Option<String>,
}

#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct AgentRun {
    id: RunId,
    status: RunStatus,
    /// The model's stop reason, the limit that was reached, `cancelled` or `error`.
    reason: Option<String>,
    /// What went wrong.
    error: Option<String>,
    model: String,
    system: Option<String>,
    /// How often the model has answered.
    steps: i64,
    usage: Usage,
    caller: Option<String>,
    trace_id: Option<String>,
    created_at: Moment,
    updated_at: Moment,
    /// Calls that wait for a person's yes.
    approvals: Vec<Approval>,
}

#[derive(Debug, Serialize, utoipa::ToSchema)]
#[expect(clippy::struct_field_names, reason = "the contract names its fields")]
pub struct Approval {
    approval_id: Uuid,
    name: String,
    #[schema(value_type = Value)]
    input: Box<RawValue>,
}

impl From<Asked> for Approval {
    fn from(Asked { approval_id, name, input }: Asked) -> Self {
        Self { approval_id, name, input }
    }
}

impl AgentRun {
    fn of(app: &App, run: RunRecord) -> Self {
        Self {
            approvals: app.agents.asked(run.id).into_iter().map(Approval::from).collect(),
            id: run.id,
            status: run.status,
            reason: run.reason,
            error: run.error,
            model: run.model,
            system: run.system,
            steps: run.steps,
            usage: run.usage,
            caller: run.caller,
            trace_id: run.trace_id,
            created_at: run.created_at,
            updated_at: run.updated_at,
        }
    }
}

#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct RunMessageShown {
    id: MessageId,
    step_number: i64,
    role: Speaker,
    /// Content blocks, as the Claude Messages API has them.
    #[schema(value_type = Vec<Object>)]
    content: Option<Box<RawValue>>,
    created_at: Moment,
}

impl From<RunMessage> for RunMessageShown {
    fn from(message: RunMessage) -> Self {
        Self {
            id: message.id,
            step_number: message.step_number,
            role: message.role,
            content: as_json(message.content),
            created_at: message.created_at,
        }
    }
}

/// Runs, newest first.
#[utoipa::path(get, path = "/api/v1/projects/{project}/agent-runs", tag = "agents", security(("bearer" = ["agents:run"])),
    params(("project" = String, Path, description = "Id or name"), Which),
    responses((status = 200, body = [AgentRun], headers(("X-Next-Cursor" = String, description = "Where the next page begins; missing on the last"))),
        (status = "default", body = Envelope)))]
pub async fn list(
    State(app): State<App>,
    AgentUser(caller): AgentUser,
    Path(reference): Path<Reference>,
    Query(which): Query<Which>,
) -> Result<Response, ApiError> {
    let project = caller.project(&app.store, &reference).await?;
    let limit = Limit::of(which.limit)?;
    let cursor = which.cursor.as_deref().map(Cursor::read).transpose()?;
    let after = cursor.map(|at| RunCursor { created_at: at.created_at, id: RunId(at.id) });
    let filter =
        RunFilter { status: which.status, model: which.model, since: which.since, until: which.until };
    let found = app.store.runs(project.id, &filter, after, limit.and_one_more()).await?;
    let end = |last: &RunRecord| Cursor { created_at: last.created_at, id: last.id.0 }.write();
    Ok(limit.page(found, end, |run| AgentRun::of(&app, run)))
}

/// The run, if this caller may know of it.
async fn found(
    app: &App,
    caller: &Caller,
    reference: &Reference,
    id: &str,
) -> Result<(Project, RunRecord), ApiError> {
    let project = caller.project(&app.store, reference).await?;
    let run = match Uuid::try_parse(id) {
        Ok(id) => app.store.run(project.id, RunId(id)).await?,
        Err(_) => None,
    };
    let missing = || match Uuid::try_parse(id) {
        Ok(id) => no_such_run(RunId(id)),
        Err(_) => ApiError::not_found("run", &Reference::Name(id.to_owned())),
    };
    Ok((project, run.ok_or_else(missing)?))
}

/// One run.
#[utoipa::path(get, path = "/api/v1/projects/{project}/agent-runs/{run}", tag = "agents", security(("bearer" = ["agents:run"])),
    params(("project" = String, Path, description = "Id or name"), ("run" = String, Path, description = "Its id")),
    responses((status = 200, body = AgentRun), (status = "default", body = Envelope)))]
pub async fn show(
    State(app): State<App>,
    AgentUser(caller): AgentUser,
    Path((reference, id)): Path<(Reference, String)>,
) -> Result<Json<AgentRun>, ApiError> {
    let (_, run) = found(&app, &caller, &reference, &id).await?;
    Ok(Json(AgentRun::of(&app, run)))
}

/// What was said in a run, in its order.
#[utoipa::path(get, path = "/api/v1/projects/{project}/agent-runs/{run}/messages", tag = "agents",
    security(("bearer" = ["agents:run"])),
    params(("project" = String, Path, description = "Id or name"), ("run" = String, Path, description = "Its id"), Page),
    responses((status = 200, body = [RunMessageShown], headers(("X-Next-Cursor" = String, description = "Where the next page begins; missing on the last"))),
        (status = "default", body = Envelope)))]
pub async fn messages(
    State(app): State<App>,
    AgentUser(caller): AgentUser,
    Path((reference, id)): Path<(Reference, String)>,
    Query(page): Query<Page>,
) -> Result<Response, ApiError> {
    let (_, run) = found(&app, &caller, &reference, &id).await?;
    let limit = Limit::of(page.limit)?;
    let from = page.cursor.map_or(Ok(0), |text| text.parse::<u32>().map_err(|_| not_a_cursor()))?;
    let found = app.store.run_messages(run.id, i64::from(from), limit.and_one_more()).await?;
    Ok(limit.page(found, |last| (last.position + 1).to_string(), RunMessageShown::from))
}

/// What was called in a run, newest first.
#[utoipa::path(get, path = "/api/v1/projects/{project}/agent-runs/{run}/tool-calls", tag = "agents",
    security(("bearer" = ["agents:run"])),
    params(("project" = String, Path, description = "Id or name"), ("run" = String, Path, description = "Its id"), Page),
    responses((status = 200, body = [ToolCall], headers(("X-Next-Cursor" = String, description = "Where the next page begins; missing on the last"))),
        (status = "default", body = Envelope)))]
pub async fn tool_calls(
    State(app): State<App>,
    AgentUser(caller): AgentUser,
    Path((reference, id)): Path<(Reference, String)>,
    Query(page): Query<Page>,
) -> Result<Response, ApiError> {
    let (project, run) = found(&app, &caller, &reference, &id).await?;
    let limit = Limit::of(page.limit)?;
    let filter = CallFilter { run_id: Some(run.id), ..CallFilter::default() };
    tool_calls::page(&app, &project, &filter, page.cursor.as_deref(), limit).await
}

/// Ends a run that is under way. One that has ended is left as it is.
#[utoipa::path(post, path = "/api/v1/projects/{project}/agent-runs/{run}/cancel", tag = "agents",
    security(("bearer" = ["agents:run"])),
    params(("project" = String, Path, description = "Id or name"), ("run" = String, Path, description = "Its id")),
    responses((status = 200, body = AgentRun), (status = "default", body = Envelope)))]
pub async fn cancel(
    State(app): State<App>,
    AgentUser(caller): AgentUser,
    Path((reference, id)): Path<(Reference, String)>,
) -> Result<Json<AgentRun>, ApiError> {
    let (_, run) = found(&app, &caller, &reference, &id).await?;
    let was_here = app.agents.cancel(run.id).await;
    let (_, run) = found(&app, &caller, &reference, &id).await?;
    if run.status == RunStatus::Running && !was_here {
        let message = "another Cofer that shares this database has this run; cancel it there";
        return Err(ApiError::new(Kind::Conflict, message));
    }
    Ok(Json(AgentRun::of(&app, run)))
}

#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Decision {
    approval_id: Uuid,
    allow: bool,
}

/// Says whether a tool may be called.
#[utoipa::path(post, path = "/api/v1/projects/{project}/agent-runs/{run}/approvals", tag = "agents",
    security(("bearer" = ["agents:run"])),
    params(("project" = String, Path, description = "Id or name"), ("run" = String, Path, description = "Its id")),
    request_body = Decision,
    responses((status = 204, description = "Heard"), (status = "default", body = Envelope)))]
pub async fn approve(
    State(app): State<App>,
    AgentUser(caller): AgentUser,
    Path((reference, id)): Path<(Reference, String)>,
    Body(decision): Body<Decision>,
) -> Result<StatusCode, ApiError> {
    let (_, run) = found(&app, &caller, &reference, &id).await?;
    if app.agents.answer(run.id, decision.approval_id, decision.allow) {
        return Ok(StatusCode::NO_CONTENT);
    }
    let message = "nobody waits for this answer; it was given before, came too late, or was never asked for";
    Err(ApiError::new(Kind::NotFound, message))
}

/// One line of an export.
#[derive(Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum Line {
    Run(AgentRun),
    Message(RunMessageShown),
    ToolCall(ToolCall),
}

/// Where an export is.
enum Next {
    Run(Box<AgentRun>),
    Messages(i64),
    Calls(Option<CallCursor>),
}

/// Everything that is known of a run, as JSON lines: the run, its messages in their order, its tool calls newest first.
#[utoipa::path(get, path = "/api/v1/projects/{project}/agent-runs/{run}/export", tag = "agents",
    security(("bearer" = ["agents:run"])),
    params(("project" = String, Path, description = "Id or name"), ("run" = String, Path, description = "Its id")),
    responses((status = 200, content((String = "application/x-ndjson"))), (status = "default", body = Envelope)))]
pub async fn export(
    State(app): State<App>,
    AgentUser(caller): AgentUser,
    Path((reference, id)): Path<(Reference, String)>,
) -> Result<Response, ApiError> {
    let (project, run) = found(&app, &caller, &reference, &id).await?;
    let run_id = run.id;
    let first = Next::Run(Box::new(AgentRun::of(&app, run)));
    let lines = stream::try_unfold(Some(first), move |next| {
        let (app, project) = (app.clone(), project.id);
        async move {
            let Some(next) = next else { return Ok(None) };
            exported(&app, project, run_id, next).await.map(Some)
        }
    });
    let body = Bytes::from_stream(lines);
    Ok(([(header::CONTENT_TYPE, "application/x-ndjson")], body).into_response())
}

/// Some lines, and what comes after them.
async fn exported(
    app: &App,
    project: cofer_model::ProjectId,
    run: RunId,
    next: Next,
) -> std::io::Result<(String, Option<Next>)> {
    let failed = |error: cofer_store::StoreError| {
        tracing::warn!("an export broke off: {}", chain(&error));
        std::io::Error::other("the database does not answer")
    };
    match next {
        Next::Run(run) => Ok((lines([Line::Run(*run)]), Some(Next::Messages(0)))),
        Next::Messages(from) => {
            let found = app.store.run_messages(run, from, EXPORTED_AT_ONCE).await.map_err(failed)?;
            let next = found.last().map_or(Next::Calls(None), |last| Next::Messages(last.position + 1));
            Ok((lines(found.into_iter().map(|message| Line::Message(message.into()))), Some(next)))
        }
        Next::Calls(cursor) => {
            let filter = CallFilter { run_id: Some(run), ..CallFilter::default() };
            let found =
                app.store.tool_calls(project, &filter, cursor, EXPORTED_AT_ONCE).await.map_err(failed)?;
            let next = found.last().map(|last| Next::Calls(Some(CallCursor::after(last))));
            Ok((lines(found.into_iter().map(|call| Line::ToolCall(call.into()))), next))
        }
    }
}

fn lines(all: impl IntoIterator<Item = Line>) -> String {
    let mut text = String::new();
    for line in all {
        text.push_str(&serde_json::to_string(&line).unwrap_or_default());
        text.push('\n');
    }
    text
}
