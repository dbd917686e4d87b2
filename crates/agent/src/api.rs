//! What a model is asked, and what it answers. Whoever implements [`Model`] tries once: trying again is for the run to decide.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use cofer_model::Usage;
use serde_json::value::RawValue;

use crate::talk::Message;

/// Whoever hears a text as it comes.
pub type Hear<'a> = dyn FnMut(&str) + Send + 'a;

#[async_trait]
pub trait Model: Send + Sync + fmt::Debug {
    /// The whole answer. Its text is also heard piece by piece, as it comes.
    async fn answer(&self, question: &Question<'_>, hear: &mut Hear<'_>) -> Result<Answer, ModelError>;
}

#[derive(Clone, Copy, Debug)]
pub struct Question<'a> {
    pub model: &'a str,
    pub system: Option<&'a str>,
    /// A JSON array, the same at every step: the API remembers what it has read.
    pub tools: &'a RawValue,
    pub messages: &'a [Message],
    pub answer_tokens_max: u64,
}

/// What the model said, whole.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Blocks, to be shown to it again as they are.
    pub content: Vec<Box<RawValue>>,
    pub text: String,
    pub tool_uses: Vec<ToolUse>,
    pub stop_reason: String,
    pub usage: Usage,
}

/// A tool that the model wants called.
#[derive(Clone, Debug)]
pub struct ToolUse {
    pub id: String,
    pub name: String,
    /// The model may write what is no JSON; this says what was wrong.
    pub input: Result<Box<RawValue>, String>,
}

/// Why there is no answer.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub struct ModelError {
    pub message: String,
    pub trouble: Trouble,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// It may go away. The API may have said when to come back.
    Passing { retry_after: Option<Duration> },
    /// Asking again would be answered the same.
    Lasting,
}

impl ModelError {
    pub fn passing(message: impl Into<String>) -> Self {
        Self { message: message.into(), trouble: Trouble::Passing { retry_after: None } }
    }

    pub fn lasting(message: impl Into<String>) -> Self {
        Self { message: message.into(), trouble: Trouble::Lasting }
    }
}
