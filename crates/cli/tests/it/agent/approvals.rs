//! Calls that a person must allow.

use cofer_testkit::model_api::{ModelApi, Reply};
use cofer_testkit::until_seen;
use serde_json::{Value, json};

use super::{RUNS, asked, chat, gate, gate_with, results, run};
use crate::gateway::Gate;

async fn parrot() -> ModelApi {
    let call = json!({"text": "may I?"});
    ModelApi::scripted(vec![Reply::tool("t1", "echo", &call), Reply::text("so be it")]).await
}

fn asking() -> Value {
    json!({"message": "hello", "approve": ["*"]})
}

/// What the only run waits for, and the run.
async fn waiting(gate: &Gate) -> (String, Value) {
    until_seen("an approval to be asked for", async || {
        let runs = gate.app.get(RUNS).await.json();
        match runs[0]["approvals"].as_array().map(Vec::as_slice) {
            Some([one]) => Ok((runs[0]["id"].as_str().unwrap().to_owned(), one.clone())),
            _ => Err(runs.to_string()),
        }
    })
    .await
}

async fn answer(gate: &Gate, run: &str, approval: &Value, allow: bool) -> u16 {
    let body = json!({"approval_id": approval["approval_id"], "allow": allow});
    gate.app.post(&format!("{RUNS}/{run}/approvals"), &body).await.status
}

#[tokio::test]
async fn a_yes_is_a_call_and_a_no_is_told_to_the_model() {
    for (allow, text, status) in
        [(true, "may I?", "completed"), (false, "The user did not allow this call.", "error")]
    {
        let api = parrot().await;
        let gate = gate(&api).await;
        gate.misbehaving("kitchen", &[]).await;
        let (request, decide) = (asking(), async {
            let (id, approval) = waiting(&gate).await;
            assert_eq!((&approval["name"], &approval["input"]["text"]), (&json!("echo"), &json!("may I?")));
            assert_eq!(answer(&gate, &id, &approval, allow).await, 204);
            assert_eq!(answer(&gate, &id, &approval, allow).await, 404, "nobody waits any more");
        });
        let (events, ()) = tokio::join!(chat(&gate, &request), decide);
        let asked = events.one("approval");
        assert_eq!((&asked["name"], &asked["input"]["text"]), (&json!("echo"), &json!("may I?")));
        assert!(asked["approval_id"].is_string());
        assert_eq!(events.one("tool_result")["status"], status);
        assert_eq!(results(&api.requests()[1])[0]["content"][0]["text"], text);
        assert_eq!(gate.recorded("echo").await["status"], status, "a no is in the record, too");
        gate.stop().await;
    }
}

#[tokio::test]
async fn no_answer_in_time_is_a_no() {
    let api = parrot().await;
    let gate = gate_with(&api, |start| start.arg("--approval-timeout-ms=100")).await;
    gate.misbehaving("kitchen", &[]).await;
    let answer = asked(&gate, &asking()).await.json();
    assert_eq!(answer["tool_calls"][0]["status"], "error", "{answer}");
    assert!(
        results(&api.requests()[1])[0]["content"][0]["text"].as_str().unwrap().contains("did not answer")
    );
    assert_eq!(run(&gate, answer["run_id"].as_str().unwrap()).await["approvals"], json!([]));
    gate.stop().await;
}

#[tokio::test]
async fn what_only_reads_needs_no_leave() {
    let Some(tools) = cofer_testkit::engines::tools() else { return };
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("note"), "kept").unwrap();
    let path = folder.path().join("note");
    let read = json!({"path": path});
    let api = ModelApi::scripted(vec![Reply::tool("t1", "read_text_file", &read), Reply::text("read")]).await;
    let gate = gate(&api).await;
    let args = [folder.path().to_str().unwrap()];
    gate.stdio("filesystem", &tools.join("bin/mcp-server-filesystem"), &args, json!({})).await;
    let events = chat(&gate, &asking()).await;
    assert!(events.all("approval").is_empty(), "{events:?}");
    assert_eq!(events.one("tool_result")["status"], "completed");
    gate.stop().await;
}

#[tokio::test]
async fn a_run_that_is_cancelled_asks_no_more() {
    let api = parrot().await;
    let gate = gate(&api).await;
    gate.misbehaving("kitchen", &[]).await;
    let (request, cancel) = (asking(), async {
        let (id, approval) = waiting(&gate).await;
        gate.app.post(&format!("{RUNS}/{id}/cancel"), &json!({})).await;
        assert_eq!(answer(&gate, &id, &approval, true).await, 404);
    });
    let (events, ()) = tokio::join!(chat(&gate, &request), cancel);
    assert_eq!(events.one("done")["status"], "cancelled");
    gate.stop().await;
}
