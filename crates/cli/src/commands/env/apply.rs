//! `cofer env apply`.

use clap::Args;

use super::merge::taken_over;
use super::{Place, Which, failure};
use crate::exit::Failure;
use crate::output::with_spinner;

/// Put an environment's changes into what is checked out, for you to commit
#[derive(Debug, Args)]
pub struct Apply {
    #[command(flatten)]
    which: Which,
    /// Destroy the environment when its changes are there
    #[arg(short, long)]
    delete: bool,
}

impl Apply {
    pub async fn run(self, place: &Place) -> Result<(), Failure> {
        let environment = self.which.open(place).await?;
        let taken = with_spinner("applying", environment.apply()).await.map_err(failure)?;
        taken_over(place, environment, &taken, self.delete).await
    }
}
