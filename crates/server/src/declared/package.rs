//! `server.json` of the MCP registry: where a published server can be had, as a package to run or an address to connect to.
//!
//! An address comes first, because nothing has to be installed for it; then the first package that a known program runs.

use std::collections::BTreeMap;

use cofer_model::{ExternalConfig, RemoteConfig, SessionMode, StdioConfig};
use serde_json::{Map, Value};

use super::{DeclaredError, DeclaredServer, Notes, entry, variables};

/// The server of a document, also where the registry's own answer is around it.
pub(super) fn found(document: &Map<String, Value>) -> Option<&Map<String, Value>> {
    let inner = document.get("server").and_then(Value::as_object).unwrap_or(document);
    let is_one =
        inner.contains_key("name") && (inner.contains_key("packages") || inner.contains_key("remotes"));
    is_one.then_some(inner)
}

pub(super) fn read(server: &Map<String, Value>, notes: &mut Notes) -> Result<DeclaredServer, DeclaredError> {
    let full_name = server.get("name").and_then(Value::as_str);
    let full_name = full_name.ok_or_else(|| DeclaredError::new("name", "`name` is a text"))?;
    let short = full_name.rsplit('/').next().unwrap_or(full_name);
    let name = entry::server_name(short, notes);
    let list = |field: &str| server.get(field).and_then(Value::as_array).cloned().unwrap_or_default();
    let (remotes, packages) = (list("remotes"), list("packages"));
    let mut ways = remotes.iter().filter_map(|way| remote(name.as_str(), way, notes)).collect::<Vec<_>>();
    ways.extend(packages.iter().filter_map(|way| package(name.as_str(), way, notes)));
    if ways.len() > 1 {
        notes.warn(format!("server `{name}` can be had in {} ways; the first is taken", ways.len()));
    }
    let config = ways.into_iter().next().ok_or_else(|| {
        let message = format!("server `{name}` has no package and no address that Cofer can use (npm, PyPI, OCI, NuGet, http, sse)");
        DeclaredError::new("packages", message)
    })?;
    entry::advise_on_written_out(&name, &config, notes);
    let description = server.get("description").and_then(Value::as_str).unwrap_or_default().to_owned();
    Ok(DeclaredServer {
        key: None,
        name,
        description,
        config,
        enabled: true,
        session: SessionMode::Auto,
        optional: false,
    })
}

/// A field by its name now, or by the one it had before.
fn field<'a>(value: &'a Value, names: [&str; 2]) -> Option<&'a Value> {
    names.iter().find_map(|name| value.get(name))
}

fn text<'a>(value: &'a Value, names: [&str; 2]) -> Option<&'a str> {
    field(value, names).and_then(Value::as_str)
}

fn remote(name: &str, way: &Value, notes: &mut Notes) -> Option<ExternalConfig> {
    let url = in_our_words(text(way, ["url", "url"])?);
    let headers = keyed(way, ["headers", "headers"], notes);
    let remote = RemoteConfig { url, headers, oauth: None };
    match text(way, ["type", "transport_type"])? {
        "sse" => Some(ExternalConfig::Sse(remote)),
        "streamable-http" | "streamable" | "http" => Some(ExternalConfig::Http(remote)),
        other => {
            let shown: String = other.chars().take(64).collect();
            notes.warn(format!("server `{name}`: an address of type `{shown}` is not known here"));
            None
        }
    }
}

fn package(name: &str, way: &Value, notes: &mut Notes) -> Option<ExternalConfig> {
    let transport = way.get("transport").and_then(|transport| text(transport, ["type", "type"]));
    if transport.is_some_and(|transport| transport != "stdio") {
        notes.warn(format!("server `{name}`: a package that answers over HTTP has to be started by hand; add its address then"));
        return None;
    }
    let identifier = text(way, ["identifier", "name"])?;
    let version = text(way, ["version", "version"]).filter(|version| *version != "latest");
    let versioned = |separator: &str| match version {
        Some(version) => format!("{identifier}{separator}{version}"),
        None => identifier.to_owned(),
    };
    let env = keyed(way, ["environmentVariables", "environment_variables"], notes);
    let own = arguments(way, ["runtimeArguments", "runtime_arguments"]);
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let (command, fixed, package) = match text(way, ["registryType", "registry_type"])
        .or_else(|| text(way, ["registry_name", "registryName"]))?
    {
        "npm" => ("npx", words(&["-y"]), versioned("@")),
        "pypi" => ("uvx", Vec::new(), versioned("@")),
        "nuget" => ("dnx", words(&["--yes"]), versioned("@")),
        "oci" | "docker" => {
            let passed = env.keys().flat_map(|name| ["-e".to_owned(), name.clone()]);
            let image = if identifier.contains(':') { identifier.to_owned() } else { versioned(":") };
            ("docker", words(&["run", "-i", "--rm"]).into_iter().chain(passed).collect(), image)
        }
        other => {
            let shown: String = other.chars().take(64).collect();
            notes.warn(format!("server `{name}`: packages of `{shown}` are not known here"));
            return None;
        }
    };
    let command = text(way, ["runtimeHint", "runtime_hint"])
        .filter(|hint| is_program(hint))
        .unwrap_or(command)
        .to_owned();
    let after = arguments(way, ["packageArguments", "package_arguments"]);
    let args = fixed.into_iter().chain(own).chain([package]).chain(after).collect();
    Some(ExternalConfig::Stdio(StdioConfig { command, args, env, cwd: None }))
}

fn is_program(hint: &str) -> bool {
    !hint.is_empty() && hint.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
}

/// Arguments in order. One that the person has to give is a secret's name; one that they may give is left out.
fn arguments(way: &Value, names: [&str; 2]) -> Vec<String> {
    let mut all = Vec::new();
    for argument in field(way, names).and_then(Value::as_array).into_iter().flatten() {
        let name = text(argument, ["name", "name"]);
        let Some(value) = value_of(argument, name.or_else(|| text(argument, ["valueHint", "value_hint"])))
        else {
            continue;
        };
        all.extend(name.map(ToOwned::to_owned));
        if !value.is_empty() {
            all.push(value);
        }
    }
    all
}

/// Variables or headers by name.
fn keyed(way: &Value, names: [&str; 2], notes: &mut Notes) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    for input in field(way, names).and_then(Value::as_array).into_iter().flatten() {
        let Some(name) = text(input, ["name", "name"]) else { continue };
        let Some(value) = value_of(input, Some(name)) else { continue };
        if let Some(description) = text(input, ["description", "description"]) {
            notes.hints.insert(variables::secret_name(name), description.to_owned());
        }
        all.insert(name.to_owned(), value);
    }
    all
}

/// What it is, what it is unless told otherwise, or the secret that it has to be.
fn value_of(input: &Value, name: Option<&str>) -> Option<String> {
    if let Some(value) = text(input, ["value", "default"]) {
        return Some(in_our_words(value));
    }
    let flag = |names| field(input, names).and_then(Value::as_bool).unwrap_or(false);
    let needed = flag(["isRequired", "is_required"]) || flag(["isSecret", "is_secret"]);
    let is_positional = text(input, ["type", "type"]) == Some("positional");
    let bare_flag = text(input, ["type", "type"]) == Some("named") && !needed;
    match name {
        Some(name) if needed || is_positional => Some(format!("${{{}}}", variables::secret_name(name))),
        _ if bare_flag && field(input, ["isRequired", "is_required"]).is_none() => Some(String::new()),
        _ => None,
    }
}

/// `{tenant}` is what the registry writes for `${tenant}`.
fn in_our_words(text: &str) -> String {
    let mut translated = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('{') {
        let Some(length) = rest[at..].find('}') else { break };
        let name = &rest[at + 1..at + length];
        translated.push_str(&rest[..at]);
        let plain =
            !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-'));
        if plain && !rest[..at].ends_with('$') {
            translated.extend(["${", variables::secret_name(name).as_str(), "}"]);
        } else {
            translated.push_str(&rest[at..=at + length]);
        }
        rest = &rest[at + length + 1..];
    }
    translated + rest
}
