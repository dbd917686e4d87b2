//! Servers that die, hang, talk nonsense and come back: what their own callers hear, and that nobody else notices.

use std::time::{Duration, Instant};

use cofer_testkit::{engines, misbehaving, until_seen};
use serde_json::{Value, json};

use super::{Client, Gate, SERVERS, kill};

const LIST_CHANGED: &str = "notifications/tools/list_changed";

/// Resources that can be subscribed to, and levels; every message goes into the journal with the number of the life that got it.
const WITH_RESOURCES: &str = r#"
import json, os, sys
journal = open(sys.argv[1], 'a')
for line in sys.stdin:
    message = json.loads(line)
    journal.write(json.dumps({'pid': os.getpid(), 'method': message.get('method'), 'params': message.get('params')}) + '\n')
    journal.flush()
    method, answer = message.get('method'), {}
    if 'id' not in message:
        continue
    if method == 'initialize':
        capabilities = {'tools': {}, 'logging': {}, 'resources': {'subscribe': True}}
        answer = {'protocolVersion': '2025-11-25', 'capabilities': capabilities, 'serverInfo': {'name': 's', 'version': '1'}}
    elif method == 'tools/list':
        answer = {'tools': [{'name': 'pid', 'inputSchema': {'type': 'object'}}]}
    elif method == 'resources/list':
        answer = {'resources': [{'uri': 'test://one', 'name': 'one'}]}
    elif method == 'resources/templates/list':
        answer = {'resourceTemplates': []}
    elif method == 'tools/call':
        note = {'jsonrpc': '2.0', 'method': 'notifications/resources/updated', 'params': {'uri': 'test://one'}}
        print(json.dumps(note), flush=True)
        answer = {'content': [{'type': 'text', 'text': str(os.getpid())}]}
    print(json.dumps({'jsonrpc': '2.0', 'id': message['id'], 'result': answer}), flush=True)
"#;

/// The process that answers, as it says itself.
async fn pid(client: &Client) -> i32 {
    let seen = client.tool("calls_seen", json!({})).await;
    i32::try_from(seen.result()["structuredContent"]["pid"].as_i64().unwrap()).unwrap()
}

async fn seen(client: &Client, tool: &str) -> u64 {
    let seen = client.tool("calls_seen", json!({})).await;
    seen.result()["structuredContent"]["calls"][tool].as_u64().unwrap_or_default()
}

#[tokio::test]
async fn a_call_whose_server_is_killed_fails_at_once_and_the_same_session_goes_on() {
    let gate = Gate::new().await;
    gate.misbehaving("server", &[]).await;
    let client = gate.client().await;
    let before = client.tool_names().await;
    let listening = client.listen().await;
    let first_life = pid(&client).await;
    let hanging = client.begin("hang", json!({}));
    until_seen("the call to be there", async || match seen(&client, "hang").await {
        1 => Ok(()),
        calls => Err(calls.to_string()),
    })
    .await;
    let killed = Instant::now();
    kill(first_life);
    let failed = hanging.await.unwrap();
    assert!(killed.elapsed() < Duration::from_secs(2), "{:?}", killed.elapsed());
    let message = failed.answer["error"]["message"].as_str().unwrap();
    assert!(message.contains("may have been executed"), "{failed:?}");
    assert_eq!(failed.answer["error"]["data"]["may_have_executed"], true, "{failed:?}");
    assert_eq!(client.tool("echo", json!({"text": "again"})).await.text(), "again");
    assert!(killed.elapsed() < Duration::from_secs(5), "{:?}", killed.elapsed());
    assert_ne!(pid(&client).await, first_life);
    assert_eq!(client.tool_names().await, before);
    // The list is the same: nobody is told. This one is another, and it is told once.
    client.tool("add_tools", json!({"count": 1})).await;
    listening.until(LIST_CHANGED, 1).await;
    until_seen("the new tool", async || {
        let names = client.tool_names().await;
        if names.len() == before.len() + 1 { Ok(()) } else { Err(format!("{names:?}")) }
    })
    .await;
    assert_eq!(listening.of(LIST_CHANGED).len(), 1);
    // The life after that has forgotten its new tool: now the list really is another one after a crash.
    kill(pid(&client).await);
    listening.until(LIST_CHANGED, 2).await;
    assert_eq!(client.tool_names().await, before);
    gate.stop().await;
}

#[tokio::test]
async fn a_call_by_rest_whose_server_dies_says_that_it_may_have_executed() {
    let gate = Gate::new().await;
    gate.misbehaving("server", &[]).await;
    let answer = gate.call("crash", json!({"signal": "SIGKILL"})).await;
    assert_eq!(answer.refusal(), "502 upstream_error");
    assert_eq!(answer.json()["error"]["details"]["may_have_executed"], true, "{answer:?}");
    assert_eq!(gate.text("echo", json!({"text": "again"})).await, "again");
    let call = gate.recorded("crash").await;
    assert_eq!((&call["status"], &call["server"]), (&json!("error"), &json!("server")), "{call}");
    gate.stop().await;
}

#[tokio::test]
async fn a_dead_server_whose_child_still_holds_its_stdout_is_not_waited_for() {
    let gate = Gate::new().await;
    gate.misbehaving("server", &[]).await;
    gate.text("spawn", json!({"hold_stdout": true, "ignore_sigterm": true, "detached": true})).await;
    let began = Instant::now();
    let answer = gate.call("crash", json!({"signal": "SIGKILL"})).await;
    assert_eq!(answer.refusal(), "502 upstream_error");
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    assert_eq!(gate.text("echo", json!({"text": "again"})).await, "again");
    gate.stop().await;
}

#[tokio::test]
async fn log_level_and_subscriptions_are_agreed_on_again_in_a_new_life() {
    let Some(tools) = engines::tools() else { return };
    let gate = Gate::new().await;
    let journal = gate.app.data_dir().join("journal");
    let args = json!(["-u", "-c", WITH_RESOURCES, journal]);
    let config = json!({"command": tools.join("bin/mcp-python"), "args": args});
    gate.register("server", "stdio", config, &json!({})).await;
    let client = gate.client().await;
    let listening = client.listen().await;
    client.ask("logging/setLevel", json!({"level": "warning"})).await.result();
    client.ask("resources/subscribe", json!({"uri": "test://one"})).await.result();
    let first: i32 = client.tool("pid", json!({})).await.text().parse().unwrap();
    listening.until("notifications/resources/updated", 1).await;
    kill(first);
    // A call that is on its way when it dies fails; the next one does not.
    let second: i32 = until_seen("a second life", async || {
        let heard = client.tool("pid", json!({})).await;
        let pid = heard.answer["result"]["content"][0]["text"].as_str().and_then(|text| text.parse().ok());
        pid.filter(|pid| *pid != first).ok_or_else(|| format!("{heard:?}"))
    })
    .await;
    let told = until_seen("both to be said to the second life", async || {
        let text = std::fs::read_to_string(&journal).unwrap();
        let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let told: Vec<_> = lines.filter(|line| line["pid"] == second).collect();
        let has = |method: &str| told.iter().any(|line| line["method"] == method);
        if has("logging/setLevel") && has("resources/subscribe") { Ok(told) } else { Err(text) }
    })
    .await;
    let params = |method: &str| told.iter().find(|line| line["method"] == method).unwrap()["params"].clone();
    assert_eq!(params("logging/setLevel"), json!({"level": "warning"}));
    assert_eq!(params("resources/subscribe"), json!({"uri": "test://one"}));
    client.tool("pid", json!({})).await;
    listening.until("notifications/resources/updated", 2).await;
    gate.stop().await;
}

/// A server for each way of being bad from the start, and a good one.
async fn bad_company(gate: &Gate) {
    gate.misbehaving("good", &[]).await;
    gate.stdio("absent", "/there/is/no/such/program".as_ref(), &[], json!({})).await;
    gate.misbehaving("dead", &["--exit-at-start", "3", "--only-fillers", "--tool-name", "of_dead"]).await;
    gate.misbehaving("mute", &["--silent", "--only-fillers", "--tool-name", "of_mute"]).await;
    gate.misbehaving("listless", &["--silent-list", "--only-fillers", "--tool-name", "of_listless"]).await;
    let garbage = "while read -r line; do echo '}{ garbage'; echo '{\"jsonrpc\": 7}'; done";
    gate.stdio("garbage", "/bin/sh".as_ref(), &["-c", garbage], json!({})).await;
    let restless = ["--crash-after-ms", "2000", "--only-fillers", "--tool-name", "of_restless"];
    gate.misbehaving("restless", &restless).await;
}

#[tokio::test]
async fn bad_company_costs_a_good_server_nothing_and_the_list_says_who_is_missing() {
    let gate = Gate::started(|start| start.arg("--connect-timeout-ms=3000").arg("--cool-down-ms=2000")).await;
    bad_company(&gate).await;
    let client = gate.client().await;
    let began = Instant::now();
    let listed = client.ask("tools/list", json!({})).await;
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    let tools = listed.result()["tools"].as_array().unwrap();
    let has = |name: &str| tools.iter().any(|tool| tool["name"] == name);
    assert!(has("echo") && has("of_restless") && !has("of_dead"), "{listed:?}");
    let missing = listed.result()["_meta"]["cofer/missing"].as_array().unwrap();
    let mut missing: Vec<_> = missing.iter().map(|one| one["server"].as_str().unwrap()).collect();
    missing.sort_unstable();
    assert_eq!(missing, ["absent", "dead", "garbage", "listless", "mute"]);
    // Whoever was silent once is not waited for again, and the good one is as quick as ever.
    for round in 0..10 {
        let began = Instant::now();
        let listing = gate.listing().await;
        assert_eq!(listing["missing"].as_array().unwrap().len(), 5, "{listing}");
        assert!(began.elapsed() < Duration::from_secs(4), "list {round}: {:?}", began.elapsed());
        let began = Instant::now();
        assert_eq!(client.tool("echo", json!({"text": "quick"})).await.text(), "quick");
        assert!(began.elapsed() < Duration::from_secs(2), "call {round}: {:?}", began.elapsed());
    }
    for (name, word) in [("absent", "such"), ("dead", "3"), ("mute", "handshake"), ("garbage", "")] {
        let status = gate
            .until(name, "a refusing circuit", |status| {
                status["circuit"]["state"] == "refusing" && status["status"] == "unavailable"
            })
            .await;
        assert!(status["circuit"]["failures"].as_u64() >= Some(3), "{status}");
        assert!(status["circuit"]["retry_at"].is_string(), "the next try is shown: {status}");
        let why = status["last_error"].as_str().unwrap();
        assert!(why.contains(word), "{name}: {why}");
    }
    gate.stop().await;
}

#[tokio::test]
async fn a_server_that_restarts_every_two_seconds_is_used_whenever_it_is_there() {
    let gate = Gate::new().await;
    gate.misbehaving("restless", &["--crash-after-ms", "2000"]).await;
    let client = gate.client().await;
    let listening = client.listen().await;
    let names = client.tool_names().await;
    let mut lives = std::collections::BTreeSet::new();
    let deadline = Instant::now() + Duration::from_secs(40);
    while lives.len() < 3 {
        assert!(Instant::now() < deadline, "{lives:?}");
        let answer = client.tool("calls_seen", json!({})).await;
        match answer.answer["result"]["structuredContent"]["pid"].as_i64() {
            Some(pid) => _ = lives.insert(pid),
            None => assert!(answer.answer["error"]["code"].is_i64(), "{answer:?}"),
        }
        assert_eq!(client.tool_names().await, names, "the list stays");
    }
    // The first listing made the list; nothing changed it since.
    assert!(listening.of(LIST_CHANGED).len() <= 1, "{listening:?}");
    gate.stop().await;
}

#[tokio::test]
async fn three_failures_in_a_row_cut_a_server_off_until_a_probe_finds_it_again() {
    let gate = Gate::started(|start| start.arg("--cool-down-ms=1500")).await;
    let switch = gate.app.data_dir().join("switched-on");
    std::fs::write(&switch, "").unwrap();
    let script = format!("test -e {} && exec {}", switch.display(), misbehaving::program().display());
    gate.stdio("server", "/bin/sh".as_ref(), &["-c", &script], json!({})).await;
    let client = gate.client().await;
    let listening = client.listen().await;
    let names = client.tool_names().await;
    let pid = pid(&client).await;
    std::fs::remove_file(&switch).unwrap();
    kill(pid);
    let refusing = |status: &Value| status["circuit"]["state"] == "refusing";
    let status = gate.until("server", "a refusing circuit", refusing).await;
    assert_eq!((&status["status"], &status["circuit"]["failures"]), (&json!("unavailable"), &json!(3)));
    assert!(status["circuit"]["retry_at"].is_string(), "{status}");
    let began = Instant::now();
    let refused = gate.call("echo", json!({"text": "x"})).await;
    assert!(refused.status == 503 || gate.status("server").await["circuit"]["state"] != "refusing");
    if refused.status == 503 {
        assert!(refused.headers.contains_key("retry-after"), "{refused:?}");
        assert_eq!(refused.json()["error"]["details"]["may_have_executed"], false);
        assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    }
    assert_eq!(client.tool_names().await, names, "the list stays");
    // One probe at a time, and each that fails closes the door again.
    gate.until("server", "a probe that failed", |status| status["circuit"]["failures"].as_u64() >= Some(4))
        .await;
    std::fs::write(&switch, "").unwrap();
    gate.until("server", "a connection, by itself", |status| status["status"] == "connected").await;
    let status = gate.status("server").await;
    assert_eq!(status["circuit"], json!({"state": "admitting", "failures": 0, "retry_at": null}));
    assert_eq!(status["last_error"], Value::Null);
    assert_eq!(client.tool("echo", json!({"text": "back"})).await.text(), "back");
    assert!(listening.of(LIST_CHANGED).is_empty(), "it is the list that it was");
    gate.stop().await;
}

#[tokio::test]
async fn refresh_does_not_wait_for_the_cool_down() {
    let gate = Gate::started(|start| start.arg("--cool-down-ms=600000")).await;
    let switch = gate.app.data_dir().join("switched-on");
    let script = format!("test -e {} && exec {}", switch.display(), misbehaving::program().display());
    gate.stdio("server", "/bin/sh".as_ref(), &["-c", &script], json!({})).await;
    gate.listing().await;
    gate.until("server", "a refusing circuit", |status| status["circuit"]["state"] == "refusing").await;
    let refused = gate.app.post(&format!("{SERVERS}/server/refresh"), &json!({})).await;
    assert_eq!(refused.status, 503, "{refused:?}");
    std::fs::write(&switch, "").unwrap();
    let refreshed = gate.app.post(&format!("{SERVERS}/server/refresh"), &json!({})).await;
    assert_eq!(refreshed.status, 200, "{refreshed:?}");
    assert_eq!(gate.text("echo", json!({"text": "now"})).await, "now");
    gate.stop().await;
}

#[tokio::test]
async fn a_missing_secret_is_named_and_counts_against_nobody() {
    let gate = Gate::new().await;
    let config = json!({"command": misbehaving::program(), "env": {"KEY": "${FIRST}-${SECOND}"}});
    gate.register("server", "stdio", config, &json!({})).await;
    for _ in 0..4 {
        let listing = gate.listing().await;
        let reason = listing["missing"][0]["reason"].as_str().unwrap();
        assert!(reason.contains("`FIRST`, `SECOND`") && reason.contains("`server`"), "{listing}");
    }
    let status = gate.status("server").await;
    assert_eq!((&status["status"], &status["circuit"]["failures"]), (&json!("error"), &json!(0)), "{status}");
    for name in ["FIRST", "SECOND"] {
        let path = format!("/api/v1/projects/default/secrets/{name}");
        assert!(gate.app.put(&path, &json!({"value": "v4lue-of-it"})).await.status < 300);
    }
    let environment = gate.text("env", json!({})).await;
    assert!(environment.contains("v4lue-of-it-v4lue-of-it"), "{environment}");
    let call = gate.recorded("env").await.to_string();
    assert!(call.contains("[masked]-[masked]") && !call.contains("v4lue"), "{call}");
    gate.stop().await;
}
