//! `GET /api/v1/mcp/hosted/:id/logs`: what a server writes to stderr, now and as it comes.

use std::convert::Infallible;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use cofer_model::{Moment, Reference};
use cofer_sandbox::LogStream;
use cofer_supervisor::{LogBook, LogLine};
use futures_util::stream::{self, Stream, StreamExt};
use serde::{Deserialize, Serialize};
use tokio::sync::broadcast::error::RecvError;

use super::external::external;
use super::hosted::server;
use crate::app::App;
use crate::auth::Reader;
use crate::http::ApiError;
use crate::http::error::Envelope;
use crate::http::extract::{Path, Query};

const TAIL_DEFAULT: usize = 200;
const TAIL_MAX: usize = 10_000;
const KEEP_ALIVE: Duration = Duration::from_secs(15);

#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct Which {
    /// So many of the newest lines.
    #[param(maximum = 10_000)]
    tail: Option<usize>,
    /// Stays, and sends each new line as a server-sent event.
    #[serde(default)]
    follow: bool,
    /// Id or name.
    #[param(value_type = Option<String>)]
    project: Option<Reference>,
}

/// Its log: lines with times, oldest first.
#[utoipa::path(get, path = "/{server}/logs", tag = "hosted servers", security(("bearer" = ["admin:read"])),
    params(("server" = String, Path, description = "Id or name"), Which),
    responses((status = 200, content((Vec<Line> = "application/json"), (String = "text/event-stream"))),
        (status = "default", body = Envelope)))]
pub async fn logs(
    State(app): State<App>,
    Reader(caller): Reader,
    Path(reference): Path<String>,
    Query(which): Query<Which>,
) -> Result<Response, ApiError> {
    let entry = server(&app, &caller, which.project.as_ref(), &reference).await?;
    let mut truth = entry.supervised.truth();
    let gone = async move {
        // An error says that its driver ended.
        let _ = truth.wait_for(|truth| truth.gone).await;
    };
    lines(&app, entry.supervised.logs(), which.tail, which.follow, gone)
}

#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct Lines {
    /// So many of the newest lines.
    #[param(maximum = 10_000)]
    tail: Option<usize>,
    /// Stays, and sends each new line as a server-sent event.
    #[serde(default)]
    follow: bool,
}

/// What an external server that is a child process wrote to stderr, oldest first.
#[utoipa::path(get, path = "/api/v1/projects/{project}/mcp-servers/{server}/logs", tag = "external servers",
    security(("bearer" = ["admin:read"])),
    params(("project" = String, Path, description = "Id or name"), ("server" = String, Path, description = "Id or name"), Lines),
    responses((status = 200, content((Vec<Line> = "application/json"), (String = "text/event-stream"))),
        (status = "default", body = Envelope)))]
pub async fn external_logs(
    State(app): State<App>,
    Reader(caller): Reader,
    Path((reference, server)): Path<(Reference, Reference)>,
    Query(which): Query<Lines>,
) -> Result<Response, ApiError> {
    let project = caller.project(&app.store, &reference).await?;
    let found = external(&app, &project, &server).await?;
    lines(&app, &app.shelf.book(found.id), which.tail, which.follow, std::future::pending())
}

fn lines(
    app: &App,
    book: &LogBook,
    tail: Option<usize>,
    is_followed: bool,
    gone: impl Future<Output = ()> + Send + 'static,
) -> Result<Response, ApiError> {
    let tail = tail.unwrap_or(TAIL_DEFAULT);
    if tail > TAIL_MAX {
        return Err(ApiError::invalid("tail", format!("at most {TAIL_MAX} lines are kept")));
    }
    if !is_followed {
        let lines: Vec<_> = book.tail(tail).iter().map(|line| Line::of(line)).collect();
        return Ok(Json(lines).into_response());
    }
    let lines = follow(book, tail, gone).take_until(app.stopping.clone().cancelled_owned());
    Ok(Sse::new(lines).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response())
}

/// The newest lines, then each as it comes, until the server is removed.
fn follow<G: Future<Output = ()> + Send + 'static>(
    book: &LogBook,
    tail: usize,
    gone: G,
) -> impl Stream<Item = Result<Event, Infallible>> + use<G> {
    let (before, coming) = book.follow(tail);
    // Whoever does not keep up is told that lines were left out.
    let coming = stream::unfold(coming, async |mut coming| match coming.recv().await {
        Ok(line) => Some((event(&line), coming)),
        Err(RecvError::Lagged(lines)) => {
            Some((Event::default().comment(format!("{lines} lines left out")), coming))
        }
        Err(RecvError::Closed) => None,
    });
    let before = stream::iter(before).map(|line| event(&line));
    before.chain(coming).take_until(Box::pin(gone)).map(Ok)
}

fn event(line: &LogLine) -> Event {
    // A line is text and times: it can always be written.
    Event::default().json_data(Line::of(line)).unwrap_or_default()
}

/// A line as it is sent.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = LogLine)]
#[expect(clippy::struct_field_names, reason = "the contract names its fields")]
pub struct Line {
    at: Moment,
    /// `stderr`, or `stdout` of a server without a bridge.
    #[schema(value_type = String)]
    stream: &'static str,
    line: String,
}

impl Line {
    fn of(line: &LogLine) -> Self {
        let stream = match line.stream {
            LogStream::Stdout => "stdout",
            LogStream::Stderr => "stderr",
        };
        Self { at: line.at, stream, line: line.line.clone() }
    }
}
