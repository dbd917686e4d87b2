//! Fails a test on what it left behind, says exactly what that is, and removes it for the next test.
//!
//! ```no_run
//! # use cofer_testkit::leaks::Leaks;
//! let leaks = Leaks::watch(); // the first line of a test, so that it is dropped last
//! let mut child = std::process::Command::new("cofer").envs([leaks.mark()]).spawn().unwrap();
//! # child.kill().unwrap();
//! leaks.assert_none(); // or let it drop, which does the same
//! ```
//!
//! What belongs to a test is told by a mark it inherits: processes by the variable `COFER_TEST_RUN=<uuid>` in
//! their environment, things in container engines by a label. Only what bears the mark is ever removed; what is
//! found otherwise (an unmarked child of this process or of a marked one, the keeper of a container that is gone) is
//! reported and left alone.
//!
//! The check waits a little for things that are on their way out, and blocks its thread: drop what owns them
//! first. It is made for a process per test (`cargo nextest`). Where tests share one, children of the process
//! are nobody's in particular, so only the mark counts.

mod descriptors;
mod engines;
mod processes;
mod sandboxes;
mod worktrees;

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use uuid::Uuid;

pub use descriptors::Descriptors;
use processes::{Process, Processes};
use worktrees::Worktrees;

/// The variable that marks the processes of a test.
pub const VARIABLE: &str = "COFER_TEST_RUN";
/// The label that marks what a test makes in container engines, unless it says otherwise.
pub const LABEL: &str = "cofer.test_run";

const SETTLE_DEFAULT: Duration = Duration::from_secs(3);
const POLL: Duration = Duration::from_millis(50);
/// A process may start another one just before it is killed.
const REMOVAL_ROUNDS_MAX: usize = 10;

/// What bears this label in the engines of the bed right now, for tests that look before their end.
pub async fn labelled(label: &str) -> Vec<String> {
    let label = label.to_owned();
    let found = tokio::task::spawn_blocking(move || engines::find(&label));
    found.await.expect("a look").iter().map(ToString::to_string).collect()
}

/// Watches one test from its first line to its last.
#[derive(Debug)]
#[must_use = "dropping it ends the watch"]
pub struct Leaks {
    processes: Processes,
    /// None when only processes are watched.
    label: Option<String>,
    repositories: Vec<Worktrees>,
    settle: Duration,
    checked: bool,
}

impl Leaks {
    /// Watches processes, and every container engine of the bed.
    pub fn watch() -> Self {
        let leaks = Self::watch_processes();
        let label = format!("{LABEL}={}", leaks.processes.run());
        leaks.label(label)
    }

    /// Watches processes alone: for tests that cannot touch an engine, because asking them takes its time.
    pub fn watch_processes() -> Self {
        let processes = Processes::of(Uuid::now_v7().to_string());
        Self { processes, label: None, repositories: Vec::new(), settle: SETTLE_DEFAULT, checked: false }
    }

    /// Looks for this label (`name` or `name=value`) in container engines instead.
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.label = Some(label.into());
        self
    }

    /// Looks for git worktrees added to this repository from now on.
    pub fn repository(mut self, path: impl Into<PathBuf>) -> Self {
        self.repositories.push(Worktrees::of(path.into()));
        self
    }

    /// How long things may take to go away by themselves, 3 seconds unless told.
    pub fn settle_for(mut self, settle: Duration) -> Self {
        self.settle = settle;
        self
    }

    /// Makes this process the parent of every orphan below it, so that also those are found which inherit no
    /// mark, because somebody cleaned their environment, and whose parents were killed.
    pub fn adopt_orphans(self) -> Self {
        processes::adopt_orphans().expect("this process can adopt orphans");
        self
    }

    /// The variable to give to every process the test starts: `command.envs([leaks.mark()])`.
    pub fn mark(&self) -> (&'static str, &str) {
        (VARIABLE, self.processes.run())
    }

    /// The label to give to what the test itself makes in container engines, as (name, value).
    pub fn engine_label(&self) -> (&str, &str) {
        let label = self.label.as_deref().expect("this watch is of processes alone");
        label.split_once('=').unwrap_or((label, ""))
    }

    /// Fails the test if anything is left.
    pub fn assert_none(mut self) {
        if let Some(report) = self.check() {
            panic!("{report}");
        }
    }

    /// Waits for things to settle; removes what is left then, and tells of it.
    fn check(&mut self) -> Option<String> {
        self.checked = true;
        let deadline = Instant::now() + self.settle;
        loop {
            // Looking takes seconds on a busy machine; what counts is a look that began after the time was over.
            let is_last = Instant::now() >= deadline;
            let left = self.find();
            if left.is_empty() {
                return None;
            }
            if is_last {
                return Some(self.remove(left));
            }
            thread::sleep(POLL);
        }
    }

    /// Removes what was found, and what was born of it meanwhile, and tells of each once.
    fn remove(&self, mut left: Vec<Leak>) -> String {
        let mut told = BTreeSet::new();
        let mut lines = Vec::new();
        for _ in 0..REMOVAL_ROUNDS_MAX {
            left.retain(|leak| told.insert(leak.identity()));
            if left.is_empty() {
                break;
            }
            let run = self.processes.run();
            lines.extend(left.iter().map(|leak| format!("\n  {leak} ({})", leak.remove(run))));
            left = self.find();
        }
        format!("the test left {} behind:{}", lines.len(), lines.concat())
    }

    fn find(&self) -> Vec<Leak> {
        let processes = self.processes.find().into_iter().map(Leak::Process);
        let in_engines = self.label.iter().flat_map(|label| engines::find(label)).map(Leak::InEngine);
        let keepers = self.label.iter().flat_map(|_| sandboxes::find()).map(Leak::Process);
        let worktrees = self.repositories.iter().flat_map(Worktrees::added).map(Leak::Worktree);
        processes.chain(in_engines).chain(keepers).chain(worktrees).collect()
    }
}

impl Drop for Leaks {
    fn drop(&mut self) {
        if self.checked {
            return;
        }
        if let Some(report) = self.check() {
            // A test that already failed has its reason; a second panic would hide it by aborting.
            assert!(thread::panicking(), "{report}");
            eprintln!("{report}");
        }
    }
}

enum Leak {
    Process(Process),
    InEngine(engines::Found),
    Worktree(worktrees::Added),
}

impl Leak {
    /// What stays the same while it exists, unlike its state or its parent.
    fn identity(&self) -> String {
        match self {
            Self::Process(process) => process.identity(),
            Self::InEngine(found) => found.identity(),
            Self::Worktree(added) => added.to_string(),
        }
    }

    /// Removes it, and says what became of it.
    fn remove(&self, run: &str) -> String {
        let removal = match self {
            Self::Process(process) => process.kill(run),
            Self::InEngine(found) => found.remove(),
            Self::Worktree(added) => added.remove(),
        };
        removal.map_or_else(|reason| format!("left alone: {reason}"), str::to_owned)
    }
}

impl fmt::Display for Leak {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Process(process) => process.fmt(f),
            Self::InEngine(found) => found.fmt(f),
            Self::Worktree(added) => added.fmt(f),
        }
    }
}
