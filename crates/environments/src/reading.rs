//! What an environment did, for somebody who only reads of it, perhaps from afar: nothing is written, no lock is waited for, nothing that
//! the repository configures is run, and no text is longer than it may be.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Duration;

use cofer_model::{Moment, ProviderName};
use cofer_sandbox::{SandboxId, SandboxState};
use serde::Serialize;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};

use crate::environment::Environment;
use crate::error::Result;
use crate::git::{Git, Said};
use crate::state::LastCommand;
use crate::{blocking, files};

/// How long engines and disks may take to say how things are, however many are asked after.
const LOOKS_MAX: Duration = Duration::from_secs(5);
/// Containers that one engine is asked after at once, and environments whose files are read at once.
const LOOKS_AT_ONCE: usize = 8;
/// More than what is ever kept of what is no note yet.
const PENDING_BYTES_MAX: u64 = 1 << 20;

/// How an environment's container is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Condition {
    Running,
    Stopped,
    /// Its engine does not say.
    Unknown,
}

/// Looks at any number of environments, for one who waits for all of them: so many at once, and all by one deadline. Engines do not wait for
/// each other.
#[derive(Debug)]
pub struct Looks {
    until: Instant,
    disk: Semaphore,
    engines: HashMap<ProviderName, Semaphore>,
}

impl Looks {
    /// The deadline begins now.
    pub fn begin() -> Self {
        let turns = || Semaphore::new(LOOKS_AT_ONCE);
        let engines = ProviderName::ALL.iter().map(|name| (*name, turns())).collect();
        Self { until: Instant::now() + LOOKS_MAX, disk: turns(), engines }
    }

    /// `None` if it took too long.
    async fn within<T>(&self, turns: &Semaphore, look: impl Future<Output = T>) -> Option<T> {
        let look = async {
            let _turn = turns.acquire().await.ok()?;
            Some(look.await)
        };
        timeout_at(self.until, look).await.ok()?
    }
}

/// The beginning of a text, up to the end of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Excerpt {
    pub text: String,
    pub bytes_left_out: u64,
}

impl Excerpt {
    /// So much of what begins with these bytes and goes on for so many more.
    fn of(bytes: &[u8], more: u64, bytes_max: usize) -> Self {
        let mut kept = &bytes[..bytes.len().min(bytes_max)];
        if more > 0 || kept.len() < bytes.len() {
            let whole_lines = kept.iter().rposition(|byte| *byte == b'\n').map_or(kept.len(), |at| at + 1);
            kept = &kept[..whole_lines];
        }
        let bytes_left_out = (bytes.len() - kept.len()) as u64 + more;
        Self { text: String::from_utf8_lossy(kept).into_owned(), bytes_left_out }
    }
}

impl Environment {
    /// The repository that it was made from, as people write it; by one path, whichever of its worktrees it was found by.
    pub fn repository(&self) -> String {
        self.source.home().display().to_string()
    }

    pub async fn condition(&self, looks: &Looks) -> Condition {
        let Some(id) = self.state.container.clone() else { return Condition::Stopped };
        let (provider, turns) = (self.provider(), &looks.engines[&self.state.provider]);
        match looks.within(turns, provider.look(&SandboxId(id))).await {
            Some(Ok(Some(seen))) if matches!(seen.state, SandboxState::Running { .. }) => Condition::Running,
            Some(Ok(_)) => Condition::Stopped,
            Some(Err(_)) | None => Condition::Unknown,
        }
    }

    /// What was run last, and when anything was last done.
    pub async fn latest(&self, looks: &Looks) -> (Option<LastCommand>, Moment) {
        let home = self.home.clone();
        let read = looks.within(&looks.disk, blocking(move || (home.last_command(), home.told_at()))).await;
        let (last, told) = read.and_then(Result::ok).unwrap_or_default();
        (last, told.map_or(self.state.updated_at, |told| told.max(self.state.updated_at)))
    }

    /// What it changed since it was made.
    pub async fn diff_excerpt(&self, bytes_max: usize) -> Result<Excerpt> {
        let _turn = self.house.turn_to_read().await?;
        let (git, asked) = (self.git_to_read(bytes_max), self.worktree.to_ask_for_diff(&self.state.base));
        let Said { stdout, left_out, .. } = git.accepted("diff", asked, b"").await?;
        Ok(Excerpt::of(&stdout, left_out, bytes_max))
    }

    /// What was done in it, newest first.
    pub async fn log_excerpt(&self, bytes_max: usize) -> Result<Excerpt> {
        let _turn = self.house.turn_to_read().await?;
        let mut text = self.pending().await?;
        let (git, asked) =
            (self.git_to_read(bytes_max), self.worktree.to_ask_for_log(&self.state.base, false));
        let Said { stdout, left_out, .. } = git.accepted("log", asked, b"").await?;
        text.extend(stdout);
        if left_out > 0 {
            return Ok(Excerpt::of(&text, left_out, bytes_max));
        }
        // What was done before anything was committed stands at the commit that it was made from.
        let first = git.ask("log", self.worktree.to_ask_for_notes_at(&self.state.base), b"").await?;
        if first.code != Some(0) {
            return Ok(Excerpt::of(&text, 0, bytes_max));
        }
        text.push(b'\n');
        text.extend(first.stdout);
        Ok(Excerpt::of(&text, first.left_out, bytes_max))
    }

    /// What is no note yet: it becomes one with the next commit.
    async fn pending(&self) -> Result<Vec<u8>> {
        let file: PathBuf = self.home.log();
        blocking(move || files::read_own(&file, PENDING_BYTES_MAX).unwrap_or_default()).await
    }

    fn git_to_read(&self, bytes_max: usize) -> Git {
        self.source.git().clone().only_reading(bytes_max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_excerpt_ends_with_a_line_and_tells_what_it_leaves_out() {
        let of = |bytes: &[u8], more, bytes_max| {
            let Excerpt { text, bytes_left_out } = Excerpt::of(bytes, more, bytes_max);
            (text, bytes_left_out)
        };
        assert_eq!(of(b"one\ntwo", 0, 100), ("one\ntwo".to_owned(), 0));
        assert_eq!(of(b"one\ntwo\nthree\n", 0, 9), ("one\ntwo\n".to_owned(), 6));
        assert_eq!(of(b"one\ntwo\nth", 90, 10), ("one\ntwo\n".to_owned(), 92));
        assert_eq!(of(b"endless", 3, 4), ("endl".to_owned(), 6));
        assert_eq!(of(b"", 0, 4), (String::new(), 0));
    }
}
