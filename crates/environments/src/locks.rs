//! Locks between Cofer processes that work on one repository. The kernel gives them back when their holder dies.
//!
//! A lock that is taken is tried again, more and more seldom and never all at the same moment, until the deadline.

use std::fs::{File, OpenOptions};
use std::path::Path;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use tokio::time::{Instant, sleep};

use crate::error::{EnvError, ErrorKind, Result};

const FIRST_WAIT: Duration = Duration::from_millis(2);
const LONGEST_WAIT: Duration = Duration::from_millis(100);

/// Held until it is dropped.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    Shared,
    Alone,
}

impl Lock {
    /// Takes the lock of this file, which is made if it is not there.
    pub async fn take(path: &Path, hold: Hold, patience: Duration) -> Result<Self> {
        let failed = |error: &std::io::Error| EnvError::io("lock", path.display(), error);
        let file = OpenOptions::new().create(true).truncate(false).write(true).open(path);
        let file = file.map_err(|error| failed(&error))?;
        let operation = match hold {
            Hold::Shared => FlockOperation::NonBlockingLockShared,
            Hold::Alone => FlockOperation::NonBlockingLockExclusive,
        };
        let deadline = Instant::now() + patience;
        let mut wait = FIRST_WAIT;
        loop {
            match flock(&file, operation) {
                Ok(()) => return Ok(Self { _file: file }),
                Err(rustix::io::Errno::WOULDBLOCK) if Instant::now() < deadline => {}
                Err(rustix::io::Errno::WOULDBLOCK) => return Err(busy(path, patience)),
                Err(error) => return Err(failed(&error.into())),
            }
            sleep(wait + jitter(wait)).await;
            wait = (wait * 2).min(LONGEST_WAIT);
        }
    }
}

fn busy(path: &Path, patience: Duration) -> EnvError {
    let message =
        format!("another Cofer holds {} for longer than {} ms", path.display(), patience.as_millis());
    EnvError::new(ErrorKind::Timeout, "lock", message, "wait for the other one to finish, and try again")
}

fn jitter(wait: Duration) -> Duration {
    let mut byte = [0];
    let _ = getrandom::fill(&mut byte);
    wait * u32::from(byte[0]) / 512
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_lock_that_is_held_is_waited_for_and_not_for_ever() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        let patience = Duration::from_millis(50);
        let held = Lock::take(&path, Hold::Shared, patience).await.unwrap();
        let also = Lock::take(&path, Hold::Shared, patience).await.unwrap();
        let error = Lock::take(&path, Hold::Alone, patience).await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::Timeout);
        drop((held, also));
        Lock::take(&path, Hold::Alone, patience).await.unwrap();
    }
}
