//! Reads one line at a time and answers as a legacy MCP server does, minus what the flags take away.

use std::io::{self, BufRead as _};
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use crate::catalogue::{self, Runs};
use crate::end;
use crate::state::{Reading, Server, lock};
use crate::tools::{Answer, Call};
use crate::wire::{self, RpcError};

const VERSIONS: &[&str] = &["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"];
const VERSION_NEWEST: &str = "2025-11-25";

/// Serves until stdin ends.
pub(crate) fn serve(server: &Arc<Server>) -> ExitCode {
    let mut lines = io::stdin().lock();
    let mut line = Vec::new();
    loop {
        line.clear();
        match lines.read_until(b'\n', &mut line) {
            Ok(0) if server.flags.ignore_eof => rest_for_ever(),
            Ok(0) => return ExitCode::SUCCESS,
            Ok(_) => take(server, line.trim_ascii()),
            Err(error) => {
                wire::complain(&format!("could not read stdin: {error}"));
                return ExitCode::FAILURE;
            }
        }
        let reading = std::mem::replace(&mut *lock(&server.reading), Reading::On);
        match reading {
            Reading::On => {}
            Reading::StopFor(pause) => thread::sleep(pause),
            Reading::StopForEver => rest_for_ever(),
        }
    }
}

fn rest_for_ever() -> ! {
    loop {
        thread::park();
    }
}

fn take(server: &Arc<Server>, line: &[u8]) {
    if line.is_empty() {
        return;
    }
    let message: Value = match serde_json::from_slice(line) {
        Ok(message) => message,
        Err(error) => {
            let refusal = RpcError::new(wire::PARSE_ERROR, format!("not JSON: {error}"));
            return server.answer(&Value::Null, Err(refusal));
        }
    };
    server.note(&message);
    let method = message.get("method").and_then(Value::as_str);
    match (method, message.get("id")) {
        (Some(method), Some(id)) => {
            request(server, id, method, message.get("params").unwrap_or(&Value::Null));
        }
        (Some(method), None) => notification(server, method, &message["params"]),
        (None, Some(id)) => {
            if let Some(waiter) = lock(&server.questions).remove(&id.to_string()) {
                // The one who asked may have given up waiting.
                drop(waiter.try_send(message));
            }
        }
        (None, None) => {
            let refusal = RpcError::new(wire::INVALID_REQUEST, "neither a request nor an answer");
            server.answer(&Value::Null, Err(refusal));
        }
    }
}

fn request(server: &Arc<Server>, id: &Value, method: &str, params: &Value) {
    let flags = &server.flags;
    let initialize = method == "initialize" && !flags.no_initialize;
    if flags.exit_on_early_request && !initialize && !lock(&server.seen).initialize {
        wire::complain(&format!("{method} came before initialize"));
        end::exit(flags.exit_code);
    }
    let early = flags.strict_handshake && !lock(&server.seen).initialized;
    match method {
        "initialize" if initialize => {
            lock(&server.seen).initialize = true;
            thread::sleep(Duration::from_millis(flags.slow_initialize_ms));
            server.answer(id, Ok(hello(server, params)));
        }
        "ping" if flags.ignore_ping => {}
        "ping" if !flags.ping_error => server.answer(id, Ok(json!({}))),
        "tools/list" | "tools/call" if early => {
            server.answer(id, Err(RpcError::new(wire::INVALID_REQUEST, "the handshake is not finished")));
        }
        "tools/list" if flags.silent_list => {}
        "tools/list" => server.answer(id, catalogue::page(server, params.get("cursor"))),
        "tools/call" => call(server, id, params),
        _ => {
            let refusal = RpcError::new(wire::METHOD_NOT_FOUND, format!("unknown method {method}"));
            server.answer(id, Err(refusal));
        }
    }
}

fn hello(server: &Server, params: &Value) -> Value {
    let asked = params.get("protocolVersion").and_then(Value::as_str).unwrap_or_default();
    let agreed = VERSIONS.iter().copied().find(|known| *known == asked).unwrap_or(VERSION_NEWEST);
    let version = server.flags.initialize_version.as_deref().unwrap_or(agreed);
    json!({
        "protocolVersion": version,
        "capabilities": {"tools": {"listChanged": true}},
        "serverInfo": {"name": server.flags.server_name, "version": env!("CARGO_PKG_VERSION")},
    })
}

fn notification(server: &Server, method: &str, params: &Value) {
    match method {
        "notifications/initialized" => lock(&server.seen).initialized = true,
        "notifications/cancelled" => lock(&server.seen).cancelled.push(params["requestId"].clone()),
        _ => {}
    }
}

fn call(server: &Arc<Server>, id: &Value, params: &Value) {
    let name = params.get("name").and_then(Value::as_str).unwrap_or_default();
    *lock(&server.seen).calls.entry(name.to_owned()).or_default() += 1;
    if server.muted() {
        return;
    }
    let Some((run, runs)) = catalogue::find(server, name) else {
        return server.answer(id, Err(RpcError::new(wire::INVALID_PARAMS, format!("Unknown tool: {name}"))));
    };
    let call = Call::new(id, params, server.answered());
    let work = {
        let server = Arc::clone(server);
        move || match run(&server, &call) {
            Ok(Answer::Result(result)) => finish(&server, &call.id, Ok(result)),
            Ok(Answer::Taken) => {}
            Err(refusal) => finish(&server, &call.id, Err(refusal)),
        }
    };
    match runs {
        Runs::InOrder => work(),
        Runs::Aside if server.flags.serial => work(),
        Runs::Aside => {
            // Inside a sandbox with a limit on processes there may be no thread left.
            if let Err(error) = thread::Builder::new().name(name.to_owned()).spawn(work) {
                let refusal = RpcError::new(wire::SERVER_ERROR, format!("no thread for this call: {error}"));
                finish(server, id, Err(refusal));
            }
        }
    }
}

fn finish(server: &Server, id: &Value, reply: Result<Value, RpcError>) {
    server.answer(id, reply);
    server.count_answer();
}
