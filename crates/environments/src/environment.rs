//! One environment that is there: what can be asked of it, and how what was done in it is kept.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use cofer_model::Moment;
use futures_util::future::join_all;
use serde::Serialize;

use crate::error::{EnvError, ErrorKind, Result};
use crate::files::{Files, Lines};
use crate::git::{Commit, LogEntry, Source, Worktree};
use crate::locks::{Hold, Lock};
use crate::state::{self, Home, LastCommand, Stage, State};
use crate::{Environments, blocking, files, id};

/// How long one process waits for another that works on the same environment.
pub(crate) const LOCK_PATIENCE: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub struct Environment {
    pub(crate) house: Arc<Environments>,
    pub(crate) source: Source,
    pub(crate) worktree: Worktree,
    pub(crate) home: Home,
    pub state: State,
}

/// One line of a list.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    pub id: String,
    pub title: String,
    pub created_at: Moment,
    pub updated_at: Moment,
    pub running: bool,
    pub last_command: Option<LastCommand>,
    /// Commits since it was made.
    pub commits: usize,
    /// Paths that differ from the commit that it was made from.
    pub changed_files: usize,
}

impl Environments {
    /// The environment of this id.
    pub async fn open(self: &Arc<Self>, path: &Path, id: &str) -> Result<Environment> {
        id::check(id)?;
        let source = self.source(path).await?;
        let environment = self.known(&source, id)?.ok_or_else(|| EnvError::no_environment(id))?;
        match environment.state.stage {
            Stage::Ready => Ok(environment),
            Stage::Making => {
                let message = format!("environment \"{id}\" is still being made, or was never finished");
                let advice = "wait for whoever makes it; what a killed Cofer left is removed with `environment_destroy`";
                Err(EnvError::new(ErrorKind::Conflict, "find", message, advice))
            }
            Stage::Destroying => Err(EnvError::no_environment(id)),
        }
    }

    /// Whatever its stage.
    pub(crate) fn known(self: &Arc<Self>, source: &Source, id: &str) -> Result<Option<Environment>> {
        let home = Home::of(source, id);
        let Some(state) = home.load()? else { return Ok(None) };
        let worktree = Worktree::of(source, id);
        Ok(Some(Environment { house: self.clone(), source: source.clone(), worktree, home, state }))
    }

    /// All environments of a repository, in order of their ids.
    pub async fn list(self: &Arc<Self>, path: &Path) -> Result<Vec<Environment>> {
        let source = self.source(path).await?;
        self.ready(&source).await
    }

    pub(crate) async fn ready(self: &Arc<Self>, source: &Source) -> Result<Vec<Environment>> {
        let (house, source) = (self.clone(), source.clone());
        let mut all = blocking(move || house.known_all(&source)).await??;
        all.retain(|environment| environment.state.stage == Stage::Ready);
        Ok(all)
    }

    fn known_all(self: &Arc<Self>, source: &Source) -> Result<Vec<Environment>> {
        let mut all = Vec::new();
        for id in state::ids(source)? {
            match self.known(source, &id) {
                Ok(environment) => all.extend(environment),
                // One that is damaged does not hide the others; `prune` finds it.
                Err(error) if self.is_first_warning(&Home::of(source, &id).folder) => {
                    tracing::warn!(environment = %id, "environment {id} is left out of the list: {error}");
                }
                Err(_) => {}
            }
        }
        Ok(all)
    }

    /// The same, with what people want to see of each.
    pub async fn summaries(self: &Arc<Self>, path: &Path) -> Result<Vec<Summary>> {
        let all = self.list(path).await?;
        join_all(all.iter().map(Environment::summary)).await.into_iter().collect()
    }
}

impl Environment {
    pub fn id(&self) -> &str {
        &self.state.id
    }

    pub fn path(&self) -> &Path {
        &self.worktree.path
    }

    pub(crate) async fn lock(&self) -> Result<Lock> {
        self.home.lock(Hold::Alone, LOCK_PATIENCE).await
    }

    /// Takes the lock, and over what others wrote meanwhile.
    pub(crate) async fn lock_and_refresh(&mut self) -> Result<Lock> {
        let lock = self.lock().await?;
        let state = self.home.load()?.filter(|state| state.stage == Stage::Ready);
        self.state = state.ok_or_else(|| EnvError::no_environment(&self.state.id))?;
        Ok(lock)
    }

    pub(crate) fn save(&mut self) -> Result<()> {
        self.state.updated_at = Moment::now();
        self.home.save(&self.state)
    }

    /// What people want to see of it.
    pub async fn summary(&self) -> Result<Summary> {
        let range = format!("{}..{}", self.state.base, self.worktree.tracking_ref());
        let git = self.source.git();
        let (count, changed, running) = tokio::join!(
            git.line("list", ["rev-list", "--count", &range]),
            git.run("list", ["diff", "--name-only", "-z", "--no-ext-diff", "--no-textconv", &range, "--"]),
            self.is_running(),
        );
        let changed = changed?;
        Ok(Summary {
            id: self.state.id.clone(),
            title: self.state.title.clone(),
            created_at: self.state.created_at,
            updated_at: self.state.updated_at,
            running,
            last_command: self.last_command(),
            commits: count?.parse().unwrap_or(0),
            changed_files: changed.split(|byte| *byte == 0).filter(|path| !path.is_empty()).count(),
        })
    }

    /// What was run last. Kept apart, so that running something changes nothing else.
    pub fn last_command(&self) -> Option<LastCommand> {
        self.home.last_command()
    }

    pub(crate) fn note_last_command(&self, last: &LastCommand) {
        // For people only: a command is not failed for it.
        if let Ok(bytes) = serde_json::to_vec(last) {
            let _ = files::replace(&self.home.folder.join(state::LAST_COMMAND), &bytes);
        }
    }

    /// Commits whatever differs, and keeps what was done. What cannot be committed now is committed with the next change.
    pub(crate) async fn keep(&self, explanation: &str, entry: &LogEntry<'_>) -> Result<Commit> {
        self.own_files().await?;
        let _lock = self.lock().await?;
        crate::git::remember(&self.home.log(), entry)
            .map_err(|error| EnvError::io("log", "the log", &error))?;
        let (name, email) = &self.state.identity;
        let commit = self.worktree.commit(explanation, (name, email)).await?;
        if commit.name.is_some() {
            self.worktree.write_notes(&self.home.log()).await?;
        }
        Ok(commit)
    }

    pub async fn update_title(&mut self, title: &str) -> Result<()> {
        let _lock = self.lock_and_refresh().await?;
        title.clone_into(&mut self.state.title);
        self.save()
    }

    pub fn file_read(&self, path: &str, lines: Lines) -> Result<String> {
        Files::of(&self.worktree.path)?.read(path, lines)
    }

    pub fn file_list(&self, path: &str) -> Result<Vec<String>> {
        Files::of(&self.worktree.path)?.list(path)
    }

    pub async fn file_write(&self, path: &str, contents: &str, explanation: &str) -> Result<Commit> {
        Files::of(&self.worktree.path)?.write(path, contents.as_bytes())?;
        self.keep_file_change("Write", path, explanation).await
    }

    pub async fn file_edit(
        &self,
        path: &str,
        (search, replace): (&str, &str),
        which: Option<&str>,
        explanation: &str,
    ) -> Result<Commit> {
        Files::of(&self.worktree.path)?.edit(path, search, replace, which)?;
        self.keep_file_change("Edit", path, explanation).await
    }

    pub async fn file_delete(&self, path: &str, explanation: &str) -> Result<Commit> {
        Files::of(&self.worktree.path)?.delete(path)?;
        self.keep_file_change("Delete", path, explanation).await
    }

    async fn keep_file_change(&self, verb: &str, path: &str, explanation: &str) -> Result<Commit> {
        let done = format!("{verb} {path}");
        let explanation = if explanation.trim().is_empty() { &done } else { explanation };
        self.keep(explanation, &LogEntry::Note(&done)).await
    }

    /// Its commits with what was done, newest first.
    pub async fn log(&self, patch: bool) -> Result<String> {
        {
            let _lock = self.lock().await?;
            self.worktree.write_notes(&self.home.log()).await?;
        }
        let log = self.worktree.log(&self.state.base, patch).await?;
        let first = self.worktree.notes_at(&self.state.base).await?;
        let parts = [log, first].into_iter().filter(|part| !part.is_empty());
        Ok(parts.collect::<Vec<_>>().join("\n\n"))
    }

    pub async fn diff(&self) -> Result<String> {
        self.worktree.diff(&self.state.base).await
    }

    /// When anything was last done in it.
    pub fn touched_at(&self) -> Moment {
        let last = self.last_command().map(|last| last.at);
        last.map_or(self.state.updated_at, |at| at.max(self.state.updated_at))
    }

    pub fn tracking_ref(&self) -> String {
        self.worktree.tracking_ref()
    }

    pub fn source(&self) -> &Source {
        &self.source
    }
}
