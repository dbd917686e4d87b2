//! From one era to the other: what an answer must say besides, and what it must not.

use std::time::Duration;

use cofer_mcp::message::{INVALID_PARAMS, Reply, RpcError};
use cofer_mcp::raw;
use serde_json::value::RawValue;

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
pub(crate) fn for_standalone(method: &str, reply: Reply, lifetime: Duration) -> Reply {
    match reply {
        Reply::Result(result) => Reply::Result(whole(method, result, lifetime)),
        Reply::Error(RpcError { code: RESOURCE_NOT_FOUND, message, data }) => {
            Reply::Error(RpcError { code: INVALID_PARAMS, message, data })
        }
        error @ Reply::Error(_) => error,
    }
}

fn whole(method: &str, result: Box<RawValue>, lifetime: Duration) -> Box<RawValue> {
    let result_type =
        if result.get().contains("\"resultType\"") { raw::text_at(&result, &["resultType"]) } else { None };
    let is_complete = result_type.as_deref().is_none_or(|kind| kind == "complete");
    let mut missing = String::new();
    if result_type.is_none() {
        missing.push_str("\"resultType\":\"complete\",");
    }
    if is_complete && is_cacheable(method) {
        let ttl_ms = lifetime.as_millis().to_string();
        for (name, value) in [("ttlMs", ttl_ms.as_str()), ("cacheScope", "\"private\"")] {
            if raw::at(&result, &[name]).is_none() {
                missing = format!("{missing}\"{name}\":{value},");
            }
        }
    }
    drop(result_type);
    if missing.is_empty() {
        return result;
    }
    let Some(rest) = result.get().trim_start().strip_prefix('{') else { return result };
    if rest.trim_start().starts_with('}') {
        missing.pop();
    }
    RawValue::from_string(format!("{{{missing}{rest}")).unwrap_or(result)
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
            assert_eq!(text(for_standalone(method, result(before), Duration::ZERO)), after);
        }
        let lost = Reply::Error(RpcError::new(RESOURCE_NOT_FOUND, "no"));
        assert_eq!(text(for_standalone("resources/read", lost, Duration::ZERO)), "-32602");
        assert_eq!(text(for_handshake(result(r#"{"resultType":"complete","a":1}"#))), r#"{"a":1}"#);
        assert_eq!(text(for_handshake(result(r#"{"a":"resultType"}"#))), r#"{"a":"resultType"}"#);
    }
}
