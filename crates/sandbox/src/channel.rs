//! The channel directory: what Cofer and the helper inside a container share, and the container can write to.
//!
//! So nothing in it is taken for what it looks like. A name there may have become a link to anything of this machine, a pipe that never says
//! anything, or a file without an end; each is opened without following it, looked at, and read so far as it can be ours.

use std::fs::{self, File, Permissions};
use std::io::{self, Read as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Duration;

use cofer_inside::{LOG_BYTES_MAX, LOG_HEADER_BYTES, LOGS, READY, SOCKET};
use rustix::fs::{FileType, Mode, OFlags};
use tokio::net::UnixStream;
use tokio::time::Instant;

const CONNECT_MAX: Duration = Duration::from_secs(5);
/// So many wait at the helper's door already that it takes no more for a moment.
const KNOCK_AGAIN_AFTER: Duration = Duration::from_millis(2);

/// A fresh one, for nobody else's eyes.
pub(crate) fn prepare(channel: &Path) -> io::Result<()> {
    fs::create_dir_all(channel)?;
    fs::set_permissions(channel, Permissions::from_mode(0o700))?;
    for name in [SOCKET, READY].into_iter().chain(LOGS) {
        match fs::remove_file(channel.join(name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

pub(crate) fn is_ready(channel: &Path) -> bool {
    fs::symlink_metadata(channel.join(READY)).is_ok()
}

/// Opens what has this name itself, if it is of this type.
fn open(channel: &Path, name: &str, flags: OFlags, wanted: FileType) -> io::Result<OwnedFd> {
    let directory =
        rustix::fs::open(channel, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let fd = rustix::fs::openat(&directory, name, flags | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    if FileType::from_raw_mode(rustix::fs::fstat(&fd)?.st_mode) != wanted {
        return Err(io::Error::new(io::ErrorKind::Unsupported, format!("`{name}` is not what it should be")));
    }
    Ok(fd)
}

/// Connects to the helper. The socket is held before it is looked at, and connected to as it is held: nobody can put another in its place, and
/// its path may be of any length.
pub(crate) async fn connect(channel: &Path) -> io::Result<UnixStream> {
    let socket = open(channel, SOCKET, OFlags::PATH, FileType::Socket)?;
    let path = format!("/proc/self/fd/{}", socket.as_raw_fd());
    let deadline = Instant::now() + CONNECT_MAX;
    loop {
        match UnixStream::connect(&path).await {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && Instant::now() < deadline => {
                tokio::time::sleep(KNOCK_AGAIN_AFTER).await;
            }
            outcome => return outcome,
        }
    }
}

/// The newest of what a background command said, oldest first.
pub(crate) fn log(channel: &Path) -> io::Result<Vec<u8>> {
    let mut parts: Vec<(u64, Vec<u8>)> = Vec::new();
    for name in LOGS {
        match log_file(channel, name) {
            Ok(part) => parts.extend(part),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    parts.sort_by_key(|(order, _)| *order);
    Ok(parts.into_iter().flat_map(|(_, text)| text).collect())
}

fn log_file(channel: &Path, name: &str) -> io::Result<Option<(u64, Vec<u8>)>> {
    // Without waiting: whoever opens a pipe waits for its writer.
    let file = File::from(open(channel, name, OFlags::RDONLY | OFlags::NONBLOCK, FileType::RegularFile)?);
    let mut content = Vec::new();
    file.take((LOG_HEADER_BYTES + LOG_BYTES_MAX) as u64).read_to_end(&mut content)?;
    let Some((order, text)) = content.split_first_chunk::<LOG_HEADER_BYTES>() else { return Ok(None) };
    Ok(Some((u64::from_be_bytes(*order), text.to_vec())))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    use super::*;

    #[tokio::test]
    async fn a_link_to_a_socket_of_this_machine_is_not_connected_to() {
        let (channel, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let precious = elsewhere.path().join("engine.sock");
        let listener = UnixListener::bind(&precious).unwrap();
        listener.set_nonblocking(true).unwrap();
        symlink(&precious, channel.path().join(SOCKET)).unwrap();
        let error = connect(channel.path()).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::Unsupported, "{error}");
        assert_eq!(listener.accept().unwrap_err().kind(), io::ErrorKind::WouldBlock);
        fs::remove_file(channel.path().join(SOCKET)).unwrap();
        fs::hard_link(&precious, channel.path().join(SOCKET)).unwrap();
        connect(channel.path()).await.unwrap();
    }

    #[tokio::test]
    async fn a_path_longer_than_a_socket_may_have_is_connected_to() {
        let directory = tempfile::tempdir().unwrap();
        let long = directory.path().join("x".repeat(100)).join("y".repeat(100));
        fs::create_dir_all(&long).unwrap();
        let near = directory.path().join("s");
        let _listener = UnixListener::bind(&near).unwrap();
        fs::rename(&near, long.join(SOCKET)).unwrap();
        connect(&long).await.unwrap();
    }

    #[test]
    fn a_log_that_is_a_link_a_pipe_or_endless_is_not_read_as_one() {
        let (channel, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let path = channel.path();
        assert_eq!(log(path).unwrap(), b"");
        fs::write(elsewhere.path().join("secret"), "12345678secret").unwrap();
        symlink(elsewhere.path().join("secret"), path.join(LOGS[0])).unwrap();
        assert!(log(path).is_err());
        fs::remove_file(path.join(LOGS[0])).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, path.join(LOGS[0]), FileType::Fifo, Mode::RUSR, 0).unwrap();
        assert!(log(path).is_err());
        fs::remove_file(path.join(LOGS[0])).unwrap();
        let file = File::create(path.join(LOGS[0])).unwrap();
        file.set_len(1 << 40).unwrap();
        assert_eq!(log(path).unwrap().len(), LOG_BYTES_MAX);
    }

    #[test]
    fn the_older_part_of_a_log_comes_first() {
        let channel = tempfile::tempdir().unwrap();
        fs::write(channel.path().join(LOGS[0]), [&9u64.to_be_bytes()[..], b"newer"].concat()).unwrap();
        fs::write(channel.path().join(LOGS[1]), [&8u64.to_be_bytes()[..], b"older "].concat()).unwrap();
        assert_eq!(log(channel.path()).unwrap(), b"older newer");
        prepare(channel.path()).unwrap();
        assert_eq!(log(channel.path()).unwrap(), b"");
    }
}
