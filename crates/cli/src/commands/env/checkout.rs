//! `cofer env checkout`.

use clap::Args;
use serde_json::json;

use super::{Place, Which, failure, warn};
use crate::exit::Failure;
use crate::output::{harmless_lines, with_spinner};

/// Check an environment's work out in your repository, as a branch that follows it
#[derive(Debug, Args)]
pub struct Checkout {
    #[command(flatten)]
    which: Which,
    /// The local branch [default: `cofer-ID`]
    #[arg(short, long)]
    branch: Option<String>,
}

impl Checkout {
    pub async fn run(self, place: &Place) -> Result<(), Failure> {
        let environment = self.which.open(place).await?;
        let checking_out = environment.check_out(self.branch.as_deref());
        let taken = with_spinner("checking out", checking_out).await.map_err(failure)?;
        warn(&taken.warnings);
        let told = json!({"id": environment.id(), "branch": taken.branch, "git": taken.said});
        place.format.print(&told, || harmless_lines(&taken.said))
    }
}
