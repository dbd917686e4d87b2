//! Which repositories have environments: a file for each in a folder of the data directory, where a running Cofer looks.
//!
//! ```text
//!   <data directory>/repositories/env-0123456789abcdef     the path of one repository
//! ```
//!
//! A repository may have many worktrees. Noted is the one in which `cofer init` was run: environments are kept there, and go with it.
//!
//! What is known of environments is in their repositories, and stays true without this. So a register that cannot be written keeps nobody
//! from working, and what stands in it is looked at anew each time: a repository may have been moved or removed.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::timeout;

use crate::git::Source;
use crate::{blocking, files, state};

const FOLDER: &str = "repositories";
/// Longer than any path that the kernel takes.
const PATH_BYTES_MAX: u64 = 8 << 10;
const REPOSITORIES_MAX: usize = 256;
/// How long who works waits for it. A full register is tidied up, and a disk that is gone does not answer.
const NOTE_MAX: Duration = Duration::from_secs(5);

/// The register of one data directory.
#[derive(Clone, Debug)]
pub struct Register {
    folder: PathBuf,
}

impl Register {
    pub fn of(data_dir: &Path) -> Self {
        Self { folder: data_dir.join(FOLDER) }
    }

    /// Notes the repository, if that can be done in a moment.
    pub async fn note(&self, source: &Source) {
        let (register, noted) = (self.clone(), source.clone());
        let written = timeout(NOTE_MAX, blocking(move || register.write(&noted))).await;
        let reason = match written {
            Ok(Ok(Ok(()))) => return,
            Ok(Ok(Err(error))) => error.to_string(),
            Ok(Err(error)) => error.to_string(),
            Err(late) => late.to_string(),
        };
        let (home, folder) = (source.home().display(), self.folder.display());
        tracing::debug!("{home} is not noted in {folder}: {reason}");
    }

    fn write(&self, source: &Source) -> io::Result<()> {
        let file = self.folder.join(state::instance(source));
        let path = source.home().as_os_str().as_bytes();
        if files::read_own(&file, PATH_BYTES_MAX).is_ok_and(|there| there == path) {
            return Ok(());
        }
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.folder)?;
        if self.entries().len() >= REPOSITORIES_MAX {
            self.forget_gone();
        }
        files::replace(&file, path)
    }

    /// Those that were noted, as far as this many go. Nobody looked whether they are still there: a disk that is gone does not answer.
    pub fn repositories(&self) -> Vec<PathBuf> {
        self.entries().into_iter().take(REPOSITORIES_MAX).filter_map(|file| named_in(&file)).collect()
    }

    fn forget_gone(&self) {
        let gone = |file: &PathBuf| !named_in(file).is_some_and(|path| path.is_dir());
        for file in self.entries().into_iter().filter(gone) {
            let _ = fs::remove_file(file);
        }
    }

    fn entries(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let ours = entries.filter(|entry| entry.file_name().as_bytes().starts_with(b"env-"));
        let mut files: Vec<PathBuf> = ours.map(|entry| entry.path()).collect();
        files.sort();
        files
    }
}

fn named_in(file: &Path) -> Option<PathBuf> {
    let path = PathBuf::from(OsString::from_vec(files::read_own(file, PATH_BYTES_MAX).ok()?));
    path.is_absolute().then_some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(top: &Path) -> Source {
        fs::create_dir_all(top).unwrap();
        Source::at(top, Duration::from_secs(30))
    }

    #[tokio::test]
    async fn a_repository_is_noted_once() {
        let folder = tempfile::tempdir().unwrap();
        let register = Register::of(&folder.path().join("data"));
        assert_eq!(register.repositories(), Vec::<PathBuf>::new());
        let (one, other) = (folder.path().join("one"), folder.path().join("the other"));
        for top in [&one, &other, &one] {
            register.note(&source(top)).await;
        }
        let mut listed = register.repositories();
        listed.sort();
        assert_eq!(listed, [one, other]);
    }

    #[tokio::test]
    async fn a_full_register_forgets_what_is_gone() {
        let folder = tempfile::tempdir().unwrap();
        let register = Register::of(folder.path());
        for number in 0..REPOSITORIES_MAX {
            let top = folder.path().join(number.to_string());
            register.note(&source(&top)).await;
            fs::remove_dir(&top).unwrap();
        }
        assert_eq!(register.entries().len(), REPOSITORIES_MAX);
        register.note(&source(&folder.path().join("new"))).await;
        assert_eq!(register.entries().len(), 1);
    }

    #[tokio::test]
    async fn what_is_no_path_and_what_cannot_be_written_is_passed_over() {
        let folder = tempfile::tempdir().unwrap();
        let register = Register::of(folder.path());
        let entries = folder.path().join(FOLDER);
        fs::create_dir(&entries).unwrap();
        fs::write(entries.join("env-relative"), "some/where").unwrap();
        fs::write(entries.join("env-long"), vec![b'/'; 9 << 10]).unwrap();
        std::os::unix::fs::symlink("/dev/zero", entries.join("env-endless")).unwrap();
        assert_eq!(register.repositories(), Vec::<PathBuf>::new());
        Register::of(Path::new("/proc/nowhere")).note(&source(&folder.path().join("one"))).await;
    }
}
