//! Calls over connections by hand: however a request is written, cut up or put behind another, the answer is the same.

use std::time::{Duration, Instant};

use cofer_testkit::app::App;
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::gateway::Gate;
use crate::{serving, start};

async fn connect(app: &App) -> TcpStream {
    let client = TcpStream::connect(app.url.trim_start_matches("http://")).await.unwrap();
    client.set_nodelay(true).unwrap();
    client
}

/// A `ping` of a session, with these headers besides.
fn ping(app: &App, session: &str, id: u64, more: &str) -> String {
    let body = json!({"jsonrpc": "2.0", "id": id, "method": "ping"}).to_string();
    format!("{}{more}content-length: {}\r\n\r\n{body}", head(app, session), body.len())
}

fn head(app: &App, session: &str) -> String {
    format!(
        "POST /mcp HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {}\r\ncontent-type: application/json\r\naccept: application/json\r\nmcp-session-id: {session}\r\n",
        app.token
    )
}

async fn session(app: &App) -> String {
    let client = json!({"name": "by hand", "version": "1"});
    let params = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": client});
    let hello = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params});
    let answer = app.post("/mcp", &hello).await;
    answer.headers["mcp-session-id"].to_str().unwrap().to_owned()
}

/// One answer with a length: its head and its body.
async fn answer(client: &mut TcpStream) -> (String, Value) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(client.read_u8().await.unwrap());
    }
    let head = String::from_utf8(head).unwrap().to_ascii_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap_or("0");
    let mut body = vec![0; length.parse().unwrap()];
    client.read_exact(&mut body).await.unwrap();
    (head, serde_json::from_slice(&body).unwrap_or_default())
}

#[tokio::test]
async fn requests_that_are_sent_at_once_are_answered_in_their_order() {
    let app = serving().await;
    let (session, mut client) = (session(&app).await, connect(&app).await);
    let all: String = (1..=50).map(|id| ping(&app, &session, id, "")).collect();
    client.write_all(all.as_bytes()).await.unwrap();
    for id in 1..=50 {
        let (head, body) = answer(&mut client).await;
        assert!(head.starts_with("http/1.1 200 ok\r\n"), "{head}");
        assert!(head.contains("\r\ndate: ") && head.contains("\r\nx-request-id: "), "{head}");
        assert_eq!(body, json!({"jsonrpc": "2.0", "id": id, "result": {}}));
    }
    app.stop().await;
}

#[tokio::test]
async fn a_request_in_any_parts_is_answered_and_so_is_one_that_comes_slowly() {
    let app = start().arg("--header-timeout-ms=2000").serve().await;
    let (session, mut client) = (session(&app).await, connect(&app).await);
    let request = ping(&app, &session, 1, "");
    let body_begins = request.find("\r\n\r\n").unwrap() + 4;
    for cut in [1, 5, 30, body_begins - 2, body_begins, body_begins + 3, request.len() - 1] {
        // Longer than a moment, so that somebody else takes over: for this connection alone.
        for pause in [Duration::from_millis(1), Duration::from_millis(400)] {
            client.write_all(&request.as_bytes()[..cut]).await.unwrap();
            tokio::time::sleep(pause).await;
            client.write_all(&request.as_bytes()[cut..]).await.unwrap();
            let (head, body) = answer(&mut client).await;
            assert_eq!(body["id"], 1, "cut at {cut}: {head}");
            if pause > Duration::from_millis(1) {
                client = connect(&app).await;
            }
        }
    }
    app.stop().await;
}

#[tokio::test]
async fn what_is_not_plain_is_answered_on_the_same_connection() {
    let app = serving().await;
    let (session, mut client) = (session(&app).await, connect(&app).await);
    client.write_all(ping(&app, &session, 1, "").as_bytes()).await.unwrap();
    assert_eq!(answer(&mut client).await.1["id"], 1);
    let body = r#"{"jsonrpc":"2.0","id":2,"method":"ping"}"#;
    let chunked = format!(
        "{}transfer-encoding: chunked\r\n\r\n{:x}\r\n{body}\r\n0\r\n\r\n",
        head(&app, &session),
        body.len()
    );
    // Behind a plain one, so that it has been received when it is found to be none.
    client.write_all(format!("{}{chunked}", ping(&app, &session, 1, "")).as_bytes()).await.unwrap();
    assert_eq!(answer(&mut client).await.1["id"], 1);
    assert_eq!(answer(&mut client).await.1["id"], 2);
    let get = "GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n";
    client.write_all(format!("{get}{}", ping(&app, &session, 3, "")).as_bytes()).await.unwrap();
    assert!(answer(&mut client).await.0.starts_with("http/1.1 200"));
    assert_eq!(answer(&mut client).await.1["id"], 3);
    client.write_all(ping(&app, &session, 4, "connection: close\r\n").as_bytes()).await.unwrap();
    assert_eq!(answer(&mut client).await.1["id"], 4);
    assert_eq!(client.read(&mut [0]).await.unwrap(), 0, "it asked to be hung up on");
    app.stop().await;
}

#[tokio::test]
async fn what_could_be_read_as_two_requests_is_refused() {
    let app = serving().await;
    let session = session(&app).await;
    for fields in [
        "content-length: 3\r\ncontent-length: 4\r\n",
        "content-length: 4, 4\r\n",
        "content-length: +4\r\n",
        "content-length : 4\r\n",
    ] {
        let mut client = connect(&app).await;
        let request = format!("{}{fields}\r\n1234{}", head(&app, &session), ping(&app, &session, 9, ""));
        client.write_all(request.as_bytes()).await.unwrap();
        let (head, _) = answer(&mut client).await;
        assert!(head.starts_with("http/1.1 400"), "{fields}: {head}");
        let mut rest = Vec::new();
        client.read_to_end(&mut rest).await.ok();
        assert!(!String::from_utf8_lossy(&rest).contains("200 OK"), "{fields}");
    }
    app.stop().await;
}

#[tokio::test]
async fn refusals_are_the_same_and_a_token_is_asked_for_each_time() {
    let app = serving().await;
    let (session, mut client) = (session(&app).await, connect(&app).await);
    client.write_all(ping(&app, &session, 1, "").as_bytes()).await.unwrap();
    assert_eq!(answer(&mut client).await.1["id"], 1);
    let stranger = ping(&app, &session, 2, "").replace(&app.token, "wrong");
    client.write_all(stranger.as_bytes()).await.unwrap();
    let (head, body) = answer(&mut client).await;
    assert!(head.starts_with("http/1.1 401"), "{head}");
    assert_eq!(body["error"]["code"], "unauthorized");
    let elsewhere = ping(&app, &session, 3, "").replace("host: localhost", "host: evil.example");
    client.write_all(elsewhere.as_bytes()).await.unwrap();
    assert!(answer(&mut client).await.0.starts_with("http/1.1 403"));
    client.write_all(ping(&app, &session, 3, "host: evil.example\r\n").as_bytes()).await.unwrap();
    assert!(answer(&mut client).await.0.starts_with("http/1.1 400"));
    client.write_all(ping(&app, "no-such-session", 4, "").as_bytes()).await.unwrap();
    assert!(answer(&mut client).await.0.starts_with("http/1.1 404"));
    app.stop().await;
}

#[tokio::test]
async fn a_token_that_was_revoked_is_refused_in_a_head_that_was_good_before() {
    let app = serving().await;
    let guest = app.post("/api/v1/tokens", &json!({"name": "guest", "scopes": ["tools:call"]})).await;
    let said = |id| ping(&app, "none", id, "").replace(&app.token, guest.json()["token"].as_str().unwrap());
    let mut client = connect(&app).await;
    for id in 1..=3 {
        client.write_all(said(id).as_bytes()).await.unwrap();
        // It is let in: what is missing is a session.
        assert!(answer(&mut client).await.0.starts_with("http/1.1 404"), "{id}");
    }
    assert_eq!(app.delete("/api/v1/tokens/guest").await.status, 204);
    client.write_all(said(4).as_bytes()).await.unwrap();
    assert!(answer(&mut client).await.0.starts_with("http/1.1 401"));
    app.stop().await;
}

#[tokio::test]
async fn who_says_nothing_more_is_hung_up_on_and_does_not_hold_up_the_end() {
    let app = start().arg("--header-timeout-ms=300").serve().await;
    let (session, mut idle) = (session(&app).await, connect(&app).await);
    idle.write_all(ping(&app, &session, 1, "").as_bytes()).await.unwrap();
    assert_eq!(answer(&mut idle).await.1["id"], 1);
    let end = tokio::time::timeout(Duration::from_secs(20), idle.read(&mut [0])).await;
    assert_eq!(end.expect("it is hung up on").unwrap_or(0), 0);
    app.stop().await;

    let app = serving().await;
    let (session, mut idle) = (self::session(&app).await, connect(&app).await);
    idle.write_all(ping(&app, &session, 1, "").as_bytes()).await.unwrap();
    assert_eq!(answer(&mut idle).await.1["id"], 1);
    let began = Instant::now();
    app.stop().await;
    assert!(began.elapsed() < Duration::from_secs(8), "it waited for one who had asked for nothing");
}

#[tokio::test]
async fn who_has_begun_to_ask_is_answered_though_their_time_or_cofer_ends_meanwhile() {
    let app = start().arg("--header-timeout-ms=2000").serve().await;
    let session = session(&app).await;
    let request = ping(&app, &session, 1, "");
    let (begun, rest) = request.as_bytes().split_at(request.len() - 5);
    // Slow on purpose: it says nothing for nearly as long as it may, and then takes its time.
    let mut late = connect(&app).await;
    tokio::time::sleep(Duration::from_millis(1500)).await;
    late.write_all(begun).await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    late.write_all(rest).await.unwrap();
    assert_eq!(answer(&mut late).await.1["id"], 1);

    let mut client = connect(&app).await;
    client.write_all(request.as_bytes()).await.unwrap();
    assert_eq!(answer(&mut client).await.1["id"], 1, "it is known to be there");
    client.write_all(begun).await.unwrap();
    tokio::time::sleep(Duration::from_millis(500)).await;
    app.signal(Signal::TERM);
    app.logged("stopping: finishing what is in flight").await;
    client.write_all(rest).await.unwrap();
    let (head, body) = answer(&mut client).await;
    assert_eq!(body["id"], 1, "{head}");
    assert!(head.contains("connection: close"), "{head}");
    let (_, ran) = app.wait().await;
    assert_eq!(ran.code, Some(0), "{ran:?}");
}

#[tokio::test]
async fn calls_behind_one_another_are_made_though_their_client_says_nothing_more() {
    let gate = Gate::new().await;
    gate.misbehaving("good", &[]).await;
    let (session, mut client) = (session(&gate.app).await, connect(&gate.app).await);
    let call = |id: u64| {
        let params = json!({"name": "echo", "arguments": {"text": id.to_string()}});
        let body = json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}).to_string();
        format!("{}content-length: {}\r\n\r\n{body}", head(&gate.app, &session), body.len())
    };
    let all: String = (1..=5).map(call).collect();
    client.write_all(all.as_bytes()).await.unwrap();
    client.shutdown().await.unwrap();
    // Whoever ends in the middle of the last one may have left altogether.
    for id in 1..=4 {
        let (head, body) = answer(&mut client).await;
        assert_eq!(
            (&body["id"], &body["result"]["content"][0]["text"]),
            (&json!(id), &json!(id.to_string())),
            "{head}"
        );
    }
    gate.stop().await;
}

#[tokio::test]
async fn a_connection_of_one_version_does_not_become_one_of_another() {
    let app = serving().await;
    let (session, mut client) = (session(&app).await, connect(&app).await);
    client.write_all(ping(&app, &session, 1, "").as_bytes()).await.unwrap();
    assert_eq!(answer(&mut client).await.1["id"], 1);
    client.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
    let mut said = Vec::new();
    client.read_to_end(&mut said).await.ok();
    assert!(said.is_empty() || said.starts_with(b"HTTP/1.1 4"), "{}", String::from_utf8_lossy(&said));
    app.stop().await;
}
