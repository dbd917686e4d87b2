//! Servers that Cofer hosts, seen through the gateway: to a client they are like any other.

use cofer_testkit::{engines, until_seen};
use serde_json::json;

use super::{Client, Gate};

const HOSTED: &str = "/api/v1/mcp/hosted";
const LIST_CHANGED: &str = "notifications/tools/list_changed";

async fn until_tools(client: &Client, what: &str, holds: impl Fn(&[String]) -> bool) {
    until_seen(what, async || {
        let names = client.tool_names().await;
        if holds(&names) { Ok(()) } else { Err(format!("{names:?}")) }
    })
    .await;
}

#[tokio::test]
async fn a_hosted_server_comes_dies_recovers_and_goes_in_the_middle_of_a_session() {
    if engines::docker().is_none() {
        return;
    }
    let gate = Gate::started(|start| {
        start
            .with_engines()
            .variable("COFER_STOP_GRACE_MS", "5000")
            .variable("WORKSPACE_DEFAULT_PROVIDER", "docker")
    })
    .await;
    let client = gate.client().await;
    let listening = client.listen().await;
    assert!(client.tool_names().await.is_empty());
    let body = json!({"name": "hosted", "image": "cofer-test/misbehaving", "provider": "docker"});
    let made = gate.app.post(HOSTED, &body).await;
    assert_eq!(made.status, 201, "{made:?}");
    until_tools(&client, "its tools", |names| names.iter().any(|name| name == "echo")).await;
    listening.until(LIST_CHANGED, 1).await;
    assert_eq!(client.tool("echo", json!({"text": "here"})).await.text(), "here");
    assert_eq!(gate.text("hosted__echo", json!({"text": "here"})).await, "here");
    let died = client.tool("crash", json!({})).await;
    assert_eq!(died.answer["error"]["data"]["may_have_executed"], true, "{died:?}");
    assert_eq!(client.tool("echo", json!({"text": "again"})).await.text(), "again");
    let removed = gate.app.delete(&format!("{HOSTED}/hosted?delete_volumes=true")).await;
    assert_eq!(removed.status, 204, "{removed:?}");
    until_tools(&client, "an empty list", <[String]>::is_empty).await;
    listening.until(LIST_CHANGED, 2).await;
    gate.stop().await;
}

#[tokio::test]
async fn that_another_server_has_a_tool_of_the_same_name_is_in_the_list_and_in_the_history_of_a_hosted_one() {
    if engines::docker().is_none() {
        return;
    }
    let gate =
        Gate::started(|start| start.with_engines().variable("WORKSPACE_DEFAULT_PROVIDER", "docker")).await;
    let made = gate.app.post(HOSTED, &json!({"name": "hosted", "image": "cofer-test/misbehaving"})).await;
    assert_eq!(made.status, 201, "{made:?}");
    gate.misbehaving("later", &[]).await;
    let told = "`echo` is offered by `hosted` and by `later`; `later` answers, and `hosted__echo` leads to the other";
    until_seen("a warning in the list", async || {
        let warnings = gate.listing().await["warnings"].clone();
        if warnings.as_array().is_some_and(|all| all.contains(&json!(told))) {
            Ok(())
        } else {
            Err(warnings.to_string())
        }
    })
    .await;
    until_seen("a warning in its history", async || {
        let events = gate.app.get(&format!("{HOSTED}/hosted/events?limit=1000")).await.json();
        let told = "are offered by `hosted` and by `later`; `later` answers, and names like `hosted__";
        let warned = |event: &serde_json::Value| {
            event["kind"] == "warning" && event["message"].as_str().unwrap().contains(told)
        };
        if events.as_array().is_some_and(|all| all.iter().any(warned)) {
            Ok(())
        } else {
            Err(events.to_string())
        }
    })
    .await;
    gate.app.delete(&format!("{HOSTED}/hosted?delete_volumes=true")).await;
    gate.stop().await;
}
