//! A client's file on disk: found behind its links, read once, kept in a backup, and replaced as a whole.
//!
//! ```text
//!   look ──► text ──► (document) ──► back_up ──► replace
//!                                                  │ somebody wrote it meanwhile: refused
//! ```
//!
//! A new text is written beside the old one and renamed over it, with the old one's mode and owner, so that a client sees the one
//! or the other and never half of it.

use std::fs::{self, Metadata, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use cofer_model::Kind;
use tempfile::NamedTempFile;

use crate::exit::Failure;

/// Claude Code keeps much more than servers in its file.
const FILE_BYTES_MAX: u64 = 32 << 20;
const LINKS_MAX: usize = 32;
pub const BACKUP_SUFFIX: &str = ".cofer-backup";
const BACKUPS_MAX: usize = 10_000;

const ANYBODYS: u32 = 0o666;
const OWNERS_ALONE: u32 = 0o600;

/// Who may read a file when it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readers {
    AsBefore,
    /// For a text with a token in it.
    OwnerAlone,
}

/// A file as it was when we looked.
#[derive(Debug)]
pub struct ClientFile {
    /// Where it really is.
    pub path: PathBuf,
    /// None if there is none yet.
    pub text: Option<String>,
    metadata: Option<Metadata>,
}

impl ClientFile {
    pub fn look(path: &Path) -> Result<Self, Failure> {
        let path = behind_links(path)?;
        let metadata = match fs::metadata(&path) {
            Ok(metadata) => Some(metadata),
            Err(error) if is_absence(&error) => None,
            Err(error) => return Err(unusable(&path, "cannot be read", &error)),
        };
        let text = metadata.as_ref().map(|metadata| read(&path, metadata)).transpose()?;
        Ok(Self { path, text, metadata })
    }

    /// Keeps what is there now beside it, under a name that nothing has yet. Nothing there, nothing kept.
    pub fn back_up(&self) -> Result<Option<PathBuf>, Failure> {
        let Some(text) = &self.text else { return Ok(None) };
        let draft = self.draft(text, Readers::AsBefore)?;
        self.keep_as_backup(draft).map(Some)
    }

    fn keep_as_backup(&self, mut draft: NamedTempFile) -> Result<PathBuf, Failure> {
        for number in 1..=BACKUPS_MAX {
            let backup = beside(&self.path, &backup_suffix(number));
            match draft.persist_noclobber(&backup) {
                Ok(_) => return Ok(backup),
                Err(error) if error.error.kind() == io::ErrorKind::AlreadyExists => draft = error.file,
                Err(error) => return Err(unusable(&backup, "cannot be written", &error.error)),
            }
        }
        let message = format!("{} has {BACKUPS_MAX} backups; remove some", self.path.display());
        Err(Failure::new(Kind::Conflict, message))
    }

    /// Puts this text in its place, if nobody changed it since we looked.
    pub fn replace(&self, text: &str, readers: Readers) -> Result<(), Failure> {
        let draft = self.draft(text, readers)?;
        self.check_unchanged()?;
        let placed = draft.persist(&self.path);
        placed.map_err(|error| unusable(&self.path, "cannot be written", &error.error))?;
        Ok(())
    }

    /// Puts a backup back, or nothing where there was nothing, if nobody changed the file since we looked.
    pub fn restore(&self, backup: Option<&Path>) -> Result<(), Failure> {
        self.check_unchanged()?;
        let restored = match (backup, &self.text) {
            (Some(backup), _) => fs::rename(backup, &self.path),
            (None, Some(_)) => fs::remove_file(&self.path),
            (None, None) => Ok(()),
        };
        restored.map_err(|error| unusable(&self.path, "cannot be put back", &error))
    }

    /// Makes the folders too, so that there is a place for whatever is put beside it.
    fn draft(&self, text: &str, readers: Readers) -> Result<NamedTempFile, Failure> {
        let failed = |error: io::Error| unusable(&self.path, "cannot be written", &error);
        let folder = self.path.parent().unwrap_or(Path::new("/"));
        fs::create_dir_all(folder).map_err(failed)?;
        let mode = match (readers, &self.metadata) {
            (Readers::OwnerAlone, _) => OWNERS_ALONE,
            (Readers::AsBefore, Some(metadata)) => metadata.mode() & 0o7777,
            (Readers::AsBefore, None) => ANYBODYS,
        };
        let permissions = Permissions::from_mode(mode);
        let mut builder = tempfile::Builder::new();
        let mut draft = builder.permissions(permissions.clone()).tempfile_in(folder).map_err(failed)?;
        draft.write_all(text.as_bytes()).map_err(failed)?;
        if let Some(metadata) = &self.metadata {
            self.give_to_owner(&draft, metadata)?;
            // What was asked for at first went through the umask.
            draft.as_file().set_permissions(permissions).map_err(failed)?;
        }
        draft.as_file().sync_all().map_err(failed)?;
        Ok(draft)
    }

    fn give_to_owner(&self, draft: &NamedTempFile, wanted: &Metadata) -> Result<(), Failure> {
        let own = draft.as_file().metadata().map_err(Failure::internal)?;
        if (own.uid(), own.gid()) == (wanted.uid(), wanted.gid()) {
            return Ok(());
        }
        let (uid, gid) = (rustix::fs::Uid::from_raw(wanted.uid()), rustix::fs::Gid::from_raw(wanted.gid()));
        rustix::fs::fchown(draft.as_file(), Some(uid), Some(gid)).map_err(|_| {
            let message = format!("{} belongs to somebody else; do this as its owner", self.path.display());
            Failure::new(Kind::Forbidden, message)
        })
    }

    fn check_unchanged(&self) -> Result<(), Failure> {
        if Self::look(&self.path)?.text == self.text {
            return Ok(());
        }
        let message = format!(
            "{} was changed by somebody else just now, and is left as they wrote it; try again",
            self.path.display()
        );
        Err(Failure::new(Kind::Conflict, message))
    }
}

/// A neighbour of a file, with its name and a bit more.
pub fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(suffix);
    path.with_file_name(name)
}

fn backup_suffix(number: usize) -> String {
    if number == 1 { BACKUP_SUFFIX.to_owned() } else { format!("{BACKUP_SUFFIX}-{number}") }
}

/// The file itself, where there may be none yet, at the end of all links.
fn behind_links(path: &Path) -> Result<PathBuf, Failure> {
    let mut path = path.to_owned();
    for _ in 0..LINKS_MAX {
        let Ok(target) = fs::read_link(&path) else { return Ok(path) };
        path = path.parent().unwrap_or(Path::new("/")).join(target);
    }
    let message = format!("{} is behind links that lead nowhere; mend them", path.display());
    Err(Failure::new(Kind::Invalid, message))
}

fn read(path: &Path, metadata: &Metadata) -> Result<String, Failure> {
    let refused = |kind: Kind, why: &str| Failure::new(kind, format!("{} {why}", path.display()));
    if !metadata.is_file() {
        return Err(refused(Kind::Invalid, "is not a file; move it out of the way"));
    }
    let mut bytes = Vec::new();
    let open = fs::File::open(path).and_then(|open| open.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes));
    open.map_err(|error| unusable(path, "cannot be read", &error))?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(refused(Kind::TooLarge, "is over 32 MiB, too large to be changed safely"));
    }
    String::from_utf8(bytes)
        .map_err(|_| refused(Kind::Invalid, "is not UTF-8, and is left as it is; save it as UTF-8"))
}

/// A file where a folder should be means that there is nothing yet as well; making the folder will tell.
fn is_absence(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

pub fn unusable(path: &Path, what: &str, error: &io::Error) -> Failure {
    let kind = match error.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => Kind::Forbidden,
        io::ErrorKind::AlreadyExists | io::ErrorKind::NotADirectory => Kind::Conflict,
        _ => Kind::Internal,
    };
    Failure::new(kind, format!("{} {what}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o7777
    }

    fn written(text: &str) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("mcp.json");
        fs::write(&path, text).unwrap();
        (dir, path)
    }

    #[test]
    fn backups_are_numbered_and_never_overwritten() {
        let (_dir, path) = written("one");
        fs::write(beside(&path, ".cofer-backup"), "somebody's").unwrap();
        for number in [2, 3] {
            let backup = ClientFile::look(&path).unwrap().back_up().unwrap().unwrap();
            assert_eq!(backup, beside(&path, &format!(".cofer-backup-{number}")));
            assert_eq!(fs::read_to_string(backup).unwrap(), "one");
        }
        assert_eq!(fs::read_to_string(beside(&path, ".cofer-backup")).unwrap(), "somebody's");
    }

    #[test]
    fn the_mode_is_kept_unless_there_is_a_token() {
        let (_dir, path) = written("one");
        fs::set_permissions(&path, Permissions::from_mode(0o664)).unwrap();
        ClientFile::look(&path).unwrap().replace("two", Readers::AsBefore).unwrap();
        assert_eq!((fs::read_to_string(&path).unwrap().as_str(), mode(&path)), ("two", 0o664));
        ClientFile::look(&path).unwrap().replace("three", Readers::OwnerAlone).unwrap();
        assert_eq!(mode(&path), 0o600);
    }

    #[test]
    fn what_somebody_else_wrote_meanwhile_is_left_alone() {
        let (dir, path) = written("one");
        let file = ClientFile::look(&path).unwrap();
        fs::write(&path, "theirs").unwrap();
        let refused = file.replace("ours", Readers::AsBefore).unwrap_err();
        assert_eq!(refused.kind, Kind::Conflict);
        assert_eq!(fs::read_to_string(&path).unwrap(), "theirs");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "no draft is left");
    }

    #[test]
    fn links_are_followed_to_where_a_file_will_be_and_not_in_circles() {
        let dir = tempfile::tempdir().unwrap();
        let (link, circle) = (dir.path().join("link"), dir.path().join("circle"));
        std::os::unix::fs::symlink("later/mcp.json", &link).unwrap();
        std::os::unix::fs::symlink("circle", &circle).unwrap();
        let file = ClientFile::look(&link).unwrap();
        file.replace("new", Readers::AsBefore).unwrap();
        assert_eq!(fs::read_to_string(dir.path().join("later/mcp.json")).unwrap(), "new");
        assert!(link.is_symlink());
        assert_eq!(ClientFile::look(&circle).unwrap_err().kind, Kind::Invalid);
    }

    #[test]
    fn folders_bytes_that_are_no_text_and_huge_files_are_refused() {
        let (dir, path) = written("");
        assert_eq!(ClientFile::look(dir.path()).unwrap_err().kind, Kind::Invalid);
        fs::write(&path, [0xff, 0xfe, b'{']).unwrap();
        assert_eq!(ClientFile::look(&path).unwrap_err().kind, Kind::Invalid);
        fs::File::create(&path).unwrap().set_len(FILE_BYTES_MAX + 1).unwrap();
        assert_eq!(ClientFile::look(&path).unwrap_err().kind, Kind::TooLarge);
    }
}
