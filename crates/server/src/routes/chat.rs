//! `POST /api/v1/projects/:project/chat`: a turn of a conversation, as a stream of events or in one answer.
//!
//! The run does not depend on its client: see `agents`.

use std::convert::Infallible;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use axum::response::sse::{Event as Sent, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use cofer_agent::{Blocks, Event, Limits, Patterns};
use cofer_model::{CallStatus, Reference, RunId, RunStatus, Speaker, Usage};
use futures_util::stream::{self, StreamExt};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use uuid::Uuid;

use super::tools::project;
use crate::agents::{Ended, Listener, Told, Turn};
use crate::app::App;
use crate::auth::AgentUser;
use crate::http::ApiError;
use crate::http::error::Envelope;
use crate::http::extract::{Body, Path};
use crate::http::observe::Trace;

const RUN_ID: HeaderName = HeaderName::from_static("x-run-id");
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// A run that fails within this time, before it has told anything, is answered with a status instead of a stream.
const STATUS_WITHIN: Duration = Duration::from_secs(1);
const MESSAGES_MAX: usize = 10_000;
const MODEL_CHARS_MAX: usize = 200;

#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Chat {
    /// What to say. Either this or `messages`; neither only to go on with a run that was interrupted.
    message: Option<String>,
    /// A whole conversation, as the Claude Messages API takes it.
    messages: Option<Vec<ChatMessage>>,
    #[schema(min_length = 1, max_length = 200)]
    model: Option<String>,
    system: Option<String>,
    /// Goes on with this run.
    run_id: Option<Uuid>,
    /// How often the model may answer; at most what the server allows.
    #[schema(minimum = 1)]
    max_steps: Option<u64>,
    /// How many tokens, of all kinds, this turn may use.
    #[schema(minimum = 1)]
    max_tokens: Option<u64>,
    #[schema(minimum = 1)]
    max_time_ms: Option<u64>,
    /// Names or patterns such as `git_*`; `!` in front excludes.
    #[schema(value_type = Option<Vec<String>>)]
    tools: Option<Patterns>,
    /// Tools that a person must allow, by name or pattern. Of those that a pattern means, read-only ones need no leave.
    #[schema(value_type = Option<Vec<String>>)]
    approve: Option<Patterns>,
}

#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ChatMessage {
    role: ChatRole,
    /// A text, or an array of content blocks.
    #[schema(value_type = Value)]
    content: Box<RawValue>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum ChatRole {
    User,
    Assistant,
}

/// The one answer for who wants no stream.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct ChatAnswer {
    run_id: RunId,
    status: RunStatus,
    /// The model's stop reason, the limit that was reached, or `cancelled`.
    reason: String,
    text: String,
    usage: Usage,
    tool_calls: Vec<ChatCall>,
}

#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct ChatCall {
    id: String,
    name: String,
    server: String,
    #[schema(value_type = Value)]
    input: Box<RawValue>,
    status: Option<CallStatus>,
    duration_ms: Option<u64>,
}

/// Says something to the model, and does what it asks for until it stops.
#[utoipa::path(post, path = "/api/v1/projects/{project}/chat", tag = "agents", security(("bearer" = ["agents:run"])),
    params(("project" = String, Path, description = "Id or name")), request_body = Chat,
    responses((status = 200, content((String = "text/event-stream"), (ChatAnswer = "application/json")),
            headers(("X-Run-Id" = String, description = "The run, to cancel it or to go on with it")),
            description = "Events `run`, `text`, `tool_call`, `tool_result`, `display`, `approval`, `retry`, `error`, `done`; with `Accept: application/json` one answer"),
        (status = "default", body = Envelope)))]
pub async fn chat(
    State(app): State<App>,
    AgentUser(caller): AgentUser,
    Path(reference): Path<Reference>,
    headers: HeaderMap,
    Trace(trace_id): Trace,
    Body(chat): Body<Chat>,
) -> Result<Response, ApiError> {
    let said = said(&chat)?;
    let limits = limits(&chat, app.agents.settings().limits)?;
    if chat.model.as_ref().is_some_and(|model| !(1..=MODEL_CHARS_MAX).contains(&model.chars().count())) {
        return Err(ApiError::invalid(
            "model",
            format!("a model's name has 1 to {MODEL_CHARS_MAX} characters"),
        ));
    }
    let project = project(&app, &caller, &reference).await?;
    let turn = Turn {
        project,
        said,
        model: chat.model,
        system: chat.system,
        resume: chat.run_id.map(RunId),
        limits,
        tools: chat.tools.unwrap_or_default(),
        approve: chat.approve,
        caller: caller.name(),
        trace_id: trace_id.clone(),
    };
    let (run, listener) = app.agents.begin(turn).await?;
    let mut response = if wants_json(&headers) {
        Json(whole(run, listener).await?).into_response()
    } else {
        streamed(run, listener, trace_id).await?
    };
    if let Ok(value) = HeaderValue::from_str(&run.to_string()) {
        response.headers_mut().insert(RUN_ID, value);
    }
    Ok(response)
}

fn wants_json(headers: &HeaderMap) -> bool {
    let accept = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    accept.contains("application/json") && !accept.contains("text/event-stream")
}

/// What was sent, as blocks.
fn said(chat: &Chat) -> Result<Vec<(Speaker, Blocks)>, ApiError> {
    let messages = match (&chat.message, &chat.messages) {
        (Some(_), Some(_)) => {
            return Err(ApiError::invalid("messages", "give `message` or `messages`, not both"));
        }
        (None, None) if chat.run_id.is_some() => return Ok(Vec::new()),
        (None, None) => {
            return Err(ApiError::invalid("message", "there is nothing to say; give a `message`"));
        }
        (Some(text), None) if text.trim().is_empty() => {
            return Err(ApiError::invalid(
                "message",
                "a message has at least one character that can be seen",
            ));
        }
        (Some(text), None) => return Ok(vec![(Speaker::User, vec![text_block(text)])]),
        (None, Some(messages)) => messages,
    };
    if messages.len() > MESSAGES_MAX {
        return Err(ApiError::invalid("messages", format!("at most {MESSAGES_MAX} messages are taken")));
    }
    if messages.last().is_none_or(|last| last.role != ChatRole::User) {
        return Err(ApiError::invalid("messages", "the last of the messages is the user's"));
    }
    let said: Result<Vec<_>, ApiError> = messages
        .iter()
        .enumerate()
        .map(|(at, message)| {
            let speaker = match message.role {
                ChatRole::User => Speaker::User,
                ChatRole::Assistant => Speaker::Assistant,
            };
            let blocks = blocks(&message.content).ok_or_else(|| {
                let field = format!("messages[{at}].content");
                ApiError::invalid(
                    field,
                    "the content is a text, or an array of content blocks, and not empty",
                )
            })?;
            Ok((speaker, blocks))
        })
        .collect();
    said
}

fn blocks(content: &RawValue) -> Option<Blocks> {
    if content.get().starts_with('"') {
        let text: String = serde_json::from_str(content.get()).ok()?;
        return (!text.trim().is_empty()).then(|| vec![text_block(&text)]);
    }
    let blocks: Vec<Box<RawValue>> = serde_json::from_str(content.get()).ok()?;
    let are_objects = blocks.iter().all(|block| block.get().starts_with('{'));
    (are_objects && !blocks.is_empty()).then_some(blocks)
}

fn text_block(text: &str) -> Box<RawValue> {
    let block = json!({"type": "text", "text": text});
    serde_json::value::to_raw_value(&block).unwrap_or_else(|_| RawValue::NULL.to_owned())
}

/// What this turn may use: what it asks for, and never more than the server allows.
fn limits(chat: &Chat, allowed: Limits) -> Result<Limits, ApiError> {
    let within = |field: &str, asked: Option<u64>, max: u64| match asked {
        Some(0) => Err(ApiError::invalid(field, format!("`{field}` is at least 1"))),
        asked => Ok(asked.map_or(max, |asked| asked.min(max))),
    };
    let time_ms = u64::try_from(allowed.time.as_millis()).unwrap_or(u64::MAX);
    Ok(Limits {
        steps: within("max_steps", chat.max_steps, allowed.steps)?,
        tokens: within("max_tokens", chat.max_tokens, allowed.tokens)?,
        time: Duration::from_millis(within("max_time_ms", chat.max_time_ms, time_ms)?),
    })
}

/// Everything in one answer.
async fn whole(run: RunId, mut listener: Listener) -> Result<ChatAnswer, ApiError> {
    let mut calls: Vec<ChatCall> = Vec::new();
    while let Some(told) = listener.next().await {
        match told {
            Told::Event(Event::ToolCall { id, name, server, input }) => {
                calls.push(ChatCall { id, name, server, input, status: None, duration_ms: None });
            }
            Told::Event(Event::ToolResult { id, status, duration, .. }) => {
                if let Some(call) = calls.iter_mut().rev().find(|call| call.id == id) {
                    (call.status, call.duration_ms) = (Some(status), Some(ms(duration)));
                }
            }
            Told::Done(ended) => {
                if let Some(error) = failure(&ended) {
                    return Err(error);
                }
                let Ended { run: run_id, outcome } = ended;
                let (status, reason, text) = (outcome.status, outcome.reason, outcome.text);
                return Ok(ChatAnswer {
                    run_id,
                    status,
                    reason,
                    text,
                    usage: outcome.usage,
                    tool_calls: calls,
                });
            }
            Told::Event(_) | Told::Approval(_) | Told::LeftBehind => {}
        }
    }
    let message = "this run ended without a word; its record tells more";
    Err(ApiError::new(cofer_model::Kind::Internal, message).with("run_id", run.to_string()))
}

/// Why a run failed, if it did.
fn failure(ended: &Ended) -> Option<ApiError> {
    let failure = ended.outcome.error.as_ref()?;
    Some(ApiError::new(failure.kind(), failure.to_string()).with("run_id", ended.run.to_string()))
}

/// Everything as it comes.
async fn streamed(run: RunId, mut listener: Listener, trace_id: String) -> Result<Response, ApiError> {
    let first = match tokio::time::timeout(STATUS_WITHIN, listener.next()).await {
        Ok(Some(Told::Done(ended))) => match failure(&ended) {
            Some(error) => return Err(error),
            None => Some(Told::Done(ended)),
        },
        Ok(first) => first,
        Err(_) => None,
    };
    let begun = stream::iter([event("run", &json!({"run_id": run}))]);
    let trace = trace_id.clone();
    let first = stream::iter(first.map(|told| events(told, run, &trace)).unwrap_or_default());
    let rest = stream::unfold(listener, async |mut listener| Some((listener.next().await?, listener)));
    let rest = rest.flat_map(move |told| stream::iter(events(told, run, &trace_id)));
    let all = begun.chain(first).chain(rest).map(Ok::<_, Infallible>);
    Ok(Sse::new(all).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response())
}

/// What is sent of something that was told.
fn events(told: Told, run: RunId, trace_id: &str) -> Vec<Sent> {
    match told {
        Told::Event(Event::Text { delta }) => vec![event("text", &json!({"delta": delta}))],
        Told::Event(Event::ToolCall { id, name, server, input }) => {
            vec![event("tool_call", &Called { id, name, server, input })]
        }
        Told::Event(Event::ToolResult { id, name, status, duration, content }) => {
            vec![event("tool_result", &Answered { id, name, status, duration_ms: ms(duration), content })]
        }
        Told::Event(Event::Display { name, input }) => vec![event("display", &Shown { name, input })],
        Told::Event(Event::Retry { wait, reason }) => {
            vec![event("retry", &json!({"wait_ms": ms(wait), "reason": reason}))]
        }
        Told::Approval(asked) => vec![event("approval", &asked)],
        Told::LeftBehind => {
            let message =
                format!("this stream was not read fast enough; the run goes on, see agent-runs/{run}");
            let error =
                ApiError::new(cofer_model::Kind::LimitExceeded, message).with("run_id", run.to_string());
            vec![event("error", &error.envelope(trace_id.to_owned()))]
        }
        Told::Done(ended) => {
            let error = failure(&ended).map(|error| event("error", &error.envelope(trace_id.to_owned())));
            error.into_iter().chain([event("done", &done(&ended))]).collect()
        }
    }
}

fn done(ended: &Ended) -> Value {
    let outcome = &ended.outcome;
    json!({
        "run_id": ended.run,
        "status": outcome.status,
        "reason": outcome.reason,
        "text": outcome.text,
        "usage": outcome.usage,
    })
}

#[derive(Serialize)]
struct Called {
    id: String,
    name: String,
    server: String,
    input: Box<RawValue>,
}

#[derive(Serialize)]
struct Answered {
    id: String,
    name: String,
    status: CallStatus,
    duration_ms: u64,
    content: Box<RawValue>,
}

#[derive(Serialize)]
struct Shown {
    name: String,
    input: Box<RawValue>,
}

fn event(name: &str, data: &impl Serialize) -> Sent {
    // JSON has no line breaks but in texts, where they are escaped.
    let data = serde_json::to_string(data).unwrap_or_default().replace(['\n', '\r'], " ");
    Sent::default().event(name).data(data)
}

fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
