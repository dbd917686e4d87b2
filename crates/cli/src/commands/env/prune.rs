//! `cofer env prune`: what a killed Cofer left, and what nobody has touched for a long time.

use std::io::{self, IsTerminal, Write as _};
use std::time::Duration;

use clap::Args;
use cofer_environments::Orphan;
use cofer_model::{Kind, Moment};
use serde_json::{Value, json};

use super::{Place, failure, warn};
use crate::exit::Failure;
use crate::output::{Format, age, print_line, table, with_spinner};

const COLUMNS: [(&str, &str); 3] = [("ENVIRONMENT", "environment"), ("WHAT", "what"), ("WHY", "why")];

/// Remove what belongs to no environment any more, and environments that are old
#[derive(Debug, Args)]
pub struct Prune {
    /// Also environments that nobody has touched for so long, such as 1w
    #[arg(long, value_name = "AGE", value_parser = humantime::parse_duration)]
    before: Option<Duration>,
    /// Also caches that no environment uses now
    #[arg(long)]
    caches: bool,
    /// Only show what would be removed
    #[arg(long)]
    dry_run: bool,
    /// Do not ask
    #[arg(short, long)]
    yes: bool,
}

/// What goes, and why.
enum Waste {
    Orphan(Orphan),
    Old { id: String, title: String, idle: u64 },
}

impl Prune {
    pub async fn run(self, place: &Place) -> Result<(), Failure> {
        let waste = with_spinner("looking around", self.waste(place)).await?;
        let rows: Value = waste.iter().map(Waste::row).collect();
        if waste.is_empty() || self.dry_run {
            let told = if waste.is_empty() {
                "there is nothing to remove".to_owned()
            } else {
                table(&rows, &COLUMNS)
            };
            return place.format.print(&json!({"found": rows, "removed": 0}), || told);
        }
        if place.format == Format::Text {
            print_line(&table(&rows, &COLUMNS))?;
        }
        if !self.yes && !confirmed()? {
            return Err(Failure::new(Kind::Conflict, "nothing was removed"));
        }
        for one in &waste {
            with_spinner("removing", one.remove(place)).await?;
        }
        let removed = waste.len();
        place.format.print(&json!({"found": rows, "removed": removed}), || format!("{removed} removed"))
    }

    async fn waste(&self, place: &Place) -> Result<Vec<Waste>, Failure> {
        let orphans = place.environments.orphans(&place.path).await.map_err(failure)?;
        let mut waste: Vec<Waste> = orphans.into_iter().map(Waste::Orphan).collect();
        if self.caches {
            let caches = place.environments.unused_caches(&place.path).await.map_err(failure)?;
            waste.extend(caches.into_iter().map(Waste::Orphan));
        }
        if let Some(before) = self.before {
            let now = Moment::now();
            for environment in place.environments.list(&place.path).await.map_err(failure)? {
                let idle = now.seconds_since(environment.touched_at());
                if idle >= before.as_secs() {
                    let title = environment.state.title.clone();
                    waste.push(Waste::Old { id: environment.id().to_owned(), title, idle });
                }
            }
        }
        Ok(waste)
    }
}

impl Waste {
    fn row(&self) -> Value {
        let (environment, what, why) = match self {
            Self::Orphan(Orphan::Unfinished { id }) => {
                (id, "environment".to_owned(), "it was never finished, or is half destroyed".to_owned())
            }
            Self::Orphan(Orphan::Container { id, environment }) => {
                let short: String = id.chars().take(12).collect();
                (environment, format!("container {short}"), "its environment is gone".to_owned())
            }
            Self::Orphan(Orphan::Network { name, environment }) => {
                (environment, format!("network {name}"), "its environment is gone".to_owned())
            }
            Self::Orphan(Orphan::Cache { volume, name }) => {
                (name, format!("volume {volume}"), "no environment uses it now".to_owned())
            }
            Self::Orphan(Orphan::Worktree { path, environment }) => {
                (environment, path.display().to_string(), "its environment is gone".to_owned())
            }
            Self::Old { id, title, idle } => {
                (id, format!("environment: {title}"), format!("nobody touched it for {}", age(*idle)))
            }
        };
        json!({"environment": environment, "what": what, "why": why})
    }

    async fn remove(&self, place: &Place) -> Result<(), Failure> {
        match self {
            Self::Orphan(orphan) => {
                place.environments.remove_orphan(&place.path, orphan).await.map_err(failure)
            }
            Self::Old { id, .. } => {
                let gone = place.environments.destroy(&place.path, id, true).await.map_err(failure)?;
                warn(&gone.warnings);
                Ok(())
            }
        }
    }
}

/// Asks the person, if there is one.
fn confirmed() -> Result<bool, Failure> {
    if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
        let message =
            "nobody is here to say yes\nsay `--yes` to remove these, or `--dry-run` to see them alone";
        return Err(Failure::new(Kind::Invalid, message));
    }
    let mut stderr = io::stderr();
    let _ = write!(stderr, "Remove these? [y/N] ");
    let _ = stderr.flush();
    let mut answer = String::new();
    io::stdin().read_line(&mut answer).map_err(Failure::internal)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}
