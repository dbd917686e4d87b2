//! SIGKILL of Cofer, and engines that go away: what runs afterwards is what was wanted, once each, and nothing else.
//!
//! - here: what a kill finds, and what it interrupts
//! - `random`: kills at random moments, with a seed
//! - `engines`: the engine goes away and comes back

mod engines;
mod random;

use reqwest::Method;
use serde_json::{Value, json};

use super::{Host, MISBEHAVING, SERVERS, on_each_provider};

on_each_provider!(
    a_server_outlives_a_sigkill_of_cofer_with_its_volume_its_counters_and_its_wish,
    answers_to_calls_of_an_earlier_life_reach_nobody,
    killed_while_a_server_starts,
    killed_while_calls_are_in_flight,
    killed_while_a_server_stops,
    killed_while_a_server_restarts,
    killed_while_a_server_is_deleted,
    killed_while_a_server_is_registered,
    killed_while_a_server_is_changed,
    killed_twice_in_a_row,
    a_deletion_under_way_is_finished_before_cofer_ends,
);

/// Long enough for everybody to see it stopping, also on a busy machine; it is cut short by the kill that follows.
const SLOW_TO_STOP: [&str; 2] = ["--sigterm-delay-ms", "9000"];

/// Podman closes a sandbox's stdin with the connection to it, so there a server is replaced.
fn adopts(host: &Host) -> bool {
    host.provider != "podman"
}

async fn a_server_outlives_a_sigkill_of_cofer_with_its_volume_its_counters_and_its_wish(host: Host) {
    host.hosted("keeper", MISBEHAVING, json!({"volumes": ["/data"]})).await;
    host.misbehaving("idle", &[]).await;
    host.post("idle", "stop").await;
    host.begin("keeper", "crash", &json!({"exit_code": 4})).await.unwrap();
    let before = host.until("keeper", "back", |s| s["status"] == "ready" && s["restart_count"] == 1).await;
    host.tool("keeper", "write_file", json!({"path": "/data/note", "text": "kept"})).await;
    host.tool("keeper", "echo", json!({"text": "once"})).await;
    let (container, seen) =
        (host.container("keeper").await, host.facts("keeper", "calls_seen", json!({})).await);

    let host = host.killed_and_started_again().await;
    host.until_only(&["keeper"]).await;
    let after = host.status("keeper").await;
    for field in ["workspace_id", "restart_count", "last_crash", "last_exit", "server_info", "tool_count"] {
        assert_eq!(before[field], after[field], "{field}: {after:#}");
    }
    let seen_since = host.facts("keeper", "calls_seen", json!({})).await;
    assert_eq!(host.container("keeper").await == container, adopts(&host));
    if adopts(&host) {
        assert_eq!(seen_since["pid"], seen["pid"]);
        // This one, and the one that `until_only` made.
        assert_eq!(seen_since["calls"]["echo"], 2, "{seen_since:#}");
        host.event("keeper", "adopted").await;
    }
    let note = host.facts("keeper", "read_file", json!({"path": "/data/note"})).await;
    assert_eq!(note["text"], "kept");
    assert_eq!(host.status("idle").await["status"], "stopped");
    host.remove("keeper").await;
    host.stop().await;
}

async fn answers_to_calls_of_an_earlier_life_reach_nobody(host: Host) {
    host.hosted("late", MISBEHAVING, json!({"max_in_flight": 20, "cmd": ["--ignore-eof"]})).await;
    for _ in 0..8 {
        host.begin("late", "late", &json!({"ms": 4000, "text": "stale"}));
    }
    host.begin("late", "half_line", &json!({"ms": 3000, "then": "rest"}));
    host.app.in_flight(10).await;
    let container = host.container("late").await;

    let host = host.killed_and_started_again().await;
    host.until_status("late", "ready").await;
    assert_eq!(host.container("late").await == container, adopts(&host));
    let fresh = |ms: u64| {
        let arguments = json!({"ms": ms, "text": format!("fresh {ms}")});
        let (host, params) = (&host, json!({"name": "late", "arguments": arguments}));
        async move { (ms, host.call("late", "tools/call", params).await) }
    };
    // The last of these is answered after every answer of the earlier life.
    let asked = (0..16).map(|step| fresh(step * 300));
    for (ms, answer) in futures_util::future::join_all(asked).await {
        assert_eq!(answer.json()["result"]["content"][0]["text"], format!("fresh {ms}"), "{answer:?}");
    }
    host.until_only(&["late"]).await;
    host.stop().await;
}

async fn killed_while_a_server_starts(host: Host) {
    let body = json!({"name": "slow", "image": MISBEHAVING, "provider": host.provider, "cmd": ["--slow-start-ms", "3000"]});
    let _unanswered = host.ask(Method::POST, "", Some(body));
    cofer_testkit::until("a container", async || {
        host.containers().await.iter().any(cofer_testkit::engines::Container::runs)
    })
    .await;
    let host = host.killed_and_started_again().await;
    host.until_only(&["slow"]).await;
    assert_eq!(host.status("slow").await["restart_count"], 0);
    host.stop().await;
}

async fn killed_while_calls_are_in_flight(host: Host) {
    host.misbehaving("busy", &["--ignore-eof"]).await;
    for _ in 0..10 {
        host.begin("busy", "hang", &json!({}));
    }
    host.app.in_flight(11).await;
    let host = host.killed_and_started_again().await;
    host.until_only(&["busy"]).await;
    assert_eq!(host.status("busy").await["restart_count"], 0);
    host.stop().await;
}

async fn killed_while_a_server_stops(host: Host) {
    host.misbehaving("leaving", &SLOW_TO_STOP).await;
    let _unanswered = host.ask(Method::POST, "/leaving/stop", None);
    host.until_status("leaving", "stopping").await;
    let host = host.killed_and_started_again().await;
    host.until_only(&[]).await;
    host.until_status("leaving", "stopped").await;
    host.post("leaving", "start").await;
    host.until_only(&["leaving"]).await;
    host.stop().await;
}

async fn killed_while_a_server_restarts(host: Host) {
    host.misbehaving("again", &SLOW_TO_STOP).await;
    let _unanswered = host.ask(Method::POST, "/again/restart", None);
    host.until_status("again", "restarting").await;
    let host = host.killed_and_started_again().await;
    host.until_only(&["again"]).await;
    host.stop().await;
}

async fn killed_while_a_server_is_deleted(host: Host) {
    host.misbehaving("doomed", &SLOW_TO_STOP).await;
    host.misbehaving("other", &[]).await;
    let _unanswered = host.ask(Method::DELETE, "/doomed", None);
    let gone = async |host: &Host| host.app.get(&format!("{SERVERS}/doomed")).await.status == 404;
    cofer_testkit::until("deleted", async || gone(&host).await).await;
    let host = host.killed_and_started_again().await;
    host.until_only(&["other"]).await;
    assert!(gone(&host).await);
    // Nor does it come back, or keep its name.
    let host = host.killed_and_started_again().await;
    host.until_only(&["other"]).await;
    host.misbehaving("doomed", &[]).await;
    host.until_only(&["other", "doomed"]).await;
    host.stop().await;
}

async fn killed_while_a_server_is_registered(host: Host) {
    let body = json!({"name": "new", "image": MISBEHAVING, "provider": host.provider});
    let _unanswered = host.ask(Method::POST, "", Some(body));
    cofer_testkit::until("listed", async || host.app.get(SERVERS).await.json() != json!([])).await;
    let host = host.killed_and_started_again().await;
    host.until_only(&["new"]).await;
    host.stop().await;
}

async fn killed_while_a_server_is_changed(host: Host) {
    host.misbehaving("changing", &SLOW_TO_STOP).await;
    // Elsewhere: the sandbox of before is not in the way of the new one, and must go all the same.
    let elsewhere = if host.provider == "podman" { "docker" } else { "podman" };
    let change = json!({"provider": elsewhere, "environment": {"COLOUR": "blue"}});
    let _unanswered = host.ask(Method::PATCH, "/changing", Some(change));
    host.until_status("changing", "restarting").await;
    let host = host.killed_and_started_again().await;
    host.until_only(&["changing"]).await;
    assert_eq!(host.status("changing").await["provider"], elsewhere);
    let seen: Value = host.facts("changing", "env", json!({})).await;
    assert_eq!(seen["env"]["COLOUR"], "blue");
    host.stop().await;
}

async fn killed_twice_in_a_row(host: Host) {
    for name in ["one", "two"] {
        host.misbehaving(name, &[]).await;
    }
    // The second one comes while the first is being recovered from.
    let host = host.killed_and_started_again().await.killed_and_started_again().await;
    host.until_only(&["one", "two"]).await;
    for name in ["one", "two"] {
        assert_eq!(host.status(name).await["restart_count"], 0);
    }
    host.stop().await;
}

async fn a_deletion_under_way_is_finished_before_cofer_ends(host: Host) {
    host.misbehaving("doomed", &SLOW_TO_STOP).await;
    let unanswered = host.ask(Method::DELETE, "/doomed", None);
    let path = format!("{SERVERS}/doomed");
    cofer_testkit::until("deleted", async || host.app.get(&path).await.status == 404).await;
    // Nobody waits for the answer any more, so nothing is in flight that would hold up the end.
    unanswered.abort();
    let label = format!("cofer.instance={}", host.app.instance());
    let _looked_over_for_leaks = host.stop().await;
    for engine in cofer_testkit::engines::all_present() {
        let left = engine.containers(&label).await.unwrap();
        assert!(left.is_empty(), "{left:#?}");
    }
}
