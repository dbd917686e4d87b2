//! The tools there are: how they are listed, found and documented. What they do is in `tools`.

use std::fmt::Write as _;
use std::iter;

use serde_json::{Map, Value, json};

use crate::state::Server;
use crate::tools::{self, Reply};
use crate::wire::{INVALID_PARAMS, RpcError};

pub(crate) type Run = fn(&Server, &tools::Call) -> Reply;

pub(crate) struct Tool {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    pub(crate) parameters: &'static [Parameter],
    pub(crate) runs: Runs,
    pub(crate) run: Run,
}

/// Where a call is worked on. What waits does so aside, so that other calls are answered meanwhile.
#[derive(Clone, Copy)]
pub(crate) enum Runs {
    InOrder,
    Aside,
}

pub(crate) struct Parameter {
    name: &'static str,
    shape: Shape,
    about: &'static str,
    need: Need,
}

enum Shape {
    Any,
    Choice(&'static [&'static str]),
    Count,
    Integer,
    Object,
    Switch,
    Text,
}

#[derive(PartialEq)]
enum Need {
    Optional,
    Required,
}

const fn parameter(name: &'static str, shape: Shape, about: &'static str) -> Parameter {
    Parameter { name, shape, about, need: Need::Optional }
}
pub(crate) const fn any(name: &'static str, about: &'static str) -> Parameter {
    parameter(name, Shape::Any, about)
}
pub(crate) const fn choice(
    name: &'static str,
    of: &'static [&'static str],
    about: &'static str,
) -> Parameter {
    parameter(name, Shape::Choice(of), about)
}
pub(crate) const fn count(name: &'static str, about: &'static str) -> Parameter {
    parameter(name, Shape::Count, about)
}
pub(crate) const fn integer(name: &'static str, about: &'static str) -> Parameter {
    parameter(name, Shape::Integer, about)
}
pub(crate) const fn object(name: &'static str, about: &'static str) -> Parameter {
    parameter(name, Shape::Object, about)
}
pub(crate) const fn switch(name: &'static str, about: &'static str) -> Parameter {
    parameter(name, Shape::Switch, about)
}
pub(crate) const fn text(name: &'static str, about: &'static str) -> Parameter {
    parameter(name, Shape::Text, about)
}

impl Parameter {
    pub(crate) const fn required(self) -> Self {
        Self { name: self.name, shape: self.shape, about: self.about, need: Need::Required }
    }

    fn schema(&self) -> Value {
        let mut schema = match self.shape {
            Shape::Any => json!({}),
            Shape::Choice(of) => json!({"type": "string", "enum": of}),
            Shape::Count => json!({"type": "integer", "minimum": 0}),
            Shape::Integer => json!({"type": "integer"}),
            Shape::Object => json!({"type": "object"}),
            Shape::Switch => json!({"type": "boolean"}),
            Shape::Text => json!({"type": "string"}),
        };
        schema["description"] = json!(self.about);
        schema
    }
}

impl Tool {
    fn listed(&self) -> Value {
        let properties: Map<_, _> = self.parameters.iter().map(|p| (p.name.to_owned(), p.schema())).collect();
        let required: Vec<_> =
            self.parameters.iter().filter(|p| p.need == Need::Required).map(|p| p.name).collect();
        let schema = json!({
            "type": "object", "properties": properties, "required": required, "additionalProperties": false,
        });
        json!({"name": self.name, "description": self.about, "inputSchema": schema})
    }
}

fn every_tool() -> impl Iterator<Item = &'static Tool> {
    tools::ALL.iter().copied().flatten()
}

pub(crate) fn find(server: &Server, name: &str) -> Option<(Run, Runs)> {
    // A filler may bear the name of one of ours: two servers that offer the same tool are told apart by it.
    if server.fillers().iter().any(|filler| filler == name) {
        return Some((tools::fill, Runs::InOrder));
    }
    every_tool().find(|tool| tool.name == name).map(|tool| (tool.run, tool.runs))
}

/// One page of `tools/list`. The cursor is the place where the page starts.
pub(crate) fn page(server: &Server, cursor: Option<&Value>) -> Result<Value, RpcError> {
    let tools = list(server);
    let start = match cursor {
        None | Some(Value::Null) => 0,
        Some(cursor) => cursor
            .as_str()
            .and_then(|text| text.strip_prefix("from-")?.parse().ok())
            .filter(|start| *start <= tools.len())
            .ok_or_else(|| RpcError::new(INVALID_PARAMS, format!("unknown cursor {cursor}")))?,
    };
    let end = server.flags.page_size.map_or(tools.len(), |size| tools.len().min(start + size));
    let mut page = json!({"tools": tools[start..end]});
    if end < tools.len() {
        page["nextCursor"] = json!(format!("from-{end}"));
    } else if server.flags.endless_pages {
        page["nextCursor"] = json!("from-0");
    }
    Ok(page)
}

fn list(server: &Server) -> Vec<Value> {
    let fillers = server.fillers();
    let ours =
        every_tool().filter(|tool| !server.flags.only_fillers && !fillers.iter().any(|f| f == tool.name));
    let listed_fillers = fillers.iter().map(|name| {
        let about = format!("Says its own name and that of {}.", server.flags.server_name);
        json!({"name": name, "description": about, "inputSchema": {"type": "object"}})
    });
    ours.map(Tool::listed).chain(listed_fillers).collect()
}

pub(crate) fn help() -> String {
    let mut help = String::from("\nTools (the list has their schemas):\n");
    for tool in every_tool() {
        let parameters: String = iter::once(String::new())
            .chain(tool.parameters.iter().map(|parameter| match parameter.need {
                Need::Required => parameter.name.to_owned(),
                Need::Optional => format!("[{}]", parameter.name),
            }))
            .collect::<Vec<_>>()
            .join(" ");
        // Writing to a string cannot fail.
        let _ = writeln!(help, "  {}{parameters}\n      {}", tool.name, tool.about);
    }
    help
}
