//! What the operator sees: log lines on standard error, traces by OTLP where asked, metrics on `/metrics`.

mod masking;
pub mod metrics;

use std::io::{self, IsTerminal};

use cofer_model::Kind;
use opentelemetry::trace::TracerProvider as _;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tracing_subscriber::filter::FilterFn;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer};

use masking::MaskedStderr;
pub use masking::SharedMask;

use crate::settings::LogFormat;

/// Variables that ask for traces to be exported; the exporter reads the other `OTEL_*` ones itself.
const OTLP_ENDPOINTS: [&str; 2] = ["OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"];

#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    #[error(
        "the log filter `{filter}` cannot be read; write a level such as `info`, or `info,cofer_store=debug`"
    )]
    Filter {
        filter: String,
        #[source]
        source: tracing_subscriber::filter::ParseError,
    },
    #[error("the OTLP exporter cannot be set up; check the OTEL_EXPORTER_OTLP_* variables")]
    Otlp {
        #[source]
        source: opentelemetry_otlp::ExporterBuildError,
    },
}

impl TelemetryError {
    pub fn kind(&self) -> Kind {
        Kind::Invalid
    }
}

/// Log and traces, until dropped: what is still held back then is sent.
#[derive(Debug)]
pub struct Telemetry {
    pub mask: SharedMask,
    traces: Option<SdkTracerProvider>,
}

impl Telemetry {
    pub fn start(
        format: LogFormat,
        filter: &str,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, TelemetryError> {
        let mask = SharedMask::default();
        let filter = EnvFilter::try_new(filter)
            .map_err(|source| TelemetryError::Filter { filter: filter.to_owned(), source })?;
        let stderr = MaskedStderr(mask.clone());
        let lines = match format {
            LogFormat::Json => {
                tracing_subscriber::fmt::layer().json().flatten_event(true).with_writer(stderr).boxed()
            }
            LogFormat::Text => tracing_subscriber::fmt::layer()
                .with_ansi(io::stderr().is_terminal())
                .with_writer(stderr)
                .boxed(),
        };
        let wanted = OTLP_ENDPOINTS.iter().any(|name| variable(name).is_some_and(|value| !value.is_empty()));
        let disabled = variable("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true"));
        let traces = (wanted && !disabled).then(|| export_traces(&variable)).transpose()?;
        let spans = traces.as_ref().map(|traces| {
            // Spans only: what they hold is named in `observe`, while a log line may hold anything and is masked first.
            let spans_of_ours = FilterFn::new(|about| about.is_span() && about.target().starts_with("cofer"));
            tracing_opentelemetry::layer().with_tracer(traces.tracer("cofer")).with_filter(spans_of_ours)
        });
        tracing_subscriber::registry().with(lines.with_filter(filter)).with(spans).init();
        log_panics();
        Ok(Self { mask, traces })
    }

    /// For a program that has a log of its own.
    pub fn of_others() -> Self {
        Self { mask: SharedMask::default(), traces: None }
    }

    pub fn exports_traces(&self) -> bool {
        self.traces.is_some()
    }
}

impl Drop for Telemetry {
    fn drop(&mut self) {
        if let Some(Err(error)) = self.traces.take().map(|traces| traces.shutdown()) {
            tracing::warn!("the last traces could not be exported: {error}");
        }
    }
}

fn export_traces(variable: &impl Fn(&str) -> Option<String>) -> Result<SdkTracerProvider, TelemetryError> {
    let exporter = opentelemetry_otlp::SpanExporter::builder()
        .with_http()
        .build()
        .map_err(|source| TelemetryError::Otlp { source })?;
    let mut resource = opentelemetry_sdk::Resource::builder();
    if variable("OTEL_SERVICE_NAME").is_none_or(|name| name.is_empty()) {
        resource = resource.with_service_name("cofer");
    }
    Ok(SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource.build()).build())
}

/// A panic is a log line like any other: masked, and in the same format.
fn log_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let place = panic.location().map(ToString::to_string).unwrap_or_default();
        let what = panic.payload_as_str().unwrap_or("a panic without words");
        tracing::error!(place, "panicked at {place}: {what}");
    }));
}
