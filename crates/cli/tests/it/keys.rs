//! The master key: found, missed, replaced.

use cofer_testkit::app::Start;
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
