//! Requests that stand alone (2026-07-28) at the same door: their headers repeat what is in them, and are held to it; leaving the
//! stream of a request calls it off.

use std::borrow::Cow;
use std::sync::Arc;

use axum::body::Body;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::{Bytes, BytesMut};
use cofer_gateway::alone::{self, Asked, Listener};
use cofer_gateway::endpoint::{Answered, Exchange};
use cofer_gateway::{Caller as Recorded, Next, Outbox, Project};
use cofer_mcp::era::{HEADER_MISMATCH, MISSING_CAPABILITY, STANDALONE_VERSION, UNSUPPORTED_VERSION};
use cofer_mcp::message::{INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND, Reply, RpcError, response};
use cofer_mcp::raw;
use data_encoding::BASE64;
use futures_util::future::BoxFuture;
use futures_util::stream;
use serde_json::value::RawValue;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::{KEEP_ALIVE, PROTOCOL_VERSION, STREAM_AFTER, accepted, json};
use crate::app::App;
use crate::http::express::{CallAnswer, Said};

const METHOD: HeaderName = HeaderName::from_static("mcp-method");
const NAME: HeaderName = HeaderName::from_static("mcp-name");
const PARAM_PREFIX: &str = "mcp-param-";
const NOT_BUFFERED: HeaderName = HeaderName::from_static("x-accel-buffering");

/// There are no streams to be had, and no sessions to be ended.
pub(super) fn only_posts() -> Response {
    let message = format!(
        "in version {STANDALONE_VERSION} everything is asked with POST; listen with `subscriptions/listen`"
    );
    let error = Reply::Error(RpcError::new(INVALID_REQUEST, message));
    let mut refusal = json(StatusCode::METHOD_NOT_ALLOWED, response(RawValue::NULL, &error)).into_response();
    refusal.headers_mut().insert(header::ALLOW, HeaderValue::from_static("POST"));
    refusal
}

/// An error of a request that was not even looked at.
pub(super) fn refused(id: &RawValue, error: RpcError) -> CallAnswer {
    let status = if error.code == METHOD_NOT_FOUND { StatusCode::NOT_FOUND } else { StatusCode::BAD_REQUEST };
    json(status, response(id, &Reply::Error(error)))
}

/// One whose headers say that it stands alone, and which itself does not.
pub(super) fn unintroduced(id: &RawValue) -> CallAnswer {
    let message = "`params._meta` does not say which version the request is of, and what its client can do";
    refused(id, RpcError::new(INVALID_PARAMS, message))
}

pub(super) async fn post(
    app: &App,
    project: Arc<Project>,
    asked: Asked<'_>,
    said: &Said,
    caller: Recorded,
) -> CallAnswer {
    if let Err(error) = check(&project, &asked, &said.headers) {
        return refused(asked.id, error);
    }
    if asked.method == "subscriptions/listen" {
        let id = asked.id.to_owned();
        return match alone::listen(&project, &asked, caller) {
            Ok(listener) => listen(listener, id, app.stopping.clone()).into(),
            Err(error) => refused(&id, error),
        };
    }
    answer(alone::receive(&project, asked, caller), said.manner.takes_streams).await
}

/// What is in the headers must be what is in the message, for whoever stands in between has gone by the headers.
fn check(project: &Project, asked: &Asked<'_>, headers: &HeaderMap) -> Result<(), RpcError> {
    let version = &asked.introduction.protocol_version;
    expect(headers, &PROTOCOL_VERSION, version)?;
    expect(headers, &METHOD, asked.method)?;
    let Some(field) = alone::name_field(asked.method) else { return Ok(()) };
    let Some(name) = &asked.name else {
        return Err(RpcError::new(INVALID_PARAMS, format!("`{field}` is missing, or is no text")));
    };
    expect(headers, &NAME, name)?;
    if asked.method == "tools/call" {
        check_params(project, name, asked.params, headers)?;
    }
    Ok(())
}

/// Arguments that a tool wants to see in headers.
fn check_params(
    project: &Project,
    tool: &str,
    params: Option<&RawValue>,
    headers: &HeaderMap,
) -> Result<(), RpcError> {
    let mirrored = project.mirrored(tool);
    if mirrored.is_empty() {
        return Ok(());
    }
    let arguments = params.and_then(|params| raw::at(params, &["arguments"]));
    for param in mirrored.iter() {
        let name = format!("{PARAM_PREFIX}{}", param.header.to_ascii_lowercase());
        let shown = headers.get(&name).map(|value| decoded(&name, value)).transpose()?;
        let meant = arguments.and_then(|arguments| param.value_in(arguments));
        if !param.is_same(shown.as_deref(), meant.as_deref()) {
            return Err(mismatch(&name, shown.as_deref(), meant.as_deref()));
        }
    }
    Ok(())
}

fn expect(headers: &HeaderMap, name: &HeaderName, meant: &str) -> Result<(), RpcError> {
    let shown = headers.get(name).map(|value| decoded(name.as_str(), value)).transpose()?;
    match shown {
        Some(shown) if shown == meant => Ok(()),
        shown => Err(mismatch(name.as_str(), shown.as_deref(), Some(meant))),
    }
}

fn mismatch(name: &str, shown: Option<&str>, meant: Option<&str>) -> RpcError {
    let said = |value: Option<&str>| {
        value.map_or_else(
            || "nothing".to_owned(),
            |value| format!("`{}`", value.chars().take(100).collect::<String>()),
        )
    };
    let message =
        format!("Header mismatch: the header {name} says {}, the message {}", said(shown), said(meant));
    RpcError::new(HEADER_MISMATCH, message)
}

/// As it is, or unwrapped.
fn decoded<'a>(name: &str, value: &'a HeaderValue) -> Result<Cow<'a, str>, RpcError> {
    let bad = || RpcError::new(HEADER_MISMATCH, format!("Header mismatch: the header {name} cannot be read"));
    let text = value.to_str().map_err(|_| bad())?;
    let Some(wrapped) = text.strip_prefix("=?base64?").and_then(|text| text.strip_suffix("?=")) else {
        return Ok(text.into());
    };
    let bytes = BASE64.decode(wrapped.as_bytes()).map_err(|_| bad())?;
    String::from_utf8(bytes).map(Cow::Owned).map_err(|_| bad())
}

async fn answer(exchange: Exchange, takes_streams: bool) -> CallAnswer {
    let Exchange { stream, from, mut answer } = exchange;
    if !takes_streams {
        return whole(answer.await);
    }
    tokio::select! {
        biased;
        _ = stream.after(from) => {}
        done = &mut answer => {
            // What was said before it is told before it.
            if stream.last() == from {
                return whole(done);
            }
            answer = Box::pin(std::future::ready(done));
        }
        () = sleep(STREAM_AFTER) => {}
    }
    let feed = Feed { stream, sent: from, answer: Some(answer) };
    let events = events(stream::unfold(feed, |mut feed| async move {
        let event = feed.next().await?;
        Some((Ok::<_, std::convert::Infallible>(event), feed))
    }));
    events.into()
}

fn whole(answer: Option<Answered>) -> CallAnswer {
    answer.map_or_else(accepted, answered)
}

fn answered(answer: Answered) -> CallAnswer {
    let status = match answer.code {
        Some(METHOD_NOT_FOUND) => StatusCode::NOT_FOUND,
        Some(HEADER_MISMATCH | MISSING_CAPABILITY | UNSUPPORTED_VERSION) => StatusCode::BAD_REQUEST,
        _ => StatusCode::OK,
    };
    json(status, answer.message)
}

fn events(
    body: impl futures_util::Stream<Item = Result<Bytes, std::convert::Infallible>> + Send + 'static,
) -> Response {
    let mut response = Response::new(Body::from_stream(body));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache, no-transform"));
    headers.insert(NOT_BUFFERED, HeaderValue::from_static("no"));
    response
}

fn event(message: &[u8]) -> Bytes {
    let message = message.strip_suffix(b"\n").unwrap_or(message);
    let mut event = BytesMut::with_capacity(message.len() + 24);
    event.extend_from_slice(b"event: message\ndata: ");
    event.extend_from_slice(message);
    event.extend_from_slice(b"\n\n");
    event.freeze()
}

const STILL_HERE: Bytes = Bytes::from_static(b": still here\n\n");

/// What is said while a request is being answered, and then its answer. Dropped, it calls the request off.
struct Feed {
    stream: Arc<Outbox>,
    sent: u64,
    answer: Option<BoxFuture<'static, Option<Answered>>>,
}

impl Feed {
    async fn next(&mut self) -> Option<Bytes> {
        let answer = self.answer.as_mut()?;
        tokio::select! {
            biased;
            next = self.stream.after(self.sent) => match next {
                Next::Message(number, message) => {
                    self.sent = number;
                    Some(event(&message))
                }
                Next::End => None,
            },
            answer = answer => {
                self.answer = None;
                answer.map(|answer| event(&answer.message))
            }
            () = sleep(KEEP_ALIVE) => Some(STILL_HERE),
        }
    }
}

struct Listening {
    listener: Listener,
    id: Box<RawValue>,
    sent: u64,
    stopping: CancellationToken,
    is_over: bool,
}

/// Tells of changes until either side has enough.
fn listen(listener: Listener, id: Box<RawValue>, stopping: CancellationToken) -> Response {
    let reading = listener.session.reads();
    let listening = Listening { listener, id, sent: 0, stopping, is_over: false };
    events(stream::unfold((listening, reading), |(mut listening, reading)| async move {
        let event = listening.next().await?;
        Some((Ok(event), (listening, reading)))
    }))
}

impl Listening {
    async fn next(&mut self) -> Option<Bytes> {
        if self.is_over {
            return None;
        }
        let next = tokio::select! {
            biased;
            next = timeout(KEEP_ALIVE, self.listener.session.general.after(self.sent)) => next,
            () = self.stopping.cancelled() => Ok(Next::End),
        };
        match next {
            Ok(Next::Message(number, message)) => {
                self.sent = number;
                Some(event(&message))
            }
            Ok(Next::End) => {
                self.is_over = true;
                Some(event(&self.listener.farewell(&self.id)))
            }
            Err(_quiet) => Some(STILL_HERE),
        }
    }
}
