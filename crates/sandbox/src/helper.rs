//! The helper (`crates/inside`): Cofer has it with it, writes it out where containers can mount it from, and starts it itself as a guardian.

use std::env;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use rustix::fs::MemfdFlags;
use rustix::io::Errno;

const HELPER: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/cofer-inside"));
/// Named by what it is, so that a Cofer of another version, and its containers, keep theirs.
const NAME: &str = concat!("cofer-inside-", env!("COFER_INSIDE_HASH"));
const MODE: u32 = 0o555;

/// The helper in this directory, written unless it is there.
pub(crate) fn write_out(directory: &Path) -> io::Result<PathBuf> {
    let path = directory.join(NAME);
    if fs::read(&path).is_ok_and(|there| there == HELPER) {
        return Ok(path);
    }
    fs::create_dir_all(directory)?;
    // Several may do this at once: each writes its own, and the last rename wins.
    let draft = directory.join(format!("{NAME}.{}", uuid::Uuid::new_v4().simple()));
    let written = write_to(&draft).and_then(|()| fs::rename(&draft, &path));
    if written.is_err() {
        let _ = fs::remove_file(&draft);
    }
    written.map(|()| path)
}

/// The helper as a program that can be started here. It is in no folder, so that nothing of it is left, and a newer Cofer's is another one.
pub(crate) fn to_start() -> io::Result<PathBuf> {
    static HELD: OnceLock<File> = OnceLock::new();
    let held = if let Some(held) = HELD.get() {
        held
    } else {
        let opened = in_memory().or_else(|_not_allowed| without_a_name(&env::temp_dir()))?;
        // Of two that do this at once, one is kept.
        HELD.get_or_init(|| opened)
    };
    Ok(format!("/proc/self/fd/{}", held.as_raw_fd()).into())
}

fn in_memory() -> io::Result<File> {
    let flags = MemfdFlags::CLOEXEC;
    let made = match rustix::fs::memfd_create("cofer-guard", flags | MemfdFlags::EXEC) {
        // A kernel that has never heard of one that may not be started.
        Err(Errno::INVAL) => rustix::fs::memfd_create("cofer-guard", flags),
        made => made,
    };
    let mut file = File::from(made?);
    file.write_all(HELPER)?;
    Ok(file)
}

/// Where memory may not be started from: a file that has lost its name.
fn without_a_name(directory: &Path) -> io::Result<File> {
    let draft = directory.join(format!("{NAME}.{}", uuid::Uuid::new_v4().simple()));
    let opened = write_to(&draft).and_then(|()| File::open(&draft));
    let removed = fs::remove_file(&draft);
    removed.and(opened)
}

fn write_to(draft: &Path) -> io::Result<()> {
    let mut file = File::create_new(draft)?;
    file.write_all(HELPER)?;
    file.set_permissions(fs::Permissions::from_mode(MODE))?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn it_is_written_once_and_again_when_somebody_changed_it() {
        let directory = tempfile::tempdir().unwrap();
        let below = directory.path().join("below");
        let path = write_out(&below).unwrap();
        let first = fs::metadata(&path).unwrap().modified().unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, MODE);
        assert_eq!(write_out(&below).unwrap(), path);
        assert_eq!(fs::metadata(&path).unwrap().modified().unwrap(), first);
        fs::remove_file(&path).unwrap();
        fs::write(&path, "something else").unwrap();
        write_out(&below).unwrap();
        assert_eq!(fs::read(&path).unwrap(), HELPER);
        assert_eq!(fs::read_dir(&below).unwrap().count(), 1);
    }

    #[test]
    fn it_is_started_out_of_memory_or_from_a_file_without_a_name() {
        let directory = tempfile::tempdir().unwrap();
        let unnamed = without_a_name(directory.path()).unwrap();
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
        for file in [in_memory().unwrap(), unnamed] {
            let started = Command::new(format!("/proc/self/fd/{}", file.as_raw_fd())).output().unwrap();
            assert!(String::from_utf8_lossy(&started.stderr).contains("not for people"), "{started:?}");
        }
        assert_eq!(to_start().unwrap(), to_start().unwrap());
    }

    #[test]
    fn it_needs_nothing_of_the_image() {
        let directory = tempfile::tempdir().unwrap();
        let helper = fs::read(write_out(directory.path()).unwrap()).unwrap();
        assert!(helper.starts_with(b"\x7fELF"));
        let interpreter = helper.windows(8).any(|window| window == b"/ld-linu");
        assert!(!interpreter, "it is not static");
    }
}
