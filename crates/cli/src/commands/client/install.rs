//! `cofer client install`: an entry of ours into a client's file.
//!
//! Everything that may be wrong is found before a token is made, and a token that could not be written down is revoked.

use clap::Args;
use cofer_model::Kind;
use cofer_model::project::DEFAULT_PROJECT;
use secrecy::SecretString;
use serde_json::json;

use super::super::external::{note, project_of};
use super::entry::{Entry, TOKEN_HIDDEN, checked_name, ours, takes_programs_alone};
use super::known::{Known, Scope};
use super::token::{self, Made};
use super::workpiece::{Workpiece, Written};
use crate::client::Target;
use crate::exit::Failure;
use crate::output::{Format, harmless_lines};

/// Write Cofer into a client's configuration, with a backup
#[derive(Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag that a person types")]
pub struct Install {
    /// Which client
    client: Known,
    /// The project whose tools it gets [default: `default`; with --http the token's, else `default`]
    #[arg(long)]
    project: Option<String>,
    /// Name of the entry
    #[arg(long, default_value = "cofer", value_parser = checked_name)]
    name: String,
    /// Write the address of the running Cofer and a token made for it, instead of a program to start
    #[arg(long)]
    http: bool,
    /// Offer coding environments instead of a project's tools
    #[arg(long, conflicts_with_all = ["project", "http"])]
    environments: bool,
    /// Whose configuration
    #[arg(long, value_enum, default_value_t)]
    scope: Scope,
    /// Replace an entry of that name even if it is not ours
    #[arg(long)]
    force: bool,
    /// Show the difference, and do nothing
    #[arg(long)]
    dry_run: bool,
}

impl Install {
    pub async fn run(self, target: &Target, format: Format) -> Result<(), Failure> {
        if self.http && self.client.http().is_none() {
            return Err(takes_programs_alone(self.client));
        }
        let mut work = Workpiece::open(self.client, self.scope)?;
        self.check_place(&work)?;
        if self.http {
            self.by_address(&mut work, target, format).await
        } else {
            self.by_program(&mut work, target, format).await
        }
    }

    fn check_place(&self, work: &Workpiece) -> Result<(), Failure> {
        let taken = work.servers.entry(&self.name).is_some_and(|entry| ours(&entry).is_none());
        if !taken || self.force {
            return Ok(());
        }
        let message = format!(
            "{} has an entry `{}` already that is not Cofer's; choose another `--name`, or replace it with `--force`",
            work.file.path.display(),
            self.name
        );
        Err(Failure::new(Kind::Conflict, message))
    }

    async fn by_program(&self, work: &mut Workpiece, target: &Target, format: Format) -> Result<(), Failure> {
        let mut args = vec!["stdio".to_owned()];
        if !self.environments {
            let project = self.project.as_deref().unwrap_or(DEFAULT_PROJECT);
            args.extend(["--project".to_owned(), project.to_owned()]);
            args.extend(target.as_arguments()?);
            look_for_project(target, project).await?;
        }
        let entry = Entry::Stdio { command: this_program()?, args };
        work.servers.put(&self.name, &entry.spelled_for(self.client)?);
        if !work.is_changed() {
            return self.tell(work, None, format);
        }
        if self.dry_run {
            return self.show(work, format);
        }
        let written = work.write(&self.name, None)?;
        self.finish(work, target, written, format).await
    }

    async fn by_address(&self, work: &mut Workpiece, target: &Target, format: Format) -> Result<(), Failure> {
        let cofer = target.client()?;
        let project = project_of(&cofer, self.project.as_deref()).await?;
        if self.dry_run {
            let url = cofer.mcp_address(&project)?.to_string();
            let entry = Entry::Http { url, token: SecretString::from(TOKEN_HIDDEN) };
            work.servers.put(&self.name, &entry.spelled_for(self.client)?);
            return self.show(work, format);
        }
        let Made { id, clear, url } = token::make(&cofer, &self.name, self.client, &project).await?;
        let entry = Entry::Http { url: url.to_string(), token: clear };
        work.servers.put(&self.name, &entry.spelled_for(self.client)?);
        let written = match work.write(&self.name, Some(&id)) {
            Ok(written) => written,
            Err(failure) => {
                token::revoke(target, &id).await;
                return Err(failure);
            }
        };
        if self.scope == Scope::Project {
            note("this file holds a token now; keep it out of version control");
        }
        self.finish(work, target, written, format).await
    }

    async fn finish(
        &self,
        work: &Workpiece,
        target: &Target,
        written: Written,
        format: Format,
    ) -> Result<(), Failure> {
        if let Some(id) = &written.token_before {
            token::revoke(target, id).await;
        }
        self.tell(work, Some(&written), format)
    }

    fn show(&self, work: &Workpiece, format: Format) -> Result<(), Failure> {
        let difference = work.difference();
        let told = json!({
            "client": self.client.as_str(),
            "name": self.name,
            "file": work.shown_path(),
            "outcome": "shown",
            "difference": difference,
        });
        format.print(&told, || harmless_lines(&difference))
    }

    /// `written` is none where everything was as it should be already.
    fn tell(&self, work: &Workpiece, written: Option<&Written>, format: Format) -> Result<(), Failure> {
        let (name, title, file) = (&self.name, self.client.title(), work.shown_path());
        let backup = written.and_then(Written::shown_backup);
        let told = json!({
            "client": self.client.as_str(),
            "name": name,
            "file": file,
            "outcome": if written.is_some() { "installed" } else { "unchanged" },
            "backup": backup,
        });
        let undoing = work.undoing();
        format.print(&told, || match (written, backup) {
            (None, _) => format!("nothing to do: `{name}` is in {file}"),
            (_, None) => format!(
                "`{name}` is in {file}, which is new; restart {title} to see its tools\n`{undoing}` removes it"
            ),
            (_, Some(backup)) => format!(
                "`{name}` is in {file}; restart {title} to see its tools\nbackup: {backup}; `{undoing}` puts it back"
            ),
        })
    }
}

/// A client will start it by this path, wherever it looks for programs.
fn this_program() -> Result<String, Failure> {
    let program = std::env::current_exe().map_err(Failure::internal)?;
    program.into_os_string().into_string().map_err(|program| {
        let message =
            format!("the path of this program, {}, is not UTF-8; move it elsewhere", program.display());
        Failure::new(Kind::Invalid, message)
    })
}

/// A name that is mistyped is told now rather than by a client later. If Cofer cannot be asked, there is time until it is used.
async fn look_for_project(target: &Target, project: &str) -> Result<(), Failure> {
    let Ok(cofer) = target.client() else {
        note("no Cofer is running now; start one with `cofer serve` before you use the client");
        return Ok(());
    };
    match cofer.get(&["projects", project]).await {
        Err(failure) if failure.kind == Kind::NotFound => Err(failure),
        _ => Ok(()),
    }
}
