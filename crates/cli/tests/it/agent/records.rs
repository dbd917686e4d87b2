//! What is kept of runs: messages, calls, lists, exports, for as long as was asked.

use cofer_testkit::model_api::{ModelApi, Reply};
use cofer_testkit::until;
use reqwest::Method;
use serde_json::{Value, json};

use super::{CHAT, RUNS, chat, gate, gate_with, hello, messages};

async fn parrot() -> ModelApi {
    ModelApi::start(|request| {
        let results = request["messages"].as_array().unwrap().len();
        if results == 1 { Reply::tool("t1", "echo", &json!({"text": "soup"})) } else { Reply::text("done") }
    })
    .await
}

#[tokio::test]
async fn a_run_reads_back_with_everything_that_was_said_and_called() {
    let api = parrot().await;
    let gate = gate(&api).await;
    gate.misbehaving("kitchen", &[]).await;
    let events = chat(&gate, &hello()).await;
    let id = events.one("done")["run_id"].as_str().unwrap();
    let said: Vec<_> = messages(&gate, id)
        .await
        .iter()
        .map(|message| {
            format!("{} {} {}", message["step_number"], message["role"], message["content"][0]["type"])
        })
        .collect();
    assert_eq!(
        said,
        [
            r#"0 "user" "text""#,
            r#"1 "assistant" "tool_use""#,
            r#"1 "tool" "tool_result""#,
            r#"2 "assistant" "text""#
        ]
    );
    let calls = gate.app.get(&format!("{RUNS}/{id}/tool-calls")).await.json();
    let call = &calls[0];
    assert_eq!(calls.as_array().unwrap().len(), 1);
    assert_eq!(
        (&call["run_id"], &call["tool_name"], &call["server"]),
        (&json!(id), &json!("echo"), &json!("kitchen"))
    );
    assert_eq!(
        (&call["input"], &call["status"], &call["step_number"]),
        (&json!({"text": "soup"}), &json!("completed"), &json!(1))
    );
    assert_eq!(gate.app.get(&format!("/api/v1/projects/default/tool-calls?run_id={id}")).await.json(), calls);
    let run = gate.app.get(&format!("{RUNS}/{id}")).await.json();
    assert_eq!(
        (&run["steps"], &run["model"], &run["caller"]),
        (&json!(2), &json!("claude-sonnet-4-5"), &json!("admin"))
    );
    gate.stop().await;
}

#[tokio::test]
async fn runs_and_messages_come_in_pages_and_are_found() {
    let api = parrot().await;
    let gate = gate(&api).await;
    gate.misbehaving("kitchen", &[]).await;
    let mut ids = Vec::new();
    for model in ["a", "b", "a"] {
        let events = chat(&gate, &json!({"message": "hello", "model": model})).await;
        ids.insert(0, events.one("done")["run_id"].clone());
    }
    let page = async |path: &str| {
        let answer = gate.app.get(path).await;
        let next = answer.headers.get("x-next-cursor").map(|next| next.to_str().unwrap().to_owned());
        let rows: Vec<Value> = answer.json().as_array().unwrap_or_else(|| panic!("{answer:?}")).clone();
        (rows, next)
    };
    let (first, next) = page(&format!("{RUNS}?limit=2")).await;
    let (second, last) = page(&format!("{RUNS}?limit=2&cursor={}", next.unwrap())).await;
    let seen: Vec<_> = first.iter().chain(&second).map(|run| run["id"].clone()).collect();
    assert_eq!((seen, last), (ids.clone(), None));
    for (query, count) in
        [("model=a", 2), ("status=completed", 3), ("status=failed", 0), ("since=2100-01-01T00:00:00Z", 0)]
    {
        assert_eq!(page(&format!("{RUNS}?{query}")).await.0.len(), count, "{query}");
    }
    let messages = format!("{RUNS}/{}/messages", ids[0].as_str().unwrap());
    let (first, next) = page(&format!("{messages}?limit=3")).await;
    let (second, last) = page(&format!("{messages}?limit=3&cursor={}", next.unwrap())).await;
    assert_eq!((first.len(), second.len(), last), (3, 1, None));
    for bad in ["?limit=0", "?limit=1001", "?cursor=x", "?status=odd", "?colour=red"] {
        assert_eq!(gate.app.get(&format!("{RUNS}{bad}")).await.refusal(), "422 validation_error", "{bad}");
    }
    gate.stop().await;
}

#[tokio::test]
async fn a_run_is_exported_as_json_lines() {
    let api = parrot().await;
    let gate = gate(&api).await;
    gate.misbehaving("kitchen", &[]).await;
    let events = chat(&gate, &hello()).await;
    let id = events.one("done")["run_id"].as_str().unwrap();
    let answer = gate.app.get(&format!("{RUNS}/{id}/export")).await;
    assert_eq!(answer.headers["content-type"], "application/x-ndjson");
    let kinds: Vec<_> = answer
        .text
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["kind"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(kinds, ["run", "message", "message", "message", "message", "tool_call"]);
    gate.stop().await;
}

#[tokio::test]
async fn secrets_of_the_project_are_masked_in_what_is_kept() {
    let api = ModelApi::scripted(vec![
        Reply::tool("t1", "echo", &json!({"text": "it is hunter2-hunter2"})),
        Reply::text("hunter2-hunter2"),
    ])
    .await;
    let gate = gate(&api).await;
    gate.misbehaving("kitchen", &[]).await;
    gate.app.put("/api/v1/projects/default/secrets/PASSWORD", &json!({"value": "hunter2-hunter2"})).await;
    let events = chat(&gate, &hello()).await;
    let id = events.one("done")["run_id"].as_str().unwrap();
    let kept = gate.app.get(&format!("{RUNS}/{id}/messages")).await.text;
    assert!(!kept.contains("hunter2-hunter2") && kept.contains("tool_result"), "{kept}");
    gate.stop().await;
}

#[tokio::test]
async fn a_tenant_neither_sees_nor_touches_the_runs_of_another() {
    let api = parrot().await;
    let gate = gate(&api).await;
    gate.misbehaving("kitchen", &[]).await;
    let events = chat(&gate, &hello()).await;
    let id = events.one("done")["run_id"].as_str().unwrap();
    gate.app.post("/api/v1/projects", &json!({"name": "other"})).await;
    let token = json!({"name": "t", "scopes": ["agents:run"], "project": "other"});
    let token = gate.app.post("/api/v1/tokens", &token).await.json()["token"].as_str().unwrap().to_owned();
    let others = RUNS.replace("default", "other");
    for path in ["", "/messages", "/tool-calls", "/export"] {
        for base in [RUNS, others.as_str()] {
            let answer = gate.app.call(Method::GET, &format!("{base}/{id}{path}"), &token, None).await;
            assert_eq!(answer.refusal(), "404 not_found", "{base} {path}");
        }
    }
    let resume = json!({"message": "x", "run_id": id});
    let answer = gate.app.call(Method::POST, &CHAT.replace("default", "other"), &token, Some(&resume)).await;
    assert_eq!(answer.refusal(), "404 not_found");
    assert_eq!(gate.app.call(Method::GET, &others, &token, None).await.json(), json!([]));
    gate.stop().await;
}

#[tokio::test]
async fn what_is_too_old_is_forgotten() {
    let api = parrot().await;
    let gate = gate_with(&api, |start| start.arg("--keep-runs-days=0")).await;
    gate.misbehaving("kitchen", &[]).await;
    chat(&gate, &hello()).await;
    until("runs and calls to be forgotten", async || {
        let runs = gate.app.get(RUNS).await.json();
        let calls = gate.app.get("/api/v1/projects/default/tool-calls").await.json();
        runs == json!([]) && calls == json!([])
    })
    .await;
    gate.stop().await;
}
