//! `cofer init` and `cofer env …`: coding environments by hand. Nothing here needs a running server.

mod apply;
mod background;
mod checkout;
mod config;
mod create;
mod destroy;
mod diff;
mod init;
mod list;
mod log;
mod merge;
mod prune;
mod run;
mod show;
mod terminal;
mod tty;
mod watch;

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use clap::{Args, Subcommand};
use cofer_environments::{EnvError, Environment, Environments, Settings};
use cofer_model::{Kind, ProviderName};
use cofer_server::environments::{of_this_machine, usual_register};
use cofer_server::settings::any_path;

use crate::exit::Failure;
use crate::output::{Format, harmless_lines};

pub use init::Init;

#[derive(Debug, Args)]
pub struct Env {
    #[command(subcommand)]
    action: Action,
    #[command(flatten)]
    repository: Repository,
    #[command(flatten)]
    workplace: Workplace,
}

#[derive(Debug, Subcommand)]
enum Action {
    Create(create::Create),
    #[command(alias = "ls")]
    List(list::List),
    #[command(alias = "inspect")]
    Show(show::Show),
    Run(run::Run),
    Background(background::Background),
    Log(log::Log),
    Diff(diff::Diff),
    Checkout(checkout::Checkout),
    Merge(merge::Merge),
    Apply(apply::Apply),
    Terminal(terminal::Terminal),
    Watch(watch::Watch),
    #[command(aliases = ["rm", "delete"])]
    Destroy(destroy::Destroy),
    Prune(prune::Prune),
    /// What new environments of a repository are made of: .cofer/environment.json
    Config(config::Config),
}

impl Env {
    pub async fn run(self, format: Format) -> Result<ExitCode, Failure> {
        let place =
            Place { environments: self.workplace.environments()?, path: self.repository.path()?, format };
        match self.action {
            Action::Create(create) => return create.run(&place).await,
            Action::Run(run) => return run.run(&place).await,
            Action::Terminal(terminal) => return terminal.run(&place).await,
            Action::List(list) => list.run(&place).await?,
            Action::Show(show) => show.run(&place).await?,
            Action::Background(background) => background.run(&place).await?,
            Action::Log(log) => log.run(&place).await?,
            Action::Diff(diff) => diff.run(&place).await?,
            Action::Checkout(checkout) => checkout.run(&place).await?,
            Action::Merge(merge) => merge.run(&place).await?,
            Action::Apply(apply) => apply.run(&place).await?,
            Action::Watch(watch) => watch.run(&place).await?,
            Action::Destroy(destroy) => destroy.run(&place).await?,
            Action::Prune(prune) => prune.run(&place).await?,
            Action::Config(config) => config.run(&place).await?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// One repository, its environments, and how a person wants to read of them.
#[derive(Debug)]
struct Place {
    environments: Arc<Environments>,
    path: PathBuf,
    format: Format,
}

impl Place {
    async fn open(&self, id: &str) -> Result<Environment, Failure> {
        self.environments.open(&self.path, id).await.map_err(failure)
    }
}

/// Which environment, where it may go without saying.
#[derive(Debug, Args)]
struct Which {
    /// The environment [default: the only one that goes on from what is checked out]
    id: Option<String>,
}

impl Which {
    async fn open(&self, place: &Place) -> Result<Environment, Failure> {
        place.environments.open_or_only(&place.path, self.id.as_deref()).await.map_err(failure)
    }
}

/// Where environments are made, and by which engine.
#[derive(Debug, Args)]
pub struct Workplace {
    /// The engine [default: Podman, else Docker]
    #[arg(long, global = true, env = "COFER_ENVIRONMENT_PROVIDER", value_name = "NAME")]
    provider: Option<ProviderName>,

    /// Where Docker is, such as `unix:///run/docker.sock` [default: `DOCKER_HOST`, then the usual sockets]
    #[arg(long, global = true, env = "COFER_DOCKER_HOST", value_name = "URL")]
    docker_host: Option<String>,

    /// Where Podman is [default: `CONTAINER_HOST`, then the usual sockets]
    #[arg(long, global = true, env = "COFER_PODMAN_HOST", value_name = "URL")]
    podman_host: Option<String>,
}

impl Workplace {
    pub fn environments(self) -> Result<Arc<Environments>, Failure> {
        let mut settings = Settings::from_variables(&|name| std::env::var(name).ok()).map_err(failure)?;
        settings.provider = self.provider.or(settings.provider);
        settings.register = usual_register();
        Ok(of_this_machine(settings, self.docker_host, self.podman_host))
    }
}

/// Which repository is meant.
#[derive(Debug, Args)]
pub struct Repository {
    /// The source repository [default: the one of this directory]
    #[arg(long, short = 'C', global = true, value_name = "DIR", value_parser = any_path())]
    source: Option<PathBuf>,
}

impl Repository {
    pub fn path(&self) -> Result<PathBuf, Failure> {
        let here = std::env::current_dir().map_err(Failure::internal)?;
        let path = self.source.as_ref().map_or_else(|| here.clone(), |source| here.join(source));
        path.canonicalize().map_err(|error| {
            Failure::new(Kind::NotFound, format!("{} cannot be used: {error}", path.display()))
        })
    }
}

/// How what agents are told of is done by hand.
const BY_HAND: [(&str, &str); 7] = [
    ("environment_background_list", "cofer env background ID ls"),
    ("environment_background_read", "cofer env background ID logs"),
    ("environment_background_stop", "cofer env background ID stop"),
    ("environment_destroy", "cofer env destroy"),
    ("environment_list", "cofer env list"),
    ("environment_id", "--id"),
    ("allow_replace", "--replace"),
];
const TO_AN_AGENT: &str = "CRITICAL: You MUST inform the user that ";

/// What environments say of an error, and what to do about it.
pub fn failure(error: EnvError) -> Failure {
    let recovery = BY_HAND.iter().fold(error.recovery, |text, (tool, by_hand)| text.replace(tool, by_hand));
    Failure::new(error.kind.kind(), format!("{}\n{recovery}", error.message))
}

/// What a person should know, beside what they asked for.
fn warn(warnings: &[String]) {
    for warning in warnings {
        let text = warning.strip_prefix(TO_AN_AGENT).unwrap_or(warning);
        let text = BY_HAND.iter().fold(text.to_owned(), |text, (tool, by_hand)| text.replace(tool, by_hand));
        // Nobody reading standard error is no reason to fail.
        let _ = writeln!(std::io::stderr(), "warning: {}", harmless_lines(&text));
    }
}
