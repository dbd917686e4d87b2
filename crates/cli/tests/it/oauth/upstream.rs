//! Logins at servers elsewhere, from the first refusal to the last.

use cofer_testkit::{until, until_seen};
use futures_util::future::join_all;
use serde_json::{Value, json};

use super::*;
use crate::gateway::Client as McpClient;
use crate::{serving, start};

const LONG: u32 = 3600;

/// What a person has to be told, wherever they look.
async fn assert_login_is_required(app: &App) {
    let how = "`cofer server login crm`";
    let failed = app.post(&format!("{SERVERS}/crm/refresh"), &json!({})).await;
    assert!(failed.status >= 400 && failed.text.contains(how), "{failed:?}");
    let seen = status(app, "crm").await;
    assert_eq!(seen["login"], "required", "{seen:#}");
    assert!(seen["last_error"].as_str().is_some_and(|error| error.contains(how)), "{seen:#}");
    assert_eq!(seen["circuit"]["failures"], 0, "{seen:#}");
    let listed = app.cofer(&["server", "ls"]).await;
    assert!(listed.succeeded().contains("cofer server login"), "{listed:?}");
    let shown = app.cofer(&["server", "show", "crm"]).await;
    assert!(shown.succeeded().contains("required"), "{shown:?}");
}

#[tokio::test]
async fn a_login_is_asked_for_everywhere_and_kept_through_restarts_and_ends_with_a_logout() {
    let Some(authority) = Authority::start(LONG).await else { return };
    let app = serving().await;
    register(&app, "crm", &authority.mcp).await;
    assert_eq!(status(&app, "crm").await["login"], Value::Null);
    let client = McpClient::open(&app, "/mcp", &app.token, json!({})).await;
    let listed = client.ask("tools/list", json!({})).await;
    assert!(listed.result()["_meta"].to_string().contains("`cofer server login crm`"), "{listed:?}");
    let listing = app.get(TOOLS).await.json();
    assert!(
        listing["missing"][0]["reason"].as_str().unwrap().contains("`cofer server login crm`"),
        "{listing}"
    );
    assert_login_is_required(&app).await;

    logged_in(&app, "crm").await;
    assert_eq!(text(&app, "whoami").await, "whoami: ada@example.com mcp:basic");
    assert_eq!(status(&app, "crm").await["login"], "done");
    let login = login_status(&app, "crm").await;
    assert_eq!((&login["login"], &login["attempt"]["state"]), (&json!("done"), &json!("done")), "{login}");
    assert_eq!(login["issuer"], authority.issuer);

    let app = app.stop().await.serve().await;
    assert_eq!(status(&app, "crm").await["login"], "done", "before anybody has used it");
    assert_eq!(text(&app, "whoami").await, "whoami: ada@example.com mcp:basic");
    let app = app.kill().await.serve().await;
    assert_eq!(text(&app, "whoami").await, "whoami: ada@example.com mcp:basic");
    assert_eq!(authority.count("authorization_code").await, 1, "one login for three lives");

    let out = app.cofer(&["server", "logout", "crm"]).await;
    assert_eq!(out.succeeded(), "server crm is logged out");
    assert_eq!(authority.count("revoked").await, 1, "whoever gave the login knows of it");
    assert_eq!(status(&app, "crm").await["login"], Value::Null);
    let refused = call(&app, "whoami").await;
    assert!(refused.text.contains("cofer server login crm"), "{refused:?}");
    assert_login_is_required(&app).await;
    app.stop().await;
    authority.end().await;
}

#[tokio::test]
async fn a_token_that_ends_is_renewed_once_however_many_calls_wait() {
    let Some(authority) = Authority::start(4).await else { return };
    let app = serving().await;
    register(&app, "crm", &authority.mcp).await;
    logged_in(&app, "crm").await;
    text(&app, "whoami").await;
    let before = authority.count("refresh_token").await;
    let ends_at =
        cofer_model::Moment::parse(login_status(&app, "crm").await["expires_at"].as_str().unwrap()).unwrap();
    until("the token has ended", async || cofer_model::Moment::now() > ends_at).await;
    let answers = join_all((0..20).map(|_| text(&app, "whoami"))).await;
    assert!(answers.iter().all(|answer| answer == "whoami: ada@example.com mcp:basic"), "{answers:?}");
    assert_eq!(authority.count("refresh_token").await - before, 1);
    app.stop().await;
    authority.end().await;
}

#[tokio::test]
async fn a_token_that_is_refused_is_renewed_once_and_no_call_is_made_twice() {
    let Some(authority) = Authority::start(LONG).await else { return };
    let app = serving().await;
    register(&app, "crm", &authority.mcp).await;
    logged_in(&app, "crm").await;
    text(&app, "whoami").await;
    let (refreshed, called) = (authority.count("refresh_token").await, authority.count("calls").await);
    // What was signed with the old key is not taken any more.
    authority.control("rotate", json!({})).await;
    join_all((0..20).map(|_| text(&app, "whoami"))).await;
    assert_eq!(authority.count("refresh_token").await - refreshed, 1);
    assert_eq!(authority.count("calls").await - called, 20);
    app.stop().await;
    authority.end().await;
}

#[tokio::test]
async fn a_renewal_is_finished_also_when_whoever_began_it_hangs_up() {
    let Some(authority) = Authority::start(LONG).await else { return };
    let app = serving().await;
    register(&app, "crm", &authority.mcp).await;
    logged_in(&app, "crm").await;
    text(&app, "whoami").await;
    let (held, renewed) = (authority.count("held").await, authority.count("refresh_token").await);
    authority.control("rotate", json!({})).await;
    authority.control("hold", json!({"hold": true})).await;
    let path = format!("{TOOLS}/call");
    let body = json!({"name": "whoami", "arguments": {}});
    let calling =
        tokio::spawn(app.request(reqwest::Method::POST, &path).bearer_auth(&app.token).json(&body).send());
    until("the renewal has begun", async || authority.count("held").await > held).await;
    calling.abort();
    app.in_flight(1).await;
    authority.control("hold", json!({"hold": false})).await;
    assert_eq!(text(&app, "whoami").await, "whoami: ada@example.com mcp:basic");
    assert_eq!(authority.count("refresh_token").await - renewed, 1, "what was renewed then is used now");
    app.stop().await;
    authority.end().await;
}

#[tokio::test]
async fn a_login_that_was_revoked_is_asked_for_anew_and_then_works() {
    let Some(authority) = Authority::start(LONG).await else { return };
    let app = serving().await;
    register(&app, "crm", &authority.mcp).await;
    logged_in(&app, "crm").await;
    let client = McpClient::open(&app, "/mcp", &app.token, json!({})).await;
    assert_eq!(client.tool("whoami", json!({})).await.text(), "whoami: ada@example.com mcp:basic");
    authority.control("revoke", json!({})).await;
    let refused = client.tool("whoami", json!({})).await;
    assert!(refused.answer.to_string().contains("cofer server login crm"), "{refused:?}");
    assert_login_is_required(&app).await;
    assert!(status(&app, "crm").await["last_error"].as_str().unwrap().contains("The last one ended"));

    logged_in(&app, "crm").await;
    assert_eq!(client.tool("whoami", json!({})).await.text(), "whoami: ada@example.com mcp:basic");
    app.stop().await;
    authority.end().await;
}

#[tokio::test]
async fn a_tool_that_needs_more_asks_for_a_wider_login_and_the_others_go_on() {
    let Some(authority) = Authority::start(LONG).await else { return };
    let app = serving().await;
    register(&app, "crm", &authority.mcp).await;
    logged_in(&app, "crm").await;
    let refused = call(&app, "write").await;
    assert!(
        refused.text.contains("mcp:write") && refused.text.contains("cofer server login crm"),
        "{refused:?}"
    );
    assert_eq!(status(&app, "crm").await["login"], "insufficient");
    assert_eq!(text(&app, "whoami").await, "whoami: ada@example.com mcp:basic");
    logged_in(&app, "crm").await;
    assert_eq!(status(&app, "crm").await["login"], "done");
    assert_eq!(text(&app, "write").await, "write: ada@example.com mcp:basic mcp:write");
    app.stop().await;
    authority.end().await;
}

#[tokio::test]
async fn tokens_are_seen_by_their_server_alone() {
    let Some(authority) = Authority::start(LONG).await else { return };
    let app = serving().await;
    register(&app, "crm", &authority.mcp).await;
    logged_in(&app, "crm").await;
    let told = text(&app, "tell_token").await;
    let token = told.strip_prefix("shown: ").unwrap();
    assert!(token.starts_with("ey"), "{told}");
    let record = until_seen("the record", async || {
        let calls = app.get("/api/v1/projects/default/tool-calls?tool=tell_token").await.json();
        if calls[0].is_object() { Ok(calls[0]["output"].to_string()) } else { Err(calls.to_string()) }
    })
    .await;
    assert!(record.contains("[masked]") && !record.contains(token), "{record}");
    for path in [
        format!("{SERVERS}/crm"),
        format!("{SERVERS}/crm/login"),
        "/api/v1/projects/default/tool-calls".to_owned(),
    ] {
        assert!(!app.get(&path).await.text.contains(token), "{path}");
    }
    assert!(!is_anywhere(&app, token));

    let ran = app.cofer(&["secret", "rotate-key"]).await;
    ran.succeeded();
    let app = app.stop().await.serve().await;
    assert_eq!(
        text(&app, "whoami").await,
        "whoami: ada@example.com mcp:basic",
        "sealed anew with the new key"
    );
    app.stop().await;
    authority.end().await;
}

#[tokio::test]
async fn a_login_goes_with_its_server_and_is_not_taken_to_another_address() {
    let Some(authority) = Authority::start(LONG).await else { return };
    let app = serving().await;
    register(&app, "crm", &authority.mcp).await;
    logged_in(&app, "crm").await;
    text(&app, "whoami").await;
    let elsewhere = authority.mcp.replace("127.0.0.1", "localhost");
    assert_eq!(
        app.patch(&format!("{SERVERS}/crm"), &json!({"config": {"url": elsewhere}})).await.status,
        200
    );
    let refused = call(&app, "whoami").await;
    assert!(refused.text.contains("cofer server login crm"), "{refused:?}");
    assert_eq!(app.delete(&format!("{SERVERS}/crm")).await.status, 204);
    register(&app, "crm", &authority.mcp).await;
    assert_eq!(status(&app, "crm").await["login"], Value::Null);
    assert_login_is_required(&app).await;
    app.stop().await;
    authority.end().await;
}

#[tokio::test]
async fn who_says_no_is_told_so_in_plain_text() {
    let Some(authority) = Authority::start(LONG).await else { return };
    let app = serving().await;
    register(&app, "crm", &authority.mcp).await;
    authority.control("deny", json!({"deny": true})).await;
    let page = log_in(&app, "crm").await;
    assert!(page.text.contains("access_denied") && page.status == 502, "{page:?}");
    assert_eq!(page.content_type, "text/plain; charset=utf-8", "nothing in it is more than text");
    let login = login_status(&app, "crm").await;
    assert_eq!(
        (&login["login"], &login["attempt"]["state"]),
        (&json!("required"), &json!("failed")),
        "{login}"
    );
    app.stop().await;
    authority.end().await;
}

#[tokio::test]
async fn an_answer_that_nobody_asked_for_or_that_comes_twice_is_not_believed() {
    let Some(authority) = Authority::start(LONG).await else { return };
    let app = serving().await;
    register(&app, "crm", &authority.mcp).await;
    let unknown = app.get("/oauth/callback?state=made-up&code=x").await;
    assert!(unknown.status == 404 && unknown.text.contains("is not known"), "{unknown:?}");
    assert_eq!(app.get("/oauth/callback").await.status, 404);
    let begun = begin(&app, "crm").await.json();
    let address = Url::parse(begun["authorize_url"].as_str().unwrap()).unwrap();
    let state = address.query_pairs().find(|(name, _)| name == "state").unwrap().1.into_owned();
    let forged = format!("/oauth/callback?state={state}&code=x&iss=https%3A%2F%2Fevil.example.com&error=a");
    let refused = app.get(&forged).await;
    assert!(refused.text.contains("does not come from") && !refused.text.contains("evil"), "{refused:?}");
    assert_eq!(app.get(&forged).await.status, 404, "an answer is for one try");
    app.stop().await;
    authority.end().await;
}

/// `xdg-open` is what a desktop calls its browser by.
#[tokio::test]
async fn the_command_line_opens_a_browser_and_says_when_it_is_done() {
    let Some(authority) = Authority::start(LONG).await else { return };
    let app = serving().await;
    register(&app, "crm", &authority.mcp).await;
    let dir = tempfile::tempdir().unwrap();
    let (browser, jar) = (dir.path().join("xdg-open"), dir.path().join("jar"));
    let curl =
        format!("#!/bin/sh\nexec curl -sL --noproxy '*' -c {0} -b {0} -o /dev/null \"$1\"\n", jar.display());
    std::fs::write(&browser, curl).unwrap();
    std::fs::set_permissions(&browser, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", dir.path().display(), std::env::var("PATH").unwrap());
    let ran = app.cofer_with(&[("DISPLAY", ":0"), ("PATH", &path)], &["server", "login", "crm"]).await;
    assert_eq!(ran.succeeded(), "server crm is logged in");
    assert!(ran.stderr.contains(&authority.issuer), "{ran:?}");
    assert_eq!(text(&app, "whoami").await, "whoami: ada@example.com mcp:basic");

    authority.control("deny", json!({"deny": true})).await;
    let ran = app.cofer_with(&[("DISPLAY", ":0"), ("PATH", &path)], &["server", "login", "crm"]).await;
    assert!(ran.failed_with(1).contains("access_denied"), "{ran:?}");
    app.stop().await;
    authority.end().await;
}

#[tokio::test]
async fn a_server_with_credentials_of_its_own_takes_no_login() {
    let app = serving().await;
    register_with(
        &app,
        "crm",
        json!({"url": "http://127.0.0.1:9/mcp", "headers": {"Authorization": "Bearer ${T}"}}),
    )
    .await;
    let refused = begin(&app, "crm").await;
    assert_eq!(refused.refusal(), "412 precondition_failed");
    assert!(refused.text.contains("takes no login"), "{refused:?}");
    app.stop().await;
}

#[tokio::test]
async fn what_we_say_of_ourselves_is_read_at_our_public_address() {
    let app = start().arg("--public-url=https://cofer.example.com").serve().await;
    let document = app.send(app.request(reqwest::Method::GET, "/client-metadata.json")).await.json();
    assert_eq!(document["client_id"], "https://cofer.example.com/client-metadata.json");
    assert_eq!(document["redirect_uris"], json!(["https://cofer.example.com/oauth/callback"]));
    assert_eq!(document["application_type"], "web");
    app.stop().await;
    let app = serving().await;
    assert_eq!(app.get("/client-metadata.json").await.status, 404, "nobody could read it");
    app.stop().await;
}
