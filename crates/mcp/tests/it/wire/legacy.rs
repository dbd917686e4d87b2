//! The transport of 2024: one stream for everything that the upstream says.

use cofer_mcp::Ended;
use cofer_mcp::wire::{Wire, WireFault, sse};
use cofer_model::Kind;
use serde_json::json;
use tokio::task::JoinHandle;

use super::upstream::{Asked, Upstream};
use super::{asking, client, greeting, limits, pump, reply_to, target};

fn dialling(upstream: &Upstream) -> JoinHandle<Result<Wire, WireFault>> {
    tokio::spawn(sse(target(&upstream.url), client(), limits()))
}

/// The stream that carries everything, once it said where to post to.
async fn opened(upstream: &mut Upstream, endpoint: &str) -> Asked {
    let mut stream = upstream.next().await;
    assert_eq!((stream.method.as_str(), stream.header("accept")), ("GET", "text/event-stream"));
    stream.begins_stream().await;
    stream.says(&format!("event: endpoint\ndata: {endpoint}\n\n")).await;
    stream
}

#[tokio::test]
async fn messages_go_where_the_upstream_says_and_answers_come_by_its_stream() {
    let mut upstream = Upstream::start().await;
    let dialling = dialling(&upstream);
    let mut stream = opened(&mut upstream, "/messages?session=1").await;
    let (pump, fault) = pump(dialling.await.unwrap().unwrap());
    let greeting = greeting(&pump);
    let hello = upstream.next().await;
    assert_eq!((hello.method.as_str(), hello.path.as_str()), ("POST", "/messages?session=1"));
    assert_eq!(hello.header("authorization"), "Bearer s3cret");
    let reply = reply_to(&hello.body, &json!({"protocolVersion": "2024-11-05"}));
    hello.answers_with("202 Accepted", "", "Accepted").await;
    stream.says(&format!("event: message\ndata: {reply}\n\n: still here\n\n")).await;
    upstream.next().await.accepts().await;
    greeting.await.unwrap().unwrap();

    let answer = asking(&pump, "tools/call");
    let asked = upstream.next().await;
    let reply = reply_to(&asked.body, &json!("done"));
    asked.accepts().await;
    stream.says(&format!("data: {reply}\n\n")).await;
    assert_eq!(answer.await.unwrap().unwrap(), r#""done""#);

    let answer = asking(&pump, "tools/call");
    upstream.next().await.answers_with("500 Oops", "", "boom").await;
    assert!(answer.await.unwrap().unwrap().contains("HTTP 500"));
    assert_eq!(fault.get(), None);

    drop(pump);
    stream.sees_them_leave().await;
}

#[tokio::test]
async fn the_wire_ends_with_its_stream() {
    let mut upstream = Upstream::start().await;
    let dialling = dialling(&upstream);
    let stream = opened(&mut upstream, "/messages").await;
    let (pump, fault) = pump(dialling.await.unwrap().unwrap());
    drop(stream);
    assert_eq!(pump.ended().await, Ended::Stdout);
    let fault = fault.get().unwrap();
    assert_eq!(
        (fault.kind, fault.message.as_str()),
        (Kind::Unavailable, "the upstream ended its event stream")
    );
}

#[tokio::test]
async fn an_upstream_that_sends_us_elsewhere_or_nowhere_is_refused() {
    for (endpoint, expected) in [
        (
            "http://elsewhere.example/x",
            "the upstream says to post to another one, at http://elsewhere.example",
        ),
        ("http://[", "the upstream says to post to no address"),
    ] {
        let mut upstream = Upstream::start().await;
        let dialling = dialling(&upstream);
        let _stream = opened(&mut upstream, endpoint).await;
        assert_eq!(dialling.await.unwrap().unwrap_err().message, expected);
    }
    for (status, headers, expected) in [
        ("404 Not Found", "", "the upstream answered HTTP 404 Not Found"),
        ("200 OK", "Content-Type: text/html\r\n", "the upstream has no event stream at this address"),
        (
            "200 OK",
            "Content-Type: text/event-stream\r\n",
            "the upstream's stream ended before it said where to post to",
        ),
    ] {
        let mut upstream = Upstream::start().await;
        let dialling = dialling(&upstream);
        upstream.next().await.answers_with(status, headers, "").await;
        assert_eq!(dialling.await.unwrap().unwrap_err().message, expected);
    }
}
