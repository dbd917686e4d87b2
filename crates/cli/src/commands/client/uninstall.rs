//! `cofer client uninstall`: our entry out of a client's file again, and nothing else.

use clap::Args;
use cofer_model::Kind;
use serde_json::json;

use super::entry::{checked_name, ours};
use super::known::{Known, Scope};
use super::token;
use super::workpiece::Workpiece;
use crate::client::Target;
use crate::exit::Failure;
use crate::output::{Format, harmless_lines};

/// Take Cofer out of a client's configuration, and revoke the token that was made for it
#[derive(Debug, Args)]
pub struct Uninstall {
    /// Which client
    client: Known,
    /// Name of the entry
    #[arg(long, default_value = "cofer", value_parser = checked_name)]
    name: String,
    /// Whose configuration
    #[arg(long, value_enum, default_value_t)]
    scope: Scope,
    /// Show the difference, and do nothing
    #[arg(long)]
    dry_run: bool,
}

impl Uninstall {
    pub async fn run(self, target: &Target, format: Format) -> Result<(), Failure> {
        let mut work = Workpiece::open(self.client, self.scope)?;
        self.check_entry(&work)?;
        work.servers.remove(&self.name);
        if self.dry_run {
            let difference = work.difference();
            let told = json!({"file": work.shown_path(), "outcome": "shown", "difference": difference});
            return format.print(&told, || harmless_lines(&difference));
        }
        let written = work.write(&self.name, None)?;
        if let Some(id) = &written.token_before {
            token::revoke(target, id).await;
        }
        let told = json!({
            "client": self.client.as_str(),
            "name": self.name,
            "file": work.shown_path(),
            "outcome": "uninstalled",
            "backup": written.shown_backup(),
        });
        format.print(&told, || {
            let (name, file, undoing) = (&self.name, work.shown_path(), work.undoing());
            let backup = written.shown_backup().unwrap_or_default();
            format!("`{name}` is no longer in {file}\nbackup: {backup}; `{undoing}` puts it back")
        })
    }

    fn check_entry(&self, work: &Workpiece) -> Result<(), Failure> {
        let (name, file) = (&self.name, work.file.path.display());
        let Some(entry) = work.servers.entry(name) else {
            let message = format!("there is no `{name}` in {file}; `cofer client ls` shows what there is");
            return Err(Failure::new(Kind::NotFound, message));
        };
        if ours(&entry).is_none() {
            let message = format!("`{name}` in {file} is not Cofer's; take it out by hand if it is to go");
            return Err(Failure::new(Kind::Conflict, message));
        }
        Ok(())
    }
}
