//! Calls: what is taken, what is refused, and that everything in between is carried to the letter.

use serde_json::{Value, json};

use super::{Host, MIRROR, SERVERS, on_each_provider};

on_each_provider!(
    params_and_results_are_carried_to_the_letter,
    a_caller_who_leaves_gives_up_its_place_and_the_server_is_told,
    calls_of_tools_are_recorded_as_by_any_other_door,
);

async fn params_and_results_are_carried_to_the_letter(host: Host) {
    host.hosted("mirror", "cofer-test/busybox", json!({"cmd": ["sh", "-c", MIRROR]})).await;
    for params in [
        r#"{"b":1,"a":2,"B":3}"#,
        r#"{"n":[1,1.0,1.00,1e2,1E+2,-0,-0.0,0.1e-7]}"#,
        r#"{"big":123456789012345678901234567890,"more":1.7976931348623157e+309,"long":0.12345678901234567890123}"#,
        r#"{"a":1,"a":2,"a":{"a":3,"a":3}}"#,
        r#"{"text":"\u00fc \u00FC ü \/ / \ud83d\ude00 😀 \u0000 \u2028"}"#,
        r#"{ "spaces" :  [ ] , "tabs":	{	} }"#,
        r#"[1,"list"]"#,
        r#"{"id":7,"method":"x","jsonrpc":"1.0"}"#,
        r#"{"deep":[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]}"#,
    ] {
        let answer = host.call_raw("mirror", format!(r#"{{"method":"any/method","params":{params}}}"#)).await;
        assert_eq!(answer.status, 200, "{params}: {answer:?}");
        assert!(answer.text.contains(&format!(r#""params":{params}"#)), "{params} became {}", answer.text);
        assert!(answer.text.ends_with(r#","error":null}"#), "{}", answer.text);
    }
    // A message is one line, whatever the whitespace between its parts.
    let answer = host.call_raw("mirror", "{\"method\":\"m\",\"params\":{\n \"a\" :\r\n 1\n}}").await;
    assert_eq!(answer.json()["result"]["params"], json!({"a": 1}), "{answer:?}");
    host.stop().await;
}

async fn calls_of_tools_are_recorded_as_by_any_other_door(host: Host) {
    host.app.put("/api/v1/projects/default/secrets/KEY", &json!({"value": "hunter2-very-secret"})).await;
    host.hosted("kept", super::MISBEHAVING, json!({"environment": {"K": "${KEY}"}})).await;
    host.tool("kept", "echo", json!({"text": "with hunter2-very-secret"})).await;
    host.call("kept", "tools/list", json!({})).await;
    let hung = host.try_tool("kept", "hang", json!({}), 200).await;
    assert_eq!(hung.refusal(), "504 timeout", "{hung:?}");
    let calls = host.app.get("/api/v1/projects/default/tool-calls").await.json();
    let brief = |call: &Value| format!("{} {} {}", call["tool_name"], call["server"], call["status"]);
    let all: Vec<_> = calls.as_array().unwrap().iter().map(brief).collect();
    assert_eq!(all, [r#""hang" "kept" "timeout""#, r#""echo" "kept" "completed""#], "{calls:#}");
    let echo = &calls[1];
    assert_eq!(echo["input"], json!({"text": "with [masked]"}), "{echo:#}");
    assert!(echo["output"].to_string().contains("with [masked]"), "{echo:#}");
    assert_eq!((echo["caller"].is_string(), echo["trace_id"].is_string()), (true, true), "{echo:#}");
    host.stop().await;
}

#[tokio::test]
async fn a_body_that_is_no_call_is_refused_and_says_why() {
    let Some(host) = Host::new("docker").await else { return };
    host.misbehaving("strict", &[]).await;
    for (body, refusal, field) in [
        ("", "400 bad_request", None),
        ("{", "400 bad_request", None),
        (r#"{"method":"ping"} {}"#, "400 bad_request", None),
        (r#"{"method":"ping","params":{"a":}}"#, "400 bad_request", None),
        ("[]", "422 validation_error", Some("")),
        (r#""ping""#, "422 validation_error", Some("")),
        ("{}", "422 validation_error", Some("method")),
        (r#"{"method":""}"#, "422 validation_error", Some("method")),
        (r#"{"method":7}"#, "422 validation_error", Some("method")),
        (r#"{"method":"ping","method":"pong"}"#, "422 validation_error", Some("method")),
        (r#"{"method":"ping","arguments":{}}"#, "422 validation_error", Some("arguments")),
        (r#"{"method":"ping","timeout_ms":0}"#, "422 validation_error", Some("timeout_ms")),
        (r#"{"method":"ping","timeout_ms":-1}"#, "422 validation_error", Some("timeout_ms")),
        (r#"{"method":"ping","timeout_ms":1.5}"#, "422 validation_error", Some("timeout_ms")),
        (r#"{"method":"ping","timeout_ms":99999999999999}"#, "422 validation_error", Some("timeout_ms")),
    ] {
        let answer = host.call_raw("strict", body).await;
        assert_eq!(answer.refusal(), refusal, "{body}: {answer:?}");
        let field = field.map_or(Value::Null, |field| json!(field));
        assert_eq!(answer.json()["error"]["details"]["field"], field, "{body}: {answer:?}");
    }
    let long = format!(r#"{{"method":"{}"}}"#, "m".repeat(1000));
    assert_eq!(host.call_raw("strict", long).await.refusal(), "422 validation_error");
    // `null` is nothing given.
    let answer = host.call_raw("strict", r#"{"method":"ping","params":null,"timeout_ms":null}"#).await;
    assert_eq!((answer.status, answer.json()), (200, json!({"result": {}, "error": null})));
    let nobody = host.call("nobody", "ping", json!({})).await;
    assert_eq!(nobody.refusal(), "404 not_found");
    let large = json!({"text": "x".repeat(8 << 20)});
    assert_eq!(host.tool("strict", "echo", large).await.len(), 8 << 20);
    host.stop().await;
}

/// How many calls of this tool the server has seen.
async fn seen(host: &Host, server: &str, tool: &str) -> u64 {
    host.facts(server, "calls_seen", json!({})).await["calls"][tool].as_u64().unwrap_or_default()
}

#[tokio::test]
async fn a_queue_that_is_full_refuses_at_once_and_time_in_it_counts() {
    let Some(host) = Host::started("docker", |start| start.variable("COFER_CALL_QUEUE_MAX", "2")).await
    else {
        return;
    };
    host.misbehaving("busy", &[]).await;
    // One is worked on, two wait until they are out of time, and nobody else fits meanwhile.
    let first = host.try_tool("busy", "hang", json!({}), 9_000);
    let others = async {
        host.app.in_flight(2).await;
        futures_util::future::join_all((0..11).map(|_| host.try_tool("busy", "hang", json!({}), 4_000))).await
    };
    let (first, mut answers) = futures_util::future::join(first, others).await;
    answers.push(first);
    let count = |refusal: &str| answers.iter().filter(|answer| answer.refusal() == refusal).count();
    assert_eq!((count("504 timeout"), count("429 limit_exceeded")), (3, 9), "{answers:?}");
    host.works("busy").await;
    assert_eq!(seen(&host, "busy", "hang").await, 1, "whoever waits until it is out of time is never sent");
    host.stop().await;
}

async fn a_caller_who_leaves_gives_up_its_place_and_the_server_is_told(host: Host) {
    host.misbehaving("left", &[]).await;
    let body = json!({"method": "tools/call", "params": {"name": "hang"}});
    let hang = || {
        let request = host.app.request(reqwest::Method::POST, &format!("{SERVERS}/left/call"));
        tokio::spawn(request.bearer_auth(&host.app.token).json(&body).send())
    };
    let (worked_on, waiting) = (hang(), hang());
    host.app.in_flight(3).await;
    waiting.abort();
    worked_on.abort();
    host.works("left").await;
    let cancelled = || async {
        let facts = host.facts("left", "cancel_seen", json!({})).await;
        facts["cancelled"].as_array().unwrap().len()
    };
    cofer_testkit::until("a cancellation", async || cancelled().await >= 1).await;
    let left_hanging = seen(&host, "left", "hang").await;
    assert_eq!(cancelled().await as u64, left_hanging, "whoever was sent was cancelled, and nobody else");
    host.stop().await;
}

#[tokio::test]
async fn more_calls_at_once_where_the_server_allows_it() {
    let Some(host) = Host::new("docker").await else { return };
    host.hosted("wide", super::MISBEHAVING, json!({"max_in_flight": 2})).await;
    let first = host.tool("wide", "out_of_order", json!({"text": "first"}));
    let second = async {
        cofer_testkit::until("the first is there", async || seen(&host, "wide", "out_of_order").await == 1)
            .await;
    };
    // The first is answered only once a later one was: with one at a time it would wait in vain.
    let (first, ()) = tokio::join!(first, second);
    assert_eq!(first, "first");
    host.stop().await;
}
