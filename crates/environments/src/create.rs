//! A new environment: named, checked out and started, or not at all.
//!
//! The worktree is checked out while the container starts, since both only need the folder to be there. Whatever fails, and when the
//! caller leaves, what was made so far is undone.

use std::path::Path;
use std::sync::Arc;

use cofer_model::Moment;
use futures_util::future::join_all;

use crate::config::EnvironmentConfig;
use crate::environment::{Environment, LOCK_PATIENCE};
use crate::error::{EnvError, ErrorKind, Result};
use crate::git::{LogEntry, Source, Worktree};
use crate::locks::{Hold, Lock};
use crate::state::{self, Home, Stage, State};
use crate::{Environments, id};

const NAMES_TRIED: usize = 32;

/// What is asked for.
#[derive(Clone, Debug, Default)]
pub struct Create {
    pub title: String,
    pub id: Option<String>,
    pub from_git_ref: Option<String>,
    pub image: Option<String>,
    pub allow_replace: bool,
}

impl Environments {
    /// The new environment, and what the person should know of it.
    pub async fn create(self: &Arc<Self>, path: &Path, wanted: Create) -> Result<(Environment, Vec<String>)> {
        if let Some(id) = &wanted.id {
            id::check(id)?;
        }
        let source = self.source(path).await?;
        let base = source.resolve(wanted.from_git_ref.as_deref().unwrap_or("HEAD")).await?;
        let ((config, mut warnings), identity) =
            tokio::try_join!(EnvironmentConfig::read(&source, &base), source.identity())?;
        let config = self.complete(config, wanted.image.as_deref())?;
        if let Some(id) = wanted.id.as_deref().filter(|_| wanted.allow_replace) {
            self.make_way(&source, id).await?;
        }
        let engine = self.engine().await?;
        let now = Moment::now();
        let state = State {
            id: String::new(),
            title: wanted.title,
            created_at: now,
            updated_at: now,
            stage: Stage::Making,
            base,
            identity,
            config,
            provider: engine.name,
            rootless: engine.rootless,
            container: None,
            run: 0,
            services: Vec::new(),
            backgrounds: Vec::new(),
        };
        let (mut environment, lock) = self.reserve(&source, wanted.id.as_deref(), state).await?;
        let mut unfinished = Unfinished::new(&environment);
        match environment.make().await {
            Ok(more) => {
                unfinished.is_finished = true;
                warnings.extend(more);
            }
            Err(error) => {
                drop(lock);
                unfinished.undo().await;
                return Err(error);
            }
        }
        drop(lock);
        let done = format!("Create environment {}: {}", environment.id(), environment.state.title);
        environment.keep(&done, &LogEntry::Note(&done)).await?;
        Ok((environment, warnings))
    }

    fn complete(&self, mut config: EnvironmentConfig, image: Option<&str>) -> Result<EnvironmentConfig> {
        if let Some(image) = image {
            if image.trim().is_empty() {
                return Err(EnvError::invalid(
                    "arguments",
                    "`image` is empty",
                    "name an image, or leave it out",
                ));
            }
            image.clone_into(&mut config.base_image);
        }
        if config.base_image.is_empty() {
            self.settings.image.clone_into(&mut config.base_image);
        }
        Ok(config)
    }

    async fn make_way(self: &Arc<Self>, source: &Source, id: &str) -> Result<()> {
        match self.known(source, id)? {
            Some(old) => old.destroy(true).await.map(drop),
            None => Ok(()),
        }
    }

    /// Takes a name and a place among those that may run at once.
    async fn reserve(
        self: &Arc<Self>,
        source: &Source,
        asked: Option<&str>,
        mut state: State,
    ) -> Result<(Environment, Lock)> {
        let _turn = Lock::take(&source.folder.join("lock"), Hold::Alone, LOCK_PATIENCE).await?;
        state.id = match asked {
            Some(id) => id.to_owned(),
            None => free_name(source).await?,
        };
        let (home, worktree) = (Home::of(source, &state.id), Worktree::of(source, &state.id));
        if asked.is_some() && (home.load()?.is_some() || worktree.has_branch().await?) {
            let message = format!("environment \"{}\" already exists", state.id);
            let advice =
                "it was left as it is. Choose another id, or send `allow_replace` to have it destroyed first";
            return Err(EnvError::new(ErrorKind::Conflict, "name", message, advice));
        }
        self.refuse_too_many(source).await?;
        home.make()?;
        let lock = home.lock(Hold::Alone, LOCK_PATIENCE).await?;
        home.save(&state)?;
        Ok((Environment { house: self.clone(), source: source.clone(), worktree, home, state }, lock))
    }

    /// One too many is refused at once, with the names of those that run.
    pub(crate) async fn refuse_too_many(self: &Arc<Self>, source: &Source) -> Result<()> {
        let max = self.settings.max_environments;
        let ids = state::ids(source)?;
        if ids.len() < max {
            return Ok(());
        }
        let all: Vec<Environment> =
            ids.iter().filter_map(|id| self.known(source, id).ok().flatten()).collect();
        let looks = join_all(all.iter().map(Environment::takes_a_place)).await;
        let running: Vec<&str> = all
            .iter()
            .zip(looks)
            .filter(|(_, takes)| *takes)
            .map(|(environment, _)| environment.id())
            .collect();
        if running.len() < max {
            return Ok(());
        }
        let message = format!("{max} environments of this repository run already: {}", running.join(", "));
        let advice = "destroy one that is done (`environment_destroy`), or raise COFER_MAX_ENVIRONMENTS";
        Err(EnvError::new(ErrorKind::LimitExceeded, "limit", message, advice))
    }
}

async fn free_name(source: &Source) -> Result<String> {
    for _ in 0..NAMES_TRIED {
        let name = id::generate();
        if Home::of(source, &name).load()?.is_none() && !Worktree::of(source, &name).has_branch().await? {
            return Ok(name);
        }
    }
    let advice = "destroy environments that are done, or choose an `environment_id`";
    Err(EnvError::new(ErrorKind::Conflict, "name", "no free name was found", advice))
}

impl Environment {
    /// Whether it runs, or is just being made.
    async fn takes_a_place(&self) -> bool {
        match self.state.stage {
            // Whoever makes it holds its lock.
            Stage::Making => self.home.lock(Hold::Shared, std::time::Duration::ZERO).await.is_err(),
            Stage::Ready => self.is_running().await,
            Stage::Destroying => false,
        }
    }

    async fn make(&mut self) -> Result<Vec<String>> {
        self.worktree.make_folder()?;
        let (worktree, source, base) = (self.worktree.clone(), self.source.clone(), self.state.base.clone());
        let checked_out = worktree.add(&base);
        let looked = source.warnings(&base);
        let (checked_out, started, looked) = tokio::join!(checked_out, self.start_container(), looked);
        checked_out?;
        started?;
        self.start_configured_services().await?;
        self.set_up().await?;
        self.state.stage = Stage::Ready;
        self.save()?;
        looked
    }
}

/// What was begun and must not stay if it is not finished; also when the caller leaves.
struct Unfinished {
    what: Option<Environment>,
    is_finished: bool,
}

impl Unfinished {
    fn new(environment: &Environment) -> Self {
        let what = Environment {
            house: environment.house.clone(),
            source: environment.source.clone(),
            worktree: environment.worktree.clone(),
            home: environment.home.clone(),
            state: environment.state.clone(),
        };
        Self { what: Some(what), is_finished: false }
    }

    async fn undo(&mut self) {
        if let Some(environment) = self.what.take() {
            undo(environment).await;
        }
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if let Some(environment) = self.what.take().filter(|_| !self.is_finished)
            && tokio::runtime::Handle::try_current().is_ok()
        {
            environment.house.clone().undoing.spawn(undo(environment));
        }
    }
}

async fn undo(environment: Environment) {
    let id = environment.state.id.clone();
    if let Err(error) = environment.destroy(true).await {
        tracing::warn!(environment = %id, "what was made of environment {id} could not be undone: {error}; `cofer env prune` removes it");
    }
}
