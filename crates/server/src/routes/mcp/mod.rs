//! `/mcp` and `/projects/:project/mcp`: a project's tools, resources and prompts for MCP clients, over streamable HTTP.
//!
//! ```text
//!   POST ─► request ─┬─ answered before anything else is said ─► JSON
//!                    └─ otherwise ─► stream of events: what is said meanwhile, then the answer
//!   GET  ─► stream of events that belong to no call; with `Last-Event-ID`, whatever was missed on any stream
//! ```
//!
//! Requests that stand alone, as since 2026-07-28, are told by what they say of themselves, and taken by [`alone`]. For the others there
//! are sessions: a stream can be left and read on from any connection: the call it belongs to goes on. A call that was left before anything was said on
//! it is called off, because nobody could ever find its answer.

mod alone;

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{FromRef, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::{Bytes, BytesMut};
use cofer_gateway::alone::Asked;
use cofer_gateway::endpoint::{self, Answered, Exchange, HANDSHAKE_VERSIONS, Received};
use cofer_gateway::{Caller as Recorded, Next, Outbox, Project, Reading, Session};
use cofer_mcp::client::FromClient;
use cofer_mcp::era::STANDALONE_VERSION;
use cofer_mcp::message::{Reply, RpcError, response};
use cofer_model::project::DEFAULT_PROJECT;
use cofer_model::{Kind, Reference};
use futures_util::stream;
use serde_json::value::RawValue;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::tools;
use crate::app::App;
use crate::auth::{Caller, McpUser};
use crate::http::ApiError;
use crate::http::express::{CallAnswer, Posted, Said};
use crate::http::extract::{BodyLimits, Given, Path, require_json};
use crate::http::observe::Trace;

pub(crate) const SESSION_ID: HeaderName = HeaderName::from_static("mcp-session-id");
pub(crate) const PROTOCOL_VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
/// After this long without an answer a stream is opened, so that whoever is between sees that somebody is there.
const STREAM_AFTER: Duration = Duration::from_secs(5);
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// From this version on, a stream begins with an event that says nothing, so that it can be resumed from its beginning.
const PRIMED_SINCE: &str = "2025-11-25";

/// Who is asking, and for which project.
struct Visitor {
    caller: McpUser,
    reference: Option<Reference>,
}

/// How a client speaks, by the headers of its request.
#[derive(Debug)]
pub(crate) struct Manner {
    sends_json: bool,
    takes_streams: bool,
    version: Version,
    session_id: Option<HeaderValue>,
}

/// Of which version a request is.
#[derive(Debug, PartialEq, Eq)]
enum Version {
    /// Or does not say of which.
    Handshake,
    Standalone,
    Unknown,
}

impl Manner {
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        let session_id = headers.get(SESSION_ID).cloned();
        let version = match headers.get(PROTOCOL_VERSION) {
            Some(version) if version == STANDALONE_VERSION && session_id.is_none() => Version::Standalone,
            Some(version) if !HANDSHAKE_VERSIONS.iter().any(|known| version == known) => Version::Unknown,
            _ => Version::Handshake,
        };
        let (sends_json, takes_streams) = (require_json(headers).is_ok(), takes_streams(headers));
        Self { sends_json, takes_streams, version, session_id }
    }

    fn stands_alone(&self) -> bool {
        self.version == Version::Standalone
    }
}

pub async fn post_default(
    State(app): State<App>,
    caller: McpUser,
    trace_id: Trace,
    request: Request,
) -> Response {
    let (Parts { headers, uri, .. }, body) = request.into_parts();
    let visitor = Visitor { caller, reference: None };
    post(&app, visitor, trace_id, &Said::new(headers, uri), Given::Coming(body)).await.into_response()
}

pub async fn post_project(
    State(app): State<App>,
    caller: McpUser,
    Path(reference): Path<Reference>,
    trace_id: Trace,
    request: Request,
) -> Response {
    let (Parts { headers, uri, .. }, body) = request.into_parts();
    let visitor = Visitor { caller, reference: Some(reference) };
    post(&app, visitor, trace_id, &Said::new(headers, uri), Given::Coming(body)).await.into_response()
}

pub async fn get_default(State(app): State<App>, caller: McpUser, headers: HeaderMap) -> Response {
    listen(&app, &Visitor { caller, reference: None }, &headers).into_response()
}

pub async fn get_project(
    State(app): State<App>,
    caller: McpUser,
    Path(reference): Path<Reference>,
    headers: HeaderMap,
) -> Response {
    listen(&app, &Visitor { caller, reference: Some(reference) }, &headers).into_response()
}

pub async fn delete_default(State(app): State<App>, caller: McpUser, headers: HeaderMap) -> Response {
    leave(&app, &Visitor { caller, reference: None }, &headers).into_response()
}

pub async fn delete_project(
    State(app): State<App>,
    caller: McpUser,
    Path(reference): Path<Reference>,
    headers: HeaderMap,
) -> Response {
    leave(&app, &Visitor { caller, reference: Some(reference) }, &headers).into_response()
}

/// The same past the router.
pub(crate) async fn express(
    app: &App,
    reference: Option<Reference>,
    trace_id: &str,
    posted: &mut Posted,
) -> Result<CallAnswer, ApiError> {
    let caller = McpUser::admitted(&posted.asking(), app).await?;
    let visitor = Visitor { caller, reference };
    let body = posted.take_body();
    post(app, visitor, Trace(trace_id.to_owned()), &posted.said, body).await
}

async fn post(
    app: &App,
    visitor: Visitor,
    trace_id: Trace,
    said: &Said,
    body: Given,
) -> Result<CallAnswer, ApiError> {
    let Said { headers, manner, .. } = said;
    if !manner.sends_json {
        require_json(headers)?;
    }
    let body = body.read(BodyLimits::from_ref(app)).await?;
    let message = match FromClient::parse(&body) {
        Ok(message) => message,
        Err(error) => return Ok(refused(&error)),
    };
    let owner = visitor.caller.owner();
    let caller = Recorded { name: visitor.caller.name(), trace_id: trace_id.0, ..Recorded::default() };
    match &message {
        FromClient::Request { id, method, params } if method == "initialize" && !manner.stands_alone() => {
            return Box::pin(open(app, &visitor, id, *params)).await;
        }
        FromClient::Request { id, method, params } => match Asked::read(id, method, *params, owner) {
            Ok(Some(asked)) => {
                let project = Box::pin(project_of(app, &visitor)).await?;
                return Ok(Box::pin(alone::post(app, project, asked, said, caller)).await);
            }
            Ok(None) if manner.stands_alone() => return Ok(alone::unintroduced(id)),
            Ok(None) => {}
            Err(error) => return Ok(alone::refused(id, error)),
        },
        // There is nothing that anybody could have to say so.
        FromClient::Notification { .. } if manner.stands_alone() => return Ok(accepted()),
        FromClient::Notification { .. } | FromClient::Answer { .. } => {}
    }
    let (project, session) = find(app, &visitor, manner)?;
    match endpoint::receive(&project, &session, message, caller) {
        Received::Accepted => Ok(accepted()),
        Received::Exchange(exchange) => Ok(answer(&session, exchange, manner.takes_streams).await),
    }
}

async fn open(
    app: &App,
    visitor: &Visitor,
    id: &RawValue,
    params: Option<&RawValue>,
) -> Result<CallAnswer, ApiError> {
    let project = project_of(app, visitor).await?;
    match endpoint::open_session(&project, id, params, visitor.caller.owner()) {
        Ok((session, hello)) => {
            let mut response = json(StatusCode::OK, hello).into_response();
            let id = HeaderValue::from_str(&session.id).unwrap_or_else(|_| HeaderValue::from_static(""));
            response.headers_mut().insert(SESSION_ID, id);
            Ok(response.into())
        }
        Err(error) => Ok(json(StatusCode::BAD_REQUEST, response(id, &Reply::Error(error)))),
    }
}

/// The project that this visitor asks for.
async fn project_of(app: &App, visitor: &Visitor) -> Result<Arc<Project>, ApiError> {
    let default = Reference::Name(DEFAULT_PROJECT.to_owned());
    let reference = visitor.reference.as_ref().unwrap_or(&default);
    let may_see = |project: &Arc<Project>| match &visitor.caller {
        McpUser::Token(caller) => caller.may_see(project.id),
        McpUser::Anybody => true,
    };
    if let Some(project) = app.gateway.in_use(reference).filter(may_see) {
        return Ok(project);
    }
    match &visitor.caller {
        McpUser::Token(caller) => tools::project(app, caller, reference).await,
        McpUser::Anybody => {
            let found = app.store.project(reference).await?;
            let found = found.ok_or_else(|| ApiError::not_found("project", reference))?;
            let ready = app.gateway.project(found.id).await;
            let ready = ready.map_err(|error| ApiError::new(Kind::Unavailable, error))?;
            ready.ok_or_else(|| ApiError::not_found("project", reference))
        }
    }
}

/// The session that this request names, if it is this visitor's.
fn find(app: &App, visitor: &Visitor, manner: &Manner) -> Result<(Arc<Project>, Arc<Session>), ApiError> {
    if manner.version != Version::Handshake {
        let known = HANDSHAKE_VERSIONS.join(", ");
        let message = format!("this MCP-Protocol-Version is not spoken here; these are: {known}");
        return Err(ApiError::new(Kind::Malformed, message));
    }
    let id = manner.session_id.as_ref().ok_or_else(|| {
        ApiError::new(Kind::Malformed, "the header Mcp-Session-Id is missing; begin with `initialize`")
    })?;
    let unknown = || ApiError::new(Kind::NotFound, "there is no such session; begin anew with `initialize`");
    let (project, session) = id.to_str().ok().and_then(|id| app.gateway.session(id)).ok_or_else(unknown)?;
    let is_here = match &visitor.reference {
        None => *project.name() == *DEFAULT_PROJECT,
        Some(Reference::Name(name)) => *project.name() == **name,
        Some(Reference::Id(id)) => project.id.0 == *id,
    };
    if !is_here || session.owner != visitor.caller.owner() || session.is_closed() {
        return Err(unknown());
    }
    Ok((project, session))
}

async fn answer(session: &Arc<Session>, exchange: Exchange, takes_streams: bool) -> CallAnswer {
    let Exchange { stream, mut answer, .. } = exchange;
    if takes_streams {
        tokio::select! {
            biased;
            // First: what was said with it goes with it.
            answer = &mut answer => return whole(session, stream, answer),
            _ = stream.after(0) => {}
            () = sleep(STREAM_AFTER) => {}
        }
    } else {
        let answer = answer.await;
        return answer.map_or_else(accepted, |answer| json(StatusCode::OK, answer.message));
    }
    session.keep(&stream);
    let answering = stream.clone();
    // Ends with the call, which ends with the session at the latest.
    tokio::spawn(async move {
        answering.finish(answer.await.map(|answer| answer.message));
    });
    events(session, stream, 0, CancellationToken::new()).into()
}

/// The answer came before anything else was said, or with it.
fn whole(session: &Arc<Session>, stream: Arc<Outbox>, answer: Option<Answered>) -> CallAnswer {
    match answer.map(|answer| answer.message) {
        Some(answer) if stream.is_unused() => json(StatusCode::OK, answer),
        answer => {
            stream.finish(answer);
            session.keep(&stream);
            events(session, stream, 0, CancellationToken::new()).into()
        }
    }
}

fn listen(app: &App, visitor: &Visitor, headers: &HeaderMap) -> Result<Response, ApiError> {
    let manner = Manner::of(headers);
    if manner.stands_alone() {
        return Ok(alone::only_posts());
    }
    let (_, session) = find(app, visitor, &manner)?;
    if !manner.takes_streams {
        let message = "a stream of events is sent here; ask for it with `Accept: text/event-stream`";
        return Err(ApiError::new(Kind::MethodNotAllowed, message));
    }
    session.note_use();
    let Some(last) = headers.get(LAST_EVENT_ID) else {
        let general = session.general.clone();
        // What was said before anybody listened is heard now; what another stream has carried is not carried twice.
        let from = session.general_heard();
        return Ok(events(&session, general, from, app.stopping.clone()));
    };
    let found = last.to_str().ok().and_then(|last| last.split_once('-')).and_then(|(stream, number)| {
        Some((session.find_stream(stream.parse().ok()?)?, number.parse().ok()?))
    });
    let (stream, from) = found.ok_or_else(|| {
        ApiError::new(Kind::NotFound, "what was said on that stream is not kept any more; ask again")
    })?;
    // What belongs to no call would go on for ever.
    let until = if stream.stream == 0 { app.stopping.clone() } else { CancellationToken::new() };
    Ok(events(&session, stream, from, until))
}

fn leave(app: &App, visitor: &Visitor, headers: &HeaderMap) -> Result<Response, ApiError> {
    let manner = Manner::of(headers);
    if manner.stands_alone() {
        return Ok(alone::only_posts());
    }
    let (project, session) = find(app, visitor, &manner)?;
    project.dismiss(&session.id);
    Ok(StatusCode::NO_CONTENT.into_response())
}

fn takes_streams(headers: &HeaderMap) -> bool {
    let accepts = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    accepts.flat_map(|value| value.rsplit(',')).any(|kind| {
        let kind = kind.split_once(';').map_or(kind, |(kind, _)| kind).trim_ascii();
        kind.eq_ignore_ascii_case("text/event-stream") || kind == "*/*" || kind.eq_ignore_ascii_case("text/*")
    })
}

pub(super) fn json(status: StatusCode, mut message: Vec<u8>) -> CallAnswer {
    while message.last() == Some(&b'\n') {
        message.pop();
    }
    CallAnswer::Json(status, message)
}

fn accepted() -> CallAnswer {
    StatusCode::ACCEPTED.into_response().into()
}

/// What is no message of JSON-RPC has no id to answer to.
fn refused(error: &RpcError) -> CallAnswer {
    json(StatusCode::BAD_REQUEST, response(RawValue::NULL, &Reply::Error(error.clone())))
}

struct Feed {
    session: Arc<Session>,
    outbox: Arc<Outbox>,
    /// The last message that was sent.
    sent: u64,
    /// What was carried up to here before it began is carried again, because it was asked for.
    repeats_to: u64,
    is_primed: bool,
    /// When it ends at the latest.
    until: CancellationToken,
    _reading: Reading,
}

/// A stream of events from an outbox, from after this message on.
fn events(session: &Arc<Session>, outbox: Arc<Outbox>, sent: u64, until: CancellationToken) -> Response {
    let is_primed = session.protocol_version < PRIMED_SINCE || sent > 0;
    let (reading, repeats_to) = (session.reads(), session.general_heard());
    let session = session.clone();
    let feed = Feed { session, outbox, sent, repeats_to, is_primed, until, _reading: reading };
    let body = stream::unfold(feed, |mut feed| async move {
        let event = feed.next().await?;
        Some((Ok::<_, std::convert::Infallible>(event), feed))
    });
    let mut response = Response::new(Body::from_stream(body));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache, no-transform"));
    response
}

impl Feed {
    async fn next(&mut self) -> Option<Bytes> {
        if !self.is_primed {
            self.is_primed = true;
            return Some(Bytes::from(format!("id: {}-0\ndata: \n\n", self.outbox.stream)));
        }
        loop {
            let next = tokio::select! {
                biased;
                next = timeout(KEEP_ALIVE, self.outbox.after(self.sent)) => next,
                () = self.session.closed() => return None,
                () = self.until.cancelled() => return None,
            };
            match next {
                Ok(Next::Message(number, message)) => {
                    self.sent = number;
                    if self.is_mine(number) {
                        return Some(event(self.outbox.stream, number, &message));
                    }
                }
                Ok(Next::End) => return None,
                Err(_quiet) => return Some(Bytes::from_static(b": still here\n\n")),
            }
        }
    }

    fn is_mine(&self, number: u64) -> bool {
        self.outbox.stream != 0 || number <= self.repeats_to || self.session.claim_general(number)
    }
}

fn event(stream: u64, number: u64, message: &[u8]) -> Bytes {
    let mut event = BytesMut::with_capacity(message.len() + 48);
    event.extend_from_slice(format!("id: {stream}-{number}\nevent: message\ndata: ").as_bytes());
    event.extend_from_slice(message);
    event.extend_from_slice(b"\n\n");
    event.freeze()
}

impl McpUser {
    fn owner(&self) -> Option<uuid::Uuid> {
        match self {
            Self::Token(caller) => Some(caller.id()),
            Self::Anybody => None,
        }
    }

    fn name(&self) -> String {
        match self {
            Self::Token(caller) => Caller::name(caller),
            Self::Anybody => "anybody".to_owned(),
        }
    }
}
