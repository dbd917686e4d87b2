//! Open file descriptors of one process, counted before and after.
//!
//! Numbers and inodes change from one connection to the next, so descriptors are compared by kind: so many
//! sockets, so many pipes, this file twice.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use std::{fs, thread};

use super::processes::numbers_in;
use super::{POLL, SETTLE_DEFAULT};

/// What a process had open at one moment.
#[derive(Debug)]
pub struct Descriptors {
    pid: u32,
    before: BTreeMap<String, usize>,
    settle: Duration,
}

impl Descriptors {
    pub fn of(pid: u32) -> Self {
        Self { pid, before: open_by_kind(pid), settle: SETTLE_DEFAULT }
    }

    /// How long descriptors may take to be closed, 3 seconds unless told.
    #[must_use]
    pub fn settle_for(mut self, settle: Duration) -> Self {
        self.settle = settle;
        self
    }

    /// How many are open now.
    pub fn count(&self) -> usize {
        open_by_kind(self.pid).values().sum()
    }

    /// Fails the test if more than `slack` descriptors were added and stay open, naming them.
    pub fn assert_grown_by_at_most(&self, slack: usize) {
        let deadline = Instant::now() + self.settle;
        let mut added = self.added();
        while added.values().sum::<usize>() > slack && Instant::now() < deadline {
            thread::sleep(POLL);
            added = self.added();
        }
        let total: usize = added.values().sum();
        let list: Vec<_> = added.iter().map(|(kind, count)| format!("\n  {count} × {kind}")).collect();
        assert!(
            total <= slack,
            "process {} has {total} descriptors more than before:{}",
            self.pid,
            list.concat()
        );
    }

    fn added(&self) -> BTreeMap<String, usize> {
        let now = open_by_kind(self.pid).into_iter();
        now.filter_map(|(kind, count)| {
            let more = count.checked_sub(self.before.get(&kind).copied().unwrap_or_default())?;
            (more > 0).then_some((kind, more))
        })
        .collect()
    }
}

fn open_by_kind(pid: u32) -> BTreeMap<String, usize> {
    let folder = format!("/proc/{pid}/fd");
    let mut kinds = BTreeMap::new();
    for number in numbers_in(&folder) {
        // One that was closed since it was listed does not count.
        let Ok(target) = fs::read_link(format!("{folder}/{number}")) else { continue };
        let target = target.to_string_lossy();
        let kind = match target.split_once(":[") {
            Some((kind @ ("socket" | "pipe"), _)) => kind,
            _ => &target,
        };
        *kinds.entry(kind.to_owned()).or_default() += 1;
    }
    kinds
}
