//! The data directory: who owns it, and what a person finds there.
//!
//! | file          | what it is                                                             |
//! |---------------|------------------------------------------------------------------------|
//! | `cofer.lock`  | held by the running server; says its process id and address            |
//! | `cofer.db`    | the SQLite database, unless another database is used                   |
//! | `master.key`  | the key that seals secrets, unless `COFER_MASTER_KEY` is set           |
//! | `admin.token` | the admin token made at first start                                    |
//!
//! The lock is the kernel's (`flock`): it ends with the process, however that ends, so a lock file left behind by a
//! killed server never stands in anybody's way.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use cofer_model::{Kind, Moment};
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};

const LOCK_FILE: &str = "cofer.lock";
const ADMIN_TOKEN_FILE: &str = "admin.token";

/// A data directory that this process owns until it drops it.
#[derive(Debug)]
pub struct DataDir {
    path: PathBuf,
    lock: File,
}

/// What the lock file says of the server that holds it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Running {
    pub pid: u32,
    /// Missing while it is still starting.
    pub url: Option<String>,
    pub started_at: Moment,
}

#[derive(Debug, thiserror::Error)]
pub enum DataDirError {
    #[error("the data directory {} cannot be used; give another by `--data-dir`, or make it writable for this user", path.display())]
    Unusable {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("the data directory {} is in use by the cofer with process id {pid}{}; stop that one, or give another directory by `--data-dir`", path.display(), .url.as_ref().map(|url| format!(" at {url}")).unwrap_or_default())]
    InUse { path: PathBuf, pid: u32, url: Option<String> },
    #[error("{} cannot be written", path.display())]
    Unwritable {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

impl DataDirError {
    pub fn kind(&self) -> Kind {
        match self {
            Self::Unusable { .. } | Self::Unwritable { .. } => Kind::Forbidden,
            Self::InUse { .. } => Kind::Conflict,
        }
    }
}

impl DataDir {
    /// Makes the directory if need be (for this user alone), and takes it.
    pub fn claim(path: &Path) -> Result<Self, DataDirError> {
        let unusable = |source| DataDirError::Unusable { path: path.to_owned(), source };
        DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(unusable)?;
        warn_if_others_may_read(path);
        let path = path.canonicalize().map_err(unusable)?;
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let mut lock = options.open(path.join(LOCK_FILE)).map_err(unusable)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let (pid, url) = read_running(&mut lock).map_or((0, None), |owner| (owner.pid, owner.url));
                return Err(DataDirError::InUse { path, pid, url });
            }
            Err(TryLockError::Error(source)) => return Err(unusable(source)),
        }
        let mut claimed = Self { path, lock };
        claimed.announce(None)?;
        Ok(claimed)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Tells who looks (`cofer` on the same machine, or a second server) where this one is.
    pub fn announce(&mut self, url: Option<String>) -> Result<(), DataDirError> {
        let running = Running { pid: std::process::id(), url, started_at: Moment::now() };
        let text = serde_json::to_vec(&running).unwrap_or_default();
        let write = || {
            let mut lock = &self.lock;
            lock.rewind()?;
            lock.write_all(&text)?;
            lock.set_len(text.len() as u64)
        };
        write().map_err(|source| DataDirError::Unwritable { path: self.path.join(LOCK_FILE), source })
    }

    pub fn admin_token_file(&self) -> PathBuf {
        self.path.join(ADMIN_TOKEN_FILE)
    }

    pub fn write_admin_token(&self, token: &SecretString) -> Result<(), DataDirError> {
        write_private(&self.admin_token_file(), token)
    }

    /// Removes a token file whose token no longer holds. Says whether there was one.
    pub fn remove_admin_token(&self) -> Result<bool, DataDirError> {
        let path = self.admin_token_file();
        match std::fs::remove_file(&path) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(source) => Err(DataDirError::Unwritable { path, source }),
        }
    }
}

/// The server that holds this data directory, if one is running.
pub fn running(path: &Path) -> Option<Running> {
    let mut lock = File::open(path.join(LOCK_FILE)).ok()?;
    match lock.try_lock_shared() {
        Err(TryLockError::WouldBlock) => read_running(&mut lock),
        _ => None,
    }
}

/// The admin token that a server on this machine wrote for us to find.
pub fn admin_token(path: &Path) -> Option<SecretString> {
    let text = std::fs::read_to_string(path.join(ADMIN_TOKEN_FILE)).ok()?;
    Some(SecretString::from(text.trim()))
}

/// Writes a secret to a file of its own, for this user alone: a new file, then a rename, so that there is never half
/// a file and never one that others could open.
pub fn write_private(path: &Path, secret: &SecretString) -> Result<(), DataDirError> {
    let write = || {
        let draft = path.with_extension("draft");
        let _left_from_before = std::fs::remove_file(&draft);
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft)?;
        file.write_all(secret.expose_secret().as_bytes())?;
        file.write_all(b"\n")?;
        file.sync_all()?;
        std::fs::rename(&draft, path)?;
        sync_directory_of(path)
    };
    write().map_err(|source| DataDirError::Unwritable { path: path.to_owned(), source })
}

/// A new name survives a power cut only once its directory was written, too.
pub(crate) fn sync_directory_of(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), |dir| File::open(dir)?.sync_all())
}

fn read_running(lock: &mut File) -> Option<Running> {
    let mut text = String::new();
    lock.read_to_string(&mut text).ok()?;
    serde_json::from_str(&text).ok()
}

fn warn_if_others_may_read(path: &Path) {
    let mode = std::fs::metadata(path).map_or(0, |meta| meta.permissions().mode());
    if mode & 0o077 != 0 {
        let path = path.display();
        tracing::warn!("the data directory {path} is open to other users; `chmod 700 {path}` closes it");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        std::fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn the_directory_and_what_is_written_there_are_for_this_user_alone() {
        let parent = tempfile::tempdir().unwrap();
        let claimed = DataDir::claim(&parent.path().join("a/b")).unwrap();
        claimed.write_admin_token(&"token".into()).unwrap();
        assert_eq!((mode(claimed.path()), mode(&claimed.admin_token_file())), (0o700, 0o600));
    }

    #[test]
    fn a_second_claim_is_refused_and_names_the_first() {
        let dir = tempfile::tempdir().unwrap();
        let mut first = DataDir::claim(dir.path()).unwrap();
        first.announce(Some("http://127.0.0.1:7070".to_owned())).unwrap();
        let refusal = DataDir::claim(dir.path()).unwrap_err().to_string();
        assert!(
            refusal.contains(&format!("process id {} at http://127.0.0.1:7070", std::process::id())),
            "{refusal}"
        );
    }

    #[test]
    fn a_lock_file_left_behind_stands_in_nobodys_way() {
        let dir = tempfile::tempdir().unwrap();
        drop(DataDir::claim(dir.path()).unwrap());
        assert_eq!(running(dir.path()), None);
        let claimed = DataDir::claim(dir.path()).unwrap();
        assert_eq!(running(dir.path()).unwrap().pid, std::process::id());
        drop(claimed);
    }
}
