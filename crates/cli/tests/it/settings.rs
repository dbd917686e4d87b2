//! Flags, environment, file, default: in that order.

use crate::{serving, start};

#[tokio::test]
async fn a_flag_beats_the_environment_and_the_environment_beats_the_file() {
    let start = start();
    let file = start.path().join("cofer.toml");
    std::fs::write(&file, "log_format = 'json'\nbody_bytes_max = 10\nlisten = 'nonsense'\n").unwrap();
    // `serve` gives --listen by flag; the log format comes from the file; the body limit from the environment.
    let app = start
        .variable("COFER_CONFIG", file.display().to_string())
        .variable("COFER_BODY_BYTES_MAX", "20")
        .serve()
        .await;
    let line = app.logged("admin token in").await;
    assert!(serde_json::from_str::<serde_json::Value>(&line).is_ok(), "{line}");
    let refused = app.post("/api/v1/projects", &serde_json::json!({"name": "more-than-ten-bytes"})).await;
    assert!(refused.text.contains("20 bytes"), "{refused:?}");
    app.stop().await;
}

#[tokio::test]
async fn broken_settings_are_refused_by_name_before_anything_is_made() {
    let start = start();
    let file = start.path().join("cofer.toml");
    for (text, expected) in [
        ("listen = \n", "is not valid TOML"),
        ("lisen = 'x'\n", "unknown key `lisen`; did you mean `listen`?"),
        ("requests_max = 0\n", "`requests_max` must not be zero"),
        ("database = 'mysql://root:hunter2@host/db'\n", "`database` is wrong"),
        ("log_format = 'xml'\n", "is not valid TOML"),
    ] {
        std::fs::write(&file, text).unwrap();
        let ran = start.cofer(&["serve", "--config", &file.display().to_string()]).await;
        let message = ran.failed_with(2);
        assert!(message.contains(expected) && !message.contains("hunter2"), "{text}: {message}");
    }
    let ran = start.cofer(&["serve", "--config", "/no/such/file.toml"]).await;
    assert!(ran.failed_with(2).contains("/no/such/file.toml"));
    let ran = start.cofer(&["serve", "--log", "[[["]).await;
    assert!(ran.failed_with(2).contains("log filter"));
    assert!(!start.data_dir().exists());
}

#[tokio::test]
async fn misspelt_flags_and_commands_are_usage_errors_with_a_suggestion() {
    let start = start();
    for (args, expected) in [(["serve", "--lisen=x"], "--listen"), (["projct", "ls"], "project")] {
        let ran = start.cofer(&args).await;
        assert!(ran.failed_with(2).contains(expected), "{ran:?}");
    }
}

#[tokio::test]
async fn an_admin_token_can_be_given_and_replaces_the_one_that_was_made() {
    let app = serving().await;
    let made = app.token.clone();
    let app = app.stop().await.variable("COFER_ADMIN_TOKEN", "an-operators-own-choice").serve().await;
    assert_eq!(app.get("/api/v1/projects").await.status, 200);
    assert_eq!(app.call(reqwest::Method::GET, "/api/v1/projects", &made, None).await.status, 401);
    assert!(
        !app.data_dir().join("admin.token").exists(),
        "a token that no longer holds is not left lying about"
    );
    assert!(!app.log().contains("an-operators-own-choice"));
    app.stop().await;
}

#[tokio::test]
async fn an_admin_token_that_cannot_be_sent_is_refused_and_a_short_one_warned_about() {
    for unusable in ["with space".to_owned(), "x".repeat(1025)] {
        let refused = start().variable("COFER_ADMIN_TOKEN", unusable).try_serve().await.unwrap_err();
        assert!(refused.failed_with(2).contains("COFER_ADMIN_TOKEN"));
    }
    let app = start().variable("COFER_ADMIN_TOKEN", "short").serve().await;
    app.logged("can be guessed").await;
    app.stop().await;
}

#[tokio::test]
async fn switches_are_given_as_people_write_them() {
    for value in ["1", "true", "yes", "on"] {
        let app = start().variable("COFER_OPEN_METRICS", value).serve().await;
        assert_eq!(app.send(app.request(reqwest::Method::GET, "/metrics")).await.status, 200, "{value}");
        app.stop().await;
    }
    let endless = start().arg("--requests-max=18446744073709551615").try_serve().await.unwrap_err();
    assert!(endless.failed_with(2).contains("too large"), "{endless:?}");
}
