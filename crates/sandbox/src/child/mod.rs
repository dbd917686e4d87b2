//! A program beside Cofer, on this machine, with its whole tree of processes owned: how external stdio servers run.
//!
//! ```text
//!   Cofer ── stdin, stdout, stderr ───────────────► program ─► its children, theirs, …
//!     │  ▲                                             ▲
//!     │  └─ its exit tells how the program ended       │ starts, adopts orphans, ends all
//!     └─ SIGHUP, SIGTERM, SIGINT ───────────────► guardian ◄─ sees Cofer's end, also by SIGKILL
//! ```
//!
//! Between the two stands a *guardian* (`inside/src/guard.rs`), a part of the small program that Cofer carries along. Nothing in Cofer could
//! do its part: who is killed cannot clean up. The pipes are the program's own; the guardian holds no end of them.
//!
//! The program's environment is clean: a few variables of Cofer's ([`program::PASSED_ON`]) and what its spec names.

mod keeper;
mod last_words;
mod program;

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use cofer_inside::guarding::GUARD;
use cofer_model::Kind;
use secrecy::{ExposeSecret as _, SecretString};
use tokio::process::Command;
use tokio::sync::{mpsc, watch};

use keeper::Keeper;

use crate::{LogSink, Streams, helper};

/// What to start.
#[derive(Clone, Debug)]
pub struct ChildSpec {
    /// A name that is looked for in its `PATH`, or a path; a relative one begins at `cwd`.
    pub program: String,
    pub args: Vec<String>,
    /// Beside what every child gets, and instead of it where both name a variable.
    pub environment: Vec<(String, SecretString)>,
    /// Where it starts; Cofer's own folder unless told.
    pub cwd: Option<PathBuf>,
}

/// Why there is no child.
#[derive(Debug, thiserror::Error)]
pub enum ChildError {
    #[error("command not found: {program}; looked in {looked_in}; install it, or give its full path")]
    NotFound { program: String, looked_in: String },
    #[error("{path} cannot be executed; make it a program that this user may run (chmod +x)")]
    NotExecutable { path: PathBuf },
    #[error("the folder {cwd} to start {program} in is not there, or not a folder")]
    NoFolder { program: String, cwd: PathBuf },
    #[error("{program} could not be started")]
    Start {
        program: String,
        #[source]
        source: io::Error,
    },
}

impl ChildError {
    pub fn kind(&self) -> Kind {
        match self {
            Self::NotFound { .. } | Self::NotExecutable { .. } | Self::NoFolder { .. } => Kind::Invalid,
            // Too many processes or descriptors, most likely: it may be better later.
            Self::Start { .. } => Kind::Unavailable,
        }
    }
}

/// How a child ended, and what it said last. What it said is its own text: mask it before it is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChildEnd {
    pub how: HowEnded,
    /// The last lines of its stderr, oldest first.
    pub last_words: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HowEnded {
    Exited {
        code: i32,
    },
    Killed {
        signal: i32,
    },
    /// It never ran; its last words say why.
    NotStarted,
}

impl fmt::Display for HowEnded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exited { code } => write!(f, "exited with code {code}"),
            Self::Killed { signal } => write!(f, "was ended by signal {signal}"),
            Self::NotStarted => f.write_str("could not be started"),
        }
    }
}

impl fmt::Display for ChildEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.how.fmt(f)?;
        match self.last_words.last() {
            Some(line) => write!(f, "; it last said: {line}"),
            None => Ok(()),
        }
    }
}

/// Starts a child. To be called inside a runtime, which then looks after it.
pub fn spawn(spec: &ChildSpec, logs: LogSink) -> Result<ChildProcess, ChildError> {
    program::check(spec)?;
    let could_not = |source| ChildError::Start { program: spec.program.clone(), source };
    let mut guardian = guardian(spec).and_then(|mut guardian| guardian.spawn()).map_err(could_not)?;
    let (Some(stdin), Some(stdout), Some(stderr), Some(pid)) =
        (guardian.stdin.take(), guardian.stdout.take(), guardian.stderr.take(), guardian.id())
    else {
        return Err(could_not(io::Error::other("its pipes are missing")));
    };
    let (orders, inbox) = mpsc::unbounded_channel();
    let (ending, ended) = watch::channel(None);
    tokio::spawn(Keeper::new(guardian, inbox, last_words::listen(stderr, logs), ending).keep());
    let streams = Streams { stdin: Box::new(stdin), stdout: Box::new(stdout) };
    Ok(ChildProcess { pid, streams: Mutex::new(Some(streams)), orders, ended })
}

/// Secrets of the environment are not among its arguments: anybody can read a command line.
fn guardian(spec: &ChildSpec) -> io::Result<Command> {
    let mut command = Command::new(helper::to_start()?);
    command.arg0("cofer").arg(GUARD).arg(std::process::id().to_string()).arg(&spec.program).args(&spec.args);
    command.env_clear().envs(program::passed_on());
    command.envs(spec.environment.iter().map(|(name, value)| (name, value.expose_secret())));
    if let Some(cwd) = &spec.cwd {
        command.current_dir(cwd);
    }
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    Ok(command)
}

/// A child that was started. Its tree ends with this value, at the latest.
pub struct ChildProcess {
    pid: u32,
    streams: Mutex<Option<Streams>>,
    /// How long each who asked it to stop will wait. When this closes, it is to end as well.
    orders: mpsc::UnboundedSender<Duration>,
    ended: watch::Receiver<Option<ChildEnd>>,
}

impl ChildProcess {
    /// Its stdin and stdout, for the first who asks.
    pub fn streams(&self) -> Option<Streams> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// The guardian's, whose descendants are the program and all it started.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// SIGTERM to the whole tree, `grace`, SIGKILL. Returns when nothing of it is left. Who asks for less patience than another gets it.
    pub async fn stop(&self, grace: Duration) -> ChildEnd {
        // An error says that it has ended already.
        let _ = self.orders.send(grace);
        self.ended().await
    }

    /// Waits until nothing of it is left.
    pub async fn ended(&self) -> ChildEnd {
        let mut ended = self.ended.clone();
        let end = ended.wait_for(Option::is_some).await.ok().and_then(|end| end.clone());
        // Only a runtime that shuts down drops the keeper before it has told.
        end.unwrap_or(ChildEnd { how: HowEnded::Killed { signal: keeper::SIGTERM }, last_words: Vec::new() })
    }
}

impl fmt::Debug for ChildProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChildProcess").field("pid", &self.pid).finish_non_exhaustive()
    }
}
