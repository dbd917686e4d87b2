//! One `git` process: quick to start, unable to ask anybody anything, and ended when it takes too long.
//!
//! What lies in a worktree was written by whoever works in its container, and must never make git run something on this machine. So
//! git is told where its directory is instead of finding it, and hooks, file-system monitors, pagers, editors, signing and prompts are off.
//! Only what a person does in their own repository ([`Git::as_user`]) is done with their own hooks and settings.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use crate::error::{EnvError, ErrorKind, Result};

/// More of an answer than this is nothing that is asked for here.
const OUTPUT_MAX: u64 = 64 << 20;

/// How long one that is told to end may take for it.
const GRACE: Duration = Duration::from_secs(2);
/// How long what it said may take to be read when it has ended.
const AFTERWORDS_MAX: Duration = Duration::from_secs(2);

/// Off, whatever the configuration says.
const SETTINGS: [&str; 15] = [
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.pager=cat",
    "core.editor=true",
    "core.quotePath=false",
    "commit.gpgSign=false",
    "tag.gpgSign=false",
    "gc.auto=0",
    // Others may hold a reference for a moment.
    "core.filesRefLockTimeout=5000",
    "core.packedRefsTimeout=10000",
    "maintenance.auto=false",
    "submodule.recurse=false",
    "diff.ignoreSubmodules=all",
    "advice.addEmbeddedRepo=false",
    "color.ui=false",
];

/// The same for what a person does: nobody is there to type, and what is told is read by us.
const SETTINGS_AS_USER: [&str; 3] = ["core.pager=cat", "core.editor=true", "color.ui=false"];

/// Whose repository would otherwise be taken for ours, and who would be asked.
const VARIABLES_REMOVED: [&str; 13] = [
    "GIT_DIR",
    "GIT_WORK_TREE",
    "GIT_INDEX_FILE",
    "GIT_OBJECT_DIRECTORY",
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_COMMON_DIR",
    "GIT_NAMESPACE",
    "GIT_PREFIX",
    "GIT_CONFIG_PARAMETERS",
    "GIT_EXTERNAL_DIFF",
    "GIT_EDITOR",
    "GIT_TRACE",
    "GPG_TTY",
];

/// How git is called in one place: which folder, which repository, within which time.
#[derive(Clone, Debug)]
pub struct Git {
    folder: PathBuf,
    variables: Vec<(&'static str, OsString)>,
    deadline: Duration,
    manner: Manner,
    /// Of a longer answer this much is kept, and the rest is counted.
    kept_max: Option<u64>,
}

/// Whose wishes git follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Manner {
    Guarded,
    AsUser,
}

/// What it said, when it could be run.
#[derive(Debug)]
pub struct Said {
    pub code: Option<i32>,
    pub stdout: Vec<u8>,
    pub stderr: String,
    /// How much more it wrote than was kept.
    pub left_out: u64,
}

impl Git {
    pub fn at(folder: impl Into<PathBuf>, deadline: Duration) -> Self {
        Self {
            folder: folder.into(),
            variables: Vec::new(),
            deadline,
            manner: Manner::Guarded,
            kept_max: None,
        }
    }

    /// With the person's own hooks and settings, as if they had typed it; but for questions, which nobody would answer.
    #[must_use]
    pub fn as_user(mut self) -> Self {
        self.manner = Manner::AsUser;
        self
    }

    /// For whom nobody knows: besides, no remote is asked for objects that are missing, since a remote may be a program. Of an answer this
    /// much is kept.
    #[must_use]
    pub fn only_reading(mut self, bytes_max: usize) -> Self {
        self.kept_max = Some(bytes_max as u64);
        self.with("GIT_NO_LAZY_FETCH", "1").with("GIT_ALLOW_PROTOCOL", "none").with("GIT_OPTIONAL_LOCKS", "0")
    }

    #[must_use]
    pub fn with(mut self, name: &'static str, value: impl AsRef<OsStr>) -> Self {
        self.variables.push((name, value.as_ref().to_owned()));
        self
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Runs it, and answers what it wrote to stdout. `step` is what it is done for.
    pub async fn run<S: AsRef<OsStr>>(
        &self,
        step: &'static str,
        arguments: impl IntoIterator<Item = S>,
    ) -> Result<Vec<u8>> {
        self.feed(step, arguments, b"").await
    }

    /// The first line of its answer.
    pub async fn line<S: AsRef<OsStr>>(
        &self,
        step: &'static str,
        arguments: impl IntoIterator<Item = S>,
    ) -> Result<String> {
        let answer = self.run(step, arguments).await?;
        let text = String::from_utf8_lossy(&answer);
        Ok(text.lines().next().unwrap_or_default().to_owned())
    }

    /// The same with something to read.
    pub async fn feed<S: AsRef<OsStr>>(
        &self,
        step: &'static str,
        arguments: impl IntoIterator<Item = S>,
        stdin: &[u8],
    ) -> Result<Vec<u8>> {
        self.accepted(step, arguments, stdin).await.map(|said| said.stdout)
    }

    /// All that it said, if it did what it was asked.
    pub async fn accepted<S: AsRef<OsStr>>(
        &self,
        step: &'static str,
        arguments: impl IntoIterator<Item = S>,
        stdin: &[u8],
    ) -> Result<Said> {
        let said = self.ask(step, arguments, stdin).await?;
        if said.code == Some(0) { Ok(said) } else { Err(failed(step, &said)) }
    }

    /// Runs it, whatever comes of it.
    pub async fn ask<S: AsRef<OsStr>>(
        &self,
        step: &'static str,
        arguments: impl IntoIterator<Item = S>,
        stdin: &[u8],
    ) -> Result<Said> {
        let mut command = self.command();
        command.args(arguments);
        let late = || {
            let advice =
                "a repository as large as this may need more time: set COFER_TIMEOUT_GIT (milliseconds)";
            EnvError::timeout(step, "git", self.deadline, advice)
        };
        let said = converse(command, stdin, self.deadline, self.kept_max).await.map_err(|error| {
            let advice = "see that git is installed and that the folder is there";
            let message = format!("git could not be run in {}: {error}", self.folder.display());
            EnvError::new(ErrorKind::PreconditionFailed, step, message, advice)
        })?;
        said.ok_or_else(late)
    }

    fn command(&self) -> Command {
        let mut command = Command::new("git");
        let settings: &[&str] = match self.manner {
            Manner::Guarded => &SETTINGS,
            Manner::AsUser => &SETTINGS_AS_USER,
        };
        for setting in settings {
            command.arg("-c").arg(setting);
        }
        for name in VARIABLES_REMOVED {
            command.env_remove(name);
        }
        command
            .env("GIT_TERMINAL_PROMPT", "0")
            .env("GIT_ASKPASS", "true")
            .env("SSH_ASKPASS", "true")
            .env("GIT_PAGER", "cat")
            .env("LC_ALL", "C.UTF-8")
            .envs(self.variables.iter().map(|(name, value)| (name, value)))
            .current_dir(&self.folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(false);
        command
    }
}

/// `None` if it took too long.
async fn converse(
    mut command: Command,
    stdin: &[u8],
    deadline: Duration,
    kept_max: Option<u64>,
) -> std::io::Result<Option<Said>> {
    let mut child = command.spawn()?;
    let group = Group::of(&child);
    if let Ok(said) = timeout(deadline, listen(&mut child, stdin, kept_max)).await {
        group.has_ended();
        return said.map(Some);
    }
    // Told politely, it takes its locks with it.
    group.signal(Signal::TERM);
    if timeout(GRACE, child.wait()).await.is_err() {
        group.signal(Signal::KILL);
    }
    Ok(None)
}

async fn listen(child: &mut Child, stdin: &[u8], kept_max: Option<u64>) -> std::io::Result<Said> {
    let (mut input, output, errors) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let (mut stdout, mut stderr, mut left_out) = (Vec::new(), Vec::new(), 0);
    let status = {
        let talking = async {
            let tell = async {
                if let Some(input) = &mut input {
                    // Who does not want to read it all has said why on stderr.
                    let _ = input.write_all(stdin).await;
                }
                drop(input.take());
            };
            let reading = async {
                match kept_max {
                    Some(max) => left_out = read_beginning(output, &mut stdout, max).await?,
                    None => read_all(output, &mut stdout).await?,
                }
                Ok(())
            };
            let ((), read, said) = tokio::join!(tell, reading, read_all(errors, &mut stderr));
            read.and(said)
        };
        tokio::pin!(talking);
        let ended = tokio::select! {
            said = &mut talking => said.map(|()| None)?,
            ended = child.wait() => Some(ended?),
        };
        match ended {
            None => child.wait().await?,
            Some(status) => {
                // What a hook left running may hold the pipes for as long as it likes.
                timeout(AFTERWORDS_MAX, talking).await.unwrap_or(Ok(()))?;
                status
            }
        }
    };
    let stderr = String::from_utf8_lossy(&stderr).trim().to_owned();
    Ok(Said { code: status.code(), stdout, stderr, left_out })
}

async fn read_all(pipe: Option<impl AsyncRead + Unpin>, into: &mut Vec<u8>) -> std::io::Result<()> {
    if let Some(pipe) = pipe {
        pipe.take(OUTPUT_MAX).read_to_end(into).await?;
    }
    Ok(())
}

/// Keeps so much of it. How much more there was.
async fn read_beginning(
    pipe: Option<impl AsyncRead + Unpin>,
    into: &mut Vec<u8>,
    kept_max: u64,
) -> std::io::Result<u64> {
    let Some(mut pipe) = pipe else { return Ok(0) };
    (&mut pipe).take(kept_max).read_to_end(into).await?;
    tokio::io::copy(&mut pipe, &mut tokio::io::sink()).await
}

/// A git process and those it started: ended together when nobody waits any more.
struct Group(Option<Pid>);

impl Group {
    fn of(child: &Child) -> Self {
        let id = child.id().and_then(|id| i32::try_from(id).ok());
        Self(id.and_then(Pid::from_raw))
    }

    fn has_ended(mut self) {
        self.0 = None;
    }

    fn signal(&self, signal: Signal) {
        if let Some(group) = self.0 {
            let _ = kill_process_group(group, signal);
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Whoever waited has left. Told politely, it takes its locks with it; it is waited for by the runtime.
        self.signal(Signal::TERM);
    }
}

/// What git said, as an error of ours.
fn failed(step: &'static str, said: &Said) -> EnvError {
    let words = said.stderr.lines().filter(|line| !line.starts_with("hint:")).collect::<Vec<_>>().join("\n");
    let words = words.trim();
    let words =
        if words.is_empty() { format!("exit code {}", said.code.unwrap_or(-1)) } else { words.to_owned() };
    let recovery = if words.contains("dubious ownership") {
        "the repository belongs to another user; allow it with `git config --global --add safe.directory PATH`"
    } else if words.contains("No space left") {
        "make room on the disk, then try again"
    } else {
        "read what git says; when the repository is in order, try again"
    };
    EnvError::new(ErrorKind::Internal, step, format!("git failed: {words}"), recovery)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_git_complains_of_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let git = Git::at(folder.path(), Duration::from_secs(30));
        let error = git.run("look", ["rev-parse", "--verify", "nothing"]).await.unwrap_err();
        assert_eq!(error.step, "look");
        assert!(error.message.contains("not a git repository"), "{error}");
    }

    #[tokio::test]
    async fn of_a_long_answer_the_beginning_is_kept_and_the_rest_counted() {
        let folder = tempfile::tempdir().unwrap();
        let git = Git::at(folder.path(), Duration::from_secs(30)).only_reading(1000);
        let asked = ["-c", "alias.talks=!yes | head -c 3000000", "talks"];
        let said = git.accepted("talk", asked, b"").await.unwrap();
        assert_eq!((said.stdout.len(), said.left_out), (1000, 2_999_000));
    }

    #[tokio::test]
    async fn a_git_that_takes_too_long_is_ended_with_all_that_it_started() {
        let folder = tempfile::tempdir().unwrap();
        let git = Git::at(folder.path(), Duration::from_millis(200));
        let waits = "alias.waits=!echo $$ > pid; exec sleep 1000";
        let error = git.run("wait", ["-c", waits, "waits"]).await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::Timeout);
        let pid: i32 = std::fs::read_to_string(folder.path().join("pid")).unwrap().trim().parse().unwrap();
        cofer_testkit::until("the process is gone", async || {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            stat.is_empty() || stat.contains(") Z ")
        })
        .await;
    }
}
