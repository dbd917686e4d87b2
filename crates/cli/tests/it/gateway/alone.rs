//! Requests that stand alone, by hand: what their headers must say, how a call waits for its client, and what becomes of one whose client
//! does not come back, or is another.

use std::time::Duration;

use cofer_testkit::until_seen;
use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};

use super::Gate;

const VERSION: &str = "2026-07-28";

/// What every request says of itself.
fn meta(capabilities: &Value) -> Value {
    json!({
        "io.modelcontextprotocol/protocolVersion": VERSION,
        "io.modelcontextprotocol/clientCapabilities": capabilities,
        "io.modelcontextprotocol/clientInfo": {"name": "by hand", "version": "1"},
    })
}

fn message(method: &str, mut params: Value) -> Value {
    params["_meta"] = meta(&json!({"elicitation": {}, "sampling": {}, "roots": {}}));
    json!({"jsonrpc": "2.0", "id": "one", "method": method, "params": params})
}

/// With the headers that belong to it.
fn request(gate: &Gate, token: &str, message: &Value) -> RequestBuilder {
    let (method, params) = (message["method"].as_str().unwrap(), &message["params"]);
    let name = params["name"].as_str().or(params["uri"].as_str());
    let mut request = gate.app.request(Method::POST, "/mcp").bearer_auth(token).json(message);
    request = request.header("accept", "application/json, text/event-stream");
    request = request.header("mcp-protocol-version", VERSION).header("mcp-method", method);
    match name {
        Some(name) => request.header("mcp-name", name),
        None => request,
    }
}

/// Status, and the last message of the answer, whichever form it has.
async fn asked(request: RequestBuilder) -> (u16, Value) {
    let answer = request.send().await.unwrap();
    let status = answer.status().as_u16();
    let text = answer.text().await.unwrap();
    let last = text.lines().filter_map(|line| line.strip_prefix("data: ")).next_back().unwrap_or(&text);
    (status, serde_json::from_str(last).unwrap_or_else(|_| panic!("{status} {text}")))
}

async fn call(gate: &Gate, params: Value) -> Value {
    asked(request(gate, &gate.app.token, &message("tools/call", params))).await.1
}

/// A call whose server asks its client's name, and what it is answered with.
fn asks_for_a_name() -> Value {
    let params = json!({"message": "who?", "requestedSchema": {"type": "object", "properties": {}}});
    json!({"name": "ask", "arguments": {"method": "elicitation/create", "params": params}})
}

fn named(state: &Value, answer: &Value, name: &str) -> Value {
    let key = answer["result"]["inputRequests"].as_object().unwrap().keys().next().unwrap();
    let mut params = asks_for_a_name();
    params["requestState"] = state.clone();
    params["inputResponses"] = json!({key: {"action": "accept", "content": {"name": name}}});
    params
}

#[tokio::test]
async fn what_the_headers_say_must_be_what_the_request_says() {
    let gate = Gate::new().await;
    gate.misbehaving("m", &[]).await;
    let echo = message("tools/call", json!({"name": "echo", "arguments": {"text": "größe"}}));
    let plain = || gate.app.request(Method::POST, "/mcp").bearer_auth(&gate.app.token).json(&echo);
    let (status, answer) = asked(request(&gate, &gate.app.token, &echo)).await;
    assert_eq!((status, &answer["result"]["resultType"]), (200, &json!("complete")), "{answer}");
    let wrapped = plain().header("mcp-protocol-version", VERSION).header("mcp-method", "tools/call");
    assert_eq!(asked(wrapped.header("mcp-name", "=?base64?ZWNobw==?=")).await.0, 200);
    for (version, method, name) in [
        (None, Some("tools/call"), Some("echo")),
        (Some("2025-11-25"), Some("tools/call"), Some("echo")),
        (Some(VERSION), None, Some("echo")),
        (Some(VERSION), Some("tools/list"), Some("echo")),
        (Some(VERSION), Some("tools/call"), None),
        (Some(VERSION), Some("tools/call"), Some("hang")),
        (Some(VERSION), Some("tools/call"), Some("=?base64?!?=")),
    ] {
        let mut request = plain();
        for (header, value) in [("mcp-protocol-version", version), ("mcp-method", method), ("mcp-name", name)]
        {
            request = value.into_iter().fold(request, |request, value| request.header(header, value));
        }
        let (status, answer) = asked(request).await;
        assert_eq!(
            (status, &answer["error"]["code"]),
            (400, &json!(-32020)),
            "{version:?} {method:?} {name:?} {answer}"
        );
        assert_eq!(answer["id"], "one");
    }
    gate.stop().await;
}

#[tokio::test]
async fn what_is_not_of_this_era_is_refused_as_the_protocol_says() {
    let gate = Gate::new().await;
    let refusal = async |change: &dyn Fn(&mut Value)| {
        let mut message = message("tools/list", json!({}));
        change(&mut message);
        let version = message["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"].clone();
        let request = gate.app.request(Method::POST, "/mcp").bearer_auth(&gate.app.token).json(&message);
        let request = request.header("mcp-protocol-version", version.as_str().unwrap_or(VERSION));
        let (status, answer) = asked(request.header("mcp-method", message["method"].as_str().unwrap())).await;
        (status, answer["error"]["code"].as_i64().unwrap_or_default())
    };
    for method in ["ping", "logging/setLevel", "resources/subscribe", "initialize", "no/such/thing"] {
        assert_eq!(refusal(&|message| message["method"] = json!(method)).await, (404, -32601), "{method}");
    }
    let key = |name: &str| format!("io.modelcontextprotocol/{name}");
    let set = |name: &str, value: Value| {
        let name = key(name);
        move |message: &mut Value| message["params"]["_meta"][&name] = value.clone()
    };
    assert_eq!(refusal(&set("protocolVersion", json!("2099-01-01"))).await, (400, -32022));
    assert_eq!(refusal(&set("clientCapabilities", json!(null))).await, (400, -32602));
    assert_eq!(refusal(&set("logLevel", json!("loud"))).await, (200, -32602));
    assert_eq!(refusal(&|message| message["params"] = json!({})).await, (400, -32602));
    for method in [Method::GET, Method::DELETE] {
        let request = gate.app.request(method, "/mcp").bearer_auth(&gate.app.token);
        let answer = request.header("mcp-protocol-version", VERSION).send().await.unwrap();
        assert_eq!((answer.status().as_u16(), &answer.headers()["allow"]), (405, &"POST".parse().unwrap()));
    }
    gate.stop().await;
}

#[tokio::test]
async fn a_call_waits_for_its_client_and_goes_on_where_it_was() {
    let gate = Gate::new().await;
    gate.misbehaving("m", &[]).await;
    let first = call(&gate, asks_for_a_name()).await;
    assert_eq!(first["result"]["resultType"], "input_required", "{first}");
    let state = &first["result"]["requestState"];
    let question = first["result"]["inputRequests"].as_object().unwrap().values().next().unwrap();
    assert_eq!(
        (&question["method"], &question["params"]["message"]),
        (&json!("elicitation/create"), &json!("who?"))
    );
    // Without an answer it is asked again, under a new ticket.
    let mut nothing = asks_for_a_name();
    nothing["requestState"] = state.clone();
    let again = call(&gate, nothing).await;
    assert_eq!(again["result"]["inputRequests"], first["result"]["inputRequests"], "{again}");
    let state = &again["result"]["requestState"];
    let second = call(&gate, named(state, &first, "Ada")).await;
    assert!(second["result"]["content"][0]["text"].as_str().unwrap().contains("Ada"), "{second}");
    assert_eq!(gate.recorded("ask").await["status"], "completed");
    gate.stop().await;
}

#[tokio::test]
async fn nobody_else_and_nobody_twice_continues_a_call() {
    let gate = Gate::new().await;
    gate.misbehaving("m", &[]).await;
    let made =
        gate.app.post("/api/v1/tokens", &json!({"name": "other", "scopes": ["tools:call"]})).await.json();
    let other = made["token"].as_str().unwrap();
    let first = call(&gate, asks_for_a_name()).await;
    let state = first["result"]["requestState"].clone();
    let code = |answer: &Value| answer["error"]["code"].clone();
    let answered = message("tools/call", named(&state, &first, "Eve"));
    let (_, foreign) = asked(request(&gate, other, &answered)).await;
    assert_eq!(code(&foreign), -32602, "somebody else's: {foreign}");
    let text = state.as_str().unwrap();
    for tampered in [format!("B{}", &text[1..]), format!("{text}A"), "nonsense".to_owned(), String::new()] {
        let answer = call(&gate, named(&json!(tampered), &first, "Eve")).await;
        assert_eq!(code(&answer), -32602, "{tampered}: {answer}");
    }
    let mut elsewhere = named(&state, &first, "Eve");
    elsewhere["name"] = json!("echo");
    assert_eq!(code(&call(&gate, elsewhere).await), -32602);
    let done = call(&gate, named(&state, &first, "Ada")).await;
    assert!(done["result"]["content"][0]["text"].as_str().unwrap().contains("Ada"), "{done}");
    let replayed = call(&gate, named(&state, &first, "Ada")).await;
    assert_eq!(code(&replayed), -32602, "a second time: {replayed}");
    gate.stop().await;
}

#[tokio::test]
async fn what_a_client_cannot_answer_it_is_not_asked() {
    let gate = Gate::new().await;
    gate.misbehaving("m", &[]).await;
    let mut able_to_nothing = message("tools/call", asks_for_a_name());
    able_to_nothing["params"]["_meta"] = meta(&json!({}));
    let (status, answer) = asked(request(&gate, &gate.app.token, &able_to_nothing)).await;
    assert_eq!((status, &answer["result"]["resultType"]), (200, &json!("complete")), "{answer}");
    assert!(answer["result"]["content"][0]["text"].as_str().unwrap().contains("-32601"), "{answer}");
    gate.stop().await;
}

#[tokio::test]
async fn leaving_a_call_calls_it_off() {
    let gate = Gate::new().await;
    gate.misbehaving("m", &[]).await;
    let hang = message("tools/call", json!({"name": "hang", "arguments": {}}));
    let hanging = request(&gate, &gate.app.token, &hang).timeout(Duration::from_millis(500)).send().await;
    assert!(hanging.is_err(), "{hanging:?}");
    until_seen("a cancelled call", async || {
        let seen = gate.text("cancel_seen", json!({})).await;
        if seen.contains("\"cancelled\":[]") { Err(seen) } else { Ok(()) }
    })
    .await;
    gate.stop().await;
}

#[tokio::test]
async fn who_listens_hears_of_what_it_asked_for_and_in_the_end_that_it_is_over() {
    let gate = Gate::new().await;
    gate.misbehaving("m", &[]).await;
    gate.listing().await;
    let listen = message("subscriptions/listen", json!({"notifications": {"toolsListChanged": true}}));
    let mut stream = request(&gate, &gate.app.token, &listen).send().await.unwrap();
    assert_eq!(stream.headers()["x-accel-buffering"], "no");
    let mut heard = String::new();
    let mut hear = async |what: &str| {
        while !heard.contains(what) {
            let chunk = tokio::time::timeout(Duration::from_secs(30), stream.chunk()).await;
            let chunk = chunk.unwrap_or_else(|_| panic!("no {what} in {heard}")).unwrap();
            let Some(chunk) = chunk else { panic!("it ended without {what}: {heard}") };
            heard.push_str(&String::from_utf8_lossy(&chunk));
        }
        heard.clone()
    };
    let first = hear("acknowledged").await;
    assert!(first.contains(r#""io.modelcontextprotocol/subscriptionId":"one""#), "{first}");
    gate.text("add_tools", json!({"count": 1})).await;
    hear("notifications/tools/list_changed").await;
    let bad = message("subscriptions/listen", json!({"notifications": {"toolsListChanged": "yes"}}));
    let (status, answer) = asked(request(&gate, &gate.app.token, &bad)).await;
    assert_eq!((status, &answer["error"]["code"]), (400, &json!(-32602)), "{answer}");
    let stopping = tokio::spawn(gate.stop());
    let last = hear("\"result\"").await;
    assert!(!last.contains("prompts/list_changed"), "{last}");
    stopping.await.unwrap();
}

#[tokio::test]
async fn the_same_over_stdin_and_stdout() {
    let gate = Gate::new().await;
    gate.misbehaving("m", &[]).await;
    let mut relay = gate.app.command(&["stdio", "--project", "default"]).spawn().unwrap();
    let mut stdin = relay.stdin.take().unwrap();
    let mut lines = BufReader::new(relay.stdout.take().unwrap()).lines();
    let mut said = Vec::<Value>::new();
    let mut say = async |message: &Value| stdin.write_all(format!("{message}\n").as_bytes()).await.unwrap();
    let mut hear = async |id: &str| loop {
        let line = tokio::time::timeout(Duration::from_secs(30), lines.next_line()).await;
        let line = line.unwrap_or_else(|_| panic!("no answer to {id}: {said:?}")).unwrap().expect("a line");
        let message: Value = serde_json::from_str(&line).unwrap();
        said.push(message.clone());
        if message["id"] == id {
            return message;
        }
    };
    let numbered = |id: &str, method: &str, params: Value| {
        let mut message = message(method, params);
        message["id"] = json!(id);
        message
    };
    say(&numbered("a", "server/discover", json!({}))).await;
    assert_eq!(hear("a").await["result"]["supportedVersions"], json!([VERSION]));
    say(&numbered("hanging", "tools/call", json!({"name": "hang", "arguments": {}}))).await;
    say(&numbered("b", "tools/call", json!({"name": "echo", "arguments": {"text": "hi"}}))).await;
    assert_eq!(hear("b").await["result"]["content"][0]["text"], "hi");
    say(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "hanging"}}))
        .await;
    until_seen("a cancelled call", async || {
        let seen = gate.text("cancel_seen", json!({})).await;
        if seen.contains("\"cancelled\":[]") { Err(seen) } else { Ok(()) }
    })
    .await;
    drop(stdin);
    assert!(relay.wait().await.unwrap().success());
    gate.stop().await;
}
