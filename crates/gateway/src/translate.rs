//! From one era to the other: what an answer must say besides, and what it must not.

use std::borrow::Cow;
use std::time::Duration;

use cofer_mcp::message::{INVALID_PARAMS, Reply, RpcError, response_with};
use cofer_mcp::raw;
use serde_json::value::RawValue;

use crate::endpoint::Answered;

const RESOURCE_NOT_FOUND: i64 = -32002;

/// Whether clients may keep the answer, which then says for how long.
fn is_cacheable(method: &str) -> bool {
    matches!(
        method,
        "server/discover"
            | "tools/list"
            | "prompts/list"
            | "resources/list"
            | "resources/templates/list"
            | "resources/read"
    )
}

/// As a client whose requests stand alone takes it. What is not known to be for everybody is for this client alone, and may be kept for
/// so long unless it says otherwise itself.
pub(crate) fn for_standalone(id: &RawValue, method: &str, reply: Reply, lifetime: Duration) -> Answered {
    match reply {
        Reply::Result(result) => {
            let message = response_with(id, &missing(method, &result, lifetime), &result);
            message.map_or_else(
                || Answered::to(id, &Reply::Result(result)),
                |message| Answered { message, code: None },
            )
        }
        Reply::Error(RpcError { code: RESOURCE_NOT_FOUND, message, data }) => {
            Answered::to(id, &Reply::Error(RpcError { code: INVALID_PARAMS, message, data }))
        }
        error @ Reply::Error(_) => Answered::to(id, &error),
    }
}

/// The fields that a result lacks, each with a comma behind it.
fn missing(method: &str, result: &RawValue, lifetime: Duration) -> Cow<'static, str> {
    let result_type =
        if result.get().contains("\"resultType\"") { raw::text_at(result, &["resultType"]) } else { None };
    let is_complete = result_type.as_deref().is_none_or(|kind| kind == "complete");
    let missing = if result_type.is_none() { "\"resultType\":\"complete\"," } else { "" };
    if !is_complete || !is_cacheable(method) {
        return missing.into();
    }
    let mut missing = missing.to_owned();
    let ttl_ms = lifetime.as_millis().to_string();
    for (name, value) in [("ttlMs", ttl_ms.as_str()), ("cacheScope", "\"private\"")] {
        if raw::at(result, &[name]).is_none() {
            missing = format!("{missing}\"{name}\":{value},");
        }
    }
    missing.into()
}

/// As a client of the handshake era takes it.
pub(crate) fn for_handshake(reply: Reply) -> Reply {
    match reply {
        Reply::Result(result) if result.get().contains("\"resultType\"") => {
            Reply::Result(raw::without(&result, "resultType").unwrap_or(result))
        }
        reply => reply,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(text: &str) -> Reply {
        Reply::Result(RawValue::from_string(text.to_owned()).unwrap())
    }

    fn text(reply: Reply) -> String {
        match reply {
            Reply::Result(result) => result.get().to_owned(),
            Reply::Error(error) => error.code.to_string(),
        }
    }

    #[test]
    fn an_answer_says_what_its_era_wants_and_keeps_the_rest() {
        for (method, before, after) in [
            ("tools/call", r#"{"content":[]}"#, r#"{"resultType":"complete","content":[]}"#),
            ("tools/call", "{}", r#"{"resultType":"complete"}"#),
            ("tools/call", "\n{ \r\n}", r#"{"resultType":"complete"   }"#),
            ("tools/call", "[1]", "[1]"),
            ("tools/call", r#"{"resultType":"task","x":1}"#, r#"{"resultType":"task","x":1}"#),
            (
                "tools/list",
                r#"{"tools":[]}"#,
                r#"{"resultType":"complete","ttlMs":0,"cacheScope":"private","tools":[]}"#,
            ),
            (
                "resources/read",
                r#"{"resultType":"complete","ttlMs":5,"contents":[]}"#,
                r#"{"cacheScope":"private","resultType":"complete","ttlMs":5,"contents":[]}"#,
            ),
            ("resources/read", r#"{"resultType":"input_required"}"#, r#"{"resultType":"input_required"}"#),
        ] {
            let answered = for_standalone(RawValue::NULL, method, result(before), Duration::ZERO);
            let expected = format!("{{\"jsonrpc\":\"2.0\",\"id\":null,\"result\":{after}}}\n");
            assert_eq!(String::from_utf8(answered.message).unwrap(), expected);
        }
        let lost = Reply::Error(RpcError::new(RESOURCE_NOT_FOUND, "no"));
        let lost = for_standalone(RawValue::NULL, "resources/read", lost, Duration::ZERO);
        assert_eq!(lost.code, Some(-32602));
        assert_eq!(text(for_handshake(result(r#"{"resultType":"complete","a":1}"#))), r#"{"a":1}"#);
        assert_eq!(text(for_handshake(result(r#"{"a":"resultType"}"#))), r#"{"a":"resultType"}"#);
    }
}
