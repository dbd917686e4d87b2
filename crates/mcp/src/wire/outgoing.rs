//! A line on its way to an upstream: the bytes as they are, and the little that has to be known of them to carry them over HTTP.

use std::borrow::Cow;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;

#[derive(Clone, Debug)]
pub(super) struct Outgoing {
    pub line: Bytes,
    pub what: What,
    /// For a message that says everything about itself and belongs to no session, as since 2026-07-28.
    pub label: Option<Label>,
}

/// What such a message repeats in its headers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Label {
    pub protocol_version: String,
    /// Of what is called, got or read.
    pub name: Option<String>,
}

#[derive(Clone, Debug)]
pub(super) enum What {
    Request {
        /// As text, to be compared.
        id: String,
        /// As it was written, to be sent back.
        raw_id: Box<RawValue>,
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

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Params<'a> {
    #[serde(borrow)]
    request_id: Option<&'a RawValue>,
    #[serde(borrow)]
    name: Option<&'a RawValue>,
    #[serde(borrow)]
    uri: Option<&'a RawValue>,
    #[serde(borrow)]
    task_id: Option<&'a RawValue>,
    #[serde(borrow, rename = "_meta")]
    meta: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Meta {
    #[serde(rename = "io.modelcontextprotocol/protocolVersion")]
    protocol_version: String,
}

impl Outgoing {
    /// None for what is no message.
    pub(super) fn parse(line: Bytes) -> Option<Self> {
        let envelope = serde_json::from_slice::<Envelope<'_>>(&line).ok()?;
        let params = envelope.params.and_then(|params| serde_json::from_str::<Params<'_>>(params.get()).ok());
        let params = params.unwrap_or_default();
        let label = envelope.method.as_deref().and_then(|method| Label::of(method, &params));
        let what = What::of(envelope, &params);
        Some(Self { line, what, label })
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

    /// The same as it was written.
    pub(super) fn raw_id(&self) -> Option<&RawValue> {
        match &self.what {
            What::Request { raw_id, .. } => Some(raw_id),
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
    fn of(envelope: Envelope<'_>, params: &Params<'_>) -> Self {
        let Envelope { id, method, .. } = envelope;
        match (id, method) {
            (Some(id), Some(method)) => {
                Self::Request { id: id_text(id), raw_id: id.to_owned(), method: method.into_owned() }
            }
            (None, Some(method)) => {
                let cancelled = params.request_id.filter(|_| method == "notifications/cancelled");
                let cancels = cancelled.map(id_text);
                Self::Notification { method: method.into_owned(), cancels }
            }
            (_, None) => Self::Answer,
        }
    }
}

impl Label {
    fn of(method: &str, params: &Params<'_>) -> Option<Self> {
        let Meta { protocol_version } = serde_json::from_str(params.meta?.get()).ok()?;
        let name = match method {
            "tools/call" | "prompts/get" => params.name,
            "resources/read" => params.uri,
            _ if method.starts_with("tasks/") => params.task_id,
            _ => None,
        };
        let name = name.and_then(|name| serde_json::from_str(name.get()).ok());
        Some(Self { protocol_version, name })
    }
}

/// Some servers send numbers back as text, and text may be written in many ways, so an id is compared by what it says.
pub(super) fn id_text(id: &RawValue) -> String {
    serde_json::from_str(id.get()).unwrap_or_else(|_not_text| id.get().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_message_is_told_apart() {
        let told = |line: &'static str| match Outgoing::parse(Bytes::from_static(line.as_bytes()))?.what {
            What::Request { id, raw_id, method } => Some(format!("request {id} {raw_id} {method}")),
            What::Notification { method, cancels } => Some(format!("notification {method} {cancels:?}")),
            What::Answer => Some("answer".to_owned()),
        };
        for (line, expected) in [
            (r#"{"id":7,"method":"tools/call","params":{"requestId":1}}"#, Some("request 7 7 tools/call")),
            (r#"{"id":"\u0037","method":"a"}"#, Some(r#"request 7 "\u0037" a"#)),
            (r#"{"method":"a","params":{"requestId":1}}"#, Some("notification a None")),
            (
                r#"{"method":"notifications/cancelled","params":{"requestId":"x1"}}"#,
                Some(r#"notification notifications/cancelled Some("x1")"#),
            ),
            (r#"{"id":7,"result":{}}"#, Some("answer")),
            ("nonsense", None),
        ] {
            assert_eq!(told(line).as_deref(), expected, "{line}");
        }
    }

    #[test]
    fn a_message_without_a_session_is_known_by_what_it_says_of_itself() {
        let label = |line: String| Outgoing::parse(line.into()).unwrap().label;
        let meta = r#""_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}"#;
        let labelled = |name: Option<&str>| {
            Some(Label { protocol_version: "2026-07-28".to_owned(), name: name.map(ToOwned::to_owned) })
        };
        for (method, params, expected) in [
            ("tools/call", r#""name":"a\u00e4","uri":"u","#, Some("aä")),
            ("resources/read", r#""name":"a","uri":"u","#, Some("u")),
            ("tasks/get", r#""taskId":"t","#, Some("t")),
            ("tools/list", r#""name":"a","#, None),
        ] {
            let line = format!(r#"{{"id":1,"method":"{method}","params":{{{params}{meta}}}}}"#);
            assert_eq!(label(line), labelled(expected), "{method}");
        }
        assert_eq!(
            label(r#"{"id":1,"method":"tools/call","params":{"name":"a","_meta":{}}}"#.to_owned()),
            None
        );
    }
}
