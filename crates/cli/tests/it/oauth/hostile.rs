//! Servers and authorization servers that mean no good: each is refused in words, soon, and nothing is left hanging.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::*;
use crate::serving;

/// What is answered at a path.
#[derive(Clone)]
enum Scripted {
    Json(Value),
    Redirect(String),
    /// So many bytes of nothing.
    Long(usize),
    Silence,
}

/// A server that wants a login, and says these things where it is asked.
struct Villain {
    origin: String,
    task: tokio::task::JoinHandle<()>,
}

impl Villain {
    /// `{O}` in a text is its own origin.
    async fn start(answers: &[(&str, Scripted)]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let origin = format!("http://{}", listener.local_addr().unwrap());
        let answers: HashMap<_, _> =
            answers.iter().map(|(path, answer)| ((*path).to_owned(), answer.clone())).collect();
        let (answers, own) = (Arc::new(answers), origin.clone());
        let task = tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let (answers, own) = (answers.clone(), own.clone());
                tokio::spawn(async move {
                    let mut request = vec![0; 16 << 10];
                    let length = stream.read(&mut request).await.unwrap_or(0);
                    let head = String::from_utf8_lossy(&request[..length]).into_owned();
                    let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
                    let path = path.split('?').next().unwrap_or_default();
                    if matches!(answers.get(path), Some(Scripted::Silence)) {
                        return std::future::pending().await;
                    }
                    let _ = stream.write_all(&rendered(answers.get(path), &own)).await;
                });
            }
        });
        Self { origin, task }
    }

    fn end(self) {
        self.task.abort();
    }
}

fn rendered(answer: Option<&Scripted>, own: &str) -> Vec<u8> {
    let response = |status: &str, more: &str, body: &str| {
        let length = body.len();
        format!("HTTP/1.1 {status}\r\n{more}Content-Length: {length}\r\nConnection: close\r\n\r\n{body}")
            .into_bytes()
    };
    match answer {
        Some(Scripted::Json(body)) => {
            response("200 OK", "Content-Type: application/json\r\n", &body.to_string().replace("{O}", own))
        }
        Some(Scripted::Redirect(to)) => {
            response("302 Found", &format!("Location: {}\r\n", to.replace("{O}", own)), "")
        }
        Some(Scripted::Long(bytes)) => {
            response("200 OK", "Content-Type: application/json\r\n", &" ".repeat(*bytes))
        }
        Some(Scripted::Silence) => Vec::new(),
        None => response("401 Unauthorized", "WWW-Authenticate: Bearer\r\n", ""),
    }
}

const RESOURCE: &str = "/.well-known/oauth-protected-resource/mcp";
const AUTHORITY: &str = "/.well-known/oauth-authorization-server";

fn resource() -> (&'static str, Scripted) {
    (RESOURCE, Scripted::Json(json!({"resource": "{O}/mcp", "authorization_servers": ["{O}"]})))
}

/// A description with these changes.
fn authority(changes: &Value) -> (&'static str, Scripted) {
    let mut described = json!({
        "issuer": "{O}", "authorization_endpoint": "{O}/authorize", "token_endpoint": "{O}/token",
        "registration_endpoint": "{O}/register", "code_challenge_methods_supported": ["S256"],
    });
    described.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
    described.as_object_mut().unwrap().retain(|_, value| !value.is_null());
    (AUTHORITY, Scripted::Json(described))
}

#[tokio::test]
async fn a_server_that_leads_astray_is_refused_in_words() {
    let app = serving().await;
    let redirect = |to: &str| Scripted::Redirect(to.to_owned());
    let cases: Vec<(Vec<(&str, Scripted)>, &str)> = vec![
        (vec![(RESOURCE, Scripted::Long(300 << 10))], "more than the"),
        (vec![(RESOURCE, redirect("{O}/.well-known/oauth-protected-resource/mcp"))], "without end"),
        (vec![(RESOURCE, redirect("http://localhost:1/x"))], "a redirect to somebody else"),
        (vec![(RESOURCE, Scripted::Json(json!([])))], "not what was asked for"),
        (
            vec![(
                RESOURCE,
                Scripted::Json(
                    json!({"resource": "https://bank.example.com/mcp", "authorization_servers": ["{O}"]}),
                ),
            )],
            "is not its own address",
        ),
        (vec![(RESOURCE, Scripted::Json(json!({"resource": "{O}/mcp"})))], "names nobody"),
        (
            vec![(
                RESOURCE,
                Scripted::Json(
                    json!({"resource": "{O}/mcp", "authorization_servers": ["http://auth.example.com"]}),
                ),
            )],
            "neither https nor on this machine",
        ),
        (
            vec![(
                RESOURCE,
                Scripted::Json(
                    json!({"resource": "{O}/mcp", "authorization_servers": ["file:///etc/passwd"]}),
                ),
            )],
            "neither https nor on this machine",
        ),
        (
            vec![resource(), authority(&json!({"issuer": "https://honest.example.com"}))],
            "is that of `https://honest.example.com`",
        ),
        (vec![resource(), authority(&json!({"issuer": "{O}/"}))], "it is not used"),
        (
            vec![
                resource(),
                authority(&json!({"authorization_endpoint": "http://auth.example.com/authorize"})),
            ],
            "neither https nor on this machine",
        ),
        (
            vec![resource(), authority(&json!({"token_endpoint": "http://auth.example.com/token"}))],
            "neither https nor on this machine",
        ),
        (vec![resource(), authority(&json!({"token_endpoint": null}))], "without the addresses"),
        (vec![resource(), authority(&json!({"code_challenge_methods_supported": null}))], "PKCE"),
        (vec![resource(), authority(&json!({"code_challenge_methods_supported": ["plain"]}))], "PKCE"),
        (vec![resource(), authority(&json!({"registration_endpoint": null}))], "oauth.client_id"),
        (
            vec![resource(), authority(&json!({})), ("/register", Scripted::Json(json!({"nothing": 1})))],
            "no client id",
        ),
        (vec![resource(), authority(&json!({})), ("/register", Scripted::Long(300 << 10))], "more than the"),
        (vec![resource(), authority(&json!({}))], "HTTP 401"),
    ];
    for (at, (answers, says)) in cases.into_iter().enumerate() {
        let villain = Villain::start(&answers).await;
        let name = format!("villain-{at}");
        register(&app, &name, &format!("{}/mcp", villain.origin)).await;
        let refused = begin(&app, &name).await;
        assert!(refused.status >= 400 && refused.text.contains(says), "{at} ({says}): {refused:?}");
        villain.end();
    }
    app.stop().await;
}

#[tokio::test]
async fn garbage_in_place_of_tokens_is_no_login() {
    let app = serving().await;
    let client = ("/register", Scripted::Json(json!({"client_id": "c"})));
    for (at, (token, says)) in [
        (Scripted::Json(json!({"access_token": "a\r\nX-Evil: 1"})), "cannot be sent"),
        (Scripted::Json(json!({"access_token": {"a": 1}})), "no access token"),
        (Scripted::Json(json!({"access_token": "a", "token_type": "mac"})), "no bearer token"),
        (
            Scripted::Json(json!({"error": "invalid_grant", "error_description": "no\u{1b}[2J"})),
            "invalid_grant (no[2J)",
        ),
        (Scripted::Redirect("{O}/token".to_owned()), "HTTP 302"),
        (Scripted::Long(300 << 10), "more than the"),
    ]
    .into_iter()
    .enumerate()
    {
        let villain =
            Villain::start(&[resource(), authority(&json!({})), client.clone(), ("/token", token)]).await;
        let name = format!("villain-{at}");
        register(&app, &name, &format!("{}/mcp", villain.origin)).await;
        let begun = begin(&app, &name).await;
        assert_eq!(begun.status, 200, "{begun:?}");
        let address = Url::parse(begun.json()["authorize_url"].as_str().unwrap()).unwrap();
        let state = address.query_pairs().find(|(field, _)| field == "state").unwrap().1.into_owned();
        let page = app.get(&format!("/oauth/callback?state={state}&code=x")).await;
        assert!(page.status >= 400 && page.text.contains(says), "{at}: {page:?}");
        assert_eq!(login_status(&app, &name).await["attempt"]["state"], "failed");
        assert_ne!(status(&app, &name).await["login"], "done");
        villain.end();
    }
    app.stop().await;
}

#[tokio::test]
async fn one_that_says_nothing_is_not_waited_for_without_end() {
    let app = serving().await;
    let villain = Villain::start(&[(RESOURCE, Scripted::Silence)]).await;
    register(&app, "villain", &format!("{}/mcp", villain.origin)).await;
    let refused = begin(&app, "villain").await;
    assert_eq!(refused.refusal(), "504 timeout");
    assert!(refused.text.contains("did not answer in time"), "{refused:?}");
    villain.end();
    app.stop().await;
}
