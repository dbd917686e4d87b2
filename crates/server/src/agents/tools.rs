//! A project's tools, for an agent: listed and called through the same gateway as for any other client, and recorded with the run.

use std::sync::Arc;

use async_trait::async_trait;
use cofer_agent::{Call, Called, Tool, Tools};
use cofer_gateway::{Caller, ListedTool, Project, text_result};
use cofer_mcp::{Reply, raw};
use cofer_model::{CallStatus, Kind};
use serde_json::value::RawValue;

#[derive(Debug)]
pub(super) struct ProjectTools {
    pub project: Arc<Project>,
    pub caller: Caller,
}

impl ProjectTools {
    fn offered(&self, listed: ListedTool) -> Tool {
        let text = |path: &[&str]| raw::text_at(&listed.raw, path).map(std::borrow::Cow::into_owned);
        let is_read_only =
            raw::at(&listed.raw, &["annotations", "readOnlyHint"]).is_some_and(|hint| hint.get() == "true");
        Tool {
            description: text(&["description"]).unwrap_or_default(),
            input_schema: raw::at(&listed.raw, &["inputSchema"]).map(ToOwned::to_owned),
            is_read_only,
            is_display: self.project.displays(&listed.name),
            name: listed.name,
            server: listed.server,
        }
    }

    fn caller(&self, call: &Call<'_>) -> Caller {
        Caller { step: Some(call.step), ..self.caller.clone() }
    }
}

/// As `tools/call` has them.
fn params(call: &Call<'_>) -> Box<RawValue> {
    let arguments = if call.input.get() == "null" { "{}" } else { call.input.get() };
    let params = format!("{{\"name\":{},\"arguments\":{arguments}}}", raw::quoted(call.tool));
    // Made of what was JSON before.
    RawValue::from_string(params).unwrap_or_else(|_| raw::empty_object())
}

#[async_trait]
impl Tools for ProjectTools {
    async fn list(&self) -> Vec<Tool> {
        let listing = self.project.tools().await;
        for missing in &listing.missing {
            tracing::info!("a chat goes on without the tools of {}: {}", missing.server, missing.reason);
        }
        let offered = listing.tools.into_iter().filter(|tool| tool.enabled && tool.shadowed_by.is_none());
        offered.map(|tool| self.offered(tool)).collect()
    }

    async fn call(&self, call: &Call<'_>) -> Called {
        let error = |status: CallStatus, words: &str| Called { status, result: text_result(words, true) };
        match self.project.call_tool(call.tool, params(call), None, &self.caller(call)).await {
            Ok(Reply::Result(result)) => {
                let is_error = raw::at(&result, &["isError"]).is_some_and(|flag| flag.get() == "true");
                Called { status: if is_error { CallStatus::Error } else { CallStatus::Completed }, result }
            }
            Ok(Reply::Error(refused)) => {
                error(CallStatus::Error, &format!("The server refused the call: {}", refused.message))
            }
            Err(failed) => {
                let status =
                    if failed.kind == Kind::Timeout { CallStatus::Timeout } else { CallStatus::Error };
                let doubt =
                    if failed.may_have_executed { " It may have been executed all the same." } else { "" };
                error(status, &format!("The call failed: {}.{doubt}", failed.message))
            }
        }
    }

    async fn decline(&self, call: &Call<'_>, words: &str) {
        self.project.decline_tool(call.tool, &params(call), words, &self.caller(call)).await;
    }
}
