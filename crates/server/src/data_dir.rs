//! The data directory: who owns it, and what a person finds there.
//!
//! | file          | what it is                                                             |
//! |---------------|------------------------------------------------------------------------|
//! | `cofer.lock`  | the running server's note: its process id, address and certificate     |
//! | `cofer.db`    | the SQLite database, unless another database is used                   |
//! | `master.key`  | the key that seals secrets, unless `COFER_MASTER_KEY` is set           |
//! | `admin.token` | the admin token made at first start                                    |
//! | `calls.*.jsonl` | calls that are not rows of the database yet (`gateway` room)         |
//! | `repositories`| the paths of repositories that have environments (`environments` room) |
//!
//! Two locks, both the kernel's (`flock`): they end with the process, however that ends, so nothing that a killed
//! server leaves behind stands in anybody's way.
//!
//! | lock on       | held by the owner | says                    | others                                    |
//! |---------------|-------------------|-------------------------|-------------------------------------------|
//! | the directory | for itself alone  | this directory is taken | a second server tries it, and is refused  |
//! | the note      | for itself alone  | the note is true        | who looks tries to share it, and lets go  |
//!
//! The directory cannot be unlinked and made anew as a file can, and all paths to it lead to the same lock. Who only
//! looks never touches it, so that looking keeps nobody from starting. Over a network, locks of directories are often
//! the machine's own and those of files are not: hence a true note alone is a refusal too.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use cofer_model::{Kind, Moment};
use data_encoding::BASE64;
use rustls::pki_types::CertificateDer;
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};

const NOTE_FILE: &str = "cofer.lock";
const NOTE_DRAFT_FILE: &str = "cofer.lock.draft";
/// A note is an address and a certificate. What is longer is not ours.
const NOTE_BYTES_MAX: u64 = 1 << 20;
const ADMIN_TOKEN_FILE: &str = "admin.token";

/// A data directory that this process owns until it drops it.
#[derive(Debug)]
pub struct DataDir {
    path: PathBuf,
    /// Dropped before the claim. Each stays locked, as somebody may just be reading an earlier one.
    notes: Vec<File>,
    _claim: File,
}

/// What a server notes of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Running {
    pub pid: u32,
    /// Missing while it is still starting.
    pub url: Option<String>,
    /// The certificate (PEM) that it serves TLS with, whoever signed it and whatever name is in it.
    pub certificate: Option<String>,
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
    #[error("the data directory {} is in use by {}; stop that one, or give another directory by `--data-dir`", path.display(), describe(owner.as_deref()))]
    InUse { path: PathBuf, owner: Option<Box<Running>> },
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

fn describe(owner: Option<&Running>) -> String {
    match owner {
        None => format!("another process, which says nothing of itself in {NOTE_FILE}"),
        Some(Running { pid, url: None, .. }) => format!("the cofer with process id {pid}"),
        Some(Running { pid, url: Some(url), .. }) => format!("the cofer with process id {pid} at {url}"),
    }
}

impl DataDir {
    /// Makes the directory if need be (for this user alone), and takes it.
    pub fn claim(path: &Path) -> Result<Self, DataDirError> {
        let unusable = |source| DataDirError::Unusable { path: path.to_owned(), source };
        DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(unusable)?;
        warn_if_others_may_read(path);
        let path = path.canonicalize().map_err(unusable)?;
        let claim = File::open(&path).map_err(unusable)?;
        let taken = match claim.try_lock() {
            Ok(()) => false,
            Err(TryLockError::WouldBlock) => true,
            Err(TryLockError::Error(source)) => return Err(unusable(source)),
        };
        match look(&path) {
            Note::True(owner) => return Err(DataDirError::InUse { path, owner: owner.map(Box::new) }),
            Note::Stale if taken => return Err(DataDirError::InUse { path, owner: None }),
            Note::Stale => {}
        }
        let mut claimed = Self { path, notes: Vec::new(), _claim: claim };
        claimed.note(None, None).map_err(unusable)?;
        Ok(claimed)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Tells who looks (`cofer` on the same machine, or a second server) where this one is, and which certificate it
    /// shows there, so that it can be known for what it is.
    pub fn announce(
        &mut self,
        url: String,
        certificate: Option<&CertificateDer<'_>>,
    ) -> Result<(), DataDirError> {
        let noted = self.note(Some(url), certificate.map(to_pem));
        noted.map_err(|source| DataDirError::Unwritable { path: self.path.join(NOTE_FILE), source })
    }

    /// The note is locked before it has its name, and is never changed: who finds it, finds it whole and true.
    fn note(&mut self, url: Option<String>, certificate: Option<String>) -> io::Result<()> {
        let running = Running { pid: std::process::id(), url, certificate, started_at: Moment::now() };
        let draft = self.path.join(NOTE_DRAFT_FILE);
        let mut note = create_private(&draft)?;
        note.try_lock()?;
        note.write_all(&serde_json::to_vec(&running)?)?;
        std::fs::rename(&draft, self.path.join(NOTE_FILE))?;
        self.notes.push(note);
        Ok(())
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
    match look(path) {
        Note::True(running) => running,
        Note::Stale => None,
    }
}

/// What the note in a directory is worth.
enum Note {
    /// Its writer lives. `None` if it cannot be read all the same.
    True(Option<Running>),
    /// There is none, or its writer is gone.
    Stale,
}

fn look(path: &Path) -> Note {
    let Ok(note) = File::open(path.join(NOTE_FILE)) else { return Note::Stale };
    match note.try_lock_shared() {
        Err(TryLockError::WouldBlock) => {
            let mut text = Vec::new();
            let read = note.take(NOTE_BYTES_MAX).read_to_end(&mut text);
            Note::True(read.ok().and_then(|_| serde_json::from_slice(&text).ok()))
        }
        _ => Note::Stale,
    }
}

fn to_pem(certificate: &CertificateDer<'_>) -> String {
    let encoded = BASE64.encode(certificate);
    let lines: Vec<_> = encoded.as_bytes().chunks(64).map(String::from_utf8_lossy).collect();
    format!("-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n", lines.join("\n"))
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
        let mut file = create_private(&draft)?;
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

/// A new file for this user alone. One left from before is removed, not opened.
fn create_private(path: &Path) -> io::Result<File> {
    let _left_from_before = std::fs::remove_file(path);
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
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
    use rustls::pki_types::pem::PemObject;

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
        first.announce("http://127.0.0.1:7070".to_owned(), None).unwrap();
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

    #[test]
    fn looking_and_claiming_do_not_get_in_each_others_way() {
        let dir = tempfile::tempdir().unwrap();
        let done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(std::sync::atomic::Ordering::Relaxed) {
                    running(dir.path());
                }
            });
            for _ in 0..500 {
                let mut claimed = DataDir::claim(dir.path()).unwrap();
                claimed.announce("http://127.0.0.1:7070".to_owned(), None).unwrap();
                assert!(running(dir.path()).unwrap().url.is_some());
            }
            done.store(true, std::sync::atomic::Ordering::Relaxed);
        });
    }

    #[test]
    fn a_certificate_is_noted_as_it_is() {
        let certificate = CertificateDer::from((0..=255).collect::<Vec<u8>>());
        assert_eq!(CertificateDer::from_pem_slice(to_pem(&certificate).as_bytes()).unwrap(), certificate);
    }
}
