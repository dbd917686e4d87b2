//! `cofer chat`: a conversation in the terminal, or one question out of a script. It is a client of a running Cofer like any other, or,
//! with `--servers`, of one that it starts for itself when the first message is said.

mod input;
mod shown;
mod turn;

use std::io::{IsTerminal, Read};
use std::path::PathBuf;

use clap::Args;
use cofer_model::Kind;
use cofer_server::Aside;
use cofer_server::settings::{LogFormat, any_path};
use cofer_server::telemetry::Telemetry;
use serde_json::{Value, json};
use tokio::signal::unix::{SignalKind, signal};

use super::external::project_of;
use super::object;
use crate::client::{Client, Target};
use crate::exit::Failure;
use crate::output::{Format, print_line};
use input::{Input, Line};
use turn::Turn;

const MESSAGE_BYTES_MAX: u64 = 8 << 20;
/// What is logged beside a conversation with servers of its own, unless `COFER_LOG` says otherwise.
const LOG: &str = "error,sqlx=off,sqlx_core=off";

/// Talk to a model that uses a project's tools
#[derive(Debug, Args)]
pub struct Chat {
    /// What to say first; with `--print`, `-` reads it from standard input
    message: Option<String>,
    /// Answer this one message and end, printing nothing but the answer
    #[arg(long, short)]
    print: bool,
    /// Start the servers of this file for the conversation, with no Cofer running
    #[arg(long, value_name = "FILE", value_parser = any_path(), conflicts_with_all = ["project", "url"])]
    servers: Option<PathBuf>,
    /// Go on with this run
    #[arg(long, value_name = "ID")]
    run: Option<String>,
    #[arg(long)]
    model: Option<String>,
    /// What the model is told before everything else
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    /// How often the model may answer to one message
    #[arg(long, value_name = "N")]
    max_steps: Option<u64>,
    /// A tool that may be used, by name or pattern such as `git_*`; `!` in front excludes; may be repeated
    #[arg(long, value_name = "PATTERN")]
    tools: Vec<String>,
    /// A tool that is asked about before it is called; may be repeated [default: whatever is not read-only, unless `--print`]
    #[arg(long, value_name = "PATTERN", conflicts_with = "yes")]
    approve: Vec<String>,
    /// Call every tool without asking
    #[arg(long, short)]
    yes: bool,
    /// The project [default: the token's, else `default`]
    #[arg(long)]
    project: Option<String>,
    #[command(flatten)]
    target: Target,
}

/// Whom the conversation is with, once something was said.
struct Partner {
    client: Client,
    project: String,
    /// Ended with the conversation.
    aside: Option<Aside>,
}

impl Chat {
    pub async fn run(self, format: Format) -> Result<(), Failure> {
        let mut terminate = signal(SignalKind::terminate()).map_err(Failure::internal)?;
        let mut hang_up = signal(SignalKind::hangup()).map_err(Failure::internal)?;
        let conversation =
            async { if self.print { self.answer_once(format).await } else { self.converse().await } };
        tokio::select! {
            ended = conversation => ended,
            // What was started for the conversation ends with it.
            _ = terminate.recv() => Err(told_to_stop()),
            _ = hang_up.recv() => Err(told_to_stop()),
        }
    }

    async fn partner(&self) -> Result<Partner, Failure> {
        let Some(servers) = &self.servers else {
            let client = self.target.patient_client()?;
            let project = project_of(&self.target.client()?, self.project.as_deref()).await?;
            return Ok(Partner { client, project, aside: None });
        };
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let filter = variable("COFER_LOG").unwrap_or_else(|| LOG.to_owned());
        let telemetry = Telemetry::start(LogFormat::Text, &filter, variable)
            .map_err(|error| Failure::caused(error.kind(), &error))?;
        let aside = Aside::start(servers, |name| std::env::var_os(name), telemetry).await;
        let aside = aside.map_err(|error| Failure::caused(error.kind(), &error))?;
        let client = Client::beside(&aside.url, &aside.token)?;
        Ok(Partner { client, project: cofer_model::project::DEFAULT_PROJECT.to_owned(), aside: Some(aside) })
    }

    /// What is sent with every message.
    fn wishes(&self) -> Value {
        let asks = match (self.yes, self.approve.as_slice(), self.print) {
            (true, ..) | (false, [], true) => Value::Null,
            (false, [], false) => json!(["*"]),
            (false, patterns, _) => json!(patterns),
        };
        let tools = if self.tools.is_empty() { Value::Null } else { json!(self.tools) };
        object([
            ("model", json!(self.model)),
            ("system", json!(self.system)),
            ("max_steps", json!(self.max_steps)),
            ("tools", tools),
            ("approve", asks),
        ])
    }

    async fn answer_once(self, format: Format) -> Result<(), Failure> {
        let message = match self.message.as_deref() {
            Some("-") => from_stdin()?,
            Some(message) => message.to_owned(),
            None if !std::io::stdin().is_terminal() => from_stdin()?,
            None => return Err(Failure::new(Kind::Invalid, "there is nothing to say; give a message")),
        };
        let partner = self.partner().await?;
        let mut body = self.wishes();
        body["message"] = json!(message);
        if let Some(run) = &self.run {
            body["run_id"] = json!(run);
        }
        let turn = Turn { client: &partner.client, project: &partner.project, input: None };
        let done = turn.run(&body).await;
        partner.end().await;
        let done = done?;
        match format {
            Format::Json => format.print(&done, String::new)?,
            Format::Text => {
                print_line(&crate::output::harmless_lines(done["text"].as_str().unwrap_or_default()))?;
            }
        }
        ended_well(&done)
    }

    async fn converse(self) -> Result<(), Failure> {
        shown::greeting();
        let mut talk = Talk { input: Input::open(), partner: None, run: self.run.clone() };
        let ended = self.talk(&mut talk).await;
        if let Some(partner) = talk.partner {
            partner.end().await;
        }
        if let Some(run) = talk.run.filter(|_| self.servers.is_none() && ended.is_ok()) {
            shown::hint(&format!("go on with: cofer chat --run {run}"));
        }
        ended
    }

    async fn talk(&self, talk: &mut Talk) -> Result<(), Failure> {
        let mut first = self.message.clone();
        loop {
            let line = match first.take() {
                Some(message) => Line::Text(message),
                None => talk.input.message().await?,
            };
            match line {
                Line::Text(text) if ["/exit", "/quit"].contains(&text.trim()) => return Ok(()),
                Line::Text(text) if text.trim().is_empty() => {}
                Line::Text(text) => self.turn(talk, &text).await?,
                Line::Interrupted => shown::hint("(end with Ctrl-D or /exit)"),
                Line::End => return Ok(()),
            }
        }
    }

    /// One message and what comes of it. What goes wrong with it ends the conversation only if there is nobody to talk to any more.
    async fn turn(&self, talk: &mut Talk, message: &str) -> Result<(), Failure> {
        // Only now: nothing is started for a conversation that never begins.
        let with = match talk.partner.take() {
            Some(partner) => talk.partner.insert(partner),
            None => talk.partner.insert(self.partner().await?),
        };
        let mut body = self.wishes();
        body["message"] = json!(message);
        if let Some(run) = &talk.run {
            body["run_id"] = json!(run);
        }
        let turn = Turn { client: &with.client, project: &with.project, input: Some(&mut talk.input) };
        let run = match turn.run(&body).await {
            Ok(done) => {
                shown::ending(&done);
                done["run_id"].as_str().map(ToOwned::to_owned)
            }
            Err(failure) if failure.kind == Kind::Unavailable => return Err(failure),
            Err(failure) => {
                shown::trouble(&failure.message);
                failure.details.get("run_id").and_then(Value::as_str).map(ToOwned::to_owned)
            }
        };
        talk.run = run.or(talk.run.take());
        Ok(())
    }
}

/// A conversation under way.
struct Talk {
    input: Input,
    partner: Option<Partner>,
    run: Option<String>,
}

impl Partner {
    async fn end(self) {
        if let Some(aside) = self.aside {
            aside.end().await;
        }
    }
}

fn told_to_stop() -> Failure {
    Failure::new(Kind::Upstream, "told to stop")
}

fn from_stdin() -> Result<String, Failure> {
    let mut text = String::new();
    let read = std::io::stdin().take(MESSAGE_BYTES_MAX).read_to_string(&mut text);
    let unreadable = |error| Failure::new(Kind::Invalid, format!("standard input cannot be read: {error}"));
    read.map_err(unreadable)?;
    Ok(text)
}

/// A script wants to know whether it can rely on what was printed.
fn ended_well(done: &Value) -> Result<(), Failure> {
    if done["status"] == "completed" {
        return Ok(());
    }
    let (status, reason) = (&done["status"], &done["reason"]);
    Err(Failure::new(Kind::Upstream, format!("the answer is not complete: {status} ({reason})")))
}
