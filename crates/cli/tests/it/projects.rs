//! Projects, over HTTP.

use serde_json::json;

use crate::serving;

#[tokio::test]
async fn a_project_is_made_shown_changed_and_removed() {
    let app = serving().await;
    let made = app.post("/api/v1/projects", &json!({"name": "web", "description": "the shop"})).await;
    assert_eq!(made.status, 201);
    let made = made.json();
    assert_eq!(
        (&made["name"], &made["description"], &made["namespacing"]),
        (&json!("web"), &json!("the shop"), &json!("off"))
    );

    let by_id = format!("/api/v1/projects/{}", made["id"].as_str().unwrap());
    assert_eq!(app.get(&by_id).await.json(), made);
    assert_eq!(made["repeat_safe_calls"], false);
    let change = json!({"namespacing": "always", "repeat_safe_calls": true, "name": "shop"});
    let changed = app.patch(&by_id, &change).await;
    assert_eq!((changed.status, &changed.json()["description"]), (200, &json!("the shop")));
    assert_eq!(app.get("/api/v1/projects/web").await.refusal(), "404 not_found");
    let shop = app.get("/api/v1/projects/shop").await.json();
    assert_eq!((&shop["namespacing"], &shop["repeat_safe_calls"]), (&json!("always"), &json!(true)));

    assert_eq!(app.delete("/api/v1/projects/shop").await.status, 204);
    assert_eq!(app.delete("/api/v1/projects/shop").await.refusal(), "404 not_found");
    app.stop().await;
}

#[tokio::test]
async fn a_name_is_taken_once() {
    let app = serving().await;
    assert_eq!(app.post("/api/v1/projects", &json!({"name": "web"})).await.status, 201);
    assert_eq!(app.post("/api/v1/projects", &json!({"name": "web"})).await.refusal(), "409 conflict");
    assert_eq!(
        app.patch("/api/v1/projects/web", &json!({"name": "default"})).await.refusal(),
        "409 conflict"
    );
    app.stop().await;
}

#[tokio::test]
async fn names_that_would_leave_their_place_in_an_address_are_refused() {
    let app = serving().await;
    let long = "x".repeat(10_000);
    for name in
        ["", "a/b", "..", "a b", "a\u{0}b", "a\nb", "ä", &long, "550e8400-e29b-41d4-a716-446655440000"]
    {
        let answer = app.post("/api/v1/projects", &json!({"name": name})).await;
        assert_eq!(answer.refusal(), "422 validation_error", "{name:?}");
        assert_eq!(answer.json()["error"]["details"]["field"], "name", "{name:?}");
        assert!(answer.text.len() < 2_000, "the answer repeats all of it");
    }
    let answer =
        app.post("/api/v1/projects", &json!({"name": "web", "description": "x".repeat(5_000)})).await;
    assert_eq!(answer.json()["error"]["details"]["field"], "description");
    app.stop().await;
}

#[tokio::test]
async fn the_default_project_stays() {
    let app = serving().await;
    assert_eq!(app.delete("/api/v1/projects/default").await.refusal(), "409 conflict");
    assert_eq!(
        app.patch("/api/v1/projects/default", &json!({"name": "other"})).await.refusal(),
        "409 conflict"
    );
    assert_eq!(app.patch("/api/v1/projects/default", &json!({"description": "mine"})).await.status, 200);
    app.stop().await;
}

#[tokio::test]
async fn a_nul_is_refused_alike_on_both_databases() {
    let Some(postgres) = cofer_testkit::engines::postgres() else { return };
    let database = postgres.fresh_database().await;
    for database in [None, Some(database.url())] {
        let start = crate::start().variable("COFER_DATABASE_URL", database.unwrap_or_default());
        let app = start.serve().await;
        for path in ["/api/v1/projects/a%00b", "/api/v1/projects/a%00b/secrets"] {
            assert_eq!(app.get(path).await.refusal(), "404 not_found", "{path}");
        }
        let described = app.post("/api/v1/projects", &json!({"name": "n", "description": "a\u{0}b"})).await;
        assert_eq!(described.refusal(), "422 validation_error");
        let token = json!({"name": "t", "scopes": ["admin:read"], "project": "a\u{0}b"});
        assert_eq!(app.post("/api/v1/tokens", &token).await.refusal(), "404 not_found");
        app.stop().await;
    }
}

#[tokio::test]
async fn a_project_deleted_while_it_is_used_is_never_a_fault_of_ours() {
    let app = std::sync::Arc::new(serving().await);
    for _ in 0..10 {
        app.post("/api/v1/projects", &json!({"name": "p"})).await;
        let users = (0..6).map(|n| {
            let app = app.clone();
            tokio::spawn(async move {
                match n {
                    0 => app.delete("/api/v1/projects/p").await,
                    1..=3 => {
                        app.put(&format!("/api/v1/projects/p/secrets/S{n}"), &json!({"value": "v"})).await
                    }
                    _ => {
                        app.post(
                            "/api/v1/tokens",
                            &json!({"name": "t", "scopes": ["admin:read"], "project": "p"}),
                        )
                        .await
                    }
                }
            })
        });
        for user in users.collect::<Vec<_>>() {
            let answer = user.await.unwrap();
            assert!([200, 201, 204, 404].contains(&answer.status), "{answer:?}");
        }
    }
    std::sync::Arc::into_inner(app).unwrap().stop().await;
}
