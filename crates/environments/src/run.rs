//! A command in an environment: started by the helper inside, listened to, and ended with all that it started when it takes too long.

use std::time::Duration;

use cofer_model::Moment;
use cofer_sandbox::{CommandEnd, CommandSpec, RunningCommand, Said, SandboxError};
use secrecy::SecretString;
use tokio::time::{Instant, MissedTickBehavior, interval_at, timeout};

use crate::environment::Environment;
use crate::error::{EnvError, Result};
use crate::files::WORKDIR;
use crate::git::{Commit, LogEntry};
use crate::state::LastCommand;
use crate::tail::{Tail, Told};

/// How long a command that is told to end may take for it.
const GRACE: Duration = Duration::from_secs(2);
/// And how long after that until the helper tells so.
const GRACE_OF_HELPER: Duration = Duration::from_secs(10);
const NEWS_EVERY: Duration = Duration::from_secs(1);
const SHELLS: [&str; 4] = ["sh", "bash", "zsh", "ash"];

#[derive(Clone, Debug, Default)]
pub struct RunRequest {
    pub command: String,
    /// `sh` if nobody says.
    pub shell: Option<String>,
    pub use_entrypoint: bool,
    pub explanation: String,
}

/// How it went.
#[derive(Clone, Debug)]
pub struct Ran {
    /// `None` if it was ended by a signal or took too long.
    pub exit_code: Option<i32>,
    pub signal: Option<i32>,
    pub timed_out: bool,
    pub stdout: Told,
    pub stderr: Told,
    pub elapsed: Duration,
    pub commit: Commit,
}

impl Ran {
    /// As callers see it.
    pub fn data(&self) -> serde_json::Value {
        serde_json::json!({
            "exit_code": self.exit_code,
            "signal": self.signal,
            "stdout": self.stdout.text,
            "stderr": self.stderr.text,
            "truncated": self.stdout.truncated || self.stderr.truncated,
            "elapsed_ms": u64::try_from(self.elapsed.as_millis()).unwrap_or(u64::MAX),
            "commit": self.commit.name,
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    Stdout,
    Stderr,
}

/// Who wants to hear while a command runs. Must not wait.
pub trait Listener: Send + Sync {
    fn said(&self, _stream: Stream, _bytes: &[u8]) {}

    /// Every second.
    fn still_running(&self, _since: Duration, _last_line: Option<String>) {}
}

/// Nobody.
#[derive(Clone, Copy, Debug)]
pub struct Silent;

impl Listener for Silent {}

/// What was heard of a command.
#[derive(Debug, Default)]
pub(crate) struct Heard {
    pub stdout: Tail,
    pub stderr: Tail,
    pub end: Option<CommandEnd>,
    pub timed_out: bool,
}

impl Environment {
    /// Runs it to its end, and commits what it changed. Who drops this ends the command.
    pub async fn run(&mut self, request: &RunRequest, listener: &dyn Listener) -> Result<Ran> {
        let argv = self.argv(request).await?;
        let limit = self.house.settings().timeout_run;
        let began = Instant::now();
        let (heard, mask) = self.execute(argv, limit, listener).await?;
        let elapsed = began.elapsed();
        let (stdout, stderr) = (heard.stdout.told(), heard.stderr.told());
        let exit_code = heard.end.as_ref().and_then(|end| end.code).filter(|_| !heard.timed_out);
        let signal = heard.end.as_ref().and_then(|end| end.signal);
        // Whoever wrote a secret's value out: it is kept nowhere.
        let command = mask.apply(&request.command);
        self.note_last_command(&LastCommand {
            command: command.clone().into_owned(),
            exit_code,
            at: Moment::now(),
        });
        let outcome = match (heard.timed_out, exit_code, signal) {
            (true, ..) => format!("ended after {} ms", limit.as_millis()),
            (false, Some(code), _) => format!("exit {code}"),
            (false, None, Some(signal)) => format!("ended by signal {signal}"),
            (false, None, None) => "ended".to_owned(),
        };
        let entry = LogEntry::Command {
            command: &command,
            outcome: &outcome,
            stdout: &mask.apply(&stdout.text),
            stderr: &mask.apply(&stderr.text),
        };
        let explanation = if request.explanation.trim().is_empty() {
            format!("Run {}", command.lines().next().unwrap_or_default())
        } else {
            mask.apply(&request.explanation).into_owned()
        };
        // What was run has run: that its changes are not committed yet is told, and fails nothing.
        let commit = self.keep(&explanation, &entry).await.unwrap_or_else(|error| Commit {
            name: None,
            warnings: vec![format!("the changes are not committed yet: {error}; {}", error.recovery)],
        });
        Ok(Ran { exit_code, signal, timed_out: heard.timed_out, stdout, stderr, elapsed, commit })
    }

    /// The words that are executed.
    pub(crate) async fn argv(&self, request: &RunRequest) -> Result<Vec<String>> {
        let shell = request.shell.as_deref().filter(|shell| !shell.is_empty()).unwrap_or("sh");
        let name = shell.strip_prefix("/usr/bin/").or_else(|| shell.strip_prefix("/bin/")).unwrap_or(shell);
        if !SHELLS.contains(&name) {
            let message = format!("unsupported shell: {}", shell.escape_debug());
            return Err(EnvError::invalid("arguments", message, "use sh, bash, zsh or ash"));
        }
        if request.command.contains('\0') {
            return Err(EnvError::invalid("arguments", "the command has a zero in it", "leave it out"));
        }
        let mut argv = if request.use_entrypoint { self.entrypoint().await? } else { Vec::new() };
        if request.command.trim().is_empty() {
            if argv.is_empty() {
                let advice = "give a command, or `use_entrypoint` for an image that has one";
                return Err(EnvError::invalid("arguments", "there is nothing to run", advice));
            }
        } else {
            argv.extend([shell.to_owned(), "-c".to_owned(), request.command.clone()]);
        }
        Ok(argv)
    }

    /// Runs these words in the container, which is started if it does not run.
    pub(crate) async fn execute(
        &mut self,
        argv: Vec<String>,
        limit: Duration,
        listener: &dyn Listener,
    ) -> Result<(Heard, std::sync::Arc<cofer_model::Mask>)> {
        let clear =
            crate::secrets::read(&self.state.config, self.house.settings(), &*self.house.vault).await?;
        let spec = command(argv, clear.variables);
        let running = self.start(&spec).await?;
        Ok((listen(running, limit, listener).await?, clear.mask))
    }

    pub(crate) async fn start(&mut self, spec: &CommandSpec) -> Result<RunningCommand> {
        if let Some(workshop) = self.workshop() {
            match workshop.start(spec).await {
                Err(SandboxError::Gone { .. } | SandboxError::Unavailable { .. }) => {}
                started => return started.map_err(|error| EnvError::engine("run", &error)),
            }
        }
        let workshop = self.revive().await?;
        workshop.start(spec).await.map_err(|error| EnvError::engine("run", &error))
    }
}

/// These words, run where the files are.
pub(crate) fn command(argv: Vec<String>, environment: Vec<(String, SecretString)>) -> CommandSpec {
    CommandSpec { argv, environment, workdir: Some(WORKDIR.to_owned()), terminal: None, stdin: false }
}

/// Listens until it ends, or has to.
pub(crate) async fn listen(
    mut running: RunningCommand,
    limit: Duration,
    listener: &dyn Listener,
) -> Result<Heard> {
    let began = Instant::now();
    let mut heard = Heard::default();
    let mut news = interval_at(began + NEWS_EVERY, NEWS_EVERY);
    news.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let deadline = tokio::time::sleep_until(began + limit);
    tokio::pin!(deadline);
    loop {
        tokio::select! {
            said = running.next() => if !heard.take(said, listener)? { return Ok(heard) },
            _ = news.tick() => listener.still_running(began.elapsed(), heard.last_line()),
            () = &mut deadline => break,
        }
    }
    heard.timed_out = true;
    // One whose helper does not take the order has ended, which is told next.
    let _ = running.end(GRACE).await;
    let rest = async {
        while heard.take(running.next().await, listener)? {}
        Ok(())
    };
    // One that does not tell is ended all the same, when its connection is dropped.
    match timeout(GRACE + GRACE_OF_HELPER, rest).await {
        Ok(Err(error)) => Err(error),
        Ok(Ok(())) | Err(_) => Ok(heard),
    }
}

impl Heard {
    /// Whether there may be more.
    fn take(&mut self, said: Option<Said>, listener: &dyn Listener) -> Result<bool> {
        match said {
            Some(Said::Stdout(bytes)) => {
                listener.said(Stream::Stdout, &bytes);
                self.stdout.push(&bytes);
                Ok(true)
            }
            Some(Said::Stderr(bytes)) => {
                listener.said(Stream::Stderr, &bytes);
                self.stderr.push(&bytes);
                Ok(true)
            }
            Some(Said::Ended(end)) => {
                self.end = Some(end);
                Ok(false)
            }
            None if self.timed_out => Ok(false),
            None => {
                let advice =
                    "the container was ended, perhaps for want of memory; the next command starts it anew";
                let message = "the container went away while the command ran";
                Err(EnvError::new(crate::error::ErrorKind::Internal, "run", message, advice)
                    .with_details(self.so_far()))
            }
        }
    }

    fn so_far(&self) -> serde_json::Value {
        serde_json::json!({"stdout": self.stdout.told().text, "stderr": self.stderr.told().text})
    }

    fn last_line(&self) -> Option<String> {
        self.stdout.last_line().or_else(|| self.stderr.last_line())
    }
}
