//! Upstreams over HTTP: servers written by hand that say exactly what a test tells them to, and real ones.

mod credentials;
mod hostile;
mod legacy;
mod real;
mod streams;
mod upstream;

use std::time::Duration;

use cofer_mcp::wire::{Backoff, HttpTarget, Jitter, Wire, WireLimits, http_client, streamable};
use cofer_mcp::{CallError, Face, Handshake, Limits, Pump, Reply, shake_hands};
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use url::Url;

use upstream::{Asked, Upstream};

const SECONDS: Duration = Duration::from_secs(20);

fn limits() -> WireLimits {
    let backoff =
        Backoff { min: Duration::from_millis(10), max: Duration::from_millis(80), jitter: Jitter::None };
    WireLimits { message_bytes_max: 1 << 20, backoff, ..WireLimits::default() }
}

fn target(url: &Url) -> HttpTarget {
    HttpTarget { url: url.clone(), headers: vec![("Authorization".to_owned(), "Bearer s3cret".into())] }
}

fn client() -> reqwest::Client {
    // An error says that it was told already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    http_client()
}

fn pump(wire: Wire) -> (Pump, cofer_mcp::wire::Fault) {
    let limits = Limits { in_flight_max: 64, ..Limits::default() };
    (Pump::start(wire.stdin, wire.stdout, limits), wire.fault)
}

/// A pump over streamable HTTP, hands shaken, and the request for the upstream's own stream.
struct Greeted {
    upstream: Upstream,
    pump: Pump,
    fault: cofer_mcp::wire::Fault,
    listening: Asked,
}

async fn greeted() -> Greeted {
    let mut upstream = Upstream::start().await;
    let (pump, fault) = pump(streamable(target(&upstream.url), client(), limits()));
    let greeting = greeting(&pump);
    let hello = upstream.next().await;
    assert_eq!(hello.body["method"], "initialize");
    hello.answers_in_session("s-1", &json!({"protocolVersion": "2025-06-18"})).await;
    let initialized = upstream.next().await;
    assert_eq!(initialized.body["method"], "notifications/initialized");
    initialized.accepts().await;
    greeting.await.unwrap().unwrap();
    let listening = upstream.next().await;
    assert_eq!(listening.method, "GET");
    Greeted { upstream, pump, fault, listening }
}

fn greeting(pump: &Pump) -> JoinHandle<Result<Handshake, CallError>> {
    let pump = pump.clone();
    tokio::spawn(async move { shake_hands(&pump, &Face::default(), SECONDS).await })
}

/// Asks, and tells what came back: the result, or code and message and data of an error.
fn asking(pump: &Pump, method: &'static str) -> JoinHandle<Result<String, CallError>> {
    asking_for(pump, method, SECONDS)
}

fn asking_for(pump: &Pump, method: &'static str, timeout: Duration) -> JoinHandle<Result<String, CallError>> {
    let pump = pump.clone();
    tokio::spawn(async move { pump.call(method, None, timeout).await.map(told) })
}

fn told(reply: Reply) -> String {
    match reply {
        Reply::Result(result) => result.get().to_owned(),
        Reply::Error(error) => {
            format!(
                "{} {} {}",
                error.code,
                error.message,
                error.data.map_or("-".to_owned(), |data| data.to_string())
            )
        }
    }
}

fn reply_to(asked: &Value, result: &Value) -> Value {
    json!({"jsonrpc": "2.0", "id": asked["id"], "result": result})
}
