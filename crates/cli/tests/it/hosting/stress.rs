//! Many servers, and many ends of one: nobody waits for another, nobody notices another, and nothing piles up.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use bollard::query_parameters::{ListNetworksOptionsBuilder, RemoveImageOptions, TagImageOptionsBuilder};
use cofer_testkit::engines;
use cofer_testkit::leaks::Descriptors;
use futures_util::future::join_all;
use serde_json::{Value, json};

use super::{Host, MISBEHAVING, SERVERS};

fn names(prefix: &str, count: usize) -> Vec<String> {
    (1..=count).map(|n| format!("{prefix}-{n}")).collect()
}

async fn all_hosted(host: &Host, names: &[String], more: &Value) {
    join_all(names.iter().map(|name| host.hosted(name, MISBEHAVING, more.clone()))).await;
}

#[tokio::test]
async fn eight_healthy_servers_do_not_notice_eight_that_crash_all_the_time() {
    let settings = "[crash_loop]\nthreshold = 3\ndelays_ms = [300]\n";
    let Some(host) = Host::configured("docker", settings).await else { return };
    let (healthy, looping) = (names("healthy", 8), names("looping", 8));
    all_hosted(&host, &healthy, &json!({})).await;
    let containers = join_all(healthy.iter().map(|name| host.container(name))).await;
    let half = ["--exit-at-start", "--crash-after-ms"].iter().cycle();
    let register = looping
        .iter()
        .zip(half)
        .map(|(name, flag)| host.register(name, MISBEHAVING, json!({"cmd": [flag, "50"]})));
    join_all(register).await.iter().for_each(|answer| assert_eq!(answer.status, 201, "{answer:?}"));

    let mut calls = 0;
    loop {
        let echoes = healthy.iter().map(|name| host.tool(name, "echo", json!({"text": name})));
        assert_eq!(join_all(echoes).await, healthy);
        calls += healthy.len();
        let crashes = join_all(looping.iter().map(|name| host.status(name))).await;
        if crashes.iter().all(|status| status["restart_count"].as_u64() >= Some(5)) {
            break;
        }
    }
    println!("{calls} calls answered");
    for name in &healthy {
        let status = host.status(name).await;
        assert_eq!((&status["status"], &status["restart_count"]), (&json!("ready"), &json!(0)), "{status:#}");
    }
    assert_eq!(join_all(healthy.iter().map(|name| host.container(name))).await, containers);
    host.stop().await;
}

/// What there is of a Cofer, inside and outside of it.
#[derive(Debug, PartialEq)]
struct Things {
    containers: usize,
    volumes: usize,
    networks: usize,
    /// Children of Cofer, and whatever inherited its mark.
    processes: usize,
}

async fn things(host: &Host) -> Things {
    let mark = format!("COFER_INSTANCE={}", host.app.instance());
    let bears_the_mark = |entry: &std::fs::DirEntry| {
        let environment = std::fs::read(entry.path().join("environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes())
    };
    let filter = HashMap::from([("label", vec![format!("cofer.instance={}", host.app.instance())])]);
    let labelled = ListNetworksOptionsBuilder::new().filters(&filter).build();
    let mut networks = 0;
    for engine in engines::all_present() {
        let client = engine.client().await.unwrap();
        networks += client.list_networks(Some(labelled.clone())).await.unwrap().len();
    }
    Things {
        containers: host.containers().await.len(),
        volumes: host.app.get("/api/v1/mcp/volumes").await.json().as_array().unwrap().len(),
        networks,
        processes: std::fs::read_dir("/proc").unwrap().flatten().filter(bears_the_mark).count(),
    }
}

/// Crashes it so often; it is ready again each time.
async fn crash(host: &Host, name: &str, from: u64, times: u64) {
    for count in from + 1..=from + times {
        host.begin(name, "crash", &json!({"exit_code": 1})).await.unwrap();
        host.until(name, "ready again", |s| s["status"] == "ready" && s["restart_count"] == count).await;
    }
}

/// `COFER_TEST_CYCLES=1000` for the long one.
#[expect(clippy::print_stdout, reason = "the figures are what a long run is made for")]
async fn crashes_pile_nothing_up(provider: &'static str) {
    let cycles = crate::told("COFER_TEST_CYCLES").unwrap_or(12);
    // The first ones fill what is kept: caches, logs, the history.
    let warm_up = cycles / 4;
    let settings = "[crash_loop]\nthreshold = 1000000\n";
    let Some(host) = Host::configured(provider, settings).await else { return };
    host.hosted("phoenix", MISBEHAVING, json!({"volumes": ["/data"]})).await;
    crash(&host, "phoenix", 0, warm_up).await;
    host.until_only(&["phoenix"]).await;
    let descriptors = Descriptors::of(host.app.pid()).settle_for(Duration::from_secs(10));
    let (before, memory_before, open_before) =
        (things(&host).await, host.app.resident_bytes(), descriptors.count());
    let began = Instant::now();
    crash(&host, "phoenix", warm_up, cycles).await;
    let took = began.elapsed();
    host.until_only(&["phoenix"]).await;
    let (after, memory_after) = (things(&host).await, host.app.resident_bytes());
    descriptors.assert_grown_by_at_most(2);
    println!(
        "{provider}: {cycles} crashes in {took:?}; {before:?} → {after:?}; descriptors {open_before} → {}; memory {} → {} KiB",
        descriptors.count(),
        memory_before >> 10,
        memory_after >> 10
    );
    assert_eq!(before, after);
    assert!(memory_after < memory_before + (8 << 20), "{memory_before} → {memory_after} bytes");
    host.remove("phoenix").await;
    host.stop().await;
}

#[tokio::test]
async fn a_server_that_crashes_and_restarts_piles_nothing_up_in_docker() {
    crashes_pile_nothing_up("docker").await;
}

#[tokio::test]
async fn a_server_that_crashes_and_restarts_piles_nothing_up_in_podman() {
    crashes_pile_nothing_up("podman").await;
}

#[tokio::test]
async fn twenty_servers_start_at_boot_and_none_waits_for_another() {
    let Some(host) = Host::new("docker").await else { return };
    let quick = names("quick", 18);
    all_hosted(&host, &quick, &json!({})).await;
    // One that is slow to start for longer than all this takes, and one whose image is gone at the next start.
    host.hosted("slow", MISBEHAVING, json!({"cmd": ["--slow-start-ms", "600000"]})).await;
    let client = engines::docker().unwrap().client().await.unwrap();
    let image = format!("cofer-test-gone/{}", host.app.instance());
    let tag = TagImageOptionsBuilder::new().repo(&image).tag("latest").build();
    client.tag_image(MISBEHAVING, Some(tag)).await.unwrap();
    let hosted = host.register("imageless", &image, json!({})).await;
    client.remove_image(&image, None::<RemoveImageOptions>, None).await.unwrap();
    assert_eq!(hosted.status, 201, "{hosted:?}");

    let provider = host.provider;
    let stopped = host.stop().await;
    let began = Instant::now();
    let host = Host { app: stopped.serve().await, provider };
    for name in &quick {
        host.until_status(name, "ready").await;
    }
    println!("{} servers ready after {:?}", quick.len(), began.elapsed());
    for name in ["slow", "imageless"] {
        let status = host.status(name).await;
        assert_ne!(status["status"], "ready", "{status:#}");
    }
    let failed = host.until_status("imageless", "error").await;
    assert!(failed["reason"].as_str().unwrap().contains(&image), "{failed:#}");
    assert_eq!(host.app.get(SERVERS).await.json().as_array().unwrap().len(), 20);
    host.stop().await;
}

#[tokio::test]
async fn many_stubborn_servers_are_ended_together_within_the_grace() {
    let Some(host) = Host::new("docker").await else { return };
    all_hosted(&host, &names("stubborn", 10), &json!({"cmd": ["--ignore-sigterm"]})).await;
    let began = Instant::now();
    host.stop().await;
    let took = began.elapsed();
    println!("10 stubborn servers ended in {took:?}");
    // The grace of these tests is five seconds: one after another they would take fifty, and the engine's time besides.
    assert!(took < Duration::from_secs(38), "{took:?}");
}
