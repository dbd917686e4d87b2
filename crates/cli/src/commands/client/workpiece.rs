//! One client's file in our hands: opened, its servers changed, the difference shown or written.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use cofer_model::Kind;
use similar::TextDiff;

use super::document::{self, Servers};
use super::entry::without_tokens;
use super::file::{ClientFile, Readers};
use super::history::{History, Step};
use super::known::{Known, Scope, Surroundings};
use crate::exit::Failure;

/// Enough to see where it is. More might show what others keep secret there.
const LINES_AROUND: usize = 1;
const DIFF_DEADLINE: Duration = Duration::from_secs(2);

pub struct Workpiece {
    pub known: Known,
    pub scope: Scope,
    pub file: ClientFile,
    pub servers: Box<dyn Servers>,
}

/// What came of a change.
#[derive(Debug)]
pub struct Written {
    pub backup: Option<PathBuf>,
    /// Id of the token that the entry showed before.
    pub token_before: Option<String>,
}

impl Written {
    pub fn shown_backup(&self) -> Option<String> {
        self.backup.as_ref().map(|path| path.display().to_string())
    }
}

impl Workpiece {
    pub fn open(known: Known, scope: Scope) -> Result<Self, Failure> {
        let path = place(known, scope)?;
        let file = ClientFile::look(&path)?;
        let servers = document::read(file.text.as_deref().unwrap_or_default(), known).map_err(|fault| {
            let path = file.path.display();
            Failure::new(Kind::Invalid, format!("{path}: {fault}; correct it first, it is left as it is"))
        })?;
        Ok(Self { known, scope, file, servers })
    }

    pub fn is_changed(&self) -> bool {
        self.file.text.as_deref() != Some(&self.servers.text())
    }

    pub fn difference(&self) -> String {
        let before = without_tokens(self.file.text.as_deref().unwrap_or_default());
        let after = without_tokens(&self.servers.text());
        let mut config = TextDiff::configure();
        let diff = config.timeout(DIFF_DEADLINE).diff_lines(&before, &after);
        let name = self.file.path.display().to_string();
        diff.unified_diff()
            .context_radius(LINES_AROUND)
            .header(&name, &name)
            .to_string()
            .trim_end()
            .to_owned()
    }

    /// Writes what was changed, so that it can be undone. `token` is the id of the one that the entry shows now.
    pub fn write(&self, entry: &str, token: Option<&str>) -> Result<Written, Failure> {
        let text = self.servers.text();
        let readers = if token.is_some() { Readers::OwnerAlone } else { Readers::AsBefore };
        let mut history = History::of(&self.file.path)?;
        let backup = self.file.back_up()?;
        let token_before = history.set_token(entry, token);
        let mut step = Step::new(backup.as_deref(), &text);
        step.made_token = token.map(ToOwned::to_owned);
        step.revoked_token = token_before.is_some();
        history.push(step);
        let written = history.save().and_then(|()| self.file.replace(&text, readers));
        if let Err(failure) = written {
            history.pop();
            history.set_token(entry, token_before.as_deref());
            // The failure to tell of is the first one; what is left over is a backup too many.
            let _ = history.save();
            let _ = backup.map(fs::remove_file);
            return Err(failure);
        }
        Ok(Written { backup, token_before })
    }

    /// A path need not be text, and is shown all the same.
    pub fn shown_path(&self) -> String {
        self.file.path.display().to_string()
    }

    /// What undoes the last change.
    pub fn undoing(&self) -> String {
        format!("cofer client undo {}{}", self.known.as_str(), scope_flag(self.scope))
    }
}

pub const fn scope_flag(scope: Scope) -> &'static str {
    match scope {
        Scope::User => "",
        Scope::Project => " --scope project",
    }
}

pub fn place(known: Known, scope: Scope) -> Result<PathBuf, Failure> {
    known.file(scope, &Surroundings::look()?).ok_or_else(|| {
        let message = format!("{} has no file for a project; leave `--scope` out", known.title());
        Failure::new(Kind::Invalid, message)
    })
}
