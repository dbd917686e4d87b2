//! What does a person type?
//!
//! `cofer serve` runs the server; environments (`cofer env`, `cofer stdio`) need none. Everything else talks to a running one over HTTP,
//! as any other client would, and finds the one on this machine by itself. One file a command below `commands/`.

mod client;
mod commands;
mod events;
mod exit;
mod output;
mod signals;
mod trust;

use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};

use commands::{
    call, calls, chat, completions, declared, doctor, env, project, provider, secret, serve, server, stdio,
    token, tools, version, volume,
};
use exit::Failure;

/// How long the end waits for a thread that the kernel keeps waiting, as a disk that is gone does.
const LAST_WORDS_MAX: Duration = Duration::from_secs(5);

/// Runs MCP servers in sandboxes and offers all their tools on one endpoint.
#[derive(Debug, Parser)]
#[command(name = "cofer", version, arg_required_else_help = true, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,

    /// Print JSON instead of tables, also for errors
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the server
    Serve(Box<serve::Serve>),
    /// Check that this machine has what Cofer needs
    Doctor(Box<doctor::Doctor>),
    /// Servers: those that Cofer runs in sandboxes, and those that live elsewhere
    Server(server::Server),
    Stdio(Box<stdio::Stdio>),
    Init(env::Init),
    /// Coding environments: a git worktree and a container for each task
    Env(Box<env::Env>),
    Tools(tools::Tools),
    Call(call::Call),
    Calls(calls::Calls),
    Chat(Box<chat::Chat>),
    Import(declared::Import),
    Apply(declared::Apply),
    /// MCP clients: Cofer in their configuration
    Client(commands::client::Client),
    /// What servers keep on disk
    Volume(volume::Volume),
    /// Ways to run a sandbox
    Provider(provider::Provider),
    /// Projects: the tenants that own servers, secrets, tokens and runs
    Project(project::Project),
    /// Access tokens
    Token(token::Token),
    /// Secrets: values that servers may use and nobody can read back
    Secret(secret::Secret),
    /// Print a completion script for your shell
    Completions(completions::Completions),
    /// Print versions
    Version(version::Version),
}

fn main() -> ExitCode {
    let Cli { command, json } = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(answer) => return help_or_usage(&answer),
    };
    let format = if json { output::Format::Json } else { output::Format::Text };
    match run(command, format) {
        Ok(code) => code,
        Err(failure) => failure.report(format),
    }
}

fn run(command: Command, format: output::Format) -> Result<ExitCode, Failure> {
    install_crypto();
    let runtime = cofer_server::runtime().map_err(Failure::internal)?;
    let outcome = runtime.block_on(async {
        match command {
            Command::Serve(serve) => Box::pin(serve.run()).await?,
            Command::Doctor(doctor) => return doctor.run(format).await,
            Command::Server(server) => server.run(format).await?,
            Command::Stdio(stdio) => stdio.run().await?,
            Command::Init(init) => init.run(format).await?,
            Command::Env(env) => return env.run(format).await,
            Command::Tools(tools) => tools.run(format).await?,
            Command::Call(call) => call.run(format).await?,
            Command::Calls(calls) => calls.run(format).await?,
            Command::Chat(chat) => chat.run(format).await?,
            Command::Import(import) => import.run(format).await?,
            Command::Apply(apply) => apply.run(format).await?,
            Command::Client(client) => client.run(format).await?,
            Command::Volume(volume) => volume.run(format).await?,
            Command::Provider(provider) => provider.run(format).await?,
            Command::Project(project) => project.run(format).await?,
            Command::Token(token) => token.run(format).await?,
            Command::Secret(secret) => secret.run(format).await?,
            Command::Completions(completions) => completions.run()?,
            Command::Version(version) => version.run(format).await?,
        }
        Ok(ExitCode::SUCCESS)
    });
    runtime.shutdown_timeout(LAST_WORDS_MAX);
    outcome
}

/// What the parser has to say: help or the version to standard output, or what was wrong to standard error.
fn help_or_usage(answer: &clap::Error) -> ExitCode {
    match output::forgive_closed_pipe(answer.print()) {
        Err(failure) if !answer.use_stderr() => failure.report(output::Format::Text),
        _ => ExitCode::from(u8::try_from(answer.exit_code()).unwrap_or(1)),
    }
}

/// TLS needs to be told whose cryptography to use, once in a process.
fn install_crypto() {
    // An error says that it was told already.
    let _ = rustls::crypto::ring::default_provider().install_default();
}
