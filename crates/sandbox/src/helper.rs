//! The helper that runs inside environments' containers (`crates/inside`): Cofer has it with it, and writes it out where it can be mounted from.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

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

fn write_to(draft: &Path) -> io::Result<()> {
    let mut file = File::create_new(draft)?;
    file.write_all(HELPER)?;
    file.set_permissions(fs::Permissions::from_mode(MODE))?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
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
    fn it_needs_nothing_of_the_image() {
        let directory = tempfile::tempdir().unwrap();
        let helper = fs::read(write_out(directory.path()).unwrap()).unwrap();
        assert!(helper.starts_with(b"\x7fELF"));
        let interpreter = helper.windows(8).any(|window| window == b"/ld-linu");
        assert!(!interpreter, "it is not static");
    }
}
