//! The end of an environment, with nothing left: containers, network, worktree, branch, notes, and what we knew of it.
//!
//! Each step may be repeated, and what we know of it goes last, so that an end that failed half-way can be taken up again.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use cofer_sandbox::{Provider, SandboxError, SandboxId, SandboxState, Sighting};
use serde::Serialize;

use crate::Environments;
use crate::environment::Environment;
use crate::error::{EnvError, Result};
use crate::files::WORKDIR;
use crate::state::{self, Stage};

/// Longer than the helper inside gives those whom it ends.
const GRACE: Duration = Duration::from_secs(4);
/// What an engine reports of one that was ended by SIGKILL.
const KILLED: i64 = 137;
const SIGKILL: i64 = 9;

/// What was there and is gone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Destroyed {
    pub environment_id: String,
    pub removed_paths: Vec<PathBuf>,
    pub stopped_containers: Vec<Stopped>,
    pub warnings: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Stopped {
    pub id: String,
    pub ended: HowEnded,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum HowEnded {
    /// By itself, before.
    Exited,
    /// Because it was told to.
    Terminated,
    /// Because it did not end when it was told to.
    Killed,
}

impl Environments {
    /// Ends and removes an environment of whichever stage, and nothing else if there is none.
    pub async fn destroy(self: &Arc<Self>, path: &Path, id: &str, force: bool) -> Result<Destroyed> {
        crate::id::check(id)?;
        let source = self.source(path).await?;
        let environment = self.known(&source, id)?.ok_or_else(|| EnvError::no_environment(id))?;
        environment.destroy(force).await
    }
}

impl Environment {
    /// Ends and removes all of it. With `force`, what cannot be removed at first is tried again by other means.
    pub async fn destroy(mut self, force: bool) -> Result<Destroyed> {
        let _lock = self.lock().await?;
        // Another one may have been quicker.
        self.state = self.home.load()?.ok_or_else(|| EnvError::no_environment(&self.state.id))?;
        self.state.stage = Stage::Destroying;
        self.save()?;
        let mut destroyed = Destroyed { environment_id: self.state.id.clone(), ..Destroyed::default() };
        self.empty_worktree(&mut destroyed.warnings).await;
        destroyed.stopped_containers = self.end_containers().await?;
        let (removed, warnings) = self.worktree.remove(force).await?;
        destroyed.removed_paths.extend(removed);
        destroyed.warnings.extend(warnings);
        state::remove_folder(&self.home.folder)?;
        destroyed.removed_paths.push(self.home.folder.clone());
        Ok(destroyed)
    }

    /// What the container's root made, another user of the machine may not be able to remove: the helper inside can.
    async fn empty_worktree(&self, warnings: &mut Vec<String>) {
        if self.makes_own_files() || !self.is_running().await {
            return;
        }
        if let Some(workshop) = self.workshop()
            && let Err(error) = workshop.wipe(WORKDIR).await
        {
            warnings.push(format!("the container could not remove its files: {error}"));
        }
    }

    async fn end_containers(&self) -> Result<Vec<Stopped>> {
        let failed = |error: SandboxError| EnvError::engine("containers", &error);
        let provider = self.provider();
        let all = provider.list(&state::instance(&self.source)).await.map_err(failed)?;
        let ours = all.into_iter().filter(|seen| seen.owner.name == self.state.id);
        let ends = ours.map(|seen| end(&*provider, seen));
        let stopped: Vec<Stopped> = futures_util::future::try_join_all(ends).await.map_err(failed)?;
        provider.remove_network(&self.network_name()).await.map_err(failed)?;
        Ok(stopped)
    }
}

/// Stops and removes one, and tells how it ended.
pub(crate) async fn end(provider: &dyn Provider, seen: Sighting) -> std::result::Result<Stopped, SandboxError> {
    let id = seen.id;
    let ended = if matches!(seen.state, SandboxState::Running { .. }) {
        provider.stop(&id, GRACE).await?;
        how_ended(provider, &id).await?
    } else {
        HowEnded::Exited
    };
    provider.destroy(&id).await?;
    Ok(Stopped { id: id.0, ended })
}

async fn how_ended(provider: &dyn Provider, id: &SandboxId) -> std::result::Result<HowEnded, SandboxError> {
    let seen = provider.look(id).await?;
    let was_killed = matches!(seen.map(|seen| seen.state), Some(SandboxState::Ended(exit))
        if exit.code == Some(KILLED) || exit.signal == Some(SIGKILL));
    Ok(if was_killed { HowEnded::Killed } else { HowEnded::Terminated })
}
