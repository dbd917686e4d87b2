//! What a tool answers, in the form of MCP: texts as container-use writes them, and the same as data.

use std::fmt::Write as _;

use serde_json::{Map, Value, json};

use crate::destroy::Destroyed;
use crate::environment::Environment;
use crate::error::EnvError;
use crate::git::Commit;
use crate::run::Ran;
use crate::state::{Background, PortEndpoint, Service};

/// A tool's result before it is written.
#[derive(Debug)]
pub struct Answer {
    texts: Vec<String>,
    data: Value,
    is_error: bool,
}

impl Answer {
    pub fn new(text: impl Into<String>, data: Value) -> Self {
        Self { texts: vec![text.into()], data, is_error: false }
    }

    /// What the person should know goes into a block of its own, so that the first stays what it is.
    #[must_use]
    pub fn with_warnings(mut self, warnings: &[String]) -> Self {
        if !warnings.is_empty() {
            self.texts.push(warnings.join("\n\n"));
        }
        self
    }

    pub fn failed(error: &EnvError, trace_id: &str) -> Self {
        let mut data = Map::new();
        data.insert("error".to_owned(), error.public(trace_id));
        if let Some(Value::Object(details)) = error.details.as_deref() {
            data.extend(details.clone());
        }
        let text = format!("{}\n\n{}", error.message, error.recovery);
        Self { texts: vec![text], data: Value::Object(data), is_error: true }
    }

    pub fn is_error(&self) -> bool {
        self.is_error
    }

    pub fn into_result(self) -> Value {
        let blocks: Vec<Value> =
            self.texts.into_iter().map(|text| json!({"type": "text", "text": text})).collect();
        json!({"content": blocks, "structuredContent": self.data, "isError": self.is_error})
    }
}

pub fn endpoints(all: &[PortEndpoint]) -> Value {
    let each = all.iter().map(|endpoint| {
        let mut reached = Map::new();
        reached.insert("environment_internal".to_owned(), endpoint.environment_internal.clone().into());
        if let Some(external) = &endpoint.host_external {
            reached.insert("host_external".to_owned(), external.clone().into());
        }
        (endpoint.port.to_string(), Value::Object(reached))
    });
    Value::Object(each.collect())
}

pub fn service(service: &Service) -> Value {
    json!({"config": service.config, "endpoints": endpoints(&service.endpoints)})
}

/// An environment as `environment_create` tells it.
pub fn environment(environment: &Environment) -> Value {
    let (state, id) = (&environment.state, environment.id());
    let command = |verb: &str| format!("cofer env {verb} {id}");
    let mut data = json!({
        "id": id,
        "title": state.title,
        "config": state.config,
        "remote_ref": format!("cofer/{id}"),
    });
    if let Some(fields) = data.as_object_mut() {
        for verb in ["checkout", "log", "diff"] {
            fields.insert(format!("{verb}_command"), command(verb).into());
        }
        for verb in ["checkout", "log", "diff"] {
            fields.insert(format!("{verb}_command_to_share_with_user"), command(verb).into());
        }
        fields.insert("services".to_owned(), state.services.iter().map(service).collect());
    }
    data
}

pub fn written(value: &Value) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

pub fn ran(id: &str, ran: &Ran, trace_id: &str, limit_ms: u128) -> Answer {
    let mut data = ran.data();
    data["mode"] = "foreground".into();
    data["warnings"] = ran.commit.warnings.clone().into();
    let mut text = ran.stdout.text.clone();
    if !ran.stderr.text.is_empty() {
        let _ = write!(text, "\nstderr: {}", ran.stderr.text);
    }
    if ran.timed_out {
        let advice = "run it in the background, do less at once, or set COFER_TIMEOUT_RUN (milliseconds)";
        let message =
            format!("the command took longer than {limit_ms} ms and was ended with all that it started");
        let error = EnvError::new(crate::error::ErrorKind::Timeout, "run", message, advice);
        if let Some(fields) = data.as_object_mut() {
            fields.insert("error".to_owned(), error.public(trace_id));
        }
        let _ = write!(text, "\n\n{}; {}", error.message, error.recovery);
        return Answer { texts: vec![text], data, is_error: true }.with_warnings(&ran.commit.warnings);
    }
    let _ = write!(
        text,
        "\n\nAny changes to the container workdir (/workdir) have been committed and pushed to cofer/{id} remote ref"
    );
    Answer::new(text, data).with_warnings(&ran.commit.warnings)
}

pub fn started(background: &Background, warnings: &[String]) -> Answer {
    let endpoints = endpoints(&background.endpoints);
    let text = format!(
        "Command started in the background in NEW container. Endpoints are {}\n\n\
         To access from the user's machine: use host_external. To access from other commands in this environment: use environment_internal.\n\n\
         Its output: environment_background_read with background_id {}; to end it: environment_background_stop.",
        written(&endpoints),
        background.id
    );
    let data = json!({
        "mode": "background",
        "background_id": background.id,
        "endpoints": endpoints,
        "warnings": warnings,
    });
    Answer::new(text, data).with_warnings(warnings)
}

pub fn changed_file(id: &str, file: &str, verb: &str, commit: &Commit) -> Answer {
    let text = format!("file {file} {verb} successfully and committed to cofer/{id} remote ref");
    let data = json!({"target_file": file, "commit": commit.name, "warnings": commit.warnings});
    Answer::new(text, data).with_warnings(&commit.warnings)
}

pub fn destroyed(destroyed: &Destroyed) -> Answer {
    let data = serde_json::to_value(destroyed).unwrap_or_default();
    Answer::new(written(&data), data)
}
