//! An environment's work, taken over into the user's repository: checked out, merged or applied by the user's own git, with their hooks
//! and settings. It is them who act; what an environment does by itself never touches their files.

use super::run::{Git, Said};
use super::worktree::Worktree;
use crate::error::{EnvError, ErrorKind, Result};

/// What came of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Takeover {
    /// The branch that is checked out now, if that was asked for.
    pub branch: Option<String>,
    /// In git's own words.
    pub said: String,
    /// What could not be taken over.
    pub warnings: Vec<String>,
}

impl Worktree {
    /// git as the user would call it.
    fn users_git(&self) -> Git {
        self.source().git().clone().as_user().with("GIT_MERGE_AUTOEDIT", "no")
    }

    /// Checks it out as a local branch, which is made, or brought forward if it is there.
    pub async fn check_out(&self, branch: &str) -> Result<Takeover> {
        let git = self.users_git();
        self.refuse_unfit(branch).await?;
        let (local, tracking) = (format!("refs/heads/{branch}"), self.tracking_ref());
        let there = git.ask("checkout", ["show-ref", "--verify", "--quiet", &local], b"").await?;
        if there.code != Some(0) {
            let asked = ["checkout", "--track", "-b", branch, &tracking];
            let said = accepted("checkout", &git.ask("checkout", asked, b"").await?)?;
            return Ok(Takeover { branch: Some(branch.to_owned()), said, warnings: Vec::new() });
        }
        let is_behind = self.is_ancestor(&local, &tracking).await?;
        if !is_behind && !self.is_ancestor(&tracking, &local).await? {
            let message = format!(
                "branch `{branch}` has commits of its own and cannot be fast-forwarded to the environment"
            );
            let advice = format!(
                "choose another branch with `-b`, or merge by hand: `git checkout {branch} && git merge {tracking}`"
            );
            return Err(EnvError::new(ErrorKind::Conflict, "checkout", message, advice));
        }
        let mut said = accepted("checkout", &git.ask("checkout", ["checkout", branch, "--"], b"").await?)?;
        if is_behind {
            let asked = ["merge", "--ff-only", "--autostash", &tracking];
            said = format!("{said}\n{}", accepted("checkout", &git.ask("checkout", asked, b"").await?)?);
        }
        Ok(Takeover { branch: Some(branch.to_owned()), said, warnings: Vec::new() })
    }

    async fn refuse_unfit(&self, branch: &str) -> Result<()> {
        let said = self.users_git().ask("checkout", ["check-ref-format", "--branch", branch], b"").await?;
        // Git answers the branch that was meant: `@{-1}` is not taken for a name.
        if said.code == Some(0) && String::from_utf8_lossy(&said.stdout).trim_end() == branch {
            return Ok(());
        }
        let message = format!("`{}` is no name of a branch", branch.escape_debug());
        Err(EnvError::invalid("checkout", message, "choose one that `git check-ref-format --branch` takes"))
    }

    async fn is_ancestor(&self, earlier: &str, later: &str) -> Result<bool> {
        let asked = ["merge-base", "--is-ancestor", earlier, later];
        Ok(self.source().git().ask("checkout", asked, b"").await?.code == Some(0))
    }

    /// Merges it into what is checked out, as a commit of its own.
    pub async fn merge_into_source(&self, id: &str) -> Result<Takeover> {
        let message = format!("Merge environment {id}");
        let asked = ["merge", "--no-ff", "--autostash", "-m", &message, &self.tracking_ref()];
        let said = self.users_git().ask("merge", asked, b"").await?;
        let advice = "mend the files that git names, then `git add` and `git commit`; or undo it with `git merge --abort`";
        merged("merge", id, &said, advice)
    }

    /// Puts its changes into the working tree and the index, for the user to commit.
    pub async fn apply_to_source(&self, id: &str) -> Result<Takeover> {
        let asked = ["merge", "--squash", "--autostash", &self.tracking_ref()];
        let said = self.users_git().ask("apply", asked, b"").await?;
        let advice = "mend the files that git names, then `git add` and `git commit`; or undo it with `git reset --merge`";
        merged("apply", id, &said, advice)
    }

    /// All its changes since this commit, as `git apply` takes them.
    pub async fn patch(&self, since: &str) -> Result<Vec<u8>> {
        let range = format!("{since}..{}", self.tracking_ref());
        let asked = ["diff", "--binary", "--no-color", "--no-ext-diff", "--no-textconv", &range, "--"];
        self.source().git().run("diff", asked).await
    }
}

fn merged(step: &'static str, id: &str, said: &Said, advice: &str) -> Result<Takeover> {
    let words = words(said);
    if said.code != Some(0) && words.contains("CONFLICT") {
        let message = format!("environment \"{id}\" and what is checked out changed the same:\n{words}");
        let advice = format!("{advice}. The environment is as it was");
        return Err(EnvError::new(ErrorKind::Conflict, step, message, advice));
    }
    Ok(Takeover { said: accepted(step, said)?, ..Takeover::default() })
}

/// What it said, if it did what it was asked.
fn accepted(step: &'static str, said: &Said) -> Result<String> {
    let words = words(said);
    if said.code == Some(0) {
        return Ok(words);
    }
    let (kind, advice) = if words.contains("tell me who you are") {
        (
            ErrorKind::PreconditionFailed,
            "set `git config user.name` and `git config user.email`, then try again",
        )
    } else {
        (ErrorKind::Conflict, "do what git says, then try again. The environment is as it was")
    };
    Err(EnvError::new(kind, step, format!("git refused: {words}"), advice))
}

fn words(said: &Said) -> String {
    let stdout = String::from_utf8_lossy(&said.stdout);
    [stdout.trim(), said.stderr.trim()]
        .into_iter()
        .filter(|part| !part.is_empty())
        .collect::<Vec<_>>()
        .join("\n")
}
