//! `/api/v1/projects/:project/tool-calls`, over HTTP and by hand.

use cofer_testkit::app::App;
use serde_json::{Value, json};

use super::{behind, refusal_of};
use crate::serving;

const CALLS: &str = "/api/v1/projects/default/tool-calls";

/// As if these tools had been called, a second after another: tool, server, status, output.
async fn record(app: &App, calls: &[(&str, &str, &str, &str)]) {
    let mut db = behind(app).await;
    for (n, (tool, server, status, output)) in calls.iter().enumerate() {
        let insert = "INSERT INTO agent_run_tool_calls (id, project_id, tool_name, server, input, output, status, duration_ms, created_at) \
             SELECT $1, id, $2, $3, '{ \"z\":1, \"a\":12345678901234567890123 }', $4, $5, 7, $6 FROM projects WHERE name = 'default'";
        let id = format!("01935a3e-0000-7000-8000-{n:012}");
        let at = format!("2026-11-16T03:00:{n:02}.000Z");
        let insert =
            sqlx::query(insert).bind(id).bind(*tool).bind(*server).bind(*output).bind(*status).bind(at);
        insert.execute(&mut db).await.unwrap();
    }
}

async fn found(app: &App, query: &str) -> String {
    let answer = app.get(&format!("{CALLS}?{query}")).await;
    assert_eq!(answer.status, 200, "{query}: {answer:?}");
    let calls = answer.json();
    calls
        .as_array()
        .unwrap()
        .iter()
        .map(|call| call["tool_name"].as_str().unwrap())
        .collect::<Vec<_>>()
        .join(" ")
}

#[tokio::test]
async fn calls_are_found_by_what_is_asked_for() {
    let app = serving().await;
    record(
        &app,
        &[
            ("a", "time", "completed", "{}"),
            ("b", "git", "error", "cut off {"),
            ("c", "time", "timeout", "[1]"),
        ],
    )
    .await;
    for (query, tools) in [
        ("", "c b a"),
        ("tool=a", "a"),
        ("server=time", "c a"),
        ("status=error", "b"),
        ("since=2026-11-16T03:00:01Z", "c b"),
        ("until=2026-11-16T05:00:01%2B02:00", "a"),
        ("since=2026-11-16T03:00:01Z&until=2026-11-16T03:00:02Z", "b"),
        ("run_id=01935a3e-0000-7000-8000-000000000000", ""),
    ] {
        assert_eq!(found(&app, query).await, tools, "{query}");
    }
    let first = app.get(&format!("{CALLS}?limit=1")).await;
    // To the letter, and what is no JSON as a text.
    assert!(
        first.text.contains(r#""input":{ "z":1, "a":12345678901234567890123 },"output":[1]"#),
        "{}",
        first.text
    );
    assert!(app.get(&format!("{CALLS}?tool=b")).await.text.contains(r#""output":"cut off {""#));
    let fields: Vec<_> = [
        "id",
        "run_id",
        "tool_name",
        "server",
        "input",
        "output",
        "status",
        "duration_ms",
        "step_number",
        "caller",
        "trace_id",
        "created_at",
    ]
    .into();
    assert_eq!(
        serde_json::from_str::<Vec<serde_json::Map<String, Value>>>(&first.text).unwrap()[0]
            .keys()
            .collect::<Vec<_>>(),
        fields
    );
    for (query, refusal) in [
        ("limit=0", "422 validation_error limit"),
        ("limit=1001", "422 validation_error limit"),
        ("limit=x", "422 validation_error limit"),
        ("status=fine", "422 validation_error status"),
        ("since=yesterday", "422 validation_error since"),
        ("run_id=7", "422 validation_error run_id"),
        ("cursor=x", "422 validation_error cursor"),
        ("colour=red", "422 validation_error colour"),
    ] {
        assert_eq!(refusal_of(&app.get(&format!("{CALLS}?{query}")).await), refusal);
    }
    app.stop().await;
}

#[tokio::test]
async fn every_call_is_on_one_page() {
    let app = serving().await;
    let calls: Vec<_> = (0..7).map(|_| ("t", "s", "completed", "{}")).collect();
    record(&app, &calls).await;
    let (mut ids, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = app.get(&format!("{CALLS}?limit=3{cursor}")).await;
        ids.extend(page.json().as_array().unwrap().iter().map(|call| call["id"].clone()));
        let Some(next) = page.headers.get("x-next-cursor") else { break };
        cursor = format!("&cursor={}", next.to_str().unwrap());
    }
    let expected: Vec<_> = (0..7).rev().map(|n| json!(format!("01935a3e-0000-7000-8000-{n:012}"))).collect();
    assert_eq!(ids, expected);
    app.stop().await;
}

#[tokio::test]
async fn calls_by_hand() {
    let app = serving().await;
    record(&app, &[("a\u{1b}[2J", "time", "completed", "{\"n\":1e400}"), ("b", "git", "error", "{}")]).await;
    let ran = app.cofer(&["calls"]).await;
    let lines: Vec<_> = ran.succeeded().lines().collect();
    assert!(lines[0].starts_with("AT ") && lines[1].contains('b') && lines[1].contains("error"), "{ran:?}");
    assert!(lines[2].contains("a [2J") && !ran.stdout.contains('\u{1b}'), "{ran:?}");
    assert_eq!(
        app.cofer(&["calls", "--status", "error", "--json"]).await.json().as_array().unwrap().len(),
        1
    );
    assert_eq!(app.cofer(&["calls", "--tool", "b", "-n", "1"]).await.succeeded().lines().count(), 2);
    app.cofer(&["calls", "--since", "15m"]).await.succeeded();
    assert!(app.cofer(&["calls", "--since", "soon"]).await.failed_with(2).contains("15m"));
    assert!(app.cofer(&["calls", "--status", "fine"]).await.failed_with(2).contains("completed"));
    app.cofer(&["calls", "--project", "nope"]).await.failed_with(3);
    app.stop().await;
}
