use std::time::Duration;

use cofer_model::{Kind, Moment};
use cofer_store::{DatabaseUrl, Inspection, OpenError, Store};
use cofer_testkit::chaos_proxy::ChaosProxy;
use cofer_testkit::engines;
use sqlx::{Connection, SqliteConnection};

use crate::{Bed, named, on_both};

on_both!(
    what_was_written_is_there_after_a_restart,
    opening_twice_at_once_makes_the_tables_once,
    looking_at_a_database_says_what_it_is,
    a_database_made_by_a_newer_cofer_is_left_alone,
);

async fn what_was_written_is_there_after_a_restart(bed: Bed) {
    let project = bed.project("web").await;
    bed.store.close().await;
    assert_eq!(bed.another().await.project(&named("web")).await.unwrap(), Some(project));
}

async fn opening_twice_at_once_makes_the_tables_once(bed: Bed) {
    let (a, b) = tokio::join!(Store::open(&bed.url), Store::open(&bed.url));
    a.unwrap().ping().await.unwrap();
    b.unwrap().ping().await.unwrap();
}

async fn looking_at_a_database_says_what_it_is(bed: Bed) {
    assert_eq!(Store::inspect(&bed.url).await.unwrap(), Inspection::Made { master_key: None });
    let key = cofer_store::MasterKey::generate();
    bed.store.hold_master_key(&key, Moment::now()).await.unwrap();
    let made = Inspection::Made { master_key: Some(key.fingerprint()) };
    assert_eq!(Store::inspect(&bed.url).await.unwrap(), made);
}

async fn a_database_made_by_a_newer_cofer_is_left_alone(bed: Bed) {
    crate::schema::add_migration_of_the_future(&bed).await;
    let opened = Store::open(&bed.url).await.unwrap_err();
    assert!(matches!(opened, OpenError::Newer { version: 9999, .. }), "{opened:?}");
    assert!(matches!(Store::inspect(&bed.url).await, Err(OpenError::Newer { .. })));
}

#[tokio::test]
async fn looking_makes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let url = DatabaseUrl::Sqlite(dir.path().join("cofer.db"));
    assert_eq!(Store::inspect(&url).await.unwrap(), Inspection::NotMade);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[tokio::test]
async fn looking_changes_nothing_even_of_files_that_are_not_ours() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("other.db");
    let mut other = SqliteConnection::connect(&format!("sqlite:{}?mode=rwc", path.display())).await.unwrap();
    sqlx::query("CREATE TABLE somebodys (id INTEGER)").execute(&mut other).await.unwrap();
    other.close().await.unwrap();
    let before = std::fs::read(&path).unwrap();
    assert_eq!(Store::inspect(&DatabaseUrl::Sqlite(path.clone())).await.unwrap(), Inspection::NotMade);
    assert_eq!(std::fs::read(&path).unwrap(), before);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[tokio::test]
async fn a_file_that_is_taken_away_is_an_outage_and_not_made_anew() {
    let bed = Bed::sqlite().await;
    let DatabaseUrl::Sqlite(path) = &bed.url else { unreachable!() };
    bed.store.ping().await.unwrap();
    std::fs::remove_file(path).unwrap();
    assert_eq!(bed.store.ping().await.unwrap_err().kind(), Kind::Unavailable);
    let many = (0..20).map(|_| {
        let store = bed.store.clone();
        tokio::spawn(async move { store.projects().await.map_err(|error| error.kind()) })
    });
    for one in many.collect::<Vec<_>>() {
        assert!(matches!(one.await.unwrap(), Ok(_) | Err(Kind::Unavailable)));
    }
    assert!(!path.exists());
}

#[tokio::test]
async fn a_file_with_any_name_is_a_database() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a b?mode=memory#%20'ü.db");
    let store = Store::open(&DatabaseUrl::Sqlite(path.clone())).await.unwrap();
    store.ping().await.unwrap();
    assert!(std::fs::metadata(&path).unwrap().len() > 0);
}

#[tokio::test]
async fn a_file_that_is_not_a_database_is_reported_and_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("cofer.db");
    let garbage = b"this is no database, whatever it may be called".repeat(100);
    std::fs::write(&path, &garbage).unwrap();
    let error = Store::open(&DatabaseUrl::Sqlite(path.clone())).await.unwrap_err();
    assert!(matches!(error, OpenError::Damaged { .. }), "{error:?}");
    assert_eq!(std::fs::read(&path).unwrap(), garbage);
}

#[tokio::test]
async fn a_database_damaged_in_the_middle_is_reported_at_the_latest_when_it_matters() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("cofer.db");
    let url = DatabaseUrl::Sqlite(path.clone());
    let store = Store::open(&url).await.unwrap();
    store.ensure_default_project(Moment::now()).await.unwrap();
    store.close().await;
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[4096..].fill(0xa5);
    std::fs::write(&path, bytes).unwrap();
    let outcome = match Store::open(&url).await {
        Ok(store) => store.projects().await.map(|_| ()).map_err(|error| error.kind()),
        Err(error) => Err(error.kind()),
    };
    assert_eq!(outcome, Err(Kind::Internal));
}

#[tokio::test]
async fn the_file_is_for_this_user_alone() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("cofer.db");
    let _store = Store::open(&DatabaseUrl::Sqlite(path.clone())).await.unwrap();
    for file in std::fs::read_dir(dir.path()).unwrap() {
        let file = file.unwrap();
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o077, 0, "{:?}", file.path());
    }
}

#[test]
fn wrong_addresses_are_refused_without_telling_passwords() {
    for bad in [
        "",
        "sqlite:",
        "sqlite::memory:",
        "mysql://root:hunter2@host/db",
        "postgres://u:hunter2@host:notaport/db",
    ] {
        let error = DatabaseUrl::parse(bad).unwrap_err();
        assert_eq!(error.kind(), Kind::Invalid, "{bad}");
        assert!(!format!("{error} {error:?}").contains("hunter2"), "{error:?}");
    }
    let url = DatabaseUrl::parse("postgres://ada:hunter2@db.example:5433/cofer").unwrap();
    assert_eq!(format!("{url} {url:?}"), "postgres://db.example:5433/cofer postgres://db.example:5433/cofer");
}

#[tokio::test]
async fn a_server_that_is_not_there_is_unavailable_and_one_that_refuses_us_is_forbidden() {
    let Some(server) = engines::postgres() else { return };
    let nobody = DatabaseUrl::parse("postgres://u@127.0.0.1:1/db").unwrap();
    assert_eq!(Store::open(&nobody).await.unwrap_err().kind(), Kind::Unavailable);
    let mut missing = url::Url::parse(server.url()).unwrap();
    missing.set_path("no_such_database");
    let missing = DatabaseUrl::parse(missing.as_str()).unwrap();
    assert_eq!(Store::open(&missing).await.unwrap_err().kind(), Kind::Forbidden);
}

#[tokio::test]
async fn a_server_that_goes_away_is_unavailable_and_found_again_when_it_is_back() {
    let Some(server) = engines::postgres() else { return };
    let database = server.fresh_database().await;
    let mut url = url::Url::parse(database.url()).unwrap();
    let proxy =
        ChaosProxy::in_front_of(format!("{}:{}", url.host_str().unwrap(), url.port().unwrap_or(5432)))
            .unwrap();
    url.set_host(Some("127.0.0.1")).unwrap();
    url.set_port(Some(proxy.address().port())).unwrap();
    let store = Store::open(&DatabaseUrl::parse(url.as_str()).unwrap()).await.unwrap();

    proxy.cut().await;
    assert_eq!(store.projects().await.unwrap_err().kind(), Kind::Unavailable);
    proxy.restore().await;
    store.projects().await.unwrap();

    proxy.freeze().await;
    let frozen = tokio::time::timeout(Duration::from_secs(15), store.projects()).await.unwrap();
    assert_eq!(frozen.unwrap_err().kind(), Kind::Unavailable);
    proxy.restore().await;
    store.projects().await.unwrap();
}

#[tokio::test]
async fn a_writer_that_holds_the_file_too_long_makes_others_unavailable_and_harms_nothing() {
    let bed = Bed::sqlite().await;
    let DatabaseUrl::Sqlite(path) = &bed.url else { unreachable!() };
    let mut greedy = SqliteConnection::connect(&format!("sqlite:{}", path.display())).await.unwrap();
    sqlx::query("BEGIN IMMEDIATE").execute(&mut greedy).await.unwrap();
    let refused = bed.store.ensure_default_project(Moment::now()).await.unwrap_err();
    assert_eq!(refused.kind(), Kind::Unavailable);
    bed.store.projects().await.unwrap();
    sqlx::query("ROLLBACK").execute(&mut greedy).await.unwrap();
    bed.store.ensure_default_project(Moment::now()).await.unwrap();
}
