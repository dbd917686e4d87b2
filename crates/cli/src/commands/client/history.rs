//! What we did to a client's file, so that it can be undone: one step for each change, the last one undone first.
//!
//! It lies beside the file as `NAME.cofer-history` and holds no secret: hashes of what we wrote, names of backups, ids of tokens.
//! It is written before the file is, so that a death in between leaves a step that changed nothing, and undoing that does no harm.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use cofer_model::Kind;
use data_encoding::HEXLOWER;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::file::{BACKUP_SUFFIX, ClientFile, Readers, beside, unusable};
use crate::exit::Failure;

#[derive(Debug, Default, Deserialize, Serialize)]
pub struct History {
    #[serde(skip)]
    path: PathBuf,
    steps: Vec<Step>,
    /// Ids of the tokens that we made, by the name of the entry that shows them.
    tokens: BTreeMap<String, String>,
}

/// One change of the file.
#[derive(Debug, Deserialize, Serialize)]
pub struct Step {
    /// Name of the neighbour that has what was there before; none if there was nothing.
    backup: Option<String>,
    /// SHA-256 of what we wrote.
    wrote: String,
    /// Id of the token that was made for it.
    pub made_token: Option<String>,
    /// Whether a token that the backup shows opens nothing any more.
    pub revoked_token: bool,
}

impl Step {
    pub fn new(backup: Option<&Path>, wrote: &str) -> Self {
        let name = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Self { backup: backup.map(name), wrote: hash(wrote), made_token: None, revoked_token: false }
    }

    /// Where what was there before is kept. A history may have come with a repository of somebody else's, so it names backups
    /// of this very file alone.
    pub fn backup_of(&self, file: &Path) -> Result<Option<PathBuf>, Failure> {
        let Some(name) = &self.backup else { return Ok(None) };
        let own = beside(file, BACKUP_SUFFIX).file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.starts_with(&own) && !name.contains('/') {
            return Ok(Some(file.with_file_name(name)));
        }
        let message = format!("the history of {} names a backup that is none: {name}", file.display());
        Err(Failure::new(Kind::Invalid, message))
    }

    pub fn wrote(&self, text: &str) -> bool {
        self.wrote == hash(text)
    }
}

impl History {
    pub fn of(file: &Path) -> Result<Self, Failure> {
        let path = beside(file, ".cofer-history");
        let Some(text) = ClientFile::look(&path)?.text else { return Ok(Self { path, ..Self::default() }) };
        let history: Self = serde_json::from_str(&text).map_err(|error| {
            let message = format!("{} is damaged ({error}); remove it to go on", path.display());
            Failure::new(Kind::Invalid, message)
        })?;
        Ok(Self { path, ..history })
    }

    pub fn last(&self) -> Option<&Step> {
        self.steps.last()
    }

    pub fn push(&mut self, step: Step) {
        self.steps.push(step);
    }

    pub fn pop(&mut self) -> Option<Step> {
        self.steps.pop()
    }

    /// Remembers whose token an entry shows now. Gives back the one that it showed before.
    pub fn set_token(&mut self, entry: &str, token: Option<&str>) -> Option<String> {
        match token {
            Some(id) => self.tokens.insert(entry.to_owned(), id.to_owned()),
            None => self.tokens.remove(entry),
        }
    }

    pub fn forget_token(&mut self, id: &str) {
        self.tokens.retain(|_, token| token != id);
    }

    /// Nothing to remember, nothing kept.
    pub fn save(&self) -> Result<(), Failure> {
        let file = ClientFile::look(&self.path)?;
        if !self.steps.is_empty() || !self.tokens.is_empty() {
            let text = serde_json::to_string_pretty(self).map_err(Failure::internal)?;
            return file.replace(&text, Readers::OwnerAlone);
        }
        if file.text.is_none() {
            return Ok(());
        }
        fs::remove_file(&file.path).map_err(|error| unusable(&file.path, "cannot be removed", &error))
    }
}

fn hash(text: &str) -> String {
    HEXLOWER.encode(&Sha256::digest(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_history_names_backups_of_its_own_file_alone() {
        let file = Path::new("/home/me/shop/.mcp.json");
        let named =
            |name: &str| Step { backup: Some(name.to_owned()), ..Step::new(None, "") }.backup_of(file);
        let backup = named(".mcp.json.cofer-backup-2").unwrap();
        assert_eq!(backup, Some(PathBuf::from("/home/me/shop/.mcp.json.cofer-backup-2")));
        for foreign in ["../.ssh/id", "/etc/passwd", ".env", ".mcp.json.cofer-backup/../../.ssh/id", ""] {
            assert_eq!(named(foreign).unwrap_err().kind, Kind::Invalid, "{foreign}");
        }
    }

    #[test]
    fn a_history_is_kept_as_long_as_there_is_something_in_it() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("mcp.json");
        let mut history = History::of(&file).unwrap();
        history.push(Step::new(None, "what we wrote"));
        history.save().unwrap();
        let mut history = History::of(&file).unwrap();
        assert!(history.last().is_some_and(|step| step.wrote("what we wrote") && !step.wrote("another")));
        history.pop();
        history.save().unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        fs::write(beside(&file, ".cofer-history"), "{").unwrap();
        assert!(History::of(&file).unwrap_err().message.contains("remove it"));
    }
}
