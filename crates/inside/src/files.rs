//! Deeds on files that only the container's root may do: giving them to the host's user, and emptying a directory.
//!
//! Every step is relative to a directory that is held open, and nothing is followed: a link is itself, whatever it names. What is mounted below
//! is somebody else's and left alone.

use std::ffi::{CStr, OsStr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use cofer_inside::{Reason, Word};
use rustix::fs::{AtFlags, Dir, FileType, Gid, Mode, OFlags, Stat, Uid};
use rustix::io::Errno;

/// Each level holds one descriptor.
const DEPTH_MAX: usize = 400;

pub fn own(path: &[u8], uid: u32, gid: u32) -> Word<'static> {
    let mut deed = Owning { uid, gid, count: Count::default() };
    on_directory(path, |directory, device| {
        deed.take(directory, c"", AtFlags::EMPTY_PATH);
        walk(directory, device, DEPTH_MAX, &mut deed);
    })
    .unwrap_or_else(|| deed.count.told())
}

pub fn wipe(path: &[u8]) -> Word<'static> {
    let mut deed = Wiping { count: Count::default() };
    on_directory(path, |directory, device| walk(directory, device, DEPTH_MAX, &mut deed))
        .unwrap_or_else(|| deed.count.told())
}

#[derive(Clone, Copy, Default)]
struct Count {
    changed: u32,
    failed: u32,
}

impl Count {
    fn note(&mut self, outcome: rustix::io::Result<()>) {
        match outcome {
            Ok(()) => self.changed = self.changed.saturating_add(1),
            // Somebody was faster.
            Err(Errno::NOENT) => {}
            Err(_) => self.failed = self.failed.saturating_add(1),
        }
    }

    fn told(self) -> Word<'static> {
        Word::Done { changed: self.changed, failed: self.failed }
    }
}

/// What is done to each thing. A directory comes after what is in it.
trait Deed {
    fn on(&mut self, parent: BorrowedFd<'_>, name: &CStr, about: &Stat);
    fn failed(&mut self);
}

struct Owning {
    uid: u32,
    gid: u32,
    count: Count,
}

impl Owning {
    fn take(&mut self, parent: BorrowedFd<'_>, name: &CStr, how: AtFlags) {
        let Ok(about) = rustix::fs::statat(parent, name, how | AtFlags::SYMLINK_NOFOLLOW) else { return };
        self.give(parent, name, &about, how);
    }

    fn give(&mut self, parent: BorrowedFd<'_>, name: &CStr, about: &Stat, how: AtFlags) {
        if (about.st_uid, about.st_gid) == (self.uid, self.gid) {
            return;
        }
        let (uid, gid) = (Uid::from_raw(self.uid), Gid::from_raw(self.gid));
        let how = how | AtFlags::SYMLINK_NOFOLLOW;
        self.count.note(rustix::fs::chownat(parent, name, Some(uid), Some(gid), how));
    }
}

impl Deed for Owning {
    fn on(&mut self, parent: BorrowedFd<'_>, name: &CStr, about: &Stat) {
        self.give(parent, name, about, AtFlags::empty());
    }

    fn failed(&mut self) {
        self.count.failed = self.count.failed.saturating_add(1);
    }
}

struct Wiping {
    count: Count,
}

impl Deed for Wiping {
    fn on(&mut self, parent: BorrowedFd<'_>, name: &CStr, about: &Stat) {
        let is_directory = FileType::from_raw_mode(about.st_mode) == FileType::Directory;
        let how = if is_directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
        self.count.note(rustix::fs::unlinkat(parent, name, how));
    }

    fn failed(&mut self) {
        self.count.failed = self.count.failed.saturating_add(1);
    }
}

/// Opens it and does it; a word of refusal if it is no directory.
fn on_directory(path: &[u8], deed: impl FnOnce(BorrowedFd<'_>, u64)) -> Option<Word<'static>> {
    let path = Path::new(OsStr::from_bytes(path));
    let opened = rustix::fs::open(path, DIRECTORY, Mode::empty())
        .and_then(|directory| Ok((rustix::fs::fstat(&directory)?.st_dev, directory)));
    match opened {
        Ok((device, directory)) => {
            deed(directory.as_fd(), device);
            None
        }
        Err(error) => {
            let text = format!("the directory {} could not be opened: {error}", path.display());
            Some(Word::Refused(Reason::NotFound, text))
        }
    }
}

const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

fn walk(directory: BorrowedFd<'_>, device: u64, depth: usize, deed: &mut impl Deed) {
    let Ok(entries) = Dir::read_from(directory) else { return deed.failed() };
    for entry in entries.flatten() {
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        let Ok(about) = rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
        if about.st_dev != device {
            continue;
        }
        if FileType::from_raw_mode(about.st_mode) == FileType::Directory {
            match open_below(directory, name, depth) {
                Some(below) => walk(below.as_fd(), device, depth - 1, deed),
                None => deed.failed(),
            }
        }
        deed.on(directory, name, &about);
    }
}

fn open_below(directory: BorrowedFd<'_>, name: &CStr, depth: usize) -> Option<OwnedFd> {
    if depth == 0 {
        return None;
    }
    rustix::fs::openat(directory, name, DIRECTORY, Mode::empty()).ok()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_wipe_takes_links_themselves_and_never_what_they_name() {
        let outside = tempfile::tempdir().unwrap();
        fs::write(outside.path().join("precious"), "1").unwrap();
        let inside = tempfile::tempdir().unwrap();
        let path = inside.path();
        fs::create_dir_all(path.join("a/b/c")).unwrap();
        fs::write(path.join("a/b/c/file"), "1").unwrap();
        symlink(outside.path(), path.join("a/link")).unwrap();
        symlink(outside.path().join("precious"), path.join("file")).unwrap();
        symlink("nowhere", path.join("dangling")).unwrap();
        let told = wipe(path.as_os_str().as_bytes());
        assert_eq!(told, Word::Done { changed: 7, failed: 0 });
        assert_eq!(fs::read_dir(path).unwrap().count(), 0);
        assert!(outside.path().join("precious").exists());
    }

    #[test]
    fn a_directory_that_is_a_link_is_refused() {
        let outside = tempfile::tempdir().unwrap();
        fs::write(outside.path().join("precious"), "1").unwrap();
        let inside = tempfile::tempdir().unwrap();
        let link = inside.path().join("workdir");
        symlink(outside.path(), &link).unwrap();
        let told = wipe(link.as_os_str().as_bytes());
        assert!(matches!(told, Word::Refused(Reason::NotFound, _)), "{told:?}");
        assert!(outside.path().join("precious").exists());
    }
}
