//! The environments of all repositories that are known here, for whoever looks without standing in one of them.
//!
//! Known is what the register names, and what the operator named. What cannot be read, and what cannot be read in time, is left out and told
//! to the log: one repository on a disk that is gone must not hide the others.
//!
//! ```text
//!   register ─► repositories, four at once ─┬─ does its disk answer? one asks, others wait ─► open ─► its environments
//!               each by its own deadline    └─ no: left out
//! ```

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use futures_util::stream::{self, StreamExt as _};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, timeout_at};

use crate::environment::Environment;
use crate::error::{EnvError, ErrorKind, Result};
use crate::git::Source;
use crate::{Environments, Lane, blocking};

/// Repositories that are read at once.
const READ_AT_ONCE: usize = 4;
/// How long one of them may take.
const REPOSITORY_MAX: Duration = Duration::from_secs(5);
const ENVIRONMENTS_MAX: usize = 1000;

impl Environments {
    /// All that are ready: of the repositories in the register, and of these.
    pub async fn survey(self: &Arc<Self>, more: &[PathBuf]) -> Result<Vec<Environment>> {
        let turn = self.turn_to_read().await?;
        let limit = self.settings.timeout_git;
        let until = Instant::now() + limit;
        let register = self.settings.register.clone();
        // Who hangs on a disk that is gone keeps the turn, also when nobody waits any more: so only so many can.
        let look = move || (register.map(|register| register.repositories()), turn);
        let late = |_| EnvError::timeout("list", "looking for the repositories", limit, "try again");
        let (noted, _turn) = timeout_at(until, blocking(look)).await.map_err(late)??;
        let paths: Vec<PathBuf> = noted.unwrap_or_default().into_iter().chain(more.iter().cloned()).collect();
        Ok(self.found_in(paths, until).await)
    }

    /// The one of this id, in whichever repository; in this one, if it is named.
    pub async fn find(
        self: &Arc<Self>,
        more: &[PathBuf],
        id: &str,
        repository: Option<&str>,
    ) -> Result<Environment> {
        let mut all = self.survey(more).await?;
        all.retain(|one| one.id() == id && repository.is_none_or(|path| one.repository() == path));
        match (all.pop(), all.is_empty()) {
            (None, _) => {
                let message = format!("no environment `{}` is known here", id.escape_debug());
                let advice = "GET /api/v1/environments lists those there are";
                Err(EnvError::new(ErrorKind::NotFound, "find", message, advice))
            }
            (Some(only), true) => Ok(only),
            (Some(last), false) => {
                let named: Vec<String> = all.iter().chain([&last]).map(Environment::repository).collect();
                let message =
                    format!("several repositories have an environment `{id}`: {}", named.join(", "));
                Err(EnvError::new(ErrorKind::Conflict, "find", message, "name one by `repository`"))
            }
        }
    }

    /// Only so many read at once; the others wait for as long as git may take.
    pub(crate) async fn turn_to_read(&self) -> Result<OwnedSemaphorePermit> {
        let waiting = self.readers.clone().acquire_owned();
        let turn = tokio::time::timeout(self.settings.timeout_git, waiting).await;
        turn.ok().and_then(std::result::Result::ok).ok_or_else(|| {
            let message = "others are reading so much of the environments that no turn came up";
            EnvError::new(ErrorKind::LimitExceeded, "list", message, "try again shortly")
        })
    }

    /// Those of the repositories that could be read by then.
    async fn found_in(self: &Arc<Self>, paths: Vec<PathBuf>, until: Instant) -> Vec<Environment> {
        let read = stream::iter(paths).map(async |path| {
            let began = Instant::now();
            let read = timeout_at(until.min(began + REPOSITORY_MAX), self.of_repository(&path)).await;
            let advice = "see whether its disk answers";
            let late = |_| EnvError::timeout("list", "reading it", began.elapsed(), advice);
            (read.map_err(late).flatten(), path)
        });
        let read: Vec<_> = read.buffered(READ_AT_ONCE).collect().await;
        let (mut seen, mut found) = (BTreeSet::new(), Vec::new());
        for (outcome, path) in read {
            match outcome {
                // Two working trees of one repository share their environments.
                Ok((source, all)) if seen.insert(source.folder.clone()) => found.extend(all),
                Ok(_) => {}
                Err(error) if error.kind == ErrorKind::Timeout && self.is_first_warning(&path) => {
                    tracing::warn!("environments of {} are not listed: {error}", path.display());
                }
                Err(error) => {
                    tracing::debug!("environments of {} are not listed: {error}", path.display());
                }
            }
        }
        found.truncate(ENVIRONMENTS_MAX);
        found
    }

    async fn of_repository(self: &Arc<Self>, path: &Path) -> Result<(Source, Vec<Environment>)> {
        self.until_its_disk_answers(path).await?;
        let source = self.opened(path).await?.source;
        let all = self.ready(&source).await?;
        Ok((source, all))
    }

    /// Who hangs on a disk that is gone keeps the lane, also when nobody waits any more: so one thread does, and not one for each look.
    async fn until_its_disk_answers(&self, path: &Path) -> Result<()> {
        let lane = self.lane(path).lock_owned().await;
        let path = path.to_owned();
        blocking(move || {
            let answer = std::fs::metadata(&path);
            drop((answer, lane));
        })
        .await
    }

    fn lane(&self, path: &Path) -> Lane {
        let mut lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        lanes.entry(path.to_owned()).or_default().clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{NoVault, READERS_MAX, Settings};
    use cofer_sandbox::{EngineSettings, Providers};
    use std::time::Duration;

    const SOON: Duration = Duration::from_millis(50);

    fn house() -> Arc<Environments> {
        let settings = Settings { timeout_git: SOON, ..Settings::default() };
        let providers = Providers::new(&EngineSettings::default(), &(Arc::new(|_: &str| None) as _));
        Environments::new(settings, providers, Arc::new(NoVault))
    }

    #[tokio::test]
    async fn who_gets_no_turn_to_read_in_time_is_told_so() {
        let house = house();
        let mut turns = Vec::new();
        for _ in 0..READERS_MAX {
            turns.push(house.turn_to_read().await.unwrap());
        }
        assert_eq!(house.survey(&[]).await.unwrap_err().kind, ErrorKind::LimitExceeded);
        turns.pop();
        assert!(house.turn_to_read().await.is_ok());
    }

    #[tokio::test]
    async fn a_disk_that_does_not_answer_is_asked_by_one_alone() {
        let (house, folder) = (house(), tempfile::tempdir().unwrap());
        let hanging = house.lane(folder.path()).lock_owned().await;
        let another = tokio::time::timeout(SOON, house.until_its_disk_answers(folder.path()));
        assert!(another.await.is_err());
        assert!(house.until_its_disk_answers(Path::new("/")).await.is_ok(), "other disks answer");
        drop(hanging);
        assert!(house.until_its_disk_answers(folder.path()).await.is_ok());
    }
}
