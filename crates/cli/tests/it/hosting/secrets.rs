//! Secrets in the environment of servers: there when the server starts, and nowhere else.

use serde_json::{Value, json};

use super::{Host, MISBEHAVING, SERVERS, on_each_provider};

on_each_provider!(a_secret_reaches_the_server_and_no_reader);

const CLEAR: &str = "hunter2-very-secret-value";
const PLAIN: &str = "plain-value-of-a-variable";

async fn a_secret_reaches_the_server_and_no_reader(host: Host) {
    let put = host.app.put("/api/v1/projects/default/secrets/API_KEY", &json!({"value": CLEAR})).await;
    assert_eq!(put.status, 200, "{put:?}");
    let environment =
        json!({"KEY": "${API_KEY}", "URL": "https://u:${API_KEY}@host/?k=${API_KEY}", "OTHER": PLAIN});
    let registered = host.register("leaky", MISBEHAVING, json!({"environment": environment})).await;
    assert_eq!(registered.status, 201, "{registered:?}");
    let seen = &host.facts("leaky", "env", json!({})).await["env"];
    assert_eq!((&seen["KEY"], &seen["OTHER"]), (&json!(CLEAR), &json!(PLAIN)));
    let mut told = vec![registered.text];
    // The server itself gives it away, in its last words.
    let crash = host
        .try_tool("leaky", "crash", json!({"exit_code": 1, "stderr": format!("dying with {CLEAR}")}), 30_000)
        .await;
    told.push(crash.text);
    host.until("leaky", "back", |status| status["status"] == "ready" && status["restart_count"] == 1).await;
    host.event("leaky", "crashed").await;
    for path in ["", "/leaky", "/leaky/logs", "/leaky/events", "/leaky?project=default"] {
        told.push(host.app.get(&format!("{SERVERS}{path}")).await.text);
    }
    told.push(host.app.get("/metrics").await.text);
    told.push(host.app.get("/api/v1/projects/default/secrets").await.text);
    told.push(host.app.patch(&format!("{SERVERS}/leaky"), &json!({"call_timeout_ms": 1000})).await.text);
    told.push(host.app.log());
    for words in &told {
        assert!(!words.contains(CLEAR), "{words}");
        assert!(!words.contains(PLAIN), "{words}");
    }
    let logs = host.app.get(&format!("{SERVERS}/leaky/logs")).await.text;
    assert!(logs.contains("dying with "), "{logs}");
    for file in std::fs::read_dir(host.app.data_dir()).unwrap() {
        let bytes = std::fs::read(file.unwrap().path()).unwrap();
        assert!(!String::from_utf8_lossy(&bytes).contains(CLEAR));
    }
    host.stop().await;
}

#[tokio::test]
async fn missing_secrets_are_named_each_and_nothing_is_made() {
    let Some(host) = Host::new("docker").await else { return };
    host.app.put("/api/v1/projects/default/secrets/THERE", &json!({"value": CLEAR})).await;
    let environment = json!({"A": "${ONE}", "B": "${THERE}${TWO}", "C": "$${THREE} $FOUR ${FIVE"});
    let answer =
        host.register("poor", MISBEHAVING, json!({"environment": environment, "volumes": ["/data"]})).await;
    assert_eq!(answer.refusal(), "422 validation_error", "{answer:?}");
    let error = &answer.json()["error"];
    let message = error["message"].as_str().unwrap();
    assert!(
        message.contains("`ONE`") && message.contains("`TWO`") && !message.contains("THERE"),
        "{message}"
    );
    assert_eq!(error["details"]["field"], "environment");
    assert_eq!(host.app.get(SERVERS).await.json(), json!([]));
    assert_eq!(host.in_engines().await, Vec::<String>::new());
    host.stop().await;
}

#[tokio::test]
async fn a_secret_that_changes_is_taken_up_at_the_next_start_and_one_that_goes_is_told() {
    let Some(host) = Host::new("docker").await else { return };
    let secret = "/api/v1/projects/default/secrets/KEY";
    host.app.put(secret, &json!({"value": "the-first-value"})).await;
    host.hosted("turns", MISBEHAVING, json!({"environment": {"K": "${KEY}"}})).await;
    host.app.put(secret, &json!({"value": "the-second-value"})).await;
    host.post("turns", "restart").await;
    assert_eq!(host.facts("turns", "env", json!({})).await["env"]["K"], "the-second-value");
    assert_eq!(host.app.delete(secret).await.status, 204);
    let answer = host.app.post(&format!("{SERVERS}/turns/restart"), &json!({})).await;
    let status = host.until_status("turns", "error").await;
    assert!(status["reason"].as_str().unwrap().contains("`KEY`"), "{answer:?} {status:#}");
    host.app.put(secret, &json!({"value": "the-third-value"})).await;
    let back: Value = host.post("turns", "start").await;
    assert_eq!(back["status"], "ready", "{back:#}");
    host.stop().await;
}
