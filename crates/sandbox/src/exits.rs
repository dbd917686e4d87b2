//! Why a sandbox ended, where its engine does not say.
//!
//! Engines tell the code. That memory was the end of it Docker tells of its own containers, but not of gVisor's, and Podman of
//! none on machines with the first version of control groups. The kernel names, in its log, the control group in which it had to
//! kill, and that is named after the container: a truthful witness, where Cofer may read it. That the disk limit was the end of
//! it only we know.

use std::collections::HashMap;
use std::fs::OpenOptions;
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::sync::{Mutex, PoisonError};

use crate::sightings::Seen;
use crate::{ExitCause, SandboxId, SandboxState};

const KERNEL_LOG: &str = "/dev/kmsg";
/// One record of the kernel's log fits.
const RECORD_BYTES: usize = 8 << 10;
/// More than the kernel keeps.
const RECORDS_MAX: usize = 100_000;
const KILLED: i64 = 9;

/// Causes that were found out, by sandbox.
#[derive(Debug, Default)]
pub(crate) struct Exits {
    known: Mutex<HashMap<SandboxId, ExitCause>>,
}

impl Exits {
    pub fn remember(&self, id: &SandboxId, cause: ExitCause) {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).insert(id.clone(), cause);
    }

    pub fn forget(&self, id: &SandboxId) {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).remove(id);
    }

    pub fn is_known(&self, id: &SandboxId) -> bool {
        self.recall(id).is_some()
    }

    fn recall(&self, id: &SandboxId) -> Option<ExitCause> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).get(id).copied()
    }

    /// Completes what is told of an end.
    pub async fn explain(&self, seen: &mut Seen) {
        let SandboxState::Ended(exit) = &mut seen.sighting.state else { return };
        let id = &seen.sighting.id;
        exit.cause = match self.recall(id) {
            Some(cause) => cause,
            None if seen.told_out_of_memory => ExitCause::OutOfMemory,
            None if exit.signal == Some(KILLED) => {
                let cause = ask_the_kernel(id.clone()).await;
                self.remember(id, cause);
                cause
            }
            None => ExitCause::Itself,
        };
    }
}

async fn ask_the_kernel(id: SandboxId) -> ExitCause {
    let out_of_memory = tokio::task::spawn_blocking(move || kernel_killed_in(&id).unwrap_or(false)).await;
    if out_of_memory.unwrap_or(false) { ExitCause::OutOfMemory } else { ExitCause::Itself }
}

/// Whether the kernel's log tells of a kill, for want of memory, in this sandbox's control group.
fn kernel_killed_in(id: &SandboxId) -> io::Result<bool> {
    let without_waiting = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    let mut log = OpenOptions::new().read(true).custom_flags(without_waiting).open(KERNEL_LOG)?;
    let mut record = vec![0; RECORD_BYTES];
    for _ in 0..RECORDS_MAX {
        match log.read(&mut record) {
            Ok(0) => break,
            Ok(length) if tells_of_kill(&record[..length], &id.0) => return Ok(true),
            Ok(_) => {}
            // Some records were overwritten while we read; the next one is there.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) => return Err(error),
        }
    }
    Ok(false)
}

fn tells_of_kill(record: &[u8], id: &str) -> bool {
    let record = String::from_utf8_lossy(record);
    record.contains("oom-kill:constraint=CONSTRAINT_MEMCG") && record.contains(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_names_the_control_group() {
        let record = b"6,7816,12120531312,-;oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=libpod-9896c681dd2a,mems_allowed=0,oom_memcg=/libpod_parent/libpod-9896c681dd2a,task_memcg=/libpod_parent/libpod-9896c681dd2a,task=tail,pid=6949,uid=0";
        assert!(tells_of_kill(record, "9896c681dd2a"));
        assert!(!tells_of_kill(record, "0000c681dd2a"));
        assert!(!tells_of_kill(
            b"3,7817,1,-;Memory cgroup out of memory: Killed process 6949 (tail)",
            "9896c681dd2a"
        ));
    }
}
