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
    let changed = app.patch(&by_id, &json!({"namespacing": "always", "name": "shop"})).await;
    assert_eq!((changed.status, &changed.json()["description"]), (200, &json!("the shop")));
    assert_eq!(app.get("/api/v1/projects/web").await.refusal(), "404 not_found");
    assert_eq!(app.get("/api/v1/projects/shop").await.json()["namespacing"], "always");

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
