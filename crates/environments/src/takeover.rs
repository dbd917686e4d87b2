//! For the person whose repository it is: which environment they mean, and how its work becomes theirs.

use std::path::Path;
use std::sync::Arc;

use crate::Environments;
use crate::environment::Environment;
use crate::error::{EnvError, ErrorKind, Result};
use crate::git::Takeover;

const CANDIDATES_TOLD: usize = 20;

impl Environments {
    /// The environment of this id; without one, the only one that goes on from what is checked out.
    pub async fn open_or_only(self: &Arc<Self>, path: &Path, id: Option<&str>) -> Result<Environment> {
        if let Some(id) = id {
            return self.open(path, id).await;
        }
        let source = self.source(path).await?;
        let asked = ["for-each-ref", "--contains=HEAD", "--format=%(refname)", "refs/remotes/cofer/"];
        let answer = source.git().run("find", asked).await?;
        let answer = String::from_utf8_lossy(&answer).into_owned();
        let descends =
            |environment: &Environment| answer.lines().any(|line| line == environment.tracking_ref());
        let mut all = self.list(path).await?;
        all.retain(descends);
        match (all.len(), all.pop()) {
            (1, Some(only)) => Ok(only),
            (_, None) => {
                let advice = "name one: `cofer env list` shows those there are";
                Err(EnvError::new(
                    ErrorKind::NotFound,
                    "find",
                    "no environment goes on from what is checked out",
                    advice,
                ))
            }
            (_, Some(last)) => {
                all.push(last);
                let told = all.iter().take(CANDIDATES_TOLD);
                let told: Vec<String> =
                    told.map(|one| format!("  {}  {}", one.id(), one.state.title)).collect();
                let message = format!(
                    "{} environments go on from what is checked out:\n{}",
                    all.len(),
                    told.join("\n")
                );
                Err(EnvError::invalid("find", message, "name one of them"))
            }
        }
    }
}

impl Environment {
    /// Checks it out in the user's repository, by default as `cofer-<id>`.
    pub async fn check_out(&self, branch: Option<&str>) -> Result<Takeover> {
        let warnings = self.commit_rest().await;
        let default = format!("cofer-{}", self.id());
        let taken = self.worktree.check_out(branch.unwrap_or(&default)).await?;
        Ok(Takeover { warnings, ..taken })
    }

    /// Merges it into what the user has checked out.
    pub async fn merge(&self) -> Result<Takeover> {
        let warnings = self.commit_rest().await;
        let taken = self.worktree.merge_into_source(self.id()).await?;
        Ok(Takeover { warnings, ..taken })
    }

    /// Puts its changes into what the user has checked out, uncommitted.
    pub async fn apply(&self) -> Result<Takeover> {
        let warnings = self.commit_rest().await;
        let taken = self.worktree.apply_to_source(self.id()).await?;
        Ok(Takeover { warnings, ..taken })
    }

    /// All that it changed, as bytes that `git apply` takes.
    pub async fn patch(&self) -> Result<Vec<u8>> {
        self.worktree.patch(&self.state.base).await
    }

    /// What background commands changed since the last commit belongs to the work as well. What cannot be committed is told.
    async fn commit_rest(&self) -> Vec<String> {
        let committed = async {
            if self.is_running().await {
                self.own_files().await?;
            }
            let _lock = self.lock().await?;
            let (name, email) = &self.state.identity;
            self.worktree.commit("Changes in the environment", (name, email)).await
        };
        match committed.await {
            Ok(commit) => commit.warnings,
            Err(error) => vec![format!("what was changed since the last commit is not in it: {error}")],
        }
    }
}
