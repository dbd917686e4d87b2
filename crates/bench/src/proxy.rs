//! What Cofer adds: HTTP to a pipe and back, beside a bare proxy before the same program, each in a process of its own.

use serde_json::json;
use tokio::process::Command;

use crate::client::{Caller, load};
use crate::figures::{median, row};
use crate::served::Served;

const ROUNDS: usize = 9;
const ROUND_SECONDS: f64 = 1.0;
const PARAMS: &str = r#"{"name":"echo","arguments":{"text":"hello"}}"#;

pub async fn measure() {
    let (cofer, proxy) = (start("serve-processes").await, start("raw-proxy").await);
    cofer.register("echo", json!({"max_in_flight": 64})).await;
    for callers in [1, 16] {
        let mut through_cofer = Vec::new();
        let mut through_proxy = Vec::new();
        for _ in 0..callers {
            through_cofer.push(cofer.caller("echo", PARAMS).await);
            let body = format!("{{\"method\":\"tools/call\",\"params\":{PARAMS}}}");
            through_proxy.push(Caller::new(&proxy.address, "/", "", &body).await);
        }
        let (mut p50, mut rate, mut said) = (Vec::new(), Vec::new(), (0.0, 0.0));
        for _ in 0..ROUNDS {
            let (back, floor_rate, floor_p50) = load(through_proxy, ROUND_SECONDS).await;
            through_proxy = back;
            let (back, cofer_rate, cofer_p50) = load(through_cofer, ROUND_SECONDS).await;
            through_cofer = back;
            cofer.made_rows().await;
            p50.push(cofer_p50 / floor_p50);
            rate.push(cofer_rate / floor_rate);
            said = (cofer_p50, cofer_rate);
        }
        let (p50, rate) = (median(p50), median(rate));
        let figure =
            format!("p50 {p50:.2} x ({:.0} µs), throughput {:.0} % ({:.0}/s)", said.0, rate * 100.0, said.1);
        let aim = if callers == 16 { "aim <= 1.25 x, >= 75 %" } else { "" };
        row(&format!("engine-free, {callers} callers, beside a bare proxy"), &figure, aim);
    }
    cofer.stop().await;
}

async fn start(what: &str) -> Served {
    let data = tempfile::tempdir().expect("a directory");
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.arg(what);
    if what == "serve-processes" {
        command.arg(data.path());
    }
    Served::started(command, data).await
}
