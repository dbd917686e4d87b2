//! `cofer server`: servers that Cofer runs, from the first image to the last log line, and those that live elsewhere.
//!
//! A name is used once in a project, whichever kind of server has it. So each command asks the hosted servers first, and the
//! external ones where there is none of the name.

mod add;
mod external;
mod login;
mod show;

use clap::{Args, Subcommand};
use cofer_model::Kind;
use reqwest::Method;
use serde::Serialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::remove_each;
use crate::client::{Client, Outcome, Patience, Target};
use crate::exit::Failure;
use crate::output::{Format, harmless, harmless_json, print_line, table, with_progress};

const EVENTS: [(&str, &str); 3] = [("AT", "at"), ("KIND", "kind"), ("MESSAGE", "message")];
const SERVERS: [&str; 2] = ["mcp", "hosted"];

#[derive(Debug, Args)]
pub struct Server {
    #[command(subcommand)]
    action: Action,
    /// The project it belongs to [default: the token's, else `default`]
    #[arg(long, global = true)]
    project: Option<String>,
    #[command(flatten)]
    target: Target,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Register a server: hosted ones are started, others connected to at their first use
    Add(Box<add::Add>),
    /// List servers, hosted and external: state, why, since when, restarts, memory
    #[command(alias = "list")]
    Ls,
    /// Show everything about a server
    Show {
        /// Name or id
        server: String,
    },
    /// Show what a server writes to stderr
    Logs {
        /// Name or id
        server: String,
        /// Stay, and show each new line
        #[arg(short, long)]
        follow: bool,
        /// So many of the newest lines
        #[arg(short = 'n', long, default_value_t = 200, value_name = "N")]
        tail: usize,
    },
    /// Show what happened to a server: crashes, restarts, timeouts
    Events {
        /// Name or id
        server: String,
        /// So many of the newest
        #[arg(short = 'n', long, default_value_t = 50, value_name = "N")]
        limit: u32,
    },
    /// Call a method of a server
    Call {
        /// Name or id
        server: String,
        /// Such as `tools/list`
        method: String,
        /// Its parameters, as JSON
        params: Option<String>,
        /// How long to wait [default: the server's]
        #[arg(long, value_name = "MS")]
        timeout_ms: Option<u64>,
    },
    /// Restart servers in new containers, and forget their crashes; connect anew to external ones
    Restart {
        /// Names or ids
        #[arg(required = true)]
        servers: Vec<String>,
    },
    /// Stop servers until they are started again; external ones are switched off
    Stop {
        /// Names or ids
        #[arg(required = true)]
        servers: Vec<String>,
    },
    /// Start servers that were stopped; external ones are switched on
    Start {
        /// Names or ids
        #[arg(required = true)]
        servers: Vec<String>,
    },
    /// Connect to servers now and list their tools anew
    Refresh {
        /// Names or ids
        #[arg(required = true)]
        servers: Vec<String>,
    },
    /// Log in at a server that wants it: opens a browser, and waits
    Login {
        /// Name or id
        server: String,
        /// Print the address instead of opening a browser
        #[arg(long)]
        print: bool,
    },
    /// Forget the login at a server, and have it revoked
    Logout {
        /// Name or id
        server: String,
    },
    /// Remove servers; volumes stay unless asked
    Rm {
        /// Names or ids
        #[arg(required = true)]
        servers: Vec<String>,
        /// Remove their volumes, too
        #[arg(long)]
        volumes: bool,
    },
}

impl Server {
    pub async fn run(self, format: Format) -> Result<(), Failure> {
        let target = match &self.action {
            Action::Add(_) => self.target.without_url(),
            _ => self.target,
        };
        let client = target.client()?;
        let hosted = Hosted { client, project: self.project, format };
        match self.action {
            Action::Add(add) => add.run(&hosted).await,
            Action::Ls => {
                let servers = external::all(&hosted).await?;
                format.print(&servers, || show::table_of(&servers))
            }
            Action::Show { server } => {
                let found = match hosted.status(&server).await {
                    Err(failure) => external::instead(&hosted, &server, failure).await?,
                    found => found?,
                };
                format.print(&found, || crate::output::fields(&found))
            }
            Action::Logs { server, follow, tail } => {
                let tail = tail.to_string();
                let (here, query) = (place(&[&server, "logs"]), hosted.query(&[("tail", &tail)]));
                match hosted.logs(&here, &query, follow).await {
                    Err(failure) => external::logs_instead(&hosted, &server, &tail, follow, failure).await,
                    shown => shown,
                }
            }
            Action::Events { server, limit } => {
                let limit = limit.to_string();
                let query = hosted.query(&[("limit", &limit)]);
                let events = hosted.client.get_with(&place(&[&server, "events"]), &query).await;
                let events = external::explained(&hosted, &server, events).await?;
                format.print(&events, || table(&events, &EVENTS))
            }
            Action::Call { server, method, params, timeout_ms } => {
                let called = hosted.call(&server, &method, params.as_deref(), timeout_ms).await;
                external::explained(&hosted, &server, called).await
            }
            Action::Restart { servers } => hosted.each(&servers, "restart", "restarting").await,
            Action::Stop { servers } => hosted.each(&servers, "stop", "stopping").await,
            Action::Start { servers } => hosted.each(&servers, "start", "starting").await,
            Action::Refresh { servers } => external::refresh(&hosted, &servers).await,
            Action::Login { server, print } => {
                let browser = if print { login::Browser::LeaveToThem } else { login::Browser::Open };
                login::log_in(&hosted, &server, browser).await
            }
            Action::Logout { server } => login::log_out(&hosted, &server).await,
            Action::Rm { servers, volumes } => {
                let query = hosted.query(&[("delete_volumes", if volumes { "true" } else { "false" })]);
                let remove = async |server: &str| {
                    let place = place(&[server]);
                    let removed = hosted
                        .client
                        .change_with(Method::DELETE, &place, &query, None, Patience::Usual)
                        .await;
                    match removed {
                        Err(failure) => external::remove_instead(&hosted, server, failure).await,
                        removed => removed,
                    }
                };
                remove_each(&servers, remove, format, |server| format!("server {server} removed")).await
            }
        }
    }
}

/// The way to the servers of one project, hosted ones first.
struct Hosted {
    client: Client,
    project: Option<String>,
    format: Format,
}

fn place<'a>(parts: &[&'a str]) -> Vec<&'a str> {
    [&SERVERS[..], parts].concat()
}

impl Hosted {
    fn query<'a>(&'a self, more: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
        let project = self.project.as_deref().map(|project| ("project", project));
        more.iter().copied().chain(project).collect()
    }

    async fn status(&self, server: &str) -> Result<Value, Failure> {
        self.client.get_with(&place(&[server]), &self.query(&[])).await
    }

    /// What the server is doing right now, while something is waited for.
    async fn progress(&self, server: &str) -> Option<String> {
        let status = self.client.peek(&place(&[server]), &self.query(&[])).await?;
        let text = |field: &str| status[field].as_str().map(ToOwned::to_owned);
        text("progress").or_else(|| text("status")).map(|doing| format!("{server}: {doing}"))
    }

    /// The same verb for each, one after the other, with what comes of it.
    async fn each(&self, servers: &[String], verb: &str, doing: &str) -> Result<(), Failure> {
        let mut changed = Vec::new();
        for server in servers {
            let (place, query) = (place(&[server, verb]), self.query(&[]));
            let work = self.client.change_with(Method::POST, &place, &query, None, Patience::Endless);
            let status =
                with_progress(&format!("{doing} {server}"), work, async || self.progress(server).await).await;
            let status = match status {
                Err(failure) => external::change_instead(self, server, verb, failure).await?,
                status => status?,
            };
            if self.format == Format::Text {
                print_line(&show::outcome_of(&status))?;
            }
            changed.push(status);
        }
        match self.format {
            Format::Json => Format::Json.print(&changed, String::new),
            Format::Text => Ok(()),
        }
    }

    async fn logs(&self, place: &[&str], query: &[(&str, &str)], follow: bool) -> Result<(), Failure> {
        if follow {
            let query = [query, &[("follow", "true")]].concat();
            return self.client.follow(place, &query, |line| self.print_log_line(line)).await;
        }
        let lines = self.client.get_with(place, query).await?;
        self.format.print(&lines, || {
            lines.as_array().into_iter().flatten().map(log_line).collect::<Vec<_>>().join("\n")
        })
    }

    fn print_log_line(&self, line: &str) -> Result<(), Failure> {
        match self.format {
            Format::Json => print_line(&harmless_json(line)),
            Format::Text => serde_json::from_str(line).map_or(Ok(()), |line| print_line(&log_line(&line))),
        }
    }

    async fn call(
        &self,
        server: &str,
        method: &str,
        params: Option<&str>,
        timeout_ms: Option<u64>,
    ) -> Result<(), Failure> {
        // Carried as it was typed: numbers, order and all.
        let params: Option<&RawValue> = params
            .map(serde_json::from_str)
            .transpose()
            .map_err(|error| Failure::new(Kind::Invalid, format!("the parameters are not JSON: {error}")))?;
        let body = Call { method, params, timeout_ms };
        let answer = self.client.relay(&place(&[server, "call"]), &self.query(&[]), &body).await?;
        let Outcome { result, error } = answer.outcome;
        if error.is_null() {
            return match self.format {
                Format::Json => print_line(&harmless_json(result.get())),
                Format::Text => print_line(&harmless_json(&pretty(&result))),
            };
        }
        let kind = match answer.status {
            404 => Kind::NotFound,
            400 => Kind::Malformed,
            _ => Kind::Upstream,
        };
        let text = harmless(error["message"].as_str().unwrap_or_default());
        Err(Failure::new(kind, format!("{server} answered with error {}: {text}", error["code"])))
    }
}

fn pretty(json: &RawValue) -> String {
    let parsed: Result<Value, _> = serde_json::from_str(json.get());
    parsed.and_then(|value| serde_json::to_string_pretty(&value)).unwrap_or_else(|_| json.get().to_owned())
}

/// The body of a call.
#[derive(Serialize)]
struct Call<'a> {
    method: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    params: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timeout_ms: Option<u64>,
}

fn log_line(line: &Value) -> String {
    let text = |field: &str| line[field].as_str().unwrap_or_default();
    format!("{} {}", text("at"), harmless(text("line")))
}
