//! The bytes that leave: one JSON-RPC message per line on stdout, complaints on stderr.
//!
//! Whoever wants to write something that is not a whole line holds stdout for as long as it takes, so that two
//! misbehaviours never mix into one by accident.

use std::io::{self, StdoutLock, Write};

use serde_json::{Value, json};

use crate::end;

pub(crate) const PARSE_ERROR: i64 = -32700;
pub(crate) const INVALID_REQUEST: i64 = -32600;
pub(crate) const METHOD_NOT_FOUND: i64 = -32601;
pub(crate) const INVALID_PARAMS: i64 = -32602;
pub(crate) const SERVER_ERROR: i64 = -32000;

/// A refusal in JSON-RPC's own terms.
#[derive(Debug)]
pub(crate) struct RpcError {
    pub(crate) code: i64,
    pub(crate) message: String,
    pub(crate) data: Option<Value>,
}

impl RpcError {
    pub(crate) fn new(code: i64, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), data: None }
    }
}

pub(crate) fn result_line(id: &Value, result: &Value) -> Vec<u8> {
    line(&json!({"jsonrpc": "2.0", "id": id, "result": result}))
}

pub(crate) fn error_line(id: &Value, error: RpcError) -> Vec<u8> {
    let mut body = json!({"code": error.code, "message": error.message});
    if let Some(data) = error.data {
        body["data"] = data;
    }
    line(&json!({"jsonrpc": "2.0", "id": id, "error": body}))
}

pub(crate) fn line(message: &Value) -> Vec<u8> {
    let mut bytes = message.to_string().into_bytes();
    bytes.push(b'\n');
    bytes
}

pub(crate) fn send(bytes: &[u8]) {
    hold(|out| out.write_all(bytes));
}

/// Holds stdout while `write` runs. Nobody reading any more is the end of this server, as of any other.
pub(crate) fn hold<T>(write: impl FnOnce(&mut StdoutLock<'_>) -> io::Result<T>) -> T {
    let mut out = io::stdout().lock();
    match write(&mut out).and_then(|written| out.flush().map(|()| written)) {
        Ok(written) => written,
        Err(error) => {
            complain(&format!("could not write to stdout: {error}"));
            end::exit(1)
        }
    }
}

/// A line on stderr. That it may be closed must not change what this server does.
pub(crate) fn complain(text: &str) {
    drop(io::stderr().lock().write_all(format!("{text}\n").as_bytes()));
}

/// Writes `bytes` bytes in numbered lines of `line_bytes` (newline included) and says how many left.
pub(crate) fn flood(to: &mut impl Write, bytes: u64, line_bytes: u64) -> u64 {
    let mut written = 0;
    let mut number = 0u64;
    while written < bytes {
        let length = line_bytes.max(1).min(bytes - written);
        let head = format!("noise {number} ");
        let mut noise = head.into_bytes();
        noise.resize(usize::try_from(length).unwrap_or(usize::MAX), b'.');
        noise.pop();
        noise.push(b'\n');
        if to.write_all(&noise).is_err() {
            break;
        }
        written += length;
        number += 1;
    }
    written
}
