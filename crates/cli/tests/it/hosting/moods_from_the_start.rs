//! The misbehaving server with each of its flags: what it does before it is asked for anything, and how it ends.

use serde_json::{Value, json};

use super::{Host, MISBEHAVING, SERVERS};

/// Registers, calls, restarts, calls and removes it: the life of a server that can be lived with.
async fn is_hosted_all_the_same(host: &Host, flags: &[&str]) -> Value {
    host.misbehaving("mood", flags).await;
    host.until_status("mood", "ready").await;
    host.works("mood").await;
    host.post("mood", "restart").await;
    host.until_status("mood", "ready").await;
    host.works("mood").await;
    let status = host.status("mood").await;
    assert_eq!(status["restart_count"], 0, "{flags:?}: {status:#}");
    host.remove("mood").await;
    assert_eq!(host.in_engines().await, Vec::<String>::new(), "{flags:?}");
    status
}

#[tokio::test]
async fn whatever_it_does_at_the_start_it_is_hosted_all_the_same() {
    let Some(host) = Host::new("docker").await else { return };
    for flags in [
        &["--slow-start-ms", "500"][..],
        &["--stderr-flood-at-start"],
        &["--children", "3", "--detached-children", "3"],
        &["--strict-handshake"],
        &["--exit-on-early-request"],
        &["--no-initialize"],
        &["--slow-initialize-ms", "300"],
        &["--serial"],
        &["--ignore-eof"],
        &["--sigterm-delay-ms", "300"],
        &["--journal", "/tmp/journal"],
    ] {
        is_hosted_all_the_same(&host, flags).await;
    }
    host.stop().await;
}

#[tokio::test]
async fn the_status_has_what_it_says_of_itself_and_nothing_that_it_does_not() {
    let Some(host) = Host::new("docker").await else { return };
    let seen =
        is_hosted_all_the_same(&host, &["--server-name", "n\u{1b}[1m", "--initialize-version", "1999-01-01"])
            .await;
    assert_eq!(
        (&seen["server_info"]["name"], &seen["protocol_version"]),
        (&json!("n\u{1b}[1m"), &json!("1999-01-01"))
    );
    let seen = is_hosted_all_the_same(&host, &["--no-initialize"]).await;
    assert_eq!((&seen["server_info"], &seen["protocol_version"]), (&Value::Null, &Value::Null));
    for (flags, count) in [
        (&["--only-fillers", "--tools", "250", "--page-size", "7"][..], json!(250)),
        (&["--only-fillers", "--tool-name", "a", "--tool-name", "b"], json!(2)),
        (&["--only-fillers", "--tools", "3", "--page-size", "2", "--endless-pages"], Value::Null),
    ] {
        host.misbehaving("lister", flags).await;
        // By the time that a second server was counted, the first one was.
        host.misbehaving("beside", &[]).await;
        host.until("beside", "counted", |status| status["tool_count"].is_u64()).await;
        host.until("lister", "counted", |status| status["tool_count"] == count).await;
        host.remove("lister").await;
        host.remove("beside").await;
    }
    host.stop().await;
}

#[tokio::test]
async fn one_that_answers_no_ping_or_answers_it_with_an_error_is_told_apart() {
    let Some(host) = Host::new("docker").await else { return };
    let asked = |flag: &str| json!({"cmd": [flag], "health_interval_ms": 100});
    host.hosted("deaf", MISBEHAVING, asked("--ignore-ping")).await;
    host.hosted("grumpy", MISBEHAVING, asked("--ping-error")).await;
    let status = host.until_status("deaf", "unresponsive").await;
    assert_eq!(
        (&status["restart_count"], &status["bridge_connected"]),
        (&json!(0), &json!(true)),
        "{status:#}"
    );
    // Any answer is life.
    assert_eq!(host.status("grumpy").await["status"], "ready");
    host.works("deaf").await;
    host.until_status("deaf", "ready").await;
    host.stop().await;
}

#[tokio::test]
async fn one_that_never_says_anything_is_unresponsive_and_its_calls_end_in_time() {
    let Some(host) = Host::new("docker").await else { return };
    let answer = host.register("silent", MISBEHAVING, json!({"cmd": ["--silent"]})).await;
    assert_eq!((answer.status, &answer.json()["status"]), (201, &json!("unresponsive")), "{answer:?}");
    let call = host.try_tool("silent", "echo", json!({}), 300).await;
    assert!(["503 unavailable", "504 timeout"].contains(&call.refusal().as_str()), "{call:?}");
    let status = host.status("silent").await;
    assert_eq!((&status["container_status"], &status["restart_count"]), (&json!("running"), &json!(0)));
    host.remove("silent").await;
    host.stop().await;
}

#[tokio::test]
async fn one_that_crashes_by_itself_comes_back_by_itself() {
    let Some(host) = Host::new("docker").await else { return };
    for flags in [
        &["--crash-after-calls", "1", "--exit-code", "9"][..],
        &["--crash-after-ms", "300", "--exit-code", "9"],
    ] {
        host.misbehaving("fragile", flags).await;
        let answer = host.try_tool("fragile", "echo", json!({"text": "x"}), 30_000).await;
        assert!([200, 502, 503].contains(&answer.status), "{answer:?}");
        let again = |status: &Value| status["restart_count"].as_u64() > Some(0);
        let status = host.until("fragile", "restarted", again).await;
        assert_eq!(status["last_exit"]["code"], 9, "{status:#}");
        host.remove("fragile").await;
    }
    host.stop().await;
}

#[tokio::test]
async fn one_that_ignores_sigterm_is_ended_all_the_same() {
    let Some(host) = Host::new("docker").await else { return };
    host.misbehaving("stubborn", &["--ignore-sigterm", "--ignore-eof", "--detached-children", "2"]).await;
    let answer = host.app.delete(&format!("{SERVERS}/stubborn")).await;
    assert_eq!(answer.status, 204, "{answer:?}");
    assert_eq!(host.in_engines().await, Vec::<String>::new());
    host.stop().await;
}

#[tokio::test]
async fn one_that_closes_its_stdout_or_stops_reading_is_not_called_for_ever() {
    let Some(host) = Host::new("docker").await else { return };
    host.hosted("shut", MISBEHAVING, json!({"health_interval_ms": 200})).await;
    let answer = host.try_tool("shut", "close_stdout", json!({}), 2_000).await;
    assert!(["502 upstream_error", "504 timeout"].contains(&answer.refusal().as_str()), "{answer:?}");
    // The init process beside it may hold the pipe open. Then silence is all there is to be noticed, and it is.
    let noticed = |status: &Value| status["status"] == "unresponsive" || status["restart_count"] == 1;
    host.until("shut", "noticed", noticed).await;
    host.post("shut", "restart").await;
    host.works("shut").await;

    host.misbehaving("full", &[]).await;
    host.tool("full", "stop_reading_stdin", json!({})).await;
    let long = "x".repeat(1 << 20);
    for _ in 0..3 {
        let answer = host.try_tool("full", "echo", json!({"text": long}), 300).await;
        assert_eq!(answer.refusal(), "504 timeout");
    }
    host.post("full", "restart").await;
    host.works("full").await;
    host.stop().await;
}

#[tokio::test]
async fn a_policy_is_kept_to_whatever_the_exit_code() {
    let Some(host) = Host::new("docker").await else { return };
    for (policy, code, expected) in [
        ("never", 1, "stopped"),
        ("never", 0, "stopped"),
        ("on-failure", 0, "stopped"),
        ("on-failure", 3, "ready"),
        ("always", 0, "ready"),
    ] {
        host.hosted("policy", MISBEHAVING, json!({"restart_policy": policy})).await;
        let answer = host.try_tool("policy", "crash", json!({"exit_code": code}), 30_000).await;
        assert_eq!(answer.refusal(), "502 upstream_error");
        let ended = |status: &Value| status["status"] == expected && status["last_exit"]["code"] == code;
        let status = host.until("policy", expected, ended).await;
        let restarts = u64::from(expected == "ready");
        assert_eq!(status["restart_count"], restarts, "{policy} {code}: {status:#}");
        if expected == "stopped" {
            let call = host.call("policy", "tools/list", json!({})).await;
            assert_eq!(call.refusal(), "503 unavailable");
            assert_eq!(host.post("policy", "start").await["status"], "ready");
        }
        host.works("policy").await;
        host.remove("policy").await;
    }
    host.stop().await;
}
