//! The record of a tool's call, by whichever door it came, and how records are looked for.

use serde::Serialize;

use crate::words::words;
use crate::{CallId, Moment, ProjectId, RunId};

words! {
    /// How a call ended.
    CallStatus {
        Completed = "completed",
        Error = "error",
        Timeout = "timeout",
        Cancelled = "cancelled",
    }
}

/// One call. Input and output are JSON, carried as they came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolCallRecord {
    pub id: CallId,
    pub project_id: ProjectId,
    pub run_id: Option<RunId>,
    pub tool_name: String,
    /// The name of the server that answered, or `native`.
    pub server: String,
    pub input: Option<String>,
    pub output: Option<String>,
    pub status: CallStatus,
    pub duration_ms: Option<i64>,
    pub step_number: Option<i64>,
    /// Who called, in words: a token's name, a client's.
    pub caller: Option<String>,
    pub trace_id: Option<String>,
    pub created_at: Moment,
}

/// Which calls to show. What is `None` does not matter.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CallFilter {
    pub tool: Option<String>,
    pub server: Option<String>,
    pub status: Option<CallStatus>,
    pub run_id: Option<RunId>,
    /// This moment and later.
    pub since: Option<Moment>,
    /// Before this moment.
    pub until: Option<Moment>,
}
