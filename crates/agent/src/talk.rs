//! What was said so far, and what comes next. Decides, and does nothing.
//!
//! ```text
//!   Ask ──answered──► Call ──results──► Ask …
//!    │                  │
//!    └──────────────────┴──► End: the model's own reason, or a limit
//! ```

use std::time::Duration;

use cofer_model::{RunStatus, Speaker, Usage};
use serde::{Deserialize, Serialize};
use serde_json::json;
use serde_json::value::RawValue;

use crate::api::{Answer, ToolUse};

/// No single answer is longer.
const ANSWER_TOKENS_MAX: u64 = 16_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    User,
    Assistant,
}

/// The content of a message: JSON objects, to the letter.
pub type Blocks = Vec<Box<RawValue>>;

/// One message as the API takes it.
#[derive(Clone, Debug, Serialize)]
pub struct Message {
    pub role: Role,
    pub content: Blocks,
}

/// What one turn may use.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Answers of the model.
    pub steps: u64,
    /// Tokens of all kinds together.
    pub tokens: u64,
    pub time: Duration,
}

#[derive(Debug)]
pub(crate) enum Next {
    Ask { answer_tokens_max: u64 },
    Call(Vec<ToolUse>),
    End(Ending),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ending {
    pub(crate) status: RunStatus,
    pub(crate) reason: String,
}

impl Ending {
    pub(crate) fn limited(reason: &str) -> Self {
        Self { status: RunStatus::Limited, reason: reason.to_owned() }
    }
}

#[derive(Debug)]
pub(crate) struct Talk {
    pub(crate) messages: Vec<Message>,
    limits: Limits,
    /// Of this turn.
    pub(crate) steps: u64,
    pub(crate) usage: Usage,
    /// The text of the last answer.
    pub(crate) text: String,
}

impl Talk {
    pub(crate) fn begin(messages: Vec<Message>, limits: Limits) -> Self {
        Self { messages, limits, steps: 0, usage: Usage::default(), text: String::new() }
    }

    /// Whether the model may be asked once more.
    pub(crate) fn next(&self) -> Next {
        let tokens_left = self.limits.tokens.saturating_sub(self.usage.tokens());
        if self.steps >= self.limits.steps {
            Next::End(Ending::limited("max_steps"))
        } else if tokens_left == 0 {
            Next::End(Ending::limited("max_tokens"))
        } else {
            Next::Ask { answer_tokens_max: tokens_left.min(ANSWER_TOKENS_MAX) }
        }
    }

    pub(crate) fn answered(&mut self, answer: Answer) -> Next {
        self.steps += 1;
        self.usage = self.usage.and(answer.usage);
        self.text = answer.text;
        if !answer.content.is_empty() {
            self.messages.push(Message { role: Role::Assistant, content: answer.content });
        }
        match answer.stop_reason.as_str() {
            // Where the answer broke off, so may have what it wanted called.
            "max_tokens" => Next::End(Ending::limited("max_tokens")),
            "model_context_window_exceeded" => Next::End(Ending::limited(&answer.stop_reason)),
            // It was busy with tools of its own, and goes on.
            "pause_turn" => self.next(),
            _ if !answer.tool_uses.is_empty() => match self.next() {
                Next::Ask { .. } => Next::Call(answer.tool_uses),
                end => end,
            },
            _ => Next::End(Ending { status: RunStatus::Completed, reason: answer.stop_reason }),
        }
    }

    pub(crate) fn results(&mut self, content: Blocks) -> Next {
        self.messages.push(Message { role: Role::User, content });
        self.next()
    }

    /// Calls that nobody has answered.
    pub(crate) fn unanswered(&self) -> Vec<String> {
        match self.messages.last() {
            Some(Message { role: Role::Assistant, content }) => {
                content.iter().filter_map(|block| tool_use_id(block)).collect()
            }
            _ => Vec::new(),
        }
    }
}

/// A result of ours for a call, in words.
pub(crate) fn refusal(tool_use_id: &str, words: &str) -> Box<RawValue> {
    let block =
        json!({"type": "tool_result", "tool_use_id": tool_use_id, "content": words, "is_error": true});
    serde_json::value::to_raw_value(&block).unwrap_or_else(|_| RawValue::NULL.to_owned())
}

#[derive(Deserialize)]
struct Block {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    id: Option<String>,
    #[serde(default)]
    tool_use_id: Option<String>,
}

fn tool_use_id(block: &RawValue) -> Option<String> {
    let block: Block = serde_json::from_str(block.get()).ok()?;
    block.id.filter(|_| block.kind == "tool_use")
}

fn answered_id(block: &RawValue) -> Option<String> {
    let block: Block = serde_json::from_str(block.get()).ok()?;
    block.tool_use_id.filter(|_| block.kind == "tool_result")
}

const INTERRUPTED: &str =
    "This call was interrupted, and nobody knows whether it was executed. Find out before you call it again.";

/// What was written down of a run, as the API takes it. A call without a result, because something ended in between, gets one that
/// says so: it is never made again by us.
pub fn transcript(said: Vec<(Speaker, Blocks)>) -> Vec<Message> {
    let mut messages: Vec<Message> = Vec::new();
    let mut open: Vec<String> = Vec::new();
    for (speaker, content) in said {
        let answered: Vec<_> = content.iter().filter_map(|block| answered_id(block)).collect();
        open.retain(|id| !answered.contains(id));
        if speaker != Speaker::Tool {
            close(&mut messages, &mut open);
        }
        let role = if speaker == Speaker::Assistant { Role::Assistant } else { Role::User };
        if role == Role::Assistant {
            open.extend(content.iter().filter_map(|block| tool_use_id(block)));
        }
        extend(&mut messages, role, content);
    }
    close(&mut messages, &mut open);
    messages
}

fn close(messages: &mut Vec<Message>, open: &mut Vec<String>) {
    let refused: Vec<_> = open.drain(..).map(|id| refusal(&id, INTERRUPTED)).collect();
    extend(messages, Role::User, refused);
}

fn extend(messages: &mut Vec<Message>, role: Role, content: Blocks) {
    match messages.last_mut() {
        _ if content.is_empty() => {}
        Some(last) if last.role == role => last.content.extend(content),
        _ => messages.push(Message { role, content }),
    }
}
