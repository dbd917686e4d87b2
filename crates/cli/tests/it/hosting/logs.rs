//! What a server wrote and what happened to it: as much as was asked for, in order, to the end and no further.

use std::time::Duration;

use futures_util::StreamExt;
use serde_json::{Value, json};

use super::{Host, MISBEHAVING, SERVERS, on_each_provider};

on_each_provider!(logs_are_what_was_written_to_stderr);

async fn lines(host: &Host, query: &str) -> Vec<String> {
    let answer = host.app.get(&format!("{SERVERS}/talker/logs{query}")).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let lines = answer.json();
    lines.as_array().unwrap().iter().map(|line| line["line"].as_str().unwrap().to_owned()).collect()
}

async fn logs_are_what_was_written_to_stderr(host: Host) {
    let script = r#"i=0; while [ $i -lt 50 ]; do echo "line $i" >&2; i=$((i+1)); done
      printf '\033[31mred\033[0m \377\376 end\n' >&2; printf 'half a line' >&2; cat >/dev/null"#;
    host.register("talker", "cofer-test/busybox", json!({"cmd": ["sh", "-c", script]})).await;
    cofer_testkit::until("all lines", async || lines(&host, "").await.len() >= 51).await;
    let all = lines(&host, "").await;
    assert_eq!(all[..50], (0..50).map(|n| format!("line {n}")).collect::<Vec<_>>());
    assert_eq!(all[50], "\u{1b}[31mred\u{1b}[0m \u{fffd}\u{fffd} end");
    assert_eq!(lines(&host, "?tail=1").await.len(), 1);
    assert_eq!(lines(&host, "?tail=0").await, Vec::<String>::new());
    assert_eq!(lines(&host, "?tail=10000").await.len(), all.len());
    for bad in ["tail=-1", "tail=x", "tail=10001", "follow=perhaps", "since=1"] {
        let answer = host.app.get(&format!("{SERVERS}/talker/logs?{bad}")).await;
        assert_eq!(answer.refusal(), "422 validation_error", "{bad}");
    }
    let line = &host.app.get(&format!("{SERVERS}/talker/logs?tail=2")).await.json()[0];
    assert_eq!(line["stream"], "stderr");
    assert!(line["at"].as_str().unwrap().ends_with('Z'), "{line}");
    host.remove("talker").await;
    host.stop().await;
}

/// Follows the log until the stream ends by itself.
fn follow(host: &Host, query: &str) -> tokio::task::JoinHandle<String> {
    let request = host.app.http.get(format!("{}{SERVERS}/talker/logs?follow=true{query}", host.app.url));
    let request = request.bearer_auth(&host.app.token).timeout(Duration::from_mins(1));
    tokio::spawn(async move {
        let response = request.send().await.unwrap();
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        let mut chunks = response.bytes_stream();
        let mut text = String::new();
        while let Some(chunk) = chunks.next().await {
            // Cofer's end may come in the middle of a chunk.
            let Ok(chunk) = chunk else { break };
            text.push_str(&String::from_utf8_lossy(&chunk));
        }
        text
    })
}

#[tokio::test]
async fn followers_see_each_line_once_masked_and_are_let_go_when_the_server_is_removed() {
    let Some(host) = Host::new("docker").await else { return };
    host.app.put("/api/v1/projects/default/secrets/KEY", &json!({"value": "hunter2-very-secret"})).await;
    let more = json!({"environment": {"K": "${KEY}"}, "cmd": ["--stderr-line", "before"]});
    host.hosted("talker", MISBEHAVING, more).await;
    let (all, none) = (follow(&host, ""), follow(&host, "&tail=0"));
    host.log_readers(2).await;
    let said = json!({"exit_code": 1, "stderr": "said hunter2-very-secret\u{1b}[2J"});
    host.try_tool("talker", "crash", said, 30_000).await;
    host.until("talker", "back", |status| status["status"] == "ready" && status["restart_count"] == 1).await;
    host.remove("talker").await;
    for (text, befores) in [(all.await.unwrap(), 2), (none.await.unwrap(), 1)] {
        let lines: Vec<Value> =
            text.lines().filter_map(|line| serde_json::from_str(line.strip_prefix("data: ")?).ok()).collect();
        let count = |wanted: &str| {
            lines.iter().filter(|line| line["line"].as_str().unwrap().contains(wanted)).count()
        };
        // One run was there before the crash, and one came after it.
        assert_eq!((count("before"), count("said ")), (befores, 1), "{text}");
        assert!(!text.contains("hunter2") && !text.contains('\u{1b}'), "{text}");
    }
    host.stop().await;
}

#[tokio::test]
async fn followers_do_not_keep_cofer_from_ending() {
    let Some(host) = Host::new("docker").await else { return };
    host.misbehaving("talker", &["--stderr-line", "here"]).await;
    let followers = [follow(&host, ""), follow(&host, ""), follow(&host, "")];
    host.log_readers(3).await;
    host.stop().await;
    for follower in followers {
        assert!(follower.await.unwrap().contains("here"));
    }
}

#[tokio::test]
async fn events_are_paged_through_without_a_gap() {
    let Some(host) = Host::new("docker").await else { return };
    host.misbehaving("talker", &[]).await;
    for _ in 0..4 {
        host.post("talker", "restart").await;
    }
    let whole = host.events("talker").await;
    assert!(whole.len() >= 5, "{whole:#?}");
    for event in &whole {
        assert!(
            event["at"].is_string() && event["kind"].is_string() && event["message"].is_string(),
            "{event:#}"
        );
        assert!(event.get("details").is_some(), "{event:#}");
    }
    let (mut paged, mut cursor) = (Vec::new(), String::new());
    loop {
        let answer = host.app.get(&format!("{SERVERS}/talker/events?limit=2{cursor}")).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        let page = answer.json();
        assert!((1..=2).contains(&page.as_array().unwrap().len()), "{page:#}");
        paged.extend(page.as_array().unwrap().clone());
        match answer.headers.get("x-next-cursor") {
            Some(next) => cursor = format!("&cursor={}", next.to_str().unwrap()),
            None => break,
        }
    }
    paged.reverse();
    // More may have happened since the first page, and nothing is missing.
    assert!(paged.starts_with(&whole), "{paged:#?}\n{whole:#?}");
    for bad in ["limit=0", "limit=1001", "limit=x", "cursor=x", "page=2"] {
        let answer = host.app.get(&format!("{SERVERS}/talker/events?{bad}")).await;
        assert_eq!(answer.refusal(), "422 validation_error", "{bad}");
    }
    host.stop().await;
}
