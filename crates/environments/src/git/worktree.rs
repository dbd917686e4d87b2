//! An environment's branch and files: made, committed, removed.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::run::Git;
use super::source::Source;
use crate::error::{EnvError, ErrorKind, Result};
use crate::locks::{Hold, Lock};

const LOCK_LOOK: Duration = Duration::from_millis(20);
/// How many folders with a repository of their own are left out, one after another, before a commit is given up.
const FOREIGN_MAX: usize = 32;

/// The worktree of one environment.
#[derive(Clone, Debug)]
pub struct Worktree {
    pub path: PathBuf,
    id: String,
    source: Source,
}

/// What became of a commit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Commit {
    /// Its name, if there was anything to commit.
    pub name: Option<String>,
    pub warnings: Vec<String>,
}

impl Worktree {
    pub fn of(source: &Source, id: &str) -> Self {
        Self { path: source.worktrees().join(id), id: id.to_owned(), source: source.clone() }
    }

    fn branch(&self) -> String {
        format!("refs/heads/cofer/{}", self.id)
    }

    /// Where the user's repository finds it.
    pub fn tracking_ref(&self) -> String {
        format!("refs/remotes/cofer/{}", self.id)
    }

    /// Where git keeps its index and HEAD.
    fn git_dir(&self) -> PathBuf {
        self.source.bare().join("worktrees").join(&self.id)
    }

    /// git in this worktree, told where everything is: what lies in the worktree has no say in it.
    fn git(&self) -> Git {
        Git::at(&self.path, self.source.deadline())
            .with("GIT_DIR", self.git_dir())
            .with("GIT_WORK_TREE", &self.path)
            .with("GIT_OBJECT_DIRECTORY", self.source.common.join("objects"))
    }

    /// The empty folder, which a container may have mounted before the files come.
    pub fn make_folder(&self) -> Result<()> {
        fs::create_dir_all(&self.path).map_err(|error| EnvError::io("worktree", self.path.display(), &error))
    }

    /// Makes the branch and checks it out.
    pub async fn add(&self, commit: &str) -> Result<()> {
        self.source.share_objects()?;
        let branch = format!("cofer/{}", self.id);
        let before = ["worktree", "add", "--quiet", "--no-checkout", "-b", &branch, "--"];
        let arguments = before.iter().map(AsRef::as_ref).chain([self.path.as_os_str(), commit.as_ref()]);
        {
            let _turn = self.alone_among_worktrees().await?;
            // What a killed Cofer left would make git choose another name.
            self.remove_git_dir().await?;
            self.source.bare_git().run("worktree", arguments).await?;
        }
        self.git().run("worktree", ["reset", "--hard", "--quiet"]).await?;
        self.track(commit).await
    }

    /// Git looks at all worktrees when it adds one, and stumbles over one that is just being added or removed.
    async fn alone_among_worktrees(&self) -> Result<Lock> {
        Lock::take(&self.source.folder.join("worktrees.lock"), Hold::Alone, self.source.deadline()).await
    }

    async fn remove_git_dir(&self) -> Result<()> {
        let folder = self.git_dir();
        let failed = |error| EnvError::io("worktree", format_args!("{} cannot be removed", folder.display()), &error);
        remove_tree(&folder).await.map_err(failed)
    }

    /// Whether there is a branch of this name, whatever else there is.
    pub async fn has_branch(&self) -> Result<bool> {
        let branch = self.branch();
        let said =
            self.source.bare_git().ask("look", ["show-ref", "--verify", "--quiet", &branch], b"").await?;
        Ok(said.code == Some(0))
    }

    async fn track(&self, commit: &str) -> Result<()> {
        let tracking = self.tracking_ref();
        self.source.git().run("track", ["update-ref", &tracking, commit]).await.map(drop)
    }

    pub async fn head(&self) -> Result<String> {
        self.source.bare_git().line("look", ["rev-parse", "--verify", &self.branch()]).await
    }

    /// Whether anything differs from what was committed last.
    pub async fn is_changed(&self) -> Result<bool> {
        Ok(!self.status().await?.is_empty())
    }

    async fn status(&self) -> Result<Vec<u8>> {
        let asked =
            ["status", "--porcelain", "-z", "--no-renames", "--untracked-files=normal", "--ignore-submodules=all"];
        self.git().run("commit", asked).await
    }

    /// How many paths differ from what was committed last.
    pub async fn changes(&self) -> Result<usize> {
        Ok(self.status().await?.split(|byte| *byte == 0).filter(|entry| !entry.is_empty()).count())
    }

    /// Commits whatever differs, as this person, and lets the user's repository know.
    pub async fn commit(&self, message: &str, (name, email): (&str, &str)) -> Result<Commit> {
        self.break_dead_lock().await?;
        if !self.is_changed().await? {
            return Ok(Commit::default());
        }
        let warnings = self.stage().await?;
        let git = self
            .git()
            .with("GIT_AUTHOR_NAME", name)
            .with("GIT_AUTHOR_EMAIL", email)
            .with("GIT_COMMITTER_NAME", name)
            .with("GIT_COMMITTER_EMAIL", email);
        let message = if message.trim().is_empty() { "Changes in the environment" } else { message };
        let asked = ["commit", "--quiet", "--no-verify", "--no-gpg-sign", "--cleanup=whitespace", "--file=-"];
        let said = git.ask("commit", asked, message.as_bytes()).await?;
        let text = format!("{}{}", String::from_utf8_lossy(&said.stdout), said.stderr);
        // What differed was only a repository inside that was left out, or was changed back meanwhile.
        if said.code != Some(0) && (text.contains("nothing to commit") || text.contains("nothing added")) {
            return Ok(Commit { name: None, warnings });
        }
        if said.code != Some(0) {
            let advice = "read what git says; the files are as they were, and the next change is committed with them";
            let message = format!("git could not commit: {}", text.trim());
            return Err(EnvError::new(ErrorKind::Internal, "commit", message, advice));
        }
        let head = self.head().await?;
        self.track(&head).await?;
        Ok(Commit { name: Some(head), warnings })
    }

    /// Whoever commits holds the environment's lock. So a lock of git's that is there now is of a git whose Cofer was killed: it is
    /// waited for as long as git may take, and then was left behind.
    async fn break_dead_lock(&self) -> Result<()> {
        let lock = self.git_dir().join("index.lock");
        loop {
            let Ok(about) = fs::metadata(&lock) else { return Ok(()) };
            let age = about.modified().ok().and_then(|at| at.elapsed().ok()).unwrap_or_default();
            if age >= self.source.deadline() {
                return match fs::remove_file(&lock) {
                    Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                        Err(EnvError::io("commit", lock.display(), &error))
                    }
                    _ => Ok(()),
                };
            }
            tokio::time::sleep(LOCK_LOOK).await;
        }
    }

    /// Puts everything into the index but repositories inside that git cannot take.
    async fn stage(&self) -> Result<Vec<String>> {
        let mut left_out: Vec<String> = Vec::new();
        loop {
            let excluded = left_out.iter().map(|path| format!(":(exclude,literal){path}"));
            let asked = ["add", "--all", "--", "."].into_iter().map(ToOwned::to_owned).chain(excluded);
            let said = self.git().ask("commit", asked, b"").await?;
            if said.code == Some(0) {
                break;
            }
            match foreign_repository(&said.stderr) {
                Some(path) if left_out.len() < FOREIGN_MAX && !left_out.contains(&path) => left_out.push(path),
                _ => {
                    let advice = "mend or remove what git names; the files stay as they are until then";
                    let message = format!("git could not take the files: {}", said.stderr);
                    return Err(EnvError::new(ErrorKind::Internal, "commit", message, advice));
                }
            }
        }
        let warning = |path: &String| format!("`{path}` is a git repository of its own and was not committed");
        Ok(left_out.iter().map(warning).collect())
    }

    /// Removes files, branch and what the user's repository knows of it. May be repeated. What was there is told.
    pub async fn remove(&self, force: bool) -> Result<(Vec<PathBuf>, Vec<String>)> {
        let (mut removed, mut warnings) = (Vec::new(), Vec::new());
        if fs::symlink_metadata(&self.path).is_ok() {
            if let Err(error) = remove_tree(&self.path).await {
                if !force {
                    return Err(EnvError::io("worktree", format_args!("{} cannot be removed", self.path.display()), &error));
                }
                warnings.push(format!("{} could not be removed at first: {error}", self.path.display()));
                make_removable(&self.path);
                remove_tree(&self.path).await.map_err(|error| {
                    EnvError::io("worktree", format_args!("{} cannot be removed", self.path.display()), &error)
                })?;
            }
            removed.push(self.path.clone());
        }
        {
            let _turn = self.alone_among_worktrees().await?;
            self.remove_git_dir().await?;
        }
        for (git, reference) in [
            (self.source.bare_git(), self.branch()),
            (self.source.git().clone(), self.tracking_ref()),
            (self.source.git().clone(), self.notes_ref()),
        ] {
            git.run("branch", ["update-ref", "-d", &reference]).await?;
        }
        Ok((removed, warnings))
    }

    pub(super) fn notes_ref(&self) -> String {
        format!("refs/notes/cofer/{}", self.id)
    }

    pub fn source(&self) -> &Source {
        &self.source
    }
}

/// The path that git names when it meets a repository without any commit.
fn foreign_repository(words: &str) -> Option<String> {
    let line = words.lines().find(|line| line.contains("does not have a commit checked out"))?;
    let (_, rest) = line.split_once('\'')?;
    let (path, _) = rest.rsplit_once('\'')?;
    Some(path.trim_end_matches('/').to_owned())
}

async fn remove_tree(path: &Path) -> std::io::Result<()> {
    let path = path.to_owned();
    tokio::task::spawn_blocking(move || match fs::remove_dir_all(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        outcome => outcome,
    })
    .await
    .unwrap_or_else(|error| Err(std::io::Error::other(error)))
}

/// Gives folders back the rights that removing from them needs.
fn make_removable(path: &Path) {
    use std::os::unix::fs::PermissionsExt as _;
    let Ok(about) = fs::symlink_metadata(path) else { return };
    if !about.is_dir() {
        return;
    }
    let _ = fs::set_permissions(path, fs::Permissions::from_mode(about.permissions().mode() | 0o700));
    for entry in fs::read_dir(path).into_iter().flatten().flatten() {
        make_removable(&entry.path());
    }
}
