//! The engine goes away and comes back: behind a proxy that is cut, and for real.

use std::path::Path;
use std::time::{Duration, Instant};

use cofer_testkit::chaos_proxy::ChaosProxy;
use cofer_testkit::engines;
use reqwest::Method;
use serde_json::json;

use super::{Host, MISBEHAVING, SERVERS, adopts};

/// What is meant to be at once, on a busy machine.
const AT_ONCE: Duration = Duration::from_secs(5);

/// A Cofer whose way to this provider's engine can be cut.
async fn through_a_proxy(provider: &'static str) -> Option<(Host, ChaosProxy)> {
    let engine = if provider == "podman" { engines::podman()? } else { engines::docker()? };
    let proxy = ChaosProxy::in_front_of(engine.host()).unwrap();
    let variable = format!("COFER_{}_HOST", engine.name().to_uppercase());
    let endpoint = format!("tcp://{}", proxy.address());
    let host = Host::started(provider, |start| start.variable(&variable, endpoint)).await?;
    Some((host, proxy))
}

/// Answers with this, and soon.
async fn refuses(host: &Host, name: &str, expected: &str) {
    let began = Instant::now();
    let answer = host.call(name, "tools/list", json!({})).await;
    assert_eq!(answer.refusal(), expected, "log: {}", host.app.log());
    assert!(began.elapsed() < AT_ONCE, "{:?}", began.elapsed());
}

macro_rules! through_a_proxy_on_each_provider {
    ($($test:ident),* $(,)?) => { through_a_proxy_on_each_provider!(@ docker, gvisor, podman; ($($test),*)); };
    (@ $($provider:ident),*; $tests:tt) => { $(through_a_proxy_on_each_provider!(@@ $provider; $tests);)* };
    (@@ $provider:ident; ($($test:ident),*)) => {
        mod $provider {
            $(#[tokio::test] async fn $test() {
                let Some((host, proxy)) = super::through_a_proxy(stringify!($provider)).await else { return };
                super::$test(host, proxy).await;
            })*
        }
    };
}

through_a_proxy_on_each_provider!(
    while_the_engine_is_away_calls_fail_at_once_and_afterwards_all_is_as_before,
    what_is_asked_while_the_engine_is_away_is_answered_and_done_when_it_is_back,
    a_start_while_the_engine_is_away_is_made_good,
);

async fn while_the_engine_is_away_calls_fail_at_once_and_afterwards_all_is_as_before(
    host: Host,
    proxy: ChaosProxy,
) {
    for name in ["one", "two"] {
        host.misbehaving(name, &["--ignore-eof"]).await;
    }
    let containers = (host.container("one").await, host.container("two").await);
    let in_flight = host.begin("one", "hang", &json!({}));
    host.app.in_flight(2).await;

    proxy.cut().await;
    let cut = Instant::now();
    assert_eq!(in_flight.await.unwrap(), 502);
    assert!(cut.elapsed() < AT_ONCE, "{:?}", cut.elapsed());
    for name in ["one", "two"] {
        let status = host.until(name, "told as it is", |s| s["status"] == "error").await;
        assert_eq!(status["bridge_connected"], false, "{status:#}");
        assert!(
            status["reason"].as_str().is_some_and(|reason| reason.contains("not available")),
            "{status:#}"
        );
        refuses(&host, name, "503 unavailable").await;
    }
    let asked = Instant::now();
    assert_eq!(host.app.get(SERVERS).await.json().as_array().unwrap().len(), 2);
    assert!(asked.elapsed() < AT_ONCE, "{:?}", asked.elapsed());

    proxy.restore().await;
    host.until_only(&["one", "two"]).await;
    for name in ["one", "two"] {
        assert_eq!(host.status(name).await["restart_count"], 0, "it did not crash: the engine was away");
    }
    let now = (host.container("one").await, host.container("two").await);
    assert_eq!(now == containers, adopts(&host));
    host.stop().await;
}

async fn what_is_asked_while_the_engine_is_away_is_answered_and_done_when_it_is_back(
    host: Host,
    proxy: ChaosProxy,
) {
    for name in ["stays", "stops", "goes", "restarts"] {
        host.misbehaving(name, &[]).await;
    }
    proxy.cut().await;
    for name in ["stays", "stops", "goes", "restarts"] {
        host.until_status(name, "error").await;
    }
    let asked = Instant::now();
    let (stop, goes, restart) = (
        host.ask(Method::POST, "/stops/stop", None),
        host.ask(Method::DELETE, "/goes", None),
        host.ask(Method::POST, "/restarts/restart", None),
    );
    let refused = host.register("late", MISBEHAVING, json!({})).await;
    assert_eq!(refused.refusal(), "503 unavailable");
    assert_eq!((stop.await.unwrap(), goes.await.unwrap(), restart.await.unwrap()), (200, 204, 200));
    assert!(asked.elapsed() < 4 * AT_ONCE, "{:?}", asked.elapsed());

    proxy.restore().await;
    host.until_only(&["stays", "restarts"]).await;
    host.until_status("stops", "stopped").await;
    for name in ["goes", "late"] {
        assert_eq!(host.app.get(&format!("{SERVERS}/{name}")).await.status, 404);
    }
    host.stop().await;
}

async fn a_start_while_the_engine_is_away_is_made_good(host: Host, proxy: ChaosProxy) {
    host.misbehaving("one", &[]).await;
    let container = host.container("one").await;
    let stopped = host.app.kill().await;
    proxy.cut().await;
    let host = Host { app: stopped.serve().await, provider: host.provider };
    host.until_status("one", "error").await;
    refuses(&host, "one", "503 unavailable").await;
    proxy.restore().await;
    host.until_only(&["one"]).await;
    // Killed before it was written down that hands were shaken with it, it is replaced, as one that cannot be attached always is.
    assert!(adopts(&host) || host.container("one").await != container);
    assert_eq!(host.status("one").await["restart_count"], 0);
    host.stop().await;
}

/// Restarts an engine of the bed, if this is the bed of this checkout: nobody else's is ours to restart.
async fn restart_for_real(engine: &str) -> bool {
    let testbed = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/testbed");
    let run = async |argument: &[&str]| {
        let ran = tokio::process::Command::new(&testbed).args(argument).output().await.unwrap();
        (ran.status.success(), String::from_utf8_lossy(&ran.stdout).into_owned())
    };
    let (_, variables) = run(&["env"]).await;
    let host = engines::docker().unwrap();
    if !variables.contains(host.host()) {
        eprintln!("skipped: the engine at {} belongs to another checkout's test bed", host.host());
        return false;
    }
    let (restarted, said) = run(&["restart", engine]).await;
    assert!(restarted, "{said}");
    true
}

/// It runs alone (see `.config/nextest.toml`): others would lose their containers.
#[tokio::test]
async fn after_the_engines_own_restart_every_server_is_ready_again() {
    let Some(host) = Host::new("docker").await else { return };
    if engines::podman().is_none() {
        return;
    }
    let names = ["plain", "sandboxed", "elsewhere"];
    for (name, provider) in names.into_iter().zip(["docker", "gvisor", "podman"]) {
        host.hosted(name, MISBEHAVING, json!({"provider": provider, "volumes": ["/data"]})).await;
        host.tool(name, "write_file", json!({"path": "/data/note", "text": name})).await;
    }
    host.misbehaving("idle", &[]).await;
    host.post("idle", "stop").await;
    for engine in ["docker", "podman"] {
        if !restart_for_real(engine).await {
            break;
        }
        host.until_only(&names).await;
    }
    for name in names {
        let note = host.facts(name, "read_file", json!({"path": "/data/note"})).await;
        assert_eq!(note["text"], name);
        host.remove(name).await;
    }
    assert_eq!(host.status("idle").await["status"], "stopped");
    host.stop().await;
}
