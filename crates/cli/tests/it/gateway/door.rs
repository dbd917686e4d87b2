//! The door of the endpoint: who is let in, what is refused and how, and what is left of clients that vanish.

use std::time::{Duration, Instant};

use cofer_testkit::leaks::Descriptors;
use cofer_testkit::{until, until_seen};
use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::client::Events;
use super::{Client, Gate};

const PING: &str = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;

fn hello() -> Value {
    let client = json!({"name": "x", "version": "1"});
    let params = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": client});
    json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params})
}

/// `status code`, of either kind of refusal.
async fn refusal(request: RequestBuilder) -> String {
    let answer = request.send().await.unwrap();
    let status = answer.status().as_u16();
    let body: Value = answer.json().await.unwrap_or_default();
    format!("{status} {}", body["error"]["code"].to_string().trim_matches('"'))
}

async fn token(gate: &Gate, scopes: Value) -> String {
    let made = gate.app.post("/api/v1/tokens", &json!({"name": "t", "scopes": scopes})).await;
    assert_eq!(made.status, 201, "{made:?}");
    made.json()["token"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn only_a_token_that_may_call_tools_gets_in() {
    let gate = Gate::new().await;
    let knock = |token: Option<&str>| {
        let request = gate.app.request(Method::POST, "/mcp").json(&hello());
        token.map_or_else(
            || gate.app.request(Method::POST, "/mcp").json(&hello()),
            |token| request.bearer_auth(token),
        )
    };
    assert_eq!(refusal(knock(None)).await, "401 unauthorized");
    assert_eq!(refusal(knock(Some("cofer_nonsense"))).await, "401 unauthorized");
    let reader = token(&gate, json!(["admin:read"])).await;
    assert_eq!(refusal(knock(Some(&reader))).await, "403 forbidden");
    let caller = token(&gate, json!(["tools:call"])).await;
    assert_eq!(knock(Some(&caller)).send().await.unwrap().status(), 200);
    gate.stop().await;
}

#[tokio::test]
async fn foreign_hosts_and_origins_are_refused_even_without_tokens() {
    let gate = Gate::started(|start| start.arg("--mcp-auth=none")).await;
    let knock =
        |name: &str, value: &str| gate.app.request(Method::POST, "/mcp").header(name, value).json(&hello());
    for (header, value) in [("host", "evil.example"), ("origin", "http://evil.example"), ("origin", "null")] {
        let refused = refusal(knock(header, value)).await;
        assert!(refused.starts_with("403"), "{header}: {value}: {refused}");
    }
    let own = gate.app.url.clone();
    assert_eq!(knock("origin", &own).send().await.unwrap().status(), 200);
    assert_eq!(knock("host", "localhost").send().await.unwrap().status(), 200);
    gate.stop().await;
}

#[tokio::test]
async fn a_session_is_its_owners_alone_and_ends_with_its_deletion() {
    let gate = Gate::new().await;
    let client = gate.client().await;
    let other = Client { token: token(&gate, json!(["tools:call"])).await, ..client.clone() };
    let unknown = Client { session: "0123456789abcdef".to_owned(), ..client.clone() };
    let none = Client { session: String::new(), ..client.clone() };
    let ping: Value = serde_json::from_str(PING).unwrap();
    assert_eq!(refusal(other.post(&ping)).await, "404 not_found");
    assert_eq!(refusal(unknown.post(&ping)).await, "404 not_found");
    assert!(refusal(none.post(&ping)).await.starts_with("400"));
    for stranger in [&other, &unknown] {
        assert_eq!(refusal(stranger.request(Method::GET)).await, "404 not_found");
        assert_eq!(refusal(stranger.request(Method::DELETE)).await, "404 not_found");
    }
    assert_eq!(client.ask("ping", json!({})).await.result(), &json!({}));
    assert_eq!(client.leave().await, 204);
    assert_eq!(refusal(client.post(&ping)).await, "404 not_found");
    // Nor can it be used in another project.
    let made = gate.app.post("/api/v1/projects", &json!({"name": "elsewhere"})).await;
    assert_eq!(made.status, 201);
    let there = Client::open(&gate.app, "/projects/elsewhere/mcp", &gate.app.token, json!({})).await;
    let here = Client { url: format!("{}/mcp", gate.app.url), ..there.clone() };
    assert_eq!(refusal(here.post(&ping)).await, "404 not_found");
    // A new name for the project takes no session away from it.
    assert_eq!(gate.app.patch("/api/v1/projects/elsewhere", &json!({"name": "renamed"})).await.status, 200);
    let renamed = Client { url: format!("{}/projects/renamed/mcp", gate.app.url), ..there };
    assert_eq!(renamed.ask("ping", json!({})).await.result(), &json!({}));
    gate.stop().await;
}

#[tokio::test]
async fn bodies_that_are_no_message_are_refused_and_the_session_goes_on() {
    let gate = Gate::started(|start| start.arg("--body-bytes-max=2000").arg("--body-timeout-ms=500")).await;
    let client = gate.client().await;
    let send =
        |body: String| client.request(Method::POST).header("content-type", "application/json").body(body);
    let padded = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"ping","x":"{}"}}"#, "x".repeat(4_000));
    for (body, expected) in [
        ("{", "400 -32700"),
        ("", "400 -32700"),
        ("\u{feff}{}", "400 -32700"),
        (r#"[{"jsonrpc":"2.0","id":1,"method":"ping"}]"#, "400 -32600"),
        ("[]", "400 -32600"),
        (r#"{"jsonrpc":"1.0","id":1,"method":"ping"}"#, "400 -32600"),
        (r#"{"jsonrpc":"2.0","id":null,"method":"ping"}"#, "400 -32600"),
        (r#"{"jsonrpc":"2.0"}"#, "400 -32600"),
        (r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{}}"#, "200 -32602"),
        (r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":[1]}"#, "200 -32602"),
        (r#"{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"cursor":"nonsense"}}"#, "200 -32602"),
        (r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}"#, "400 -32602"),
        (r#"{"jsonrpc":"2.0","id":1,"method":"x/y"}"#, "200 -32601"),
        (padded.as_str(), "413 payload_too_large"),
    ] {
        assert_eq!(refusal(send(body.to_owned())).await, expected, "{}", &body[..body.len().min(80)]);
    }
    let plain = client.request(Method::POST).header("content-type", "text/plain").body(PING);
    assert_eq!(refusal(plain).await, "415 unsupported_media_type");
    let odd = send(PING.to_owned()).header("mcp-protocol-version", "1999-01-01");
    assert!(refusal(odd).await.starts_with("400"));
    let known = send(PING.to_owned()).header("mcp-protocol-version", "2025-06-18");
    assert_eq!(known.send().await.unwrap().status(), 200);
    assert_eq!(refusal(client.request(Method::PUT)).await, "405 method_not_allowed");
    let mut slow = tokio::net::TcpStream::connect(gate.app.url.trim_start_matches("http://")).await.unwrap();
    let head = format!(
        "POST /mcp HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nauthorization: Bearer {}\r\nmcp-session-id: {}\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{{",
        gate.app.token, client.session
    );
    slow.write_all(head.as_bytes()).await.unwrap();
    let mut answer = String::new();
    let read = tokio::time::timeout(Duration::from_secs(20), slow.read_to_string(&mut answer)).await;
    read.expect("it is hung up on").unwrap();
    assert!(answer.starts_with("HTTP/1.1 504"), "{answer}");
    assert_eq!(client.ask("ping", json!({})).await.result(), &json!({}));
    gate.stop().await;
}

#[tokio::test]
async fn a_get_without_accept_for_events_is_refused() {
    let gate = Gate::new().await;
    let client = gate.client().await;
    let url = format!("{}/mcp", gate.app.url);
    let request =
        gate.app.http.get(url).bearer_auth(&gate.app.token).header("mcp-session-id", &client.session);
    assert_eq!(refusal(request.header("accept", "application/json")).await, "405 method_not_allowed");
    gate.stop().await;
}

#[tokio::test]
async fn a_stream_that_broke_is_read_on_from_where_it_was() {
    let gate = Gate::new().await;
    gate.misbehaving("server", &[]).await;
    let client = gate.client().await;
    let params = json!({"name": "progress", "arguments": {"steps": 5}, "_meta": {"progressToken": 1}});
    let call = json!({"jsonrpc": "2.0", "id": "c", "method": "tools/call", "params": params});
    let mut events = Events::of(client.post(&call).send().await.unwrap());
    let first = events.next().await.unwrap();
    assert_eq!(first.data["method"], "notifications/progress");
    drop(events);
    let again = client.request(Method::GET).header("last-event-id", &first.id).send().await.unwrap();
    let mut again = Events::of(again);
    let mut steps = 1;
    let answer = loop {
        let event = again.next().await.expect("the rest of the stream");
        if event.data["id"] == "c" {
            break event.data;
        }
        assert_eq!(event.data["method"], "notifications/progress");
        steps += 1;
    };
    assert_eq!((steps, answer["error"].is_null()), (5, true), "{answer}");
    assert!(again.next().await.is_none(), "it ends with the answer");
    // From its beginning, it is all of it.
    let stream = first.id.split_once('-').unwrap().0;
    let whole =
        client.request(Method::GET).header("last-event-id", format!("{stream}-0")).send().await.unwrap();
    let mut whole = Events::of(whole);
    let mut count = 0;
    while whole.next().await.is_some() {
        count += 1;
    }
    assert_eq!(count, 6);
    for unknown in ["999-1", "nonsense", "1-x", ""] {
        let request = client.request(Method::GET).header("last-event-id", unknown);
        assert_eq!(refusal(request).await, "404 not_found", "{unknown}");
    }
    gate.stop().await;
}

#[tokio::test]
async fn what_belongs_to_no_call_and_was_missed_comes_with_the_next_stream() {
    let gate = Gate::new().await;
    gate.misbehaving("server", &[]).await;
    let client = gate.client().await;
    client.tool_names().await;
    let general = client.request(Method::GET).send().await.unwrap();
    let mut general = Events::of(general);
    client.tool("add_tools", json!({"count": 1})).await;
    let first = general.next().await.unwrap();
    assert_eq!(first.data["method"], "notifications/tools/list_changed");
    drop(general);
    client.tool("add_tools", json!({"count": 1})).await;
    until("the second change", async || client.tool_names().await.iter().any(|name| name == "filler_0002"))
        .await;
    let general = client.request(Method::GET).header("last-event-id", &first.id).send().await.unwrap();
    let missed = Events::of(general).next().await.unwrap();
    assert_eq!(missed.data["method"], "notifications/tools/list_changed");
    assert_ne!(missed.id, first.id);
    gate.stop().await;
}

#[tokio::test]
async fn of_two_streams_of_one_session_one_carries_each_message() {
    let gate = Gate::new().await;
    gate.misbehaving("m", &[]).await;
    let client = gate.client().await;
    let (one, other) = (client.listen().await, client.listen().await);
    let method = "notifications/tools/list_changed";
    client.tool_names().await;
    for count in 1..=5 {
        client.tool("add_tools", json!({"count": 1})).await;
        until_seen("a change", async || {
            let heard = one.of(method).len() + other.of(method).len();
            if heard >= count { Ok(()) } else { Err(heard.to_string()) }
        })
        .await;
    }
    // Told in order: who heard the last of them would have heard the others twice by now.
    assert_eq!(one.of(method).len() + other.of(method).len(), 5);
    gate.stop().await;
}

#[tokio::test]
async fn sessions_that_nobody_uses_end_and_a_stream_that_is_read_keeps_its_own() {
    let gate = Gate::started(|start| start.arg("--session-idle-ms=800")).await;
    let (kept, left) = (gate.client().await, gate.client().await);
    let _listening = kept.listen().await;
    let ping: Value = serde_json::from_str(PING).unwrap();
    // Looking is no use: with a token of somebody else's the session is not touched.
    let stranger = Client { token: token(&gate, json!(["tools:call"])).await, ..left.clone() };
    assert_eq!(refusal(stranger.post(&ping)).await, "404 not_found");
    let began = Instant::now();
    // The one that is read is older than the one that is left when that one ends.
    until_seen("its end", async || {
        let probe = Client { url: format!("{}/projects/default/mcp", gate.app.url), ..left.clone() };
        if began.elapsed() < Duration::from_millis(1600) {
            return Err("not yet".to_owned());
        }
        match refusal(probe.post(&ping)).await.as_str() {
            "404 not_found" => Ok(()),
            other => Err(other.to_owned()),
        }
    })
    .await;
    assert_eq!(kept.ask("ping", json!({})).await.result(), &json!({}));
    gate.stop().await;
}

/// `COFER_TEST_WAVES=500` for a hundred thousand of them.
#[tokio::test]
async fn two_hundred_clients_that_come_and_vanish_leave_nothing() {
    let waves = crate::told("COFER_TEST_WAVES").unwrap_or(2);
    let gate = Gate::started(|start| start.arg("--session-idle-ms=1000")).await;
    gate.misbehaving("server", &[]).await;
    let first = gate.client().await;
    first.tool_names().await;
    let wave = async || {
        let clients = (0..200).map(|number| {
            let gate = &gate;
            async move {
                // A connection of its own, which is dropped in the middle of whatever is on it.
                let http = reqwest::Client::builder().no_proxy().build().unwrap();
                let client = Client { http, ..gate.client().await };
                let text = number.to_string();
                assert_eq!(client.tool("echo", json!({"text": text})).await.text(), text);
                match number % 4 {
                    0 => assert_eq!(client.leave().await, 204),
                    1 => drop(client.request(Method::GET).send().await.unwrap()),
                    2 => {
                        let params = json!({"name": "progress", "arguments": {"steps": 50}, "_meta": {"progressToken": 1}});
                        let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params});
                        drop(client.post(&call).send().await.unwrap());
                    }
                    // Left before anything was said: the call is called off.
                    _ => {
                        let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "hang", "arguments": {}}});
                        let sent = client.post(&call).timeout(Duration::from_millis(200)).send().await;
                        assert!(sent.is_err());
                    }
                }
            }
        });
        let clients: Vec<_> = clients.collect();
        futures_util::stream::StreamExt::collect::<Vec<()>>(
            futures_util::stream::StreamExt::buffer_unordered(futures_util::stream::iter(clients), 20),
        )
        .await;
    };
    wave().await;
    let cancelled = async || {
        let seen = gate.text("cancel_seen", json!({})).await;
        let seen: Value = serde_json::from_str(&seen).unwrap();
        seen["cancelled"].as_array().map_or(0, Vec::len) as u64
    };
    until("fifty calls that were called off", async || cancelled().await == 50).await;
    let (descriptors, memory) = (Descriptors::of(gate.app.pid()), gate.app.resident_bytes());
    let (open_before, began) = (descriptors.count(), Instant::now());
    for _ in 0..waves {
        wave().await;
    }
    let took = began.elapsed();
    until("all calls that were called off", async || cancelled().await == 50 * (waves + 1)).await;
    descriptors.assert_grown_by_at_most(25);
    let memory_after = gate.app.resident_bytes();
    println!(
        "{waves} waves of 200 clients in {took:?}; descriptors {open_before} → {}; memory {} → {} KiB",
        descriptors.count(),
        memory >> 10,
        memory_after >> 10
    );
    let grown = memory_after.saturating_sub(memory);
    assert!(grown < 24 << 20, "{grown} bytes more");
    until_seen("no session", async || {
        let page = gate.app.get("/metrics").await.text;
        let line = page.lines().find(|line| line.starts_with("cofer_mcp_sessions ")).map(ToOwned::to_owned);
        match line.as_deref() {
            Some("cofer_mcp_sessions 0") => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    gate.stop().await;
}
