//! A sandbox's processes held still, and ended, through their control group.
//!
//! An engine can do the same, but takes tens of milliseconds for it, in which a fast writer fills megabytes; this takes less than
//! one. It is there where Cofer runs beside the engine with the rights, and nobody else is told: whoever freezes thaws, or kills,
//! within the same breath.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::process::{Pid, Signal};

const GROUPS: &str = "/sys/fs/cgroup";

#[derive(Clone, Debug)]
pub(crate) struct Freezer {
    group: PathBuf,
    version: Version,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    First,
    Second,
}

impl Freezer {
    /// The one of the group that this process is in, if that is the container's own and may be written.
    pub fn of(pid: u32, container: &str) -> Option<Self> {
        let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
        let path_of = |controllers: &str| {
            groups
                .lines()
                .find_map(|line| line.split_once(':')?.1.strip_prefix(controllers)?.strip_prefix(':'))
        };
        let inside = |path: &str| path.contains(container).then(|| path.trim_start_matches('/').to_owned());
        let first = path_of("freezer").and_then(inside);
        let first = first.map(|path| Self {
            group: Path::new(GROUPS).join("freezer").join(path),
            version: Version::First,
        });
        let second = path_of("").and_then(inside);
        let second =
            second.map(|path| Self { group: Path::new(GROUPS).join(path), version: Version::Second });
        [first, second].into_iter().flatten().find(Self::is_usable)
    }

    fn is_usable(&self) -> bool {
        rustix::fs::access(self.switch(), rustix::fs::Access::WRITE_OK).is_ok()
    }

    fn switch(&self) -> PathBuf {
        self.group.join(match self.version {
            Version::First => "freezer.state",
            Version::Second => "cgroup.freeze",
        })
    }

    /// Begins to hold every process still. One in the middle of a long write is done with that first.
    pub fn freeze(&self) -> io::Result<()> {
        fs::write(self.switch(), if self.version == Version::First { "FROZEN" } else { "1" })
    }

    pub fn is_frozen(&self) -> io::Result<bool> {
        match self.version {
            Version::First => Ok(fs::read_to_string(self.switch())?.trim() == "FROZEN"),
            Version::Second => Ok(fs::read_to_string(self.group.join("cgroup.events"))?.contains("frozen 1")),
        }
    }

    pub fn thaw(&self) -> io::Result<()> {
        fs::write(self.switch(), if self.version == Version::First { "THAWED" } else { "0" })
    }

    /// Its processes, as directories of `/proc`.
    pub fn processes(&self) -> io::Result<Vec<PathBuf>> {
        let pids = self.pids()?;
        Ok(pids.into_iter().map(|pid| Path::new("/proc").join(pid.as_raw_nonzero().to_string())).collect())
    }

    fn pids(&self) -> io::Result<Vec<Pid>> {
        let listed = fs::read_to_string(self.group.join("cgroup.procs"))?;
        Ok(listed.lines().filter_map(|line| Pid::from_raw(line.parse().ok()?)).collect())
    }

    /// Ends every process. Those that are frozen end the moment they are thawed, without another step of their own.
    pub fn kill(&self) -> io::Result<()> {
        for pid in self.pids()? {
            // One that is gone is what we want.
            let _ = rustix::process::kill_process(pid, Signal::KILL);
        }
        Ok(())
    }
}
