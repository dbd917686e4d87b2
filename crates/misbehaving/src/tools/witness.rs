//! What this server saw, so that a test can ask the other end.

use std::process;

use serde_json::json;

use super::{Call, Reply, facts};
use crate::catalogue::{Runs, Tool};
use crate::state::{Server, lock};

#[rustfmt::skip]
pub(super) const TOOLS: &[Tool] = &[
    Tool { name: "calls_seen", about: "Answers with how often each tool was called, this call included, and with its pid.", parameters: &[], runs: Runs::InOrder, run: calls_seen },
    Tool { name: "cancel_seen", about: "Answers with the ids of the requests that were cancelled.", parameters: &[], runs: Runs::InOrder, run: cancel_seen },
];

fn calls_seen(server: &Server, _: &Call) -> Reply {
    facts(&json!({"calls": lock(&server.seen).calls, "pid": process::id()}))
}

fn cancel_seen(server: &Server, _: &Call) -> Reply {
    facts(&json!({"cancelled": lock(&server.seen).cancelled}))
}
