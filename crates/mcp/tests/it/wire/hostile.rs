//! Upstreams that do it wrong. One call fails, in words; the others go on, unless the upstream as a whole is lost.

use std::time::Duration;

use cofer_mcp::wire::{HttpTarget, WireLimits, streamable};
use cofer_mcp::{CallError, Ended};
use cofer_model::Kind;
use serde_json::json;

use super::upstream::Upstream;
use super::{Greeted, asking, asking_for, client, greeted, limits, pump, target};

/// The next call is answered: nothing is lost.
async fn still_works(it: &mut Greeted) {
    let answer = asking(&it.pump, "ping");
    it.upstream.next().await.answers(&json!({})).await;
    assert_eq!(answer.await.unwrap().unwrap(), "{}");
    assert_eq!(it.fault.get(), None);
}

#[tokio::test]
async fn an_answer_that_is_none_fails_its_call_in_words() {
    let mut it = greeted().await;
    let json = "Content-Type: application/json\r\n";
    let events = "Content-Type: text/event-stream\r\n";
    for (status, headers, body, expected) in [
        (
            "500 Oops",
            "",
            "boom\r\n\tbang",
            "the upstream answered HTTP 500 Internal Server Error: boom bang {500,true}",
        ),
        (
            "400 Bad Request",
            json,
            r#"{"error":{"code":-32600,"message":"no"},"id":null}"#,
            "the upstream answered HTTP 400 Bad Request: no {400,false}",
        ),
        ("429 Slow down", "", "", "the upstream answered HTTP 429 Too Many Requests {429,false}"),
        (
            "200 OK",
            "Content-Type: text/html\r\n",
            "<html>",
            "the upstream answered HTTP 200 OK with text/html, where JSON or an event stream is expected {null,true}",
        ),
        (
            "202 Accepted",
            "",
            "",
            "the upstream answered HTTP 202 Accepted with nothing, where JSON or an event stream is expected {null,true}",
        ),
        (
            "200 OK",
            json,
            "not json",
            "the upstream answered with something that is no answer: not json {null,true}",
        ),
        (
            "200 OK",
            json,
            r#"{"id":1,"result":1}"#,
            r#"the upstream answered with something that is no answer: {"id":1,"result":1} {null,true}"#,
        ),
        (
            "200 OK",
            events,
            "data: garbage\n\n",
            "the upstream's stream ended before its answer came {null,true}",
        ),
        (
            "302 Found",
            "Location: http://elsewhere.example/mcp\r\n",
            "",
            "the upstream answered HTTP 302 Found: it redirects to http://elsewhere.example/mcp; if that is its address, register that one {302,false}",
        ),
        (
            "307 Temporary Redirect",
            "Location: http://127.0.0.1:1/mcp\r\n",
            "",
            "the upstream answered HTTP 307 Temporary Redirect: it redirects to http://127.0.0.1:1/mcp; if that is its address, register that one {307,false}",
        ),
    ] {
        let answer = asking(&it.pump, "tools/call");
        it.upstream.next().await.answers_with(status, headers, body).await;
        let told = answer.await.unwrap().unwrap();
        let told = told.replace("\"http_status\":", "").replace("\"may_have_executed\":", "");
        assert_eq!(told, format!("-32000 {expected}"), "{status} {body}");
        still_works(&mut it).await;
    }
}

#[tokio::test]
async fn an_error_of_the_upstreams_own_passes_to_the_letter_whatever_its_status() {
    let mut it = greeted().await;
    let answer = asking(&it.pump, "tools/call");
    let asked = it.upstream.next().await;
    let body = json!({"jsonrpc": "2.0", "id": asked.body["id"],
        "error": {"code": -32602, "message": "Unknown tool", "data": {"z": 1, "a": 2}}});
    asked.answers_with("400 Bad Request", "Content-Type: application/json\r\n", &body.to_string()).await;
    assert_eq!(answer.await.unwrap().unwrap(), r#"-32602 Unknown tool {"z":1,"a":2}"#);
    still_works(&mut it).await;
}

#[tokio::test]
async fn several_messages_in_one_body_are_each_their_own() {
    let mut it = greeted().await;
    let mut heard = it.pump.notifications();
    let answer = asking(&it.pump, "tools/call");
    let asked = it.upstream.next().await;
    let reply = super::reply_to(&asked.body, &json!(7));
    let body = format!("[{},\n{reply}]", super::upstream::notification("with it"));
    asked.answers_with("200 OK", "Content-Type: application/json\r\n", &body).await;
    assert_eq!(answer.await.unwrap().unwrap(), "7");
    heard.recv().await.unwrap();
}

#[tokio::test]
async fn an_answer_over_the_limit_fails_its_call_alone() {
    let mut it = greeted().await;
    let long = "x".repeat(2 << 20);
    let too_long = r#"-32000 the upstream's answer is longer than the 1048576 bytes taken {"http_status":null,"may_have_executed":true}"#;
    let answer = asking(&it.pump, "tools/call");
    it.upstream.next().await.answers(&json!(long)).await;
    assert_eq!(answer.await.unwrap().unwrap(), too_long);
    let answer = asking(&it.pump, "tools/call");
    let mut asked = it.upstream.next().await;
    asked.begins_stream().await;
    asked.streams_answer(&json!(long)).await;
    assert_eq!(answer.await.unwrap().unwrap(), too_long);
    // On the stream that is nobody's in particular, too.
    let answer = asking(&it.pump, "tools/call");
    let asked = it.upstream.next().await;
    it.listening.begins_stream().await;
    let reply = super::reply_to(&asked.body, &json!(long));
    it.listening.says(&format!("data: {reply}\n\n")).await;
    assert_eq!(answer.await.unwrap().unwrap(), too_long);
    still_works(&mut it).await;
}

#[tokio::test]
async fn a_connection_that_breaks_fails_its_call_and_is_not_tried_again() {
    let mut it = greeted().await;
    for said in [
        "",
        "HTTP/1.1 2",
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{\"id\"",
    ] {
        let answer = asking(&it.pump, "tools/call");
        let mut asked = it.upstream.next().await;
        asked.says(said).await;
        drop(asked);
        let told = answer.await.unwrap().unwrap();
        assert!(
            told.starts_with("-32000 the connection to the upstream broke before it answered: "),
            "{told}"
        );
        assert!(told.ends_with("\"may_have_executed\":true}"), "{told}");
        still_works(&mut it).await;
    }
}

#[tokio::test]
async fn headers_without_end_are_not_listened_to_for_ever() {
    let mut it = greeted().await;
    let answer = asking(&it.pump, "tools/call");
    let mut asked = it.upstream.next().await;
    asked.says("HTTP/1.1 200 OK\r\n").await;
    let talking = tokio::spawn(async move {
        for number in 0..50_000 {
            asked.says(&format!("X-{number}: {}\r\n", "y".repeat(100))).await;
        }
    });
    assert!(answer.await.unwrap().unwrap().starts_with("-32000 the connection to the upstream broke"));
    talking.await.unwrap();
    still_works(&mut it).await;
}

#[tokio::test]
async fn who_never_answers_keeps_nobody_else_waiting() {
    let mut it = greeted().await;
    let mut stuck = Vec::new();
    for _ in 0..32 {
        stuck.push((asking_for(&it.pump, "tools/call", Duration::from_secs(1)), it.upstream.next().await));
        still_works(&mut it).await;
    }
    for (answer, asked) in stuck {
        assert_eq!(answer.await.unwrap().unwrap_err(), CallError::Timeout);
        asked.sees_them_leave().await;
    }
}

#[tokio::test]
async fn more_than_may_be_in_flight_wait_and_giving_up_makes_room() {
    let mut upstream = Upstream::start().await;
    let limits = WireLimits { in_flight_max: 2, ..limits() };
    let (pump, _) = pump(streamable(target(&upstream.url), client(), limits));
    let stuck = [
        asking_for(&pump, "a", Duration::from_millis(300)),
        asking_for(&pump, "b", Duration::from_millis(300)),
    ];
    let asked = [upstream.next().await, upstream.next().await];
    let given_up = asking_for(&pump, "c", Duration::from_millis(100));
    assert_eq!(given_up.await.unwrap().unwrap_err(), CallError::Timeout);
    let patient = asking(&pump, "d");
    for answer in stuck {
        assert_eq!(answer.await.unwrap().unwrap_err(), CallError::Timeout);
    }
    let mut heard = Vec::new();
    for _ in 0..3 {
        let next = upstream.next().await;
        heard.push(next.body["method"].as_str().unwrap().to_owned());
        if next.body["method"] == "d" {
            next.answers(&json!("d")).await;
        }
    }
    heard.sort();
    // `c` was never sent, so nobody is told that it was given up.
    assert_eq!(heard, ["d", "notifications/cancelled", "notifications/cancelled"]);
    assert_eq!(patient.await.unwrap().unwrap(), r#""d""#);
    drop(asked);
}

#[tokio::test]
async fn a_lost_session_ends_the_wire_and_says_so() {
    for (status, body) in [("404 Not Found", ""), ("400 Bad Request", "No valid session ID provided")] {
        let mut it = greeted().await;
        let in_flight = asking(&it.pump, "tools/call");
        let _held = it.upstream.next().await;
        let answer = asking(&it.pump, "tools/call");
        it.upstream.next().await.answers_with(status, "", body).await;
        assert!(answer.await.unwrap().unwrap().contains("\"may_have_executed\":false"));
        assert_eq!(it.pump.ended().await, Ended::Stdout);
        assert_eq!(in_flight.await.unwrap().unwrap_err(), CallError::MayHaveExecuted);
        let fault = it.fault.get().unwrap();
        assert_eq!((fault.kind, fault.status), (Kind::Unavailable, status[..3].parse().ok()), "{fault}");
    }
}

#[tokio::test]
async fn a_refusal_whose_body_never_ends_is_a_refusal() {
    let mut it = greeted().await;
    let answer = asking(&it.pump, "tools/call");
    let mut asked = it.upstream.next().await;
    asked.says("HTTP/1.1 404 Not Found\r\nContent-Length: 99\r\n\r\nno").await;
    assert!(answer.await.unwrap().unwrap().contains("the upstream answered HTTP 404 Not Found: no"));
    assert_eq!(it.pump.ended().await, Ended::Stdout);
    drop(asked);
}

#[tokio::test]
async fn a_refused_credential_ends_the_wire_with_what_the_upstream_wants_to_see() {
    let mut it = greeted().await;
    let answer = asking(&it.pump, "tools/call");
    let wants = "WWW-Authenticate: Bearer resource_metadata=\"x\"\r\n";
    it.upstream.next().await.answers_with("401 Unauthorized", wants, "").await;
    answer.await.unwrap().unwrap();
    assert_eq!(it.pump.ended().await, Ended::Stdout);
    let fault = it.fault.get().unwrap();
    assert_eq!((fault.kind, fault.status), (Kind::Upstream, Some(401)));
    assert_eq!(fault.www_authenticate.as_deref(), Some("Bearer resource_metadata=\"x\""));
}

#[tokio::test]
async fn an_upstream_that_is_not_there_ends_the_wire() {
    let mut it = greeted().await;
    it.listening.answers_with("405 None", "", "").await;
    it.upstream.close().await;
    let answer = asking(&it.pump, "tools/call").await.unwrap().unwrap();
    assert!(answer.starts_with("-32000 the upstream cannot be reached: "), "{answer}");
    assert!(answer.ends_with("\"may_have_executed\":false}"), "{answer}");
    assert_eq!(it.pump.ended().await, Ended::Stdout);
    assert_eq!(it.fault.get().unwrap().kind, Kind::Unavailable);
}

#[tokio::test]
async fn a_redirect_within_the_upstream_is_followed_as_it_was() {
    let mut it = greeted().await;
    let answer = asking(&it.pump, "tools/call");
    it.upstream.next().await.answers_with("307 Temporary Redirect", "Location: /mcp/\r\n", "").await;
    let again = it.upstream.next().await;
    assert_eq!((again.method.as_str(), again.path.as_str()), ("POST", "/mcp/"));
    assert_eq!((again.header("authorization"), again.header("mcp-session-id")), ("Bearer s3cret", "s-1"));
    again.answers(&json!("there")).await;
    assert_eq!(answer.await.unwrap().unwrap(), r#""there""#);
}

#[tokio::test]
async fn a_header_that_cannot_be_sent_is_told_by_its_name_alone() {
    let headers = vec![("X-Key".to_owned(), "a\nb".into())];
    let target = HttpTarget { url: "http://127.0.0.1:1/mcp".parse().unwrap(), headers };
    let (pump, fault) = pump(streamable(target, client(), limits()));
    pump.ended().await;
    let fault = fault.get().unwrap();
    assert_eq!(fault.kind, Kind::Invalid);
    assert!(fault.message.contains("`X-Key`") && !fault.message.contains("a\nb"), "{fault}");
}
