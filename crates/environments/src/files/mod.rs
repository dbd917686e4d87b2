//! Files of a worktree, for tools: nothing outside of it is ever reached, by `..`, by an absolute path or by a symbolic link.
//!
//! The kernel resolves each path beneath the worktree and refuses what would leave it, so there is no moment between a check and its use.

use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, mkdirat, openat, openat2, renameat, unlinkat,
};
use rustix::io::Errno;
use sha2::{Digest as _, Sha256};

use crate::error::{EnvError, ErrorKind, Result};

/// What a tool reads or writes at once.
pub const FILE_BYTES_MAX: u64 = 8 << 20;
/// Where a worktree is mounted.
pub const WORKDIR: &str = "/workdir";
/// Git takes a file with a zero among its first bytes for binary.
const LOOKED_AT: usize = 8000;
const CONTEXT_LINES: usize = 3;
const MATCHES_SHOWN: usize = 20;

/// The files of one worktree.
#[derive(Debug)]
pub struct Files {
    root: OwnedFd,
}

/// Which lines are wanted, the first being 1.
#[derive(Clone, Copy, Debug)]
pub enum Lines {
    All,
    Range { first: usize, last: usize },
}

impl Files {
    pub fn of(worktree: &Path) -> Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let root = openat(CWD, worktree, flags, Mode::empty());
        Ok(Self { root: root.map_err(|error| EnvError::io("files", worktree.display(), &error.into()))? })
    }

    fn open(&self, path: &Inside, flags: OFlags) -> Result<OwnedFd> {
        let how = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        // A pipe that nobody writes to is not waited for.
        let patient = if flags.contains(OFlags::PATH) { OFlags::empty() } else { OFlags::NONBLOCK };
        let flags = flags | OFlags::CLOEXEC | patient;
        let mode = if flags.contains(OFlags::CREATE) { Mode::from_raw_mode(0o644) } else { Mode::empty() };
        openat2(&self.root, path.as_path(), flags, mode, how).map_err(|error| path.failed(error))
    }

    fn read_whole(&self, path: &Inside) -> Result<Vec<u8>> {
        let mut file = File::from(self.open(path, OFlags::RDONLY)?);
        let about = file.metadata().map_err(|error| path.io(&error))?;
        if !about.is_file() {
            let what = if about.is_dir() { "a directory" } else { "no ordinary file" };
            return Err(path.refused(what, "read a file; `environment_file_list` lists directories"));
        }
        if about.len() > FILE_BYTES_MAX {
            let what = format!("larger than {} MiB", FILE_BYTES_MAX >> 20);
            return Err(path.refused(
                &what,
                "look at parts of it with `environment_run_cmd`, such as `head` or `sed -n`",
            ));
        }
        let mut bytes = Vec::new();
        io::Read::by_ref(&mut file)
            .take(FILE_BYTES_MAX)
            .read_to_end(&mut bytes)
            .map_err(|error| path.io(&error))?;
        Ok(bytes)
    }

    fn read_text(&self, path: &Inside) -> Result<String> {
        let bytes = self.read_whole(path)?;
        let binary =
            || path.refused("binary", "use `environment_run_cmd`, such as `file` or `xxd`, to look at it");
        if bytes[..bytes.len().min(LOOKED_AT)].contains(&0) {
            return Err(binary());
        }
        String::from_utf8(bytes).map_err(|_| binary())
    }

    pub fn read(&self, path: &str, lines: Lines) -> Result<String> {
        let path = Inside::of(path)?;
        let text = self.read_text(&path)?;
        let Lines::Range { first, last } = lines else { return Ok(text) };
        let all: Vec<&str> = text.split_inclusive('\n').collect();
        if first == 0 || last < first {
            let message = format!("lines {first} to {last} are no range");
            return Err(EnvError::invalid(
                "arguments",
                message,
                "lines are counted from 1, and the range includes its last line",
            ));
        }
        if first > all.len() {
            let message = format!("{} has {} lines; there is no line {first}", path.shown(), all.len());
            return Err(EnvError::invalid("arguments", message, "ask for lines that are there"));
        }
        Ok(all[first - 1..last.min(all.len())].concat())
    }

    /// The entries of a directory, in order; directories end with a slash.
    pub fn list(&self, path: &str) -> Result<Vec<String>> {
        let path = Inside::of(path)?;
        let folder = self.open(&path, OFlags::RDONLY | OFlags::DIRECTORY)?;
        let entries = rustix::fs::Dir::read_from(&folder).map_err(|error| path.failed(error))?;
        let mut names = Vec::new();
        for entry in entries {
            let entry = entry.map_err(|error| path.failed(error))?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if name == "." || name == ".." || (path.is_top() && name == ".git") {
                continue;
            }
            let slash = if entry.file_type() == FileType::Directory { "/" } else { "" };
            names.push(format!("{name}{slash}"));
        }
        names.sort();
        Ok(names)
    }

    /// Writes it whole or not at all, with the directories that it needs. A file that is there keeps its rights.
    pub fn write(&self, path: &str, contents: &[u8]) -> Result<()> {
        let path = Inside::of(path)?;
        if contents.len() as u64 > FILE_BYTES_MAX {
            let what = format!("more than {} MiB", FILE_BYTES_MAX >> 20);
            return Err(path.refused(&what, "write it in parts with `environment_run_cmd`"));
        }
        if path.is_top() {
            return Err(path.refused("a directory", "name a file"));
        }
        let folder = self.make_folders(&path.parent())?;
        let mode = match openat2(
            &folder,
            path.name(),
            OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC,
            Mode::empty(),
            ResolveFlags::BENEATH,
        ) {
            Ok(there) => match rustix::fs::fstat(&there).map_err(|error| path.failed(error))? {
                about if FileType::from_raw_mode(about.st_mode) == FileType::RegularFile => {
                    Mode::from_raw_mode(about.st_mode & 0o777)
                }
                about if FileType::from_raw_mode(about.st_mode) == FileType::Symlink => {
                    return self.write_through(&path, contents);
                }
                _ => return Err(path.refused("no ordinary file", "name a file")),
            },
            Err(Errno::NOENT) => Mode::from_raw_mode(0o644),
            Err(error) => return Err(path.failed(error)),
        };
        replace_at(&folder, path.name(), contents, mode).map_err(|error| path.io(&error))
    }

    /// A link that stays inside leads to the file that is written.
    fn write_through(&self, path: &Inside, contents: &[u8]) -> Result<()> {
        let mut file = File::from(self.open(path, OFlags::WRONLY | OFlags::CREATE)?);
        let is_file = file.metadata().map_err(|error| path.io(&error))?.is_file();
        if !is_file {
            return Err(path.refused("no ordinary file", "name a file"));
        }
        let written = file.set_len(0).and_then(|()| file.rewind()).and_then(|()| file.write_all(contents));
        written.map_err(|error| path.io(&error))
    }

    fn make_folders(&self, folder: &Inside) -> Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        match self.open(folder, flags) {
            Err(error) if error.kind == ErrorKind::NotFound && !folder.is_top() => {}
            otherwise => return otherwise,
        }
        let parent = self.make_folders(&folder.parent())?;
        match mkdirat(&parent, folder.name(), Mode::from_raw_mode(0o755)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(folder.failed(error)),
        }
        self.open(folder, flags)
    }

    /// Replaces one match of a text. When there are several, `which` says which one is meant.
    pub fn edit(&self, path: &str, search: &str, replace: &str, which: Option<&str>) -> Result<()> {
        let inside = Inside::of(path)?;
        if search.is_empty() {
            return Err(EnvError::invalid(
                "arguments",
                "`search_text` is empty",
                "give the text that is to be replaced",
            ));
        }
        let text = self.read_text(&inside)?;
        let matches: Vec<usize> = text.match_indices(search).map(|(at, _)| at).collect();
        let id = |index: usize| match_id(inside.shown(), search, replace, index);
        let at = match (matches.as_slice(), which.filter(|which| !which.is_empty())) {
            ([], _) => {
                let message = format!("the text to be replaced is not in {}", inside.shown());
                return Err(EnvError::invalid(
                    "edit",
                    message,
                    "read the file, and give the text exactly as it stands there",
                ));
            }
            ([only], None) => *only,
            (several, None) => return Err(ambiguous(&inside, &text, several, &id)),
            (several, Some(which)) => {
                let found = several.iter().enumerate().find(|(index, _)| id(*index) == which);
                *found.ok_or_else(|| ambiguous(&inside, &text, several, &id))?.1
            }
        };
        let edited = [&text[..at], replace, &text[at + search.len()..]].concat();
        self.write(path, edited.as_bytes())
    }

    /// Removes a file; of a link the link.
    pub fn delete(&self, path: &str) -> Result<()> {
        let path = Inside::of(path)?;
        if path.is_top() {
            return Err(path.refused(
                "the worktree itself",
                "name a file; `environment_destroy` removes an environment",
            ));
        }
        let folder = self.open(&path.parent(), OFlags::PATH | OFlags::DIRECTORY)?;
        match unlinkat(&folder, path.name(), AtFlags::empty()) {
            Ok(()) => Ok(()),
            Err(Errno::ISDIR) => {
                Err(path
                    .refused("a directory", "remove directories with `environment_run_cmd`, such as `rm -r`"))
            }
            Err(error) => Err(path.failed(error)),
        }
    }
}

/// Eight digits that say which match is meant, as container-use makes them.
fn match_id(file: &str, search: &str, replace: &str, index: usize) -> String {
    let digest = Sha256::digest(format!("{file}:{search}:{replace}:{index}"));
    data_encoding::HEXLOWER.encode(&digest[..4])
}

fn ambiguous(path: &Inside, text: &str, matches: &[usize], id: &dyn Fn(usize) -> String) -> EnvError {
    let lines: Vec<&str> = text.lines().collect();
    let shown = matches.iter().take(MATCHES_SHOWN).enumerate().map(|(index, at)| {
        let line = text[..*at].matches('\n').count();
        let around = line.saturating_sub(CONTEXT_LINES)..(line + CONTEXT_LINES + 1).min(lines.len());
        let context: Vec<String> =
            around.map(|number| format!("{:>6} {}", number + 1, lines[number])).collect();
        format!("match {} (line {}):\n{}", id(index), line + 1, context.join("\n"))
    });
    let listed = shown.collect::<Vec<_>>().join("\n\n");
    let message = format!(
        "the text is {} times in {}; `which_match` says which one is meant:\n\n{listed}",
        matches.len(),
        path.shown()
    );
    EnvError::invalid("edit", message, "send it again with `which_match`, or with a longer `search_text`")
}

/// A path that begins at the worktree.
#[derive(Clone, Debug)]
struct Inside(PathBuf);

impl Inside {
    fn of(path: &str) -> Result<Self> {
        let refused = |why: &str| {
            let message = format!("`{}` {why}", path.escape_debug());
            EnvError::invalid(
                "arguments",
                message,
                format!("give a path inside the environment, relative or below {WORKDIR}"),
            )
        };
        if path.contains('\0') {
            return Err(refused("has a zero in it"));
        }
        let asked = Path::new(path);
        let relative = match asked.strip_prefix(WORKDIR) {
            Ok(below) => below,
            Err(_) if asked.is_absolute() => return Err(refused("is outside of the environment")),
            Err(_) => asked,
        };
        let mut clean = PathBuf::new();
        for part in relative.components() {
            match part {
                Component::Normal(name) if name.eq_ignore_ascii_case(".git") => {
                    return Err(refused("belongs to git"));
                }
                Component::Normal(name) => clean.push(name),
                Component::CurDir => {}
                Component::ParentDir if clean.pop() => {}
                _ => return Err(refused("leads out of the environment")),
            }
        }
        Ok(Self(clean))
    }

    fn is_top(&self) -> bool {
        self.0.as_os_str().is_empty()
    }

    fn as_path(&self) -> &Path {
        if self.is_top() { Path::new(".") } else { &self.0 }
    }

    fn parent(&self) -> Self {
        Self(self.0.parent().map(Path::to_owned).unwrap_or_default())
    }

    fn name(&self) -> &Path {
        self.0.file_name().map_or(Path::new("."), Path::new)
    }

    fn shown(&self) -> &str {
        self.as_path().to_str().unwrap_or("the file")
    }

    fn refused(&self, what: &str, recovery: &str) -> EnvError {
        EnvError::invalid("files", format!("{} is {what}", self.shown()), recovery)
    }

    fn io(&self, error: &io::Error) -> EnvError {
        EnvError::io("files", self.shown(), error)
    }

    fn failed(&self, error: Errno) -> EnvError {
        match error {
            Errno::NOENT => {
                let message = format!("{} is not there", self.shown());
                EnvError::new(
                    ErrorKind::NotFound,
                    "files",
                    message,
                    "look with `environment_file_list`; sending this again will not help",
                )
            }
            Errno::XDEV | Errno::LOOP => {
                let message = format!("{} leads out of the environment by a link", self.shown());
                EnvError::invalid("files", message, "name a file inside the environment")
            }
            Errno::NOTDIR => self
                .refused("below something that is no directory", "name a path whose parents are directories"),
            Errno::NAMETOOLONG => self.refused("too long", "use a shorter path"),
            other => self.io(&other.into()),
        }
    }
}

/// A file of ours, if it is one: whoever put a link, a pipe or something endless in its place is not followed.
pub fn read_own(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = File::from(openat(CWD, path, flags, Mode::empty())?);
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "it is no file"));
    }
    let mut bytes = Vec::new();
    file.take(bytes_max + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > bytes_max {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "it is too long"));
    }
    Ok(bytes)
}

/// Replaces a file of ours in one step, so that nobody ever reads half of it.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    let name = path.file_name().map(Path::new).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
    let folder = openat(CWD, folder, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    replace_at(&folder, name, bytes, Mode::from_raw_mode(0o644))
}

fn replace_at(folder: &OwnedFd, name: &Path, bytes: &[u8], mode: Mode) -> io::Result<()> {
    let mut random = [0; 8];
    getrandom::fill(&mut random).map_err(io::Error::other)?;
    let draft = PathBuf::from(format!(".cofer-{}", data_encoding::HEXLOWER.encode(&random)));
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let mut file = File::from(openat(folder, &draft, flags, mode)?);
    let written = file
        .write_all(bytes)
        .and_then(|()| file.set_permissions(fs::Permissions::from_mode(mode.as_raw_mode())))
        .and_then(|()| Ok(renameat(folder, &draft, folder, name)?));
    if written.is_err() {
        let _ = unlinkat(folder, &draft, AtFlags::empty());
    }
    written
}

#[cfg(test)]
mod tests;
