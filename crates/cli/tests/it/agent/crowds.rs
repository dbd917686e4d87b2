//! Long runs, many runs, killed runs, and clients that do not read.

use std::sync::Arc;
use std::time::Duration;

use cofer_testkit::model_api::{ModelApi, Reply};
use cofer_testkit::{engines, until, until_seen};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::Semaphore;

use super::{CHAT, RUNS, asked, chat, gate, hello, messages, results, run};
use crate::gateway::Gate;

/// How often the model has answered in this conversation.
fn answers(request: &Value) -> usize {
    request["messages"].as_array().unwrap().iter().filter(|message| message["role"] == "assistant").count()
}

#[tokio::test]
async fn thirty_steps_over_five_servers_one_of_which_crashes_in_the_middle() {
    let Some(tools) = engines::tools() else { return };
    let api = ModelApi::start(|request| {
        let step = answers(request);
        let id = format!("t{step}");
        match (step, step % 5) {
            (30.., _) => Reply::text("thirty"),
            (14, _) => Reply::tool(&id, "crash", &json!({"signal": "SIGKILL"})),
            (_, 0) => Reply::tool(&id, "everything__echo", &json!({"message": format!("step {step}")})),
            (_, 1) => Reply::tool(&id, "read_graph", &json!({})),
            (_, 2) => Reply::tool(&id, "get_current_time", &json!({"timezone": "Europe/Zurich"})),
            (_, 3) => Reply::tool(&id, "list_allowed_directories", &json!({})),
            _ => Reply::tool(&id, "calls_seen", &json!({})),
        }
    })
    .await;
    let gate = gate(&api).await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().display().to_string();
    let program = |name: &str| tools.join("bin").join(format!("mcp-server-{name}"));
    gate.app.patch("/api/v1/projects/default", &json!({"namespacing": "conflict"})).await;
    gate.stdio("everything", &program("everything"), &[], json!({})).await;
    gate.stdio(
        "memory",
        &program("memory"),
        &[],
        json!({"MEMORY_FILE_PATH": folder.path().join("memory.json")}),
    )
    .await;
    gate.stdio("time", &program("time"), &[], json!({})).await;
    gate.stdio("filesystem", &program("filesystem"), &[&path], json!({})).await;
    gate.misbehaving("frail", &[]).await;
    let events = chat(&gate, &hello()).await;
    assert_eq!(events.one("done")["text"], "thirty", "{:?}; log: {}", events.one("done"), gate.app.log());
    let failed: Vec<_> =
        events.all("tool_result").into_iter().filter(|result| result["status"] != "completed").collect();
    assert_eq!(events.all("tool_result").len(), 30);
    assert_eq!(failed.len(), 1, "only the call that crashed: {failed:?}");
    assert_eq!(failed[0]["id"], "t14");
    let id = events.one("done")["run_id"].as_str().unwrap();
    assert_eq!(run(&gate, id).await["steps"], 31);
    let calls = gate.app.get(&format!("{RUNS}/{id}/tool-calls")).await.json();
    let servers: std::collections::BTreeSet<_> =
        calls.as_array().unwrap().iter().map(|call| call["server"].as_str().unwrap()).collect();
    assert_eq!((calls.as_array().unwrap().len(), servers.len()), (30, 5));
    gate.stop().await;
}

#[tokio::test]
async fn fifty_chats_at_once_each_get_their_own() {
    let api = ModelApi::start(|request| {
        let who = request["messages"][0]["content"][0]["text"].as_str().unwrap().to_owned();
        match answers(request) {
            step @ 0..3 => {
                Reply::tool(&format!("{who}-{step}"), "echo", &json!({"text": format!("{who} {step}")}))
            }
            _ => Reply::text(&format!("done {who}")),
        }
    })
    .await;
    let gate = gate(&api).await;
    gate.misbehaving("kitchen", &[]).await;
    let bodies: Vec<_> = (0..50).map(|n| json!({"message": format!("chat{n}")})).collect();
    let answers = futures_util::future::join_all(bodies.iter().map(|body| asked(&gate, body))).await;
    for (n, answer) in answers.iter().enumerate() {
        let answer = answer.json();
        assert_eq!(answer["text"], format!("done chat{n}"), "{answer}");
        let said = messages(&gate, answer["run_id"].as_str().unwrap()).await;
        let echoed: Vec<_> = said
            .iter()
            .filter(|message| message["role"] == "tool")
            .map(|message| message["content"][0]["content"][0]["text"].clone())
            .collect();
        assert_eq!(echoed, [0, 1, 2].map(|step| json!(format!("chat{n} {step}"))));
    }
    assert_eq!(
        gate.app.get(&format!("{RUNS}?status=completed&limit=1000")).await.json().as_array().unwrap().len(),
        50
    );
    gate.stop().await;
}

#[tokio::test]
async fn more_runs_than_there_may_be_are_refused() {
    let hold = Arc::new(Semaphore::new(0));
    let gate_of_words = hold.clone();
    let api = ModelApi::start(move |_| Reply::text("done").held_by(&gate_of_words)).await;
    let gate = super::gate_with(&api, |start| start.arg("--agent-runs-max=2")).await;
    let body = hello();
    let two = futures_util::future::join(asked(&gate, &body), asked(&gate, &body));
    let third = async {
        until("two to be under way", async || api.requests().len() == 2).await;
        let refused = asked(&gate, &body).await;
        assert_eq!(refused.refusal(), "429 limit_exceeded");
        hold.add_permits(3);
    };
    let ((one, two), ()) = tokio::join!(two, third);
    assert_eq!((one.status, two.status), (200, 200));
    assert_eq!(asked(&gate, &body).await.status, 200, "a place is given back");
    gate.stop().await;
}

/// Killed while one of two tools of a step has answered.
#[tokio::test]
async fn a_run_that_is_killed_in_the_middle_reads_back_and_goes_on_without_calling_anything_twice() {
    let folder = tempfile::tempdir().unwrap();
    let journal = folder.path().join("journal").display().to_string();
    let api = ModelApi::start(|request| {
        match (answers(request), request["messages"].to_string().contains("go on")) {
            (0, _) => Reply::tool("t1", "echo", &json!({"text": "first"})),
            (1, false) => {
                Reply::tools(&[("t2", "echo", json!({"text": "second"})), ("t3", "hang", json!({}))])
            }
            _ => Reply::text("all is well"),
        }
    })
    .await;
    let gate = gate(&api).await;
    gate.misbehaving("kitchen", &["--journal", &journal]).await;
    let request = gate.app.request(reqwest::Method::POST, CHAT).bearer_auth(&gate.app.token).json(&hello());
    let response = request.send().await.unwrap();
    let id = response.headers()["x-run-id"].to_str().unwrap().to_owned();
    until_seen("two results", async || {
        let said = messages(&gate, &id).await;
        let results = said.iter().filter(|message| message["role"] == "tool").count();
        let calls = gate.app.get(&format!("{RUNS}/{id}/tool-calls")).await.json();
        if results == 2 && calls.as_array().unwrap().len() == 2 { Ok(()) } else { Err(format!("{said:?}")) }
    })
    .await;
    let Gate { app, .. } = gate;
    let app = app.kill().await.serve().await;
    let run = app.get(&format!("{RUNS}/{id}")).await.json();
    assert_eq!(
        (&run["status"], &run["steps"], &run["reason"]),
        (&json!("failed"), &json!(2), &json!("error")),
        "{run}"
    );
    let said = app.get(&format!("{RUNS}/{id}/messages")).await.json();
    let roles: Vec<_> =
        said.as_array().unwrap().iter().map(|message| message["role"].as_str().unwrap()).collect();
    assert_eq!(roles, ["user", "assistant", "tool", "assistant", "tool"]);
    let calls = app.get(&format!("{RUNS}/{id}/tool-calls")).await.json();
    assert_eq!(calls.as_array().unwrap().len(), 2, "what was done is recorded: {calls}");
    let answer = app.post(CHAT, &json!({"run_id": id, "message": "go on"})).await;
    assert!(answer.text.contains("all is well"), "{answer:?}");
    let last = api.requests().pop().unwrap();
    let results: Vec<_> = results(&last)
        .iter()
        .map(|result| (result["tool_use_id"].clone(), result["content"].to_string()))
        .collect();
    assert!(results[0].1.contains("second") && results[1].1.contains("was interrupted"), "{results:?}");
    let heard = std::fs::read_to_string(&journal).unwrap();
    assert_eq!(heard.matches("tools/call").count(), 3, "nothing was called twice: {heard}");
    app.stop().await;
}

#[tokio::test]
async fn a_client_that_stops_reading_harms_nobody() {
    let flood = format!("flooding{} ", "!".repeat(1000)).repeat(10_000);
    let api = ModelApi::start(move |request| {
        let who = request["messages"][0]["content"][0]["text"].as_str().unwrap();
        if who == "flood" { Reply::text(&flood) } else { Reply::text("quick") }
    })
    .await;
    let gate = gate(&api).await;
    let before = gate.app.resident_bytes();
    // It asks, and reads nothing.
    let address = gate.app.url.trim_start_matches("http://");
    let mut deaf = Vec::new();
    for _ in 0..5 {
        let mut client = tokio::net::TcpStream::connect(address).await.unwrap();
        let body = json!({"message": "flood"}).to_string();
        let head = format!(
            "POST {CHAT} HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            gate.app.token,
            body.len()
        );
        client.write_all(head.as_bytes()).await.unwrap();
        deaf.push(client);
    }
    let began = std::time::Instant::now();
    let quick = chat(&gate, &hello()).await;
    assert_eq!(quick.one("done")["text"], "quick");
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    until_seen("all runs to end well", async || {
        let runs = gate.app.get(&format!("{RUNS}?status=completed")).await.json();
        if runs.as_array().unwrap().len() == 6 {
            Ok(())
        } else {
            Err(format!("{} of 6", runs.as_array().unwrap().len()))
        }
    })
    .await;
    let grown = gate.app.resident_bytes().saturating_sub(before) >> 20;
    assert!(grown < 200, "{grown} MiB for five who do not read");
    // Whoever reads at last hears that it is not all.
    let mut client = deaf.remove(0);
    let mut heard = Vec::new();
    let ending = b"not read fast enough";
    while !heard[heard.len().saturating_sub(1 << 16)..].windows(ending.len()).any(|part| part == ending) {
        let read = tokio::time::timeout(Duration::from_secs(30), client.read_buf(&mut heard)).await;
        assert_ne!(
            read.unwrap().unwrap(),
            0,
            "…{}",
            String::from_utf8_lossy(&heard[heard.len().saturating_sub(400)..])
        );
    }
    // Or the end of Cofer would wait for them to read.
    drop((client, deaf));
    gate.stop().await;
}
