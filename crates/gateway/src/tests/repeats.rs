//! Calls whose server ends in the middle: made once more where that is safe and allowed, and never otherwise.

use std::sync::Arc;

use cofer_model::ProjectId;
use serde_json::json;
use tokio::task::JoinHandle;

use super::MadeUp;
use super::alone::{OneServer, Server, raw};
use crate::{Caller, Gateway, GatewayRules, Recorder};

/// Calls a tool, and what becomes of it in few words.
async fn calls(dial: &Arc<MadeUp>, tool: &'static str, repeats: bool) -> JoinHandle<String> {
    let registry = Arc::new(OneServer { dial: dial.clone(), repeats });
    let gateway = Gateway::start(registry, Recorder::nowhere(), Vec::new(), GatewayRules::default());
    let project = gateway.project(ProjectId::generate()).await.unwrap().unwrap();
    tokio::spawn(async move {
        let called = project.call_tool(tool, raw(&json!({"name": tool})), None, &Caller::default()).await;
        drop(gateway);
        match called {
            Ok(_) => "answered".to_owned(),
            Err(failed) if failed.may_have_executed => "may have executed".to_owned(),
            Err(failed) => failed.message,
        }
    })
}

/// It is asked for a tool, and does not answer.
async fn asked(dial: &MadeUp) -> (Server, serde_json::Value) {
    let mut server = Server::of(dial).await;
    let call = server.hears(|message| message["method"] == "tools/call").await;
    (server, call)
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_safe_is_made_once_more_and_not_twice() {
    let dial = MadeUp::that([]);
    let call = calls(&dial, "look", true).await;
    drop(asked(&dial).await);
    let (mut server, again) = asked(&dial).await;
    server.says(json!({"jsonrpc": "2.0", "id": again["id"], "result": {"content": []}})).await;
    assert_eq!(call.await.unwrap(), "answered");

    let dial = MadeUp::that([]);
    let call = calls(&dial, "look", true).await;
    drop(asked(&dial).await);
    drop(asked(&dial).await);
    assert_eq!(call.await.unwrap(), "may have executed");
}

#[tokio::test(start_paused = true)]
async fn what_is_not_safe_or_not_allowed_is_never_repeated() {
    for (tool, repeats) in [("ask", true), ("look", false)] {
        let dial = MadeUp::that([]);
        let call = calls(&dial, tool, repeats).await;
        drop(asked(&dial).await);
        assert_eq!(call.await.unwrap(), "may have executed", "{tool} {repeats}");
    }
}
