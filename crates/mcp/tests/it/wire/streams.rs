//! Streamable HTTP as it should be: sessions, streams, their resumption, cancellation, order.

use std::time::Duration;

use cofer_mcp::CallError;
use cofer_mcp::wire::streamable;
use cofer_testkit::leaks::Descriptors;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::upstream::{Upstream, notification};
use super::{asking, asking_for, client, greeted, greeting, limits, pump, reply_to, target};

const A_WHILE: Duration = Duration::from_millis(150);

#[tokio::test]
async fn the_session_and_the_version_that_the_upstream_chose_are_shown_from_then_on() {
    let mut it = greeted().await;
    for name in ["mcp-session-id", "mcp-protocol-version", "authorization", "accept"] {
        assert!(!it.listening.header(name).is_empty(), "{name}");
    }
    let answer = asking(&it.pump, "tools/list");
    let asked = it.upstream.next().await;
    assert_eq!(asked.header("mcp-session-id"), "s-1");
    assert_eq!(asked.header("mcp-protocol-version"), "2025-06-18");
    assert_eq!(asked.header("authorization"), "Bearer s3cret");
    assert_eq!(asked.header("accept"), "application/json, text/event-stream");
    assert_eq!(asked.header("content-type"), "application/json");
    asked.answers(&json!({"b": 1.0, "a": []})).await;
    assert_eq!(answer.await.unwrap().unwrap(), r#"{"b":1.0,"a":[]}"#);
}

#[tokio::test]
async fn nothing_overtakes_the_handshake() {
    let mut upstream = Upstream::start().await;
    let (pump, _) = pump(streamable(target(&upstream.url), client(), limits()));
    let greeting = greeting(&pump);
    let hello = upstream.next().await;
    assert_eq!((hello.header("mcp-session-id"), hello.header("mcp-protocol-version")), ("", ""));
    let early = asking(&pump, "tools/list");
    assert!(upstream.hears_nothing_for(A_WHILE).await, "it waits for the session");
    hello.answers_in_session("s-1", &json!({})).await;
    let mut others = vec![upstream.next().await, upstream.next().await];
    others.sort_by_key(|asked| asked.body["method"].to_string());
    let (initialized, list) = (others.remove(0), others.remove(0));
    list.answers(&json!("early")).await;
    assert_eq!(early.await.unwrap().unwrap(), r#""early""#);
    // What is asked after `initialized` waits for it to be accepted.
    greeting.await.unwrap().unwrap();
    let late = asking(&pump, "tools/call");
    assert!(upstream.hears_nothing_for(A_WHILE).await);
    initialized.accepts().await;
    loop {
        let next = upstream.next().await;
        if next.method == "POST" {
            next.answers(&json!("late")).await;
            break;
        }
    }
    assert_eq!(late.await.unwrap().unwrap(), r#""late""#);
}

#[tokio::test]
async fn answers_come_as_bodies_or_streams_in_any_order_with_what_belongs_to_them() {
    let mut it = greeted().await;
    let mut heard = it.pump.notifications();
    let first = asking(&it.pump, "first");
    let mut one = it.upstream.next().await;
    let second = asking(&it.pump, "second");
    let two = it.upstream.next().await;
    two.answers(&json!(2)).await;
    assert_eq!(second.await.unwrap().unwrap(), "2");
    one.begins_stream().await;
    let reply = reply_to(&one.body, &json!({"x": 1})).to_string().replace(',', ",\r\ndata: ");
    one.says(&format!(": hello\r\n\r\ndata: {}\r\n\r\n", notification("half-way"))).await;
    assert_eq!(heard.recv().await.unwrap().method, "notifications/message");
    one.says(&format!("event: message\r\ndata: {reply}\r\n\r\n")).await;
    assert_eq!(first.await.unwrap().unwrap(), r#"{"x":1}"#);
}

#[tokio::test]
async fn a_stream_that_breaks_off_is_taken_up_where_it_broke_and_nothing_is_posted_again() {
    let mut it = greeted().await;
    let answer = asking(&it.pump, "tools/call");
    let mut asked = it.upstream.next().await;
    let question = asked.body.clone();
    asked.begins_stream().await;
    asked.says("id: e-7\nretry: 20\ndata:\n\n").await;
    drop(asked);
    let mut again = it.upstream.next().await;
    assert_eq!((again.method.as_str(), again.header("last-event-id")), ("GET", "e-7"));
    again.begins_stream().await;
    again.says(&format!("id: e-8\ndata: {}\n\n", notification("on the way"))).await;
    drop(again);
    let mut last = it.upstream.next().await;
    assert_eq!((last.method.as_str(), last.header("last-event-id")), ("GET", "e-8"));
    last.begins_stream().await;
    last.says(&format!("data: {}\n\n", reply_to(&question, &json!("at last")))).await;
    assert_eq!(answer.await.unwrap().unwrap(), r#""at last""#);
}

#[tokio::test]
async fn a_stream_that_cannot_be_taken_up_fails_its_call_alone_and_says_that_it_may_have_been_executed() {
    let mut it = greeted().await;
    let answer = asking(&it.pump, "tools/call");
    let mut asked = it.upstream.next().await;
    asked.begins_stream().await;
    asked.says("data: {\"jsonrpc\":").await;
    drop(asked);
    assert_eq!(
        answer.await.unwrap().unwrap(),
        r#"-32000 the upstream's stream ended before its answer came {"http_status":null,"may_have_executed":true}"#
    );
    let answer = asking(&it.pump, "tools/list");
    it.upstream.next().await.answers(&json!([])).await;
    assert_eq!(answer.await.unwrap().unwrap(), "[]");
}

#[tokio::test]
async fn the_upstreams_own_stream_comes_back_from_where_it_ended() {
    let mut it = greeted().await;
    let mut heard = it.pump.notifications();
    it.listening.begins_stream().await;
    it.listening.says(&format!("id: 1\ndata: {}\n\n", notification("one"))).await;
    heard.recv().await.unwrap();
    drop(it.listening);
    it.upstream.next().await.answers_with("503 Busy", "", "").await;
    let mut again = it.upstream.next().await;
    assert_eq!((again.method.as_str(), again.header("last-event-id")), ("GET", "1"));
    again.begins_stream().await;
    again.says(&format!("id: 2\ndata: {}\n\n", notification("two"))).await;
    let params = heard.recv().await.unwrap().params.clone().unwrap();
    assert_eq!(params.get(), r#"{"data":"two"}"#);
}

#[tokio::test]
async fn an_upstream_without_a_stream_of_its_own_is_not_asked_again() {
    for status in ["405 Method Not Allowed", "404 Not Found", "400 Bad Request", "401 Unauthorized"] {
        let mut it = greeted().await;
        it.listening.answers_with(status, "", "").await;
        assert!(it.upstream.hears_nothing_for(A_WHILE).await, "{status}");
        assert_eq!(it.fault.get(), None, "{status}");
    }
}

#[tokio::test]
async fn who_gives_up_is_told_to_the_upstream_and_no_longer_read_for() {
    let mut it = greeted().await;
    let answer = asking_for(&it.pump, "tools/call", Duration::from_millis(100));
    let mut asked = it.upstream.next().await;
    asked.begins_stream().await;
    assert_eq!(answer.await.unwrap().unwrap_err(), CallError::Timeout);
    let cancelled = it.upstream.next().await;
    assert_eq!(cancelled.body["method"], "notifications/cancelled");
    assert_eq!(cancelled.body["params"]["requestId"], asked.body["id"]);
    cancelled.accepts().await;
    asked.sees_them_leave().await;
}

#[tokio::test]
async fn what_is_said_may_be_longer_than_what_is_taken() {
    let mut it = greeted().await;
    let pump = it.pump.clone();
    let long = RawValue::from_string(json!({"text": "x".repeat(4 << 20)}).to_string()).unwrap();
    let answer = tokio::spawn(async move { pump.call("tools/call", Some(long), super::SECONDS).await });
    let asked = it.upstream.next().await;
    assert_eq!(asked.body["params"]["text"].as_str().map(str::len), Some(4 << 20));
    asked.answers(&json!(1)).await;
    assert_eq!(super::told(answer.await.unwrap().unwrap()), "1");
}

#[tokio::test]
async fn who_has_said_everything_still_hears_the_answers() {
    let mut upstream = Upstream::start().await;
    let mut wire = streamable(target(&upstream.url), client(), limits());
    let lines = r#"{"id":"\u0037","method":"a"}#!{"id":"8","method":"b"}#!"#.replace("#!", "\n");
    wire.stdin.write_all(lines.as_bytes()).await.unwrap();
    drop(wire.stdin);
    let (one, two) = (upstream.next().await, upstream.next().await);
    let (one, two) = if one.body["method"] == "a" { (one, two) } else { (two, one) };
    one.answers(&json!("seven")).await;
    two.answers_with("500 Oops", "", "").await;
    let mut said = String::new();
    wire.stdout.read_to_string(&mut said).await.unwrap();
    let mut said: Vec<Value> = said.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    said.sort_by_key(|answer| answer["id"].to_string());
    assert_eq!(said[0], json!({"jsonrpc": "2.0", "id": "7", "result": "seven"}));
    assert_eq!((&said[1]["id"], &said[1]["error"]["data"]["http_status"]), (&json!("8"), &json!(500)));
    assert_eq!(wire.fault.get(), None);
}

#[tokio::test]
async fn an_end_takes_the_session_with_it() {
    let mut it = greeted().await;
    drop(it.pump);
    it.listening.sees_them_leave().await;
    let farewell = it.upstream.next().await;
    assert_eq!((farewell.method.as_str(), farewell.header("mcp-session-id")), ("DELETE", "s-1"));
    farewell.answers_with("200 OK", "", "").await;
    assert_eq!(it.fault.get(), None);
}

#[tokio::test]
async fn what_the_upstream_asks_is_answered_by_a_post() {
    let mut it = greeted().await;
    it.listening.begins_stream().await;
    it.listening.says("data: {\"jsonrpc\":\"2.0\",\"id\":\"q-1\",\"method\":\"ping\"}\n\n").await;
    let answer = it.upstream.next().await;
    assert_eq!(answer.body, json!({"jsonrpc": "2.0", "id": "q-1", "result": {}}));
    answer.accepts().await;
}

#[tokio::test]
async fn a_message_of_the_newer_era_needs_no_handshake_and_its_headers_say_what_it_is() {
    let mut upstream = Upstream::start().await;
    let (pump, _) = pump(streamable(target(&upstream.url), client(), limits()));
    let params = r#"{"name":"größe","_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}"#;
    let call = async |timeout| {
        let params = RawValue::from_string(params.to_owned()).unwrap();
        pump.call("tools/call", Some(params), timeout).await
    };
    let answering = async {
        let asked = upstream.next().await;
        assert_eq!(asked.header("mcp-protocol-version"), "2026-07-28");
        assert_eq!(asked.header("mcp-method"), "tools/call");
        assert_eq!(asked.header("mcp-name"), "=?base64?Z3LDtsOfZQ==?=");
        asked.answers_in_session("of no interest", &json!(1)).await;
    };
    let (answer, ()) = tokio::join!(call(super::SECONDS), answering);
    assert_eq!(super::told(answer.unwrap()), "1");
    // Who gives up hangs up, and that is all there is to it.
    assert_eq!(call(A_WHILE).await.unwrap_err(), CallError::Timeout);
    let asked = upstream.next().await;
    assert_eq!(asked.header("mcp-session-id"), "");
    asked.sees_them_leave().await;
    assert!(upstream.hears_nothing_for(A_WHILE).await);
}

#[tokio::test]
async fn wires_that_come_and_go_leave_nothing_behind() {
    let come_and_go = async || {
        let mut it = greeted().await;
        let answer = asking(&it.pump, "tools/call");
        let asked = it.upstream.next().await;
        it.pump.close();
        asked.sees_them_leave().await;
        it.listening.sees_them_leave().await;
        it.upstream.next().await.answers_with("200 OK", "", "").await;
        assert_eq!(answer.await.unwrap().unwrap_err(), CallError::MayHaveExecuted);
        it.upstream.close().await;
    };
    come_and_go().await;
    let descriptors = Descriptors::of(std::process::id());
    for _ in 0..100 {
        come_and_go().await;
    }
    descriptors.assert_grown_by_at_most(4);
}
