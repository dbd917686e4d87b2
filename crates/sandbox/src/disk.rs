//! How much disk a sandbox uses: its writable layer and its volumes together, and files that it still writes to after they have lost
//! their name.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

const BLOCK_BYTES: u64 = 512;
/// Open files of these names are memory, which has its own limit.
const MEMORY_NAMES: [&str; 3] = ["/memfd:", "/dev/", "/SYSV"];

/// Where a sandbox's bytes are on this machine.
#[derive(Clone, Debug)]
pub(crate) struct Extent {
    /// The container's full name, which its processes' control groups bear.
    pub container: String,
    /// Its writable layer and its volumes.
    pub directories: Vec<PathBuf>,
}

impl Extent {
    /// Whether it can be measured from here: the engine may be elsewhere, or not let us look.
    pub fn is_within_reach(&self) -> bool {
        !self.directories.is_empty()
            && self.directories.iter().all(|directory| fs::read_dir(directory).is_ok())
    }

    pub fn used_bytes(&self) -> io::Result<u64> {
        Ok(self.named_bytes()? + nameless_bytes(processes_of(&self.container)))
    }

    /// The same, where its processes are known already. What has names comes first, and is enough if it is more than so much.
    pub fn used_bytes_of(&self, processes: Vec<PathBuf>, enough: u64) -> io::Result<u64> {
        let named = self.named_bytes()?;
        if named > enough { Ok(named) } else { Ok(named + nameless_bytes(processes)) }
    }

    fn named_bytes(&self) -> io::Result<u64> {
        self.directories.iter().try_fold(0, |total, directory| Ok(total + bytes_below(directory)?))
    }

    /// One directory for each filesystem that it is on.
    pub fn filesystems(&self) -> Vec<PathBuf> {
        let mut seen = HashSet::new();
        let is_new =
            |directory: &&PathBuf| fs::metadata(directory).is_ok_and(|about| seen.insert(about.dev()));
        self.directories.iter().filter(is_new).cloned().collect()
    }
}

/// What is free on all of these filesystems together, which the kernel knows without looking.
pub(crate) fn free_bytes(filesystems: &[PathBuf]) -> io::Result<u64> {
    filesystems.iter().try_fold(0, |total, path| {
        let about = rustix::fs::statvfs(path)?;
        Ok(total + about.f_bfree * about.f_frsize)
    })
}

/// What everything below a directory takes on the disk. A file with two names counts once; one that goes away meanwhile is none.
pub(crate) fn bytes_below(directory: &Path) -> io::Result<u64> {
    let mut total = 0;
    let mut seen_with_two_names = HashSet::new();
    let mut directories = vec![fs::read_dir(directory)?];
    while let Some(entries) = directories.pop() {
        for entry in entries.flatten() {
            let Ok(about) = entry.metadata() else { continue };
            if about.nlink() > 1 && !about.is_dir() && !seen_with_two_names.insert((about.dev(), about.ino()))
            {
                continue;
            }
            total += about.blocks() * BLOCK_BYTES;
            if about.is_dir() {
                directories.extend(fs::read_dir(entry.path()));
            }
        }
    }
    Ok(total)
}

/// The processes whose control group bears the container's name, as directories of `/proc`.
fn processes_of(container: &str) -> Vec<PathBuf> {
    let all = fs::read_dir("/proc").into_iter().flatten().flatten().map(|process| process.path());
    all.filter(|process| {
        fs::read_to_string(process.join("cgroup")).is_ok_and(|groups| groups.contains(container))
    })
    .collect()
}

/// What these processes hold open although it has no name any more.
fn nameless_bytes(processes: Vec<PathBuf>) -> u64 {
    let mut seen = HashSet::new();
    let open_files = processes
        .into_iter()
        .flat_map(|process| fs::read_dir(process.join("fd")).into_iter().flatten().flatten());
    let nameless = open_files.filter_map(|file| {
        let name = fs::read_link(file.path()).ok()?;
        let is_memory = MEMORY_NAMES.iter().any(|memory| name.to_string_lossy().starts_with(memory));
        let about = fs::metadata(file.path()).ok()?;
        let counts =
            !is_memory && about.is_file() && about.nlink() == 0 && seen.insert((about.dev(), about.ino()));
        counts.then(|| about.blocks() * BLOCK_BYTES)
    });
    nameless.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_with_two_names_counts_once_and_one_without_a_name_is_none_here() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        fs::create_dir(path.join("below")).unwrap();
        let empty = bytes_below(path).unwrap();
        fs::write(path.join("below/one"), vec![1; 1 << 20]).unwrap();
        fs::hard_link(path.join("below/one"), path.join("two")).unwrap();
        assert_eq!(bytes_below(path).unwrap() - empty, 1 << 20);
        assert!(bytes_below(&path.join("nowhere")).is_err());
    }
}
