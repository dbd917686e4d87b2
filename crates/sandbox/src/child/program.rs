//! Whether a program can be started at all, asked before anything is, so that the answer is a sentence and not a number.
//!
//! The search is the one that will be made: in the child's own `PATH`, from the child's own folder.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use secrecy::ExposeSecret as _;

use super::{ChildError, ChildSpec};

/// What a child gets of Cofer's own environment.
pub(super) const PASSED_ON: [&str; 7] = ["PATH", "HOME", "LANG", "TMPDIR", "USER", "TERM", "TZ"];
/// Where the system looks when there is no `PATH`.
const PATH_DEFAULT: &str = "/bin:/usr/bin";
const EXECUTABLE_BY_ANYBODY: u32 = 0o111;

pub(super) fn passed_on() -> impl Iterator<Item = (&'static str, OsString)> {
    PASSED_ON.into_iter().filter_map(|name| Some((name, env::var_os(name)?)))
}

pub(super) fn check(spec: &ChildSpec) -> Result<(), ChildError> {
    let folder = folder_of(spec)?;
    if spec.program.contains('/') {
        return check_file(&folder.join(&spec.program), spec, &folder.display().to_string());
    }
    let path = path_of(spec);
    let places = env::split_paths(&path).map(|place| folder.join(place).join(&spec.program));
    // A file that may not be run does not hide one that may, further on; it is only better than none.
    let mut outcome = Err(not_found(spec, &path.to_string_lossy()));
    for place in places {
        match check_file(&place, spec, "") {
            Ok(()) => return Ok(()),
            Err(refused @ ChildError::NotExecutable { .. }) => outcome = Err(refused),
            Err(_) => {}
        }
    }
    outcome
}

fn folder_of(spec: &ChildSpec) -> Result<PathBuf, ChildError> {
    let asked = spec.cwd.as_deref().unwrap_or(Path::new("."));
    // Told in full: a relative folder begins at Cofer's, which nobody remembers.
    let cwd = std::path::absolute(asked).unwrap_or_else(|_| asked.to_owned());
    if cwd.is_dir() { Ok(cwd) } else { Err(ChildError::NoFolder { program: spec.program.clone(), cwd }) }
}

fn path_of(spec: &ChildSpec) -> OsString {
    let own = spec.environment.iter().rev().find(|(name, _)| name == "PATH");
    let own = own.map(|(_, value)| value.expose_secret().into());
    own.or_else(|| env::var_os("PATH")).unwrap_or_else(|| PATH_DEFAULT.into())
}

fn check_file(file: &Path, spec: &ChildSpec, looked_in: &str) -> Result<(), ChildError> {
    match fs::metadata(file) {
        Ok(found) if found.is_file() && found.permissions().mode() & EXECUTABLE_BY_ANYBODY != 0 => Ok(()),
        Ok(_) => Err(ChildError::NotExecutable { path: file.to_owned() }),
        Err(_) => Err(not_found(spec, looked_in)),
    }
}

fn not_found(spec: &ChildSpec, looked_in: &str) -> ChildError {
    ChildError::NotFound { program: spec.program.clone(), looked_in: looked_in.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(program: &str, cwd: Option<&str>, path: &str) -> ChildSpec {
        ChildSpec {
            program: program.to_owned(),
            args: Vec::new(),
            environment: vec![("PATH".to_owned(), path.into())],
            cwd: cwd.map(PathBuf::from),
        }
    }

    #[test]
    fn a_program_is_looked_for_where_it_will_be_looked_for() {
        let folder = tempfile::tempdir().unwrap();
        let here = folder.path().to_str().unwrap();
        let tool = folder.path().join("tool");
        fs::write(&tool, "#!/bin/sh\n").unwrap();
        assert!(matches!(check(&spec("tool", None, here)), Err(ChildError::NotExecutable { .. })));
        fs::set_permissions(&tool, fs::Permissions::from_mode(0o755)).unwrap();
        for (program, cwd, path) in
            [("tool", None, here), ("./tool", Some(here), "/nowhere"), (tool.to_str().unwrap(), None, "")]
        {
            check(&spec(program, cwd, path)).unwrap();
        }
    }

    #[test]
    fn what_is_not_there_is_told_with_where_it_was_looked_for() {
        let told = |spec: ChildSpec| check(&spec).unwrap_err().to_string();
        assert_eq!(
            told(spec("no-such-thing", None, "/a:/b")),
            "command not found: no-such-thing; looked in /a:/b; install it, or give its full path"
        );
        assert!(told(spec("./no-such-thing", Some("/tmp"), "")).contains("looked in /tmp;"));
        let missing = told(spec("sh", Some("no/such/folder"), "/bin"));
        assert!(
            missing.starts_with("the folder /") && missing.contains("no/such/folder to start sh in"),
            "{missing}"
        );
    }
}
