//! Credentials that change while a connection lasts: each request shows what is good then, and only what was refused is sent again.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use cofer_mcp::wire::{Credentials, HttpTarget, Next, Refusal, WireFault, sse_as, streamable_as};
use cofer_model::Kind;
use secrecy::SecretString;
use serde_json::json;

use super::upstream::Upstream;
use super::{asking, client, limits, pump};

/// Tokens one after the other, each good until it is refused.
#[derive(Debug)]
struct Tokens(Mutex<Vec<&'static str>>);

#[async_trait]
impl Credentials for Tokens {
    async fn bearer(&self) -> Result<Option<SecretString>, WireFault> {
        Ok(self.0.lock().unwrap().first().map(|token| SecretString::from(*token)))
    }

    async fn refused(&self, refusal: Refusal<'_>) -> Next {
        if refusal.status == 403 && refusal.challenge.is_empty() {
            return Next::Leave;
        }
        let mut tokens = self.0.lock().unwrap();
        if tokens.first().is_some_and(|token| refusal.was_shown(token)) {
            tokens.remove(0);
        }
        if tokens.is_empty() { Next::Barred(log_in(refusal.challenge)) } else { Next::Again }
    }
}

fn log_in(challenge: &str) -> WireFault {
    let message = format!("somebody has to log in ({challenge})");
    WireFault { kind: Kind::PreconditionFailed, message, status: Some(401), www_authenticate: None }
}

fn tokens(tokens: &[&'static str]) -> Arc<dyn Credentials> {
    Arc::new(Tokens(Mutex::new(tokens.to_vec())))
}

async fn refuse(upstream: &mut Upstream, shown: &str) {
    let asked = upstream.next().await;
    assert_eq!(asked.header("authorization"), shown);
    let headers = "WWW-Authenticate: Basic realm=\"x\"\r\nWWW-Authenticate: Bearer\r\n";
    asked.answers_with("401 Unauthorized", headers, "").await;
}

#[tokio::test]
async fn what_was_refused_is_sent_again_with_something_newer_and_then_that_is_shown() {
    let mut upstream = Upstream::start().await;
    let target = HttpTarget { url: upstream.url.clone(), headers: Vec::new() };
    let (pump, fault) = pump(streamable_as(target, Some(tokens(&["old", "new"])), client(), limits()));
    let answer = asking(&pump, "tools/call");
    refuse(&mut upstream, "Bearer old").await;
    let again = upstream.next().await;
    assert_eq!(again.header("authorization"), "Bearer new");
    again.answers(&json!("done")).await;
    assert_eq!(answer.await.unwrap().unwrap(), r#""done""#);
    let answer = asking(&pump, "tools/call");
    let next = upstream.next().await;
    assert_eq!(next.header("authorization"), "Bearer new");
    next.answers(&json!("done")).await;
    assert_eq!(answer.await.unwrap().unwrap(), r#""done""#);
    assert_eq!(fault.get(), None);
}

#[tokio::test]
async fn without_anything_newer_the_call_says_what_to_do_and_the_wire_goes_on() {
    let mut upstream = Upstream::start().await;
    let target = HttpTarget { url: upstream.url.clone(), headers: Vec::new() };
    let (pump, fault) = pump(streamable_as(target, Some(tokens(&["only"])), client(), limits()));
    let answer = asking(&pump, "tools/call");
    refuse(&mut upstream, "Bearer only").await;
    let told = answer.await.unwrap().unwrap();
    assert!(told.contains("somebody has to log in (Basic realm=\"x\", Bearer)"), "{told}");
    assert!(told.contains(r#""may_have_executed":false"#), "{told}");
    let answer = asking(&pump, "tools/call");
    let bare = upstream.next().await;
    assert_eq!(bare.headers.get("authorization"), None, "there is nothing to show any more");
    bare.answers(&json!("open to all")).await;
    assert_eq!(answer.await.unwrap().unwrap(), r#""open to all""#);
    assert_eq!(fault.get(), None);
}

#[tokio::test]
async fn nobody_is_asked_without_end() {
    let mut upstream = Upstream::start().await;
    let target = HttpTarget { url: upstream.url.clone(), headers: Vec::new() };
    let (pump, _) = pump(streamable_as(target, Some(tokens(&["a", "b", "c", "d"])), client(), limits()));
    let answer = asking(&pump, "tools/call");
    refuse(&mut upstream, "Bearer a").await;
    refuse(&mut upstream, "Bearer b").await;
    assert!(answer.await.unwrap().unwrap().contains("HTTP 401"));
}

#[tokio::test]
async fn the_older_transport_shows_them_too() {
    let mut upstream = Upstream::start().await;
    let target = HttpTarget { url: upstream.url.clone(), headers: Vec::new() };
    let dialling = tokio::spawn(sse_as(target, Some(tokens(&["old", "new"])), client(), limits()));
    refuse(&mut upstream, "Bearer old").await;
    let mut stream = upstream.next().await;
    assert_eq!(stream.header("authorization"), "Bearer new");
    stream.begins_stream().await;
    stream.says("event: endpoint\ndata: /messages\n\n").await;
    let (pump, _) = pump(dialling.await.unwrap().unwrap());
    let answer = asking(&pump, "tools/call");
    let asked = upstream.next().await;
    assert_eq!(asked.header("authorization"), "Bearer new");
    let reply = super::reply_to(&asked.body, &json!("done"));
    asked.accepts().await;
    stream.says(&format!("data: {reply}\n\n")).await;
    assert_eq!(answer.await.unwrap().unwrap(), r#""done""#);
}
