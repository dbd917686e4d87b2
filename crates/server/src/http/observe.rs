//! The outermost layer: every request gets a name in the log, a place in the metrics, and, if it fails, the envelope.
//!
//! The trace id is the caller's, where they sent a W3C `traceparent`, or a new one. `X-Request-Id` goes back as it came
//! if it is fit to be printed, and is the trace id otherwise.

use std::time::Instant;

use axum::extract::{FromRequestParts, MatchedPath, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method};
use axum::middleware::Next;
use axum::response::Response;
use cofer_model::Kind;
use opentelemetry::Context;
use opentelemetry::trace::{SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId, TraceState};
use tracing::{Instrument, Span};
use tracing_opentelemetry::OpenTelemetrySpanExt;

use super::error::ApiError;
use crate::app::App;
use crate::telemetry::metrics::{self, Express};

pub(super) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const REQUEST_ID_CHARS_MAX: usize = 128;
static METHODS: [Method; 9] = [
    Method::GET,
    Method::HEAD,
    Method::POST,
    Method::PUT,
    Method::PATCH,
    Method::DELETE,
    Method::OPTIONS,
    Method::TRACE,
    Method::CONNECT,
];

/// Names this request in the log, for handlers that name it elsewhere, too.
#[derive(Clone, Debug, Default)]
pub(crate) struct Trace(pub String);

impl<S: Send + Sync> FromRequestParts<S> for Trace {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        Ok(parts.extensions.get::<Self>().cloned().unwrap_or_default())
    }
}

pub(super) async fn observe(State(app): State<App>, mut request: Request, next: Next) -> Response {
    // Methods that nobody knows and addresses that match nothing share one name each: a stranger must not be able to make
    // up new metrics.
    let method = METHODS.iter().find(|known| *known == request.method()).map_or("other", Method::as_str);
    let route = request.extensions().get::<MatchedPath>().map_or("unmatched", MatchedPath::as_str).to_owned();
    let span = tracing::info_span!(
        "request",
        otel.name = tracing::field::Empty,
        otel.kind = tracing::field::Empty,
        method,
        route = %route,
        trace_id = tracing::field::Empty,
        status = tracing::field::Empty
    );
    if app.exports_traces {
        // Only then: in a log line they would say everything twice.
        span.record("otel.name", format!("{method} {route}")).record("otel.kind", "server");
    }
    let trace_id = trace_id(request.headers(), &span);
    span.record("trace_id", &trace_id);
    let request_id = request_id(request.headers()).or_else(|| HeaderValue::from_str(&trace_id).ok());

    request.extensions_mut().insert(Trace(trace_id.clone()));
    let mut count = Count::begin(method, route.clone());
    let mut response = next.run(request).instrument(span.clone()).await;
    if let Some(error) = response.extensions_mut().remove::<ApiError>() {
        span.in_scope(|| log(&error, method, &route));
        response = error.render(trace_id);
    }
    count.status = response.status().as_u16();
    span.record("status", count.status);
    response.headers_mut().extend(request_id.map(|id| (REQUEST_ID, id)));
    response
}

/// Counts the request when it ends, also when its caller left before the answer (status 499, as nginx has it).
pub(super) struct Count {
    of: Counted,
    began: Instant,
    pub(super) status: u16,
}

enum Counted {
    Express(&'static Express),
    Routed { method: &'static str, route: String },
}

impl Count {
    fn begin(method: &'static str, route: String) -> Self {
        metrics::request_began();
        Self { of: Counted::Routed { method, route }, began: Instant::now(), status: 499 }
    }

    pub(super) fn on(express: &'static Express) -> Self {
        express.began();
        Self { of: Counted::Express(express), began: Instant::now(), status: 499 }
    }
}

impl Drop for Count {
    fn drop(&mut self) {
        let took = self.began.elapsed();
        match &self.of {
            Counted::Express(express) => express.ended(self.status, took),
            Counted::Routed { method, route } => metrics::request_ended(method, route, self.status, took),
        }
    }
}

/// Our own faults are for the operator to see; a caller's mistakes only for whoever looks closely.
fn log(error: &ApiError, method: &str, route: &str) {
    let (message, cause) = (&error.message, error.cause.as_deref().unwrap_or("no further cause"));
    match error.kind {
        Kind::Internal => tracing::error!("{method} {route} failed: {message}: {cause}"),
        Kind::Unavailable | Kind::Upstream | Kind::Timeout => {
            tracing::warn!("{method} {route} could not be answered: {message}: {cause}");
        }
        _ => tracing::debug!("{method} {route} refused: {message}"),
    }
}

/// The same for what went past the layers, and so has no span that names it.
pub(super) fn log_express(error: &ApiError, route: &str, trace_id: &str) {
    let span = tracing::info_span!("request", method = "POST", route, trace_id);
    span.in_scope(|| log(error, "POST", route));
}

fn parent_of(headers: &HeaderMap) -> Option<Traceparent> {
    headers.get("traceparent").and_then(|value| Traceparent::parse(value.to_str().ok()?))
}

pub(super) fn callers_trace_id(headers: &HeaderMap) -> Option<String> {
    parent_of(headers).map(|parent| parent.trace_id.to_string())
}

pub(super) fn new_trace_id() -> String {
    uuid::Uuid::new_v4().simple().encode_lower(&mut uuid::Uuid::encode_buffer()).to_owned()
}

/// The caller's trace id if there is one, else that of the exported span, else a new one.
fn trace_id(headers: &HeaderMap, span: &Span) -> String {
    if let Some(parent) = parent_of(headers) {
        let _only_when_traces_are_exported = span.set_parent(parent.context());
        return parent.trace_id.to_string();
    }
    let context = span.context();
    let exported = context.span().span_context().trace_id();
    if exported != TraceId::INVALID {
        return exported.to_string();
    }
    new_trace_id()
}

/// `00-{trace id}-{span id}-{flags}`, as W3C Trace Context has it.
struct Traceparent {
    trace_id: TraceId,
    span_id: SpanId,
    flags: TraceFlags,
}

impl Traceparent {
    fn parse(text: &str) -> Option<Self> {
        let parts: Vec<&str> = text.split('-').collect();
        let [version, trace_id, span_id, flags] = parts[..] else { return None };
        let lengths = [version.len(), trace_id.len(), span_id.len(), flags.len()];
        if lengths != [2, 32, 16, 2]
            || version == "ff"
            || !text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f' | b'-'))
        {
            return None;
        }
        let trace_id = TraceId::from_hex(trace_id).ok().filter(|id| *id != TraceId::INVALID)?;
        let span_id = SpanId::from_hex(span_id).ok().filter(|id| *id != SpanId::INVALID)?;
        Some(Self { trace_id, span_id, flags: TraceFlags::new(u8::from_str_radix(flags, 16).ok()?) })
    }

    fn context(&self) -> Context {
        let remote = SpanContext::new(self.trace_id, self.span_id, self.flags, true, TraceState::default());
        Context::new().with_remote_span_context(remote)
    }
}

pub(super) fn request_id(headers: &HeaderMap) -> Option<HeaderValue> {
    let printable = |b: &u8| b.is_ascii_graphic();
    let fits = |id: &&HeaderValue| {
        (1..=REQUEST_ID_CHARS_MAX).contains(&id.len()) && id.as_bytes().iter().all(printable)
    };
    headers.get(REQUEST_ID).filter(fits).cloned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(name: &'static str, value: &str) -> HeaderMap {
        HeaderMap::from_iter([(HeaderName::from_static(name), HeaderValue::from_str(value).unwrap())])
    }

    #[test]
    fn the_callers_trace_id_is_kept_if_it_is_one() {
        let trace = |value: &str| trace_id(&headers("traceparent", value), &Span::none());
        let sent = "4bf92f3577b34da6a3ce929d0e0e4736";
        assert_eq!(trace(&format!("00-{sent}-00f067aa0ba902b7-01")), sent);
        for bad in [
            "",
            "00",
            "00-0-0-0",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
        ] {
            assert_eq!(trace(bad).len(), 32, "{bad}");
            assert_ne!(trace(bad), sent, "{bad}");
        }
    }

    #[test]
    fn a_request_id_that_is_not_fit_to_be_printed_is_replaced() {
        assert!(request_id(&headers("x-request-id", "abc-123")).is_some());
        for bad in ["", "two words", &"x".repeat(10_000)] {
            assert!(request_id(&headers("x-request-id", bad)).is_none(), "{bad}");
        }
    }
}
