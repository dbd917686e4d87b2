//! `cofer env log`.

use clap::Args;
use serde_json::json;

use super::diff::shown;
use super::{Place, Which, failure};
use crate::exit::Failure;

/// Show an environment's commits, and what was run for each
#[derive(Debug, Args)]
pub struct Log {
    #[command(flatten)]
    which: Which,
    /// With what each commit changed
    #[arg(short, long)]
    patch: bool,
}

impl Log {
    pub async fn run(self, place: &Place) -> Result<(), Failure> {
        let environment = self.which.open(place).await?;
        let log = environment.log(self.patch).await.map_err(failure)?;
        place.format.print(&json!({"id": environment.id(), "log": log}), || shown(&log))
    }
}
