//! Registrations that cannot be: each is refused with its field or its reason, and leaves nothing.

use serde_json::{Value, json};

use super::{Host, MISBEHAVING, SERVERS, on_each_provider};

on_each_provider!(
    what_cannot_be_started_is_refused_with_the_engines_reason_and_leaves_nothing,
    a_failed_registration_keeps_the_volumes_that_were_there_before,
);

/// No row, no container, no network, no volume.
async fn nothing_is_left(host: &Host, after: &Value) {
    assert_eq!(host.app.get(SERVERS).await.json(), json!([]), "after {after}");
    assert_eq!(host.in_engines().await, Vec::<String>::new(), "after {after}");
}

#[tokio::test]
async fn every_broken_registration_names_its_field() {
    let Some(host) = Host::new("docker").await else { return };
    let good = json!({"name": "bad", "image": MISBEHAVING});
    let long = "x".repeat(200_000);
    let broken = [
        (json!({"name": null}), "name"),
        (json!({"name": ""}), "name"),
        (json!({"name": "a b"}), "name"),
        (json!({"name": 7}), "name"),
        (json!({"name": "00000000-0000-0000-0000-000000000000"}), "name"),
        (json!({"image": null}), "image"),
        (json!({"image": ""}), "image"),
        (json!({"image": "-v/:/host"}), "image"),
        (json!({"image": "a b"}), "image"),
        (json!({"cmd": "sh -c x"}), "cmd"),
        (json!({"cmd": ["a\u{0}b"]}), "cmd"),
        (json!({"cmd": [long]}), "cmd"),
        (json!({"restart_policy": "sometimes"}), "restart_policy"),
        (json!({"environment": ["A=1"]}), "environment"),
        (json!({"environment": {"A=B": "1"}}), "environment"),
        (json!({"environment": {"A": 1}}), "environment.A"),
        (json!({"environment": {"A": "\u{0}"}}), "environment.A"),
        (json!({"volumes": ["data"]}), "volumes"),
        (json!({"volumes": ["/a/../../etc"]}), "volumes"),
        (json!({"volumes": ["/etc:/host"]}), "volumes"),
        (json!({"volumes": ["/"]}), "volumes"),
        (json!({"volumes": [7]}), "volumes[0]"),
        (json!({"resource_limits": {"cpu": "0"}}), "resource_limits.cpu"),
        (json!({"resource_limits": {"cpu": "-1"}}), "resource_limits.cpu"),
        (json!({"resource_limits": {"cpu": "many"}}), "resource_limits.cpu"),
        (json!({"resource_limits": {"memory": "1K"}}), "resource_limits.memory"),
        (json!({"resource_limits": {"memory": "512X"}}), "resource_limits.memory"),
        (json!({"resource_limits": {"memory": "99999999999999999999G"}}), "resource_limits.memory"),
        (json!({"resource_limits": {"disk": "-1G"}}), "resource_limits.disk"),
        (json!({"resource_limits": {"pids": 0}}), "resource_limits.pids"),
        (json!({"resource_limits": {"gpu": "1"}}), "resource_limits.gpu"),
        (json!({"provider": "vagrant"}), "provider"),
        (json!({"network": "host"}), "network"),
        (json!({"network": "none", "ports": [{"container_port": 80}]}), "network"),
        (json!({"ports": [{"container_port": 0}]}), "ports"),
        (json!({"ports": [{"container_port": 70_000}]}), "ports[0].container_port"),
        (json!({"ports": [{"container_port": 80, "host_ip": "0.0.0.0"}]}), "ports[0].host_ip"),
        (json!({"ports": [{"container_port": 80}, {"container_port": 80}]}), "ports"),
        (json!({"stdio_bridge": false}), "ports"),
        (json!({"stdio_bridge": "yes"}), "stdio_bridge"),
        (json!({"http_path": "mcp"}), "http_path"),
        (json!({"call_timeout_ms": 0}), "call_timeout_ms"),
        (json!({"call_timeout_ms": -1}), "call_timeout_ms"),
        (json!({"max_in_flight": 0}), "max_in_flight"),
        (json!({"health_interval_ms": 0}), "health_interval_ms"),
        (json!({"user": "a b"}), "user"),
        (json!({"workdir": "app"}), "workdir"),
        (json!({"privileged": true}), "privileged"),
    ];
    for (change, field) in broken {
        let mut body = good.clone();
        for (name, value) in change.as_object().unwrap() {
            match value {
                Value::Null => _ = body.as_object_mut().unwrap().remove(name),
                value => body[name] = value.clone(),
            }
        }
        let answer = host.app.post(SERVERS, &body).await;
        assert_eq!(answer.refusal(), "422 validation_error", "{change}: {answer:?}");
        assert_eq!(answer.json()["error"]["details"]["field"], field, "{change}: {answer:?}");
    }
    let nowhere =
        host.app.post(SERVERS, &json!({"name": "x", "image": MISBEHAVING, "project": "nope"})).await;
    assert_eq!(nowhere.refusal(), "404 not_found");
    nothing_is_left(&host, &json!("all of them")).await;
    host.stop().await;
}

async fn what_cannot_be_started_is_refused_with_the_engines_reason_and_leaves_nothing(host: Host) {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    for (image, more, said) in [
        ("cofer-test/no-such-image", json!({}), "cofer-test/no-such-image"),
        ("localhost:1/x/y:1", json!({}), "localhost:1/x/y:1"),
        ("cofer-test/busybox", json!({"cmd": ["/no/such/program"]}), "/no/such/program"),
        ("cofer-test/busybox", json!({"cmd": ["cat"], "user": "nobody-of-that-name"}), "nobody-of-that-name"),
        (
            "cofer-test/busybox",
            json!({"cmd": ["cat"], "ports": [{"container_port": 80, "host_port": port}]}),
            &port.to_string(),
        ),
    ] {
        let mut more = more;
        more["volumes"] = json!(["/data", "/more"]);
        let answer = host.register("bad", image, more.clone()).await;
        assert_eq!(answer.refusal(), "422 validation_error", "{image} {more}: {answer:?}");
        let blamed = &answer.json()["error"]["details"]["field"];
        assert_eq!(*blamed == "image", image != "cofer-test/busybox", "{image} {more}: {blamed}");
        let message = answer.json()["error"]["message"].as_str().unwrap().to_owned();
        assert!(message.contains(said), "{message}");
        nothing_is_left(&host, &more).await;
    }
    // The name is free again.
    host.misbehaving("bad", &[]).await;
    host.stop().await;
}

async fn a_failed_registration_keeps_the_volumes_that_were_there_before(host: Host) {
    host.hosted("keeper", MISBEHAVING, json!({"volumes": ["/data"]})).await;
    host.tool("keeper", "write_file", json!({"path": "/data/note", "text": "kept"})).await;
    assert_eq!(host.app.delete(&format!("{SERVERS}/keeper")).await.status, 204);
    let more = json!({"cmd": ["/no/such/program"], "volumes": ["/data", "/new"]});
    let answer = host.register("keeper", "cofer-test/busybox", more).await;
    assert_eq!(answer.refusal(), "422 validation_error", "{answer:?}");
    let volumes = host.app.get(super::VOLUMES).await.json();
    let paths: Vec<_> = volumes.as_array().unwrap().iter().map(|volume| volume["path"].clone()).collect();
    assert_eq!(paths, [json!("/data")], "{volumes:#}");
    host.hosted("keeper", MISBEHAVING, json!({"volumes": ["/data"]})).await;
    assert_eq!(host.facts("keeper", "read_file", json!({"path": "/data/note"})).await["text"], "kept");
    host.remove("keeper").await;
    host.stop().await;
}

#[tokio::test]
async fn a_name_is_had_once_however_many_ask_for_it_at_once() {
    let Some(host) = Host::new("docker").await else { return };
    let body = json!({"name": "one", "image": MISBEHAVING});
    let asked = (0..8).map(|_| host.app.post(SERVERS, &body));
    let answers = futures_util::future::join_all(asked).await;
    let mut statuses: Vec<_> = answers.iter().map(|answer| answer.status).collect();
    statuses.sort_unstable();
    assert_eq!(statuses, [201, 409, 409, 409, 409, 409, 409, 409]);
    let refused = host.app.post(SERVERS, &body).await;
    assert_eq!(refused.refusal(), "409 conflict");
    assert_eq!(refused.json()["error"]["details"]["field"], "name");
    assert_eq!(host.in_engines().await.len(), 1);
    // In another project it is another name.
    host.app.post("/api/v1/projects", &json!({"name": "other"})).await;
    let answer =
        host.app.post(SERVERS, &json!({"name": "one", "image": MISBEHAVING, "project": "other"})).await;
    assert_eq!(answer.status, 201, "{answer:?}");
    assert_eq!(host.app.delete("/api/v1/projects/other").await.status, 204);
    host.stop().await;
}
