//! What an environment did, for somebody who only reads of it, perhaps from afar: nothing is written, no lock is waited for, nothing that
//! the repository configures is run, and no text is longer than it may be.

use std::path::PathBuf;
use std::time::Duration;

use cofer_model::Moment;
use cofer_sandbox::{SandboxId, SandboxState};
use serde::Serialize;

use crate::environment::Environment;
use crate::error::Result;
use crate::git::{Git, Said};
use crate::state::LastCommand;
use crate::{blocking, files};

/// How long an engine may take to say how a container is.
const LOOK_MAX: Duration = Duration::from_secs(5);
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

    pub async fn condition(&self) -> Condition {
        let Some(id) = self.state.container.clone() else { return Condition::Stopped };
        let provider = self.provider();
        match tokio::time::timeout(LOOK_MAX, provider.look(&SandboxId(id))).await {
            Ok(Ok(Some(seen))) if matches!(seen.state, SandboxState::Running { .. }) => Condition::Running,
            Ok(Ok(_)) => Condition::Stopped,
            Ok(Err(_)) | Err(_) => Condition::Unknown,
        }
    }

    /// What was run last, and when anything was last done.
    pub async fn latest(&self) -> (Option<LastCommand>, Moment) {
        let home = self.home.clone();
        let read = blocking(move || (home.last_command(), home.told_at())).await;
        let (last, told) = read.unwrap_or_default();
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
