//! Processes that belong to a test: by the mark in their environment, or by descent.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};
use std::{env, fmt, fs, io, process, thread};

use rustix::process::{Pid, PidfdFlags, Signal};

use super::{POLL, VARIABLE};

const DEATH_MAX: Duration = Duration::from_secs(5);

/// A process as seen in `/proc`.
#[derive(Debug)]
pub(super) struct Process {
    pid: i32,
    parent: i32,
    /// Since boot, in ticks: with the number, it tells this process from a later one of the same number.
    started: u64,
    command: String,
    marked: bool,
}

/// The processes of one run, and how they are told from others.
#[derive(Debug)]
pub(super) struct Processes {
    run: String,
    /// Children of this process from before the watch began belong to somebody else, with all below them.
    earlier: BTreeSet<(i32, u64)>,
}

impl Processes {
    pub(super) fn of(run: String) -> Self {
        let me = process::id().cast_signed();
        let children = all(&run).into_iter().filter(|process| process.parent == me);
        let earlier = children.map(|process| (process.pid, process.started)).collect();
        Self { run, earlier }
    }

    pub(super) fn run(&self) -> &str {
        &self.run
    }

    /// Every living process that bears the mark or descends from one that does, or from this test.
    pub(super) fn find(&self) -> Vec<Process> {
        let all = all(&self.run);
        let me = process::id().cast_signed();
        let mut ours: BTreeSet<i32> =
            all.iter().filter(|process| process.marked).map(|marked| marked.pid).collect();
        if process_per_test() {
            ours.insert(me);
        }
        // Children may have smaller numbers than their parents, so go on until nothing is added.
        loop {
            let before = ours.len();
            for process in &all {
                let earlier = self.earlier.contains(&(process.pid, process.started));
                if ours.contains(&process.parent) && !earlier {
                    ours.insert(process.pid);
                }
            }
            if ours.len() == before {
                break;
            }
        }
        ours.remove(&me);
        all.into_iter().filter(|process| ours.contains(&process.pid)).collect()
    }
}

fn all(run: &str) -> Vec<Process> {
    numbers_in("/proc").filter_map(|pid| read(pid, run)).collect()
}

/// Whether this process runs a single test, so that its children are that test's.
fn process_per_test() -> bool {
    env::var("NEXTEST_EXECUTION_MODE").is_ok_and(|mode| mode == "process-per-test")
}

pub(super) fn adopt_orphans() -> io::Result<()> {
    Ok(rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?)
}

pub(super) fn numbers_in(folder: &str) -> impl Iterator<Item = i32> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// One that is gone, or dead and only not yet waited for, is none.
fn read(pid: i32, run: &str) -> Option<Process> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name is in parentheses and may itself contain any character.
    let (_, after_name) = stat.rsplit_once(") ")?;
    let mut fields = after_name.split(' ');
    let state = fields.next()?;
    let parent = fields.next()?.parse().ok()?;
    if matches!(state, "Z" | "X") {
        return None;
    }
    let command = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let command = String::from_utf8_lossy(&command).trim_end_matches('\0').replace('\0', " ");
    // Of what follows the name, the parent is the second and the start the twentieth.
    let started = fields.nth(17)?.parse().ok()?;
    Some(Process { pid, parent, started, command, marked: bears_mark(pid, run) })
}

fn bears_mark(pid: i32, run: &str) -> bool {
    let mark = format!("{VARIABLE}={run}");
    // Another user's environment cannot be read; such a process is not ours to end either.
    fs::read(format!("/proc/{pid}/environ"))
        .is_ok_and(|environ| environ.split(|byte| *byte == 0).any(|entry| entry == mark.as_bytes()))
}

impl Process {
    /// Kills it if it bears the mark, and waits until it is gone.
    pub(super) fn kill(&self, run: &str) -> Result<&'static str, String> {
        let handle = Pid::from_raw(self.pid).ok_or("no such number").and_then(|pid| {
            rustix::process::pidfd_open(pid, PidfdFlags::empty()).map_err(|_| "gone by itself")
        })?;
        // Looked at through the handle's eyes: the number may have a new owner since it was found.
        if !bears_mark(self.pid, run) {
            return Err("it bears no mark".to_owned());
        }
        rustix::process::pidfd_send_signal(&handle, Signal::KILL).map_err(|error| error.to_string())?;
        let deadline = Instant::now() + DEATH_MAX;
        while read(self.pid, run).is_some_and(|process| process.marked) {
            if Instant::now() > deadline {
                return Err("it was killed and does not die".to_owned());
            }
            thread::sleep(POLL);
        }
        Ok("killed")
    }
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} (child of {}): {}", self.pid, self.parent, self.command)
    }
}
