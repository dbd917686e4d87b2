//! Messages are carried, not re-typed: what nobody here knows passes to the letter, and nobody gets what is another's.

use std::time::Duration;

use cofer_testkit::engines;
use serde_json::{Value, json};

use super::{Client, Gate};

/// Says exactly what is in two files, and otherwise repeats what it heard.
const PARROT: &str = r#"
import json, sys
listed, answer = (open(path, encoding='utf-8').read() for path in sys.argv[1:3])
sys.stdin.reconfigure(encoding='utf-8'); sys.stdout.reconfigure(encoding='utf-8')
for line in sys.stdin:
    message = json.loads(line)
    if 'id' not in message or 'method' not in message:
        continue
    method = message['method']
    repeated = json.dumps({'content': [{'type': 'text', 'text': line.strip()}]})
    if method == 'initialize':
        result = json.dumps({'protocolVersion': '2025-11-25', 'capabilities': {'tools': {}}, 'serverInfo': {'name': 'p', 'version': '1'}})
    elif method == 'tools/list':
        result = '{"tools":' + listed + '}'
    elif method == 'tools/call' and message['params']['name'] != 'mirror':
        result = answer
    else:
        result = repeated
    print('{"jsonrpc":"2.0","id":%s,"result":%s}' % (json.dumps(message['id']), result), flush=True)
"#;

const ODD: &str = r#"{"zeta":1,"content":[{"type":"hologram","z":{"b":1, "a":2},"text":"\u00e4ä\/"}],"alpha":12345678901234567890123456789.000100,"e":1E+2,"_meta":{"x.y/z":null},"isError":false}"#;

async fn parrot(gate: &Gate, listed: &str) -> bool {
    let Some(tools) = engines::tools() else { return false };
    let file = |name: &str, text: &str| {
        let path = gate.app.data_dir().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let args = json!(["-c", PARROT, file("listed", listed), file("answer", ODD)]);
    let config = json!({"command": tools.join("bin/mcp-python"), "args": args});
    gate.register("parrot", "stdio", config, &json!({})).await;
    true
}

/// Sends these bytes, and gives the bytes that come back.
async fn raw(client: &Client, body: &str) -> String {
    let request = client.request(reqwest::Method::POST).header("content-type", "application/json");
    request.body(body.to_owned()).send().await.unwrap().text().await.unwrap()
}

#[tokio::test]
async fn what_a_server_says_passes_to_the_letter() {
    let gate = Gate::new().await;
    let filler = "x".repeat(1 << 20);
    let huge = format!(
        r#"{{"name":"näme.with.dots/✓","zzz":[1.0,1e3],"inputSchema":{{"type":"object","$comment":"{filler}","b":1,"a":98765432109876543210}},"description":"\u2713 \"q\""}}"#
    );
    let listed = format!(r#"[{huge},{{"name":"mirror","inputSchema":{{"type":"object"}}}}]"#);
    if !parrot(&gate, &listed).await {
        return;
    }
    let client = gate.client().await;
    let answer = raw(&client, r#"{"jsonrpc":"2.0","id":"list","method":"tools/list"}"#).await;
    assert!(answer.contains(&huge), "{}", &answer[..answer.len().min(2000)]);
    let call = r#"{"jsonrpc":"2.0","id":"call","method":"tools/call","params":{"name":"näme.with.dots/✓","arguments":{}}}"#;
    let answer = raw(&client, call).await;
    assert!(answer.contains(ODD) && answer.contains(r#""id":"call""#), "{answer}");
    let by_rest = gate.call("näme.with.dots/✓", json!({})).await;
    assert_eq!((by_rest.status, by_rest.text.as_str()), (200, ODD));
    // From the store, in the next life of Cofer, it is the same.
    let Gate { app, leaks } = gate;
    let gate = Gate { app: app.stop().await.serve().await, leaks };
    let client = gate.client().await;
    let answer = raw(&client, r#"{"jsonrpc":"2.0","id":"list","method":"tools/list"}"#).await;
    assert!(answer.contains(&huge), "{}", &answer[..answer.len().min(2000)]);
    gate.stop().await;
}

#[tokio::test]
async fn what_a_client_says_passes_to_the_letter() {
    let gate = Gate::new().await;
    if !parrot(&gate, r#"[{"name":"mirror","inputSchema":{"type":"object"}}]"#).await {
        return;
    }
    let client = gate.client().await;
    let params = r#"{"zeta": 1,"name":"mirror","arguments":{"z":12345678901234567890.10,"a":{"ä":"\u00e4"}},"_meta":{"io.example/x":[1]},"task":{"ttl":1}}"#;
    let repeated = |answer: &str| -> String {
        let answer: Value = serde_json::from_str(answer).unwrap();
        answer["result"]["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned()
    };
    let answer =
        raw(&client, &format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{params}}}"#)).await;
    assert!(repeated(&answer).contains(params), "{answer}");
    // A name of ours is put back into the server's own, and nothing else is touched.
    let named = params.replace(r#""mirror""#, r#""parrot__mirror""#);
    let answer =
        raw(&client, &format!(r#"{{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{named}}}"#)).await;
    assert!(repeated(&answer).contains(params), "{answer}");
    let answer = raw(
        &client,
        &format!(r#"{{"jsonrpc":"2.0","id":3,"method":"example.org/unheard-of","params":{params}}}"#),
    )
    .await;
    let heard = repeated(&answer);
    assert!(heard.contains(params) && heard.contains("example.org/unheard-of"), "{answer}");
    gate.stop().await;
}

#[tokio::test]
async fn a_servers_refusal_passes_with_its_code_and_its_data() {
    let gate = Gate::new().await;
    gate.misbehaving("server", &[]).await;
    let client = gate.client().await;
    let arguments = json!({"code": -32077, "message": "no, because", "data": {"why": [1, null]}});
    let refused = client.tool("error", arguments).await;
    let expected = json!({"code": -32077, "message": "no, because", "data": {"why": [1, null]}});
    assert_eq!(refused.answer["error"], expected);
    let unknown = client.tool("unknown_content", json!({})).await;
    assert!(unknown.result()["content"].is_array(), "{unknown:?}");
    let nowhere = client.tool("there_is_no_such_tool", json!({})).await;
    assert_eq!(
        (nowhere.text(), &nowhere.result()["isError"]),
        ("Unknown tool: there_is_no_such_tool", &json!(true))
    );
    gate.stop().await;
}

#[tokio::test]
async fn clients_that_use_the_same_ids_and_tokens_get_each_its_own() {
    let gate = Gate::new().await;
    gate.misbehaving("server", &[]).await;
    let clients = [gate.client().await, gate.client().await, gate.client().await];
    let rounds = clients.iter().enumerate().map(|(number, client)| async move {
        for round in 0..20_usize {
            let nobody = |question: &Value| panic!("nobody expects a question: {question}");
            let steps = number + 2;
            let params = json!({"name": "progress", "arguments": {"steps": steps}, "_meta": {"progressToken": "same"}});
            let heard = client.ask_as(json!(7), "tools/call", params, nobody).await;
            let progress = heard.of("notifications/progress");
            assert_eq!(progress.len(), steps, "round {round}: {heard:?}");
            assert!(progress.iter().all(|one| one["params"]["progressToken"] == "same"), "{heard:?}");
            let text = format!("{number}-{round}");
            let params = json!({"name": "late", "arguments": {"ms": 5, "text": text}});
            assert_eq!(client.ask_as(json!("x"), "tools/call", params, nobody).await.text(), text);
        }
    });
    futures_util::future::join_all(rounds).await;
    gate.stop().await;
}

/// Has the server ask its client, who says who it is.
async fn who_is_asked(client: &Client, name: &str) -> String {
    let question = json!({"message": name, "requestedSchema": {"type": "object", "properties": {}}});
    let arguments = json!({"method": "elicitation/create", "params": question});
    let params = json!({"name": "ask", "arguments": arguments});
    let heard = client
        .ask_answering("tools/call", params, |asked| {
            assert_eq!(asked["params"]["message"], name, "somebody else's question");
            json!({"action": "accept", "content": {"me": name}})
        })
        .await;
    heard.text().to_owned()
}

#[tokio::test]
async fn questions_to_two_clients_at_once_reach_the_right_one() {
    let gate = Gate::new().await;
    gate.misbehaving_with("server", &[], &json!({"session": "per_client"})).await;
    let clients = [gate.client().await, gate.client().await, gate.client().await];
    let rounds = clients.iter().zip(["ada", "ben", "cleo"]).map(|(client, name)| async move {
        for _ in 0..10 {
            let answer = who_is_asked(client, name).await;
            assert!(answer.contains(name), "{name}: {answer}");
        }
    });
    futures_util::future::join_all(rounds).await;
    // Each had a conversation of its own, which ends with it.
    let [first, ..] = &clients;
    assert_eq!(first.leave().await, 204);
    gate.stop().await;
}

#[tokio::test]
async fn a_server_that_begins_to_ask_gets_a_conversation_for_each_client() {
    let gate = Gate::new().await;
    gate.misbehaving("server", &[]).await;
    let clients = [gate.client().await, gate.client().await];
    assert!(who_is_asked(&clients[0], "ada").await.contains("ada"));
    let rounds = clients.iter().zip(["ada", "ben"]).map(|(client, name)| async move {
        for _ in 0..5 {
            assert!(who_is_asked(client, name).await.contains(name));
        }
    });
    futures_util::future::join_all(rounds).await;
    // Who cannot be asked is not asked.
    let deaf = Client::open(&gate.app, "/mcp", &gate.app.token, json!({})).await;
    let arguments = json!({"method": "elicitation/create", "params": {"message": "?"}});
    let refused = deaf.tool("ask", arguments).await;
    assert!(refused.text().contains("-32601"), "{refused:?}");
    gate.stop().await;
}

#[tokio::test]
async fn a_method_of_a_servers_own_goes_to_who_knows_it_and_straight_there_from_then_on() {
    let gate = Gate::started(|start| start.arg("--connect-timeout-ms=600000")).await;
    let journal = gate.app.data_dir().join("journal");
    gate.misbehaving("another", &["--journal", journal.to_str().unwrap()]).await;
    // Its handshake takes longer than anybody here waits.
    gate.misbehaving("mute", &["--silent"]).await;
    if !parrot(&gate, r#"[{"name":"mirror","inputSchema":{"type":"object"}}]"#).await {
        return;
    }
    let client = gate.client().await;
    client.tool("echo", json!({"text": "another is there"})).await;
    client.tool("mirror", json!({})).await;
    for _ in 0..3 {
        let asked = client.ask("example.org/look", json!({"z": 1}));
        let heard =
            tokio::time::timeout(Duration::from_secs(30), asked).await.expect("nobody waits for mute");
        assert!(heard.text().contains(r#""method":"example.org/look","params":{"z":1}"#), "{heard:?}");
    }
    let heard_by_another = std::fs::read_to_string(&journal).unwrap();
    assert_eq!(heard_by_another.matches("example.org/look").count(), 1, "{heard_by_another}");
    gate.stop().await;
}

#[tokio::test]
async fn what_a_client_says_by_itself_reaches_the_servers_that_know_it() {
    let gate = Gate::new().await;
    let journal = gate.app.data_dir().join("journal");
    let flags = ["--journal", journal.to_str().unwrap()];
    gate.misbehaving_with("server", &flags, &json!({"session": "per_client"})).await;
    let client = gate.client().await;
    client.tool("echo", json!({"text": "hello"})).await;
    client.tell("notifications/roots/list_changed", Value::Null).await;
    client.tell("notifications/example.org/odd", json!({"z": 1, "a": [null]})).await;
    let heard = |word: &str| std::fs::read_to_string(&journal).unwrap_or_default().contains(word);
    cofer_testkit::until("both in the journal", async || {
        heard("notifications/roots/list_changed") && heard("notifications/example.org/odd")
    })
    .await;
    gate.stop().await;
}

#[tokio::test]
async fn a_call_that_a_client_calls_off_is_called_off_at_the_server() {
    let gate = Gate::new().await;
    gate.misbehaving("server", &[]).await;
    let client = gate.client().await;
    let body = json!({"jsonrpc": "2.0", "id": "off", "method": "tools/call", "params": {"name": "hang", "arguments": {}}});
    let hanging = tokio::spawn(client.post(&body).send());
    let seen = async |tool: &str| client.tool(tool, json!({})).await.result()["structuredContent"].clone();
    cofer_testkit::until("the call to be there", async || seen("calls_seen").await["calls"]["hang"] == 1)
        .await;
    client.tell("notifications/cancelled", json!({"requestId": "off"})).await;
    cofer_testkit::until("it to be called off", async || {
        seen("cancel_seen").await["cancelled"].as_array().is_some_and(|ids| ids.len() == 1)
    })
    .await;
    let answer = hanging.await.unwrap().unwrap();
    assert!(answer.status().is_success(), "{answer:?}");
    assert_eq!(gate.recorded("hang").await["status"], "cancelled");
    gate.stop().await;
}

#[tokio::test]
async fn who_was_answered_finds_the_call_in_the_record() {
    let gate = Gate::new().await;
    gate.misbehaving("server", &[]).await;
    let client = gate.client().await;
    for count in 1..=5 {
        client.tool("echo", json!({"text": "x"})).await;
        let calls = gate.app.get("/api/v1/projects/default/tool-calls?tool=echo").await.json();
        assert_eq!(calls.as_array().unwrap().len(), count, "{calls}");
    }
    gate.stop().await;
}
