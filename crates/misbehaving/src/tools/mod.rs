//! What the tools do, by the part of the world they disturb.
//!
//! A tool returns the result it wants sent, or says that it has taken care of the answer itself: by writing odd
//! bytes, or by never writing any.

#![expect(
    clippy::unnecessary_wraps,
    reason = "every tool has the same signature, those that cannot fail too"
)]

mod answers;
mod host;
mod lines;
mod processes;
mod streams;
mod witness;

use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::catalogue::Tool;
use crate::state::Server;
use crate::wire::{INVALID_PARAMS, RpcError};

pub(crate) const ALL: &[&[Tool]] =
    &[answers::TOOLS, lines::TOOLS, streams::TOOLS, processes::TOOLS, host::TOOLS, witness::TOOLS];

pub(crate) type Reply = Result<Answer, RpcError>;

pub(crate) enum Answer {
    Result(Value),
    /// The tool wrote its answer itself, or never will.
    Taken,
}

/// One call of a tool.
pub(crate) struct Call {
    pub(crate) id: Value,
    pub(crate) progress_token: Option<Value>,
    /// How many calls had been answered when this one came.
    pub(crate) answered_before: u64,
    arguments: Map<String, Value>,
}

impl Call {
    pub(crate) fn new(id: &Value, params: &Value, answered_before: u64) -> Self {
        Self {
            id: id.clone(),
            progress_token: params.pointer("/_meta/progressToken").cloned(),
            answered_before,
            arguments: params["arguments"].as_object().cloned().unwrap_or_default(),
        }
    }

    pub(crate) fn any(&self, name: &str) -> Option<&Value> {
        self.arguments.get(name)
    }

    pub(crate) fn count(&self, name: &str) -> Result<Option<u64>, RpcError> {
        self.read(name, "a whole number, not negative", Value::as_u64)
    }

    pub(crate) fn integer(&self, name: &str) -> Result<Option<i64>, RpcError> {
        self.read(name, "a whole number", Value::as_i64)
    }

    pub(crate) fn milliseconds(&self, name: &str) -> Result<Option<Duration>, RpcError> {
        Ok(self.count(name)?.map(Duration::from_millis))
    }

    pub(crate) fn switch(&self, name: &str) -> Result<bool, RpcError> {
        Ok(self.read(name, "true or false", Value::as_bool)?.unwrap_or_default())
    }

    pub(crate) fn text(&self, name: &str) -> Result<Option<&str>, RpcError> {
        self.read(name, "a string", Value::as_str)
    }

    fn read<'a, T>(
        &'a self,
        name: &str,
        wanted: &str,
        read: fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, RpcError> {
        let Some(value) = self.arguments.get(name) else { return Ok(None) };
        read(value).map(Some).ok_or_else(|| invalid(format!("{name} must be {wanted}")))
    }
}

pub(crate) fn invalid(message: impl Into<String>) -> RpcError {
    RpcError::new(INVALID_PARAMS, message)
}

/// For an argument the tool cannot do without.
fn needed<T>(name: &str, value: Option<T>) -> Result<T, RpcError> {
    value.ok_or_else(|| invalid(format!("{name} is missing")))
}

fn text_result(text: impl Into<String>) -> Value {
    json!({"content": [{"type": "text", "text": text.into()}]})
}

/// The same facts twice: as text for clients of every version, and as structured content.
fn facts(facts: &Value) -> Reply {
    Ok(Answer::Result(json!({
        "content": [{"type": "text", "text": facts.to_string()}],
        "structuredContent": facts,
    })))
}

pub(crate) fn filler_name(number: u64) -> String {
    format!("filler_{number:04}")
}

pub(crate) fn fill(server: &Server, _: &Call) -> Reply {
    Ok(Answer::Result(text_result(format!("filled by {}", server.flags.server_name))))
}
