//! The scenarios of the hosting specification, each under its own name, on each provider.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{Host, MISBEHAVING, SERVERS, on_each_provider};

on_each_provider!(
    register_stdio_based_mcp_server,
    register_http_based_mcp_server,
    register_with_environment_variables,
    call_mcp_method_via_http_bridge,
    mcp_server_returns_error_via_stdio,
    mcp_server_response_timeout,
    concurrent_mcp_calls_are_serialized,
    auto_start_on_emergent_boot,
    restart_after_crash,
    crash_loop_backoff,
    graceful_shutdown,
    manual_restart,
    health_status_for_running_server,
    detect_unresponsive_server,
    custom_resource_limits,
    persistent_volume_mount,
    data_survives_server_restart,
);

async fn register_stdio_based_mcp_server(host: Host) {
    let asked = json!({"stdio_bridge": true, "restart_policy": "always"});
    let status = host.hosted("langfuse-mcp", MISBEHAVING, asked).await;
    assert_eq!(status["status"], "ready", "{status:#}");
    assert_eq!(status["bridge_connected"], true);
    assert_eq!(
        (&status["provider"], &status["container_status"]),
        (&json!(host.provider), &json!("running"))
    );
    assert_eq!(status["restart_policy"], "always");
    let isolation = if host.provider == "gvisor" { "gvisor" } else { "container" };
    assert_eq!(status["isolation"], isolation);
    host.stop().await;
}

async fn register_http_based_mcp_server(host: Host) {
    let script = "echo '<h1>mcp</h1>' > /tmp/mcp && exec httpd -f -p 8080 -h /tmp";
    let asked =
        json!({"cmd": ["sh", "-c", script], "stdio_bridge": false, "ports": [{"container_port": 8080}]});
    let status = host.hosted("web", "cofer-test/busybox", asked).await;
    assert_eq!(
        (&status["status"], &status["bridge_connected"]),
        (&json!("ready"), &json!(false)),
        "{status:#}"
    );
    let url = status["endpoints"][0]["url"].as_str().unwrap();
    assert!(url.starts_with("http://127.0.0.1:") && url.ends_with("/mcp"), "{url}");
    // A connection that breaks is tried again, as HTTP clients do: busybox's server drops one now and then under load.
    let page = async || reqwest::get(url).await.ok()?.text().await.ok();
    cofer_testkit::until("the page", async || page().await.as_deref() == Some("<h1>mcp</h1>\n")).await;
    let call = host.call("web", "tools/list", json!({})).await;
    assert_eq!(call.refusal(), "409 conflict");
    host.stop().await;
}

async fn register_with_environment_variables(host: Host) {
    let secret = host
        .app
        .put("/api/v1/projects/default/secrets/DB_PASSWORD", &json!({"value": "hunter2hunter2"}))
        .await;
    assert_eq!(secret.status, 200, "{secret:?}");
    let environment = json!({"API_KEY": "plain", "DB_URL": "postgres://u:${DB_PASSWORD}@db/x"});
    let status = host
        .hosted("env", MISBEHAVING, json!({"environment": environment, "cmd": ["--stderr-line", "up"]}))
        .await;
    assert_eq!(status["environment"], json!(["API_KEY", "DB_URL"]));
    let seen = &host.facts("env", "env", json!({})).await["env"];
    assert_eq!(
        (&seen["API_KEY"], &seen["DB_URL"]),
        (&json!("plain"), &json!("postgres://u:hunter2hunter2@db/x"))
    );
    host.stop().await;
}

async fn call_mcp_method_via_http_bridge(host: Host) {
    host.misbehaving("bridge", &[]).await;
    let path = "/api/v1/mcp/servers/bridge/call";
    let params = json!({"name": "echo", "arguments": {"text": "get-traces"}});
    let answer = host.app.post(path, &json!({"method": "tools/call", "params": params})).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(answer.json()["error"], Value::Null);
    assert_eq!(answer.json()["result"]["content"][0]["text"], "get-traces");
    host.stop().await;
}

async fn mcp_server_returns_error_via_stdio(host: Host) {
    host.misbehaving("errors", &[]).await;
    for (code, status) in
        [(-32700, 400), (-32600, 400), (-32602, 400), (-32601, 404), (-32000, 502), (7, 502)]
    {
        let arguments = json!({"code": code, "message": "no such trace", "data": {"hint": [1]}});
        let answer =
            host.call("errors", "tools/call", json!({"name": "error", "arguments": arguments})).await;
        let expected = json!({"result": null, "error": {"code": code, "message": "no such trace", "data": {"hint": [1]}}});
        assert_eq!((answer.status, answer.json()), (status, expected));
    }
    let answer =
        host.call("errors", "tools/call", json!({"name": "tool_error", "arguments": {"text": "oh"}})).await;
    assert_eq!((answer.status, &answer.json()["result"]["isError"]), (200, &json!(true)));
    host.stop().await;
}

async fn mcp_server_response_timeout(host: Host) {
    let before = host.misbehaving("slow", &[]).await;
    let body = json!({"method": "tools/call", "params": {"name": "hang"}, "timeout_ms": 200});
    let began = Instant::now();
    let answer = host.app.post(&format!("{SERVERS}/slow/call"), &body).await;
    assert_eq!(answer.refusal(), "504 timeout");
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    assert_eq!(host.tool("slow", "echo", json!({"text": "still here"})).await, "still here");
    host.event("slow", "call_timed_out").await;
    let after = host.status("slow").await;
    assert_eq!((&after["restart_count"], &after["status"]), (&json!(0), &json!("ready")));
    assert_eq!(before["workspace_id"], after["workspace_id"]);
    host.stop().await;
}

async fn concurrent_mcp_calls_are_serialized(host: Host) {
    host.misbehaving("queue", &["--serial"]).await;
    let calls = (0..50).map(|n| {
        let body =
            json!({"method": "tools/call", "params": {"name": "echo", "arguments": {"text": n.to_string()}}});
        let request = host.app.request(reqwest::Method::POST, &format!("{SERVERS}/queue/call"));
        let request = request.bearer_auth(&host.app.token).json(&body);
        tokio::spawn(async move { request.send().await.unwrap().json::<Value>().await.unwrap() })
    });
    for (n, call) in calls.collect::<Vec<_>>().into_iter().enumerate() {
        assert_eq!(call.await.unwrap()["result"]["content"][0]["text"], n.to_string());
    }
    host.stop().await;
}

async fn auto_start_on_emergent_boot(host: Host) {
    for name in ["one", "two", "three"] {
        host.misbehaving(name, &[]).await;
    }
    host.post("three", "stop").await;
    let provider = host.provider;
    let host = Host { app: host.stop().await.serve().await, provider };
    for name in ["one", "two"] {
        host.until_status(name, "ready").await;
        assert_eq!(host.tool(name, "echo", json!({"text": "up"})).await, "up");
    }
    assert_eq!(host.status("three").await["status"], "stopped");
    host.stop().await;
}

async fn restart_after_crash(host: Host) {
    host.misbehaving("fragile", &["--stderr-line", "last words", "--exit-code", "3"]).await;
    let began = Instant::now();
    let answer =
        host.call("fragile", "tools/call", json!({"name": "crash", "arguments": {"exit_code": 3}})).await;
    assert_eq!(answer.refusal(), "502 upstream_error");
    assert_eq!(answer.json()["error"]["details"]["may_have_executed"], true);
    let status =
        host.until("fragile", "ready again", |s| s["status"] == "ready" && s["restart_count"] == 1).await;
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    assert_eq!(
        (&status["last_exit"]["code"], &status["last_exit"]["oom_killed"]),
        (&json!(3), &json!(false))
    );
    assert!(status["last_crash"].is_string());
    assert_eq!(host.tool("fragile", "echo", json!({"text": "back"})).await, "back");
    let crash = host.event("fragile", "crashed").await;
    assert_eq!(crash["details"]["code"], 3, "{crash:#}");
    assert!(crash["details"]["stderr_tail"].as_str().unwrap().contains("last words"), "{crash:#}");
    host.stop().await;
}

async fn crash_loop_backoff(host: Host) {
    let answer = host.register("looping", MISBEHAVING, json!({"cmd": ["--exit-at-start", "1"]})).await;
    assert_eq!(answer.status, 201, "{answer:?}");
    let status = host.until("looping", "in a crash loop", |s| s["crash_loop"]["active"] == true).await;
    assert_eq!((&status["status"], &status["crash_loop"]["step"]), (&json!("restarting"), &json!(1)));
    assert!(status["crash_loop"]["next_restart_at"].is_string(), "{status:#}");
    host.event("looping", "crash_loop").await;
    let crashes = host.events("looping").await.iter().filter(|event| event["kind"] == "crashed").count();
    assert_eq!(crashes, 3, "one crash counts once");
    let call = host.call("looping", "tools/list", json!({})).await;
    assert_eq!(call.refusal(), "503 unavailable");
    assert!(call.headers.contains_key("retry-after"));
    host.stop().await;
}

async fn graceful_shutdown(host: Host) {
    host.misbehaving("polite", &["--sigterm-delay-ms", "300"]).await;
    host.misbehaving("stubborn", &["--ignore-sigterm"]).await;
    let began = Instant::now();
    host.stop().await;
    // The grace of these tests is five seconds; both end within it and the margin of a busy machine.
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
}

async fn manual_restart(host: Host) {
    host.misbehaving("again", &[]).await;
    host.begin("again", "crash", &json!({"exit_code": 1})).await.unwrap();
    host.until("again", "restarted", |s| s["status"] == "ready" && s["restart_count"] == 1).await;
    let status = host.post("again", "restart").await;
    assert_eq!((&status["status"], &status["restart_count"]), (&json!("ready"), &json!(0)), "{status:#}");
    assert_eq!(host.tool("again", "echo", json!({"text": "new"})).await, "new");
    host.stop().await;
}

async fn health_status_for_running_server(host: Host) {
    host.misbehaving("healthy", &[]).await;
    let status = host.until("healthy", "measured", |s| s["usage"]["memory_bytes"].as_u64() > Some(0)).await;
    assert_eq!(status["container_status"], "running");
    assert!(status["uptime"].as_str().unwrap().ends_with('s'), "{status:#}");
    assert_eq!((&status["restart_count"], &status["last_crash"]), (&json!(0), &Value::Null));
    assert_eq!(status["usage"]["memory_limit_bytes"], 512 << 20);
    assert!(status["usage"]["pids"].as_u64().unwrap() >= 1, "{status:#}");
    assert!(status["usage"]["cpu_percent"].is_number(), "{status:#}");
    let listed = host.app.get(SERVERS).await.json();
    assert_eq!(listed[0]["name"], "healthy");
    assert_eq!(
        listed[0]["resource_limits"],
        json!({"cpu": "0.5", "memory": "512M", "disk": "1G", "pids": 256})
    );
    host.stop().await;
}

async fn detect_unresponsive_server(host: Host) {
    let asked =
        json!({"cmd": ["--mute-after-calls", "1"], "health_interval_ms": 200, "call_timeout_ms": 300});
    host.hosted("mute", MISBEHAVING, asked).await;
    assert_eq!(host.tool("mute", "echo", json!({"text": "once"})).await, "once");
    let status = host.until_status("mute", "unresponsive").await;
    assert_eq!((&status["container_status"], &status["restart_count"]), (&json!("running"), &json!(0)));
    host.event("mute", "unresponsive").await;
    host.stop().await;
}

async fn custom_resource_limits(host: Host) {
    let asked = json!({"resource_limits": {"cpu": "1", "memory": "64M"}, "cmd": []});
    let status = host.hosted("limited", MISBEHAVING, asked).await;
    assert_eq!(status["resource_limits"], json!({"cpu": "1", "memory": "64M", "disk": "1G", "pids": 256}));
    host.begin("limited", "eat_memory", &json!({"bytes": 256 << 20})).await.unwrap();
    let status = host.until("limited", "killed", |s| s["last_exit"]["oom_killed"] == true).await;
    assert_eq!(status["last_exit"]["signal"], 9, "{status:#}");
    host.until("limited", "ready again", |s| s["status"] == "ready").await;
    host.stop().await;
}

async fn persistent_volume_mount(host: Host) {
    let asked = json!({"volumes": ["/data"]});
    host.hosted("keeper", MISBEHAVING, asked.clone()).await;
    host.tool("keeper", "write_file", json!({"path": "/data/note", "text": "kept"})).await;
    host.post("keeper", "restart").await;
    assert_eq!(host.facts("keeper", "read_file", json!({"path": "/data/note"})).await["text"], "kept");
    let answer = host.app.delete(&format!("{SERVERS}/keeper")).await;
    assert_eq!(answer.status, 204, "{answer:?}");
    let volumes = host.app.get("/api/v1/mcp/volumes").await.json();
    let volume = &volumes.as_array().unwrap()[0];
    assert_eq!(
        (&volume["server"], &volume["path"], &volume["in_use"]),
        (&json!("keeper"), &json!("/data"), &json!(false))
    );
    assert!(volume["name"].as_str().unwrap().starts_with("cofer-keeper-data-"), "{volume:#}");
    host.hosted("keeper", MISBEHAVING, asked).await;
    assert_eq!(host.facts("keeper", "read_file", json!({"path": "/data/note"})).await["text"], "kept");
    let name = volume["name"].as_str().unwrap();
    let refused = host.app.delete(&format!("/api/v1/mcp/volumes/{name}")).await;
    assert_eq!(refused.refusal(), "409 conflict");
    host.remove("keeper").await;
    assert_eq!(host.app.get("/api/v1/mcp/volumes").await.json(), json!([]));
    host.stop().await;
}

async fn data_survives_server_restart(host: Host) {
    host.hosted("survivor", MISBEHAVING, json!({"volumes": ["/data"]})).await;
    host.tool("survivor", "write_file", json!({"path": "/data/note", "text": "before the crash"})).await;
    host.begin("survivor", "crash", &json!({"exit_code": 1})).await.unwrap();
    host.until("survivor", "restarted", |s| s["status"] == "ready" && s["restart_count"] == 1).await;
    let note = host.facts("survivor", "read_file", json!({"path": "/data/note"})).await;
    assert_eq!(note["text"], "before the crash");
    host.remove("survivor").await;
    host.stop().await;
}
