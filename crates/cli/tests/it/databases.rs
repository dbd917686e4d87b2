//! PostgreSQL in place of SQLite, and databases that are away, wrong, broken or too new.

use cofer_testkit::chaos_proxy::ChaosProxy;
use cofer_testkit::{engines, until};
use serde_json::json;
use sqlx::Connection;

use crate::{serving, start};

/// The URL with the proxy in place of the server.
pub(crate) fn through(proxy: &ChaosProxy, url: &str) -> String {
    let mut url = url::Url::parse(url).unwrap();
    url.set_host(Some("127.0.0.1")).unwrap();
    url.set_port(Some(proxy.address().port())).unwrap();
    url.into()
}

pub(crate) fn server_of(url: &str) -> String {
    let url = url::Url::parse(url).unwrap();
    format!("{}:{}", url.host_str().unwrap(), url.port().unwrap_or(5432))
}

#[tokio::test]
async fn the_same_features_on_postgres() {
    let Some(postgres) = engines::postgres() else { return };
    let database = postgres.fresh_database().await;
    let app = start().variable("COFER_DATABASE_URL", database.url()).serve().await;
    assert_eq!(app.post("/api/v1/projects", &json!({"name": "web"})).await.status, 201);
    assert_eq!(app.post("/api/v1/projects", &json!({"name": "web"})).await.refusal(), "409 conflict");
    assert_eq!(app.put("/api/v1/projects/web/secrets/A", &json!({"value": "one"})).await.status, 200);
    let made =
        app.post("/api/v1/tokens", &json!({"name": "t", "scopes": ["admin:read"], "project": "web"})).await;
    assert_eq!(made.status, 201);
    assert!(!app.data_dir().join("cofer.db").exists());
    let app = app.kill().await.serve().await;
    assert_eq!(app.get("/api/v1/projects/web/secrets").await.json()[0]["name"], "A");
    let token = made.json()["token"].as_str().unwrap().to_owned();
    assert_eq!(app.call(reqwest::Method::GET, "/api/v1/projects/web", &token, None).await.status, 200);
    assert_eq!(app.delete("/api/v1/projects/web").await.status, 204);
    assert_eq!(
        app.call(reqwest::Method::GET, "/api/v1/projects/web", &token, None).await.refusal(),
        "401 unauthorized"
    );
    app.stop().await;
}

#[tokio::test]
async fn a_database_that_goes_away_is_503_and_found_again_without_a_restart() {
    let Some(postgres) = engines::postgres() else { return };
    let database = postgres.fresh_database().await;
    let proxy = ChaosProxy::in_front_of(server_of(database.url())).unwrap();
    let app = start().variable("COFER_DATABASE_URL", through(&proxy, database.url())).serve().await;
    assert_eq!(app.get("/api/v1/projects").await.status, 200);

    proxy.cut().await;
    let away = app.get("/api/v1/projects").await;
    assert_eq!(away.refusal(), "503 unavailable");
    assert!(away.headers.contains_key("retry-after"));
    assert_eq!(app.get("/healthz").await.status, 200, "it is alive all the same");
    let unready = app.get("/readyz").await;
    assert_eq!((unready.status, &unready.json()["parts"][0]["ready"]), (503, &json!(false)));
    assert!(unready.json()["parts"][0]["reason"].is_string());

    proxy.restore().await;
    assert_eq!(app.get("/readyz").await.status, 200);
    assert_eq!(app.get("/api/v1/projects").await.status, 200);
    app.stop().await;
}

#[tokio::test]
async fn a_database_that_is_away_at_start_is_exit_6_or_waited_for_when_asked() {
    let Some(postgres) = engines::postgres() else { return };
    let database = postgres.fresh_database().await;
    let proxy = ChaosProxy::in_front_of(server_of(database.url())).unwrap();
    proxy.cut().await;
    let url = through(&proxy, database.url());
    let refused = start().variable("COFER_DATABASE_URL", url.clone()).try_serve().await.unwrap_err();
    let message = refused.failed_with(6);
    assert!(message.contains("cannot be reached") && message.contains("--database"), "{message}");

    let waiting = start().variable("COFER_DATABASE_URL", url).arg("--wait-for-database").starting();
    waiting.logged("waiting for the database").await;
    proxy.restore().await;
    waiting.listening().await.unwrap().stop().await;
}

#[tokio::test]
async fn wrong_addresses_are_refused_and_their_passwords_are_not_shown() {
    let Some(_) = engines::postgres() else { return };
    for (url, code) in [
        ("mysql://u:hunter2@localhost/db", 2),
        ("nonsense", 2),
        ("postgres://u:hunter2@127.0.0.1:notaport/db", 2),
        ("postgres://u:hunter2@127.0.0.1:1/db", 6),
    ] {
        let refused = start().variable("COFER_DATABASE_URL", url).try_serve().await.unwrap_err();
        assert!(!refused.failed_with(code).contains("hunter2"), "{refused:?}");
    }
}

#[tokio::test]
async fn a_file_that_is_no_database_is_reported_and_left_alone() {
    let start = start();
    std::fs::create_dir(start.data_dir()).unwrap();
    let file = start.data_dir().join("cofer.db");
    let garbage = "not a database ".repeat(1_000);
    std::fs::write(&file, &garbage).unwrap();
    let ran = start.cofer(&["serve", "--listen", "127.0.0.1:0"]).await;
    assert!(ran.failed_with(1).contains("restore it from a backup"), "{ran:?}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), garbage);
}

#[tokio::test]
async fn a_database_of_a_newer_cofer_is_reported_and_left_alone() {
    let start = serving().await.stop().await;
    let file = start.data_dir().join("cofer.db");
    let newer = "INSERT INTO schema_migrations SELECT 9999, 'future', installed_on, 1, checksum, 0 FROM schema_migrations LIMIT 1";
    let mut database = sqlx::SqliteConnection::connect(&format!("sqlite:{}", file.display())).await.unwrap();
    sqlx::query(newer).execute(&mut database).await.unwrap();
    database.close().await.unwrap();
    let ran = start.cofer(&["serve", "--listen", "127.0.0.1:0"]).await;
    assert!(ran.failed_with(1).contains("newer Cofer"), "{ran:?}");
}

#[tokio::test]
async fn a_start_that_waits_for_another_to_bring_the_database_up_to_date_says_so_and_can_be_stopped() {
    let Some(postgres) = engines::postgres() else { return };
    let database = postgres.fresh_database().await;
    let mut other = sqlx::PgConnection::connect(database.url()).await.unwrap();
    // Whoever migrates holds an advisory lock made of the database's name, as sqlx has it.
    let name = url::Url::parse(database.url()).unwrap().path().trim_start_matches('/').to_owned();
    let lock = 0x3d32_ad9e_i64 * i64::from(crc32(name.as_bytes()));
    sqlx::query("SELECT pg_advisory_lock($1)").bind(lock).execute(&mut other).await.unwrap();
    let waiting = start().variable("COFER_DATABASE_URL", database.url()).starting();
    waiting.logged("another Cofer may be bringing it up to date").await;
    waiting.stop().await;
    other.close().await.unwrap();
}

fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg()))
    })
}

/// A change that waits for a lock which somebody else holds must not keep the server from ending.
#[tokio::test]
async fn a_change_that_hangs_in_the_database_does_not_hold_up_the_end() {
    const WAITING: &str = "SELECT COUNT(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
    let Some(postgres) = engines::postgres() else { return };
    let database = postgres.fresh_database().await;
    let app = start().variable("COFER_DATABASE_URL", database.url()).arg("--drain-ms=500").serve().await;
    let mut other = sqlx::PgConnection::connect(database.url()).await.unwrap();
    let mut held = other.begin().await.unwrap();
    sqlx::query("UPDATE kb.master_key SET id = id").execute(&mut *held).await.unwrap();
    let rotation =
        app.request(reqwest::Method::POST, "/api/v1/master-key/rotate").bearer_auth(&app.token).send();
    let rotation = tokio::spawn(rotation);
    // Only once it waits for the lock is it surely the first.
    until("a rotation that waits for the lock", async || {
        let mut looking = sqlx::PgConnection::connect(database.url()).await.unwrap();
        let waiting: i64 = sqlx::query_scalar(WAITING).fetch_one(&mut looking).await.unwrap();
        looking.close().await.unwrap();
        waiting > 0
    })
    .await;
    let second = app.post("/api/v1/master-key/rotate", &json!({})).await;
    assert_eq!(second.refusal(), "503 unavailable", "one rotation at a time");
    let start = app.stop().await;
    let _cut_off = rotation.await.unwrap();
    held.rollback().await.unwrap();
    other.close().await.unwrap();
    start.serve().await.stop().await;
}
