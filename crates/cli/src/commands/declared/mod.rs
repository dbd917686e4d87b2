//! `cofer import` and `cofer apply`: servers out of a file. The difference to what is there is found first, shown, and only then
//! made so; where there is none, nothing is done.

mod hosted;

use std::collections::BTreeSet;
use std::io::Read;
use std::path::{Path, PathBuf};

use clap::Args;
use cofer_model::Kind;
use cofer_server::declared::{
    self, Declared, DeclaredError, DeclaredProduct, DeclaredServer, FILE_BYTES_MAX, Form,
};
use reqwest::Method;
use serde_json::{Value, json};

use super::external::{missing_secrets, note, project_of};
use super::object;
use crate::client::{Client, Patience, Target};
use crate::exit::Failure;
use crate::output::{Format, harmless, print_line, with_progress};

/// Register the servers of another program's file
#[derive(Debug, Args)]
pub struct Import {
    /// Claude Desktop's, Cursor's or VS Code's configuration, a product manifest, or a server.json; `-` reads standard input
    file: PathBuf,
    /// Change servers that are there already and differ
    #[arg(long)]
    replace: bool,
    /// Show what would be done, and do nothing
    #[arg(long)]
    dry_run: bool,
    /// The project [default: the token's, else `default`]
    #[arg(long)]
    project: Option<String>,
    #[command(flatten)]
    target: Target,
}

/// Make a project what a file says
#[derive(Debug, Args)]
pub struct Apply {
    /// TOML or JSON with `servers`, `products` and `project`; `-` reads standard input
    #[arg(short, long, value_name = "FILE")]
    file: PathBuf,
    /// Show the difference, and do nothing
    #[arg(long)]
    dry_run: bool,
    /// Remove servers and products that the file does not have; volumes of hosted servers stay
    #[arg(long)]
    prune: bool,
    /// The project [default: the token's, else `default`]
    #[arg(long)]
    project: Option<String>,
    #[command(flatten)]
    target: Target,
}

impl Import {
    pub async fn run(self, format: Format) -> Result<(), Failure> {
        let declared = declared::import(&read(&self.file)?).map_err(|error| refused(&self.file, &error))?;
        let client = self.target.client()?;
        let project = project_of(&client, self.project.as_deref()).await?;
        let there = There::look(&client, &project).await?;
        let mut plan = there.plan(&declared)?;
        if !self.replace {
            plan.keep_what_differs();
        }
        let mode = if self.dry_run { Mode::ShowAlone } else { Mode::Make };
        plan.carry_out(&client, &project, &declared, mode, format).await
    }
}

impl Apply {
    pub async fn run(self, format: Format) -> Result<(), Failure> {
        let declared = declared::ours(&read(&self.file)?).map_err(|error| refused(&self.file, &error))?;
        let client = self.target.client()?;
        let project = project_of(&client, self.project.as_deref()).await?;
        let there = There::look(&client, &project).await?;
        let mut plan = there.plan(&declared)?;
        plan.steps.extend(hosted::steps(&client, &project, &there, &declared).await?);
        if self.prune {
            plan.steps.extend(there.surplus(&declared));
        }
        let mode = if self.dry_run { Mode::ShowAlone } else { Mode::Make };
        plan.carry_out(&client, &project, &declared, mode, format).await
    }
}

fn read(file: &Path) -> Result<String, Failure> {
    let shown = file.display();
    let unreadable = |error: std::io::Error| {
        let kind = if error.kind() == std::io::ErrorKind::NotFound { Kind::NotFound } else { Kind::Invalid };
        Failure::new(kind, format!("{shown} cannot be read: {error}"))
    };
    let limit = FILE_BYTES_MAX as u64 + 1;
    let mut text = String::new();
    match file.to_str() {
        Some("-") => std::io::stdin().take(limit).read_to_string(&mut text),
        _ => std::fs::File::open(file).and_then(|open| open.take(limit).read_to_string(&mut text)),
    }
    .map_err(unreadable)?;
    Ok(text)
}

fn refused(file: &Path, error: &DeclaredError) -> Failure {
    let place = if error.field.is_empty() { String::new() } else { format!(", at `{}`", error.field) };
    let mut failure = Failure::new(Kind::Invalid, format!("{}{place}: {}", file.display(), error.message));
    failure.details.insert("field".to_owned(), json!(error.field));
    failure
}

/// What a project has now.
struct There {
    project: Value,
    servers: Vec<Value>,
    products: Vec<Value>,
    /// Names of servers that Cofer hosts.
    hosted: BTreeSet<String>,
}

impl There {
    async fn look(client: &Client, project: &str) -> Result<Self, Failure> {
        let list = async |path: &[&str]| {
            let found = client.get(path).await?;
            Ok::<_, Failure>(found.as_array().cloned().unwrap_or_default())
        };
        let hosted = client.peek(&["mcp", "hosted"], &[("project", project)]).await.unwrap_or_default();
        let name = |server: &Value| server["name"].as_str().map(ToOwned::to_owned);
        Ok(Self {
            project: client.get(&["projects", project]).await?,
            servers: list(&["projects", project, "mcp-servers"]).await?,
            products: list(&["projects", project, "products"]).await?,
            hosted: hosted.as_array().into_iter().flatten().filter_map(name).collect(),
        })
    }

    fn plan(&self, declared: &Declared) -> Result<Plan, Failure> {
        let mut steps = Vec::new();
        steps.extend(self.settings(declared));
        if declared.form != Form::Product {
            for server in &declared.servers {
                steps.extend(self.server(server)?);
            }
        }
        for manifest in &declared.products {
            steps.extend(self.product(manifest)?);
        }
        Ok(Plan { steps, kept: Vec::new() })
    }

    fn settings(&self, declared: &Declared) -> Option<Step> {
        let settings = &declared.project;
        let wanted = object([
            ("description", json!(settings.description)),
            ("namespacing", json!(settings.namespacing)),
            ("repeat_safe_calls", json!(settings.repeat_safe_calls)),
        ]);
        let fields = differing(&self.project, &wanted);
        let body = object([
            ("description", pick(&wanted, &fields, "description")),
            ("namespacing", pick(&wanted, &fields, "namespacing")),
            ("repeat_safe_calls", pick(&wanted, &fields, "repeat_safe_calls")),
        ]);
        let name = self.project["name"].as_str().unwrap_or_default().to_owned();
        (!fields.is_empty()).then(|| Step { what: What::Project, name, deed: Deed::Change { fields }, body })
    }

    fn server(&self, server: &DeclaredServer) -> Result<Option<Step>, Failure> {
        let name = server.name.as_str();
        if self.hosted.contains(name) {
            return Err(taken(name, "which Cofer hosts"));
        }
        let there = self.servers.iter().find(|there| there["name"] == name);
        let deed = match there {
            None => Deed::Add { from: describe(server) },
            Some(there) if !there["product_id"].is_null() => {
                return Err(taken(name, "which belongs to a product"));
            }
            Some(there) => Deed::Change { fields: differing(there, &shown(server)) },
        };
        let unchanged = matches!(&deed, Deed::Change { fields } if fields.is_empty());
        let step = Step { what: What::Server, name: name.to_owned(), deed, body: body(server) };
        Ok((!unchanged).then_some(step))
    }

    fn product(&self, manifest: &Value) -> Result<Option<Step>, Failure> {
        let invalid = |error: DeclaredError| Failure::new(Kind::Invalid, error.message);
        let DeclaredProduct { name, version, servers, .. } = declared::product(manifest).map_err(invalid)?;
        let there = self.products.iter().find(|there| there["name"] == name.as_str());
        let deed = match there {
            None => {
                let names: Vec<_> = servers.iter().map(|server| server.name.as_str()).collect();
                Deed::Add { from: names.join(", ") }
            }
            Some(there) => {
                let mut fields = if there["version"] == version.as_str() {
                    Vec::new()
                } else {
                    vec!["version".to_owned()]
                };
                fields.extend(self.servers_of_product(&there["id"], &servers));
                Deed::Change { fields }
            }
        };
        let unchanged = matches!(&deed, Deed::Change { fields } if fields.is_empty());
        let step = Step { what: What::Product, name, deed, body: manifest.clone() };
        Ok((!unchanged).then_some(step))
    }

    /// Names of its servers that are new, gone or not what they were. Whether one is switched on is not the manifest's to say.
    fn servers_of_product(&self, id: &Value, wanted: &[DeclaredServer]) -> Vec<String> {
        let there: Vec<_> = self.servers.iter().filter(|server| server["product_id"] == *id).collect();
        let differs = |server: &&DeclaredServer| {
            let found = there.iter().find(|there| there["name"] == server.name.as_str());
            found.is_none_or(|found| differing(found, &shown(server)).iter().any(|field| field != "enabled"))
        };
        let changed = wanted.iter().filter(differs).map(|server| server.name.to_string());
        let is_wanted = |name: &str| wanted.iter().any(|server| server.name.as_str() == name);
        let gone = there.iter().filter_map(|there| there["name"].as_str()).filter(|name| !is_wanted(name));
        changed.chain(gone.map(ToOwned::to_owned)).collect()
    }

    /// Servers and products that the file does not have.
    fn surplus(&self, declared: &Declared) -> Vec<Step> {
        let remove = |what: What, name: &str| Step {
            what,
            name: name.to_owned(),
            deed: Deed::Remove,
            body: Value::Null,
        };
        let own = self.servers.iter().filter(|server| server["product_id"].is_null());
        let names = own.filter_map(|server| server["name"].as_str());
        let servers =
            names.filter(|name| !declared.servers.iter().any(|server| server.name.as_str() == *name));
        let products = self.products.iter().filter_map(|product| product["name"].as_str());
        let products =
            products.filter(|name| !declared.products.iter().any(|product| product["name"] == *name));
        let hosted = self.hosted.iter().map(String::as_str);
        let hosted =
            hosted.filter(|name| !declared.hosted.iter().any(|server| server.name.as_str() == *name));
        let servers = servers.map(|name| remove(What::Server, name));
        let hosted = hosted.map(|name| remove(What::Hosted, name));
        servers.chain(hosted).chain(products.map(|name| remove(What::Product, name))).collect()
    }
}

fn taken(name: &str, by: &str) -> Failure {
    let message = format!("there is a server `{name}` already, {by}; give this one another name");
    Failure::new(Kind::Conflict, message)
}

/// As reads show it, with passwords masked: those are not compared.
fn shown(server: &DeclaredServer) -> Value {
    json!({
        "description": server.description,
        "transport": server.config.transport(),
        "config": server.config.shown(),
        "enabled": server.enabled,
        "session": server.session,
    })
}

fn body(server: &DeclaredServer) -> Value {
    json!({
        "name": server.name,
        "description": server.description,
        "transport": server.config.transport(),
        "config": server.config,
        "enabled": server.enabled,
        "session": server.session,
    })
}

/// The command or the address, for people.
fn describe(server: &DeclaredServer) -> String {
    let config = json!(server.config.shown());
    let args = config["args"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let words = config["command"].as_str().into_iter().chain(args).chain(config["url"].as_str());
    format!("{} {}", server.config.transport(), words.collect::<Vec<_>>().join(" "))
}

/// Fields of `wanted` that are something else in `there`; those of `config` one by one.
fn differing(there: &Value, wanted: &Value) -> Vec<String> {
    let mut fields = Vec::new();
    for (name, value) in wanted.as_object().into_iter().flatten() {
        match (name.as_str(), value) {
            ("config", Value::Object(_)) if there["transport"] == wanted["transport"] => {
                fields.extend(
                    differing(&there["config"], value).into_iter().map(|field| format!("config.{field}")),
                );
            }
            _ if there[name] != *value => fields.push(name.clone()),
            _ => {}
        }
    }
    fields
}

fn pick(wanted: &Value, fields: &[String], name: &str) -> Value {
    if fields.iter().any(|field| field == name) { wanted[name].clone() } else { Value::Null }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    ShowAlone,
    Make,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Project,
    Server,
    /// One that Cofer runs.
    Hosted,
    /// For a package, which a server is run from.
    Image,
    Product,
}

impl What {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Project => "project",
            Self::Server | Self::Hosted => "server",
            Self::Image => "image",
            Self::Product => "product",
        }
    }
}

#[derive(Debug)]
enum Deed {
    Add { from: String },
    Change { fields: Vec<String> },
    Remove,
}

/// One difference between the file and the project.
#[derive(Debug)]
struct Step {
    what: What,
    name: String,
    deed: Deed,
    body: Value,
}

impl Step {
    fn line(&self) -> String {
        let (what, name) = (self.what.as_str(), &self.name);
        match &self.deed {
            Deed::Add { from } => format!("+ {what} {name} ({})", harmless(from)),
            Deed::Change { fields } => format!("~ {what} {name}: {}", harmless(&fields.join(", "))),
            Deed::Remove => format!("- {what} {name}"),
        }
    }

    fn as_json(&self) -> Value {
        let (action, fields) = match &self.deed {
            Deed::Add { .. } => ("add", json!([])),
            Deed::Change { fields } => ("change", json!(fields)),
            Deed::Remove => ("remove", json!([])),
        };
        json!({"action": action, "what": self.what.as_str(), "name": self.name, "fields": fields})
    }

    async fn make(&self, client: &Client, project: &str) -> Result<(), Failure> {
        let (method, place): (_, &[&str]) = match (self.what, &self.deed) {
            (What::Project, _) => (Method::PATCH, &["projects", project]),
            (What::Server, Deed::Add { .. }) => (Method::POST, &["projects", project, "mcp-servers"]),
            (What::Server, Deed::Change { .. }) => {
                (Method::PATCH, &["projects", project, "mcp-servers", &self.name])
            }
            (What::Server, Deed::Remove) => {
                (Method::DELETE, &["projects", project, "mcp-servers", &self.name])
            }
            (What::Image, _) => (Method::POST, &["mcp", "images"]),
            (What::Hosted, Deed::Remove) => (Method::DELETE, &["mcp", "hosted", &self.name]),
            (What::Hosted, _) => (Method::PUT, &["mcp", "hosted", &self.name]),
            (What::Product, Deed::Remove) => (Method::DELETE, &["projects", project, "products", &self.name]),
            (What::Product, _) => (Method::POST, &["projects", project, "products"]),
        };
        let query: &[_] = match (self.what, &self.deed) {
            (What::Hosted, Deed::Remove) => &[("project", project)],
            _ => &[],
        };
        let patience = match self.what {
            // An image is made or fetched, and a server started.
            What::Image | What::Hosted => Patience::Endless,
            What::Project | What::Server | What::Product => Patience::Usual,
        };
        let body = (!self.body.is_null()).then_some(&self.body);
        let work = client.change_with(method, place, query, body, patience);
        let made = with_progress(&self.line(), work, async || None).await;
        made.map(|_| ()).map_err(|failure| {
            let message = format!("{} {}: {}", self.what.as_str(), self.name, failure.message);
            Failure { message, ..failure }
        })
    }
}

/// Everything that is different.
#[derive(Debug)]
struct Plan {
    steps: Vec<Step>,
    /// Servers that differ and are left as they are.
    kept: Vec<String>,
}

impl Plan {
    /// Whoever imports has not said that what is there should change.
    fn keep_what_differs(&mut self) {
        let is_change = |step: &Step| step.what == What::Server && matches!(step.deed, Deed::Change { .. });
        self.kept = self.steps.iter().filter(|step| is_change(step)).map(|step| step.name.clone()).collect();
        self.steps.retain(|step| !is_change(step));
    }

    async fn carry_out(
        self,
        client: &Client,
        project: &str,
        declared: &Declared,
        mode: Mode,
        format: Format,
    ) -> Result<(), Failure> {
        for warning in &declared.warnings {
            note(&format!("warning: {warning}"));
        }
        if format == Format::Text {
            for step in &self.steps {
                print_line(&step.line())?;
            }
        }
        if mode == Mode::Make {
            for step in &self.steps {
                step.make(client, project).await?;
            }
        }
        let missing = missing_secrets(client, project, declared.secrets.keys().cloned().collect()).await;
        for name in &missing {
            let hint = declared.secrets.get(name).and_then(Option::as_deref);
            let hint = hint.map(|hint| format!(" ({hint})")).unwrap_or_default();
            note(&format!(
                "secret {name}{hint} is not set; `cofer secret set {name} --project {project}` sets it"
            ));
        }
        let told = json!({
            "project": project,
            "changes": self.steps.iter().map(Step::as_json).collect::<Vec<_>>(),
            "kept": self.kept,
            "made": mode == Mode::Make,
            "warnings": declared.warnings,
            "missing_secrets": missing,
        });
        format.print(&told, || self.outcome(mode))?;
        self.conflict()
    }

    fn outcome(&self, mode: Mode) -> String {
        match (self.steps.len(), mode) {
            (0, _) => "nothing to do".to_owned(),
            (steps, Mode::Make) => format!("done: {}", differences(steps)),
            (steps, Mode::ShowAlone) => format!("{}; nothing was done", differences(steps)),
        }
    }

    fn conflict(&self) -> Result<(), Failure> {
        if self.kept.is_empty() {
            return Ok(());
        }
        let names = self.kept.join(", ");
        let message = format!("already there, and not as in the file: {names}; `--replace` changes them");
        Err(Failure::new(Kind::Conflict, message))
    }
}

fn differences(count: usize) -> String {
    if count == 1 { "1 change".to_owned() } else { format!("{count} changes") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_named_field_by_field() {
        let there = json!({"transport": "http", "enabled": true, "config": {"url": "a", "headers": {}}, "status": "idle"});
        let wanted = |config: Value| json!({"transport": "http", "enabled": true, "config": config});
        assert!(differing(&there, &wanted(json!({"url": "a", "headers": {}}))).is_empty());
        assert_eq!(
            differing(&there, &wanted(json!({"url": "b", "headers": {"X": "1"}}))),
            ["config.url", "config.headers"]
        );
        let other = json!({"transport": "stdio", "enabled": false, "config": {"command": "x"}});
        assert_eq!(differing(&there, &other), ["transport", "enabled", "config"]);
    }
}
