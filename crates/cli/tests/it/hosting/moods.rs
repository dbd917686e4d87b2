//! The misbehaving server in every one of its moods: the bridge survives, the status tells the truth, no call outlasts its
//! deadline, and the next call works.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{Host, MISBEHAVING, on_each_provider};

on_each_provider!(
    odd_answers_reach_their_own_caller_or_nobody,
    torn_and_noisy_lines_break_nothing,
    what_else_goes_over_the_pipes_is_heard_or_ignored,
    every_death_is_told_as_it_was_and_followed_by_a_new_life,
);

/// No call outlasts its deadline by more than a busy machine needs.
const SLACK: Duration = Duration::from_secs(10);

/// What comes of calling a tool: `status text`, or `status code` of a refusal.
async fn outcome(host: &Host, server: &str, tool: &str, arguments: Value, timeout_ms: u64) -> String {
    let began = Instant::now();
    let answer = host.try_tool(server, tool, arguments, timeout_ms).await;
    assert!(began.elapsed() < Duration::from_millis(timeout_ms) + SLACK, "{tool}: {:?}", began.elapsed());
    let body = answer.json();
    match body["result"]["content"][0]["text"].as_str() {
        Some(text) => format!("{} {}", answer.status, text.chars().take(40).collect::<String>()),
        None if body["error"]["trace_id"].is_string() => answer.refusal(),
        None => format!("{} {body}", answer.status),
    }
}

/// Each mood has its outcome, and leaves the server as it was.
async fn each_mood(host: &Host, server: &str, moods: &[(&str, Value, u64, &str)]) {
    for (tool, arguments, timeout_ms, expected) in moods {
        let came = outcome(host, server, tool, arguments.clone(), *timeout_ms).await;
        assert_eq!(came, *expected, "{tool} {arguments}; log: {}", host.app.log());
        host.works(server).await;
        let status = host.status(server).await;
        assert_eq!(
            (&status["status"], &status["restart_count"], &status["bridge_connected"]),
            (&json!("ready"), &json!(0), &json!(true)),
            "after {tool} {arguments}: {status:#}"
        );
    }
}

async fn odd_answers_reach_their_own_caller_or_nobody(host: Host) {
    host.misbehaving("odd", &[]).await;
    let moods = [
        ("echo", json!({"text": "me"}), 30_000, "200 me"),
        // Before those that answer late, which would be later ones.
        ("out_of_order", json!({"ms": 100}), 30_000, "200 no later call came"),
        ("hang", json!({}), 200, "504 timeout"),
        ("late", json!({"ms": 300, "text": "too late"}), 100, "504 timeout"),
        ("late", json!({"ms": 50, "text": "in time"}), 30_000, "200 in time"),
        ("duplicate_answer", json!({}), 30_000, "200 twice"),
        ("answer_twice_late", json!({"ms": 50}), 30_000, "200 first"),
        ("wrong_id_answer", json!({}), 30_000, "200 for you"),
        ("wrong_id_answer", json!({"id": null}), 30_000, "200 for you"),
        ("wrong_id_answer", json!({"id": "1"}), 30_000, "200 for you"),
        ("wrong_id_answer", json!({"id": {"a": []}}), 30_000, "200 for you"),
        ("wrong_id_answer", json!({"then": "nothing"}), 200, "504 timeout"),
        ("huge", json!({"bytes": 10 << 20}), 30_000, "200 hhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhh"),
        ("huge", json!({"bytes": 17 << 20}), 30_000, "502 upstream_error"),
        ("tool_error", json!({"text": "no"}), 30_000, "200 no"),
        (
            "error",
            json!({}),
            30_000,
            r#"502 {"result":null,"error":{"code":-32000,"message":"asked to fail"}}"#,
        ),
    ];
    each_mood(&host, "odd", &moods).await;
    let unknown = host.try_tool("odd", "unknown_content", json!({}), 30_000).await;
    let kept = concat!(
        r#"{"result":{"zeta":null,"content":[{"type":"hologram","depth":3,"alpha":{"b":1,"a":2}},"#,
        r#"{"type":"text","text":"plain","x-colour":"\u00fcber"}],"x-unknown":{"kept":true},"#,
        r#""_meta":{"example.org/k":1}},"error":null}"#
    );
    assert_eq!((unknown.status, unknown.text.as_str()), (200, kept));
    host.stop().await;
}

async fn torn_and_noisy_lines_break_nothing(host: Host) {
    host.misbehaving("noisy", &["--stderr-line", "hello"]).await;
    let flood = |kind: &str| json!({"kind": kind, "bytes": 300_000});
    let moods = [
        ("half_line", json!({"ms": 50}), 30_000, "200 in two halves"),
        ("invalid_utf8", json!({}), 30_000, "200 after the noise"),
        ("invalid_utf8", json!({"place": "answer"}), 30_000, "502 upstream_error"),
        ("odd_line", json!({"style": "crlf"}), 30_000, "200 odd"),
        ("odd_line", json!({"style": "spaces"}), 30_000, "200 odd"),
        ("odd_line", json!({"style": "bytes"}), 30_000, "200 odd"),
        ("flood_stdout_noise", flood("text"), 30_000, r#"200 {"written":300000}"#),
        ("flood_stdout_noise", flood("blank"), 30_000, r#"200 {"written":300000}"#),
        ("flood_stdout_noise", flood("json"), 30_000, r#"200 {"written":300040}"#),
        (
            "flood_stdout_noise",
            json!({"bytes": 20 << 20, "line_bytes": 20 << 20}),
            30_000,
            r#"200 {"written":20971520}"#,
        ),
        ("flood_stderr", json!({"bytes": 2 << 20}), 30_000, r#"200 {"written":2097152}"#),
        (
            "flood_stderr",
            json!({"bytes": 2 << 20, "line_bytes": 2 << 20}),
            30_000,
            r#"200 {"written":2097152}"#,
        ),
    ];
    each_mood(&host, "noisy", &moods).await;
    // A line that is never finished swallows the next one: that call fails, and the one after it works.
    assert_eq!(
        outcome(&host, "noisy", "half_line", json!({"ms": 1, "then": "nothing"}), 200).await,
        "504 timeout"
    );
    let swallowed = outcome(&host, "noisy", "echo", json!({"text": "x"}), 500).await;
    assert!(["504 timeout", "502 upstream_error"].contains(&swallowed.as_str()), "{swallowed}");
    host.works("noisy").await;
    host.stop().await;
}

async fn what_else_goes_over_the_pipes_is_heard_or_ignored(host: Host) {
    host.misbehaving("chatty", &[]).await;
    let moods = [
        ("notify", json!({"count": 2000}), 30_000, r#"200 {"sent":2000}"#),
        ("notify", json!({"method": "x/y", "params": {"a": [1]}}), 30_000, r#"200 {"sent":1}"#),
        ("progress", json!({"steps": 3}), 30_000, r#"200 {"sent":0}"#),
        ("ask", json!({"method": "ping"}), 30_000, r#"200 {"came_back":{"#),
        ("ask", json!({"method": "ping", "id": 1}), 30_000, r#"200 {"came_back":{"#),
        ("ask", json!({"method": "roots/list"}), 30_000, r#"200 {"came_back":{"#),
        ("stop_reading_stdin", json!({"ms": 200}), 30_000, "200 not reading"),
        ("burn_cpu", json!({"ms": 50, "threads": 2}), 30_000, "200 {\"turns\":"),
        (
            "spawn",
            json!({"children": 2, "grandchildren": 2, "detached": true, "ignore_sigterm": true}),
            30_000,
            "200 {\"",
        ),
        ("spawn", json!({"orphan_grandchildren": true, "grandchildren": 1}), 30_000, "200 {\""),
        ("connect", json!({"address": "127.0.0.1:1", "ms": 500}), 30_000, "200 {\"connected\":false"),
        ("calls_seen", json!({}), 30_000, "200 {\"calls\":"),
        ("cancel_seen", json!({}), 30_000, "200 {\"cancelled\":["),
    ];
    for (tool, arguments, timeout_ms, expected) in moods {
        let came = outcome(&host, "chatty", tool, arguments.clone(), timeout_ms).await;
        assert!(came.starts_with(expected), "{tool} {arguments}: {came}");
        host.works("chatty").await;
    }
    let ours = host.facts("chatty", "ask", json!({"method": "ping", "id": 1})).await;
    assert_eq!((&ours["came_back"]["id"], &ours["came_back"]["result"]), (&json!(1), &json!({})), "{ours:#}");
    let refused = host.facts("chatty", "ask", json!({"method": "sampling/createMessage"})).await;
    assert_eq!(refused["came_back"]["error"]["code"], -32601, "{refused:#}");
    let before = host.until("chatty", "counted", |status| status["tool_count"].is_u64()).await;
    host.tool("chatty", "add_tools", json!({"count": 5})).await;
    let counted = before["tool_count"].as_u64().unwrap() + 5;
    host.until("chatty", "counted again", |status| status["tool_count"] == counted).await;
    assert_eq!(host.status("chatty").await["restart_count"], 0);
    host.stop().await;
}

async fn every_death_is_told_as_it_was_and_followed_by_a_new_life(host: Host) {
    let deaths = [
        ("crash", json!({"exit_code": 3}), json!({"code": 3}), "502 upstream_error"),
        ("crash", json!({"exit_code": 0}), json!({"code": 0}), "502 upstream_error"),
        ("crash", json!({"signal": "SIGKILL", "stderr": "bye"}), json!({"signal": 9}), "502 upstream_error"),
        ("crash", json!({"signal": "SIGSEGV"}), json!({"signal": 11}), "502 upstream_error"),
        ("crash", json!({"exit_code": 4, "answer": "first"}), json!({"code": 4}), "200 goodbye"),
        ("half_line", json!({"ms": 1, "then": "crash"}), json!({"code": 1}), "502 upstream_error"),
        ("eat_memory", json!({"bytes": 512 << 20}), json!({"oom_killed": true}), "502 upstream_error"),
    ];
    let asked = json!({"resource_limits": {"memory": "96M"}});
    for (number, (tool, arguments, exit, expected)) in deaths.into_iter().enumerate() {
        let server = format!("mortal-{number}");
        host.hosted(&server, MISBEHAVING, asked.clone()).await;
        let came = outcome(&host, &server, tool, arguments.clone(), 30_000).await;
        assert_eq!(came, expected, "{tool} {arguments}");
        let alive = |status: &Value| status["status"] == "ready" && status["restart_count"] == 1;
        let status = host.until(&server, "alive again", alive).await;
        for (field, value) in exit.as_object().unwrap() {
            assert_eq!(status["last_exit"][field], *value, "{tool} {arguments}: {status:#}");
        }
        assert!(status["last_crash"].is_string(), "{status:#}");
        host.works(&server).await;
        host.remove(&server).await;
    }
    host.stop().await;
}
