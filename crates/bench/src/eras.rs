//! What the later era costs: a call that stands alone beside one in a session, in processor time of Cofer's, both to the same program;
//! and what calls weigh that wait for their clients.

use serde_json::json;

use crate::client::Caller;
use crate::figures::{median, row};
use crate::served::Served;

const ROUNDS: usize = 15;
const CALLS: usize = 2000;
const PARKED: u64 = 1000;
const VERSION: &str = "2026-07-28";

pub async fn measure() {
    let cofer = Served::cofer().await;
    cofer.register_external("echo", &[]).await;
    processor_time(&cofer).await;
    parked(&cofer).await;
    cofer.stop().await;
}

/// A call that stands alone, with its headers.
async fn alone(cofer: &Served, name: &str, arguments: &serde_json::Value) -> Caller {
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": VERSION,
        "io.modelcontextprotocol/clientCapabilities": {"elicitation": {}},
        "io.modelcontextprotocol/clientInfo": {"name": "bench", "version": "1"},
    });
    let params = json!({"name": name, "arguments": arguments, "_meta": meta});
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).to_string();
    let headers = format!(
        "MCP-Protocol-Version: {VERSION}\r\nMcp-Method: tools/call\r\nMcp-Name: {name}\r\nAccept: application/json, text/event-stream\r\n"
    );
    Caller::with_headers(&cofer.address, "/mcp", &cofer.token, &headers, &body).await
}

async fn processor_time(cofer: &Served) {
    let session = cofer.open_session().await;
    let headers = format!("Mcp-Session-Id: {session}\r\nAccept: application/json, text/event-stream\r\n");
    let body = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{"text":"hello"}}}"#;
    let mut in_session = Caller::with_headers(&cofer.address, "/mcp", &cofer.token, &headers, body).await;
    let mut standing_alone = alone(cofer, "echo", &json!({"text": "hello"})).await;
    let mut ratios = Vec::new();
    let mut said = (0.0, 0.0);
    for _ in 0..ROUNDS {
        let floor = spent(cofer, &mut in_session).await;
        let own = spent(cofer, &mut standing_alone).await;
        ratios.push(own / floor);
        said = (own, floor);
    }
    let figure = format!("{:.2} x ({:.0} µs beside {:.0} µs)", median(ratios), said.0, said.1);
    row("a call that stands alone, processor time beside one in a session", &figure, "aim <= 1.10 x");
}

/// Processor time for each call, in microseconds.
async fn spent(cofer: &Served, caller: &mut Caller) -> f64 {
    let before = cofer.processor_micros();
    for _ in 0..CALLS {
        caller.call().await;
    }
    // The record is part of a call.
    cofer.made_rows().await;
    let calls = f64::from(u32::try_from(CALLS).expect("few"));
    (cofer.processor_micros() - before) / calls
}

async fn parked(cofer: &Served) {
    let params = json!({"message": "who?", "requestedSchema": {"type": "object", "properties": {}}});
    let mut caller =
        alone(cofer, "ask", &json!({"method": "elicitation/create", "params": params, "ms": 600_000})).await;
    caller.call().await;
    let before = cofer.resident_kib();
    for _ in 1..PARKED {
        caller.call().await;
    }
    let grown = cofer.resident_kib().saturating_sub(before) / 1024;
    row(
        &format!("memory for {PARKED} calls that wait for their clients"),
        &format!("{grown} MiB"),
        "aim < 20 MB",
    );
}
