//! What callers see of a discovered tool: its schemas to the letter, in our words.

use cofer_model::ServerName;
use cofer_store::CachedTool;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct ToolStatus {
    pub name: String,
    pub server: ServerName,
    pub enabled: bool,
    #[schema(value_type = Option<String>)]
    pub title: Option<Box<RawValue>>,
    #[schema(value_type = Option<String>)]
    pub description: Option<Box<RawValue>>,
    #[schema(value_type = Option<Object>)]
    pub input_schema: Option<Box<RawValue>>,
    #[schema(value_type = Option<Object>)]
    pub output_schema: Option<Box<RawValue>>,
    #[schema(value_type = Option<Object>)]
    pub annotations: Option<Box<RawValue>>,
}

/// A tool as servers write it. Whatever else is in it is kept in the store.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Listed {
    title: Option<Box<RawValue>>,
    description: Option<Box<RawValue>>,
    input_schema: Option<Box<RawValue>>,
    output_schema: Option<Box<RawValue>>,
    annotations: Option<Box<RawValue>>,
}

impl ToolStatus {
    pub(crate) fn of(tool: CachedTool, server: &ServerName) -> Self {
        // What cannot be read has a name all the same.
        let listed: Listed = serde_json::from_str(&tool.tool).unwrap_or_default();
        Self {
            name: tool.name,
            server: server.clone(),
            enabled: tool.enabled,
            title: listed.title,
            description: listed.description,
            input_schema: listed.input_schema,
            output_schema: listed.output_schema,
            annotations: listed.annotations,
        }
    }
}
