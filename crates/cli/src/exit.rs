//! Kinds inside, exit codes at this door.

use std::collections::BTreeMap;
use std::error::Error;
use std::io::Write;
use std::process::ExitCode;

use cofer_model::Kind;
use serde_json::{Value, json};

use crate::output::{Format, harmless_json, harmless_lines};

/// Why a command did not do what it was asked.
#[derive(Debug)]
pub struct Failure {
    pub kind: Kind,
    pub message: String,
    pub details: BTreeMap<String, Value>,
    pub trace_id: Option<String>,
}

impl Failure {
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), details: BTreeMap::new(), trace_id: None }
    }

    /// With the whole chain of causes: a person at a terminal is the operator.
    pub fn caused(kind: Kind, error: &(dyn Error + 'static)) -> Self {
        let mut message = error.to_string();
        let mut cause = error.source();
        while let Some(error) = cause {
            // Some errors repeat their cause in their own words.
            if !message.contains(&error.to_string()) {
                message = format!("{message}: {error}");
            }
            cause = error.source();
        }
        Self::new(kind, message)
    }

    pub fn internal(error: impl Error + 'static) -> Self {
        Self::caused(Kind::Internal, &error)
    }

    fn code(&self) -> u8 {
        match self.kind {
            Kind::Malformed | Kind::Invalid | Kind::TooLarge | Kind::UnsupportedMediaType => 2,
            Kind::NotFound => 3,
            Kind::Conflict => 4,
            Kind::Unauthorized | Kind::Forbidden => 5,
            Kind::Unavailable | Kind::Timeout | Kind::LimitExceeded => 6,
            Kind::MethodNotAllowed | Kind::PreconditionFailed | Kind::Internal | Kind::Upstream => 1,
        }
    }

    pub fn report(self, format: Format) -> ExitCode {
        let code = ExitCode::from(self.code());
        let text = match format {
            Format::Json => {
                let Self { kind, message, details, trace_id } = self;
                let error =
                    json!({"code": kind, "message": message, "details": details, "trace_id": trace_id});
                harmless_json(&json!({"error": error}).to_string())
            }
            // What a server or an installer said may be part of it.
            Format::Text => match (harmless_lines(&self.message), self.trace_id) {
                (message, Some(trace_id)) if self.kind == Kind::Internal => {
                    format!("error: {message} (trace id {trace_id})")
                }
                (message, _) => format!("error: {message}"),
            },
        };
        // Nobody reading standard error is no reason to fail otherwise.
        let _ = writeln!(std::io::stderr(), "{text}");
        code
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_are_those_of_the_contract() {
        let codes = Kind::ALL.map(|kind| format!("{} {}", Failure::new(kind, "").code(), kind.code()));
        let mut codes = codes.to_vec();
        codes.sort();
        insta::assert_snapshot!(codes.join("\n"), @r"
        1 internal_error
        1 method_not_allowed
        1 precondition_failed
        1 upstream_error
        2 bad_request
        2 payload_too_large
        2 unsupported_media_type
        2 validation_error
        3 not_found
        4 conflict
        5 forbidden
        5 unauthorized
        6 limit_exceeded
        6 timeout
        6 unavailable
        ");
    }
}
