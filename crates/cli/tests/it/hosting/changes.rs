//! Changes of a server that runs: each field takes effect in a new container, and what cannot be leaves all as it was.

use serde_json::{Value, json};

use super::{Host, MISBEHAVING, SERVERS, VOLUMES, on_each_provider};

on_each_provider!(each_field_can_be_changed_and_brought_back);

async fn patched(host: &Host, change: &Value) -> Value {
    let answer = host.app.patch(&format!("{SERVERS}/changing"), change).await;
    assert_eq!(answer.status, 200, "{change}: {answer:?}; log: {}", host.app.log());
    let status = answer.json();
    assert_eq!(status["status"], "ready", "{change}: {status:#}");
    status
}

async fn each_field_can_be_changed_and_brought_back(host: Host) {
    let before = host
        .hosted("changing", MISBEHAVING, json!({"volumes": ["/data"], "cmd": ["--stderr-line", "one"]}))
        .await;
    host.tool("changing", "write_file", json!({"path": "/data/note", "text": "kept"})).await;
    for (change, field, expected) in [
        (json!({"cmd": ["--server-name", "two"]}), "/server_info/name", json!("two")),
        (json!({"cmd": null}), "/server_info/name", json!("misbehaving")),
        (json!({"environment": {"A": "1", "B": "2"}}), "/environment", json!(["A", "B"])),
        (json!({"resource_limits": {"memory": "128M"}}), "/resource_limits/memory", json!("128M")),
        (
            json!({"resource_limits": {"cpu": "1"}}),
            "/resource_limits",
            json!({"cpu": "1", "memory": "128M", "disk": "1G", "pids": 256}),
        ),
        (json!({"restart_policy": "never"}), "/restart_policy", json!("never")),
        (json!({"network": "none"}), "/network", json!("none")),
        (json!({"call_timeout_ms": 5000}), "/call_timeout_ms", json!(5000)),
        (json!({"max_in_flight": 4}), "/max_in_flight", json!(4)),
        (json!({"health_interval_ms": 5000}), "/health_interval_ms", json!(5000)),
        (json!({"user": "1000:1000"}), "/user", json!("1000:1000")),
        (json!({"user": null}), "/user", Value::Null),
        (json!({"workdir": "/tmp"}), "/workdir", json!("/tmp")),
        (json!({"workdir": null}), "/workdir", Value::Null),
        (json!({"volumes": ["/data", "/more"]}), "/volumes", json!(["/data", "/more"])),
        (json!({}), "/name", json!("changing")),
    ] {
        let status = patched(&host, &change).await;
        assert_eq!(status.pointer(field), Some(&expected), "{change}: {status:#}");
        assert_eq!(status["workspace_id"], before["workspace_id"]);
    }
    assert_eq!(host.facts("changing", "env", json!({})).await["env"]["A"], "1");
    assert_eq!(host.facts("changing", "read_file", json!({"path": "/data/note"})).await["text"], "kept");
    host.remove("changing").await;
    assert_eq!(host.in_engines().await, Vec::<String>::new());
    host.stop().await;
}

#[tokio::test]
async fn a_change_that_cannot_be_is_refused_and_the_server_goes_on_as_it_was() {
    let Some(host) = Host::new("docker").await else { return };
    let before = host.misbehaving("changing", &[]).await;
    let pid = host.facts("changing", "calls_seen", json!({})).await["pid"].clone();
    for (change, refusal, field) in [
        (json!({"name": "other"}), "422 validation_error", json!("name")),
        (json!({"project": "other"}), "422 validation_error", json!("project")),
        (json!({"colour": "red"}), "422 validation_error", json!("colour")),
        (json!({"image": "cofer-test/no-such-image"}), "422 validation_error", json!("image")),
        (json!({"image": ""}), "422 validation_error", json!("image")),
        (json!({"volumes": ["x"]}), "422 validation_error", json!("volumes")),
        (json!({"stdio_bridge": false}), "422 validation_error", json!("ports")),
        (json!({"environment": {"A": "${NOT_THERE}"}}), "422 validation_error", json!("environment")),
        (
            json!({"resource_limits": {"memory": "1K"}}),
            "422 validation_error",
            json!("resource_limits.memory"),
        ),
        (json!({"restart_policy": "maybe"}), "422 validation_error", json!("restart_policy")),
        (json!([]), "422 validation_error", json!("")),
    ] {
        let answer = host.app.patch(&format!("{SERVERS}/changing"), &change).await;
        assert_eq!(answer.refusal(), refusal, "{change}: {answer:?}");
        assert_eq!(answer.json()["error"]["details"]["field"], field, "{change}: {answer:?}");
    }
    for provider in ["firecracker", "e2b", "kubernetes"] {
        let answer = host.app.patch(&format!("{SERVERS}/changing"), &json!({"provider": provider})).await;
        assert_eq!(answer.refusal(), "503 unavailable", "{provider}: {answer:?}");
    }
    let after = host.status("changing").await;
    assert_eq!((&after["image"], &after["provider"]), (&before["image"], &before["provider"]));
    let facts = host.facts("changing", "calls_seen", json!({})).await;
    assert_eq!(
        (&facts["pid"], &facts["calls"]["calls_seen"]),
        (&pid, &json!(2)),
        "it is still the same process"
    );
    host.stop().await;
}

#[tokio::test]
async fn a_server_moves_to_another_provider_when_told_to() {
    let Some(host) = Host::new("docker").await else { return };
    host.misbehaving("changing", &[]).await;
    for (provider, isolation) in [("gvisor", "gvisor"), ("podman", "container"), ("docker", "container")] {
        let status = patched(&host, &json!({"provider": provider})).await;
        assert_eq!((&status["provider"], &status["isolation"]), (&json!(provider), &json!(isolation)));
        host.works("changing").await;
        assert_eq!(host.in_engines().await.len(), 1);
    }
    host.stop().await;
}

#[tokio::test]
async fn stop_and_start_are_remembered_and_harmless_when_repeated() {
    let Some(host) = Host::new("docker").await else { return };
    host.misbehaving("changing", &[]).await;
    for _ in 0..2 {
        let status = host.post("changing", "stop").await;
        assert_eq!((&status["status"], &status["container_status"]), (&json!("stopped"), &json!("stopped")));
        assert_eq!(
            (&status["bridge_connected"], &status["uptime"], &status["usage"]),
            (&json!(false), &Value::Null, &Value::Null)
        );
    }
    assert_eq!(host.in_engines().await, Vec::<String>::new());
    // Changing it does not start it.
    let answer =
        host.app.patch(&format!("{SERVERS}/changing"), &json!({"cmd": ["--server-name", "later"]})).await;
    assert_eq!((answer.status, &answer.json()["status"]), (200, &json!("stopped")), "{answer:?}");
    for _ in 0..2 {
        let status = host.post("changing", "start").await;
        assert_eq!((&status["status"], &status["server_info"]["name"]), (&json!("ready"), &json!("later")));
    }
    host.post("changing", "stop").await;
    assert_eq!(host.post("changing", "restart").await["status"], "ready");
    host.stop().await;
}

#[tokio::test]
async fn volumes_are_listed_kept_and_removed_when_nobody_has_them() {
    let Some(host) = Host::new("docker").await else { return };
    host.hosted("keeper", MISBEHAVING, json!({"volumes": ["/data"]})).await;
    let volumes = host.app.get(VOLUMES).await.json();
    let volume = &volumes[0];
    for field in ["name", "server", "project", "path", "size_bytes", "in_use"] {
        assert!(volume.get(field).is_some(), "{field}: {volume:#}");
    }
    assert_eq!(
        (&volume["server"], &volume["project"], &volume["in_use"]),
        (&json!("keeper"), &json!("default"), &json!(true))
    );
    let path = format!("{VOLUMES}/{}", volume["name"].as_str().unwrap());
    assert_eq!(host.app.delete(&path).await.refusal(), "409 conflict");
    host.post("keeper", "stop").await;
    assert_eq!(host.app.delete(&path).await.refusal(), "409 conflict", "it will want it again");
    assert_eq!(
        host.app.delete(&format!("{SERVERS}/keeper?delete_volumes=maybe")).await.refusal(),
        "422 validation_error"
    );
    assert_eq!(host.app.delete(&format!("{SERVERS}/keeper")).await.status, 204);
    assert_eq!(host.app.get(VOLUMES).await.json()[0]["in_use"], false);
    assert_eq!(host.app.delete(&path).await.status, 204);
    assert_eq!(host.app.delete(&path).await.refusal(), "404 not_found");
    assert_eq!(host.app.get(VOLUMES).await.json(), json!([]));
    host.stop().await;
}
