//! Servers that live elsewhere, under the same commands as the hosted ones.

use std::collections::BTreeMap;

use cofer_model::Kind;
use reqwest::Method;
use serde_json::{Value, json};

use super::add::{self, Add};
use super::{Hosted, SERVERS};
use crate::client::Patience;
use crate::commands::external::{note, project_of, tell_of_missing_secrets};
use crate::commands::object;
use crate::exit::Failure;
use crate::output::{Format, print_line, with_progress};

/// Registers one, by command or by address.
pub(super) async fn add(add: Add, hosted: &Hosted) -> Result<(), Failure> {
    let project = project_of(&hosted.client, hosted.project.as_deref()).await?;
    let (transport, config) = match &add.url {
        Some(url) => (
            transport(add.transport.as_deref(), url)?,
            object([("url", json!(url)), ("headers", json!(headers(&add.headers)?)), ("oauth", oauth(&add))]),
        ),
        None => ("stdio", command(&add)?),
    };
    let body = object([
        ("name", json!(add.name)),
        ("description", json!(add.description)),
        ("transport", json!(transport)),
        ("config", config),
        ("session", json!(add.session)),
    ]);
    let made = hosted.client.post(&["projects", &project, "mcp-servers"], &body).await?;
    tell_of_missing_secrets(&hosted.client, &project, &made["config"]).await;
    let name = made["name"].as_str().unwrap_or_default();
    hosted.format.print(&made, || {
        format!("server {name} is registered ({transport}); it is connected to at its first use")
    })
}

fn oauth(add: &Add) -> Value {
    if add.oauth_client_id.is_none() && add.oauth_scopes.is_empty() {
        return Value::Null;
    }
    object([
        ("client_id", json!(add.oauth_client_id)),
        ("client_secret", json!(add.oauth_client_secret)),
        ("scopes", json!(add.oauth_scopes)),
    ])
}

fn command(add: &Add) -> Result<Value, Failure> {
    let (program, args) =
        add.command.split_first().map_or(("", &[][..]), |(first, rest)| (first.as_str(), rest));
    let env = add::environment(&add.environment)?;
    Ok(object([
        ("command", json!(program)),
        ("args", json!(args)),
        ("env", json!(env)),
        ("cwd", json!(add.cwd)),
    ]))
}

fn transport(given: Option<&str>, url: &str) -> Result<&'static str, Failure> {
    match given {
        Some("sse") => Ok("sse"),
        None if url.trim_end_matches('/').ends_with("/sse") => Ok("sse"),
        None | Some("http") => Ok("http"),
        Some(_) => {
            Err(Failure::new(Kind::Invalid, "`--transport` is sse or http; a command is always stdio"))
        }
    }
}

/// `Name: value`, as curl takes them.
fn headers(given: &[String]) -> Result<BTreeMap<String, String>, Failure> {
    let header = |text: &String| match text.split_once(':') {
        Some((name, value)) if !name.trim().is_empty() => {
            Ok((name.trim().to_owned(), value.trim().to_owned()))
        }
        // Not repeated: it may be a password without its name.
        _ => Err(Failure::new(
            Kind::Invalid,
            "a header is written like `--header 'Authorization: Bearer ${TOKEN}'`",
        )),
    };
    given.iter().map(header).collect()
}

/// Hosted and external servers, in the order of registration. Where hosting is switched off, the others are there.
pub(super) async fn all(hosted: &Hosted) -> Result<Value, Failure> {
    let mut servers = match hosted.client.get_with(&SERVERS, &hosted.query(&[])).await {
        Err(failure) if failure.kind == Kind::Unavailable => {
            note(&format!("without hosted servers: {}", failure.message));
            Vec::new()
        }
        servers => servers?.as_array().cloned().unwrap_or_default(),
    };
    let projects = match &hosted.project {
        Some(project) => vec![project.clone()],
        None => names(&hosted.client.get(&["projects"]).await?),
    };
    for project in projects {
        let found = hosted.client.get(&["projects", &project, "mcp-servers"]).await?;
        servers.extend(found.as_array().cloned().unwrap_or_default());
    }
    servers.sort_by(|one, other| one["created_at"].as_str().cmp(&other["created_at"].as_str()));
    Ok(Value::Array(servers))
}

fn names(things: &Value) -> Vec<String> {
    let name = |thing: &Value| thing["name"].as_str().map(ToOwned::to_owned);
    things.as_array().into_iter().flatten().filter_map(name).collect()
}

/// The external server of this name, where there is no hosted one.
pub(super) async fn instead(hosted: &Hosted, server: &str, failure: Failure) -> Result<Value, Failure> {
    send_instead(hosted, Method::GET, server, &[], None, failure).await
}

/// What its program wrote to stderr.
pub(super) async fn logs_instead(
    hosted: &Hosted,
    server: &str,
    tail: &str,
    follow: bool,
    failure: Failure,
) -> Result<(), Failure> {
    let found = instead(hosted, server, failure).await?;
    let project = found["project"].as_str().unwrap_or_default();
    hosted.logs(&["projects", project, "mcp-servers", server, "logs"], &[("tail", tail)], follow).await
}

pub(super) async fn remove_instead(
    hosted: &Hosted,
    server: &str,
    failure: Failure,
) -> Result<Value, Failure> {
    send_instead(hosted, Method::DELETE, server, &[], None, failure).await
}

/// Stopped is switched off, started is switched on, and restarted is connected to anew.
pub(super) async fn change_instead(
    hosted: &Hosted,
    server: &str,
    verb: &str,
    failure: Failure,
) -> Result<Value, Failure> {
    let enabled = |enabled: bool| Some(json!({"enabled": enabled}));
    match verb {
        "stop" => send_instead(hosted, Method::PATCH, server, &[], enabled(false), failure).await,
        "start" => send_instead(hosted, Method::PATCH, server, &[], enabled(true), failure).await,
        _ => {
            let found = instead(hosted, server, failure).await?;
            let project = found["project"].as_str().unwrap_or_default();
            let place = ["projects", project, "mcp-servers", server, "refresh"];
            hosted.client.change_with(Method::POST, &place, &[], None, Patience::Endless).await?;
            hosted.client.get(&place[..4]).await
        }
    }
}

/// What is not there as a hosted server, or not said because hosting is off, may be there as an external one.
async fn send_instead(
    hosted: &Hosted,
    method: Method,
    server: &str,
    more: &[&str],
    body: Option<Value>,
    failure: Failure,
) -> Result<Value, Failure> {
    if !matches!(failure.kind, Kind::NotFound | Kind::Unavailable) {
        return Err(failure);
    }
    let Ok(project) = project_of(&hosted.client, hosted.project.as_deref()).await else {
        return Err(failure);
    };
    let place = [&["projects", project.as_str(), "mcp-servers", server], more].concat();
    match hosted.client.change_with(method, &place, &[], body.as_ref(), Patience::Usual).await {
        Err(other) if other.kind == Kind::NotFound => Err(failure),
        answer => answer,
    }
}

/// A refusal of what only hosted servers have, in words that fit.
pub(super) async fn explained<T>(
    hosted: &Hosted,
    server: &str,
    outcome: Result<T, Failure>,
) -> Result<T, Failure> {
    let failure = match outcome {
        Err(failure) if failure.kind == Kind::NotFound => failure,
        outcome => return outcome,
    };
    let Ok(project) = project_of(&hosted.client, hosted.project.as_deref()).await else {
        return Err(failure);
    };
    if hosted.client.peek(&["projects", &project, "mcp-servers", server], &[]).await.is_none() {
        return Err(failure);
    }
    let message = format!("server `{server}` lives elsewhere; only servers that Cofer hosts have this");
    Err(Failure::new(Kind::Invalid, message))
}

pub(super) async fn refresh(hosted: &Hosted, servers: &[String]) -> Result<(), Failure> {
    let project = project_of(&hosted.client, hosted.project.as_deref()).await?;
    let mut all = Vec::new();
    for server in servers {
        let place = ["projects", &project, "mcp-servers", server, "refresh"];
        let work = hosted.client.change_with(Method::POST, &place, &[], None, Patience::Endless);
        let tools = with_progress(&format!("connecting to {server}"), work, async || None).await?;
        let count = tools.as_array().map_or(0, Vec::len);
        if hosted.format == Format::Text {
            print_line(&format!("server {server} has {count} tools"))?;
        }
        all.push(json!({"server": server, "tools": tools}));
    }
    match hosted.format {
        Format::Json => Format::Json.print(&all, String::new),
        Format::Text => Ok(()),
    }
}
