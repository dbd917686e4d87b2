//! A database of one's own on the real server, and its end.

use cofer_testkit::engines;
use sqlx::Connection as _;
use sqlx::postgres::PgConnection;

#[tokio::test]
async fn a_fresh_database_is_empty_one_s_own_and_gone_afterwards() {
    let Some(postgres) = engines::postgres() else { return };
    let (one, two) = (postgres.fresh_database().await, postgres.fresh_database().await);
    assert_ne!(one.url(), two.url());
    let mut connection = PgConnection::connect(one.url()).await.unwrap();
    sqlx::query("CREATE TABLE t (id INT)").execute(&mut connection).await.unwrap();
    let url = one.url().to_owned();
    // With the connection still open: an owner that forgets to close does not keep it alive.
    drop(one);
    assert!(PgConnection::connect(&url).await.is_err());
    PgConnection::connect(two.url()).await.unwrap().close().await.unwrap();
}
