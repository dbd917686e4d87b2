//! The two servers of the hosting guide, to the letter, and real servers as they are published.

use serde_json::{Value, json};

use super::{Host, SERVERS, on_each_provider};

on_each_provider!(
    on gvisor, podman;
    the_node_example_of_the_guide_is_hosted_as_the_guide_says,
    the_python_example_of_the_guide_is_hosted_as_the_guide_says,
    server_everything_from_npm_is_listed_and_called,
    server_filesystem_from_npm_keeps_its_files_in_a_volume,
    mcp_server_time_from_pypi_is_listed_and_called,
);

/// Every field of the guide's status object.
const GUIDE_FIELDS: [&str; 15] = [
    "workspace_id",
    "name",
    "image",
    "status",
    "provider",
    "stdio_bridge",
    "bridge_connected",
    "restart_policy",
    "restart_count",
    "last_crash",
    "uptime",
    "volumes",
    "resource_limits",
    "created_at",
    "last_used_at",
];

/// The request body of the guide, with the image and command of this example.
async fn register_as_in_the_guide(host: &Host, image: &str, cmd: Value) -> Value {
    let body = json!({
        "name": "my-mcp-server",
        "image": image,
        "cmd": cmd,
        "stdio_bridge": true,
        "restart_policy": "always",
        "environment": {"LOG_LEVEL": "info", "DATA_DIR": "/data"},
        "volumes": ["/data"],
        "resource_limits": {"cpu": "0.5", "memory": "512M", "disk": "1G"}
    });
    let answer = host.app.post(SERVERS, &body).await;
    assert_eq!(answer.status, 201, "{answer:?}; log: {}", host.app.log());
    let status = answer.json();
    for field in GUIDE_FIELDS {
        assert!(status.get(field).is_some(), "{field} is missing: {status:#}");
    }
    assert_eq!(
        [&status["name"], &status["status"], &status["provider"], &status["restart_policy"]],
        ["my-mcp-server", "ready", host.provider, "always"],
        "{status:#}"
    );
    assert_eq!(
        (&status["bridge_connected"], &status["restart_count"], &status["last_crash"]),
        (&json!(true), &json!(0), &Value::Null)
    );
    assert_eq!(status["volumes"], json!(["/data"]));
    for (limit, value) in [("cpu", "0.5"), ("memory", "512M"), ("disk", "1G")] {
        assert_eq!(status["resource_limits"][limit], value);
    }
    status
}

/// Nothing that the examples do not know brings them out of step.
async fn unknown_method_restart_and_delete(host: &Host) {
    let unknown = host.call("my-mcp-server", "resources/list", json!({})).await;
    let error = json!({"code": -32601, "message": "Method not found: resources/list"});
    assert_eq!((unknown.status, unknown.json()), (404, json!({"result": null, "error": error})));
    let status = host.status("my-mcp-server").await;
    assert!(status["last_used_at"].is_string(), "{status:#}");
    let restarted = host.post("my-mcp-server", "restart").await;
    assert_eq!(
        (&restarted["status"], &restarted["workspace_id"]),
        (&json!("ready"), &status["workspace_id"])
    );
    let listed = host.call("my-mcp-server", "tools/list", json!({})).await;
    assert_eq!((listed.status, &listed.json()["error"]), (200, &Value::Null));
    host.remove("my-mcp-server").await;
    assert_eq!(host.app.get(&format!("{SERVERS}/my-mcp-server")).await.refusal(), "404 not_found");
    assert_eq!(host.in_engines().await, Vec::<String>::new());
}

async fn the_node_example_of_the_guide_is_hosted_as_the_guide_says(host: Host) {
    register_as_in_the_guide(&host, "cofer-test/example-node", json!(["node", "server.js"])).await;
    let listed = host.call("my-mcp-server", "tools/list", json!({})).await;
    let tool = &listed.json()["result"]["tools"][0];
    assert_eq!(
        (&tool["name"], &tool["description"]),
        (&json!("echo"), &json!("Echoes the input text")),
        "{listed:?}"
    );
    assert_eq!(host.tool("my-mcp-server", "echo", json!({"text": "ciào"})).await, "ciào");
    let unknown = host.try_tool("my-mcp-server", "nope", json!({}), 30_000).await;
    let error = json!({"code": -32601, "message": "Unknown tool: nope"});
    assert_eq!((unknown.status, unknown.json()), (404, json!({"result": null, "error": error})));
    // Its own mistakes are its own: it throws, writes to stderr, and never answers.
    let broken = host
        .call_raw("my-mcp-server", r#"{"method":"tools/call","params":{"name":"echo"},"timeout_ms":300}"#);
    assert_eq!(broken.await.refusal(), "504 timeout");
    assert_eq!(host.tool("my-mcp-server", "echo", json!({"text": "on"})).await, "on");
    host.until("my-mcp-server", "its tools are counted", |status| status["tool_count"] == 1).await;
    unknown_method_restart_and_delete(&host).await;
    host.stop().await;
}

async fn the_python_example_of_the_guide_is_hosted_as_the_guide_says(host: Host) {
    register_as_in_the_guide(&host, "cofer-test/example-python", json!(["python3", "server.py"])).await;
    let listed = host.call("my-mcp-server", "tools/list", json!({})).await;
    assert_eq!((listed.status, listed.json()), (200, json!({"result": {"tools": []}, "error": null})));
    assert_eq!(host.tool("my-mcp-server", "anything", json!({})).await, "Called anything");
    host.until("my-mcp-server", "its tools are counted", |status| status["tool_count"] == 0).await;
    unknown_method_restart_and_delete(&host).await;
    host.stop().await;
}

/// What a real server says of itself, and how many tools it lists, are in its status.
async fn introduces_itself(host: &Host, name: &str) -> Vec<String> {
    let listed = host.call(name, "tools/list", json!({})).await;
    assert_eq!(listed.status, 200, "{listed:?}");
    let tools = listed.json()["result"]["tools"].as_array().unwrap().clone();
    let status =
        host.until(name, "its tools are counted", |status| status["tool_count"] == tools.len()).await;
    assert!(!tools.is_empty());
    assert!(status["server_info"]["name"].is_string(), "{status:#}");
    assert!(status["server_info"]["version"].is_string(), "{status:#}");
    assert!(status["protocol_version"].as_str().unwrap().starts_with("20"), "{status:#}");
    tools.iter().map(|tool| tool["name"].as_str().unwrap().to_owned()).collect()
}

async fn server_everything_from_npm_is_listed_and_called(host: Host) {
    host.hosted("everything", "cofer-test/node", json!({})).await;
    let tools = introduces_itself(&host, "everything").await;
    assert!(tools.iter().any(|tool| tool == "echo"), "{tools:?}");
    assert_eq!(host.tool("everything", "echo", json!({"message": "hi"})).await, "Echo: hi");
    let prompts = host.call("everything", "prompts/list", json!({})).await;
    assert_eq!(prompts.status, 200, "{prompts:?}");
    host.remove("everything").await;
    host.stop().await;
}

async fn server_filesystem_from_npm_keeps_its_files_in_a_volume(host: Host) {
    let asked = json!({"cmd": ["mcp-server-filesystem", "/data"], "volumes": ["/data"]});
    host.hosted("files", "cofer-test/node", asked).await;
    let tools = introduces_itself(&host, "files").await;
    assert!(tools.iter().any(|tool| tool == "write_file"), "{tools:?}");
    host.tool("files", "write_file", json!({"path": "/data/note.txt", "content": "kept"})).await;
    host.post("files", "restart").await;
    assert_eq!(host.tool("files", "read_text_file", json!({"path": "/data/note.txt"})).await, "kept");
    let outside = host.try_tool("files", "read_text_file", json!({"path": "/etc/passwd"}), 30_000).await;
    assert_eq!((outside.status, &outside.json()["result"]["isError"]), (200, &json!(true)), "{outside:?}");
    host.remove("files").await;
    assert_eq!(host.in_engines().await, Vec::<String>::new());
    host.stop().await;
}

async fn mcp_server_time_from_pypi_is_listed_and_called(host: Host) {
    host.hosted("time", "cofer-test/python", json!({})).await;
    let tools = introduces_itself(&host, "time").await;
    assert!(tools.iter().any(|tool| tool == "get_current_time"), "{tools:?}");
    let now = host.facts("time", "get_current_time", json!({"timezone": "UTC"})).await;
    assert_eq!(now["timezone"], "UTC", "{now:#}");
    let unknown =
        host.try_tool("time", "get_current_time", json!({"timezone": "Mars/Olympus"}), 30_000).await;
    assert_eq!((unknown.status, &unknown.json()["result"]["isError"]), (200, &json!(true)), "{unknown:?}");
    host.remove("time").await;
    host.stop().await;
}
