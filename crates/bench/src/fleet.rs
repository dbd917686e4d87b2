//! Many servers: how long twenty take at boot, what each costs in memory, and how soon one is back after a crash.

use std::time::{Duration, Instant};

use serde_json::json;
use tokio::process::Command;

use crate::figures::{median, row};
use crate::served::Served;

const SERVERS: usize = 20;
const ROUNDS: usize = 3;
const CRASHES: usize = 9;
const IMAGE: &str = "cofer-test/misbehaving";

pub async fn measure() {
    for provider in ["docker", "gvisor"] {
        boot_and_memory(provider).await;
        crash_to_ready(provider).await;
    }
}

async fn boot_and_memory(provider: &str) {
    let cofer = Served::cofer().await;
    let before = cofer.own_kib();
    for n in 0..SERVERS {
        cofer.register(&format!("s{n}"), json!({"provider": provider})).await;
    }
    let each = (cofer.own_kib().saturating_sub(before)) / SERVERS as u64;
    row(&format!("{provider}: Cofer's memory for each server"), &format!("{each} KiB"), "aim < 300 KB");
    let mut data = cofer.stop().await;
    let (mut boots, mut floors) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        floors.push(by_hand(provider).await.as_secs_f64());
        let began = Instant::now();
        let cofer = Served::cofer_on(data).await;
        while !all_ready(&cofer).await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        boots.push(began.elapsed().as_secs_f64());
        data = cofer.stop().await;
    }
    let (boot, floor) = (median(boots), median(floors));
    let figure = format!("{:.2} x ({boot:.2} s beside {floor:.2} s)", boot / floor);
    row(&format!("{provider}: {SERVERS} servers at boot beside `docker run`"), &figure, "aim <= 1.3 x");
}

async fn all_ready(cofer: &Served) -> bool {
    cofer.servers().await.iter().all(|server| server["status"] == "ready")
}

/// The same image so many times at once by the engine's own client, with the same limits, until each has answered a line.
async fn by_hand(provider: &str) -> Duration {
    let host = std::env::var("COFER_TEST_DOCKER_HOST").expect("Docker");
    let runtime = if provider == "gvisor" { "runsc" } else { "runc" };
    let began = Instant::now();
    let runs = (0..SERVERS).map(|_| {
        let mut command = Command::new("docker");
        command.args(["-H", &host, "run", "--rm", "-i", "--init", "--cap-drop", "ALL", "--memory", "512m"]);
        command.args([
            "--cpus",
            "0.5",
            "--pids-limit",
            "256",
            "--runtime",
            runtime,
            "--log-driver",
            "none",
            IMAGE,
        ]);
        tokio::spawn(answer_one_line(command))
    });
    let mut ends = Vec::new();
    for run in runs.collect::<Vec<_>>() {
        ends.push(run.await.expect("a run"));
    }
    let took = began.elapsed();
    for mut child in ends {
        drop(child.stdin.take());
        child.wait().await.expect("its end");
    }
    took
}

async fn answer_one_line(mut command: Command) -> tokio::process::Child {
    use std::process::Stdio;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().expect("docker");
    let stdin = child.stdin.as_mut().expect("piped");
    stdin.write_all(b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}\n").await.expect("a line");
    let mut answer = [0; 1];
    child.stdout.as_mut().expect("piped").read_exact(&mut answer).await.expect("an answer");
    child
}

async fn crash_to_ready(provider: &str) {
    let cofer = Served::cofer().await;
    cofer.register("fragile", json!({"provider": provider, "cmd": ["--slow-start-ms", "200"]})).await;
    let mut times = Vec::new();
    for crash in 0..CRASHES {
        if crash % 2 == 0 {
            // Two in a row are no crash loop yet.
            cofer.post("fragile/restart").await;
        }
        let count = cofer.servers().await[0]["restart_count"].as_u64();
        let began = Instant::now();
        cofer.post_call("fragile", r#"{"name":"crash","arguments":{"exit_code":1}}"#).await;
        loop {
            let server = cofer.servers().await.swap_remove(0);
            if server["status"] == "ready" && server["restart_count"].as_u64() > count {
                break;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        times.push(began.elapsed().as_secs_f64());
    }
    cofer.stop().await;
    let figure = format!("{:.2} s", median(times));
    row(&format!("{provider}: crash to ready, a server that starts in 0.2 s"), &figure, "aim < 1.5 s");
}
