//! Several Cofers on one PostgreSQL: one hosts, another takes over.

use cofer_testkit::{engines, until};
use serde_json::json;

use super::{Host, MISBEHAVING, SERVERS};

#[tokio::test]
async fn of_two_cofers_on_one_database_one_hosts_and_the_other_takes_over_when_it_is_killed() {
    let Some(postgres) = engines::postgres() else { return };
    let database = postgres.fresh_database().await;
    let key = "00".repeat(32);
    let together = |start: cofer_testkit::app::Start| {
        start
            .variable("COFER_DATABASE_URL", database.url())
            .variable("COFER_MASTER_KEY", &key)
            .variable("COFER_ADMIN_TOKEN", "a-token-that-both-of-them-know")
    };
    let mut instance = String::new();
    let same = |start: cofer_testkit::app::Start| {
        instance = start.instance().to_owned();
        together(start)
    };
    let Some(first) = Host::started("docker", same).await else { return };
    let other = |start: cofer_testkit::app::Start| together(start).variable("COFER_INSTANCE", &instance);
    let Some(second) = Host::started("docker", other).await else { return };
    first.hosted("shared", MISBEHAVING, json!({})).await;
    let pid = first.facts("shared", "calls_seen", json!({})).await["pid"].clone();
    let refused = second.app.get(SERVERS).await;
    assert_eq!(refused.refusal(), "503 unavailable");
    assert!(refused.text.contains("another Cofer"), "{refused:?}");

    // Kept until the end: it looks for what is left when it goes.
    let _first = first.app.kill().await;
    until("the second takes over", async || second.app.get(SERVERS).await.status == 200).await;
    second.until_status("shared", "ready").await;
    assert_eq!(
        second.facts("shared", "calls_seen", json!({})).await["pid"],
        pid,
        "it was taken over as it ran"
    );
    second.remove("shared").await;
    second.stop().await;
}
