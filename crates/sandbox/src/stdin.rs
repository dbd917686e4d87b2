//! The short way to a sandbox's stdin: its own pipe, where the sandbox runs on this machine and we may.
//!
//! ```text
//!   attached   Cofer ─► engine ─► shim or monitor ─► pipe ─► server      two more processes to wake for each line
//!   here       Cofer ──────────────────────────────► pipe ─► server
//! ```
//!
//! This is sound for stdin alone. What an engine writes to that pipe is what somebody attached says, and that is nobody but us; what the
//! server says, the engine reads, and who reads beside it takes lines away from it. The attached way stays open beside this one, because
//! engines close a stdin that nobody is attached to.
//!
//! Where the first process has no such pipe (gVisor keeps it inside), where the engine's machine is another one, and where we lack the right
//! to look (a user's Cofer and root's engine), the attached way is taken, which is always there.

use std::fs;
use std::io::{self, IoSlice};
use std::os::unix::fs::FileTypeExt as _;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::AsyncWrite;
use tokio::net::unix::pipe;

use crate::plain::Drain;
use crate::sightings::Seen;

/// The sandbox's own pipe if it can be reached, else what is attached.
pub(crate) fn shortest(attached: Drain, seen: &Seen) -> Drain {
    match own_pipe(seen.pid, &seen.sighting.id.0) {
        Some(pipe) => Box::new(Straight { pipe, _attached: attached }),
        None => attached,
    }
}

fn own_pipe(pid: u32, container: &str) -> Option<pipe::Sender> {
    let stdin = format!("/proc/{pid}/fd/0");
    // Nothing but a pipe is opened, whatever the container has put there.
    if !fs::metadata(&stdin).ok()?.file_type().is_fifo() {
        return None;
    }
    let pipe = pipe::OpenOptions::new().open_sender(&stdin).ok()?;
    // Looked at after it was opened: the number was this container's then, and not of a process that came later.
    let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    groups.contains(container).then_some(pipe)
}

struct Straight {
    pipe: pipe::Sender,
    _attached: Drain,
}

impl AsyncWrite for Straight {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.pipe).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.pipe).poll_write_vectored(cx, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.pipe.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.pipe).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.pipe).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_no_containers_or_no_pipe_is_not_written_to() {
        assert!(own_pipe(std::process::id(), "0123456789abcdef").is_none());
        assert!(own_pipe(0, "").is_none());
    }
}
