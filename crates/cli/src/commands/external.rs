//! What commands about external servers share: which project is meant, and which secrets are still to be set.

use std::collections::BTreeSet;
use std::io::Write;

use cofer_model::project::DEFAULT_PROJECT;
use cofer_model::{Kind, SecretName, template};
use serde_json::Value;

use crate::client::Client;
use crate::exit::Failure;
use crate::output::harmless;

/// The project that was named, else the token's, else `default`.
pub async fn project_of(client: &Client, named: Option<&str>) -> Result<String, Failure> {
    if let Some(name) = named {
        return Ok(name.to_owned());
    }
    let projects = match client.get(&["projects"]).await {
        // Who may call tools need not be allowed to look around.
        Err(failure) if failure.kind == Kind::Forbidden => return Ok(DEFAULT_PROJECT.to_owned()),
        projects => projects?,
    };
    let there: Vec<_> =
        projects.as_array().into_iter().flatten().filter_map(|project| project["name"].as_str()).collect();
    let own = there.iter().find(|name| **name == DEFAULT_PROJECT).or(there.first());
    let none = || Failure::new(Kind::NotFound, "this token knows of no project; name one by `--project`");
    own.map(|name| (*name).to_owned()).ok_or_else(none)
}

/// Says to a person which secrets a configuration names that are not set. Not being able to look is no failure.
pub async fn tell_of_missing_secrets(client: &Client, project: &str, config: &Value) {
    let mut texts = Vec::new();
    texts_of(config, &mut texts);
    for name in missing_secrets(client, project, template::names(texts)).await {
        note(&format!("secret {name} is not set; `cofer secret set {name} --project {project}` sets it"));
    }
}

/// Those of these secrets that a project does not have.
pub async fn missing_secrets(client: &Client, project: &str, named: BTreeSet<SecretName>) -> Vec<SecretName> {
    if named.is_empty() {
        return Vec::new();
    }
    let Some(there) = client.peek(&["projects", project, "secrets"], &[]).await else { return Vec::new() };
    let there: BTreeSet<_> =
        there.as_array().into_iter().flatten().filter_map(|secret| secret["name"].as_str()).collect();
    named.into_iter().filter(|name| !there.contains(name.as_str())).collect()
}

fn texts_of<'a>(value: &'a Value, texts: &mut Vec<&'a str>) {
    match value {
        Value::String(text) => texts.push(text),
        Value::Array(items) => items.iter().for_each(|item| texts_of(item, texts)),
        Value::Object(fields) => fields.values().for_each(|field| texts_of(field, texts)),
        _ => {}
    }
}

/// To standard error, where it disturbs nobody who reads the output.
pub fn note(text: &str) {
    // Nobody reading it is no reason to fail.
    let _ = writeln!(std::io::stderr(), "{}", harmless(text));
}
