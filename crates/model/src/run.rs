//! An agent's run: what came of it, what was said in it, what it cost; and how runs are looked for.

use serde::{Deserialize, Serialize};

use crate::words::words;
use crate::{MessageId, Moment, ProjectId, RunId};

words! {
    /// How a run goes.
    RunStatus {
        Running = "running",
        Completed = "completed",
        Failed = "failed",
        Cancelled = "cancelled",
        /// It came to a limit: the reason names which.
        Limited = "limited",
    }
}

words! {
    /// Who said something in a run.
    Speaker {
        User = "user",
        Assistant = "assistant",
        /// What a tool answered. To the model it comes from the user.
        Tool = "tool",
    }
}

/// Tokens, as the model's API counts them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(default)]
pub struct Usage {
    pub input_tokens: u64,
    pub output_tokens: u64,
    /// Read for the first time, to be remembered.
    pub cache_creation_input_tokens: u64,
    /// Remembered.
    pub cache_read_input_tokens: u64,
}

impl Usage {
    #[must_use]
    pub fn and(self, more: Self) -> Self {
        Self {
            input_tokens: self.input_tokens.saturating_add(more.input_tokens),
            output_tokens: self.output_tokens.saturating_add(more.output_tokens),
            cache_creation_input_tokens: self
                .cache_creation_input_tokens
                .saturating_add(more.cache_creation_input_tokens),
            cache_read_input_tokens: self
                .cache_read_input_tokens
                .saturating_add(more.cache_read_input_tokens),
        }
    }

    /// All of them together.
    pub fn tokens(self) -> u64 {
        let read = self.cache_creation_input_tokens.saturating_add(self.cache_read_input_tokens);
        self.input_tokens.saturating_add(self.output_tokens).saturating_add(read)
    }
}

/// One conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunRecord {
    pub id: RunId,
    pub project_id: ProjectId,
    pub status: RunStatus,
    /// The model's stop reason, the limit that was reached, `cancelled` or `error`. None while it runs.
    pub reason: Option<String>,
    /// What went wrong, in words.
    pub error: Option<String>,
    pub model: String,
    pub system: Option<String>,
    /// How often the model has answered.
    pub steps: i64,
    pub usage: Usage,
    pub caller: Option<String>,
    pub trace_id: Option<String>,
    pub created_at: Moment,
    pub updated_at: Moment,
}

/// Something that was said. Its content is a JSON array of blocks, carried as it came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunMessage {
    pub id: MessageId,
    pub run_id: RunId,
    /// Counted from 0 within its run.
    pub position: i64,
    pub step_number: i64,
    pub role: Speaker,
    pub content: String,
    pub created_at: Moment,
}

/// Which runs to show. What is `None` does not matter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunFilter {
    pub status: Option<RunStatus>,
    pub model: Option<String>,
    /// This moment and later.
    pub since: Option<Moment>,
    /// Before this moment.
    pub until: Option<Moment>,
}
