//! `cofer env destroy`.

use clap::Args;
use serde_json::json;

use super::{Place, failure, warn};
use crate::exit::Failure;
use crate::output::{Format, forgive_closed_pipe, print_line, with_spinner};

/// End environments and remove all of them: containers, worktree, branch
#[derive(Debug, Args)]
pub struct Destroy {
    #[arg(required_unless_present = "all", value_name = "ID")]
    ids: Vec<String>,
    /// Try by other means what cannot be removed at first
    #[arg(long)]
    force: bool,
    /// All environments of the repository
    #[arg(long, conflicts_with = "ids")]
    all: bool,
}

impl Destroy {
    pub async fn run(self, place: &Place) -> Result<(), Failure> {
        let ids = if self.all {
            let all = place.environments.list(&place.path).await.map_err(failure)?;
            all.iter().map(|environment| environment.id().to_owned()).collect()
        } else {
            self.ids
        };
        let (mut destroyed, mut said) = (Vec::new(), Ok(()));
        for id in &ids {
            let destroying = place.environments.destroy(&place.path, id, self.force);
            let gone = with_spinner("destroying", destroying).await.map_err(failure)?;
            warn(&gone.warnings);
            if place.format == Format::Text {
                // Half of the work for want of a place to report it would help nobody.
                said = said.and(print_line(&format!("environment {id} destroyed")));
            }
            destroyed.push(gone);
        }
        if place.format == Format::Json {
            return forgive_closed_pipe(place.format.deliver(&json!(destroyed), String::new));
        }
        said
    }
}
