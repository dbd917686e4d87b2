//! A project's tools for programs made with the Agent Development Kit: the project is an `adk_core::Toolset`, each tool an
//! `adk_core::Tool` with its own name, its description, its whole schema, and a call that goes through the gateway like any other.

use std::sync::Arc;

use adk_core::{AdkError, ReadonlyContext, Tool, ToolContext, Toolset};
use async_trait::async_trait;
use cofer_mcp::{Reply, raw};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::call::Caller;
use crate::catalogue::ListedTool;
use crate::project::Project;

/// All tools of a project.
#[derive(Debug)]
pub struct ProjectToolset {
    name: String,
    project: Arc<Project>,
}

impl ProjectToolset {
    pub fn new(project: Arc<Project>) -> Self {
        Self { name: project.name().to_string(), project }
    }
}

#[async_trait]
impl Toolset for ProjectToolset {
    fn name(&self) -> &str {
        &self.name
    }

    /// Those that answer to their names: what is switched off or shadowed is not among them.
    async fn tools(&self, _context: Arc<dyn ReadonlyContext>) -> adk_core::Result<Vec<Arc<dyn Tool>>> {
        let offered = self.project.tools().await.tools.into_iter();
        let offered = offered.filter(|tool| tool.enabled && tool.shadowed_by.is_none());
        let tool = |listed| Arc::new(ProjectTool::of(self.project.clone(), listed)) as Arc<dyn Tool>;
        Ok(offered.map(tool).collect())
    }
}

#[derive(Debug)]
struct ProjectTool {
    project: Arc<Project>,
    name: String,
    description: String,
    input_schema: Option<Value>,
    output_schema: Option<Value>,
    is_read_only: bool,
}

impl ProjectTool {
    fn of(project: Arc<Project>, listed: ListedTool) -> Self {
        let part = |path: &[&str]| raw::at(&listed.raw, path);
        let schema = |name: &str| part(&[name]).and_then(|schema| serde_json::from_str(schema.get()).ok());
        Self {
            project,
            description: raw::text_at(&listed.raw, &["description"]).unwrap_or_default().into_owned(),
            input_schema: schema("inputSchema"),
            output_schema: schema("outputSchema"),
            is_read_only: part(&["annotations", "readOnlyHint"]).is_some_and(|hint| hint.get() == "true"),
            name: listed.name,
        }
    }
}

#[async_trait]
impl Tool for ProjectTool {
    fn name(&self) -> &str {
        &self.name
    }

    fn description(&self) -> &str {
        &self.description
    }

    fn parameters_schema(&self) -> Option<Value> {
        self.input_schema.clone()
    }

    fn response_schema(&self) -> Option<Value> {
        self.output_schema.clone()
    }

    fn is_read_only(&self) -> bool {
        self.is_read_only
    }

    fn is_concurrency_safe(&self) -> bool {
        true
    }

    /// The result as MCP has it: `content`, `structuredContent`, `isError`.
    async fn execute(&self, context: Arc<dyn ToolContext>, arguments: Value) -> adk_core::Result<Value> {
        let arguments = if arguments.is_null() { Value::Object(serde_json::Map::new()) } else { arguments };
        let params = format!("{{\"name\":{},\"arguments\":{arguments}}}", raw::quoted(&self.name));
        let params = RawValue::from_string(params).map_err(|error| AdkError::tool(error.to_string()))?;
        let caller = Caller {
            name: context.agent_name().to_owned(),
            trace_id: context.invocation_id().to_owned(),
            ..Caller::default()
        };
        match self.project.call_tool(&self.name, params, None, &caller).await {
            Ok(Reply::Result(result)) => {
                serde_json::from_str(result.get()).map_err(|error| AdkError::tool(error.to_string()))
            }
            Ok(Reply::Error(error)) => Err(AdkError::tool(error.message)),
            Err(failed) => Err(AdkError::tool(failed.to_string())),
        }
    }
}
