//! Tokens of an issuer at our own endpoint: the good one gets in, and every other is told why not.

use cofer_testkit::app::Start;
use cofer_testkit::until_seen;
use reqwest::Method;
use serde_json::{Value, json};

use super::*;
use crate::gateway::Client as McpClient;
use crate::start;

const LONG: u32 = 3600;

fn trusting(authority: &Authority) -> Start {
    start().variable("COFER_OAUTH_ISSUER", authority.issuer.clone())
}

fn now() -> i64 {
    cofer_model::Moment::now().unix_ms() / 1000
}

/// The claims of a token that is good at `/mcp`.
fn good(authority: &Authority, app: &App) -> Value {
    json!({"iss": authority.issuer, "aud": format!("{}/mcp", app.url), "sub": "ada@example.com", "scope": "tools:call",
           "exp": now() + 600, "iat": now()})
}

async fn minted(authority: &Authority, claims: &Value, header: Value, stranger: bool) -> String {
    let body = json!({"claims": claims, "header": header, "stranger": stranger});
    authority.control("mint", body).await["token"].as_str().unwrap().to_owned()
}

/// Says hello with this token.
async fn hello(app: &App, path: &str, token: &str) -> Answer {
    let info = json!({"name": "test", "version": "1"});
    let params = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": info});
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params});
    let request = app.request(Method::POST, path).header("accept", "application/json, text/event-stream");
    let request = if token.is_empty() { request } else { request.bearer_auth(token) };
    app.send(request.json(&body)).await
}

fn challenge(answer: &Answer) -> &str {
    answer.headers.get("www-authenticate").map_or("", |value| value.to_str().unwrap())
}

#[tokio::test]
async fn who_has_no_token_is_told_where_one_is_to_be_had() {
    let Some(authority) = Authority::start(LONG).await else { return };
    let app = trusting(&authority).serve().await;
    for path in ["/mcp", "/projects/default/mcp"] {
        let refused = hello(&app, path, "").await;
        let place = format!("{}/.well-known/oauth-protected-resource{path}", app.url);
        assert_eq!(refused.status, 401);
        assert_eq!(
            challenge(&refused),
            format!("Bearer resource_metadata=\"{place}\", scope=\"tools:call\"")
        );
        let described: Value = app.http.get(&place).send().await.unwrap().json().await.unwrap();
        assert_eq!(described["resource"], format!("{}{path}", app.url));
        assert_eq!(described["authorization_servers"], json!([authority.issuer]));
        assert_eq!(described["scopes_supported"], json!(["tools:call"]));
    }
    let at_root = app.get("/.well-known/oauth-protected-resource").await.json();
    assert_eq!(at_root["resource"], format!("{}/mcp", app.url));
    let wrong = hello(&app, "/mcp", "nonsense").await;
    assert!(challenge(&wrong).starts_with("Bearer error=\"invalid_token\", "), "{wrong:?}");
    assert_eq!(hello(&app, "/mcp", &app.token).await.status, 200, "our own tokens are as good as ever");
    app.stop().await;
    let app = crate::serving().await;
    assert_eq!(app.get("/.well-known/oauth-protected-resource").await.status, 404);
    app.stop().await;
    authority.end().await;
}

#[tokio::test]
async fn only_a_token_that_is_good_in_every_way_gets_in() {
    let Some(authority) = Authority::start(LONG).await else { return };
    let app = trusting(&authority).serve().await;
    let with = |changes: Value| {
        let mut claims = good(&authority, &app);
        claims.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        claims.as_object_mut().unwrap().retain(|_, value| !value.is_null());
        claims
    };
    let mcp = format!("{}/mcp", app.url);
    let cases = [
        ("as it should be", with(json!({})), json!({}), false, 200, ""),
        ("for several", with(json!({"aud": ["https://other.example.com", mcp]})), json!({}), false, 200, ""),
        ("just ended, by a clock that is ahead", with(json!({"exp": now() - 10})), json!({}), false, 200, ""),
        ("scopes as a list", with(json!({"scope": null, "scp": ["tools:call"]})), json!({}), false, 200, ""),
        (
            "of another issuer",
            with(json!({"iss": "https://evil.example.com"})),
            json!({}),
            false,
            401,
            "another issuer",
        ),
        ("of no issuer", with(json!({"iss": null})), json!({}), false, 401, "whom it is about"),
        (
            "for somebody else",
            with(json!({"aud": "https://other.example.com"})),
            json!({}),
            false,
            401,
            "somebody else",
        ),
        ("for the whole machine", with(json!({"aud": app.url})), json!({}), false, 401, "somebody else"),
        ("for nobody", with(json!({"aud": null})), json!({}), false, 401, "whom it is about"),
        ("expired", with(json!({"exp": now() - 120})), json!({}), false, 401, "expired"),
        ("without an end", with(json!({"exp": null})), json!({}), false, 401, "cannot be read"),
        ("with an end that is none", with(json!({"exp": "never"})), json!({}), false, 401, "cannot be read"),
        ("not good yet", with(json!({"nbf": now() + 120})), json!({}), false, 401, "not good yet"),
        ("about nobody", with(json!({"sub": null})), json!({}), false, 401, "cannot be read"),
        ("unsigned", with(json!({})), json!({"alg": "none"}), false, 401, ""),
        ("with a shared secret", with(json!({})), json!({"alg": "HS256"}), false, 401, "not taken here"),
        (
            "with another algorithm than its key's",
            with(json!({})),
            json!({"alg": "RS512"}),
            false,
            401,
            "does not have",
        ),
        ("with an unknown key", with(json!({})), json!({"kid": "made-up"}), false, 401, "does not have"),
        ("by a stranger", with(json!({})), json!({}), true, 401, "does not have"),
        ("with something critical", with(json!({})), json!({"crit": ["x"], "x": 1}), false, 401, ""),
    ];
    for (what, claims, header, stranger, status, says) in cases {
        let token = minted(&authority, &claims, header, stranger).await;
        let answer = hello(&app, "/mcp", &token).await;
        assert_eq!(answer.status, status, "{what}: {answer:?}; log: {}", app.log());
        assert!(answer.text.contains(says), "{what}: {answer:?}");
        if status == 401 {
            assert!(challenge(&answer).contains("error=\"invalid_token\""), "{what}: {answer:?}");
        }
        assert!(!is_anywhere(&app, &token), "{what}: the token is kept somewhere");
    }
    let mut altered = minted(&authority, &good(&authority, &app), json!({}), false).await;
    altered.replace_range(altered.len() - 8..altered.len() - 4, "AAAA");
    assert!(hello(&app, "/mcp", &altered).await.text.contains("signature"), "an altered signature");
    let elsewhere = minted(&authority, &good(&authority, &app), json!({}), false).await;
    assert_eq!(
        hello(&app, "/projects/default/mcp", &elsewhere).await.status,
        401,
        "a token is for one endpoint"
    );
    assert_eq!(
        app.call(Method::GET, SERVERS, &elsewhere, None).await.status,
        401,
        "and not for the rest of the API"
    );
    app.stop().await;
    authority.end().await;
}

#[tokio::test]
async fn a_token_without_the_scope_is_told_which_and_words_can_be_translated() {
    let Some(authority) = Authority::start(LONG).await else { return };
    let app = trusting(&authority).arg("--oauth-scopes=mcp:use=tools:call").serve().await;
    let mut claims = good(&authority, &app);
    claims["scope"] = json!("openid mcp:other");
    let token = minted(&authority, &claims, json!({}), false).await;
    let refused = hello(&app, "/mcp", &token).await;
    assert_eq!(refused.refusal(), "403 forbidden");
    let place = format!("{}/.well-known/oauth-protected-resource/mcp", app.url);
    let expected =
        format!("Bearer error=\"insufficient_scope\", resource_metadata=\"{place}\", scope=\"mcp:use\"");
    assert_eq!(challenge(&refused), expected);
    claims["scope"] = json!("openid mcp:use");
    let token = minted(&authority, &claims, json!({}), false).await;
    assert_eq!(hello(&app, "/mcp", &token).await.status, 200);
    app.stop().await;
    authority.end().await;
}

#[tokio::test]
async fn keys_that_are_replaced_are_learnt_and_the_old_ones_are_worthless_then() {
    let Some(authority) = Authority::start(LONG).await else { return };
    let app = trusting(&authority).serve().await;
    let old = minted(&authority, &good(&authority, &app), json!({}), false).await;
    assert_eq!(hello(&app, "/mcp", &old).await.status, 200);
    authority.control("rotate", json!({})).await;
    let new = minted(&authority, &good(&authority, &app), json!({}), false).await;
    // Whoever asked a moment ago does not ask again at once.
    until_seen("the new key", async || {
        let answer = hello(&app, "/mcp", &new).await;
        if answer.status == 200 { Ok(()) } else { Err(answer.text) }
    })
    .await;
    assert_eq!(hello(&app, "/mcp", &old).await.status, 401);
    app.stop().await;
    authority.end().await;
}

#[tokio::test]
async fn an_issuer_that_is_away_is_no_reason_to_let_anybody_in() {
    let app = start().variable("COFER_OAUTH_ISSUER", "http://127.0.0.1:9").serve().await;
    let token = "eyJhbGciOiJSUzI1NiJ9.e30.AAAA";
    let refused = hello(&app, "/mcp", token).await;
    assert_eq!(refused.refusal(), "503 unavailable");
    assert_eq!(hello(&app, "/mcp", &app.token).await.status, 200, "our own tokens need nobody");
    app.stop().await;
}

#[tokio::test]
async fn the_subject_is_the_caller_in_the_record_and_their_token_goes_no_further() {
    let Some(authority) = Authority::start(LONG).await else { return };
    let app = trusting(&authority).serve().await;
    register(&app, "crm", &authority.mcp).await;
    logged_in(&app, "crm").await;
    let ada = minted(&authority, &good(&authority, &app), json!({}), false).await;
    let client = McpClient::open(&app, "/mcp", &ada, json!({})).await;
    let told = client.tool("tell_token", json!({})).await;
    assert!(told.text().starts_with("shown: ey") && !told.text().contains(&ada), "{told:?}");
    let caller = until_seen("the record", async || {
        let calls = app.get("/api/v1/projects/default/tool-calls?tool=tell_token").await.json();
        calls[0]["caller"].as_str().map(ToOwned::to_owned).ok_or_else(|| calls.to_string())
    })
    .await;
    assert_eq!(caller, "ada@example.com");

    let mut claims = good(&authority, &app);
    claims["sub"] = json!("bob@example.com");
    let bob = minted(&authority, &claims, json!({}), false).await;
    let stolen = McpClient { token: bob, ..client.clone() };
    let list = json!({"jsonrpc": "2.0", "id": 9, "method": "tools/list"});
    assert_eq!(stolen.post(&list).send().await.unwrap().status(), 404, "another's session");
    app.stop().await;
    authority.end().await;
}

/// The whole way round: one Cofer is the client, another the server, and the token between them is a real one.
#[tokio::test]
async fn one_cofer_logs_in_at_another() {
    let Some(authority) = Authority::start(LONG).await else { return };
    let inner = trusting(&authority).serve().await;
    register(&inner, "crm", &authority.mcp).await;
    logged_in(&inner, "crm").await;
    let outer = crate::serving().await;
    register(&outer, "inner", &format!("{}/mcp", inner.url)).await;
    let refused = outer.get(TOOLS).await.json();
    assert!(
        refused["missing"][0]["reason"].as_str().unwrap().contains("cofer server login inner"),
        "{refused}"
    );
    logged_in(&outer, "inner").await;
    assert_eq!(login_status(&outer, "inner").await["scopes"], json!(["tools:call", "offline_access"]));
    assert_eq!(text(&outer, "whoami").await, "whoami: ada@example.com mcp:basic");
    outer.stop().await;
    inner.stop().await;
    authority.end().await;
}
