//! Why something could not be done, in the words that an agent acts on: what failed, at which step, and what to do next.

use std::fmt;
use std::time::Duration;

use cofer_model::Kind;
use cofer_sandbox::SandboxError;
use serde_json::{Value, json};

pub type Result<T> = std::result::Result<T, EnvError>;

/// One failure. Its `kind` is one of the few that callers know.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub struct EnvError {
    pub kind: ErrorKind,
    pub message: String,
    /// What was being done, such as `worktree` or `commit`.
    pub step: &'static str,
    /// What whoever asked can do about it.
    pub recovery: String,
    /// Whether the same request may succeed later.
    pub retryable: bool,
    /// What else callers are told, beside the error.
    pub details: Option<Box<Value>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    Conflict,
    PreconditionFailed,
    NotFound,
    LimitExceeded,
    Timeout,
    Invalid,
    Internal,
}

impl ErrorKind {
    pub const fn word(self) -> &'static str {
        match self {
            Self::Conflict => "conflict",
            Self::PreconditionFailed => "precondition_failed",
            Self::NotFound => "not_found",
            Self::LimitExceeded => "limit_exceeded",
            Self::Timeout => "timeout",
            Self::Invalid => "invalid",
            Self::Internal => "internal",
        }
    }

    /// The same in the words of the rest of Cofer.
    pub const fn kind(self) -> Kind {
        match self {
            Self::Conflict => Kind::Conflict,
            Self::PreconditionFailed => Kind::PreconditionFailed,
            Self::NotFound => Kind::NotFound,
            Self::LimitExceeded => Kind::LimitExceeded,
            Self::Timeout => Kind::Timeout,
            Self::Invalid => Kind::Invalid,
            Self::Internal => Kind::Internal,
        }
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

impl EnvError {
    pub fn new(
        kind: ErrorKind,
        step: &'static str,
        message: impl Into<String>,
        recovery: impl Into<String>,
    ) -> Self {
        let retryable = matches!(kind, ErrorKind::LimitExceeded | ErrorKind::Timeout | ErrorKind::Internal);
        Self { kind, message: message.into(), step, recovery: recovery.into(), retryable, details: None }
    }

    /// An argument that cannot be taken.
    pub fn invalid(step: &'static str, message: impl Into<String>, recovery: impl Into<String>) -> Self {
        Self::new(ErrorKind::Invalid, step, message, recovery)
    }

    pub fn no_environment(id: &str) -> Self {
        Self::new(
            ErrorKind::NotFound,
            "find",
            format!("environment \"{id}\" not found"),
            "there is no such environment; sending this again will not help. `environment_list` shows those there are",
        )
    }

    pub fn timeout(step: &'static str, what: &str, limit: Duration, recovery: impl Into<String>) -> Self {
        let message = format!("{what} took longer than {} ms", limit.as_millis());
        Self::new(ErrorKind::Timeout, step, message, recovery)
    }

    /// The file system did not do what it should.
    pub fn io(step: &'static str, what: impl fmt::Display, error: &std::io::Error) -> Self {
        let message = format!("{what}: {error}");
        Self::new(
            ErrorKind::Internal,
            step,
            message,
            "look at the disk and at who owns the files, then try again",
        )
    }

    pub fn engine(step: &'static str, error: &SandboxError) -> Self {
        let (kind, recovery) = match error {
            SandboxError::Unavailable { .. } => (
                ErrorKind::PreconditionFailed,
                "start the engine (such as `systemctl --user start podman.socket`); `cofer doctor` shows what is there",
            ),
            SandboxError::ImageMissing { .. } | SandboxError::BuildFailed { .. } => (
                ErrorKind::PreconditionFailed,
                "name an image that is there or can be pulled: `image`, or `base_image` in .cofer/environment.json",
            ),
            SandboxError::Refused { .. } | SandboxError::Unsupported { .. } => {
                (ErrorKind::Invalid, "change what the engine refuses, and try again")
            }
            SandboxError::Gone { .. } => {
                (ErrorKind::Internal, "the container has ended; the next command starts it anew")
            }
            SandboxError::VolumeInUse { .. } | SandboxError::NetworkInUse { .. } => {
                (ErrorKind::Conflict, "end whoever uses it first")
            }
            SandboxError::NotPushed { .. } => (
                ErrorKind::PreconditionFailed,
                "the image is kept here; see that its registry can be reached, and push it by hand",
            ),
            SandboxError::NotStarted { .. } => (
                ErrorKind::Invalid,
                "see that the image has this program: choose another `shell` or another image",
            ),
        };
        let mut failed = Self::new(kind, step, error.to_string(), recovery);
        failed.retryable = matches!(error, SandboxError::Unavailable { .. } | SandboxError::Gone { .. });
        failed
    }

    #[must_use]
    pub fn with_details(mut self, details: Value) -> Self {
        self.details = Some(Box::new(details));
        self
    }

    /// As callers see it.
    pub fn public(&self, trace_id: &str) -> Value {
        json!({
            "kind": self.kind.word(),
            "message": self.message,
            "step": self.step,
            "recovery": self.recovery,
            "retryable": self.retryable,
            "trace_id": trace_id,
        })
    }
}
