//! What a person types, and what they see.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;

use cofer_testkit::app::{Ran, Start};
use rustls::pki_types::PrivateKeyDer;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use serde_json::{Value, json};

use crate::{serving, start};

/// Runs a command whose output goes somewhere of the test's choice.
async fn cofer_into(stdout: impl Into<Stdio>, data_dir: &Path, args: &[&str]) -> Ran {
    let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_cofer"));
    command.args(args).env_clear().env("COFER_DATA_DIR", data_dir).kill_on_drop(true);
    command.stdin(Stdio::null()).stdout(stdout).stderr(Stdio::piped());
    command.spawn().unwrap().wait_with_output().await.unwrap().into()
}

/// The certificate of a server, and its key, as files to start it with.
fn with_tls(start: Start, certificate: &rcgen::Certificate, key: &rcgen::KeyPair) -> Start {
    let (certificate_file, key_file) = (start.path().join("cert.pem"), start.path().join("key.pem"));
    std::fs::write(&certificate_file, certificate.pem()).unwrap();
    std::fs::write(&key_file, key.serialize_pem()).unwrap();
    start
        .arg(format!("--tls-cert={}", certificate_file.display()))
        .arg(format!("--tls-key={}", key_file.display()))
}

/// Shows this certificate, holds this key, and answers one request with an empty list. Gives its address.
fn impostor(certificate: &rcgen::Certificate, key: &rcgen::KeyPair) -> String {
    let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let key = rustls::crypto::ring::sign::any_supported_type(&key).unwrap();
    let shown = CertifiedKey::new(vec![certificate.der().clone()], key);
    let config = rustls::ServerConfig::builder()
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(SingleCertAndKey::from(shown)));
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut connection = rustls::ServerConnection::new(Arc::new(config)).unwrap();
        let mut tls = rustls::Stream::new(&mut connection, &mut stream);
        // A client that does not believe us hangs up.
        let asked =
            BufReader::new(&mut tls).lines().take_while(|line| line.as_ref().is_ok_and(|l| !l.is_empty()));
        if asked.count() > 0 {
            tls.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n[]").unwrap();
        }
    });
    url
}

/// A disk with no room left.
fn full() -> File {
    File::options().write(true).open("/dev/full").unwrap()
}

/// A pipe whose reader has left.
fn abandoned() -> std::io::PipeWriter {
    let (_, writer) = std::io::pipe().unwrap();
    writer
}

#[tokio::test]
async fn a_local_server_is_found_by_itself_and_projects_are_managed_by_hand() {
    let app = serving().await;
    assert_eq!(
        app.cofer(&["project", "create", "web", "--description", "the shop"]).await.succeeded(),
        "project web created"
    );
    let listed = app.cofer(&["project", "ls"]).await;
    let lines: Vec<_> =
        listed.succeeded().lines().map(|line| line.split_whitespace().next().unwrap().to_owned()).collect();
    assert_eq!(lines, ["NAME", "default", "web"]);
    assert_eq!(app.cofer(&["project", "ls", "--json"]).await.json()[1]["description"], "the shop");
    app.cofer(&["project", "update", "web", "--namespacing", "conflict"]).await.succeeded();
    assert_eq!(app.cofer(&["project", "show", "web", "--json"]).await.json()["namespacing"], "conflict");
    assert_eq!(app.cofer(&["project", "rm", "web"]).await.succeeded(), "project web removed");
    app.stop().await;
}

#[tokio::test]
async fn exit_codes_tell_what_went_wrong() {
    let app = serving().await;
    app.cofer(&["project", "create", "web"]).await.succeeded();
    assert!(app.cofer(&["project", "create", "web"]).await.failed_with(4).contains("choose another name"));
    assert!(
        app.cofer(&["project", "show", "nope"]).await.failed_with(3).contains("there is no project `nope`")
    );
    assert!(app.cofer(&["project", "create", "a/b"]).await.failed_with(2).contains("a project name is"));
    assert!(app.cofer(&["project", "create"]).await.failed_with(2).contains("<NAME>"));
    assert!(
        app.cofer(&["project", "show", "../tokens"]).await.failed_with(3).contains("there is no project")
    );
    let stranger = app.cofer_with(&[("COFER_TOKEN", "wrong")], &["project", "ls"]).await;
    assert!(stranger.failed_with(5).contains("not known here"), "{stranger:?}");
    app.stop().await;
    let alone = start().cofer(&["project", "ls"]).await;
    assert!(alone.failed_with(6).contains("cofer serve"), "{alone:?}");
    let nobody = start().cofer(&["project", "ls", "--url", "http://127.0.0.1:1"]).await;
    assert!(nobody.failed_with(6).contains("no answer from http://127.0.0.1:1"), "{nobody:?}");
}

#[tokio::test]
async fn errors_are_the_envelope_when_json_is_asked_for() {
    let app = serving().await;
    let ran = app.cofer(&["--json", "project", "show", "nope"]).await;
    let error: serde_json::Value = serde_json::from_str(ran.failed_with(3)).unwrap();
    assert_eq!(error["error"]["code"], "not_found");
    assert_eq!(error["error"]["trace_id"].as_str().unwrap().len(), 32);
    app.stop().await;
}

#[tokio::test]
async fn a_token_made_by_hand_works_from_elsewhere_and_is_revoked_by_hand() {
    let app = serving().await;
    let made = app
        .cofer(&["token", "create", "ci", "--scope", "admin:read,tools:call", "--expires-in", "30d"])
        .await;
    let token = made.succeeded().to_owned();
    assert!(token.starts_with("cofer_") && token.len() == 58, "the token alone, for scripts: {token}");
    let elsewhere =
        [("COFER_URL", app.url.as_str()), ("COFER_TOKEN", token.as_str()), ("COFER_DATA_DIR", "/nowhere")];
    app.cofer_with(&elsewhere, &["project", "ls"]).await.succeeded();
    let lacking = app.cofer_with(&elsewhere, &["project", "create", "x"]).await;
    assert!(lacking.failed_with(5).contains("admin:write"), "{lacking:?}");
    let listed = app.cofer(&["token", "ls"]).await;
    assert!(listed.succeeded().contains("admin:read,tools:call") && !listed.stdout.contains(&token));
    app.cofer(&["token", "rm", "ci"]).await.succeeded();
    app.cofer_with(&elsewhere, &["project", "ls"]).await.failed_with(5);
    assert!(
        app.cofer(&["token", "create", "x", "--scope", "root"]).await.failed_with(2).contains("admin:read")
    );
    app.stop().await;
}

#[tokio::test]
async fn the_local_admin_token_is_never_sent_to_an_address_that_somebody_named() {
    let app = serving().await;
    let ran = app.cofer(&["project", "ls", "--url", &app.url]).await;
    assert!(ran.failed_with(5).contains("COFER_TOKEN"), "{ran:?}");
    app.stop().await;
}

#[tokio::test]
async fn a_token_in_the_environment_is_used_before_one_in_a_file() {
    let app = start().variable("COFER_ADMIN_TOKEN", "an-operators-own-choice").serve().await;
    std::fs::write(app.data_dir().join("admin.token"), "left-from-another-life\n").unwrap();
    app.cofer(&["project", "ls"]).await.succeeded();
    let chosen = app.cofer_with(&[("COFER_TOKEN", "wrong")], &["project", "ls"]).await;
    chosen.failed_with(5);
    app.stop().await;
}

#[tokio::test]
async fn a_local_server_is_known_by_its_certificate_whoever_signed_it_and_for_whatever_name() {
    let made = rcgen::generate_simple_self_signed(["elsewhere.invalid".to_owned()]).unwrap();
    let app = with_tls(start(), &made.cert, &made.signing_key).serve().await;
    assert!(app.url.starts_with("https://"), "{}", app.url);
    app.cofer(&["project", "ls"]).await.succeeded();
    // An authority that was set for other servers changes nothing here.
    app.cofer_with(&[("COFER_CA_CERT", "/nowhere")], &["project", "ls"]).await.succeeded();
    let named = app.cofer_with(&[("COFER_TOKEN", &app.token)], &["project", "ls", "--url", &app.url]).await;
    assert!(named.failed_with(6).contains("--ca-cert"), "{named:?}");

    let note = app.data_dir().join("cofer.lock");
    let pretend = |url: &str| {
        let mut text: Value = serde_json::from_slice(&std::fs::read(&note).unwrap()).unwrap();
        text["url"] = json!(url);
        std::fs::write(&note, text.to_string()).unwrap();
    };
    pretend(&impostor(&made.cert, &made.signing_key));
    assert_eq!(
        app.cofer(&["project", "ls", "--json"]).await.json(),
        json!([]),
        "the same certificate and key"
    );
    let other = rcgen::generate_simple_self_signed(["elsewhere.invalid".to_owned()]).unwrap();
    for (certificate, key) in [(&other.cert, &other.signing_key), (&made.cert, &other.signing_key)] {
        pretend(&impostor(certificate, key));
        let ran = app.cofer(&["project", "ls", "--json"]).await;
        assert!(ran.failed_with(6).contains("another certificate or key"), "{ran:?}");
        assert_eq!(ran.stdout, "");
    }
    app.stop().await;
}

#[tokio::test]
async fn an_authority_of_ones_own_is_trusted_when_it_is_named() {
    let authority_key = rcgen::KeyPair::generate().unwrap();
    let mut authority = rcgen::CertificateParams::new(Vec::new()).unwrap();
    authority.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let authority_certificate = authority.self_signed(&authority_key).unwrap();
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate = rcgen::CertificateParams::new(["127.0.0.1".to_owned()])
        .unwrap()
        .signed_by(&key, &rcgen::Issuer::new(authority, authority_key))
        .unwrap();
    let app = with_tls(start(), &certificate, &key).serve().await;
    let file = app.data_dir().join("authority.pem");
    std::fs::write(&file, authority_certificate.pem()).unwrap();
    let file = file.display().to_string();
    let elsewhere = [("COFER_URL", app.url.as_str()), ("COFER_TOKEN", app.token.as_str())];

    app.cofer_with(&elsewhere, &["project", "ls", "--ca-cert", &file]).await.succeeded();
    let by_variable = [&elsewhere[..], &[("COFER_CA_CERT", file.as_str())]].concat();
    app.cofer_with(&by_variable, &["project", "ls"]).await.succeeded();
    app.cofer_with(&elsewhere, &["project", "ls"]).await.failed_with(6);

    let empty = app.data_dir().join("empty.pem");
    std::fs::write(&empty, "no certificate at all\n").unwrap();
    let broken = app.data_dir().join("broken.pem");
    std::fs::write(&broken, "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n").unwrap();
    for wrong in [&empty, &broken, &app.data_dir().join("missing.pem"), &app.data_dir()] {
        let wrong = wrong.display().to_string();
        let ran = app.cofer_with(&elsewhere, &["project", "ls", "--ca-cert", &wrong]).await;
        assert!(ran.failed_with(2).contains(&wrong), "{ran:?}");
    }
    app.stop().await;
}

#[tokio::test]
async fn a_certificate_that_is_its_own_authority_is_trusted_for_its_name_when_it_is_named() {
    for (name, code) in [("127.0.0.1", 0), ("elsewhere.invalid", 6)] {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut certificate = rcgen::CertificateParams::new([name.to_owned()]).unwrap();
        certificate.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let certificate = certificate.self_signed(&key).unwrap();
        let start = with_tls(start(), &certificate, &key);
        let file = start.path().join("cert.pem").display().to_string();
        let app = start.serve().await;
        let elsewhere = [("COFER_URL", app.url.as_str()), ("COFER_TOKEN", app.token.as_str())];
        let ran = app.cofer_with(&elsewhere, &["project", "ls", "--ca-cert", &file]).await;
        assert_eq!(ran.code, Some(code), "{name}: {ran:?}");
        app.stop().await;
    }
}

#[tokio::test]
async fn a_name_that_is_a_step_in_a_path_is_refused_before_anything_is_sent() {
    // Where nobody answers: had anything been sent, it would be exit code 6.
    let start = start().variable("COFER_URL", "http://127.0.0.1:1");
    for (command, expected) in [
        (["secret", "ls", "--project", "."], 3),
        (["secret", "ls", "--project", ".."], 3),
        (["secret", "rm", "..", "--project=victim"], 3),
        (["secret", "rm", ".", "--project=victim"], 3),
        (["secret", "rm", "", "--project=victim"], 2),
        (["project", "update", "..", "--name=other"], 3),
        (["project", "update", "", "--name=other"], 2),
        (["project", "rm", "--", ".."], 3),
        (["token", "rm", "--", ".."], 3),
        (["token", "rm", "--", ""], 2),
    ] {
        let ran = start.cofer(&command).await;
        assert!(ran.failed_with(expected).contains("name"), "{command:?}: {ran:?}");
    }
}

#[tokio::test]
async fn an_address_that_is_none_is_a_usage_error_that_shows_one() {
    let start = start();
    for url in [
        "foo",
        "localhost:7070",
        "127.0.0.1:7070",
        "ftp://127.0.0.1",
        "http://",
        "http://127.0.0.1:99999",
        "http://127.0.0.1:1/?a=b",
        "http://127.0.0.1:1/#a",
        "http://somebody:hunter2@127.0.0.1:1",
    ] {
        for command in [&["project", "ls"][..], &["version"]] {
            let ran = start.cofer(&[command, &["--url", url]].concat()).await;
            let message = ran.failed_with(2);
            assert!(message.contains("https://cofer.example.com"), "{url}: {ran:?}");
            assert!(!message.contains("hunter2"), "{message}");
        }
    }
}

#[tokio::test]
async fn a_server_below_a_path_is_reached_with_and_without_a_slash_at_the_end() {
    let start = start();
    for (below, expected) in [
        ("", "/api/v1/projects/a%2Fb"),
        ("/", "/api/v1/projects/a%2Fb"),
        ("/cofer", "/cofer/api/v1/projects/a%2Fb"),
        ("/cofer/", "/cofer/api/v1/projects/a%2Fb"),
        ("/tools/cofer//", "/tools/cofer/api/v1/projects/a%2Fb"),
    ] {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}{below}", listener.local_addr().unwrap());
        let asked = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let head = BufReader::new(stream.try_clone().unwrap()).lines().map(Result::unwrap);
            let head: Vec<_> = head.take_while(|line| !line.is_empty()).collect();
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").unwrap();
            head[0].clone()
        });
        start.cofer(&["project", "show", "a/b", "--url", &url]).await.succeeded();
        assert_eq!(asked.join().unwrap(), format!("GET {expected} HTTP/1.1"), "{url}");
    }
}

#[tokio::test]
async fn a_secret_comes_from_standard_input_or_a_file_and_loses_one_newline() {
    let app = serving().await;
    let from_input = app.cofer_with_input(&["secret", "set", "API_KEY"], "hunter2\n").await;
    assert_eq!(from_input.succeeded(), "secret API_KEY set");
    let file = app.data_dir().join("value.txt");
    std::fs::write(&file, "from a file").unwrap();
    app.cofer(&["secret", "set", "OTHER", "--from-file", &file.display().to_string()]).await.succeeded();
    let names = app.cofer(&["secret", "ls", "--json"]).await.json();
    assert_eq!((&names[0]["name"], &names[1]["name"]), (&json!("API_KEY"), &json!("OTHER")));
    app.cofer(&["secret", "rm", "OTHER"]).await.succeeded();
    app.cofer(&["secret", "rm", "OTHER"]).await.failed_with(3);
    let nothing = app.cofer(&["secret", "set", "EMPTY"]).await;
    assert!(nothing.failed_with(2).contains("1 to 65536 bytes"), "{nothing:?}");
    let elsewhere = app.cofer_with_input(&["secret", "set", "X", "--project", "nope"], "v").await;
    elsewhere.failed_with(3);
    app.stop().await;
}

#[tokio::test]
async fn completions_and_version_need_no_server() {
    let start = start();
    for shell in ["bash", "zsh", "fish"] {
        assert!(start.cofer(&["completions", shell]).await.succeeded().contains("cofer"), "{shell}");
    }
    assert!(start.cofer(&["version"]).await.succeeded().ends_with("(no server running)"));
    assert!(start.cofer(&["--version"]).await.succeeded().starts_with("cofer "));
    let app = start.serve().await;
    let versions = app.cofer(&["version", "--json"]).await.json();
    assert_eq!(versions["client"], versions["server"]);
    app.stop().await;
}

#[tokio::test]
async fn output_that_nobody_reads_to_its_end_is_no_error() {
    let app = serving().await;
    let script = format!("'{}' project ls | true; echo ${{PIPESTATUS[0]}}", env!("CARGO_BIN_EXE_cofer"));
    let shell = tokio::process::Command::new("bash")
        .args(["-c", &script])
        .env("COFER_DATA_DIR", app.data_dir())
        .output()
        .await
        .unwrap();
    assert_eq!((String::from_utf8_lossy(&shell.stdout).trim(), shell.stderr.len()), ("0", 0));
    app.stop().await;
}

#[tokio::test]
async fn output_that_cannot_be_written_is_an_error() {
    let app = serving().await;
    for args in [
        &["project", "ls"][..],
        &["project", "ls", "--json"],
        &["project", "create", "made"],
        &["token", "ls"],
        &["secret", "ls"],
        &["version"],
        &["completions", "bash"],
        &["doctor"],
        &["--version"],
        &["--help"],
    ] {
        let ran = cofer_into(full(), &app.data_dir(), args).await;
        assert!(ran.failed_with(1).contains("output could not be written"), "{args:?}: {ran:?}");
    }
    app.stop().await;
}

#[tokio::test]
async fn a_line_that_cannot_be_written_stops_no_work() {
    let app = serving().await;
    for name in ["one", "two"] {
        app.cofer(&["project", "create", name]).await.succeeded();
    }
    cofer_into(full(), &app.data_dir(), &["project", "rm", "one", "two"]).await.failed_with(1);
    assert_eq!(app.get("/api/v1/projects").await.json().as_array().unwrap().len(), 1);
    app.stop().await;
}

#[tokio::test]
async fn nothing_panics_when_nobody_reads() {
    let app = serving().await;
    for args in [
        &["project", "ls"][..],
        &["completions", "bash"],
        &["completions", "zsh"],
        &["version"],
        &["--help"],
        &["--version"],
    ] {
        let ran = cofer_into(abandoned(), &app.data_dir(), args).await;
        assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{args:?}");
    }
    app.stop().await;
}

#[tokio::test]
async fn a_token_that_nobody_received_is_an_error_that_tells_how_to_revoke_it() {
    let app = serving().await;
    let args = ["token", "create", "lost", "--scope", "admin:read"];
    for stdout in [Stdio::from(full()), Stdio::from(abandoned())] {
        let ran = cofer_into(stdout, &app.data_dir(), &args).await;
        let message = ran.failed_with(1);
        let id = app.cofer(&["token", "ls", "--json"]).await.json();
        let id = id.as_array().unwrap().iter().find(|token| token["name"] == "lost").unwrap()["id"].clone();
        let remedy = format!("cofer token rm {}", id.as_str().unwrap());
        assert!(message.contains("could not be written") && message.contains(&remedy), "{message}");
        app.cofer(&["token", "rm", id.as_str().unwrap()]).await.succeeded();
    }
    let ran = cofer_into(full(), &app.data_dir(), &[&args[..], &["--json"]].concat()).await;
    let error: Value = serde_json::from_str(ran.failed_with(1)).unwrap();
    let id = error["error"]["details"]["id"].as_str().unwrap();
    app.cofer(&["token", "rm", id]).await.succeeded();
    app.stop().await;
}

#[tokio::test]
async fn empty_variables_say_nothing() {
    let app = serving().await;
    app.cofer_with(&[("COFER_URL", ""), ("COFER_TOKEN", ""), ("COFER_CA_CERT", "")], &["project", "ls"])
        .await
        .succeeded();
    let empty = [
        "COFER_LISTEN",
        "COFER_DATA_DIR",
        "COFER_DATABASE_URL",
        "COFER_CONFIG",
        "COFER_TLS_CERT",
        "COFER_LOG",
    ];
    let doctor = app.cofer_with(&empty.map(|name| (name, "")), &["doctor", "--json"]).await;
    assert!(doctor.json().is_array(), "{doctor:?}");
    app.stop().await;
}
