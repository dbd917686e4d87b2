//! What a server says by itself, and which client hears it.

use std::sync::{Arc, Weak};

use cofer_mcp::message::Notification;
use cofer_mcp::{Ear, Face};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::desk::{Desk, Entered, Whose};
use crate::outbox::{Next, Outbox};
use crate::session::Session;

fn raw(text: &str) -> Box<RawValue> {
    RawValue::from_string(text.to_owned()).unwrap()
}

fn session() -> Arc<Session> {
    Arc::new(Session::new(None, "2025-11-25", Face::default()))
}

fn says(desk: &Desk, method: &str, params: &str) {
    desk.hears(Notification { method: method.to_owned(), params: Some(raw(params)) });
}

/// A call with this token.
fn call<'a>(desk: &'a Desk, number: u64, session: &Arc<Session>, token: &str) -> (Arc<Outbox>, Entered<'a>) {
    let stream = Arc::new(Outbox::new(number));
    stream.set_token(Some(&raw(token)));
    let entered = desk.enter(number, session, &stream);
    (stream, entered)
}

/// Everything that was put in.
async fn all(outbox: &Outbox) -> Vec<Value> {
    outbox.end();
    let (mut all, mut last) = (Vec::new(), 0);
    while let Next::Message(number, message) = outbox.after(last).await {
        last = number;
        all.push(serde_json::from_slice(&message).unwrap());
    }
    all
}

#[tokio::test]
async fn progress_goes_to_its_own_call_under_the_clients_own_token() {
    let desk = Arc::new(Desk::new(Weak::new(), Whose::Everybodys));
    let (one, other) = (session(), session());
    let (first, _entered_first) = call(&desk, 7001, &one, r#""same""#);
    let (second, entered_second) = call(&desk, 7002, &other, r#""same""#);
    says(&desk, "notifications/progress", r#"{"progressToken":7001,"progress":1}"#);
    says(&desk, "notifications/progress", r#"{"progressToken":"7002","progress":2,"new":{}}"#);
    says(&desk, "notifications/progress", r#"{"progressToken":7003,"progress":3}"#);
    drop(entered_second);
    says(&desk, "notifications/progress", r#"{"progressToken":7002,"progress":4}"#);
    let first = all(&first).await;
    assert_eq!(first.len(), 1, "{first:?}");
    assert_eq!(
        (&first[0]["params"]["progressToken"], &first[0]["params"]["progress"]),
        (&"same".into(), &1.into())
    );
    let second = all(&second).await;
    assert_eq!(second.len(), 1, "a call that is over hears nothing: {second:?}");
    assert_eq!(second[0]["params"]["new"], serde_json::json!({}));
}

#[tokio::test]
async fn what_names_no_call_goes_to_the_only_one_and_at_the_level_its_client_wants() {
    let desk = Arc::new(Desk::new(Weak::new(), Whose::Everybodys));
    let client = session();
    assert!(client.set_level("warning") && !client.set_level("loud"));
    let (stream, entered) = call(&desk, 7101, &client, "1");
    assert!(desk.is_busy());
    says(&desk, "notifications/message", r#"{"level":"info","data":"quiet"}"#);
    says(&desk, "notifications/message", r#"{"level":"error","data":"loud"}"#);
    says(&desk, "notifications/message", r#"{"level":"of its own","data":"odd"}"#);
    says(&desk, "notifications/of/its/own", r#"{"x":1}"#);
    drop(entered);
    assert!(!desk.is_busy());
    let heard = all(&stream).await;
    let data: Vec<_> = heard.iter().map(|one| one["params"]["data"].as_str().unwrap_or("-")).collect();
    assert_eq!(data, ["loud", "odd", "-"]);
}

#[tokio::test]
async fn with_two_calls_of_one_client_it_goes_to_that_client_beside_them() {
    let desk = Arc::new(Desk::new(Weak::new(), Whose::Everybodys));
    let client = session();
    let (first, _one) = call(&desk, 7201, &client, "1");
    let (second, _two) = call(&desk, 7202, &client, "2");
    says(&desk, "notifications/message", r#"{"level":"error","data":"x"}"#);
    assert!(all(&first).await.is_empty() && all(&second).await.is_empty());
    assert_eq!(all(&client.general).await.len(), 1);
}
