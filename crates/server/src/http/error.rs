//! Kinds inside, statuses at the door.
//!
//! A handler returns an [`ApiError`]; the outermost layer (`observe`) writes it as the one envelope, because only
//! that layer knows the trace id. The message is for the caller. The source is for the log alone.

use std::collections::BTreeMap;
use std::error::Error;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use cofer_environments::{EnvError, ErrorKind};
use cofer_model::{Kind, Reference, Scope};
use cofer_sandbox::{PickError, SandboxError};
use cofer_store::{SecretsError, StoreError};
use serde::Serialize;
use serde_json::{Value, json};

use crate::keyring::KeyError;

/// When to come back after a 503, unless the error knows better.
const RETRY_AFTER_SECONDS: u64 = 1;

/// An answer that is not the one hoped for.
#[derive(Clone, Debug)]
pub struct ApiError {
    pub kind: Kind,
    pub message: String,
    pub details: BTreeMap<String, Value>,
    pub retry_after_seconds: Option<u64>,
    /// For the log: the whole chain of causes, in one line.
    pub cause: Option<String>,
    /// What to show instead, for a 401 or 403.
    pub challenge: Option<String>,
}

/// `{"error": {…}}`: every error of ours, everywhere.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct Envelope {
    error: EnvelopeError,
}

#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct EnvelopeError {
    code: Kind,
    /// What was wrong, and what to do.
    message: String,
    #[schema(value_type = Object)]
    details: BTreeMap<String, Value>,
    /// Names this request in the log.
    trace_id: String,
}

impl ApiError {
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            details: BTreeMap::new(),
            retry_after_seconds: None,
            cause: None,
            challenge: None,
        }
    }

    /// Says in the protocol's own words what to show instead.
    #[must_use]
    pub fn challenging(mut self, challenge: String) -> Self {
        self.challenge = Some(challenge);
        self
    }

    /// No such thing, or none that this caller may know of: both read the same.
    pub fn not_found(what: &str, reference: &Reference) -> Self {
        Self::new(Kind::NotFound, format!("there is no {what} `{}`", shown(&reference.to_string())))
    }

    /// Readable, and wrong in this field.
    pub fn invalid(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(Kind::Invalid, message).with("field", field.into())
    }

    pub fn missing_scope(scope: Scope) -> Self {
        Self::new(Kind::Forbidden, format!("this token lacks the scope {scope}; use one that has it"))
            .with("missing", json!([scope]))
    }

    #[must_use]
    pub fn with(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.details.insert(key.to_owned(), value.into());
        self
    }

    /// Names the field that is to blame, where there is one.
    #[must_use]
    pub fn blaming(self, field: Option<&str>) -> Self {
        match field {
            Some(field) => self.with("field", field),
            None => self,
        }
    }

    #[must_use]
    pub fn retry_after(mut self, seconds: u64) -> Self {
        self.retry_after_seconds = Some(seconds);
        self
    }

    /// Something below failed: the caller hears `message`, the log hears everything.
    pub fn caused(kind: Kind, message: impl Into<String>, source: &(dyn Error + 'static)) -> Self {
        Self { cause: Some(chain(source)), ..Self::new(kind, message) }
    }

    pub fn status(&self) -> StatusCode {
        match self.kind {
            Kind::Malformed => StatusCode::BAD_REQUEST,
            Kind::Unauthorized => StatusCode::UNAUTHORIZED,
            Kind::Forbidden => StatusCode::FORBIDDEN,
            Kind::NotFound => StatusCode::NOT_FOUND,
            Kind::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
            Kind::Conflict => StatusCode::CONFLICT,
            Kind::PreconditionFailed => StatusCode::PRECONDITION_FAILED,
            Kind::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Kind::UnsupportedMediaType => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Kind::Invalid => StatusCode::UNPROCESSABLE_ENTITY,
            Kind::LimitExceeded => StatusCode::TOO_MANY_REQUESTS,
            Kind::Internal => StatusCode::INTERNAL_SERVER_ERROR,
            Kind::Upstream => StatusCode::BAD_GATEWAY,
            Kind::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            Kind::Timeout => StatusCode::GATEWAY_TIMEOUT,
        }
    }

    /// As it is written everywhere.
    pub(crate) fn envelope(self, trace_id: String) -> Envelope {
        let Self { kind: code, message, details, .. } = self;
        Envelope { error: EnvelopeError { code, message, details, trace_id } }
    }

    /// The response as the caller gets it. Called by `observe` alone.
    pub(super) fn render(mut self, trace_id: String) -> Response {
        let status = self.status();
        let retry_after =
            self.retry_after_seconds.or((self.kind == Kind::Unavailable).then_some(RETRY_AFTER_SECONDS));
        let challenge = self.challenge.take();
        let mut response = (status, axum::Json(self.envelope(trace_id))).into_response();
        if let Some(seconds) = retry_after {
            response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
        }
        let challenge = challenge.and_then(|challenge| HeaderValue::from_str(&challenge).ok());
        let bare = (status == StatusCode::UNAUTHORIZED).then(|| HeaderValue::from_static("Bearer"));
        if let Some(challenge) = challenge.or(bare) {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, challenge);
        }
        response
    }
}

/// Leaves the error on the response for `observe` to write.
impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = self.status().into_response();
        response.extensions_mut().insert(self);
        response
    }
}

impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> Self {
        let message = match error.kind() {
            Kind::Conflict => "that name is taken; choose another",
            Kind::NotFound => "what this belongs to was deleted meanwhile",
            Kind::Unavailable => "the database does not answer; try again shortly",
            _ => "Cofer's database reported an error; the log tells more under this trace id",
        };
        Self::caused(error.kind(), message, &error)
    }
}

impl From<SecretsError> for ApiError {
    fn from(error: SecretsError) -> Self {
        let message = match error {
            SecretsError::Store(error) => return error.into(),
            SecretsError::OtherKey { .. } => {
                "the master key was replaced by another process; restart this one with the new key"
            }
            SecretsError::CheckAltered => {
                "the check of the master key was altered in the database; restore a backup"
            }
            SecretsError::Tampered { .. } => {
                "a secret does not open: its row in the database was altered; set it anew"
            }
            SecretsError::TamperedLogin { .. } => {
                "a login does not open: its row in the database was altered; log in anew"
            }
        };
        Self::caused(error.kind(), message, &error)
    }
}

impl From<SandboxError> for ApiError {
    fn from(error: SandboxError) -> Self {
        Self::new(error.kind(), error.to_string()).blaming(error.field())
    }
}

impl From<PickError> for ApiError {
    fn from(error: PickError) -> Self {
        Self::new(error.kind(), error.to_string())
    }
}

impl From<EnvError> for ApiError {
    fn from(error: EnvError) -> Self {
        let EnvError { kind, message, recovery, .. } = &error;
        if *kind == ErrorKind::Internal {
            let message = "the environments could not be read; the log tells why under this trace id";
            return Self::caused(Kind::Internal, message, &error);
        }
        Self::new(kind.kind(), format!("{message}; {recovery}"))
    }
}

impl From<KeyError> for ApiError {
    fn from(error: KeyError) -> Self {
        match error {
            KeyError::Store(error) => error.into(),
            KeyError::Secrets(error) => error.into(),
            KeyError::NotOurs | KeyError::BeingReplaced => Self::new(error.kind(), error.to_string()),
            error => Self::caused(
                Kind::Internal,
                "the master key could not be replaced; the log tells why under this trace id",
                &error,
            ),
        }
    }
}

/// `this: because: because`.
pub(crate) fn chain(error: &(dyn Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |&error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// What a caller sent, as it may stand in a message: not too long, nothing that moves a cursor.
pub(crate) fn shown(text: &str) -> String {
    const CHARS_MAX: usize = 64;
    let mut shown: String =
        text.chars().take(CHARS_MAX).map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect();
    if text.chars().nth(CHARS_MAX).is_some() {
        shown.push('…');
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_the_status_that_the_contract_gives_it() {
        let table: Vec<_> = Kind::ALL
            .iter()
            .map(|kind| format!("{} {}", kind.code(), ApiError::new(*kind, "").status().as_u16()))
            .collect();
        insta::assert_snapshot!(table.join("\n"), @r"
        bad_request 400
        unauthorized 401
        forbidden 403
        not_found 404
        method_not_allowed 405
        conflict 409
        precondition_failed 412
        payload_too_large 413
        unsupported_media_type 415
        validation_error 422
        limit_exceeded 429
        internal_error 500
        upstream_error 502
        unavailable 503
        timeout 504
        ");
    }

    #[test]
    fn what_a_caller_sent_is_shown_short_and_harmless() {
        assert_eq!(shown("a\u{1b}[2Jb"), "a\u{fffd}[2Jb");
        assert_eq!(shown(&"x".repeat(10_000)).chars().count(), 65);
    }
}
