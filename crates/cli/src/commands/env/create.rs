//! `cofer env create`.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use cofer_environments::Create as Wanted;

use super::show::facts;
use super::{Place, failure, warn};
use crate::exit::Failure;
use crate::output::with_spinner;
use crate::signals::{interrupted, unless_told_to_end};

const UNDO_MAX: Duration = Duration::from_secs(30);

/// Make an environment: a worktree of its own, and a container that has it at /workdir
#[derive(Debug, Args)]
pub struct Create {
    /// What it is for
    title: String,
    /// Begin with this branch, tag or commit [default: what is checked out]
    #[arg(long, value_name = "REF")]
    from: Option<String>,
    /// The container's image [default: as .cofer/environment.json says, else `COFER_ENVIRONMENT_IMAGE`]
    #[arg(long)]
    image: Option<String>,
    /// Its id [default: two words at random]
    #[arg(long)]
    id: Option<String>,
    /// Destroy one of the same id first
    #[arg(long, requires = "id")]
    replace: bool,
}

impl Create {
    pub async fn run(self, place: &Place) -> Result<ExitCode, Failure> {
        let wanted = Wanted {
            title: self.title,
            id: self.id,
            from_git_ref: self.from,
            image: self.image,
            allow_replace: self.replace,
        };
        let creating = Box::pin(place.environments.create(&place.path, wanted));
        let Some(created) = unless_told_to_end(with_spinner("making the environment", creating)).await else {
            // What was made so far is undone.
            with_spinner("undoing it", place.environments.settled(UNDO_MAX)).await;
            return Ok(interrupted());
        };
        let (environment, warnings) = created.map_err(failure)?;
        let mut told = facts(&environment);
        told["warnings"] = warnings.clone().into();
        let id = environment.id();
        place.format.print(&told, || {
            format!("environment {id} is ready: `cofer env run {id} -- COMMAND`, `cofer env terminal {id}`")
        })?;
        if place.format == crate::output::Format::Text {
            warn(&warnings);
        }
        Ok(ExitCode::SUCCESS)
    }
}
