//! What was done in an environment, told beside its commits as git notes.
//!
//! Writing a note takes git longer than most commands take to run. So each entry first goes to a file of the environment, and the file
//! becomes a note when something is committed, or when somebody wants to read the log.

use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::path::Path;

use super::worktree::Worktree;
use crate::error::{EnvError, Result};

/// An environment's note at one commit is not longer than this; what came first goes first.
const NOTE_BYTES_MAX: usize = 128 << 10;
/// What one entry keeps of a command's output.
const LINES_KEPT: usize = 20;
const LINE_CHARS_MAX: usize = 400;

/// One thing that was done.
#[derive(Clone, Debug)]
pub enum LogEntry<'a> {
    Command { command: &'a str, outcome: &'a str, stdout: &'a str, stderr: &'a str },
    Note(&'a str),
}

impl LogEntry<'_> {
    fn text(&self) -> String {
        match self {
            Self::Note(text) => format!("{text}\n\n"),
            Self::Command { command, outcome, stdout, stderr } => {
                let mut text = format!("$ {}\n{outcome}\n", shortened(command));
                if !stdout.trim().is_empty() {
                    let _ = writeln!(text, "{}", shortened(stdout));
                }
                if !stderr.trim().is_empty() {
                    let _ = writeln!(text, "stderr: {}", shortened(stderr));
                }
                text.push('\n');
                text
            }
        }
    }
}

/// The first and the last lines, each not too long.
fn shortened(text: &str) -> String {
    let lines: Vec<&str> = text.trim_end().lines().collect();
    let cut = |line: &&str| -> String {
        if line.chars().count() <= LINE_CHARS_MAX {
            return (*line).to_owned();
        }
        line.chars().take(LINE_CHARS_MAX).chain("…".chars()).collect()
    };
    if lines.len() <= 2 * LINES_KEPT {
        return lines.iter().map(cut).collect::<Vec<_>>().join("\n");
    }
    let between = format!("… {} lines …", lines.len() - 2 * LINES_KEPT);
    let first = lines[..LINES_KEPT].iter().map(cut);
    let last = lines[lines.len() - LINES_KEPT..].iter().map(cut);
    first.chain([between]).chain(last).collect::<Vec<_>>().join("\n")
}

/// Appends an entry to the file. Masks come before.
pub fn remember(file: &Path, entry: &LogEntry<'_>) -> io::Result<()> {
    let text = entry.text();
    let mut file = OpenOptions::new().append(true).create(true).open(file)?;
    if file.metadata()?.len() < 2 * NOTE_BYTES_MAX as u64 {
        file.write_all(text.as_bytes())?;
    }
    Ok(())
}

impl Worktree {
    /// Makes a note of what the file holds, at the newest commit, and empties it. The caller holds the environment's lock.
    pub async fn write_notes(&self, file: &Path) -> Result<()> {
        let pending = match fs::read(file) {
            Ok(pending) if pending.is_empty() => return Ok(()),
            Ok(pending) => pending,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(EnvError::io("notes", file.display(), &error)),
        };
        let head = self.head().await?;
        let (git, reference) = (self.source().git(), self.notes_ref());
        let there = git.ask("notes", ["notes", "--ref", &reference, "show", &head], b"").await?;
        let mut text = if there.code == Some(0) { there.stdout } else { Vec::new() };
        if !text.is_empty() {
            text.extend_from_slice(b"\n");
        }
        text.extend_from_slice(&pending);
        let kept = last_part(&text, NOTE_BYTES_MAX);
        git.feed("notes", ["notes", "--ref", &reference, "add", "--force", "--file=-", &head], kept).await?;
        fs::write(file, b"").map_err(|error| EnvError::io("notes", file.display(), &error))
    }

    /// The environment's commits since this one, with what was done, as people read it.
    pub async fn log(&self, since: &str, patch: bool) -> Result<String> {
        let answer = self.source().git().run("log", self.to_ask_for_log(since, patch)).await?;
        Ok(String::from_utf8_lossy(&answer).trim_end().to_owned())
    }

    /// What was done before anything was committed.
    pub async fn notes_at(&self, commit: &str) -> Result<String> {
        let said = self.source().git().ask("log", self.to_ask_for_notes_at(commit), b"").await?;
        Ok(if said.code == Some(0) {
            String::from_utf8_lossy(&said.stdout).trim().to_owned()
        } else {
            String::new()
        })
    }

    /// What differs from this commit.
    pub async fn diff(&self, since: &str) -> Result<String> {
        let answer = self.source().git().run("diff", self.to_ask_for_diff(since)).await?;
        Ok(String::from_utf8_lossy(&answer).into_owned())
    }

    pub(crate) fn to_ask_for_log(&self, since: &str, patch: bool) -> Vec<String> {
        let notes = format!("--notes={}", self.notes_ref());
        let mut asked =
            vec!["log", &notes, "--format=%h  %s (%cr)%n%+N", "--no-color", "--no-show-signature"];
        if patch {
            asked.extend(["--patch", "--no-ext-diff", "--no-textconv"]);
        }
        self.since(since, &asked)
    }

    pub(crate) fn to_ask_for_notes_at(&self, commit: &str) -> [String; 5] {
        ["notes", "--ref", &self.notes_ref(), "show", commit].map(ToOwned::to_owned)
    }

    pub(crate) fn to_ask_for_diff(&self, since: &str) -> Vec<String> {
        self.since(since, &["diff", "--no-color", "--no-ext-diff", "--no-textconv"])
    }

    fn since(&self, commit: &str, asked: &[&str]) -> Vec<String> {
        let range = format!("{commit}..{}", self.tracking_ref());
        asked.iter().copied().chain([range.as_str(), "--"]).map(ToOwned::to_owned).collect()
    }
}

/// The last so many bytes, from the beginning of a line on.
fn last_part(text: &[u8], max: usize) -> &[u8] {
    let Some(skip) = text.len().checked_sub(max) else { return text };
    let line = text[skip..].iter().position(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    &text[skip + line..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_keeps_the_first_and_the_last_lines() {
        let stdout = (0..1000).map(|n| format!("line {n}")).collect::<Vec<_>>().join("\n");
        let entry = LogEntry::Command { command: "seq", outcome: "exit 0", stdout: &stdout, stderr: "" };
        let text = entry.text();
        assert!(text.starts_with("$ seq\nexit 0\nline 0\n"), "{text}");
        assert!(text.contains("line 19\n… 960 lines …\nline 980\n"), "{text}");
        assert!(text.ends_with("line 999\n\n"), "{text}");
    }

    #[test]
    fn of_a_long_note_the_end_is_kept_from_the_beginning_of_a_line_on() {
        assert_eq!(last_part(b"one\ntwo\nthree\n", 9), b"three\n");
        assert_eq!(last_part(b"one\n", 9), b"one\n");
    }
}
