//! Providers and the settings of hosting: who is asked, who is refused, and what an operator sees.

use cofer_testkit::engines;
use serde_json::{Value, json};

use super::{Host, MISBEHAVING, SERVERS, VOLUMES};
use crate::start;

#[tokio::test]
async fn each_provider_tells_how_it_does() {
    let Some(host) = Host::new("docker").await else { return };
    let providers = host.app.get("/api/v1/providers").await.json();
    let names: Vec<_> =
        providers.as_array().unwrap().iter().map(|provider| provider["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["gvisor", "firecracker", "e2b", "docker", "podman", "kubernetes"]);
    for provider in providers.as_array().unwrap() {
        let there = ["gvisor", "docker", "podman"].contains(&provider["name"].as_str().unwrap());
        assert_eq!(provider["available"], there, "{provider:#}");
        assert_eq!(
            (provider["reason"].is_null(), provider["capabilities"].is_object()),
            (there, there),
            "{provider:#}"
        );
        assert_eq!(provider["isolation"].is_string(), there, "{provider:#}");
    }
    for provider in ["firecracker", "e2b", "kubernetes"] {
        let answer =
            host.app.post(SERVERS, &json!({"name": "x", "image": MISBEHAVING, "provider": provider})).await;
        assert_eq!(answer.refusal(), "503 unavailable", "{answer:?}");
        assert!(answer.text.contains(provider) && answer.text.contains("later version"), "{answer:?}");
    }
    assert_eq!(host.app.get(SERVERS).await.json(), json!([]));
    host.stop().await;
}

#[tokio::test]
async fn without_any_engine_the_error_lists_each_provider_with_its_reason() {
    let app = start()
        .variable("COFER_DOCKER_HOST", "unix:///nowhere/docker.sock")
        .variable("COFER_PODMAN_HOST", "unix:///nowhere/podman.sock")
        .serve()
        .await;
    let answer = app.post(SERVERS, &json!({"name": "x", "image": "y", "volumes": ["/data"]})).await;
    assert_eq!(answer.refusal(), "503 unavailable");
    let message = answer.json()["error"]["message"].as_str().unwrap().to_owned();
    for provider in ["gvisor: ", "firecracker: ", "e2b: ", "docker: ", "podman: "] {
        assert!(message.contains(provider), "{message}");
    }
    assert!(message.contains("/nowhere/docker.sock"), "{message}");
    for provider in ["docker", "podman", "gvisor"] {
        let answer = app.post(SERVERS, &json!({"name": "x", "image": "y", "provider": provider})).await;
        assert_eq!(answer.refusal(), "503 unavailable", "{provider}");
    }
    assert_eq!(app.get(SERVERS).await.json(), json!([]));
    assert_eq!(app.get(VOLUMES).await.refusal(), "503 unavailable");
    app.stop().await;
}

#[tokio::test]
async fn the_default_provider_is_tried_first_and_the_others_after_it() {
    let Some(_docker) = engines::docker() else { return };
    for (default, expected) in
        [("podman", "podman"), ("docker", "docker"), ("firecracker", "gvisor"), ("kubernetes", "gvisor")]
    {
        let app = start().with_engines().variable("WORKSPACE_DEFAULT_PROVIDER", default).serve().await;
        let status = app.post(SERVERS, &json!({"name": "x", "image": MISBEHAVING})).await.json();
        assert_eq!(
            (&status["provider"], &status["status"]),
            (&json!(expected), &json!("ready")),
            "{default}: {status:#}"
        );
        app.stop().await;
    }
    let wrong = start().variable("WORKSPACE_DEFAULT_PROVIDER", "vagrant").try_serve().await.unwrap_err();
    assert!(wrong.failed_with(2).contains("default_provider"), "{wrong:?}");
}

#[tokio::test]
async fn where_a_sandbox_is_required_a_plain_container_is_refused() {
    let Some(host) = Host::started("docker", |start| start.variable("COFER_REQUIRE_SANDBOX", "true")).await
    else {
        return;
    };
    for provider in ["docker", "podman"] {
        let answer =
            host.app.post(SERVERS, &json!({"name": "x", "image": MISBEHAVING, "provider": provider})).await;
        assert_eq!(answer.refusal(), "422 validation_error", "{answer:?}");
        assert!(answer.text.contains("require_sandbox"), "{answer:?}");
    }
    // The default of this Cofer is a plain container, too: the next one that will do is taken.
    let status = host.app.post(SERVERS, &json!({"name": "x", "image": MISBEHAVING})).await.json();
    assert_eq!(
        (&status["provider"], &status["isolation"]),
        (&json!("gvisor"), &json!("gvisor")),
        "{status:#}"
    );
    host.stop().await;
}

#[tokio::test]
async fn a_plain_container_that_nobody_asked_for_comes_with_a_warning() {
    let Some(host) = Host::new("docker").await else { return };
    let status = host.app.post(SERVERS, &json!({"name": "plain", "image": MISBEHAVING})).await.json();
    assert_eq!(
        (&status["provider"], &status["isolation"]),
        (&json!("docker"), &json!("container")),
        "{status:#}"
    );
    let warned = |event: &Value| event["message"].as_str().unwrap().contains("plain container");
    cofer_testkit::until("a warning", async || host.events("plain").await.iter().any(warned)).await;
    host.misbehaving("asked", &[]).await;
    assert!(!host.events("asked").await.iter().any(warned));
    host.stop().await;
}

#[tokio::test]
async fn hosting_that_is_switched_off_says_so_everywhere() {
    let app = start().variable("ENABLE_AGENT_WORKSPACES", "false").serve().await;
    for path in
        [SERVERS, "/api/v1/mcp/servers", "/api/v1/mcp/servers/x", "/api/v1/mcp/hosted/x/logs", VOLUMES]
    {
        let answer = app.get(path).await;
        assert_eq!(answer.refusal(), "503 unavailable", "{path}");
        assert!(answer.text.contains("ENABLE_AGENT_WORKSPACES"), "{answer:?}");
    }
    for path in ["", "/x/call", "/x/restart", "/x/stop", "/x/start"] {
        assert_eq!(
            app.post(&format!("{SERVERS}{path}"), &json!({})).await.refusal(),
            "503 unavailable",
            "{path}"
        );
    }
    assert_eq!(app.get("/readyz").await.status, 200);
    let listed = app.cofer(&["server", "ls"]).await;
    assert_eq!(listed.code, Some(0), "servers that live elsewhere are there all the same");
    assert!(listed.stderr.contains("ENABLE_AGENT_WORKSPACES"), "{listed:?}");
    app.stop().await;
}

#[tokio::test]
async fn servers_that_may_reach_out_join_the_network_that_is_named() {
    let Some(docker) = engines::docker() else { return };
    let client = docker.client().await.unwrap();
    let network = format!("cofer-test-{}", std::process::id());
    client
        .create_network(bollard::models::NetworkCreateRequest { name: network.clone(), ..Default::default() })
        .await
        .unwrap();
    let host =
        Host::started("docker", |start| start.variable("WORKSPACE_NETWORK_NAME", &network)).await.unwrap();
    host.misbehaving("inside", &[]).await;
    host.hosted("outside", MISBEHAVING, json!({"network": "none"})).await;
    let found = client.inspect_network(&network, None).await.unwrap();
    let names: Vec<_> =
        found.containers.unwrap_or_default().into_values().filter_map(|one| one.name).collect();
    host.stop().await;
    client.remove_network(&network).await.unwrap();
    assert!(names.len() == 1 && names[0].contains("inside"), "{names:?}");
    let host =
        Host::started("docker", |start| start.variable("WORKSPACE_NETWORK_NAME", "cofer-test-nowhere"))
            .await
            .unwrap();
    let answer = host.register("lost", MISBEHAVING, json!({})).await;
    assert_eq!(answer.refusal(), "422 validation_error", "{answer:?}");
    assert!(answer.text.contains("cofer-test-nowhere"), "{answer:?}");
    host.stop().await;
}

#[tokio::test]
async fn figures_of_a_server_are_there_while_it_is() {
    let Some(host) = Host::new("docker").await else { return };
    host.misbehaving("counted", &[]).await;
    host.works("counted").await;
    let labels = r#"{project="default",server="counted"}"#;
    cofer_testkit::until("all figures", async || {
        let page = host.app.get("/metrics").await.text;
        ["up", "restarts", "crash_loop", "cpu_percent", "memory_bytes", "pids"]
            .iter()
            .all(|figure| page.contains(&format!("cofer_hosted_{figure}{labels} ")))
    })
    .await;
    let page = host.app.get("/metrics").await.text;
    assert!(page.contains(&format!("cofer_hosted_up{labels} 1")), "{page}");
    assert!(page.contains(r#"cofer_hosted_calls_total{outcome="result"} 1"#), "{page}");
    host.post("counted", "stop").await;
    let page = host.app.get("/metrics").await.text;
    assert!(page.contains(&format!("cofer_hosted_up{labels} 0")), "{page}");
    assert!(!page.contains("cofer_hosted_memory_bytes{"), "{page}");
    host.remove("counted").await;
    let page = host.app.get("/metrics").await.text;
    assert!(!page.contains("counted"), "{page}");
    host.stop().await;
}
