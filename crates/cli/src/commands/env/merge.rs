//! `cofer env merge`, and what it shares with `cofer env apply`.

use clap::Args;
use cofer_environments::Environment;
use cofer_environments::git::Takeover;
use cofer_model::Kind;
use serde_json::json;

use super::{Place, Which, failure, warn};
use crate::exit::Failure;
use crate::output::{harmless_lines, with_spinner};

/// Merge an environment's work into what is checked out, with its history
#[derive(Debug, Args)]
pub struct Merge {
    #[command(flatten)]
    which: Which,
    /// Destroy the environment when it is merged
    #[arg(short, long)]
    delete: bool,
}

impl Merge {
    pub async fn run(self, place: &Place) -> Result<(), Failure> {
        let environment = self.which.open(place).await?;
        let taken = with_spinner("merging", environment.merge()).await.map_err(failure)?;
        taken_over(place, environment, &taken, self.delete).await
    }
}

/// Tells what came of it, and removes the environment where that was asked for.
pub(super) async fn taken_over(
    place: &Place,
    environment: Environment,
    taken: &Takeover,
    delete: bool,
) -> Result<(), Failure> {
    warn(&taken.warnings);
    let id = environment.id().to_owned();
    let told = json!({"id": id, "git": taken.said, "destroyed": delete && taken.warnings.is_empty()});
    if delete && !taken.warnings.is_empty() {
        let message = format!(
            "environment {id} is not destroyed: not all of it was taken over\nsee to what the warning says; `cofer env destroy {id}` removes it all the same"
        );
        return Err(Failure::new(Kind::Conflict, message));
    }
    if delete {
        with_spinner("destroying the environment", environment.destroy(false)).await.map_err(failure)?;
    }
    place.format.print(&told, || {
        let gone = if delete { format!("\nenvironment {id} destroyed") } else { String::new() };
        format!("{}{gone}", harmless_lines(&taken.said))
    })
}
