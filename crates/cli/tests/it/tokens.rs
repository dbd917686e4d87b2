//! Who may enter, and how far.

use std::time::Duration;

use cofer_testkit::app::App;
use reqwest::Method;
use serde_json::{Value, json};

use crate::serving;

async fn token(app: &App, body: Value) -> (String, String) {
    let made = app.post("/api/v1/tokens", &body).await;
    assert_eq!(made.status, 201, "{made:?}");
    let made = made.json();
    (made["id"].as_str().unwrap().to_owned(), made["token"].as_str().unwrap().to_owned())
}

fn all_scopes() -> Value {
    json!(["admin:read", "admin:write", "tools:call", "agents:run", "environments:write"])
}

async fn get(app: &App, path: &str, token: &str) -> String {
    let answer = app.call(Method::GET, path, token, None).await;
    if answer.status < 400 { answer.status.to_string() } else { answer.refusal() }
}

#[tokio::test]
async fn a_token_is_shown_once_and_only_its_hash_is_kept() {
    let app = serving().await;
    let (id, clear) = token(&app, json!({"name": "ci", "scopes": ["admin:read"]})).await;
    assert!(clear.starts_with("cofer_") && clear.len() == 58, "{clear}");
    let listed = app.get("/api/v1/tokens").await;
    assert!(listed.text.contains(&id) && !listed.text.contains(&clear));
    let secret = clear.trim_start_matches("cofer_");
    for file in std::fs::read_dir(app.data_dir()).unwrap() {
        let bytes = std::fs::read(file.unwrap().path()).unwrap();
        assert!(!String::from_utf8_lossy(&bytes).contains(secret));
    }
    assert!(!app.log().contains(secret));
    app.stop().await;
}

#[tokio::test]
async fn the_last_use_of_a_token_is_shown_and_survives_a_restart() {
    let app = serving().await;
    let (_, clear) = token(&app, json!({"name": "ci", "scopes": ["admin:read"]})).await;
    let last_used = async |app: &App| {
        let tokens = app.get("/api/v1/tokens").await.json();
        tokens.as_array().unwrap().iter().find(|token| token["name"] == "ci").unwrap()["last_used_at"].clone()
    };
    assert_eq!(last_used(&app).await, Value::Null);
    assert_eq!(get(&app, "/api/v1/projects", &clear).await, "200");
    let used = last_used(&app).await;
    assert!(used.is_string());
    let app = app.stop().await.serve().await;
    assert_eq!(last_used(&app).await, used);
    app.stop().await;
}

#[tokio::test]
async fn a_revoked_token_ends_at_once() {
    let app = serving().await;
    let (id, clear) = token(&app, json!({"name": "ci", "scopes": ["admin:read"]})).await;
    assert_eq!(get(&app, "/api/v1/projects", &clear).await, "200");
    assert_eq!(app.delete(&format!("/api/v1/tokens/{id}")).await.status, 204);
    assert_eq!(get(&app, "/api/v1/projects", &clear).await, "401 unauthorized");
    assert_eq!(app.delete(&format!("/api/v1/tokens/{id}")).await.refusal(), "404 not_found");
    app.stop().await;
}

#[tokio::test]
async fn a_token_expires_when_it_said_it_would() {
    let app = serving().await;
    let (_, clear) =
        token(&app, json!({"name": "ci", "scopes": ["admin:read"], "expires_in_seconds": 1})).await;
    assert_eq!(get(&app, "/api/v1/projects", &clear).await, "200");
    // The one wait for real time in this suite: a second is the shortest life a token can have.
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    assert_eq!(get(&app, "/api/v1/projects", &clear).await, "401 unauthorized");
    app.stop().await;
}

#[tokio::test]
async fn a_projects_token_sees_that_project_and_no_other() {
    let app = serving().await;
    for name in ["web", "shop"] {
        app.post("/api/v1/projects", &json!({"name": name})).await;
    }
    let scopes = json!(["admin:read", "admin:write"]);
    let (_, shop) = token(&app, json!({"name": "shop", "scopes": scopes, "project": "shop"})).await;
    let (_, web) = token(&app, json!({"name": "web", "scopes": scopes, "project": "web"})).await;

    let listed = app.call(Method::GET, "/api/v1/projects", &web, None).await.json();
    assert_eq!(listed.as_array().unwrap().len(), 1);
    assert_eq!(get(&app, "/api/v1/projects/web/secrets", &web).await, "200");
    assert_eq!(get(&app, "/api/v1/projects/shop", &web).await, "404 not_found");
    assert_eq!(get(&app, "/api/v1/projects/shop/secrets", &web).await, "404 not_found");
    assert_eq!(get(&app, "/api/v1/projects/shop/secrets", &shop).await, "200");
    let put =
        app.call(Method::PUT, "/api/v1/projects/shop/secrets/X", &web, Some(&json!({"value": "v"}))).await;
    assert_eq!(put.refusal(), "404 not_found");

    let tokens = app.call(Method::GET, "/api/v1/tokens", &web, None).await.json();
    let names: Vec<_> = tokens.as_array().unwrap().iter().map(|token| token["name"].clone()).collect();
    assert_eq!(names, [json!("web")]);
    for name in ["shop", "admin"] {
        let revoke = app.call(Method::DELETE, &format!("/api/v1/tokens/{name}"), &web, None).await;
        assert_eq!(revoke.refusal(), "404 not_found", "{name}");
    }
    app.stop().await;
}

#[tokio::test]
async fn nobody_can_hand_out_more_than_they_have() {
    let app = serving().await;
    app.post("/api/v1/projects", &json!({"name": "web"})).await;
    let (_, web) = token(&app, json!({"name": "web", "scopes": ["admin:write"], "project": "web"})).await;
    let make = async |body: Value| app.call(Method::POST, "/api/v1/tokens", &web, Some(&body)).await;

    let wider = make(json!({"name": "x", "scopes": ["admin:write", "tools:call"]})).await;
    assert_eq!(
        (wider.refusal().as_str(), &wider.json()["error"]["details"]["missing"]),
        ("403 forbidden", &json!(["tools:call"]))
    );
    let elsewhere = make(json!({"name": "x", "scopes": ["admin:write"], "project": "default"})).await;
    assert_eq!(elsewhere.refusal(), "404 not_found");
    let within = make(json!({"name": "x", "scopes": ["admin:write"]})).await;
    assert_eq!((within.status, &within.json()["project"]), (201, &json!("web")));

    for (method, path) in [(Method::POST, "/api/v1/projects"), (Method::POST, "/api/v1/master-key/rotate")] {
        let answer = app.call(method, path, &web, Some(&json!({"name": "mine"}))).await;
        assert_eq!(answer.refusal(), "403 forbidden", "{path}");
    }
    let removal = app.call(Method::DELETE, "/api/v1/projects/web", &web, None).await;
    assert_eq!(removal.refusal(), "403 forbidden");
    app.stop().await;
}

#[tokio::test]
async fn the_last_administrator_cannot_be_revoked() {
    let app = serving().await;
    assert_eq!(app.delete("/api/v1/tokens/admin").await.refusal(), "409 conflict");
    for (name, scopes, seconds) in
        [("some", json!(["admin:read", "admin:write"]), None), ("brief", all_scopes(), Some(3600))]
    {
        token(&app, json!({"name": name, "scopes": scopes, "expires_in_seconds": seconds})).await;
        assert_eq!(app.delete("/api/v1/tokens/admin").await.refusal(), "409 conflict", "{name}");
    }
    let (_, second) = token(&app, json!({"name": "second", "scopes": all_scopes()})).await;
    assert_eq!(app.delete("/api/v1/tokens/admin").await.status, 204);
    assert_eq!(get(&app, "/api/v1/projects", &second).await, "200");
    app.stop().await;
}

#[tokio::test]
async fn wrong_tokens_are_refused_with_the_field_that_is_wrong() {
    let app = serving().await;
    let long = "x".repeat(10_000);
    for (body, field) in [
        (json!({"name": "x", "scopes": []}), "scopes"),
        (json!({"name": "x", "scopes": ["root"]}), "scopes[0]"),
        (json!({"name": "x", "scopes": "admin:read"}), "scopes"),
        (json!({"name": "", "scopes": ["admin:read"]}), "name"),
        (json!({"name": "bell\u{7}", "scopes": ["admin:read"]}), "name"),
        (json!({"name": long, "scopes": ["admin:read"]}), "name"),
        (json!({"name": "x", "scopes": ["admin:read"], "expires_in_seconds": 0}), "expires_in_seconds"),
        (json!({"name": "x", "scopes": ["admin:read"], "expires_in_seconds": -1}), "expires_in_seconds"),
        (
            json!({"name": "x", "scopes": ["admin:read"], "expires_in_seconds": u64::MAX}),
            "expires_in_seconds",
        ),
        (json!({"scopes": ["admin:read"]}), "name"),
        (json!({"name": "x", "scopes": ["admin:read"], "hash": "0"}), "hash"),
    ] {
        let answer = app.post("/api/v1/tokens", &body).await;
        assert_eq!(answer.refusal(), "422 validation_error", "{body}");
        assert_eq!(answer.json()["error"]["details"]["field"], field, "{body}");
    }
    let nowhere =
        app.post("/api/v1/tokens", &json!({"name": "x", "scopes": ["admin:read"], "project": "nope"})).await;
    assert_eq!(nowhere.refusal(), "404 not_found");
    app.stop().await;
}

#[tokio::test]
async fn tokens_of_one_name_are_told_apart_by_id() {
    let app = serving().await;
    for _ in 0..2 {
        token(&app, json!({"name": "twin", "scopes": ["admin:read"]})).await;
    }
    let answer = app.delete("/api/v1/tokens/twin").await;
    assert_eq!(answer.refusal(), "409 conflict");
    let id = answer.json()["error"]["details"]["ids"][0].as_str().unwrap().to_owned();
    assert_eq!(app.delete(&format!("/api/v1/tokens/{id}")).await.status, 204);
    assert_eq!(app.delete("/api/v1/tokens/twin").await.status, 204);
    app.stop().await;
}

#[tokio::test]
async fn a_token_that_ends_soon_cannot_make_one_that_lasts() {
    let app = serving().await;
    let (_, brief) =
        token(&app, json!({"name": "brief", "scopes": ["admin:write"], "expires_in_seconds": 100})).await;
    for seconds in [json!(null), json!(100_000)] {
        let body = json!({"name": "child", "scopes": ["admin:write"], "expires_in_seconds": seconds});
        let child = app.call(Method::POST, "/api/v1/tokens", &brief, Some(&body)).await.json();
        let tokens = app.get("/api/v1/tokens").await.json();
        let parent =
            tokens.as_array().unwrap().iter().find(|token| token["name"] == "brief").unwrap().clone();
        assert_eq!(child["expires_at"], parent["expires_at"]);
    }
    app.stop().await;
}

#[tokio::test]
async fn a_token_file_whose_token_was_revoked_is_removed() {
    let app = serving().await;
    token(&app, json!({"name": "second", "scopes": all_scopes()})).await;
    assert_eq!(app.delete("/api/v1/tokens/admin").await.status, 204);
    let app = app.stop().await.serve().await;
    assert!(!app.data_dir().join("admin.token").exists());
    assert!(!app.log().contains("curl"), "nothing is suggested that cannot work");
    app.stop().await;
}

#[tokio::test]
async fn a_first_start_that_could_not_write_the_token_is_made_up_for_by_the_next() {
    let start = crate::start();
    let in_the_way = start.data_dir().join("admin.draft");
    std::fs::create_dir_all(&in_the_way).unwrap();
    let refused = start.cofer(&["serve", "--listen", "127.0.0.1:0"]).await;
    assert!(refused.failed_with(5).contains("admin.token"), "{refused:?}");
    std::fs::remove_dir(in_the_way).unwrap();
    let app = start.serve().await;
    assert_eq!(get(&app, "/api/v1/projects", &app.token).await, "200");
    app.stop().await;
}

/// The reviewer's way of keeping a revoked token alive: hang up as soon as the request is sent.
#[tokio::test]
async fn a_revocation_is_seen_through_when_its_caller_hangs_up() {
    let app = serving().await;
    for n in 0..30 {
        let (id, clear) = token(&app, json!({"name": format!("t{n}"), "scopes": ["admin:read"]})).await;
        assert_eq!(get(&app, "/api/v1/projects", &clear).await, "200");
        let mut client = tokio::net::TcpStream::connect(app.url.trim_start_matches("http://")).await.unwrap();
        let head = format!(
            "DELETE /api/v1/tokens/{id} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\n\r\n",
            app.token
        );
        tokio::io::AsyncWriteExt::write_all(&mut client, head.as_bytes()).await.unwrap();
        tokio::time::sleep(Duration::from_micros(100 * n)).await;
        drop(client);
        let listed = async || app.get("/api/v1/tokens").await.text.contains(&id);
        // Either it never arrived, or it is done whole.
        let deadline = std::time::Instant::now() + Duration::from_secs(2);
        while listed().await && std::time::Instant::now() < deadline {}
        if !listed().await {
            // Nobody waited for the answer, so the last of it may be under way.
            let deadline = std::time::Instant::now() + Duration::from_secs(1);
            let mut said = get(&app, "/api/v1/projects", &clear).await;
            while said == "200" && std::time::Instant::now() < deadline {
                said = get(&app, "/api/v1/projects", &clear).await;
            }
            assert_eq!(said, "401 unauthorized", "round {n}");
        }
    }
    app.stop().await;
}

#[tokio::test]
async fn guessing_is_slowed_down_and_nobody_who_holds_a_token_is_affected() {
    let app = crate::start().variable("COFER_ADMIN_TOKEN", "an-operators-own-choice").serve().await;
    let (_, made) = token(&app, json!({"name": "never used before", "scopes": ["admin:read"]})).await;
    let app = app.stop().await.serve().await;
    let mut refusals = std::collections::BTreeMap::<String, u32>::new();
    for guess in 0..100 {
        *refusals.entry(get(&app, "/api/v1/projects", &format!("guess-{guess}")).await).or_default() += 1;
    }
    assert!(refusals["429 limit_exceeded"] > 60 && refusals["401 unauthorized"] < 40, "{refusals:?}");
    let throttled = app.call(Method::GET, "/api/v1/projects", "one-more", None).await;
    assert_eq!(throttled.headers["retry-after"], "1", "however many guesses came");
    assert_eq!(get(&app, "/api/v1/projects", &made).await, "200", "made by us");
    assert_eq!(get(&app, "/api/v1/projects", &app.token).await, "200", "chosen by the operator");
    app.stop().await;
}
