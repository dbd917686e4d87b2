//! `cofer provider`: which sandboxes can be had here.

use clap::{Args, Subcommand};

use crate::client::Target;
use crate::exit::Failure;
use crate::output::{Format, table};

const COLUMNS: [(&str, &str); 4] =
    [("NAME", "name"), ("AVAILABLE", "available"), ("ISOLATION", "isolation"), ("REASON", "reason")];

#[derive(Debug, Args)]
pub struct Provider {
    #[command(subcommand)]
    action: Action,
    #[command(flatten)]
    server: Target,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List ways to run a sandbox, and whether each can be used
    #[command(alias = "list")]
    Ls,
}

impl Provider {
    pub async fn run(self, format: Format) -> Result<(), Failure> {
        let Action::Ls = self.action;
        let providers = self.server.client()?.get(&["providers"]).await?;
        format.print(&providers, || table(&providers, &COLUMNS))
    }
}
