//! What a person types, and what they see.

use serde_json::json;

use crate::{serving, start};

#[tokio::test]
async fn a_local_server_is_found_by_itself_and_projects_are_managed_by_hand() {
    let app = serving().await;
    assert_eq!(
        app.cofer(&["project", "create", "web", "--description", "the shop"]).await.succeeded(),
        "project web created"
    );
    let listed = app.cofer(&["project", "ls"]).await;
    let lines: Vec<_> =
        listed.succeeded().lines().map(|line| line.split_whitespace().next().unwrap().to_owned()).collect();
    assert_eq!(lines, ["NAME", "default", "web"]);
    assert_eq!(app.cofer(&["project", "ls", "--json"]).await.json()[1]["description"], "the shop");
    app.cofer(&["project", "update", "web", "--namespacing", "conflict"]).await.succeeded();
    assert_eq!(app.cofer(&["project", "show", "web", "--json"]).await.json()["namespacing"], "conflict");
    assert_eq!(app.cofer(&["project", "rm", "web"]).await.succeeded(), "project web removed");
    app.stop().await;
}

#[tokio::test]
async fn exit_codes_tell_what_went_wrong() {
    let app = serving().await;
    app.cofer(&["project", "create", "web"]).await.succeeded();
    assert!(app.cofer(&["project", "create", "web"]).await.failed_with(4).contains("choose another name"));
    assert!(
        app.cofer(&["project", "show", "nope"]).await.failed_with(3).contains("there is no project `nope`")
    );
    assert!(app.cofer(&["project", "create", "a/b"]).await.failed_with(2).contains("a project name is"));
    assert!(app.cofer(&["project", "create"]).await.failed_with(2).contains("<NAME>"));
    assert!(
        app.cofer(&["project", "show", "../tokens"]).await.failed_with(3).contains("there is no project")
    );
    let stranger = app.cofer_with(&[("COFER_TOKEN", "wrong")], &["project", "ls"]).await;
    assert!(stranger.failed_with(5).contains("not known here"), "{stranger:?}");
    app.stop().await;
    let alone = start().cofer(&["project", "ls"]).await;
    assert!(alone.failed_with(6).contains("cofer serve"), "{alone:?}");
    let nobody = start().cofer(&["project", "ls", "--url", "http://127.0.0.1:1"]).await;
    assert!(nobody.failed_with(6).contains("no answer from http://127.0.0.1:1"), "{nobody:?}");
}

#[tokio::test]
async fn errors_are_the_envelope_when_json_is_asked_for() {
    let app = serving().await;
    let ran = app.cofer(&["--json", "project", "show", "nope"]).await;
    let error: serde_json::Value = serde_json::from_str(ran.failed_with(3)).unwrap();
    assert_eq!(error["error"]["code"], "not_found");
    assert_eq!(error["error"]["trace_id"].as_str().unwrap().len(), 32);
    app.stop().await;
}

#[tokio::test]
async fn a_token_made_by_hand_works_from_elsewhere_and_is_revoked_by_hand() {
    let app = serving().await;
    let made = app
        .cofer(&["token", "create", "ci", "--scope", "admin:read,tools:call", "--expires-in", "30d"])
        .await;
    let token = made.succeeded().to_owned();
    assert!(token.starts_with("cofer_") && token.len() == 58, "the token alone, for scripts: {token}");
    let elsewhere =
        [("COFER_URL", app.url.as_str()), ("COFER_TOKEN", token.as_str()), ("COFER_DATA_DIR", "/nowhere")];
    app.cofer_with(&elsewhere, &["project", "ls"]).await.succeeded();
    let lacking = app.cofer_with(&elsewhere, &["project", "create", "x"]).await;
    assert!(lacking.failed_with(5).contains("admin:write"), "{lacking:?}");
    let listed = app.cofer(&["token", "ls"]).await;
    assert!(listed.succeeded().contains("admin:read,tools:call") && !listed.stdout.contains(&token));
    app.cofer(&["token", "rm", "ci"]).await.succeeded();
    app.cofer_with(&elsewhere, &["project", "ls"]).await.failed_with(5);
    assert!(
        app.cofer(&["token", "create", "x", "--scope", "root"]).await.failed_with(2).contains("admin:read")
    );
    app.stop().await;
}

#[tokio::test]
async fn the_local_admin_token_is_never_sent_to_an_address_that_somebody_named() {
    let app = serving().await;
    let ran = app.cofer(&["project", "ls", "--url", &app.url]).await;
    assert!(ran.failed_with(5).contains("COFER_TOKEN"), "{ran:?}");
    app.stop().await;
}

#[tokio::test]
async fn a_secret_comes_from_standard_input_or_a_file_and_loses_one_newline() {
    let app = serving().await;
    let from_input = app.cofer_with_input(&["secret", "set", "API_KEY"], "hunter2\n").await;
    assert_eq!(from_input.succeeded(), "secret API_KEY set");
    let file = app.data_dir().join("value.txt");
    std::fs::write(&file, "from a file").unwrap();
    app.cofer(&["secret", "set", "OTHER", "--from-file", &file.display().to_string()]).await.succeeded();
    let names = app.cofer(&["secret", "ls", "--json"]).await.json();
    assert_eq!((&names[0]["name"], &names[1]["name"]), (&json!("API_KEY"), &json!("OTHER")));
    app.cofer(&["secret", "rm", "OTHER"]).await.succeeded();
    app.cofer(&["secret", "rm", "OTHER"]).await.failed_with(3);
    let nothing = app.cofer(&["secret", "set", "EMPTY"]).await;
    assert!(nothing.failed_with(2).contains("1 to 65536 bytes"), "{nothing:?}");
    let elsewhere = app.cofer_with_input(&["secret", "set", "X", "--project", "nope"], "v").await;
    elsewhere.failed_with(3);
    app.stop().await;
}

#[tokio::test]
async fn completions_and_version_need_no_server() {
    let start = start();
    for shell in ["bash", "zsh", "fish"] {
        assert!(start.cofer(&["completions", shell]).await.succeeded().contains("cofer"), "{shell}");
    }
    assert!(start.cofer(&["version"]).await.succeeded().ends_with("(no server running)"));
    assert!(start.cofer(&["--version"]).await.succeeded().starts_with("cofer "));
    let app = start.serve().await;
    let versions = app.cofer(&["version", "--json"]).await.json();
    assert_eq!(versions["client"], versions["server"]);
    app.stop().await;
}

#[tokio::test]
async fn output_that_nobody_reads_to_its_end_is_no_error() {
    let app = serving().await;
    let script = format!("'{}' project ls | true; echo ${{PIPESTATUS[0]}}", env!("CARGO_BIN_EXE_cofer"));
    let shell = tokio::process::Command::new("bash")
        .args(["-c", &script])
        .env("COFER_DATA_DIR", app.data_dir())
        .output()
        .await
        .unwrap();
    assert_eq!((String::from_utf8_lossy(&shell.stdout).trim(), shell.stderr.len()), ("0", 0));
    app.stop().await;
}
