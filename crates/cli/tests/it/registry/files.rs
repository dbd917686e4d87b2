//! `cofer import` and `cofer apply`.

use cofer_testkit::app::App;
use serde_json::{Value, json};

use super::{SERVERS, register, stdio};
use crate::serving;

/// A file with this text, to be named on a command line.
fn file(app: &App, name: &str, text: &str) -> String {
    let path = app.data_dir().join(name);
    std::fs::write(&path, text).unwrap();
    path.display().to_string()
}

async fn names(app: &App) -> Vec<String> {
    let servers = app.get(SERVERS).await.json();
    servers.as_array().unwrap().iter().map(|server| server["name"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn a_desktop_configuration_is_imported_once_and_changes_only_when_told() {
    let app = serving().await;
    let desktop = |args: &str| {
        format!(
            r#"{{"mcpServers": {{"time": {{"command": "uvx", "args": ["{args}"]}},
        "crm": {{"url": "https://crm.example.com/mcp", "headers": {{"Authorization": "Bearer hunter2"}}}}}}}}"#
        )
    };
    let first = file(&app, "desktop.json", &desktop("a"));
    let dry = app.cofer(&["import", &first, "--dry-run"]).await;
    assert_eq!(
        dry.succeeded(),
        "+ server time (stdio uvx a)\n+ server crm (http https://crm.example.com/mcp)\n2 changes; nothing was done"
    );
    assert!(
        dry.stderr.contains("the value of `Authorization` is written out") && !dry.stderr.contains("hunter2"),
        "{dry:?}"
    );
    assert!(names(&app).await.is_empty());

    assert!(app.cofer(&["import", &first]).await.succeeded().ends_with("done: 2 changes"));
    assert_eq!(names(&app).await, ["time", "crm"]);
    assert_eq!(app.cofer(&["import", &first]).await.succeeded(), "nothing to do");

    let second = file(&app, "desktop.json", &desktop("b"));
    let kept = app.cofer(&["import", &second]).await;
    assert!(kept.failed_with(4).contains("not as in the file: time; `--replace` changes them"), "{kept:?}");
    assert_eq!(app.get(&format!("{SERVERS}/time")).await.json()["config"]["args"], json!(["a"]));
    let replaced = app.cofer(&["import", &second, "--replace"]).await;
    assert_eq!(replaced.succeeded(), "~ server time: config.args\ndone: 1 change");
    assert_eq!(app.get(&format!("{SERVERS}/time")).await.json()["config"]["args"], json!(["b"]));
    app.stop().await;
}

#[tokio::test]
async fn vs_code_s_questions_become_secrets_to_set() {
    let app = serving().await;
    app.put("/api/v1/projects/default/secrets/ORG", &json!({"value": "x"})).await;
    let mcp = file(
        &app,
        "mcp.json",
        r#"{
        // asked for at the first start
        "inputs": [{"type": "promptString", "id": "api-key", "description": "The key from the portal"},],
        "servers": {"web": {"type": "http", "url": "https://x.example/mcp", "headers": {"X-Key": "${input:api-key}", "X-Org": "${env:ORG}"},},},
    }"#,
    );
    let ran = app.cofer(&["import", &mcp]).await;
    assert_eq!(ran.succeeded(), "+ server web (http https://x.example/mcp)\ndone: 1 change");
    assert_eq!(
        ran.stderr.trim(),
        "secret api_key (The key from the portal) is not set; `cofer secret set api_key --project default` sets it"
    );
    let made = app.get(&format!("{SERVERS}/web")).await.json();
    assert_eq!(made["config"]["headers"], json!({"X-Key": "${api_key}", "X-Org": "${ORG}"}));
    app.stop().await;
}

#[tokio::test]
async fn a_manifest_is_imported_as_a_product_and_a_server_json_as_a_server() {
    let app = serving().await;
    let manifest = r#"{"name": "kit", "version": "1", "mcp": {"servers": {"search": {"command": "npx", "args": ["s"]}}}}"#;
    let manifest = file(&app, "manifest.json", manifest);
    assert_eq!(app.cofer(&["import", &manifest]).await.succeeded(), "+ product kit (search)\ndone: 1 change");
    assert_eq!(app.cofer(&["import", &manifest]).await.succeeded(), "nothing to do");
    assert_eq!(app.get("/api/v1/projects/default/products").await.json()[0]["name"], "kit");
    let server = r#"{"name": "io.github.ada/weather", "description": "The weather", "packages": [{"registryType": "pypi",
        "identifier": "weather", "version": "1.0", "environmentVariables": [{"name": "KEY", "isRequired": true}]}]}"#;
    let server = file(&app, "server.json", server);
    let ran = app
        .cofer_with_input(&["import", "-", "--json"], &std::fs::read_to_string(server).unwrap())
        .await
        .json();
    assert_eq!((&ran["changes"][0]["name"], &ran["missing_secrets"]), (&json!("weather"), &json!(["KEY"])));
    let made = app.get(&format!("{SERVERS}/weather")).await.json();
    assert_eq!(
        (&made["config"]["command"], &made["config"]["args"]),
        (&json!("uvx"), &json!(["weather@1.0"]))
    );
    app.stop().await;
}

#[tokio::test]
async fn a_file_is_applied_as_often_as_one_likes() {
    let app = serving().await;
    register(&app, &stdio("by-hand")).await;
    let first = file(
        &app,
        "cofer.toml",
        r#"
        [project]
        namespacing = "conflict"
        [servers.time]
        command = "uvx"
        args = ["mcp-server-time"]
        [servers.crm]
        url = "https://crm.example.com/mcp"
        headers = { Authorization = "Bearer ${CRM_TOKEN}" }
        enabled = false
        [[products]]
        name = "kit"
        version = "1"
        mcp.servers.search = { command = "npx", args = ["s"] }
    "#,
    );
    let dry = app.cofer(&["apply", "-f", &first, "--dry-run"]).await;
    assert_eq!(
        dry.succeeded(),
        "~ project default: namespacing\n+ server crm (http https://crm.example.com/mcp)\n\
        + server time (stdio uvx mcp-server-time)\n+ product kit (search)\n4 changes; nothing was done"
    );
    assert_eq!(names(&app).await, ["by-hand"]);
    app.cofer(&["apply", "-f", &first]).await.succeeded();
    assert_eq!(names(&app).await, ["by-hand", "crm", "time", "search"]);
    assert_eq!(app.get("/api/v1/projects/default").await.json()["namespacing"], "conflict");
    for _ in 0..2 {
        assert_eq!(app.cofer(&["apply", "-f", &first]).await.succeeded(), "nothing to do");
    }
    let second = file(
        &app,
        "cofer.json",
        r#"{"servers": {"time": {"command": "uvx", "args": ["mcp-server-time", "-v"], "session": "shared"}},
        "products": [{"name": "kit", "version": "2", "mcp": {"servers": {"find": {"command": "npx"}}}}]}"#,
    );
    let changed = app.cofer(&["apply", "--file", &second]).await;
    assert_eq!(
        changed.succeeded(),
        "~ server time: config.args, session\n~ product kit: version, find, search\ndone: 2 changes"
    );
    assert_eq!(names(&app).await, ["by-hand", "crm", "time", "find"]);
    let pruned = app.cofer(&["apply", "-f", &second, "--prune", "--json"]).await.json();
    let removed: Vec<_> = pruned["changes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|change| (change["action"].clone(), change["name"].clone()))
        .collect();
    assert_eq!(removed, [(json!("remove"), json!("by-hand")), (json!("remove"), json!("crm"))]);
    assert_eq!(app.cofer(&["apply", "-f", &second, "--prune"]).await.succeeded(), "nothing to do");
    app.stop().await;
}

#[tokio::test]
async fn files_that_nobody_should_have_written_change_nothing() {
    let app = serving().await;
    app.post(
        "/api/v1/projects/default/products",
        &json!({"name": "kit", "mcp": {"servers": {"owned": {"command": "x"}}}}),
    )
    .await;
    let huge =
        format!(r#"{{"mcpServers": {{"a": {{"command": "x", "args": ["{}"]}}}}}}"#, "x".repeat(5 << 20));
    let deep = r#"{"a":"#.repeat(200_000);
    let long =
        format!(r#"{{"mcpServers": {{"a": {{"command": "x", "args": ["{}"]}}}}}}"#, "x".repeat(200_000));
    for (text, code, said) in [
        ("", 2, "none of the files"),
        ("{", 2, "not valid JSON"),
        ("[]", 2, "neither JSON nor TOML"),
        ("\u{0}\u{1}", 2, "neither JSON nor TOML"),
        (huge.as_str(), 2, "larger than"),
        (deep.as_str(), 2, "recursion limit"),
        (long.as_str(), 2, "arguments are at most"),
        (r#"{"mcpServers": {"a": {"command": "x"}, "a": {"command": "y"}}}"#, 2, "`a` occurs twice"),
        (r#"{"mcpServers": {"a": {"command": "x; rm -rf /"}}}"#, 2, "a command is one program"),
        (r#"{"mcpServers": {"a": {"url": "file:///etc/passwd"}}}"#, 2, "http:// or https://"),
        (
            r#"{"mcpServers": {"a": {"url": "http://h", "headers": {"A": "1\r\nHost: evil"}}}}"#,
            2,
            "no line ends",
        ),
        (r#"{"mcpServers": {"owned": {"command": "x"}}}"#, 4, "belongs to a product"),
        (r#"{"mcpServers": {"a": {}}}"#, 2, "at `mcpServers.a.command`"),
    ] {
        let path = file(&app, "bad.json", text);
        let ran = app.cofer(&["import", &path]).await;
        let error = ran.failed_with(code);
        assert!(error.contains(said), "{text:.100}: {error:.500}");
    }
    assert_eq!(names(&app).await, ["owned"]);
    assert!(app.cofer(&["import", "/no/such/file"]).await.failed_with(3).contains("/no/such/file"));
    assert!(app.cofer(&["apply", "-f", "/"]).await.failed_with(2).contains("cannot be read"));
    let unknown = file(&app, "cofer.toml", "[server.time]\ncommand = 'uvx'");
    assert!(
        app.cofer(&["apply", "-f", &unknown]).await.failed_with(2).contains("`server` is not known here")
    );
    let colours = file(
        &app,
        "esc.json",
        &json!({"mcpServers": {"a\u{1b}[31m": {"command": "x", "args": ["\u{1b}[2J"], "\u{1b}]0;x": 1}}})
            .to_string(),
    );
    let ran = app.cofer(&["import", &colours, "--dry-run"]).await;
    assert!(
        ran.code == Some(0) && !ran.stdout.contains('\u{1b}') && !ran.stderr.contains('\u{1b}'),
        "{ran:?}"
    );
    app.stop().await;
}

#[tokio::test]
async fn of_a_file_that_breaks_off_half_way_the_rest_can_be_applied_again() {
    let app = serving().await;
    let text = |second: &str| {
        format!("[servers.a]\ncommand = 'x'\n[servers.b]\ncommand = '{second}'\n[servers.c]\ncommand = 'x'\n")
    };
    let bad = file(&app, "cofer.toml", &text("not one program"));
    let ran = app.cofer(&["apply", "-f", &bad]).await;
    assert!(ran.failed_with(2).contains("server b: a command is one program"), "{ran:?}");
    assert_eq!(names(&app).await, ["a"]);
    let good = file(&app, "cofer.toml", &text("y"));
    assert_eq!(
        app.cofer(&["apply", "-f", &good]).await.succeeded(),
        "+ server b (stdio y)\n+ server c (stdio x)\ndone: 2 changes"
    );
    let told: Value = app.cofer(&["apply", "-f", &good, "--json"]).await.json();
    assert_eq!(told["changes"], json!([]));
    app.stop().await;
}
