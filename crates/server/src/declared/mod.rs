//! Servers as files declare them: whoever wrote the file, the same list comes out of it.
//!
//! ```text
//!   text ─► document (JSON with comments, or TOML) ─► which form is it?
//!                                                       │
//!     mcpServers · servers + inputs · mcp.servers · server.json · our own
//!        └─────────┬─────────┘            │             │           │
//!                entry (one server) ◄─────┴── package ◄─┘           │
//!                  │  variables (${env:X}, ${input:X} become ${X})  │
//!                  └──────────────► Declared ◄──────────────────────┘
//! ```
//!
//! In our own form a server may also be one that Cofer is to run (`hosted`): its fields are a registration's, and are passed on unread.
//!
//! What belongs to another program and means nothing here is told as a warning, never an error: files of others have fields of
//! others. In our own form the same is an error, since nobody else can have meant it.

mod document;
mod entry;
mod hosted;
mod package;
mod variables;

use std::collections::{BTreeMap, BTreeSet};

use cofer_model::{ExternalConfig, Namespacing, SecretName, ServerName, SessionMode, template};
use serde_json::{Map, Value};

/// Nobody writes a longer one by hand.
pub const FILE_BYTES_MAX: usize = 4 << 20;
const PRODUCT_NAME_CHARS_MAX: usize = 128;

/// Why a file cannot be used, and where in it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct DeclaredError {
    /// Such as `servers.time.args`; empty where it is the file as a whole.
    pub field: String,
    pub message: String,
}

impl DeclaredError {
    pub(crate) fn new(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self { field: field.into(), message: message.into() }
    }
}

/// Whose file it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// `{"mcpServers": {…}}`: Claude Desktop, Cursor and many more.
    Desktop,
    /// `{"servers": {…}, "inputs": […]}`, or the same below `mcp`.
    VsCode,
    /// A product's manifest, with `mcp.servers`.
    Product,
    /// `server.json` of the MCP registry.
    Registry,
    /// What `cofer apply` takes.
    Cofer,
}

/// What a file declares.
#[derive(Clone, Debug)]
pub struct Declared {
    pub form: Form,
    pub servers: Vec<DeclaredServer>,
    /// Servers that Cofer is to run; only our own form has them.
    pub hosted: Vec<DeclaredHosted>,
    /// Manifests, as they stand in the file.
    pub products: Vec<Value>,
    pub project: ProjectSettings,
    /// What was not understood, and does nothing.
    pub warnings: Vec<String>,
    /// The secrets that it names, with what the file says about them.
    pub secrets: BTreeMap<SecretName, Option<String>>,
}

/// One server that Cofer is to run.
#[derive(Clone, Debug, PartialEq)]
pub struct DeclaredHosted {
    pub name: ServerName,
    /// What its image is made for, where the file names none: the request for it.
    pub package: Option<Value>,
    /// As it is registered, but for the image of a package. Its rules are the registry's.
    pub registration: Value,
}

/// Settings of the project; what is `None` stays.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProjectSettings {
    pub description: Option<String>,
    pub namespacing: Option<Namespacing>,
    pub repeat_safe_calls: Option<bool>,
}

/// One server.
#[derive(Clone, Debug, PartialEq)]
pub struct DeclaredServer {
    /// Its name as the file has it, where that is a key.
    pub key: Option<String>,
    pub name: ServerName,
    pub description: String,
    pub config: ExternalConfig,
    pub enabled: bool,
    pub session: SessionMode,
    /// For servers that are started with a file: whether the others start without it.
    pub optional: bool,
}

/// A product's manifest.
#[derive(Clone, Debug)]
pub struct DeclaredProduct {
    pub name: String,
    pub version: String,
    pub servers: Vec<DeclaredServer>,
    pub warnings: Vec<String>,
}

/// What is noted down while a file is read.
#[derive(Debug, Default)]
struct Notes {
    /// What was not understood.
    warnings: Vec<String>,
    /// What was, and would be better otherwise.
    advice: Vec<String>,
    hints: BTreeMap<SecretName, String>,
}

impl Notes {
    fn warn(&mut self, warning: impl Into<String>) {
        self.warnings.push(warning.into());
    }

    fn advise(&mut self, advice: impl Into<String>) {
        self.advice.push(advice.into());
    }

    fn into_warnings(self) -> Vec<String> {
        [self.warnings, self.advice].concat()
    }
}

/// The native tools that a file for `cofer serve --servers` declares.
pub(crate) fn native_tools(text: &str) -> Result<Vec<Value>, DeclaredError> {
    match document::parse(text)?.remove("nativeTools") {
        None => Ok(Vec::new()),
        Some(Value::Array(tools)) => Ok(tools),
        Some(_) => Err(DeclaredError::new("nativeTools", "`nativeTools` is a list")),
    }
}

/// Reads a file of any form that others have, or a manifest.
pub fn import(text: &str) -> Result<Declared, DeclaredError> {
    let document = document::parse(text)?;
    let mut notes = Notes::default();
    let (form, servers) = if let Some((field, servers)) = desktop(&document) {
        (Form::Desktop, entry::all(field, servers, &mut notes)?)
    } else if let Some(server) = package::found(&document) {
        (Form::Registry, vec![package::read(server, &mut notes)?])
    } else if let Some((field, servers, inputs)) = vs_code(&document) {
        variables::note_inputs(inputs, &mut notes);
        (Form::VsCode, entry::all(field, servers, &mut notes)?)
    } else if document.get("mcp").is_some() && document.get("name").is_some() {
        let manifest = Value::Object(document);
        let product = read_product(&manifest, &mut notes)?;
        return Ok(Declared { products: vec![manifest], ..finish(Form::Product, product.servers, notes)? });
    } else if document.contains_key("nativeTools") {
        (Form::Desktop, Vec::new())
    } else {
        return Err(DeclaredError::new("", UNKNOWN_FORM));
    };
    if document.contains_key("nativeTools") {
        notes.warn("`nativeTools` belong to `cofer serve --servers FILE` and are not imported");
    }
    finish(form, servers, notes)
}

const UNKNOWN_FORM: &str = "this is none of the files that can be read: it has neither `mcpServers` (Claude Desktop, Cursor), nor \
     `servers` (VS Code), nor `mcp.servers` (product manifest), nor `packages` or `remotes` (server.json)";

/// Reads a file for `cofer apply`: our own form, where everything must be understood.
pub fn ours(text: &str) -> Result<Declared, DeclaredError> {
    let document = document::parse(text)?;
    let known = ["project", "servers", "products"];
    if let Some(other) = document.keys().find(|key| !known.contains(&key.as_str())) {
        let message =
            format!("`{other}` is not known here; a file to apply has `project`, `servers` and `products`");
        return Err(DeclaredError::new(other.clone(), message));
    }
    let mut notes = Notes::default();
    let (hosted, elsewhere) = hosted::taken_out(document.get("servers").cloned().unwrap_or_default())?;
    let servers = entry::all("servers", &elsewhere, &mut notes)?;
    hosted::check_names(&hosted, &servers)?;
    let products = match document.get("products") {
        None => Vec::new(),
        Some(Value::Array(products)) => products.clone(),
        Some(_) => return Err(DeclaredError::new("products", "`products` is a list of manifests")),
    };
    let mut of_products = Vec::new();
    for (at, manifest) in products.iter().enumerate() {
        let read = read_product(manifest, &mut notes)
            .map_err(|error| DeclaredError::new(format!("products[{at}].{}", error.field), error.message))?;
        of_products.extend(read.servers);
    }
    if let Some(warning) = notes.warnings.first() {
        return Err(DeclaredError::new("servers", warning.clone()));
    }
    let project = document.get("project").map_or(Ok(ProjectSettings::default()), project_settings)?;
    let of_products = template::names(of_products.iter().flat_map(|server| server.config.texts()));
    let of_hosted = template::names(hosted.iter().flat_map(DeclaredHosted::values));
    let mut declared = Declared { hosted, products, project, ..finish(Form::Cofer, servers, notes)? };
    declared.secrets.extend(of_products.into_iter().chain(of_hosted).map(|name| (name, None)));
    Ok(declared)
}

fn project_settings(value: &Value) -> Result<ProjectSettings, DeclaredError> {
    let Value::Object(fields) = value else {
        return Err(DeclaredError::new("project", "`project` is a table of settings"));
    };
    let mut settings = ProjectSettings::default();
    for (name, value) in fields {
        let field = format!("project.{name}");
        let it_is = |what: &str| DeclaredError::new(&*field, format!("`{field}` is {what}"));
        let text = || value.as_str().ok_or_else(|| it_is("a text"));
        match name.as_str() {
            "description" => settings.description = Some(text()?.to_owned()),
            "namespacing" => {
                let parsed = text()?.parse();
                let parsed = parsed.map_err(|error: cofer_model::project::UnknownNamespacing| {
                    DeclaredError::new(&*field, error.to_string())
                })?;
                settings.namespacing = Some(parsed);
            }
            "repeat_safe_calls" => {
                let said = value.as_bool().ok_or_else(|| it_is("true or false"))?;
                settings.repeat_safe_calls = Some(said);
            }
            _ => {
                return Err(it_is(
                    "not known; a project has `description`, `namespacing` and `repeat_safe_calls`",
                ));
            }
        }
    }
    Ok(settings)
}

/// Reads a product's manifest. What else is in it is the product's own business.
pub fn product(manifest: &Value) -> Result<DeclaredProduct, DeclaredError> {
    let mut notes = Notes::default();
    let product = read_product(manifest, &mut notes)?;
    Ok(DeclaredProduct { warnings: notes.into_warnings(), ..product })
}

/// Its warnings go to the notes.
fn read_product(manifest: &Value, notes: &mut Notes) -> Result<DeclaredProduct, DeclaredError> {
    let text = |field: &str| match manifest.get(field) {
        None => Ok(None),
        Some(Value::String(text)) if is_label(text) => Ok(Some(text.clone())),
        Some(_) => {
            let rule = format!("`{field}` is a text of 1 to {PRODUCT_NAME_CHARS_MAX} visible characters");
            Err(DeclaredError::new(field, rule))
        }
    };
    let name =
        text("name")?.ok_or_else(|| DeclaredError::new("name", "a product's manifest has a `name`"))?;
    let version = text("version")?.unwrap_or_default();
    let servers = manifest.get("mcp").and_then(|mcp| mcp.get("servers"));
    let servers = servers.ok_or_else(|| {
        DeclaredError::new("mcp.servers", "a product's manifest lists its servers in `mcp.servers`")
    })?;
    let servers = entry::all("mcp.servers", servers, notes)?;
    check_names(&servers)?;
    Ok(DeclaredProduct { name, version, servers, warnings: Vec::new() })
}

fn is_label(text: &str) -> bool {
    (1..=PRODUCT_NAME_CHARS_MAX).contains(&text.chars().count())
        && !text.contains(char::is_control)
        && uuid::Uuid::try_parse(text).is_err()
}

/// Where `mcpServers` is, as this or that program writes it.
fn desktop(document: &Map<String, Value>) -> Option<(&'static str, &Value)> {
    ["mcpServers", "mcp_servers"].into_iter().find_map(|field| Some((field, document.get(field)?)))
}

/// `mcp.json` has the servers at the top, `settings.json` below `mcp`.
fn vs_code(document: &Map<String, Value>) -> Option<(&'static str, &Value, Option<&Value>)> {
    if let Some(servers) = document.get("servers") {
        return Some(("servers", servers, document.get("inputs")));
    }
    if let Some(servers) = document.get("mcp.servers") {
        return Some(("mcp.servers", servers, document.get("mcp.inputs")));
    }
    let mcp = document.get("mcp").filter(|_| !document.contains_key("name"))?;
    Some(("mcp.servers", mcp.get("servers")?, mcp.get("inputs")))
}

fn finish(form: Form, servers: Vec<DeclaredServer>, notes: Notes) -> Result<Declared, DeclaredError> {
    check_names(&servers)?;
    let texts = servers.iter().flat_map(|server| server.config.texts());
    let hint = |name: SecretName| {
        let hint = notes.hints.get(&name).cloned();
        (name, hint)
    };
    let secrets = template::names(texts).into_iter().map(hint).collect();
    Ok(Declared {
        form,
        servers,
        hosted: Vec::new(),
        products: Vec::new(),
        project: ProjectSettings::default(),
        warnings: notes.into_warnings(),
        secrets,
    })
}

fn check_names(servers: &[DeclaredServer]) -> Result<(), DeclaredError> {
    let mut seen = BTreeSet::new();
    match servers.iter().find(|server| !seen.insert(&server.name)) {
        None => Ok(()),
        Some(twice) => {
            let message = format!("two servers are called `{}`; give one of them another name", twice.name);
            Err(DeclaredError::new(twice.name.as_str(), message))
        }
    }
}

#[cfg(test)]
mod tests;
