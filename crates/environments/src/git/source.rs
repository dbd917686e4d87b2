//! The repository that environments are made from, and what `cofer init` adds to it.

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::run::Git;
use crate::blocking;
use crate::error::{EnvError, ErrorKind, Result};

/// The remote under which the bare repository is known to the source.
const REMOTE: &str = "cofer";
const FOLDER: &str = ".cofer";
const BARE: &str = "repo.git";
const IGNORED: &str = ".cofer/";

/// A source repository that was found.
#[derive(Clone, Debug)]
pub struct Source {
    /// The top of its working tree.
    pub top: PathBuf,
    /// What all its worktrees share.
    pub common: PathBuf,
    /// `.cofer` of the working tree in which `cofer init` was run.
    pub folder: PathBuf,
    git: Git,
    deadline: Duration,
}

/// What `cofer init` did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Initialised {
    Now,
    Before,
}

impl Source {
    /// The repository whose working tree is here and whose git directory is in it, taken as it is said to be.
    pub fn at(top: &Path, deadline: Duration) -> Self {
        Self {
            top: top.to_owned(),
            common: top.join(".git"),
            folder: top.join(FOLDER),
            git: Git::at(top, deadline),
            deadline,
        }
    }

    /// The repository at this path, with everything that environments need.
    pub async fn open(path: &Path, deadline: Duration) -> Result<Self> {
        let mut source = Self::find(path, deadline).await?;
        let recovery = format!("run `cofer init` in {} first", source.top.display());
        let url = source.git.ask("find", ["config", "--get", "remote.cofer.url"], b"").await?;
        let url = String::from_utf8_lossy(&url.stdout).trim_end_matches('\n').to_owned();
        if url.is_empty() {
            let message = format!("{} has no remote `{REMOTE}`", source.top.display());
            return Err(EnvError::new(ErrorKind::PreconditionFailed, "find", message, recovery));
        }
        let bare = PathBuf::from(&url);
        let head = bare.join("HEAD");
        let is_there = bare.is_absolute() && blocking(move || head.is_file()).await?;
        let Some(folder) = bare.parent().filter(|_| is_there) else {
            let message = format!("the remote `{REMOTE}` leads to {url}, which is no repository of Cofer's");
            return Err(EnvError::new(ErrorKind::PreconditionFailed, "find", message, recovery));
        };
        folder.clone_into(&mut source.folder);
        Ok(source)
    }

    /// The repository at this path, whether or not `cofer init` was run in it.
    async fn find(path: &Path, deadline: Duration) -> Result<Self> {
        let unusable = |why: &str| {
            let message = format!("unable to open repository '{}': {why}", path.display());
            EnvError::invalid("find", message, "give the absolute path of a git repository that is there")
        };
        if !path.is_absolute() || path.components().any(|part| part.as_os_str() == "..") {
            return Err(unusable("the path must be absolute, without `..`"));
        }
        let asked = path.to_owned();
        let found = blocking(move || asked.canonicalize().map(|path| (path.is_dir(), path))).await?;
        let (is_dir, path) = found.map_err(|error| unusable(&error.to_string()))?;
        if !is_dir {
            return Err(unusable("it is no directory"));
        }
        let asked = ["rev-parse", "--path-format=absolute", "--git-common-dir", "--show-toplevel"];
        let said = Git::at(&path, deadline).ask("find", asked, b"").await?;
        if said.code != Some(0) {
            return Err(unusable(&format!(
                "{}; you must be in a git repository with a working tree",
                said.stderr
            )));
        }
        let answer = String::from_utf8_lossy(&said.stdout).into_owned();
        let mut lines = answer.lines().map(PathBuf::from);
        let (Some(common), Some(top)) = (lines.next(), lines.next()) else {
            return Err(unusable("git did not say where it is"));
        };
        Ok(Self { common, ..Self::at(&top, deadline) })
    }

    /// Makes the bare repository, the remote and the rule that ignores them, as far as they are not there.
    pub async fn init(path: &Path, in_gitignore: bool, deadline: Duration) -> Result<(Self, Initialised)> {
        let source = match Self::open(path, deadline).await {
            Ok(source) => {
                source.ignore(in_gitignore)?;
                return Ok((source, Initialised::Before));
            }
            Err(_) => Self::find(path, deadline).await?,
        };
        let bare = source.bare();
        let format = source.git.line("init", ["rev-parse", "--show-object-format"]).await?;
        source.ignore(in_gitignore)?;
        fs::create_dir_all(&source.folder).map_err(|error| unwritable(&source.folder, &error))?;
        let format = format!("--object-format={format}");
        let made = ["init", "--quiet", "--bare", "--template=", &format, "--initial-branch=cofer/none", "--"];
        let made = made.iter().map(AsRef::as_ref).chain([bare.as_os_str()]);
        source.git.run("init", made).await?;
        let config = ["remote.cofer.url", "remote.cofer.fetch"];
        let refspec = "+refs/heads/cofer/*:refs/remotes/cofer/*";
        let values = [bare.as_os_str(), refspec.as_ref()];
        for (name, value) in config.into_iter().zip(values) {
            source
                .git
                .run("init", ["config".as_ref(), "--replace-all".as_ref(), name.as_ref(), value])
                .await?;
        }
        source.share_objects()?;
        Ok((source, Initialised::Now))
    }

    /// Objects are kept once, with the user's; a shallow history ends where the user's does.
    pub fn share_objects(&self) -> Result<()> {
        let info = self.bare().join("objects/info");
        let objects = self.common.join("objects");
        fs::create_dir_all(&info).map_err(|error| unwritable(&info, &error))?;
        let path = objects.to_str().filter(|path| !path.contains('\n')).ok_or_else(|| {
            let message = format!("git cannot borrow objects from {}", objects.display());
            EnvError::invalid("init", message, "move the repository to a path of ordinary characters")
        })?;
        // Git reads it as a quoted text if it begins with a quote.
        let line = if path.starts_with('"') { format!("{path:?}\n") } else { format!("{path}\n") };
        put(&info.join("alternates"), line.as_bytes())?;
        copy_if_there(&self.common.join("shallow"), &self.bare().join("shallow"))?;
        let bare_info = self.bare().join("info");
        fs::create_dir_all(&bare_info).map_err(|error| unwritable(&bare_info, &error))?;
        copy_if_there(&self.common.join("info/exclude"), &bare_info.join("exclude"))
    }

    fn ignore(&self, in_gitignore: bool) -> Result<()> {
        let file = if in_gitignore { self.top.join(".gitignore") } else { self.common.join("info/exclude") };
        let text = fs::read_to_string(&file).unwrap_or_default();
        if text.lines().any(|line| matches!(line.trim(), ".cofer/" | "/.cofer/" | ".cofer" | "/.cofer")) {
            return Ok(());
        }
        let folder = file.parent().unwrap_or(&self.top);
        fs::create_dir_all(folder).map_err(|error| unwritable(folder, &error))?;
        let begin = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
        let added = fs::OpenOptions::new()
            .append(true)
            .create(true)
            .open(&file)
            .and_then(|mut file| writeln!(file, "{begin}{IGNORED}"));
        added.map_err(|error| unwritable(&file, &error))
    }

    /// The working tree in which `cofer init` was run: the same, whichever worktree of the repository somebody stands in.
    pub fn home(&self) -> &Path {
        self.folder.parent().unwrap_or(&self.top)
    }

    pub fn bare(&self) -> PathBuf {
        self.folder.join(BARE)
    }

    pub fn worktrees(&self) -> PathBuf {
        self.folder.join("worktrees")
    }

    /// Where is kept what we know of the environments.
    pub fn environments(&self) -> PathBuf {
        self.folder.join("environments")
    }

    /// git in the user's own repository.
    pub fn git(&self) -> &Git {
        &self.git
    }

    /// git in the bare one. What it writes is kept with the user's objects.
    pub fn bare_git(&self) -> Git {
        Git::at(&self.folder, self.deadline)
            .with("GIT_DIR", self.bare())
            .with("GIT_OBJECT_DIRECTORY", self.common.join("objects"))
    }

    pub fn deadline(&self) -> Duration {
        self.deadline
    }

    /// The commit that a reference leads to: a branch, a tag, a remote's branch, a commit's own name.
    pub async fn resolve(&self, reference: &str) -> Result<String> {
        let unknown = |why: String| {
            let message = format!("`{reference}` is no commit of this repository{why}");
            EnvError::invalid("resolve", message, "name a branch, a tag or a commit that `git log` knows")
        };
        if reference.is_empty() || reference.starts_with('-') || reference.contains(['\0', '\n']) {
            return Err(unknown(String::new()));
        }
        let commit = format!("{reference}^{{commit}}");
        let said =
            self.git.ask("resolve", ["rev-parse", "--verify", "--end-of-options", &commit], b"").await?;
        let name = String::from_utf8_lossy(&said.stdout).trim().to_owned();
        if said.code == Some(0) && !name.is_empty() {
            return Ok(name);
        }
        let empty = reference == "HEAD" && said.stderr.contains("Needed a single revision");
        Err(unknown(if empty { " yet: make a first commit".to_owned() } else { String::new() }))
    }

    /// What the person should know: what an environment made now would not have.
    pub async fn warnings(&self, base: &str) -> Result<Vec<String>> {
        let status = ["status", "--porcelain", "--untracked-files=normal", "--ignore-submodules=none"];
        let tree = ["ls-tree", "--name-only", base, "--", ".gitmodules", ".gitattributes"];
        let (changed, files) =
            tokio::join!(self.git.ask("look", status, b""), self.git.ask("look", tree, b""));
        let mut warnings = Vec::new();
        let changed = changed?;
        if changed.code == Some(0) && !changed.stdout.is_empty() {
            let text = String::from_utf8_lossy(&changed.stdout).into_owned();
            warnings.push(format!(
                "CRITICAL: You MUST inform the user that the repository {} has uncommitted changes that are NOT included in this environment. The environment was created from the last committed state. Uncommitted changes:\n{}",
                self.top.display(),
                shortened(&text)
            ));
        }
        let files = files?.stdout;
        let files = String::from_utf8_lossy(&files);
        if files.lines().any(|file| file == ".gitmodules") {
            warnings.push(
                "this repository has submodules; their files are not in the environment, and what is changed in them is not committed"
                    .to_owned(),
            );
        }
        if files.lines().any(|file| file == ".gitattributes") {
            let attributes = self.git.run("look", ["show", &format!("{base}:.gitattributes")]).await?;
            if String::from_utf8_lossy(&attributes).contains("filter=lfs") {
                warnings.push(
                    "this repository keeps files with Git LFS; they are checked out as git does here, and are pointers where `git lfs` is not installed"
                        .to_owned(),
                );
            }
        }
        Ok(warnings)
    }

    /// Who commits: the user, as the source repository knows them.
    pub async fn identity(&self) -> Result<(String, String)> {
        let said = self.git.ask("identity", ["var", "GIT_AUTHOR_IDENT"], b"").await?;
        let text = String::from_utf8_lossy(&said.stdout).into_owned();
        let parsed = text.split_once(" <").and_then(|(name, rest)| {
            let (email, _) = rest.split_once('>')?;
            Some((name.to_owned(), email.to_owned()))
        });
        Ok(parsed
            .filter(|_| said.code == Some(0))
            .unwrap_or_else(|| ("Cofer".to_owned(), "cofer@localhost".to_owned())))
    }
}

fn shortened(text: &str) -> String {
    const LINES: usize = 20;
    let mut lines: Vec<&str> = text.lines().take(LINES).collect();
    let more = text.lines().count().saturating_sub(LINES);
    let rest = format!("… and {more} more");
    if more > 0 {
        lines.push(&rest);
    }
    lines.join("\n")
}

fn copy_if_there(from: &Path, to: &Path) -> Result<()> {
    match fs::read(from) {
        Ok(bytes) => put(to, &bytes),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(EnvError::io("init", from.display(), &error)),
    }
}

/// Writes it unless it says so already: another Cofer may be reading it.
fn put(file: &Path, bytes: &[u8]) -> Result<()> {
    if fs::read(file).is_ok_and(|there| there == bytes) {
        return Ok(());
    }
    crate::files::replace(file, bytes).map_err(|error| unwritable(file, &error))
}

fn unwritable(path: &Path, error: &io::Error) -> EnvError {
    EnvError::io("init", format_args!("{} cannot be written", path.display()), error)
}
