//! The record of calls outlives Cofer and its database.

use std::collections::HashMap;
use std::sync::Mutex;

use cofer_testkit::app::App;
use cofer_testkit::chaos_proxy::ChaosProxy;
use cofer_testkit::{engines, until_seen};
use futures_util::future::join_all;
use reqwest::Method;
use rustix::process::Signal;
use serde_json::json;

use super::{Gate, TOOLS};
use crate::databases::{server_of, through};

const CALLERS: usize = 8;
const CALLS_BEFORE_THE_END: usize = 300;
const RECORDED: &str = "/api/v1/projects/default/tool-calls?tool=echo&limit=1000";

/// How often each text was recorded as what `echo` was asked for.
async fn recorded(app: &App) -> HashMap<String, usize> {
    let (mut found, mut cursor) = (HashMap::new(), String::new());
    loop {
        let page = app.get(&format!("{RECORDED}{cursor}")).await;
        assert_eq!(page.status, 200, "{page:?}");
        for call in page.json().as_array().unwrap() {
            *found.entry(call["input"]["text"].as_str().unwrap().to_owned()).or_default() += 1;
        }
        let Some(next) = page.headers.get("x-next-cursor") else { return found };
        cursor = format!("&cursor={}", next.to_str().unwrap());
    }
}

/// How many bytes of records wait for the database, as Prometheus is told.
async fn waiting(app: &App) -> String {
    let page = app.get("/metrics").await.text;
    let line = page.lines().find_map(|line| line.strip_prefix("cofer_record_waiting_bytes "));
    line.unwrap_or_else(|| panic!("no such figure: {page}")).to_owned()
}

#[tokio::test]
async fn whatever_was_answered_is_in_the_record_of_a_cofer_that_was_killed_meanwhile() {
    let gate = Gate::new().await;
    gate.misbehaving("good", &[]).await;
    let (app, answered) = (&gate.app, Mutex::new(Vec::new()));
    let calls_without_end = |caller: usize| {
        let answered = &answered;
        async move {
            for n in 0.. {
                let text = format!("{caller}-{n}");
                let body = json!({"name": "echo", "arguments": {"text": text}});
                let request = app.request(Method::POST, &format!("{TOOLS}/call")).bearer_auth(&app.token);
                let Ok(answer) = request.json(&body).send().await else { return };
                assert_eq!(answer.status(), 200);
                if answer.bytes().await.is_err() {
                    return;
                }
                let mut answered = answered.lock().unwrap();
                answered.push(text);
                if answered.len() == CALLS_BEFORE_THE_END {
                    app.signal(Signal::KILL);
                }
            }
        }
    };
    join_all((0..CALLERS).map(calls_without_end)).await;
    let Gate { app, leaks } = gate;
    let app = app.kill().await.serve().await;
    let found = recorded(&app).await;
    for text in answered.into_inner().unwrap() {
        assert_eq!(found.get(&text), Some(&1), "the call of {text}, which was answered");
    }
    app.stop().await;
    leaks.assert_none();
}

#[tokio::test]
async fn what_is_called_while_the_database_is_away_is_recorded_when_it_is_back_even_by_the_next_cofer() {
    let Some(postgres) = engines::postgres() else { return };
    let database = postgres.fresh_database().await;
    let proxy = ChaosProxy::in_front_of(server_of(database.url())).unwrap();
    let url = through(&proxy, database.url());
    let gate = Gate::started(|start| start.variable("COFER_DATABASE_URL", url)).await;
    gate.misbehaving("good", &[]).await;
    let client = gate.client().await;
    let call = async |text: &str| {
        assert_eq!(client.tool("echo", json!({"text": text})).await.text(), text);
    };
    call("before").await;
    proxy.cut().await;
    call("away").await;
    gate.app.logged("records of calls wait in the journal").await;
    proxy.restore().await;
    gate.app.logged("the database takes records of calls again").await;
    until_seen("both records", async || {
        let found = recorded(&gate.app).await;
        if found.len() == 2 { Ok(()) } else { Err(format!("{found:?}")) }
    })
    .await;
    assert_eq!(waiting(&gate.app).await, "0");
    proxy.cut().await;
    call("away again").await;
    let Gate { app, leaks } = gate;
    let start = app.kill().await;
    proxy.restore().await;
    let app = start.serve().await;
    assert_eq!(recorded(&app).await.get("away again"), Some(&1));
    app.stop().await;
    leaks.assert_none();
}

#[tokio::test]
async fn a_call_of_a_tool_with_a_name_of_any_length_is_recorded() {
    let gate = Gate::new().await;
    let name = "x".repeat(3 << 20);
    let answer = gate.client().await.tool(&name, json!({})).await;
    assert_eq!(answer.result()["isError"], true);
    let calls = gate.app.get("/api/v1/projects/default/tool-calls").await.json();
    let recorded = calls[0]["tool_name"].as_str().unwrap();
    assert!(name.starts_with(recorded) && recorded.len() == 1024, "{} bytes", recorded.len());
    assert!(!gate.app.log().contains("a recorded call is lost"), "{}", gate.app.log());
    gate.stop().await;
}
