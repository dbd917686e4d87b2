//! Projects and tokens: whose server it is, and who may know of it.

use reqwest::Method;
use serde_json::{Value, json};

use super::{Host, MISBEHAVING, SERVERS, VOLUMES};

async fn token(host: &Host, body: Value) -> String {
    let made = host.app.post("/api/v1/tokens", &body).await;
    assert_eq!(made.status, 201, "{made:?}");
    made.json()["token"].as_str().unwrap().to_owned()
}

async fn two_projects(host: &Host) -> (Value, Value) {
    for project in ["red", "blue"] {
        assert_eq!(host.app.post("/api/v1/projects", &json!({"name": project})).await.status, 201);
    }
    let more = |project: &str| json!({"project": project, "volumes": ["/data"]});
    (
        host.hosted("same", MISBEHAVING, more("red")).await,
        host.hosted("same", MISBEHAVING, more("blue")).await,
    )
}

#[tokio::test]
async fn a_token_of_one_project_sees_nothing_of_another() {
    let Some(host) = Host::new("docker").await else { return };
    let (red, blue) = two_projects(&host).await;
    let scopes = json!(["admin:read", "admin:write"]);
    let reds = token(&host, json!({"name": "red", "scopes": scopes, "project": "red"})).await;
    let red_id = red["workspace_id"].as_str().unwrap();
    let blue_id = blue["workspace_id"].as_str().unwrap();
    let listed = host.app.call(Method::GET, SERVERS, &reds, None).await.json();
    assert_eq!(listed.as_array().unwrap().len(), 1, "{listed:#}");
    assert_eq!((&listed[0]["workspace_id"], &listed[0]["project"]), (&json!(red_id), &json!("red")));
    let own = host.app.call(Method::GET, &format!("{SERVERS}/same"), &reds, None).await;
    assert_eq!(own.json()["workspace_id"], red_id);
    let call = json!({"method": "ping"});
    for (method, path, body) in [
        (Method::GET, format!("{SERVERS}/{blue_id}"), None),
        (Method::GET, format!("{SERVERS}/same?project=blue"), None),
        (Method::GET, format!("{SERVERS}?project=blue"), None),
        (Method::GET, format!("{SERVERS}/{blue_id}/logs"), None),
        (Method::GET, format!("{SERVERS}/{blue_id}/logs?follow=true"), None),
        (Method::GET, format!("{SERVERS}/{blue_id}/events"), None),
        (Method::POST, format!("{SERVERS}/{blue_id}/call"), Some(&call)),
        (Method::POST, format!("{SERVERS}/{blue_id}/restart"), None),
        (Method::POST, format!("{SERVERS}/{blue_id}/stop"), None),
        (Method::POST, format!("{SERVERS}/{blue_id}/start"), None),
        (Method::DELETE, format!("{SERVERS}/{blue_id}?delete_volumes=true"), None),
    ] {
        let answer = host.app.call(method.clone(), &path, &reds, body).await;
        assert_eq!(answer.refusal(), "404 not_found", "{method} {path}");
    }
    let patched = host
        .app
        .call(Method::PATCH, &format!("{SERVERS}/{blue_id}"), &reds, Some(&json!({"cmd": null})))
        .await;
    assert_eq!(patched.refusal(), "404 not_found");
    let body = json!({"name": "x", "image": MISBEHAVING, "project": "blue"});
    assert_eq!(host.app.call(Method::POST, SERVERS, &reds, Some(&body)).await.refusal(), "404 not_found");
    let volumes = host.app.call(Method::GET, VOLUMES, &reds, None).await.json();
    assert_eq!(volumes.as_array().unwrap().len(), 1, "{volumes:#}");
    let all = host.app.get(VOLUMES).await.json();
    let theirs = all.as_array().unwrap().iter().find(|volume| volume["project"] == "blue").unwrap();
    let path = format!("{VOLUMES}/{}", theirs["name"].as_str().unwrap());
    assert_eq!(host.app.call(Method::DELETE, &path, &reds, None).await.refusal(), "404 not_found");
    let metrics = host.app.call(Method::GET, "/metrics", &reds, None).await;
    assert!(!metrics.text.contains("project=\"blue\""), "{}", metrics.text);
    // What it registers without a word on the project is its own.
    let body = json!({"name": "mine", "image": MISBEHAVING});
    let made = host.app.call(Method::POST, SERVERS, &reds, Some(&body)).await;
    assert_eq!((made.status, &made.json()["project"]), (201, &json!("red")), "{made:?}");
    delete_projects(&host).await;
    host.stop().await;
}

async fn delete_projects(host: &Host) {
    for project in ["red", "blue"] {
        assert_eq!(host.app.delete(&format!("/api/v1/projects/{project}")).await.status, 204);
    }
    cofer_testkit::until("their containers are gone", async || {
        host.in_engines().await.iter().all(|thing| !thing.contains(" container /cofer-same-"))
    })
    .await;
    for volume in host.app.get(VOLUMES).await.json().as_array().unwrap() {
        assert_eq!((&volume["project"], &volume["in_use"]), (&Value::Null, &json!(false)), "{volume:#}");
        let path = format!("{VOLUMES}/{}", volume["name"].as_str().unwrap());
        assert_eq!(host.app.delete(&path).await.status, 204);
    }
}

#[tokio::test]
async fn a_server_goes_with_its_project_and_its_volumes_are_kept_for_a_person_to_remove() {
    let Some(host) = Host::new("docker").await else { return };
    two_projects(&host).await;
    host.misbehaving("stays", &[]).await;
    delete_projects(&host).await;
    let listed = host.app.get(SERVERS).await.json();
    assert_eq!(listed.as_array().unwrap().len(), 1, "{listed:#}");
    host.works("stays").await;
    host.stop().await;
}

#[tokio::test]
async fn a_name_is_looked_for_in_the_project_that_is_named() {
    let Some(host) = Host::new("docker").await else { return };
    let (red, blue) = two_projects(&host).await;
    for (project, server) in [("red", &red), ("blue", &blue)] {
        let found = host.app.get(&format!("{SERVERS}/same?project={project}")).await.json();
        assert_eq!(found["workspace_id"], server["workspace_id"]);
        let listed = host.app.get(&format!("{SERVERS}?project={project}")).await.json();
        assert_eq!(listed.as_array().unwrap().len(), 1);
        let by_id = host.app.get(&format!("{SERVERS}/{}", server["workspace_id"].as_str().unwrap())).await;
        assert_eq!(by_id.json()["project"], project);
    }
    assert_eq!(host.app.get(&format!("{SERVERS}/same")).await.refusal(), "404 not_found");
    assert_eq!(host.app.get(&format!("{SERVERS}?project=green")).await.refusal(), "404 not_found");
    assert_eq!(host.app.get(&format!("{SERVERS}?colour=red")).await.refusal(), "422 validation_error");
    // A project that is renamed takes its servers along.
    let renamed = host.app.patch("/api/v1/projects/red", &json!({"name": "crimson"})).await;
    if renamed.status == 200 {
        host.app.get(&format!("{SERVERS}/same?project=crimson")).await.json();
        assert_eq!(host.app.patch("/api/v1/projects/crimson", &json!({"name": "red"})).await.status, 200);
    }
    delete_projects(&host).await;
    host.stop().await;
}

#[tokio::test]
async fn who_may_only_read_changes_nothing_and_who_may_only_write_reads_nothing() {
    let Some(host) = Host::new("docker").await else { return };
    host.misbehaving("guarded", &[]).await;
    let reader = token(&host, json!({"name": "r", "scopes": ["admin:read"]})).await;
    let caller = token(&host, json!({"name": "c", "scopes": ["tools:call", "agents:run"]})).await;
    for verb in ["restart", "stop", "start", "call"] {
        let path = format!("{SERVERS}/guarded/{verb}");
        for (token, missing) in [(&reader, "admin:write"), (&caller, "admin:write")] {
            let answer = host.app.call(Method::POST, &path, token, Some(&json!({"method": "ping"}))).await;
            assert_eq!(answer.refusal(), "403 forbidden", "{verb}");
            assert_eq!(answer.json()["error"]["details"]["missing"], json!([missing]));
        }
    }
    for path in [SERVERS, VOLUMES, "/api/v1/providers"] {
        assert_eq!(host.app.call(Method::GET, path, &caller, None).await.refusal(), "403 forbidden");
        assert_eq!(host.app.call(Method::GET, path, &reader, None).await.status, 200);
    }
    host.stop().await;
}
