//! A line on its way to an upstream: the bytes as they are, and the little that has to be known of them to carry them over HTTP.

use std::borrow::Cow;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;

#[derive(Clone, Debug)]
pub(super) struct Outgoing {
    pub line: Bytes,
    pub what: What,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum What {
    Request {
        id: String,
        method: String,
    },
    Notification {
        method: String,
        cancels: Option<String>,
    },
    /// To a question of the upstream's.
    Answer,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Envelope<'a> {
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    method: Option<Cow<'a, str>>,
    #[serde(borrow)]
    params: Option<&'a RawValue>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Cancelled<'a> {
    #[serde(borrow)]
    request_id: Option<&'a RawValue>,
}

impl Outgoing {
    /// None for what is no message.
    pub(super) fn parse(line: Bytes) -> Option<Self> {
        let what = What::of(serde_json::from_slice(&line).ok()?);
        Some(Self { line, what })
    }

    pub(super) fn method(&self) -> Option<&str> {
        match &self.what {
            What::Request { method, .. } | What::Notification { method, .. } => Some(method),
            What::Answer => None,
        }
    }

    /// The id of a request; nobody waits for an answer to anything else.
    pub(super) fn request_id(&self) -> Option<&str> {
        match &self.what {
            What::Request { id, .. } => Some(id),
            What::Notification { .. } | What::Answer => None,
        }
    }

    pub(super) fn is_initialize(&self) -> bool {
        self.request_id().is_some() && self.method() == Some("initialize")
    }

    pub(super) fn is_initialized(&self) -> bool {
        self.method() == Some("notifications/initialized")
    }

    /// Whether everything after it has to wait until it has arrived.
    pub(super) fn comes_first(&self) -> bool {
        self.is_initialize() || self.is_initialized()
    }
}

impl What {
    fn of(envelope: Envelope<'_>) -> Self {
        let Envelope { id, method, params } = envelope;
        match (id, method) {
            (Some(id), Some(method)) => Self::Request { id: id_text(id), method: method.into_owned() },
            (None, Some(method)) => {
                let cancelled = params.filter(|_| method == "notifications/cancelled");
                let cancelled =
                    cancelled.and_then(|params| serde_json::from_str::<Cancelled<'_>>(params.get()).ok());
                let cancels = cancelled.and_then(|cancelled| cancelled.request_id).map(id_text);
                Self::Notification { method: method.into_owned(), cancels }
            }
            (_, None) => Self::Answer,
        }
    }
}

/// Some servers send numbers back as text, so an id is compared without its quotes.
pub(super) fn id_text(id: &RawValue) -> String {
    id.get().trim_matches('"').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_message_is_told_apart() {
        let what =
            |line: &'static str| Outgoing::parse(Bytes::from_static(line.as_bytes())).map(|it| it.what);
        let notification = |method: &str, cancels: Option<&str>| {
            Some(What::Notification { method: method.to_owned(), cancels: cancels.map(ToOwned::to_owned) })
        };
        assert_eq!(
            what(r#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"requestId":1}}"#),
            Some(What::Request { id: "7".to_owned(), method: "tools/call".to_owned() })
        );
        assert_eq!(what(r#"{"method":"a","params":{"requestId":1}}"#), notification("a", None));
        assert_eq!(
            what(r#"{"method":"notifications/cancelled","params":{"requestId":"x1"}}"#),
            notification("notifications/cancelled", Some("x1"))
        );
        assert_eq!(what(r#"{"id":7,"result":{}}"#), Some(What::Answer));
        assert_eq!(what("nonsense"), None);
    }
}
