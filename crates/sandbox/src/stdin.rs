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
//! Under gVisor the first process is gVisor's own, which reads the pipe for the server. Where no such pipe is found, where the engine's machine
//! is another one, and where we lack the right to look (a user's Cofer and root's engine), the attached way is taken, which is always there.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use tokio::net::unix::pipe;

use crate::sightings::Seen;

/// The sandbox's own pipe, if it can be reached.
pub(crate) fn own_pipe_of(seen: &Seen) -> Option<pipe::Sender> {
    own_pipe(seen.pid, &seen.sighting.id.0)
}

fn own_pipe(pid: u32, container: &str) -> Option<pipe::Sender> {
    let pipe = pipe::OpenOptions::new().open_sender(reading_end(pid)?).ok()?;
    // Looked at after it was opened: the number was this container's then, and not of a process that came later.
    let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    groups.contains(container).then_some(pipe)
}

/// The first descriptor of a process if that is a pipe; else the only pipe that it reads and does not itself write to, which is how gVisor
/// holds the stdin of its container. Nothing but a pipe is ever opened, whatever a container has put there.
fn reading_end(pid: u32) -> Option<PathBuf> {
    let descriptors = format!("/proc/{pid}/fd");
    let first = Path::new(&descriptors).join("0");
    if fs::metadata(&first).ok()?.file_type().is_fifo() {
        return Some(first);
    }
    let (mut read, mut written) = (Vec::new(), HashSet::new());
    for descriptor in fs::read_dir(&descriptors).ok()?.flatten() {
        let Ok(about) = fs::metadata(descriptor.path()) else { continue };
        if !about.file_type().is_fifo() {
            continue;
        }
        if is_read_only(pid, &descriptor.file_name())? {
            read.push((about.ino(), descriptor.path()));
        } else {
            written.insert(about.ino());
        }
    }
    read.retain(|(pipe, _)| !written.contains(pipe));
    match &mut read[..] {
        [(_, only)] => Some(std::mem::take(only)),
        _ => None,
    }
}

fn is_read_only(pid: u32, descriptor: &OsStr) -> Option<bool> {
    const ACCESS_MODE: u32 = 0o3;
    let about = fs::read_to_string(format!("/proc/{pid}/fdinfo/{}", descriptor.display())).ok()?;
    let flags = about.lines().find_map(|line| line.strip_prefix("flags:"))?;
    Some(u32::from_str_radix(flags.trim(), 8).ok()? & ACCESS_MODE == 0)
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[tokio::test]
    async fn a_pipe_is_written_to_only_where_it_is_this_containers() {
        let mut reader = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        assert!(own_pipe(reader.id(), "").is_some(), "it reads a pipe, and an empty name is in every group");
        assert!(own_pipe(reader.id(), "0123456789abcdef").is_none(), "it is in no such container");
        assert!(own_pipe(0, "").is_none(), "there is no such process");
        drop(reader.stdin.take());
        reader.wait().unwrap();
    }
}
