//! The gateway: a call through `/mcp` with token, session and record, beside a bare proxy before the same program; and what sessions and
//! servers weigh.

use crate::client::{Caller, load};
use crate::figures::{median, row};
use crate::served::Served;

const ROUNDS: usize = 9;
const ROUND_SECONDS: f64 = 1.0;
const STRETCH_SECONDS: f64 = 15.0;
const PARAMS: &str = r#"{"name":"echo","arguments":{"text":"hello"}}"#;
/// The first bring more with them than themselves.
const SESSIONS_BEFORE: u64 = 100;
const SESSIONS: u64 = 2000;
const SERVERS: usize = 100;
const FILLER_TOOLS: &str = "20";
const LISTS: usize = 200;
const REGISTERED: usize = 1000;
const STARTS: usize = 5;

pub async fn measure_calls() {
    let cofer = Served::cofer().await;
    calls(&cofer).await;
    cofer.stop().await;
}

pub async fn measure() {
    measure_calls().await;
    // Anew: what an earlier load has left free would be taken first, and would not count.
    let cofer = Served::cofer().await;
    idle_sessions(&cofer).await;
    cofer.stop().await;
    let cofer = Served::cofer().await;
    many_servers(&cofer).await;
    cofer.stop().await;
    start_with_many().await;
}

async fn calls(cofer: &Served) {
    cofer.register_external("echo", &[]).await;
    let proxy = Served::other("raw-proxy").await;
    for callers in [1, 16] {
        let (mut through_cofer, mut through_proxy) = (Vec::new(), Vec::new());
        for _ in 0..callers {
            through_cofer.push(client(cofer, "tools/call", PARAMS).await);
            // The same request, to the letter: what only one of them looks at is sent to both.
            through_proxy.push(at(&proxy.address, cofer, "tools/call", PARAMS).await);
        }
        let (mut p50, mut rate, mut said) = (Vec::new(), Vec::new(), (0.0, 0.0, 0.0));
        let (mut cofer_micros, mut floor_micros) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let used = proxy.processor_micros();
            let (back, floor_rate, floor_p50) = load(through_proxy, ROUND_SECONDS).await;
            through_proxy = back;
            floor_micros.push((proxy.processor_micros() - used) / (floor_rate * ROUND_SECONDS));
            let used = cofer.processor_micros();
            let (back, cofer_rate, cofer_p50) = load(through_cofer, ROUND_SECONDS).await;
            through_cofer = back;
            cofer_micros.push((cofer.processor_micros() - used) / (cofer_rate * ROUND_SECONDS));
            cofer.made_rows().await;
            p50.push(cofer_p50 / floor_p50);
            rate.push(cofer_rate / floor_rate);
            said = (cofer_p50, cofer_rate, floor_rate);
        }
        let (p50, rate) = (median(p50), median(rate));
        let figure = format!(
            "p50 {p50:.2} x ({:.0} µs), throughput {:.0} % ({:.0}/s beside {:.0}/s), {:.1} µs of processor time for a call beside {:.1}",
            said.0,
            rate * 100.0,
            said.1,
            said.2,
            median(cofer_micros),
            median(floor_micros),
        );
        let aim = if callers == 16 { "aim <= 1.25 x, >= 80 %" } else { "" };
        row(&format!("gateway, {callers} clients, beside a bare proxy"), &figure, aim);
        if callers == 16 {
            at_a_stretch(cofer, through_cofer, through_proxy).await;
        }
    }
    proxy.stop().await;
}

/// So long that rows of the record have to be made in the middle of it, and all of them before the time is taken.
async fn at_a_stretch(cofer: &Served, through_cofer: Vec<Caller>, through_proxy: Vec<Caller>) {
    let (used, began) = (cofer.processor_micros(), std::time::Instant::now());
    let (_, rate, p50) = load(through_cofer, STRETCH_SECONDS).await;
    let (called, calls) = (began.elapsed().as_secs_f64(), rate * STRETCH_SECONDS);
    cofer.made_rows().await;
    let (used, took) = (cofer.processor_micros() - used, began.elapsed().as_secs_f64());
    let rate = calls / took;
    let (_, floor_rate, floor_p50) = load(through_proxy, STRETCH_SECONDS).await;
    let figure = format!(
        "p50 {:.2} x, throughput {:.0} % ({rate:.0}/s), {:.1} µs of processor time for a call, rows {:.1} s behind at the end",
        p50 / floor_p50,
        rate / floor_rate * 100.0,
        used / calls,
        took - called,
    );
    row(
        &format!("gateway, the same for {STRETCH_SECONDS} s at a stretch, until all rows are made"),
        &figure,
        "",
    );
}

/// A client with a session of its own, for one request again and again.
async fn client(cofer: &Served, method: &str, params: &str) -> Caller {
    at(&cofer.address, cofer, method, params).await
}

/// What such a client would ask there.
async fn at(address: &str, cofer: &Served, method: &str, params: &str) -> Caller {
    let session = cofer.open_session().await;
    let headers = format!("Mcp-Session-Id: {session}\r\nAccept: application/json, text/event-stream\r\n");
    let body = format!("{{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"{method}\",\"params\":{params}}}");
    Caller::with_headers(address, "/mcp", &cofer.token, &headers, &body).await
}

async fn idle_sessions(cofer: &Served) {
    for _ in 0..SESSIONS_BEFORE {
        cofer.open_session().await;
    }
    let before = cofer.own_kib();
    for _ in 0..SESSIONS {
        cofer.open_session().await;
    }
    #[expect(clippy::cast_precision_loss, reason = "a figure to be read")]
    let each = (cofer.own_kib().saturating_sub(before)) as f64 / SESSIONS as f64;
    row("gateway, memory for each idle session", &format!("{each:.1} KiB"), "aim < 20 KB");
}

async fn many_servers(cofer: &Served) {
    cofer.qualify_names().await;
    for number in 0..SERVERS {
        cofer.register_external(&format!("s{number}"), &["--tools", FILLER_TOOLS]).await;
    }
    let mut caller = client(cofer, "tools/list", "{}").await;
    caller.call().await;
    let mut times = Vec::new();
    for _ in 0..LISTS {
        times.push(caller.call().await);
    }
    let p50 = crate::figures::median_micros(&times) / 1000.0;
    let bytes = caller.received_bytes();
    row(
        &format!("gateway, tools/list over {SERVERS} servers of {FILLER_TOOLS} tools and more, warm"),
        &format!("p50 {p50:.2} ms ({bytes} bytes)"),
        "aim < 3 ms",
    );
    let memory = cofer.resident_kib();
    #[expect(clippy::cast_precision_loss, reason = "a figure to be read")]
    let memory = memory as f64 / 1024.0;
    row(
        &format!("gateway, memory with {SERVERS} connected servers"),
        &format!("{memory:.1} MiB, and {} KiB for the guardian of each", cofer.guardian_kib()),
        "aim < 60 MB",
    );
}

/// From the start of the program to the answer to a client's first request.
async fn start_with_many() {
    let cofer = Served::cofer().await;
    for number in 0..REGISTERED {
        cofer.register_external(&format!("s{number}"), &[]).await;
    }
    let mut data = cofer.stop().await;
    let mut times = Vec::new();
    for _ in 0..STARTS {
        let began = std::time::Instant::now();
        let cofer = Served::cofer_on(data).await;
        cofer.open_session().await;
        times.push(began.elapsed().as_secs_f64() * 1000.0);
        data = cofer.stop().await;
    }
    let figure = format!("{:.0} ms", median(times));
    row(&format!("gateway, start to first answer, {REGISTERED} servers registered"), &figure, "aim < 300 ms");
}
