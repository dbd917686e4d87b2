//! `cofer doctor`: what is here, what is not, and what to do about it.

use cofer_testkit::app::Ran;
use cofer_testkit::engines;
use serde_json::Value;

use crate::{serving, start};

fn finding(ran: &Ran, check: &str) -> Value {
    let findings = ran.json();
    findings.as_array().unwrap().iter().find(|finding| finding["check"] == check).unwrap().clone()
}

#[tokio::test]
async fn a_machine_without_engines_fails_and_every_complaint_says_what_to_do() {
    let start = start()
        .variable("DOCKER_HOST", "unix:///nowhere.sock")
        .variable("CONTAINER_HOST", "unix:///nowhere.sock");
    let ran = start.cofer(&["doctor", "--json", "--listen", "127.0.0.1:0"]).await;
    assert_eq!(ran.code, Some(1));
    assert_eq!(finding(&ran, "gvisor")["verdict"], "fail");
    for finding in ran.json().as_array().unwrap() {
        assert_eq!(finding["verdict"] == "ok", finding["advice"].is_null(), "{finding}");
    }
    assert!(!start.data_dir().exists(), "looking makes nothing");
    let text = start.cofer(&["doctor", "--listen", "127.0.0.1:0"]).await;
    assert!(text.stdout.lines().any(|line| line.starts_with("fail   gvisor")), "{}", text.stdout);
}

#[tokio::test]
async fn a_machine_with_docker_gvisor_and_podman_is_well() {
    let (Some(docker), Some(podman)) = (engines::docker(), engines::podman()) else { return };
    let start = start().variable("DOCKER_HOST", docker.host()).variable("CONTAINER_HOST", podman.host());
    let ran = start.cofer(&["doctor", "--json", "--listen", "127.0.0.1:0"]).await;
    assert_eq!(ran.code, Some(0), "{ran:?}");
    for (check, expected) in
        [("docker", "Docker "), ("podman", "Podman "), ("gvisor", "runsc"), ("cgroup limits", "enforced")]
    {
        let finding = finding(&ran, check);
        assert!(finding["message"].as_str().unwrap().contains(expected), "{finding}");
    }
}

#[tokio::test]
async fn a_running_server_is_recognised_and_a_wrong_key_is_found() {
    let app = serving().await;
    let ran = app.cofer(&["doctor", "--json"]).await;
    assert!(finding(&ran, "port")["message"].as_str().unwrap().contains(&app.url));
    assert_eq!(finding(&ran, "database")["verdict"], "ok");
    assert_eq!(finding(&ran, "master key")["verdict"], "ok");
    let other = [("COFER_MASTER_KEY", "ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff")];
    let ran = app.cofer_with(&other, &["doctor", "--json"]).await;
    assert_eq!(finding(&ran, "master key")["verdict"], "fail");
    app.stop().await;
}

#[tokio::test]
async fn a_port_in_use_and_a_database_that_is_away_are_found() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let args =
        ["doctor", "--json", "--listen", &address, "--database", "postgres://u:hunter2@127.0.0.1:1/db"];
    let ran = start().cofer(&args).await;
    for check in ["port", "database"] {
        assert_eq!(finding(&ran, check)["verdict"], "fail", "{check}");
    }
    assert!(!ran.stdout.contains("hunter2"));
}
