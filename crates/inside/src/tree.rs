//! Processes and whose they are, as `/proc` tells it.
//!
//! The number of a process may have a new owner by the time it is signalled. So whoever is signalled is held first (by a
//! descriptor, which never changes its owner) and looked at again: it must have begun when the one that was found began.

use std::collections::HashSet;
use std::fs;
use std::time::Instant;

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal};

/// A living process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Relative {
    pid: Pid,
    parent: i32,
    session: i32,
    /// Since boot, in ticks.
    started: u64,
    /// Of the program that it is now, which it can change.
    name: [u8; NAME_BYTES],
}

/// The kernel keeps no more of a name.
const NAME_BYTES: usize = 16;

/// Everything below this process. As it adopts orphans, nothing that was ever started below it is missing.
pub fn descendants_of(root: Pid) -> Vec<Relative> {
    let mut strangers = all();
    let mut family = HashSet::from([root.as_raw_nonzero().get()]);
    let mut descendants = Vec::new();
    // Children may have smaller numbers than their parents, so go on until nobody is added.
    loop {
        let (found, others): (Vec<_>, Vec<_>) =
            strangers.into_iter().partition(|process| family.contains(&process.parent));
        if found.is_empty() {
            return descendants;
        }
        family.extend(found.iter().map(|process| process.pid.as_raw_nonzero().get()));
        descendants.extend(found);
        strangers = others;
    }
}

/// Everything in the session that this process began, for when it is not there any more.
pub fn members_of_session(leader: Pid) -> Vec<Relative> {
    let session = leader.as_raw_nonzero().get();
    all().into_iter().filter(|process| process.session == session).collect()
}

/// Everything that was started with this in its environment, such as `NAME=value`, and has not taken it away.
pub fn bearers_of(mark: &[u8]) -> Vec<Relative> {
    let bears = |process: &Relative| {
        let environment = fs::read(format!("/proc/{}/environ", process.pid.as_raw_nonzero()));
        environment.is_ok_and(|text| text.split(|byte| *byte == 0).any(|variable| variable == mark))
    };
    all().into_iter().filter(bears).collect()
}

impl Relative {
    /// One that has just ended needs no signal, so a failure is none.
    pub fn signal(self, signal: Signal) {
        let held = rustix::process::pidfd_open(self.pid, PidfdFlags::empty());
        if read(self.pid).is_none_or(|now| now.started != self.started) {
            return;
        }
        let _ = match held {
            Ok(held) => rustix::process::pidfd_send_signal(&held, signal),
            // gVisor does not know how to hold one.
            Err(Errno::NOSYS) => rustix::process::kill_process(self.pid, signal),
            Err(_gone) => return,
        };
    }
}

/// Who was asked to end already, so that each is asked once. One look does not find all: somebody may be born, or given to another parent,
/// while it lasts. So look again until nobody is left. One that has become another program since is asked again: between a shell's fork and
/// its exec a signal may be lost.
#[derive(Debug, Default)]
pub struct Asked(HashSet<(Pid, u64, [u8; NAME_BYTES])>);

impl Asked {
    /// Asks who has not been asked yet; from `kill_at` on, everybody is killed instead. Tells whether it has come to that.
    pub fn to_end_by(&mut self, kill_at: Instant, processes: impl IntoIterator<Item = Relative>) -> bool {
        let is_over = kill_at <= Instant::now();
        for process in processes {
            if is_over {
                process.signal(Signal::KILL);
            } else if self.0.insert((process.pid, process.started, process.name)) {
                process.signal(Signal::TERM);
                // What is stopped hears nothing else.
                process.signal(Signal::CONT);
            }
        }
        is_over
    }
}

fn all() -> Vec<Relative> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?));
    pids.filter_map(read).collect()
}

/// One that is gone, or dead and only not yet waited for, is none.
fn read(pid: Pid) -> Option<Relative> {
    let stat = fs::read(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    parse(pid, &String::from_utf8_lossy(&stat))
}

fn parse(pid: Pid, stat: &str) -> Option<Relative> {
    // The name is in parentheses and may itself contain any character.
    let (before, after_name) = stat.rsplit_once(") ")?;
    let mut name = [0; NAME_BYTES];
    name.iter_mut().zip(before.split_once('(')?.1.bytes()).for_each(|(kept, byte)| *kept = byte);
    let fields: Vec<&str> = after_name.split(' ').collect();
    let (state, parent, session, started) =
        (fields.first()?, fields.get(1)?, fields.get(3)?, fields.get(19)?);
    if matches!(*state, "Z" | "X") {
        return None;
    }
    let (parent, session) = (parent.parse().ok()?, session.parse().ok()?);
    Some(Relative { pid, parent, session, started: started.parse().ok()?, name })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_like_a_trap_does_not_mislead() {
        let stat = "7 (a) Z 1 (b)) S 5 7 6 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 4242 1 1";
        let seen = parse(Pid::from_raw(7).unwrap(), stat).unwrap();
        assert_eq!((seen.parent, seen.session, seen.started), (5, 6, 4242));
        assert_eq!(&seen.name[..10], b"a) Z 1 (b)");
        assert!(parse(seen.pid, &stat.replace(") S 5", ") Z 5")).is_none());
    }
}
