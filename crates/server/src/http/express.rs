//! The express lane: calls go past the router and its layers, straight to whoever answers them.
//!
//! Finding a route, a span for the log and the layers around both cost more than a call itself does. So the two doors through which
//! calls come by the thousand are recognised here, by nothing but their path. What they answer is the same as what they answer through
//! the router, where they are mounted as well: for whatever is unusual (a query, an escaped name, traces that are exported) goes there.

use std::panic::AssertUnwindSafe;

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderValue, Method};
use axum::response::{IntoResponse, Response};
use cofer_model::{Kind, Reference};
use futures_util::FutureExt;

use super::error::ApiError;
use super::observe::{self, Count};
use super::router::too_busy;
use crate::app::App;
use crate::routes::{hosted_calls, mcp};
use crate::telemetry::metrics::Express;

static MCP: Express = Express::new("/mcp");
static PROJECT_MCP: Express = Express::new("/projects/{project}/mcp");
static HOSTED_CALL: Express = Express::new("/api/v1/mcp/hosted/{server}/call");
static SERVER_CALL: Express = Express::new("/api/v1/mcp/servers/{server}/call");

/// Where a call goes.
#[derive(Debug, PartialEq, Eq)]
enum Lane {
    Mcp { project: Option<String> },
    Hosted { server: String },
}

impl Lane {
    fn of(request: &Request) -> Option<(Self, &'static Express)> {
        let uri = request.uri();
        if request.method() != Method::POST || uri.query().is_some() || uri.path().contains('%') {
            return None;
        }
        Self::at(uri.path())
    }

    fn at(path: &str) -> Option<(Self, &'static Express)> {
        if path == "/mcp" {
            return Some((Self::Mcp { project: None }, &MCP));
        }
        let one = |rest: &str, end: &str| {
            rest.strip_suffix(end)
                .filter(|name| !name.is_empty() && !name.contains('/'))
                .map(ToOwned::to_owned)
        };
        if let Some(rest) = path.strip_prefix("/projects/") {
            return Some((Self::Mcp { project: Some(one(rest, "/mcp")?) }, &PROJECT_MCP));
        }
        let rest = path.strip_prefix("/api/v1/mcp/")?;
        let (rest, figures) = match rest.strip_prefix("hosted/") {
            Some(rest) => (rest, &HOSTED_CALL),
            None => (rest.strip_prefix("servers/")?, &SERVER_CALL),
        };
        Some((Self::Hosted { server: one(rest, "/call")? }, figures))
    }
}

/// Answers what belongs here, and gives back the rest.
pub(super) async fn answer(app: &App, request: Request) -> Result<Response, Request> {
    if app.exports_traces {
        return Err(request);
    }
    let Some((lane, figures)) = Lane::of(&request) else { return Err(request) };
    let trace_id = observe::trace_id_of(request.headers());
    let request_id = observe::request_id(request.headers());
    let mut count = Count::on(figures);
    let answered = AssertUnwindSafe(lane.answer(app, &trace_id, request)).catch_unwind().await;
    let mut response = answered.unwrap_or_else(|_| {
        ApiError::new(Kind::Internal, "Cofer made a mistake; the log tells more under this trace id")
            .into_response()
    });
    if let Some(error) = response.extensions_mut().remove::<ApiError>() {
        observe::log_express(&error, figures.route, &trace_id);
        response = error.render(trace_id.clone());
    }
    count.status = response.status().as_u16();
    let request_id = request_id.or_else(|| HeaderValue::from_str(&trace_id).ok());
    response.headers_mut().extend(request_id.map(|id| (observe::REQUEST_ID, id)));
    Ok(response)
}

impl Lane {
    async fn answer(self, app: &App, trace_id: &str, request: Request<Body>) -> Response {
        let Ok(_permit) = app.requests.try_acquire() else { return too_busy(app).into_response() };
        match self {
            Self::Mcp { project } => {
                let project = project.map(|project| {
                    let Ok(reference) = project.parse::<Reference>();
                    reference
                });
                mcp::express(app, project, trace_id, request).await
            }
            Self::Hosted { server } => hosted_calls::express(app, &server, trace_id, request).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_doors_of_calls_are_on_the_express_lane() {
        let lane = |path: &str| Lane::at(path).map(|(lane, figures)| (lane, figures.route));
        let mcp = |project: Option<&str>| Lane::Mcp { project: project.map(ToOwned::to_owned) };
        assert_eq!(lane("/mcp"), Some((mcp(None), "/mcp")));
        assert_eq!(lane("/projects/a/mcp"), Some((mcp(Some("a")), "/projects/{project}/mcp")));
        let hosted = Lane::Hosted { server: "x".to_owned() };
        assert_eq!(lane("/api/v1/mcp/hosted/x/call"), Some((hosted, "/api/v1/mcp/hosted/{server}/call")));
        for other in [
            "/",
            "/mcp/",
            "/projects/a/b/mcp",
            "/projects//mcp",
            "/api/v1/mcp/hosted/x/restart",
            "/api/v1/mcp/hosted//call",
        ] {
            assert_eq!(lane(other), None, "{other}");
        }
    }
}
