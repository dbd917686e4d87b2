//! Noise, notifications, questions to the client, and pipes that stop.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::peer::{Peer, QUIET, text_of};

#[test]
fn a_flood_of_stderr_is_as_long_as_it_says_and_then_the_call_is_answered() {
    let mut peer = Peer::start(&[]);
    let written = peer.facts("flood_stderr", &json!({"bytes": 3_000_000, "line_bytes": 1000}));
    assert_eq!(written, json!({"written": 3_000_000}));
    let lines: Vec<_> = (0..3000).map(|_| peer.stderr_line()).collect();
    assert!(lines.iter().all(|line| line.len() == 999));
    assert!(lines[2999].starts_with("noise 2999 "));
}

#[test]
fn the_flood_at_the_start_does_not_keep_it_from_serving() {
    let mut peer = Peer::start(&["--stderr-flood-at-start", "--stderr-line", "first"]);
    assert_eq!(peer.stderr_line(), "first");
    assert!(peer.stderr_line().starts_with("noise 0 "));
    peer.assert_alive();
}

#[test]
fn noise_on_stdout_precedes_the_answer() {
    let mut peer = Peer::start(&[]);
    let id = peer.call("flood_stdout_noise", &json!({"bytes": 500, "line_bytes": 100}));
    let noise: Vec<_> = (0..5).map(|_| peer.line()).collect();
    assert!(noise.iter().all(|line| line.len() == 100 && line.starts_with(b"noise ")));
    assert_eq!(peer.message()["id"], id);
    peer.call("flood_stdout_noise", &json!({"bytes": 3, "kind": "blank"}));
    assert!((0..3).all(|_| peer.line() == b"\n"));
    peer.message();
    let id = peer.call("flood_stdout_noise", &json!({"bytes": 1, "kind": "json"}));
    assert_eq!((0..7).map(|_| peer.message()).filter(|noise| noise["id"] == id).count(), 0);
    assert_eq!(peer.message()["id"], id);
}

#[test]
fn notifications_precede_the_answer() {
    let mut peer = Peer::start(&[]);
    let id = peer.call("notify", &json!({"count": 2}));
    for _ in 0..2 {
        assert_eq!(peer.message()["method"], "notifications/tools/list_changed");
    }
    assert_eq!(peer.message()["id"], id);
    peer.call("notify", &json!({"method": "notifications/message", "params": {"level": "info"}}));
    assert_eq!(peer.message()["params"], json!({"level": "info"}));
}

#[test]
fn progress_bears_the_token_of_the_call() {
    let mut peer = Peer::start(&[]);
    let call = json!({"name": "progress", "arguments": {"steps": 2}, "_meta": {"progressToken": "mine"}});
    assert_eq!(peer.result("tools/call", &call)["structuredContent"]["sent"], 2);
    let progress = |message: &Value| message["params"]["progressToken"] == "mine";
    assert_eq!(peer.wait_for(progress)["params"]["progress"], 1);
    assert_eq!(peer.wait_for(progress)["params"]["progress"], 2);
}

#[test]
fn added_tools_are_announced_listed_and_callable() {
    let mut peer = Peer::start(&["--only-fillers"]);
    assert_eq!(peer.facts("add_tools", &json!({"count": 2})), json!({"fillers": 2}));
    peer.wait_for(|message| message["method"] == "notifications/tools/list_changed");
    assert_eq!(peer.result("tools/list", &json!({}))["tools"][1]["name"], "filler_0002");
    assert_eq!(peer.text("filler_0002", &json!({})), "filled by misbehaving");
}

#[test]
fn a_question_to_the_client_returns_what_came_back() {
    let mut peer = Peer::start(&[]);
    let call = peer.call("ask", &json!({"method": "roots/list"}));
    let question = peer.wait_for(|message| message["method"] == "roots/list");
    peer.assert_alive();
    let answer = json!({"jsonrpc": "2.0", "id": question["id"], "result": {"roots": []}});
    peer.send(&answer);
    assert_eq!(peer.answer(call)["result"]["structuredContent"]["came_back"], answer);
}

#[test]
fn a_question_may_bear_the_id_of_the_very_call_that_asks_it() {
    let mut peer = Peer::start(&[]);
    let call = peer.call("ask", &json!({"method": "ping", "id": 1}));
    let question = peer.wait_for(|message| message["method"] == "ping");
    assert_eq!(question["id"], call);
    peer.send(&json!({"jsonrpc": "2.0", "id": 1, "error": {"code": -32601, "message": "no"}}));
    assert_eq!(peer.answer(call)["result"]["structuredContent"]["came_back"]["error"]["code"], -32601);
}

#[test]
fn a_question_nobody_answers_is_given_up() {
    let mut peer = Peer::start(&[]);
    let facts = peer.facts("ask", &json!({"method": "sampling/createMessage", "params": {}, "ms": 20}));
    assert_eq!(facts, json!({"came_back": null}));
}

#[test]
fn it_stops_reading_for_as_long_as_told() {
    let mut peer = Peer::start(&[]);
    assert_eq!(peer.text("stop_reading_stdin", &json!({"ms": 300})), "not reading");
    let start = Instant::now();
    peer.assert_alive();
    assert!(start.elapsed() >= Duration::from_millis(250), "{:?}", start.elapsed());
}

#[test]
fn it_may_stop_reading_for_ever() {
    let mut peer = Peer::start(&[]);
    peer.text("stop_reading_stdin", &json!({}));
    peer.call("echo", &json!({}));
    peer.assert_quiet();
    peer.close_stdin();
    std::thread::sleep(QUIET);
    assert!(peer.is_running());
}

#[test]
fn closing_stdout_ends_the_stream_but_not_the_program() {
    let mut peer = Peer::start(&[]);
    peer.call("close_stdout", &json!({}));
    peer.assert_stdout_ended();
    assert!(peer.is_running());
    peer.close_stdin();
    assert_eq!(peer.exit_status().code(), Some(0));
}

#[test]
fn answers_of_calls_in_flight_never_mix_in_one_line() {
    let mut peer = Peer::start(&[]);
    let ids: Vec<_> = (0..8).map(|_| peer.call("huge", &json!({"bytes": 300_000}))).collect();
    for id in ids {
        assert_eq!(text_of(&peer.answer(id)).len(), 300_000);
    }
}
