//! One JSON-RPC message: what kind it is, and its parts as they came.

use std::borrow::Cow;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;

use crate::raw::{self, Text};

/// A server's own ids are sent back as they came, so they are not taken at any length.
const ID_BYTES_MAX: usize = 256;
pub const PARSE_ERROR: i64 = -32700;
pub const INVALID_REQUEST: i64 = -32600;
pub const METHOD_NOT_FOUND: i64 = -32601;
pub const INVALID_PARAMS: i64 = -32602;
pub const INTERNAL_ERROR: i64 = -32603;

/// What a server answered.
#[derive(Clone, Debug)]
pub enum Reply {
    Result(Box<RawValue>),
    Error(RpcError),
}

/// An error of the server's own, to the letter.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RpcError {
    pub code: i64,
    pub message: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<Box<RawValue>>,
}

impl RpcError {
    pub fn new(code: i64, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), data: None }
    }

    /// As the server wrote it; and if that is no error as JSON-RPC has it, that.
    pub(crate) fn read(error: &RawValue) -> Self {
        serde_json::from_str(error.get()).unwrap_or_else(|_| Self {
            code: INTERNAL_ERROR,
            message: "the server answered with an error that is none".to_owned(),
            data: Some(error.to_owned()),
        })
    }
}

/// Something a server said without being asked.
#[derive(Clone, Debug)]
pub struct Notification {
    pub method: String,
    pub params: Option<Box<RawValue>>,
}

/// A line from a server.
#[derive(Debug)]
pub(crate) enum Incoming<'a> {
    Reply {
        id: u64,
        reply: Reply,
    },
    Request {
        id: &'a RawValue,
        method: Cow<'a, str>,
        params: Option<&'a RawValue>,
    },
    Notification {
        method: Cow<'a, str>,
        params: Option<&'a RawValue>,
    },
    /// Not for us: log lines, blank lines, answers to nobody, bytes that are no text.
    Noise,
}

/// Any message, its parts as they came.
#[derive(Deserialize)]
pub(crate) struct Envelope<'a> {
    /// Whatever stands there: servers are not held to it.
    #[serde(borrow, default)]
    pub jsonrpc: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    pub id: Option<&'a RawValue>,
    #[serde(borrow)]
    pub method: Option<Text<'a>>,
    #[serde(borrow, default, deserialize_with = "present")]
    pub params: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    pub result: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub error: Option<&'a RawValue>,
}

/// A field that is there is `Some`, also when it is `null`.
fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(deserializer).map(Some)
}

impl<'a> Incoming<'a> {
    pub(crate) fn parse(line: &'a [u8]) -> Self {
        // Looked through as text once, not field by field.
        let Ok(line) = std::str::from_utf8(line) else { return Self::Noise };
        let Ok(envelope) = serde_json::from_str::<Envelope<'a>>(line) else { return Self::Noise };
        match envelope {
            Envelope { id: Some(id), method: Some(Text(method)), params, .. }
                if id.get().len() <= ID_BYTES_MAX =>
            {
                Self::Request { id, method, params }
            }
            Envelope { id: Some(_), method: Some(_), .. } => Self::Noise,
            Envelope { method: Some(Text(method)), params, .. } => Self::Notification { method, params },
            Envelope { id: Some(id), error: Some(error), .. } => {
                Self::reply(id, Reply::Error(RpcError::read(error)))
            }
            Envelope { id: Some(id), result: Some(result), .. } => {
                Self::reply(id, Reply::Result(result.to_owned()))
            }
            _ => Self::Noise,
        }
    }

    /// Our ids are numbers; some servers send them back as text.
    fn reply(id: &RawValue, reply: Reply) -> Self {
        id.get().trim_matches('"').parse().map_or(Self::Noise, |id| Self::Reply { id, reply })
    }
}

/// A request as one line. JSON has line breaks only between its parts, where a space does as well.
pub fn request(id: u64, method: &str, params: Option<&RawValue>) -> Vec<u8> {
    let mut line = Vec::new();
    append_request(&mut line, id, method, params);
    line
}

/// The same behind other lines.
pub(crate) fn append_request(lines: &mut Vec<u8>, id: u64, method: &str, params: Option<&RawValue>) {
    let mut digits = itoa::Buffer::new();
    let (before, params) = params.map_or(("", ""), |params| (r#","params":"#, params.get()));
    let quoted = Some(method).filter(|method| !raw::is_plain(method)).map(raw::quoted);
    let method = quoted.as_deref().map_or(method, |quoted| &quoted[1..quoted.len() - 1]);
    let parts =
        [r#"{"jsonrpc":"2.0","id":"#, digits.format(id), r#","method":""#, method, "\"", before, params, "}"];
    append(lines, &parts);
}

pub fn notification(method: &str, params: Option<&RawValue>) -> Vec<u8> {
    #[derive(Serialize)]
    struct Notification<'a> {
        jsonrpc: &'static str,
        method: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        params: Option<&'a RawValue>,
    }
    line(&Notification { jsonrpc: "2.0", method, params })
}

/// The server is told that nobody waits for this any more.
pub(crate) fn cancelled(id: u64) -> Vec<u8> {
    let params = format!(r#"{{"requestId":{id},"reason":"the caller no longer waits"}}"#);
    format!(r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{params}}}{}"#, '\n')
        .into_bytes()
}

/// An answer, to whichever side asked.
pub fn response(id: &RawValue, reply: &Reply) -> Vec<u8> {
    match reply {
        Reply::Result(result) => {
            joined(&[r#"{"jsonrpc":"2.0","id":"#, id.get(), r#","result":"#, result.get(), "}"])
        }
        Reply::Error(error) => {
            let error = serde_json::to_string(error).unwrap_or_default();
            joined(&[r#"{"jsonrpc":"2.0","id":"#, id.get(), r#","error":"#, &error, "}"])
        }
    }
}

/// A result with these fields in front of its own, each with a comma behind it; `None` if it is no object.
pub fn response_with(id: &RawValue, more: &str, result: &RawValue) -> Option<Vec<u8>> {
    let rest = result.get().trim_start().strip_prefix('{')?;
    let more = if rest.trim_start().starts_with('}') { more.trim_end_matches(',') } else { more };
    Some(joined(&[r#"{"jsonrpc":"2.0","id":"#, id.get(), r#","result":{"#, more, rest, "}"]))
}

/// The answer to a `ping`.
pub(crate) fn pong(id: &RawValue) -> Vec<u8> {
    format!(r#"{{"jsonrpc":"2.0","id":{},"result":{{}}}}{}"#, id.get(), '\n').into_bytes()
}

pub(crate) fn not_known(id: &RawValue) -> Vec<u8> {
    response(id, &Reply::Error(RpcError::new(METHOD_NOT_FOUND, "Method not found")))
}

pub(crate) fn too_many_questions(id: &RawValue) -> Vec<u8> {
    response(id, &Reply::Error(RpcError::new(INTERNAL_ERROR, "too many questions wait for their answers")))
}

fn line(message: &impl Serialize) -> Vec<u8> {
    let mut line = serde_json::to_vec(message).unwrap_or_default();
    end(&mut line, 0);
    line
}

/// A line of these parts, which are JSON when they are together.
fn joined(parts: &[&str]) -> Vec<u8> {
    let mut line = Vec::new();
    append(&mut line, parts);
    line
}

fn append(lines: &mut Vec<u8>, parts: &[&str]) {
    let begin = lines.len();
    lines.reserve(parts.iter().map(|part| part.len()).sum::<usize>() + 1);
    for part in parts {
        lines.extend_from_slice(part.as_bytes());
    }
    end(lines, begin);
}

/// With no line break but the last, from here on.
fn end(lines: &mut Vec<u8>, begin: usize) {
    let line = &mut lines[begin..];
    // Nearly always there is none, and that is found out faster.
    if let Some(first) = memchr::memchr2(b'\n', b'\r', line) {
        line[first..].iter_mut().filter(|byte| matches!(byte, b'\n' | b'\r')).for_each(|byte| *byte = b' ');
    }
    lines.push(b'\n');
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn seen(line: &str) -> String {
        match Incoming::parse(line.as_bytes()) {
            Incoming::Reply { id, reply: Reply::Result(result) } => format!("result {id} {result}"),
            Incoming::Reply { id, reply: Reply::Error(error) } => {
                format!("error {id} {} {:?}", error.code, error.data)
            }
            Incoming::Request { id, method, .. } => format!("request {id} {method}"),
            Incoming::Notification { method, params } => format!("notification {method} {params:?}"),
            Incoming::Noise => "noise".to_owned(),
        }
    }

    #[test]
    fn every_kind_of_line_is_recognised() {
        for (line, expected) in [
            (r#"{"jsonrpc":"2.0","id":7,"result":{"b":1.0,"a":[ ]}}"#, r#"result 7 {"b":1.0,"a":[ ]}"#),
            (r#"{"id":"7","result":null}"#, "result 7 null"),
            (r#"{"id":7,"error":{"code":-5,"message":"no"}}"#, "error 7 -5 None"),
            (r#"{"id":7,"result":1,"error":{"code":-5,"message":"no"}}"#, "error 7 -5 None"),
            (r#"{"id":7,"result":1,"error":null}"#, "result 7 1"),
            (r#"{"id":7,"error":"boom"}"#, r#"error 7 -32603 Some(RawValue("boom"))"#),
            (r#"{"id":"x","method":"roots/list"}"#, r#"request "x" roots/list"#),
            (r#"{"method":"notifications/x"}"#, "notification notifications/x None"),
            (r#"{"id":null,"error":{"code":-32700,"message":"?"}}"#, "noise"),
            (r#"{"id":7}"#, "noise"),
            ("starting up…", "noise"),
            ("", "noise"),
            ("[1]", "noise"),
            ("null", "noise"),
        ] {
            assert_eq!(seen(line), expected, "{line}");
        }
        assert!(matches!(Incoming::parse(b"{\"id\":7,\"result\":\"\xff\"}"), Incoming::Noise));
    }

    #[test]
    fn a_request_is_one_line_however_its_params_were_written() {
        let params = RawValue::from_string("{\n  \"text\": \"a\\nb\"\r\n}".to_owned()).unwrap();
        let line = request(1, "tools/call", Some(&params));
        assert_eq!(line.split(|byte| *byte == b'\n').count(), 2);
        let sent: serde_json::Value = serde_json::from_slice(&line).unwrap();
        assert_eq!(sent["params"]["text"], "a\nb");
    }

    proptest! {
        #[test]
        fn no_line_whatever_breaks_the_parser(line in proptest::collection::vec(any::<u8>(), 0..200)) {
            Incoming::parse(&line);
        }
    }
}
