//! Git worktrees that a repository has now and had not before.

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;

#[derive(Debug)]
pub(super) struct Worktrees {
    repository: PathBuf,
    before: BTreeSet<PathBuf>,
}

pub(super) struct Added {
    repository: PathBuf,
    path: PathBuf,
}

impl Worktrees {
    pub(super) fn of(repository: PathBuf) -> Self {
        let before = list(&repository);
        Self { repository, before }
    }

    pub(super) fn added(&self) -> Vec<Added> {
        // A repository that is gone took its worktrees' records along.
        if !self.repository.exists() {
            return Vec::new();
        }
        let now = list(&self.repository);
        let added = now.difference(&self.before);
        added.map(|path| Added { repository: self.repository.clone(), path: path.clone() }).collect()
    }
}

impl Added {
    pub(super) fn remove(&self) -> Result<&'static str, String> {
        // Twice `--force`: a locked worktree is a leak like any other.
        let path = self.path.to_string_lossy();
        git(&self.repository, &["worktree", "remove", "--force", "--force", &path])?;
        Ok("removed")
    }
}

impl fmt::Display for Added {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "worktree {} of {}", self.path.display(), self.repository.display())
    }
}

fn list(repository: &Path) -> BTreeSet<PathBuf> {
    let output =
        git(repository, &["worktree", "list", "--porcelain"]).unwrap_or_else(|error| panic!("{error}"));
    output.lines().filter_map(|line| line.strip_prefix("worktree ")).map(PathBuf::from).collect()
}

fn git(repository: &Path, arguments: &[&str]) -> Result<String, String> {
    let output = Command::new("git").arg("-C").arg(repository).args(arguments).output();
    let output = output.map_err(|error| format!("could not run git: {error}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("git {} in {}: {said}", arguments.join(" "), repository.display()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
