//! `/api/v1/projects/:project/mcp-servers` and `…/products`.

use serde_json::{Value, json};

use super::{SERVERS, discover, refusal_of, register, stdio};
use crate::serving;

#[tokio::test]
async fn an_external_server_from_registration_to_removal() {
    let app = serving().await;
    let made = register(&app, &stdio("time")).await;
    let expected = json!({"name": "time", "project": "default", "product_id": null, "description": "", "transport": "stdio",
        "config": {"command": "uvx", "args": ["mcp-server-time"], "env": {}, "cwd": null}, "enabled": true, "session": "auto",
        "status": "idle", "last_error": null, "circuit": {"state": "admitting", "failures": 0, "retry_at": null},
        "tool_count": null, "protocol_version": null});
    for (field, value) in expected.as_object().unwrap() {
        assert_eq!(made[field], *value, "{field}");
    }
    let id = made["id"].as_str().unwrap();
    for path in ["time", id] {
        assert_eq!(app.get(&format!("{SERVERS}/{path}")).await.json(), made);
    }
    register(&app, &stdio("ant")).await;
    let names = |list: Value| {
        list.as_array().unwrap().iter().map(|server| server["name"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(names(app.get(SERVERS).await.json()), ["time", "ant"]);

    let change = json!({"name": "clock", "description": "Tells it", "enabled": false, "session": "per_client", "config": {"args": []}});
    let changed = app.patch(&format!("{SERVERS}/time"), &change).await;
    assert_eq!((changed.status, &changed.json()["name"]), (200, &json!("clock")), "{changed:?}");
    assert_eq!(changed.json()["config"], json!({"command": "uvx", "args": [], "env": {}, "cwd": null}));
    assert_eq!((&changed.json()["id"], &changed.json()["enabled"]), (&made["id"], &json!(false)));
    assert_eq!(app.get(&format!("{SERVERS}/time")).await.refusal(), "404 not_found");
    assert_eq!(app.delete(&format!("{SERVERS}/clock")).await.status, 204);
    assert_eq!(app.delete(&format!("{SERVERS}/{id}")).await.refusal(), "404 not_found");
    assert_eq!(names(app.get(SERVERS).await.json()), ["ant"]);
    app.stop().await;
}

#[tokio::test]
async fn what_is_wrong_with_a_registration_is_named_and_nothing_is_kept() {
    let app = serving().await;
    let long = "x".repeat(200_000);
    let with = |name: &str, value: Value| {
        let mut body = stdio("x");
        body[name] = value;
        body
    };
    for (body, refusal) in [
        (json!({}), "422 validation_error name"),
        (with("name", json!("a b")), "422 validation_error name"),
        (with("name", json!("native")), "422 validation_error name"),
        (with("name", json!("../../etc")), "422 validation_error name"),
        (with("transport", json!("carrier-pigeon")), "422 validation_error transport"),
        (with("transport", json!("http")), "422 validation_error config.command"),
        (with("config", json!("x")), "422 validation_error config"),
        (with("config", json!([])), "422 validation_error config"),
        (with("config", json!({})), "422 validation_error config.command"),
        (with("config", json!({"command": "x", "shell": true})), "422 validation_error config.shell"),
        (with("config", json!({"command": "x", "args": [long]})), "422 validation_error config.args"),
        (with("colour", json!("red")), "422 validation_error colour"),
        (with("product_id", json!("x")), "422 validation_error product_id"),
        (with("session", json!("often")), "422 validation_error session"),
        (with("enabled", json!("yes")), "422 validation_error enabled"),
        (with("description", json!(long)), "422 validation_error description"),
    ] {
        assert_eq!(refusal_of(&app.post(SERVERS, &body).await), refusal, "{:.200}", body.to_string());
    }
    assert_eq!(app.get(SERVERS).await.json(), json!([]));
    register(&app, &stdio("x")).await;
    assert_eq!(refusal_of(&app.post(SERVERS, &stdio("x")).await), "409 conflict name");
    register(&app, &stdio("y")).await;
    let rename = app.patch(&format!("{SERVERS}/y"), &json!({"name": "x"})).await;
    assert_eq!(refusal_of(&rename), "409 conflict name");
    let wrong = app.patch(&format!("{SERVERS}/y"), &json!({"config": {"env": {"A": 7}}})).await;
    assert_eq!(refusal_of(&wrong), "422 validation_error config.env.A");
    let nowhere = app.post("/api/v1/projects/nope/mcp-servers", &stdio("x")).await;
    assert_eq!(nowhere.refusal(), "404 not_found");
    app.stop().await;
}

#[tokio::test]
async fn names_of_secrets_are_shown_as_written_and_passwords_never() {
    let app = crate::start().arg("--log=trace").serve().await;
    app.put("/api/v1/projects/default/secrets/TOKEN", &json!({"value": "resolved-hunter2"})).await;
    let config = json!({"url": "https://ada:literal-hunter2@host.example/mcp?team=${TEAM}",
        "headers": {"Authorization": "Bearer literal-hunter2", "X-Api-Key": "${TOKEN}", "X-Team": "blue"}});
    let made = register(&app, &json!({"name": "crm", "transport": "http", "config": config})).await;
    let shown = json!({"url": "https://ada:[masked]@host.example/mcp?team=${TEAM}",
        "headers": {"Authorization": "Bearer [masked]", "X-Api-Key": "${TOKEN}", "X-Team": "blue"}});
    assert_eq!(made["config"], shown);
    let path = format!("{SERVERS}/crm");
    // What was seen may be sent back, whole or in part.
    let changed = app.patch(&path, &json!({"config": shown, "description": "x"})).await;
    assert_eq!((changed.status, &changed.json()["config"]), (200, &shown), "{changed:?}");
    let elsewhere = json!({"config": {"url": "https://ada:[masked]@other.example/"}});
    assert_eq!(refusal_of(&app.patch(&path, &elsewhere).await), "422 validation_error config.url");
    let everything =
        [made.to_string(), changed.text, app.get(SERVERS).await.text, app.get(&path).await.text, app.log()];
    for text in everything {
        assert!(!text.contains("hunter2"), "{text}");
    }
    app.stop().await;
}

#[tokio::test]
async fn discovered_tools_are_shown_to_the_letter_and_can_be_switched_off() {
    let app = serving().await;
    register(&app, &stdio("time")).await;
    let schema = r#"{"type":"object","z":1,"a":12345678901234567890123,"x-new":{"k":[1e400]}}"#;
    let tool = format!(
        r#"{{"name":"get/time","title":"Time","inputSchema":{schema},"annotations":{{"readOnlyHint":true}},"_meta":{{}}}}"#
    );
    discover(&app, "time", &[("get/time", &tool), ("broken", "nonsense")]).await;
    let path = format!("{SERVERS}/time/tools");
    let listed = app.get(&path).await;
    assert!(listed.text.contains(&format!(r#""input_schema":{schema}"#)), "{}", listed.text);
    assert!(
        listed.text.contains(r#""name":"get/time","server":"time","enabled":true,"title":"Time""#),
        "{}",
        listed.text
    );
    assert_eq!(app.get(&format!("{SERVERS}/time")).await.json()["tool_count"], 2);
    let off = app.patch(&format!("{path}/get%2Ftime"), &json!({"enabled": false})).await;
    assert_eq!((off.status, off.text.contains(r#""enabled":false"#)), (200, true), "{off:?}");
    assert!(app.get(&path).await.text.contains(r#""name":"get/time","server":"time","enabled":false"#));
    assert_eq!(
        app.patch(&format!("{path}/nope"), &json!({"enabled": false})).await.refusal(),
        "404 not_found"
    );
    assert_eq!(
        refusal_of(&app.patch(&format!("{path}/broken"), &json!({"on": 1})).await),
        "422 validation_error on"
    );
    assert_eq!(app.get(&format!("{SERVERS}/nope/tools")).await.refusal(), "404 not_found");
    app.stop().await;
}

fn manifest(version: &str, servers: &Value) -> Value {
    json!({"name": "kit", "version": version, "agents": {"anything": true}, "mcp": {"servers": servers}})
}

#[tokio::test]
async fn a_product_brings_its_servers_updates_them_and_takes_them_away() {
    let app = serving().await;
    let products = "/api/v1/projects/default/products";
    let names = async || {
        let servers = app.get(SERVERS).await.json();
        servers
            .as_array()
            .unwrap()
            .iter()
            .map(|server| server["name"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    register(&app, &stdio("own")).await;
    let first = manifest(
        "1",
        &json!({"search": {"command": "npx", "args": ["s"], "env": {"K": "${K}"}, "colour": 1}, "feed": {"url": "https://x.example/sse"}}),
    );
    let installed = app.post(products, &first).await;
    assert_eq!(installed.status, 201, "{installed:?}");
    let installed = installed.json();
    assert_eq!(installed["servers"], json!(["search", "feed"]));
    assert!(installed["warnings"][0].as_str().unwrap().contains("colour"));
    assert_eq!(names().await, ["own", "search", "feed"]);
    assert_eq!(app.get(&format!("{SERVERS}/feed")).await.json()["product_id"], installed["id"]);

    let second =
        manifest("2", &json!([{"name": "search", "transport": "stdio", "command": "npx", "args": ["s2"]}]));
    assert_eq!(app.post(products, &second).await.json()["id"], installed["id"]);
    assert_eq!(names().await, ["own", "search"]);
    assert_eq!(app.get(&format!("{SERVERS}/search")).await.json()["config"]["args"], json!(["s2"]));
    let listed = app.get(products).await.json();
    assert_eq!((listed.as_array().unwrap().len(), &listed[0]["version"]), (1, &json!("2")));

    for (manifest, refusal) in [
        (manifest("3", &json!({"own": {"command": "x"}})), "409 conflict mcp.servers"),
        (
            manifest("3", &json!({"new": {"command": "x"}, "bad": {"command": "a b"}})),
            "422 validation_error mcp.servers.bad.command",
        ),
        (manifest("3", &json!([{"name": "n", "url": "ftp://x"}])), "422 validation_error mcp.servers[0].url"),
        (json!({"name": "kit"}), "422 validation_error mcp.servers"),
        (json!({"mcp": {"servers": {}}}), "422 validation_error name"),
    ] {
        assert_eq!(refusal_of(&app.post(products, &manifest).await), refusal, "{manifest}");
    }
    assert_eq!(names().await, ["own", "search"]);
    assert_eq!(app.delete(&format!("{products}/kit")).await.status, 204);
    assert_eq!(app.delete(&format!("{products}/kit")).await.refusal(), "404 not_found");
    assert_eq!(names().await, ["own"]);
    app.stop().await;
}

#[tokio::test]
async fn a_tenant_neither_sees_nor_touches_the_servers_of_another() {
    let app = serving().await;
    for project in ["mine", "theirs"] {
        app.post("/api/v1/projects", &json!({"name": project})).await;
        app.post(&format!("/api/v1/projects/{project}/mcp-servers"), &stdio("same")).await;
    }
    let token = json!({"name": "t", "scopes": ["admin:read", "admin:write"], "project": "mine"});
    let token = app.post("/api/v1/tokens", &token).await.json()["token"].as_str().unwrap().to_owned();
    let as_tenant = async |method: &str, path: &str| {
        let method = reqwest::Method::from_bytes(method.as_bytes()).unwrap();
        let body = (method != reqwest::Method::GET).then(|| stdio("x"));
        app.call(method, &format!("/api/v1/projects/{path}"), &token, body.as_ref()).await
    };
    assert_eq!(as_tenant("GET", "mine/mcp-servers").await.json().as_array().unwrap().len(), 1);
    let theirs = app.get("/api/v1/projects/theirs/mcp-servers/same").await.json()["id"].clone();
    let by_id = format!("mine/mcp-servers/{}", theirs.as_str().unwrap());
    for (method, path) in [
        ("GET", "theirs/mcp-servers"),
        ("POST", "theirs/mcp-servers"),
        ("GET", "theirs/mcp-servers/same"),
        ("DELETE", "theirs/mcp-servers/same"),
        ("GET", "theirs/mcp-servers/same/tools"),
        ("POST", "theirs/mcp-servers/same/refresh"),
        ("GET", "theirs/products"),
        ("GET", "theirs/tool-calls"),
        ("GET", by_id.as_str()),
        ("DELETE", by_id.as_str()),
    ] {
        assert_eq!(as_tenant(method, path).await.refusal(), "404 not_found", "{method} {path}");
    }
    app.stop().await;
}

#[tokio::test]
async fn a_name_is_used_once_by_hosted_and_external_servers_together() {
    let Some(host) = crate::hosting::Host::new("docker").await else { return };
    let app = &host.app;
    register(app, &stdio("elsewhere")).await;
    let hosted = host.register("elsewhere", crate::hosting::MISBEHAVING, json!({})).await;
    assert_eq!(refusal_of(&hosted), "409 conflict name");
    host.misbehaving("here", &[]).await;
    assert_eq!(refusal_of(&app.post(SERVERS, &stdio("here")).await), "409 conflict name");
    let seen = app.get(&format!("{SERVERS}/here")).await;
    assert_eq!(seen.refusal(), "404 not_found");
    assert!(seen.text.contains("/api/v1/mcp/hosted/"), "{seen:?}");
    assert_eq!(app.get(&format!("{SERVERS}/here/tools")).await.json(), json!([]));
    let listed = app.cofer(&["server", "ls"]).await;
    let names: Vec<_> =
        listed.succeeded().lines().skip(1).map(|line| line.split(' ').next().unwrap()).collect();
    assert_eq!(names, ["elsewhere", "here"]);
    for server in ["here", "elsewhere"] {
        app.cofer(&["server", "rm", server]).await.succeeded();
    }
    register(app, &stdio("here")).await;
    host.stop().await;
}
