//! The express lane: calls go past the router and its layers, straight to whoever answers them.
//!
//! Finding a route, a span for the log and the layers around both cost more than a call itself does. So the two doors through which
//! calls come by the thousand are recognised here, by nothing but their path. What they answer is the same as what they answer through
//! the router, where they are mounted as well: for whatever is unusual (a query, an escaped name, traces that are exported) goes there.

use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;

use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use cofer_model::{Kind, Reference};
use futures_util::FutureExt;

use super::error::ApiError;
use super::extract::Given;
use super::listen::Peer;
use super::observe::{self, Count};
use super::router::too_busy;
use crate::app::App;
use crate::auth::{Asking, Seen};
use crate::routes::{hosted_calls, mcp};
use crate::telemetry::metrics::Express;

static MCP: Express = Express::new("/mcp");
static PROJECT_MCP: Express = Express::new("/projects/{project}/mcp");
static HOSTED_CALL: Express = Express::new("/api/v1/mcp/hosted/{server}/call");
static SERVER_CALL: Express = Express::new("/api/v1/mcp/servers/{server}/call");

pub(super) const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// What is looked at of a request on this lane.
#[derive(Debug)]
pub(crate) struct Posted {
    pub said: Arc<Said>,
    pub peer: Peer,
    pub body: Given,
}

/// The head of a request, and what it comes to: where the same head comes again, nobody has to look again.
#[derive(Debug)]
pub(crate) struct Said {
    pub headers: HeaderMap,
    pub uri: Uri,
    pub manner: mcp::Manner,
    /// By what the caller knows it.
    trace_id: Option<String>,
    request_id: Option<HeaderValue>,
    seen: Seen,
}

impl Said {
    pub(crate) fn new(headers: HeaderMap, uri: Uri) -> Self {
        let (trace_id, request_id) = (observe::callers_trace_id(&headers), observe::request_id(&headers));
        Self { manner: mcp::Manner::of(&headers), trace_id, request_id, seen: Seen::default(), headers, uri }
    }
}

impl Posted {
    pub(crate) fn asking(&self) -> Asking<'_> {
        let Said { headers, uri, seen, .. } = &*self.said;
        Asking { headers, uri, peer: Some(self.peer), seen: Some(seen) }
    }

    /// Once.
    pub(crate) fn take_body(&mut self) -> Given {
        std::mem::replace(&mut self.body, Given::Whole(Bytes::new()))
    }
}

/// What a call is answered: mostly JSON, and then it is no more than its bytes.
#[derive(Debug)]
pub(crate) enum CallAnswer {
    Json(StatusCode, Vec<u8>),
    Other(Response),
}

impl CallAnswer {
    pub(crate) fn status(&self) -> StatusCode {
        match self {
            Self::Json(status, _) => *status,
            Self::Other(response) => response.status(),
        }
    }
}

impl From<Response> for CallAnswer {
    fn from(response: Response) -> Self {
        Self::Other(response)
    }
}

impl IntoResponse for CallAnswer {
    fn into_response(self) -> Response {
        match self {
            Self::Json(status, message) => {
                let mut response = Response::new(Body::from(message));
                *response.status_mut() = status;
                response.headers_mut().insert(header::CONTENT_TYPE, JSON);
                response
            }
            Self::Other(response) => response,
        }
    }
}

/// The same, and by which name it is in the log.
#[derive(Debug)]
pub(super) struct Answered {
    pub answer: CallAnswer,
    pub request_id: Option<HeaderValue>,
}

impl IntoResponse for Answered {
    fn into_response(self) -> Response {
        let mut response = self.answer.into_response();
        response.headers_mut().extend(self.request_id.map(|id| (observe::REQUEST_ID, id)));
        response
    }
}

/// Where a call goes.
#[derive(Debug, PartialEq, Eq)]
enum Place {
    Mcp { project: Option<String> },
    Hosted { server: String },
}

/// One of the ways that calls take.
#[derive(Debug)]
pub(super) struct Lane {
    place: Place,
    figures: &'static Express,
}

impl Lane {
    pub(super) fn of(method: &Method, uri: &Uri) -> Option<Self> {
        if method != Method::POST || uri.query().is_some() { None } else { Self::at(uri.path()) }
    }

    /// Of a POST there.
    pub(super) fn at(path: &str) -> Option<Self> {
        if path == "/mcp" {
            return Some(Self { place: Place::Mcp { project: None }, figures: &MCP });
        }
        if path.contains(['%', '?', '#']) {
            return None;
        }
        let one = |rest: &str, end: &str| {
            rest.strip_suffix(end)
                .filter(|name| !name.is_empty() && !name.contains('/'))
                .map(ToOwned::to_owned)
        };
        if let Some(rest) = path.strip_prefix("/projects/") {
            let place = Place::Mcp { project: Some(one(rest, "/mcp")?) };
            return Some(Self { place, figures: &PROJECT_MCP });
        }
        let rest = path.strip_prefix("/api/v1/mcp/")?;
        let (rest, figures) = match rest.strip_prefix("hosted/") {
            Some(rest) => (rest, &HOSTED_CALL),
            None => (rest.strip_prefix("servers/")?, &SERVER_CALL),
        };
        Some(Self { place: Place::Hosted { server: one(rest, "/call")? }, figures })
    }

    pub(super) async fn answer(self, app: &App, posted: &mut Posted) -> Answered {
        let Self { place, figures } = self;
        let trace_id = posted.said.trace_id.clone().unwrap_or_else(observe::new_trace_id);
        let request_id = posted.said.request_id.clone();
        let mut count = Count::on(figures);
        let answered = {
            let answer = pin!(place.answer(app, &trace_id, posted));
            AssertUnwindSafe(answer).catch_unwind().await
        };
        let answer = answered.unwrap_or_else(|_panic| {
            Err(ApiError::new(Kind::Internal, "Cofer made a mistake; the log tells more under this trace id"))
        });
        let answer = answer.unwrap_or_else(|error| {
            observe::log_express(&error, figures.route, &trace_id);
            error.render(trace_id.clone()).into()
        });
        count.status = answer.status().as_u16();
        Answered { answer, request_id: request_id.or_else(|| HeaderValue::try_from(trace_id).ok()) }
    }
}

impl Place {
    async fn answer(self, app: &App, trace_id: &str, posted: &mut Posted) -> Result<CallAnswer, ApiError> {
        let Ok(_permit) = app.requests.try_acquire() else { return Err(too_busy(app)) };
        match self {
            Self::Mcp { project } => {
                let project = project.map(|project| {
                    let Ok(reference) = project.parse::<Reference>();
                    reference
                });
                mcp::express(app, project, trace_id, posted).await
            }
            Self::Hosted { server } => hosted_calls::express(app, &server, trace_id, posted).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_doors_of_calls_are_on_the_express_lane() {
        let lane = |path: &str| Lane::at(path).map(|lane| (lane.place, lane.figures.route));
        let mcp = |project: Option<&str>| Place::Mcp { project: project.map(ToOwned::to_owned) };
        assert_eq!(lane("/mcp"), Some((mcp(None), "/mcp")));
        assert_eq!(lane("/projects/a/mcp"), Some((mcp(Some("a")), "/projects/{project}/mcp")));
        let hosted = Place::Hosted { server: "x".to_owned() };
        assert_eq!(lane("/api/v1/mcp/hosted/x/call"), Some((hosted, "/api/v1/mcp/hosted/{server}/call")));
        for other in [
            "/",
            "/mcp/",
            "/projects/a/b/mcp",
            "/projects//mcp",
            "/api/v1/mcp/hosted/x/restart",
            "/api/v1/mcp/hosted//call",
            "/mcp?x",
            "/projects/%61/mcp",
        ] {
            assert_eq!(lane(other), None, "{other}");
        }
    }
}
