//! Hosting by hand: `cofer server`, `cofer volume`, `cofer provider`, as a person types them.

use cofer_testkit::until_seen;
use serde_json::{Value, json};

use super::{Host, MIRROR, MISBEHAVING, on_each_provider};

on_each_provider!(on gvisor, podman; a_server_from_the_first_image_to_the_last_log_line);

async fn a_server_from_the_first_image_to_the_last_log_line(host: Host) {
    let app = &host.app;
    let run = async |args: &[&str]| app.cofer(&[&["server"], args].concat()).await.succeeded().to_owned();
    let added = run(&[
        "add",
        "first",
        "--image",
        MISBEHAVING,
        "--volume",
        "/data",
        "--env",
        "A=1",
        "--memory",
        "128M",
        "--",
        "--stderr-line",
        "hello \u{1b}[31mred",
    ])
    .await;
    assert_eq!(added, format!("server first is ready ({})", host.provider));
    // An engine that is busy tells later what a server uses; a list does not wait for it.
    until_seen("a list with its memory", async || {
        let listed = run(&["ls"]).await;
        let mut lines = listed.lines();
        assert!(lines.next().unwrap().starts_with("NAME   STATUS  UP"), "{listed}");
        let row = lines.next().unwrap();
        assert!(row.starts_with("first  ready "), "{listed}");
        if row.contains("/128.0M") { Ok(()) } else { Err(listed) }
    })
    .await;
    let shown = run(&["show", "first"]).await;
    let order = [
        "workspace_id",
        "name",
        "project",
        "image",
        "status",
        "container_status",
        "provider",
        "uptime",
        "created_at",
    ];
    let places: Vec<_> = order
        .iter()
        .map(|field| shown.lines().position(|line| line.starts_with(&format!("{field} "))))
        .collect();
    assert!(places.iter().all(Option::is_some) && places.is_sorted(), "{places:?} {shown}");
    // What it says to its log and what it answers come by different ways.
    until_seen("its first words", async || {
        let logged = run(&["logs", "first"]).await;
        assert!(!logged.contains('\u{1b}'), "{logged:?}");
        if logged.ends_with("hello  [31mred") { Ok(()) } else { Err(logged) }
    })
    .await;
    let events = run(&["events", "first"]).await;
    assert!(events.starts_with("AT ") && events.contains("ready"), "{events}");
    let called = run(&["call", "first", "tools/call", r#"{"name":"echo","arguments":{"text":"hi"}}"#]).await;
    assert_eq!(serde_json::from_str::<Value>(&called).unwrap()["content"][0]["text"], "hi");
    assert!(called.starts_with("{\n  \"content\""), "{called}");
    for (verb, status) in [("stop", "stopped"), ("start", "ready"), ("restart", "ready")] {
        assert!(run(&[verb, "first"]).await.starts_with(&format!("server first is {status}")), "{verb}");
    }
    assert_eq!(run(&["rm", "first"]).await, "server first removed");
    let volumes = app.cofer(&["volume", "ls"]).await;
    let volumes = volumes.succeeded();
    assert!(volumes.contains("cofer-first-data-") && volumes.contains("false"), "{volumes}");
    run(&["add", "first", "--image", MISBEHAVING, "-v", "/data"]).await;
    assert_eq!(run(&["rm", "first", "--volumes"]).await, "server first removed");
    assert_eq!(app.cofer(&["volume", "ls", "--json"]).await.json(), json!([]));
    host.stop().await;
}

#[tokio::test]
async fn everything_can_be_had_as_json() {
    let Some(host) = Host::new("docker").await else { return };
    let app = &host.app;
    let run = async |args: &[&str]| app.cofer(&[args, &["--json"]].concat()).await.json();
    let added = run(&["server", "add", "j", "--image", MISBEHAVING, "--volume", "/data"]).await;
    assert_eq!((&added["name"], &added["status"]), (&json!("j"), &json!("ready")));
    assert_eq!(run(&["server", "ls"]).await[0]["workspace_id"], added["workspace_id"]);
    assert_eq!(run(&["server", "show", "j"]).await["name"], "j");
    assert!(run(&["server", "logs", "j"]).await.is_array());
    assert!(!run(&["server", "events", "j"]).await.as_array().unwrap().is_empty());
    assert_eq!(run(&["server", "call", "j", "ping"]).await, json!({}));
    assert_eq!(run(&["server", "restart", "j"]).await[0]["status"], "ready");
    assert_eq!(run(&["provider", "ls"]).await.as_array().unwrap().len(), 6);
    assert_eq!(run(&["volume", "ls"]).await[0]["in_use"], true);
    let refused = app.cofer(&["server", "show", "nope", "--json"]).await;
    let error: Value = serde_json::from_str(refused.failed_with(3)).unwrap();
    assert_eq!(error["error"]["code"], "not_found");
    app.cofer(&["server", "rm", "j", "--volumes", "--json"]).await.succeeded();
    host.stop().await;
}

#[tokio::test]
async fn exit_codes_and_errors_say_what_to_do() {
    let Some(host) = Host::new("docker").await else { return };
    let app = &host.app;
    host.misbehaving("there", &[]).await;
    host.hosted("keeper", MISBEHAVING, json!({"volumes": ["/data"]})).await;
    let volumes = app.get(super::VOLUMES).await.json();
    let volume = volumes[0]["name"].as_str().unwrap();
    let hang = r#"{"name":"hang"}"#;
    for (args, code, said) in [
        (&["server", "add"][..], 2, "NAME"),
        (&["server", "add", "x"], 2, "--image"),
        (&["server", "add", "x", "--image", "a", "--npx", "b"], 2, "cannot be used with"),
        (&["server", "add", "a b", "--image", MISBEHAVING], 2, "name"),
        (&["server", "add", "x", "--image", MISBEHAVING, "--memory", "1K"], 2, "memory"),
        (&["server", "add", "x", "--image", MISBEHAVING, "--restart", "maybe"], 2, "always"),
        (&["server", "add", "x", "--image", MISBEHAVING, "--port", "x"], 2, "8080"),
        (
            &["server", "add", "x", "--image", MISBEHAVING, "--env", "NO_SUCH_VARIABLE"],
            2,
            "--env NO_SUCH_VARIABLE=VALUE",
        ),
        (&["server", "add", "x", "--image", MISBEHAVING, "--env", "A=${NOPE}"], 2, "cofer secret set"),
        (&["server", "add", "x", "--image", "cofer-test/no-such-image"], 2, "could not be pulled"),
        (&["server", "add", "x", "--image", MISBEHAVING, "--provider", "firecracker"], 6, "later version"),
        (&["server", "add", "x", "--image", MISBEHAVING, "--project", "nope"], 3, "nope"),
        (&["server", "add", "there", "--image", MISBEHAVING], 4, "choose another name"),
        (&["server", "show", "nope"], 3, "nope"),
        (&["server", "logs", "nope"], 3, "nope"),
        (&["server", "logs", "-f", "nope"], 3, "nope"),
        (&["server", "events", "nope"], 3, "nope"),
        (&["server", "restart", "nope"], 3, "nope"),
        (&["server", "rm", "nope"], 3, "nope"),
        (&["server", "call", "there", "no/such"], 3, "-32601"),
        (&["server", "call", "there", "ping", "{"], 2, "not JSON"),
        (&["server", "call", "there", "tools/call", hang, "--timeout-ms", "200"], 6, "200 ms"),
        (&["server", "call", "there", "ping", "--timeout-ms", "0"], 2, "timeout"),
        (&["volume", "rm", volume], 4, "cofer server rm --volumes"),
        (&["volume", "rm", "nope"], 3, "nope"),
    ] {
        let ran = app.cofer(args).await;
        let error = ran.failed_with(code);
        assert!(error.contains(said), "{args:?}: {error}");
        assert_eq!(ran.stdout, "", "{args:?}");
    }
    let made = app.post("/api/v1/tokens", &json!({"name": "r", "scopes": ["admin:read"]})).await.json();
    let reader = [("COFER_TOKEN", made["token"].as_str().unwrap())];
    app.cofer_with(&reader, &["server", "ls"]).await.succeeded();
    assert!(app.cofer_with(&reader, &["server", "rm", "there"]).await.failed_with(5).contains("admin:write"));
    app.cofer(&["server", "stop", "there"]).await.succeeded();
    assert!(app.cofer(&["server", "call", "there", "ping"]).await.failed_with(6).contains("stopped"));
    host.remove("keeper").await;
    host.stop().await;
}

#[tokio::test]
async fn a_variable_is_taken_from_here_and_a_command_from_after_the_dashes() {
    let Some(host) = Host::new("docker").await else { return };
    let args = [
        "server",
        "add",
        "env",
        "--image",
        MISBEHAVING,
        "-e",
        "FROM_HERE",
        "-e",
        "EMPTY=",
        "-e",
        "EQUALS=a=b",
        "--user",
        "1000",
        "--workdir",
        "/tmp",
        "--cpu",
        "1",
        "--disk",
        "2G",
        "--pids",
        "64",
        "--network",
        "none",
        "--restart",
        "never",
        "--call-timeout-ms",
        "5000",
        "--max-in-flight",
        "2",
        "--health-interval-ms",
        "9000",
        "--",
        "--server-name",
        "--weird name--",
    ];
    host.app.cofer_with(&[("FROM_HERE", "a value\nof two lines")], &args).await.succeeded();
    let env = &host.facts("env", "env", json!({})).await["env"];
    assert_eq!(
        (&env["FROM_HERE"], &env["EMPTY"], &env["EQUALS"]),
        (&json!("a value\nof two lines"), &json!(""), &json!("a=b"))
    );
    let status = host.status("env").await;
    assert_eq!(status["server_info"]["name"], "--weird name--");
    let limits = json!({"cpu": "1", "memory": "512M", "disk": "2G", "pids": 64});
    for (field, value) in [
        ("resource_limits", limits),
        ("user", json!("1000")),
        ("workdir", json!("/tmp")),
        ("network", json!("none")),
        ("restart_policy", json!("never")),
        ("call_timeout_ms", json!(5000)),
        ("max_in_flight", json!(2)),
        ("health_interval_ms", json!(9000)),
    ] {
        assert_eq!(status[field], value, "{field}: {status:#}");
    }
    host.stop().await;
}

#[tokio::test]
async fn following_a_log_ends_with_the_server_and_shows_each_line_once() {
    let Some(host) = Host::new("docker").await else { return };
    host.misbehaving("talker", &["--stderr-line", "early"]).await;
    let app = &host.app;
    let act = async {
        host.log_readers(1).await;
        let said = json!({"exit_code": 1, "stderr": "last\u{1b}]0;title\u{7} words"});
        host.try_tool("talker", "crash", said, 30_000).await;
        host.until("talker", "back", |status| status["status"] == "ready" && status["restart_count"] == 1)
            .await;
        host.remove("talker").await;
    };
    let (ran, ()) = tokio::join!(app.cofer(&["server", "logs", "-f", "talker"]), act);
    let said = ran.succeeded();
    assert_eq!(said.matches("early").count(), 2, "{said}");
    assert_eq!(said.matches("last ]0;title  words").count(), 1, "{said:?}");
    assert!(!said.contains(['\u{1b}', '\u{7}']), "{said:?}");
    host.stop().await;
}

#[tokio::test]
async fn whatever_a_server_says_does_nothing_to_a_terminal() {
    let Some(host) = Host::new("docker").await else { return };
    let nasty = "\u{1b}[2J\u{9b}31m\u{7f}\u{202e}\r\n\u{0007}";
    host.misbehaving("nasty", &["--server-name", nasty, "--stderr-line", nasty]).await;
    let app = &host.app;
    let echo = json!({"name": "echo", "arguments": {"text": nasty}}).to_string();
    let error = json!({"name": "error", "arguments": {"message": nasty, "data": nasty}}).to_string();
    host.try_tool("nasty", "crash", json!({"exit_code": 1, "stderr": nasty}), 30_000).await;
    host.until("nasty", "back", |status| status["status"] == "ready" && status["restart_count"] == 1).await;
    for args in [
        &["server", "ls"][..],
        &["server", "show", "nasty"],
        &["server", "logs", "nasty"],
        &["server", "events", "nasty"],
        &["server", "call", "nasty", "tools/call", &echo],
        &["server", "call", "nasty", "tools/call", &error],
        &["server", "call", "nasty", nasty],
        &["server", "show", nasty],
        &["server", "restart", "nasty"],
    ] {
        for format in [&[][..], &["--json"]] {
            let ran = app.cofer(&[args, format].concat()).await;
            let said = format!("{}{}", ran.stdout, ran.stderr);
            assert!(
                !said.contains(['\u{1b}', '\u{9b}', '\u{7f}', '\u{202e}', '\r', '\u{7}']),
                "{args:?}: {said:?}"
            );
        }
    }
    let echoed = app.cofer(&["server", "call", "nasty", "tools/call", &echo, "--json"]).await.json();
    assert_eq!(echoed["content"][0]["text"], nasty, "and it still means the same");
    host.stop().await;
}

#[tokio::test]
async fn calls_are_sent_as_they_were_typed_and_shown_as_they_were_answered() {
    let Some(host) = Host::new("docker").await else { return };
    host.hosted("mirror", "cofer-test/busybox", json!({"cmd": ["sh", "-c", MIRROR]})).await;
    let typed = r#"{"b":1.0,"a":12345678901234567890123,"a":1e2}"#;
    let ran = host.app.cofer(&["server", "call", "mirror", "some/method", typed, "--json"]).await;
    assert!(ran.succeeded().contains(&format!(r#""params":{typed}"#)), "{ran:?}");
    host.stop().await;
}
