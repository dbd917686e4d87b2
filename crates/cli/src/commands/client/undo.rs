//! `cofer client undo`: the last backup back, if the file is still as we wrote it.

use std::path::{Path, PathBuf};

use clap::Args;
use cofer_model::Kind;
use serde_json::json;

use super::super::external::note;
use super::file::ClientFile;
use super::history::{History, Step};
use super::known::{Known, Scope};
use super::token;
use super::workpiece::{place, scope_flag};
use crate::client::Target;
use crate::exit::Failure;
use crate::output::Format;

/// Undo the last change that was made to a client's configuration here
#[derive(Debug, Args)]
pub struct Undo {
    /// Which client
    client: Known,
    /// Whose configuration
    #[arg(long, value_enum, default_value_t)]
    scope: Scope,
}

impl Undo {
    pub async fn run(self, target: &Target, format: Format) -> Result<(), Failure> {
        let file = ClientFile::look(&place(self.client, self.scope)?)?;
        let mut history = History::of(&file.path)?;
        let backup = self.backup(&file, &history)?;
        file.restore(backup.as_deref())?;
        if let Some(step) = history.pop() {
            self.settle_tokens(&mut history, &step, target).await;
        }
        history.save()?;
        let path = file.path.display().to_string();
        let told = json!({"client": self.client.as_str(), "file": path, "outcome": "undone"});
        format.print(&told, || match backup {
            Some(_) => format!("{path} is as it was before"),
            None => format!("{path} is gone, as it was before"),
        })
    }

    /// The backup to put back, none if there was no file, once it is sure that nobody's work is lost by it.
    fn backup(&self, file: &ClientFile, history: &History) -> Result<Option<PathBuf>, Failure> {
        let Some(step) = history.last() else {
            let message = format!("nothing to undo: Cofer has not changed {}", file.path.display());
            return Err(Failure::new(Kind::NotFound, message));
        };
        let backup = step.backup_of(&file.path)?;
        let before = match &backup {
            Some(backup) => Some(kept(backup)?),
            None => None,
        };
        let as_we_left_it = file.text == before || file.text.as_deref().is_some_and(|text| step.wrote(text));
        if as_we_left_it { Ok(backup) } else { Err(self.changed_since(file, backup)) }
    }

    fn changed_since(&self, file: &ClientFile, backup: Option<PathBuf>) -> Failure {
        let (client, scope, path) = (self.client.as_str(), scope_flag(self.scope), file.path.display());
        let by_hand = match backup {
            Some(backup) => format!("`mv {} {path}` loses those changes", backup.display()),
            None => "there was no such file before".to_owned(),
        };
        let message = format!(
            "{path} was changed since Cofer wrote it, and is left as it is; `cofer client uninstall {client}{scope}` takes out Cofer's entry alone, {by_hand}"
        );
        Failure::new(Kind::Conflict, message)
    }

    async fn settle_tokens(&self, history: &mut History, step: &Step, target: &Target) {
        if let Some(id) = &step.made_token {
            history.forget_token(id);
            token::revoke(target, id).await;
        }
        if step.revoked_token {
            let client = self.client.as_str();
            note(&format!(
                "the token in it was revoked meanwhile; `cofer client install {client} --http` makes another"
            ));
        }
    }
}

fn kept(backup: &Path) -> Result<String, Failure> {
    ClientFile::look(backup)?.text.ok_or_else(|| {
        let message = format!("the backup {} is gone, so there is nothing to put back", backup.display());
        Failure::new(Kind::NotFound, message)
    })
}
