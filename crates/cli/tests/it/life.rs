//! Starting, stopping, and everything in between.

use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::json;

use crate::hostile_clients::ask_without_reading;
use crate::{serving, start};

#[tokio::test]
async fn a_first_start_needs_nothing_and_leaves_a_private_directory_with_the_admin_token() {
    let app = serving().await;
    assert_eq!(app.get("/healthz").await.json()["status"], "ok");
    let names: Vec<_> = app
        .get("/api/v1/projects")
        .await
        .json()
        .as_array()
        .unwrap()
        .iter()
        .map(|p| p["name"].clone())
        .collect();
    assert_eq!(names, [json!("default")]);

    let mode = |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&app.data_dir()), 0o700);
    for file in ["admin.token", "master.key", "cofer.db", "cofer.lock"] {
        assert_eq!(mode(&app.data_dir().join(file)), 0o600, "{file}");
    }
    app.stop().await;
}

#[tokio::test]
async fn only_the_listening_line_goes_to_standard_output() {
    let app = serving().await;
    let url = app.url.clone();
    app.signal(Signal::TERM);
    let (_, ran) = app.wait().await;
    assert_eq!(ran.stdout, format!("listening on {url}\n"));
    assert!(ran.stderr.contains("stopped"), "{ran:?}");
}

#[tokio::test]
async fn what_was_made_is_there_after_a_restart_and_after_a_kill() {
    let app = serving().await;
    let token = app.token.clone();
    assert_eq!(app.post("/api/v1/projects", &json!({"name": "one"})).await.status, 201);
    let app = app.stop().await.serve().await;
    assert_eq!(app.token, token, "the admin token is made once");
    assert_eq!(app.post("/api/v1/projects", &json!({"name": "two"})).await.status, 201);
    let app = app.kill().await.serve().await;
    for name in ["default", "one", "two"] {
        assert_eq!(app.get(&format!("/api/v1/projects/{name}")).await.status, 200, "{name}");
    }
    app.stop().await;
}

#[tokio::test]
async fn a_second_server_on_one_data_directory_refuses_and_names_the_first() {
    let app = serving().await;
    let ran = app.cofer(&["serve", "--listen", "127.0.0.1:0"]).await;
    let message = ran.failed_with(4);
    assert!(
        message.contains(&format!("process id {}", app.pid())) && message.contains(&app.url),
        "{message}"
    );
    assert_eq!(app.get("/api/v1/projects").await.status, 200);
    app.stop().await;
}

#[tokio::test]
async fn a_second_server_is_refused_though_the_note_of_the_first_is_unreadable_or_gone() {
    let app = serving().await;
    let note = app.data_dir().join("cofer.lock");
    let refused = async || {
        let ran = app.cofer(&["serve", "--listen", "127.0.0.1:0"]).await;
        let message = ran.failed_with(4);
        assert!(message.contains("in use") && !message.contains("process id"), "{message}");
    };
    std::fs::write(&note, "{\"pid\":").unwrap();
    refused().await;
    std::fs::remove_file(&note).unwrap();
    refused().await;
    assert_eq!(app.get("/api/v1/projects").await.status, 200);
    app.stop().await.serve().await.stop().await;
}

#[tokio::test]
async fn two_paths_to_one_data_directory_meet() {
    let start = start();
    let link = start.path().join("link");
    std::fs::create_dir(start.data_dir()).unwrap();
    std::os::unix::fs::symlink("data", &link).unwrap();
    let up = "../".repeat(std::env::current_dir().unwrap().components().count());
    let relative = format!("{up}{}", start.data_dir().display());
    let app = start.serve().await;
    for path in [link.display().to_string(), relative] {
        let ran = app.cofer(&["serve", "--listen", "127.0.0.1:0", "--data-dir", &path]).await;
        assert!(ran.failed_with(4).contains(&app.url), "{path}: {ran:?}");
        app.cofer(&["project", "ls", "--data-dir", &path]).await.succeeded();
    }
    let start = app.stop().await;
    start.variable("COFER_DATA_DIR", link.display().to_string()).serve().await.stop().await;
}

#[tokio::test]
async fn whoever_looks_for_a_server_does_not_keep_one_from_starting() {
    let start = serving().await.kill().await;
    // `cofer project ls`, stopped in the middle of its look.
    let note = std::fs::File::open(start.data_dir().join("cofer.lock")).unwrap();
    note.try_lock_shared().unwrap();
    let app = start.serve().await;
    app.cofer(&["project", "ls"]).await.succeeded();
    app.stop().await;
}

#[tokio::test]
async fn a_server_on_another_machine_that_shares_the_directory_is_respected() {
    let start = serving().await.stop().await;
    // A network file system passes on locks of files, and keeps those of directories to the machine.
    let note = std::fs::File::options().write(true).open(start.data_dir().join("cofer.lock")).unwrap();
    note.try_lock().unwrap();
    let ran = start.cofer(&["serve", "--listen", "127.0.0.1:0"]).await;
    assert!(ran.failed_with(4).contains("in use"), "{ran:?}");
    drop(note);
    start.serve().await.stop().await;
}

#[tokio::test]
async fn the_request_that_is_suggested_can_be_pasted_into_a_shell_wherever_the_data_is() {
    let start = start();
    let dir = start.path().join("it's $HOME \"here\"; `id`");
    let app = start.variable("COFER_DATA_DIR", dir.display().to_string()).serve().await;
    let line = app.logged("try: curl").await;
    let (_, suggested) = line.split_once("try: ").unwrap();
    let script = format!("curl() {{ printf '%s\n' \"$@\"; }}\n{suggested}");
    let shell = tokio::process::Command::new("sh").args(["-c", &script]).output().await.unwrap();
    let token = std::fs::read_to_string(dir.join("admin.token")).unwrap();
    assert_eq!(
        String::from_utf8_lossy(&shell.stdout),
        format!("-H\nAuthorization: Bearer {}\n{}/api/v1/projects\n", token.trim(), app.url)
    );
    app.stop().await;
}

#[tokio::test]
async fn a_port_in_use_is_reported_with_what_to_do() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let ran = start().cofer(&["serve", "--listen", &address]).await;
    let message = ran.failed_with(4);
    assert!(message.contains(&address) && message.contains("--listen"), "{message}");
}

#[tokio::test]
async fn an_address_that_is_none_is_reported() {
    for address in ["nonsense", "127.0.0.1", "127.0.0.1:99999", "no-such-host.invalid:1"] {
        let ran = start().cofer(&["serve", "--listen", address]).await;
        assert!(ran.failed_with(2).contains("HOST:PORT"), "{address}: {ran:?}");
    }
}

#[tokio::test]
async fn a_data_directory_that_cannot_be_used_is_reported_with_what_to_do() {
    let start = start();
    let file = start.path().join("a-file");
    std::fs::write(&file, "").unwrap();
    for dir in
        [file.display().to_string(), file.join("below").display().to_string(), "/proc/cofer".to_owned()]
    {
        let ran = start.cofer(&["serve", "--listen", "127.0.0.1:0", "--data-dir", &dir]).await;
        assert!(ran.failed_with(5).contains("--data-dir"), "{ran:?}");
    }
}

#[tokio::test]
async fn a_request_in_flight_is_answered_before_the_server_stops() {
    let app = serving().await;
    // Its head is sent and half of its body; the rest follows after the signal.
    let (sender, body) = tokio::sync::mpsc::channel::<Result<Vec<u8>, std::io::Error>>(1);
    let stream =
        futures_util::stream::unfold(body, async |mut body| body.recv().await.map(|part| (part, body)));
    let request = app
        .request(reqwest::Method::POST, "/api/v1/projects")
        .bearer_auth(&app.token)
        .header("content-type", "application/json")
        .body(reqwest::Body::wrap_stream(stream));
    sender.send(Ok(br#"{"name":"#.to_vec())).await.unwrap();
    let answer = tokio::spawn(request.send());
    app.in_flight(2).await;
    app.signal(Signal::TERM);
    app.logged("stopping").await;
    sender.send(Ok(br#""late"}"#.to_vec())).await.unwrap();
    drop(sender);
    assert_eq!(answer.await.unwrap().unwrap().status(), 201);
    let (start, ran) = app.wait().await;
    assert_eq!(ran.code, Some(0));
    let app = start.serve().await;
    assert_eq!(app.get("/api/v1/projects/late").await.status, 200);
    app.stop().await;
}

#[tokio::test]
async fn a_request_that_does_not_end_is_cut_off_when_the_time_to_drain_is_over() {
    let app = start().arg("--drain-ms=200").serve().await;
    let address = app.url.trim_start_matches("http://").to_owned();
    let mut client = tokio::net::TcpStream::connect(address).await.unwrap();
    let head = format!(
        "POST /api/v1/projects HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{{",
        app.token
    );
    tokio::io::AsyncWriteExt::write_all(&mut client, head.as_bytes()).await.unwrap();
    app.in_flight(2).await;
    app.stop().await;
}

#[tokio::test]
async fn clients_that_never_read_or_never_speak_do_not_hold_up_the_end() {
    let app = start().arg("--header-timeout-ms=1000").serve().await;
    let silent = tokio::net::TcpStream::connect(app.url.trim_start_matches("http://")).await.unwrap();
    let deaf = ask_without_reading(&app).await;
    // Its answers fill what the kernel keeps for it; then no further one is begun.
    let mut answered = None;
    loop {
        let metrics = app.get("/metrics").await.text;
        let begun =
            metrics.lines().find(|line| line.contains(r#"_total{method="GET",route="/api/openapi.json""#));
        if answered.is_some() && answered.as_deref() == begun {
            break;
        }
        answered = begun.map(str::to_owned);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let began = Instant::now();
    app.stop().await;
    assert!(began.elapsed() < Duration::from_secs(15), "it took {:?}", began.elapsed());
    drop((silent, deaf));
}

#[tokio::test]
async fn listening_for_strangers_without_tls_is_warned_about() {
    let loud = start().listen("0.0.0.0:0").serve().await;
    loud.logged("without TLS").await;
    loud.stop().await;
    let quiet = start().listen("0.0.0.0:0").arg("--behind-proxy").serve().await;
    quiet.logged("admin token in").await;
    assert!(!quiet.log().contains("without TLS"));
    quiet.stop().await;
}

#[tokio::test]
async fn tools_for_whoever_a_proxy_lets_through_are_warned_about() {
    let open = start().arg("--behind-proxy").arg("--mcp-auth=none").serve().await;
    open.logged("whoever the proxy lets through can use every tool").await;
    open.stop().await;
}

#[tokio::test]
async fn tls_is_served_with_a_certificate_and_a_broken_one_is_reported() {
    let start = start();
    let (certificate, key) = (start.path().join("cert.pem"), start.path().join("key.pem"));
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    std::fs::write(&certificate, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let (certificate, key) = (certificate.display().to_string(), key.display().to_string());
    let broken =
        start.cofer(&["serve", "--tls-cert", &key, "--tls-key", &key, "--listen", "127.0.0.1:0"]).await;
    assert!(broken.failed_with(2).contains("TLS"), "{broken:?}");

    let app = start.arg(format!("--tls-cert={certificate}")).arg(format!("--tls-key={key}")).serve().await;
    assert!(app.url.starts_with("https://"), "{}", app.url);
    let trusting =
        reqwest::Client::builder().no_proxy().tls_danger_accept_invalid_certs(true).build().unwrap();
    let answer = trusting.get(format!("{}/healthz", app.url)).send().await.unwrap();
    assert_eq!(answer.status(), 200);

    let silent = tokio::net::TcpStream::connect(app.url.trim_start_matches("https://")).await.unwrap();
    let began = Instant::now();
    app.stop().await;
    assert!(began.elapsed() < Duration::from_secs(8), "a handshake that does not come is waited for");
    drop(silent);
}
