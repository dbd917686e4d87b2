//! `cofer init`.

use clap::Args;
use cofer_environments::Settings;
use cofer_environments::git::{Initialised, Source};
use cofer_server::environments::usual_register;
use serde_json::json;

use super::{Repository, failure};
use crate::exit::Failure;
use crate::output::Format;

/// Make a git repository ready for environments
#[derive(Debug, Args)]
pub struct Init {
    /// Write the rule that ignores `.cofer/` to .gitignore instead of .git/info/exclude
    #[arg(long)]
    gitignore: bool,
    #[command(flatten)]
    repository: Repository,
}

impl Init {
    pub async fn run(self, format: Format) -> Result<(), Failure> {
        let settings = Settings::from_variables(&|name| std::env::var(name).ok()).map_err(failure)?;
        let path = self.repository.path()?;
        let (source, initialised) =
            Source::init(&path, self.gitignore, settings.timeout_git).await.map_err(failure)?;
        if let Some(register) = usual_register() {
            register.note(&source).await;
        }
        let (top, was_there) = (source.top.display().to_string(), initialised == Initialised::Before);
        format.print(&json!({"repository": top, "already": was_there}), || {
            if was_there {
                format!("{top} is ready for environments already")
            } else {
                format!(
                    "{top} is ready for environments: `cofer env create TITLE`, or `cofer stdio` for an agent"
                )
            }
        })
    }
}
