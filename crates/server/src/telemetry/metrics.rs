//! Figures for Prometheus. Names begin with `cofer_`; those of the process itself are the customary ones.

use std::fmt;
use std::sync::OnceLock;
use std::time::Duration;

use ::metrics::{
    Counter, Gauge, Histogram, counter, describe_counter, describe_gauge, describe_histogram, gauge,
    histogram,
};
use cofer_gateway::Gateway;
use cofer_model::{HostedEventKind, RunStatus};
use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};

const REQUESTS: &str = "cofer_http_requests_total";
const REQUEST_SECONDS: &str = "cofer_http_request_duration_seconds";
const REQUESTS_IN_FLIGHT: &str = "cofer_http_requests_in_flight";
const AUTH_FAILURES: &str = "cofer_auth_failures_total";
const DATABASE_UP: &str = "cofer_database_up";
const HOSTED_EVENTS: &str = "cofer_hosted_events_total";
const HOSTED_CALLS: &str = "cofer_hosted_calls_total";
const HOSTED_CALL_SECONDS: &str = "cofer_hosted_call_duration_seconds";
const BUILD: &str = "cofer_build_info";
const RESIDENT_BYTES: &str = "process_resident_memory_bytes";
const OPEN_FILES: &str = "process_open_fds";
const SESSIONS: &str = "cofer_mcp_sessions";
const RECORD_BYTES: &str = "cofer_record_waiting_bytes";
const RUNS: &str = "cofer_agent_runs";
const RUNS_ENDED: &str = "cofer_agent_runs_total";
const SECONDS_BUCKETS: [f64; 11] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 1.0, 5.0, 30.0];

/// Starts counting. One recorder serves the whole process.
pub fn install() -> Result<PrometheusHandle, BuildError> {
    let handle = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Full(REQUEST_SECONDS.to_owned()), &SECONDS_BUCKETS)?
        .set_buckets_for_metric(Matcher::Full(HOSTED_CALL_SECONDS.to_owned()), &SECONDS_BUCKETS)?
        .install_recorder()?;
    describe_counter!(REQUESTS, "Requests answered, by method, route and status");
    describe_histogram!(REQUEST_SECONDS, "How long answering took, by route");
    describe_gauge!(REQUESTS_IN_FLIGHT, "Requests being answered");
    describe_counter!(AUTH_FAILURES, "Requests refused for want of a good token, by reason");
    describe_gauge!(DATABASE_UP, "1 when the database answered the last check, else 0");
    describe_counter!(
        HOSTED_EVENTS,
        "What happened to hosted servers, by kind: crashes, crash loops, timeouts and so on"
    );
    describe_counter!(HOSTED_CALLS, "Calls to hosted servers, by outcome");
    describe_histogram!(HOSTED_CALL_SECONDS, "How long calls to hosted servers took, waiting included");
    describe_gauge!(BUILD, "Always 1; the version is a label");
    describe_gauge!(RESIDENT_BYTES, "Memory held by this process");
    describe_gauge!(OPEN_FILES, "File descriptors open in this process");
    describe_gauge!(SESSIONS, "Sessions of MCP clients");
    describe_gauge!(RECORD_BYTES, "Records of calls in the journal that are not rows of the database yet");
    describe_gauge!(RUNS, "Runs of agents under way");
    describe_counter!(RUNS_ENDED, "Runs of agents that ended, by status");
    gauge!(BUILD, "version" => env!("CARGO_PKG_VERSION")).set(1.0);
    Ok(handle)
}

pub(crate) fn run_began() {
    gauge!(RUNS).increment(1.0);
}

pub(crate) fn run_left() {
    gauge!(RUNS).decrement(1.0);
}

pub(crate) fn run_ended(status: RunStatus) {
    counter!(RUNS_ENDED, "status" => status.as_str()).increment(1);
}

pub(crate) fn request_began() {
    gauge!(REQUESTS_IN_FLIGHT).increment(1.0);
}

pub(crate) fn request_ended(method: &str, route: &str, status: u16, took: Duration) {
    gauge!(REQUESTS_IN_FLIGHT).decrement(1.0);
    let (method, route) = (method.to_owned(), route.to_owned());
    histogram!(REQUEST_SECONDS, "route" => route.clone()).record(took.as_secs_f64());
    counter!(REQUESTS, "method" => method, "route" => route, "status" => status.to_string()).increment(1);
}

/// The figures of one route by which calls come: looked up once, not for each of them.
#[derive(Debug)]
pub(crate) struct Express {
    pub(crate) route: &'static str,
    handles: OnceLock<Handles>,
}

struct Handles {
    in_flight: Gauge,
    seconds: Histogram,
    answered: Counter,
}

impl fmt::Debug for Handles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Handles")
    }
}

impl Express {
    pub(crate) const fn new(route: &'static str) -> Self {
        Self { route, handles: OnceLock::new() }
    }

    fn handles(&self) -> &Handles {
        self.handles.get_or_init(|| Handles {
            in_flight: gauge!(REQUESTS_IN_FLIGHT),
            seconds: histogram!(REQUEST_SECONDS, "route" => self.route),
            answered: counter!(REQUESTS, "method" => "POST", "route" => self.route, "status" => "200"),
        })
    }

    pub(crate) fn began(&self) {
        self.handles().in_flight.increment(1.0);
    }

    pub(crate) fn ended(&self, status: u16, took: Duration) {
        let handles = self.handles();
        handles.in_flight.decrement(1.0);
        handles.seconds.record(took.as_secs_f64());
        match status {
            200 => handles.answered.increment(1),
            status => {
                counter!(REQUESTS, "method" => "POST", "route" => self.route, "status" => status.to_string())
                    .increment(1);
            }
        }
    }
}

pub(crate) fn auth_failed(reason: &'static str) {
    counter!(AUTH_FAILURES, "reason" => reason).increment(1);
}

pub(crate) fn hosted_event(kind: HostedEventKind) {
    counter!(HOSTED_EVENTS, "kind" => kind.as_str()).increment(1);
}

pub(crate) fn hosted_call(outcome: &'static str, took: Duration) {
    static SECONDS: OnceLock<Histogram> = OnceLock::new();
    static RESULTS: OnceLock<Counter> = OnceLock::new();
    SECONDS.get_or_init(|| histogram!(HOSTED_CALL_SECONDS)).record(took.as_secs_f64());
    match outcome {
        "result" => RESULTS.get_or_init(|| counter!(HOSTED_CALLS, "outcome" => "result")).increment(1),
        outcome => counter!(HOSTED_CALLS, "outcome" => outcome).increment(1),
    }
}

pub(crate) fn database_is(up: bool) {
    gauge!(DATABASE_UP).set(if up { 1.0 } else { 0.0 });
}

/// The page for Prometheus, with the process's own figures as of now.
pub(crate) fn render(handle: &PrometheusHandle, gateway: &Gateway) -> String {
    let at_most = |count: u64| f64::from(u32::try_from(count).unwrap_or(u32::MAX));
    gauge!(SESSIONS).set(at_most(gateway.session_count() as u64));
    gauge!(RECORD_BYTES).set(at_most(gateway.record_bytes_waiting()));
    if let Some(bytes) = resident_bytes() {
        gauge!(RESIDENT_BYTES).set(bytes);
    }
    if let Ok(files) = std::fs::read_dir("/proc/self/fd") {
        gauge!(OPEN_FILES).set(f64::from(u32::try_from(files.count()).unwrap_or(u32::MAX)));
    }
    handle.render()
}

fn resident_bytes() -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: f64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024.0)
}
