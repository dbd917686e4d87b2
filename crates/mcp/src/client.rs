//! The other side: what a client of ours sends, and how it is answered.

use std::borrow::Cow;

use serde_json::value::RawValue;

use crate::message::{Envelope, INVALID_REQUEST, PARSE_ERROR, Reply, RpcError};
use crate::raw::Text;

/// A client's ids are sent back as they came, so they are not taken at any length.
const ID_BYTES_MAX: usize = 1024;
const METHOD_BYTES_MAX: usize = 256;

/// A message from a client, its parts as they came.
#[derive(Debug)]
pub enum FromClient<'a> {
    Request {
        id: &'a RawValue,
        method: Cow<'a, str>,
        params: Option<&'a RawValue>,
    },
    Notification {
        method: Cow<'a, str>,
        params: Option<&'a RawValue>,
    },
    /// To a question of ours.
    Answer {
        id: &'a RawValue,
        reply: Reply,
    },
}

impl<'a> FromClient<'a> {
    /// Or the error that it is answered with.
    pub fn parse(body: &'a [u8]) -> Result<Self, RpcError> {
        let body = std::str::from_utf8(body)
            .map_err(|_| RpcError::new(PARSE_ERROR, "the message is no JSON: it is not UTF-8"))?;
        let envelope: Envelope<'a> = serde_json::from_str(body).map_err(|error| {
            let code = if error.is_data() { INVALID_REQUEST } else { PARSE_ERROR };
            let what = if error.is_data() { "the message is no JSON-RPC" } else { "the message is no JSON" };
            RpcError::new(code, format!("{what} (line {}, column {})", error.line(), error.column()))
        })?;
        let refused = |what: &str| Err(RpcError::new(INVALID_REQUEST, what));
        if envelope.jsonrpc.is_none_or(|version| version.get() != "\"2.0\"") {
            return refused("a message says `\"jsonrpc\": \"2.0\"`");
        }
        match envelope {
            Envelope { method: Some(Text(method)), .. } if method.len() > METHOD_BYTES_MAX => {
                refused("the method's name is too long")
            }
            Envelope { id: Some(id), .. } if !is_an_id(id) => {
                refused("an id is a text or a number, and not a long one")
            }
            Envelope { id: Some(id), method: Some(Text(method)), params, .. } => {
                Ok(Self::Request { id, method, params })
            }
            Envelope { id: None, method: Some(Text(method)), params, .. } => {
                Ok(Self::Notification { method, params })
            }
            Envelope { id: Some(id), error: Some(error), .. } => {
                Ok(Self::Answer { id, reply: Reply::Error(RpcError::read(error)) })
            }
            Envelope { id: Some(id), result: Some(result), .. } => {
                Ok(Self::Answer { id, reply: Reply::Result(result.to_owned()) })
            }
            _ => refused("a message has a method, a result or an error"),
        }
    }
}

fn is_an_id(id: &RawValue) -> bool {
    id.get().len() <= ID_BYTES_MAX
        && id.get().starts_with(|c: char| c == '"' || c == '-' || c.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(body: &str) -> String {
        match FromClient::parse(body.as_bytes()) {
            Ok(FromClient::Request { id, method, params }) => {
                format!("request {id} {method} {}", params.map_or("-", RawValue::get))
            }
            Ok(FromClient::Notification { method, .. }) => format!("notification {method}"),
            Ok(FromClient::Answer { id, reply: Reply::Result(result) }) => format!("answer {id} {result}"),
            Ok(FromClient::Answer { id, reply: Reply::Error(error) }) => {
                format!("answer {id} {}", error.code)
            }
            Err(error) => format!("refused {}", error.code),
        }
    }

    #[test]
    fn every_kind_of_message_is_told_apart_and_the_rest_is_refused() {
        for (body, expected) in [
            (r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#, "request 1 ping -"),
            (r#"{"jsonrpc":"2.0","id":"a","method":"x","params":{"b": 1}}"#, r#"request "a" x {"b": 1}"#),
            (
                r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#,
                "notification notifications/initialized",
            ),
            (r#"{"jsonrpc":"2.0","id":7,"result":null}"#, "answer 7 null"),
            (r#"{"jsonrpc":"2.0","id":7,"error":{"code":-1,"message":"no"}}"#, "answer 7 -1"),
            (r#"{"jsonrpc":"2.0","id":null,"method":"ping"}"#, "refused -32600"),
            (r#"{"jsonrpc":"2.0","id":{},"method":"ping"}"#, "refused -32600"),
            (r#"{"id":1,"method":"ping"}"#, "refused -32600"),
            (r#"{"jsonrpc":"2.0","id":1}"#, "refused -32600"),
            (r#"[{"jsonrpc":"2.0","id":1,"method":"ping"}]"#, "refused -32600"),
            ("{", "refused -32700"),
            ("", "refused -32700"),
        ] {
            assert_eq!(seen(body), expected, "{body}");
        }
    }
}
