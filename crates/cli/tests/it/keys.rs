//! The master key: found, missed, replaced.

use cofer_testkit::app::Start;
use cofer_testkit::until;
use serde_json::json;

use crate::{serving, start};

const KEY: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
const OTHER_KEY: &str = "ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff";

async fn with_a_secret() -> Start {
    let app = serving().await;
    assert_eq!(app.put("/api/v1/projects/default/secrets/A", &json!({"value": "one"})).await.status, 200);
    app.stop().await
}

#[tokio::test]
async fn a_lost_key_is_reported_and_no_new_one_is_made() {
    let start = with_a_secret().await;
    let file = start.data_dir().join("master.key");
    std::fs::rename(&file, start.path().join("kept")).unwrap();
    let ran = start.cofer(&["serve", "--listen", "127.0.0.1:0"]).await;
    assert!(ran.failed_with(1).contains("master key is missing"), "{ran:?}");
    assert!(!file.exists());
    std::fs::rename(start.path().join("kept"), &file).unwrap();
    start.serve().await.stop().await;
}

#[tokio::test]
async fn a_wrong_key_is_reported() {
    let start = with_a_secret().await;
    std::fs::write(start.data_dir().join("master.key"), OTHER_KEY).unwrap();
    let ran = start.cofer(&["serve", "--listen", "127.0.0.1:0"]).await;
    assert!(ran.failed_with(1).contains("master key is wrong"), "{ran:?}");
    assert!(!ran.stderr.contains(OTHER_KEY));
    let refused = start.variable("COFER_MASTER_KEY", KEY).try_serve().await.unwrap_err();
    assert!(refused.failed_with(1).contains("COFER_MASTER_KEY"), "{refused:?}");
}

#[tokio::test]
async fn a_key_that_is_none_is_reported() {
    let refused = start().variable("COFER_MASTER_KEY", "hunter2").try_serve().await.unwrap_err();
    assert!(
        refused.failed_with(2).contains("COFER_MASTER_KEY") && !refused.stderr.contains("hunter2"),
        "{refused:?}"
    );
}

#[tokio::test]
async fn the_key_file_is_replaced_by_a_command_and_the_old_one_opens_nothing() {
    let start = with_a_secret().await;
    let file = start.data_dir().join("master.key");
    let old = std::fs::read_to_string(&file).unwrap();
    let app = start.serve().await;
    let ran = app.cofer(&["--json", "secret", "rotate-key"]).await;
    ran.succeeded();
    assert_eq!(ran.json()["secrets"], 1);
    assert_ne!(std::fs::read_to_string(&file).unwrap(), old);
    assert_eq!(app.put("/api/v1/projects/default/secrets/B", &json!({"value": "two"})).await.status, 200);
    let start = app.stop().await.serve().await.stop().await;
    std::fs::write(&file, old).unwrap();
    assert!(start.try_serve().await.unwrap_err().failed_with(1).contains("wrong"));
}

#[tokio::test]
async fn a_key_from_the_environment_is_replaced_by_naming_the_previous_one() {
    let app = start().variable("COFER_MASTER_KEY", KEY).serve().await;
    assert_eq!(app.put("/api/v1/projects/default/secrets/A", &json!({"value": "one"})).await.status, 200);
    assert!(!app.data_dir().join("master.key").exists());
    assert!(app.cofer(&["secret", "rotate-key"]).await.failed_with(1).contains("COFER_MASTER_KEY_PREVIOUS"));
    let both =
        app.stop().await.variable("COFER_MASTER_KEY", OTHER_KEY).variable("COFER_MASTER_KEY_PREVIOUS", KEY);
    let app = both.serve().await;
    app.logged("1 secrets sealed anew").await;
    app.stop().await.variable("COFER_MASTER_KEY_PREVIOUS", "").serve().await.stop().await;
}

/// The reviewer's way of losing every secret: hang up in the middle of a rotation, again and again.
#[tokio::test]
async fn callers_who_hang_up_during_a_rotation_lose_nothing() {
    let app = serving().await;
    for n in 0..20 {
        app.put(&format!("/api/v1/projects/default/secrets/S{n}"), &json!({"value": "v"})).await;
    }
    for n in 0..25_u64 {
        let mut client = tokio::net::TcpStream::connect(app.url.trim_start_matches("http://")).await.unwrap();
        let head = format!(
            "POST /api/v1/master-key/rotate HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\ncontent-length: 0\r\n\r\n",
            app.token
        );
        tokio::io::AsyncWriteExt::write_all(&mut client, head.as_bytes()).await.unwrap();
        tokio::time::sleep(std::time::Duration::from_micros(500 * n)).await;
        drop(client);
        let probe = app.put("/api/v1/projects/default/secrets/PROBE", &json!({"value": "v"})).await;
        assert_eq!(probe.status, 200, "round {n}: {probe:?}");
    }
    // A last rotation opens every secret; the next start checks the key. One that was begun above may still be under way.
    until("the end of the rotations", async || {
        let rotated = app.post("/api/v1/master-key/rotate", &json!({})).await;
        assert!(rotated.status == 503 || rotated.json()["secrets"] == 21, "{rotated:?}");
        rotated.status == 200
    })
    .await;
    app.stop().await.serve().await.stop().await;
}

#[tokio::test]
async fn a_server_killed_at_any_moment_of_a_rotation_starts_again_with_every_secret() {
    let mut app = serving().await;
    for n in 0..10 {
        app.put(&format!("/api/v1/projects/default/secrets/S{n}"), &json!({"value": "v"})).await;
    }
    for n in 0..8_u64 {
        let rotation =
            app.request(reqwest::Method::POST, "/api/v1/master-key/rotate").bearer_auth(&app.token).send();
        let rotation = tokio::spawn(rotation);
        tokio::time::sleep(std::time::Duration::from_millis(3 * n)).await;
        app = app.kill().await.serve().await;
        // Cut off or answered: either way it is over.
        let _ = rotation.await.unwrap();
        let rotated = app.post("/api/v1/master-key/rotate", &json!({})).await;
        assert_eq!(rotated.json()["secrets"], 10, "round {n}: {rotated:?}");
    }
    app.stop().await;
}
