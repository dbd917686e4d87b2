//! The HTTP conventions: one envelope everywhere, ids, scopes on every route.

use reqwest::Method;
use serde_json::{Value, json};

use crate::serving;

#[tokio::test]
async fn every_kind_of_bad_request_gets_the_envelope() {
    let app = serving().await;
    let send = async |method: Method, path: &str, content_type: &str, body: &str| {
        let request = app.request(method, path).bearer_auth(&app.token);
        let request =
            if content_type.is_empty() { request } else { request.header("content-type", content_type) };
        app.send(request.body(body.to_owned())).await.refusal()
    };
    let (post, json) = (Method::POST, "application/json");
    assert_eq!(send(Method::GET, "/no/such/route", "", "").await, "404 not_found");
    assert_eq!(send(Method::DELETE, "/api/v1/projects", "", "").await, "405 method_not_allowed");
    assert_eq!(
        send(post.clone(), "/api/v1/projects", "text/plain", "{}").await,
        "415 unsupported_media_type"
    );
    assert_eq!(send(post.clone(), "/api/v1/projects", "", "{}").await, "415 unsupported_media_type");
    assert_eq!(send(post.clone(), "/api/v1/projects", json, "{").await, "400 bad_request");
    assert_eq!(send(post.clone(), "/api/v1/projects", json, "").await, "400 bad_request");
    assert_eq!(send(post.clone(), "/api/v1/projects", json, "[]").await, "422 validation_error");
    assert_eq!(send(post.clone(), "/api/v1/projects", json, "{}").await, "422 validation_error");
    assert_eq!(send(post.clone(), "/api/v1/projects", json, r#"{"name":7}"#).await, "422 validation_error");
    assert_eq!(send(Method::GET, "/api/v1/projects/%FF", "", "").await, "400 bad_request");
    assert_eq!(send(Method::GET, "/api/v1/projects/nope", "", "").await, "404 not_found");
    app.stop().await;
}

#[tokio::test]
async fn an_unknown_field_is_refused_by_its_name() {
    let app = serving().await;
    let answer = app.post("/api/v1/projects", &json!({"name": "web", "colour": "red"})).await;
    assert_eq!(answer.refusal(), "422 validation_error");
    assert_eq!(answer.json()["error"]["details"]["field"], "colour");
    assert_eq!(app.get("/api/v1/projects/web").await.status, 404);
    app.stop().await;
}

#[tokio::test]
async fn the_trace_id_of_the_envelope_is_the_callers_and_is_in_the_log() {
    let app = serving().await;
    let sent = "4bf92f3577b34da6a3ce929d0e0e4736";
    let request =
        app.request(Method::GET, "/nowhere").header("traceparent", format!("00-{sent}-00f067aa0ba902b7-01"));
    let answer = app.send(request.header("x-request-id", "my-own-id")).await;
    assert_eq!(answer.json()["error"]["trace_id"], sent);
    assert_eq!(answer.headers["x-request-id"], "my-own-id");
    let answer = app.get("/api/v1/projects").await;
    assert_eq!(answer.headers["x-request-id"].len(), 32);
    app.stop().await;
}

/// The document lists every route with the scope it needs; so each can be tried with all scopes but that one.
#[tokio::test]
async fn every_route_of_the_document_refuses_strangers_and_those_who_lack_its_scope() {
    let app = serving().await;
    let document = app.get("/api/openapi.json").await.json();
    let all = ["admin:read", "admin:write", "tools:call", "agents:run", "environments:write"];
    let mut tried = 0;
    for (path, operations) in document["paths"].as_object().unwrap() {
        for (method, operation) in operations.as_object().unwrap() {
            let Some(needed) = operation["security"][0]["bearer"][0].as_str() else {
                assert!(
                    ["/healthz", "/readyz"].contains(&path.as_str()),
                    "{method} {path} is open to strangers"
                );
                continue;
            };
            let method = Method::from_bytes(method.to_uppercase().as_bytes()).unwrap();
            let path = path.replace("{project}", "default").replace("{token}", "x").replace("{name}", "X");
            let path = path.replace("{server}", "x");
            let stranger = app.send(app.request(method.clone(), &path)).await;
            assert_eq!(stranger.refusal(), "401 unauthorized", "{method} {path}");
            assert_eq!(stranger.headers["www-authenticate"], "Bearer");

            let others: Vec<_> = all.iter().filter(|scope| **scope != needed).collect();
            let made = app.post("/api/v1/tokens", &json!({"name": "others", "scopes": others})).await.json();
            let body = body_for(&method);
            let lacking =
                app.call(method.clone(), &path, made["token"].as_str().unwrap(), body.as_ref()).await;
            assert_eq!(lacking.refusal(), "403 forbidden", "{method} {path}");
            assert_eq!(lacking.json()["error"]["details"]["missing"], json!([needed]), "{method} {path}");
            tried += 1;
        }
    }
    assert!(tried >= 36, "only {tried} routes in the document");
    app.stop().await;
}

/// Something that every shape takes or refuses only after asking who is there.
fn body_for(method: &Method) -> Option<Value> {
    match method.as_str() {
        "PUT" => Some(json!({"value": "v"})),
        "PATCH" => Some(json!({})),
        "POST" => Some(json!({"name": "x", "scopes": ["admin:read"]})),
        _ => None,
    }
}

#[tokio::test]
async fn the_document_describes_every_answer_and_every_body() {
    let app = serving().await;
    let document = app.get("/api/openapi.json").await.json();
    assert!(document["openapi"].as_str().unwrap().starts_with("3.1"));
    let schemas = document["components"]["schemas"].as_object().unwrap();
    for schema in
        ["Project", "CreateProject", "Token", "CreateToken", "CreatedToken", "SecretEntry", "Envelope"]
            .into_iter()
            .chain(["Registration", "Change", "ServerStatus", "Call", "Outcome", "LogLine", "HostedEvent"])
            .chain(["ProviderStatus", "VolumeStatus", "BuildImage", "BuiltImage"])
    {
        assert!(schemas.contains_key(schema), "{schema} is not described");
    }
    for reference in references(&document) {
        let name = reference.trim_start_matches("#/components/schemas/");
        assert!(schemas.contains_key(name), "{reference} leads nowhere");
    }
    app.stop().await;
}

fn references(value: &Value) -> Vec<String> {
    match value {
        Value::Object(object) => object
            .iter()
            .flat_map(|(key, value)| match (key.as_str(), value.as_str()) {
                ("$ref", Some(reference)) => vec![reference.to_owned()],
                _ => references(value),
            })
            .collect(),
        Value::Array(items) => items.iter().flat_map(references).collect(),
        _ => Vec::new(),
    }
}

#[tokio::test]
async fn a_token_is_taken_from_either_header() {
    let app = serving().await;
    let with = async |name: &str, value: String| {
        app.send(app.request(Method::GET, "/api/v1/projects").header(name, value)).await
    };
    assert_eq!(with("authorization", format!("Bearer {}", app.token)).await.status, 200);
    assert_eq!(with("authorization", format!("bearer  {}", app.token)).await.status, 200);
    assert_eq!(with("x-api-key", app.token.clone()).await.status, 200);
    assert_eq!(with("authorization", format!("Basic {}", app.token)).await.refusal(), "401 unauthorized");
    assert_eq!(with("authorization", "Bearer ".to_owned()).await.refusal(), "401 unauthorized");
    assert_eq!(with("x-api-key", "x".repeat(10_000)).await.refusal(), "401 unauthorized");
    app.stop().await;
}

#[tokio::test]
async fn metrics_and_the_document_are_open_only_when_the_settings_say_so() {
    let app = crate::start().arg("--open-metrics").arg("--open-openapi=true").serve().await;
    for path in ["/metrics", "/api/openapi.json"] {
        assert_eq!(app.send(app.request(Method::GET, path)).await.status, 200, "{path}");
    }
    app.stop().await;
}
