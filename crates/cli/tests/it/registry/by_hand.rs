//! `cofer server` for servers that live elsewhere.

use serde_json::json;

use super::SERVERS;
use crate::serving;

#[tokio::test]
async fn a_server_that_lives_elsewhere_from_add_to_rm() {
    let app = serving().await;
    let run = async |args: &[&str]| app.cofer(&[&["server"], args].concat()).await;
    let added = run(&[
        "add",
        "time",
        "--env",
        "TZ=${ZONE}",
        "--cwd",
        "/srv",
        "--description",
        "Tells it",
        "--",
        "uvx",
        "mcp-server-time",
        "--verbose",
    ])
    .await;
    assert_eq!(added.succeeded(), "server time is registered (stdio); it is connected to at its first use");
    assert!(
        added.stderr.contains("secret ZONE is not set; `cofer secret set ZONE --project default` sets it"),
        "{added:?}"
    );
    let made = app.get(&format!("{SERVERS}/time")).await.json();
    let config = json!({"command": "uvx", "args": ["mcp-server-time", "--verbose"], "env": {"TZ": "${ZONE}"}, "cwd": "/srv"});
    assert_eq!((&made["config"], &made["description"]), (&config, &json!("Tells it")));

    run(&[
        "add",
        "crm",
        "--url",
        "https://crm.example.com/mcp",
        "--header",
        "Authorization: Bearer ${CRM}",
        "--session",
        "per_client",
    ])
    .await
    .succeeded();
    run(&["add", "old", "--url", "https://old.example.com/sse"]).await.succeeded();
    run(&["add", "odd", "--url", "https://odd.example.com/", "--transport", "sse"]).await.succeeded();
    let transport =
        async |name: &str| app.get(&format!("{SERVERS}/{name}")).await.json()["transport"].clone();
    assert_eq!(
        (transport("crm").await, transport("old").await, transport("odd").await),
        (json!("http"), json!("sse"), json!("sse"))
    );

    let listed = run(&["ls"]).await;
    assert!(
        listed.stdout.contains("crm   idle") && listed.stdout.contains("https://crm.example.com/mcp"),
        "{listed:?}"
    );
    let shown = run(&["show", "crm"]).await;
    assert!(shown.succeeded().contains("Authorization=Bearer ${CRM}"), "{shown:?}");
    assert_eq!(run(&["stop", "crm"]).await.succeeded(), "server crm is idle (http): switched off");
    assert_eq!(run(&["start", "crm"]).await.succeeded(), "server crm is idle (http)");
    assert_eq!(run(&["rm", "crm", "old"]).await.succeeded(), "server crm removed\nserver old removed");
    let json = app.cofer(&["server", "ls", "--json"]).await.json();
    assert_eq!(json.as_array().unwrap().len(), 2);
    app.stop().await;
}

#[tokio::test]
async fn what_a_program_wrote_before_it_died_is_in_its_log() {
    let app = serving().await;
    let script = "echo no licence found >&2; exit 3";
    app.cofer(&["server", "add", "broken", "--", "/bin/sh", "-c", script]).await.succeeded();
    assert_eq!(app.cofer(&["server", "logs", "broken"]).await.succeeded(), "");
    assert!(app.cofer(&["server", "refresh", "broken"]).await.failed_with(6).contains("no licence found"));
    let logged = app.cofer(&["server", "logs", "broken"]).await;
    assert!(logged.succeeded().contains("no licence found"), "{logged:?}");
    let lines = app.cofer(&["server", "logs", "-n", "1", "broken", "--json"]).await.json();
    assert_eq!((&lines[0]["stream"], &lines[0]["line"]), (&json!("stderr"), &json!("no licence found")));
    app.stop().await;
}

#[tokio::test]
async fn what_does_not_fit_together_is_refused_with_what_to_do() {
    let app = serving().await;
    app.cofer(&["server", "add", "there", "--", "uvx", "x"]).await.succeeded();
    for (args, code, said) in [
        (&["server", "add", "x"][..], 2, "--url"),
        (&["server", "add", "x", "--url", "http://h", "--", "cmd"], 2, "cannot be used with"),
        (&["server", "add", "x", "--url", "http://h", "--image", "i"], 2, "cannot be used with"),
        (
            &["server", "--url", "http://h", "add", "x", "--image", "i"],
            2,
            "`--url` is for servers that live elsewhere",
        ),
        (
            &["server", "add", "x", "--url", "http://h", "--memory", "1G"],
            2,
            "`--memory` means nothing to a server at `--url`",
        ),
        (&["server", "add", "x", "--url", "http://h", "--env", "A=1"], 2, "`--env` means nothing"),
        (
            &["server", "add", "x", "--header", "A: b", "--", "cmd"],
            2,
            "`--header` means nothing to a command",
        ),
        (&["server", "add", "x", "--memory", "1G", "--", "cmd"], 2, "host it with `--image`"),
        (
            &["server", "add", "x", "--image", "i", "--header", "A: b"],
            2,
            "`--header` is for servers that live elsewhere",
        ),
        (
            &["server", "add", "x", "--url", "http://h", "--header", "no-colon-hunter2"],
            2,
            "Authorization: Bearer ${TOKEN}",
        ),
        (&["server", "add", "x", "--url", "http://h", "--transport", "stdio"], 2, "sse or http"),
        (&["server", "add", "x", "--url", "ftp://h"], 2, "http:// or https://"),
        (&["server", "add", "x", "--cwd", "here", "--", "cmd"], 2, "absolute path"),
        (&["server", "add", "a b", "--", "cmd"], 2, "name"),
        (&["server", "add", "there", "--", "cmd"], 4, "choose another name"),
        (&["server", "add", "x", "--project", "nope", "--", "cmd"], 3, "nope"),
        (&["server", "show", "nope"], 3, "nope"),
        (&["server", "rm", "nope"], 3, "nope"),
        (&["server", "stop", "nope"], 3, "nope"),
        (&["server", "refresh", "nope"], 3, "nope"),
        (&["server", "logs", "nope"], 3, "nope"),
        (&["server", "events", "there"], 2, "lives elsewhere"),
        (&["server", "call", "there", "ping"], 2, "lives elsewhere"),
    ] {
        let ran = app.cofer(args).await;
        let error = ran.failed_with(code);
        assert!(error.contains(said), "{args:?}: {error}");
        assert!(!error.contains("hunter2"), "{args:?}: {error}");
    }
    app.stop().await;
}

#[tokio::test]
async fn a_cofer_elsewhere_is_named_by_its_variable_where_url_is_the_servers() {
    let app = serving().await;
    let variables = [
        ("COFER_URL", app.url.as_str()),
        ("COFER_TOKEN", app.token.as_str()),
        ("COFER_DATA_DIR", "/nowhere"),
    ];
    app.cofer_with(&variables, &["server", "add", "crm", "--url", "https://crm.example.com"])
        .await
        .succeeded();
    app.cofer_with(&variables, &["server", "add", "time", "--", "uvx", "x"]).await.succeeded();
    let listed = app.cofer_with(&variables[1..], &["server", "ls", "--url", &app.url]).await;
    assert_eq!(listed.succeeded().lines().count(), 3);
    app.stop().await;
}

#[tokio::test]
async fn a_token_of_one_project_means_that_project() {
    let app = serving().await;
    app.post("/api/v1/projects", &json!({"name": "web"})).await;
    let token = json!({"name": "t", "scopes": ["admin:read", "admin:write"], "project": "web"});
    let token = app.post("/api/v1/tokens", &token).await.json()["token"].as_str().unwrap().to_owned();
    app.cofer_with(&[("COFER_TOKEN", &token)], &["server", "add", "time", "--", "uvx", "x"])
        .await
        .succeeded();
    assert_eq!(app.get("/api/v1/projects/web/mcp-servers/time").await.status, 200);
    app.stop().await;
}
