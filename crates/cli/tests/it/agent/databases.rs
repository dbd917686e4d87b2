//! Runs on PostgreSQL, and while the database is away.

use std::sync::Arc;

use cofer_testkit::chaos_proxy::ChaosProxy;
use cofer_testkit::model_api::{ModelApi, Reply};
use cofer_testkit::{engines, until};
use serde_json::json;
use tokio::sync::Semaphore;

use super::{CHAT, Events, RUNS, chat, gate_with, hello, messages, run};
use crate::databases::{server_of, through};

fn echo() -> Reply {
    Reply::tool("t1", "echo", &json!({"text": "soup"}))
}

#[tokio::test]
async fn the_same_on_postgres() {
    let Some(postgres) = engines::postgres() else { return };
    let database = postgres.fresh_database().await;
    let api = ModelApi::scripted(vec![echo(), Reply::text("first"), Reply::text("second")]).await;
    let gate = gate_with(&api, |start| start.variable("COFER_DATABASE_URL", database.url())).await;
    gate.misbehaving("kitchen", &[]).await;
    let events = chat(&gate, &hello()).await;
    let id = events.one("done")["run_id"].as_str().unwrap().to_owned();
    chat(&gate, &json!({"message": "more", "run_id": id})).await;
    assert_eq!(messages(&gate, &id).await.len(), 6);
    assert_eq!(run(&gate, &id).await["steps"], 3);
    assert_eq!(gate.app.get(&format!("{RUNS}/{id}/tool-calls")).await.json()[0]["step_number"], 1);
    assert_eq!(gate.app.get(&format!("{RUNS}?status=completed")).await.json().as_array().unwrap().len(), 1);
    assert_eq!(gate.app.get(&format!("{RUNS}/{id}/export")).await.text.lines().count(), 8);
    gate.stop().await;
}

#[tokio::test]
async fn nothing_is_called_that_could_not_be_written_down() {
    let Some(postgres) = engines::postgres() else { return };
    let database = postgres.fresh_database().await;
    let proxy = ChaosProxy::in_front_of(server_of(database.url())).unwrap();
    let hold = Arc::new(Semaphore::new(0));
    let api = ModelApi::scripted(vec![echo().held_by(&hold), Reply::text("never")]).await;
    let url = through(&proxy, database.url());
    let gate = gate_with(&api, |start| start.variable("COFER_DATABASE_URL", url)).await;
    let journal = gate.app.data_dir().join("journal").display().to_string();
    gate.misbehaving("kitchen", &["--journal", &journal]).await;
    // Connected before, so that only the record is missing.
    assert_eq!(gate.text("echo", json!({"text": "there"})).await, "there");
    let body = hello();
    let cut = async {
        until("the model to be asked", async || api.requests().len() == 1).await;
        proxy.cut().await;
        hold.add_permits(1);
    };
    let (answer, ()) = tokio::join!(gate.app.post(CHAT, &body), cut);
    let events = Events::read(&answer.text);
    assert_eq!(events.one("done")["status"], "failed", "{answer:?}");
    assert_eq!(events.one("error")["error"]["code"], "unavailable", "{answer:?}");
    assert!(events.all("tool_call").is_empty());
    let heard = std::fs::read_to_string(&journal).unwrap();
    assert_eq!(heard.matches("tools/call").count(), 1, "{heard}");
    proxy.restore().await;
    gate.stop().await;
}
