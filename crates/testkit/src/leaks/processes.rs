//! Processes that belong to a test: by the mark in their environment, or by descent.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};
use std::{env, fmt, fs, io, process, thread};

use rustix::process::{Pid, PidfdFlags, Signal};

use super::{POLL, VARIABLE};

/// The kernel's flag of its own threads, in the flags of `/proc/<pid>/stat`.
const PF_KTHREAD: u64 = 0x0020_0000;
const LOOKS_WITHOUT_COMMAND_MAX: u32 = 50;
const LOOKS_WITHOUT_ENVIRONMENT_MAX: u32 = 3;
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(2);
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

/// All that began after this process did.
pub(super) fn since_this_one_began() -> Vec<Process> {
    let Some(me) = read(process::id().cast_signed(), "") else { return Vec::new() };
    all("").into_iter().filter(|process| process.started > me.started).collect()
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

/// One that is gone, or dead and only not yet waited for, is none; neither is one of the kernel's own.
fn read(pid: i32, run: &str) -> Option<Process> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name is in parentheses and may itself contain any character.
    let (_, after_name) = stat.rsplit_once(") ")?;
    let fields: Vec<&str> = after_name.split(' ').collect();
    let (state, parent, flags, started) = (fields.first()?, fields.get(1)?, fields.get(6)?, fields.get(19)?);
    let of_the_kernel = flags.parse::<u64>().ok()? & PF_KTHREAD != 0;
    if matches!(*state, "Z" | "X") || of_the_kernel {
        return None;
    }
    let (command, environment) = memory(pid)?;
    let mark = format!("{VARIABLE}={run}");
    Some(Process {
        pid,
        parent: parent.parse().ok()?,
        started: started.parse().ok()?,
        command: String::from_utf8_lossy(&command).trim_end_matches('\0').replace('\0', " "),
        marked: environment.split(|byte| *byte == 0).any(|entry| entry == mark.as_bytes()),
    })
}

/// The command line and the environment.
///
/// For a moment, while it turns into another program, a process has neither. Missing the mark then would mean
/// missing the leak, so this looks again; a process that really has none of them is rare.
fn memory(pid: i32) -> Option<(Vec<u8>, Vec<u8>)> {
    let mut looks = 0;
    loop {
        // Another user's environment cannot be read; such a process is not ours to end either.
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_else(|_| b"?".to_vec());
        let command = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        looks += 1;
        let looks_max = match (command.is_empty(), environment.is_empty()) {
            (true, _) => LOOKS_WITHOUT_COMMAND_MAX,
            (false, true) => LOOKS_WITHOUT_ENVIRONMENT_MAX,
            (false, false) => 1,
        };
        if looks >= looks_max {
            return Some((command, environment));
        }
        thread::sleep(LOOK_AGAIN_AFTER);
    }
}

impl Process {
    pub(super) fn command(&self) -> &str {
        &self.command
    }

    pub(super) fn identity(&self) -> String {
        format!("process {} started at {}", self.pid, self.started)
    }

    /// Kills it if it bears the mark, and waits until it is gone.
    pub(super) fn kill(&self, run: &str) -> Result<&'static str, String> {
        let handle = Pid::from_raw(self.pid).ok_or("no such number").and_then(|pid| {
            rustix::process::pidfd_open(pid, PidfdFlags::empty()).map_err(|_| "gone by itself")
        })?;
        // Looked at again once it is held: the number may have had a new owner since it was found.
        if !read(self.pid, run).is_some_and(|process| process.marked) {
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
