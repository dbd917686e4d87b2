//! Where does coding happen?
//!
//! An environment is a git worktree and a container that has it mounted: what a command writes is on the machine at once, and nothing is
//! copied. Its files become commits on a branch of its own, which the user's repository knows as `cofer/<id>`.
//!
//! ```text
//!   tools ─► Environments ─┬─ create ─┐
//!                          └─ open ───┴─► Environment ─┬─ run, background, services ──► container (sandbox room)
//!                                                      ├─ files, commit, log, diff ───► worktree (git)
//!                                                      └─ destroy: all of it
//! ```
//!
//! Environments outlive the process. What is known of one is in files beside its worktree ([`state`]), so that any number of Cofer processes can work
//! on one repository. Whatever lies in a worktree was written by somebody we do not trust: git is told where its directory is, and
//! files are reached in ways that cannot leave the worktree.

mod background;
mod config;
mod config_file;
mod container;
mod create;
mod destroy;
mod environment;
mod error;
mod files;
pub mod git;
mod id;
mod locks;
mod prune;
mod reading;
mod register;
mod run;
mod secrets;
mod services;
mod settings;
mod state;
mod survey;
mod tail;
mod takeover;
mod terminal;
pub mod tools;
mod watch;

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use cofer_model::ProviderName;
use cofer_sandbox::Providers;
use tokio::sync::{OnceCell, Semaphore};
use tokio_util::task::TaskTracker;

pub use background::BackgroundReport;
pub use cofer_sandbox::{CommandInput, RunningCommand, Said, TerminalSize};
pub use config::{EnvironmentConfig, ServiceConfig};
pub use config_file::ConfigFile;
pub use create::Create;
pub use destroy::{Destroyed, HowEnded, Stopped};
pub use environment::{Environment, Summary};
pub use error::{EnvError, ErrorKind, Result};
pub use prune::Orphan;
pub use reading::{Condition, Excerpt, Looks};
pub use register::Register;
pub use run::{Listener, Ran, RunRequest, Silent, Stream};
pub use secrets::{NoVault, Vault};
pub use settings::Settings;
pub use state::{Background, LastCommand, PortEndpoint, Service, State, instance};
pub use watch::{News, Watch};

use crate::git::Source;

/// Tried in this order when nobody asks for one.
const ENGINES: [ProviderName; 2] = [ProviderName::Podman, ProviderName::Docker];

/// How many may read of environments at once, each with a git of their own.
const READERS_MAX: usize = 8;
const WARNINGS_MAX: usize = 1000;

/// All environments that this process works on, of whichever repositories.
#[derive(Debug)]
pub struct Environments {
    settings: Settings,
    providers: Providers,
    vault: Arc<dyn Vault>,
    engine: OnceCell<Engine>,
    /// Whose turn it is to read.
    readers: Arc<Semaphore>,
    /// What is undone behind the backs of callers who left.
    undoing: TaskTracker,
    /// Repositories that were opened.
    sources: Mutex<HashMap<PathBuf, Opened>>,
    /// Repositories that were looked at: who finds out whether its disk answers is alone with it.
    lanes: Mutex<HashMap<PathBuf, Lane>>,
    /// What was warned of: folders of environments, and repositories.
    warned_of: Mutex<HashSet<PathBuf>>,
}

type Lane = Arc<tokio::sync::Mutex<()>>;

/// A repository that was opened.
#[derive(Clone, Debug)]
struct Opened {
    source: Source,
    /// How its configuration stood then.
    stamp: Option<SystemTime>,
    is_noted: bool,
}

/// The engine that was found.
#[derive(Clone, Copy, Debug)]
struct Engine {
    name: ProviderName,
    rootless: bool,
}

impl Environments {
    pub fn new(settings: Settings, providers: Providers, vault: Arc<dyn Vault>) -> Arc<Self> {
        Arc::new(Self {
            settings,
            providers,
            vault,
            engine: OnceCell::new(),
            readers: Arc::new(Semaphore::new(READERS_MAX)),
            undoing: TaskTracker::new(),
            sources: Mutex::default(),
            lanes: Mutex::default(),
            warned_of: Mutex::default(),
        })
    }

    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Comes back when what was begun and not wanted any more is undone, or takes too long for it.
    pub async fn settled(&self, patience: Duration) {
        self.undoing.close();
        if tokio::time::timeout(patience, self.undoing.wait()).await.is_err() {
            tracing::warn!("something is not undone yet; `cofer env prune` removes it");
        }
        self.undoing.reopen();
    }

    /// The engine for new environments.
    async fn engine(&self) -> Result<Engine> {
        self.engine.get_or_try_init(|| self.pick()).await.copied()
    }

    async fn pick(&self) -> Result<Engine> {
        let mut reasons = Vec::new();
        let asked: Vec<ProviderName> =
            self.settings.provider.map_or_else(|| ENGINES.to_vec(), |name| vec![name]);
        for name in asked {
            match self.providers.get(name).examine().await {
                Ok(about) => return Ok(Engine { name, rootless: about.rootless }),
                Err(error) => reasons.push(error.to_string()),
            }
        }
        let advice = "start Podman (`systemctl --user start podman.socket`) or Docker; `cofer doctor` shows what is there";
        Err(EnvError::new(ErrorKind::PreconditionFailed, "engine", reasons.join("; "), advice))
    }

    /// The repository at this path, if environments may be made from it. It is used, and so it is noted.
    pub async fn source(&self, path: &Path) -> Result<Source> {
        let Opened { source, is_noted, .. } = self.opened(path).await?;
        if let Some(register) = self.settings.register.clone().filter(|_| !is_noted) {
            register.note(&source).await;
            let mut sources = self.sources.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(opened) = sources.get_mut(path) {
                opened.is_noted = true;
            }
        }
        Ok(source)
    }

    /// The same for who only looks: nothing is written.
    async fn opened(&self, path: &Path) -> Result<Opened> {
        let known = {
            let sources = self.sources.lock().unwrap_or_else(PoisonError::into_inner);
            sources.get(path).cloned()
        };
        if let Some(known) = known
            && let Some(known) = blocking(move || known.if_current()).await?
        {
            return Ok(known);
        }
        self.allow(path).await?;
        let source = Source::open(path, self.settings.timeout_git).await?;
        let opened = blocking(move || Opened::now(source)).await?;
        let mut sources = self.sources.lock().unwrap_or_else(PoisonError::into_inner);
        sources.insert(path.to_owned(), opened.clone());
        Ok(opened)
    }

    /// Whether this is worth a warning: it is the first of this process about that. Lists are asked for every few seconds.
    fn is_first_warning(&self, about: &Path) -> bool {
        let mut warned_of = self.warned_of.lock().unwrap_or_else(PoisonError::into_inner);
        warned_of.len() < WARNINGS_MAX && warned_of.insert(about.to_owned())
    }

    async fn allow(&self, path: &Path) -> Result<()> {
        let Some(allowed) = self.settings.sources.clone() else { return Ok(()) };
        let asked = path.to_owned();
        let is_allowed = blocking(move || {
            let real = asked.canonicalize().unwrap_or(asked);
            allowed.iter().any(|root| root.canonicalize().is_ok_and(|root| real.starts_with(root)))
        });
        if is_allowed.await? {
            return Ok(());
        }
        let message = format!("{} is not among the directories that may be a source here", path.display());
        Err(EnvError::invalid("find", message, "ask the operator to add it to `environment_sources`"))
    }
}

/// What waits for the disk is done where nobody else waits.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| EnvError::io("files", "a task ended badly", &std::io::Error::other(error)))
}

impl Opened {
    fn now(source: Source) -> Self {
        Self { stamp: configured_at(&source), source, is_noted: false }
    }

    /// Itself, if the repository is still as it was.
    fn if_current(self) -> Option<Self> {
        let is_current =
            self.stamp == configured_at(&self.source) && self.source.bare().join("HEAD").is_file();
        is_current.then_some(self)
    }
}

/// When anybody last changed the repository's remotes, among others.
fn configured_at(source: &Source) -> Option<SystemTime> {
    std::fs::metadata(source.common.join("config")).and_then(|about| about.modified()).ok()
}
