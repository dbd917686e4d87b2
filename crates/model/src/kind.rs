//! The closed list of ways in which a request can go wrong.
//!
//! Errors live beside the operation that fails and answer with a `Kind`. Only the doors turn a kind into
//! something else: the HTTP door into a status (`server/src/http/error.rs`), the command line into an exit code
//! (`cli/src/exit.rs`). A new kind therefore makes the compiler point at every door.

use serde::{Deserialize, Serialize};

/// What went wrong, as a caller needs to know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, utoipa::ToSchema)]
pub enum Kind {
    /// The request could not be read at all, such as broken JSON.
    #[serde(rename = "bad_request")]
    Malformed,
    /// No credentials, or none that are known.
    #[serde(rename = "unauthorized")]
    Unauthorized,
    /// Known, but not allowed to do this.
    #[serde(rename = "forbidden")]
    Forbidden,
    /// No such thing, or none that this caller may know of.
    #[serde(rename = "not_found")]
    NotFound,
    /// The thing is there but does not take this verb.
    #[serde(rename = "method_not_allowed")]
    MethodNotAllowed,
    /// It clashes with what is there.
    #[serde(rename = "conflict")]
    Conflict,
    /// Something has to be done first.
    #[serde(rename = "precondition_failed")]
    PreconditionFailed,
    /// More bytes than are taken.
    #[serde(rename = "payload_too_large")]
    TooLarge,
    /// Sent in a form that is not taken.
    #[serde(rename = "unsupported_media_type")]
    UnsupportedMediaType,
    /// Readable, and wrong.
    #[serde(rename = "validation_error")]
    Invalid,
    /// Too many, too fast.
    #[serde(rename = "limit_exceeded")]
    LimitExceeded,
    /// Our own fault.
    #[serde(rename = "internal_error")]
    Internal,
    /// Somebody we rely on answered with nonsense or hung up.
    #[serde(rename = "upstream_error")]
    Upstream,
    /// Not now; trying again later may help.
    #[serde(rename = "unavailable")]
    Unavailable,
    /// It took longer than it may.
    #[serde(rename = "timeout")]
    Timeout,
}

impl Kind {
    pub const ALL: [Self; 15] = [
        Self::Malformed,
        Self::Unauthorized,
        Self::Forbidden,
        Self::NotFound,
        Self::MethodNotAllowed,
        Self::Conflict,
        Self::PreconditionFailed,
        Self::TooLarge,
        Self::UnsupportedMediaType,
        Self::Invalid,
        Self::LimitExceeded,
        Self::Internal,
        Self::Upstream,
        Self::Unavailable,
        Self::Timeout,
    ];

    /// The word that callers see as `error.code`.
    pub const fn code(self) -> &'static str {
        match self {
            Self::Malformed => "bad_request",
            Self::Unauthorized => "unauthorized",
            Self::Forbidden => "forbidden",
            Self::NotFound => "not_found",
            Self::MethodNotAllowed => "method_not_allowed",
            Self::Conflict => "conflict",
            Self::PreconditionFailed => "precondition_failed",
            Self::TooLarge => "payload_too_large",
            Self::UnsupportedMediaType => "unsupported_media_type",
            Self::Invalid => "validation_error",
            Self::LimitExceeded => "limit_exceeded",
            Self::Internal => "internal_error",
            Self::Upstream => "upstream_error",
            Self::Unavailable => "unavailable",
            Self::Timeout => "timeout",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_code_and_the_serialised_form_are_the_same_word() {
        for kind in Kind::ALL {
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.code());
        }
    }
}
