//! `cofer volume`: what servers keep, and what servers that are gone have left.

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::remove_each;
use crate::client::Target;
use crate::exit::Failure;
use crate::output::{Format, size, table};

const COLUMNS: [(&str, &str); 6] = [
    ("NAME", "name"),
    ("SERVER", "server"),
    ("PROJECT", "project"),
    ("PATH", "path"),
    ("SIZE", "size"),
    ("IN USE", "in_use"),
];

#[derive(Debug, Args)]
pub struct Volume {
    #[command(subcommand)]
    action: Action,
    #[command(flatten)]
    server: Target,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List volumes of hosted servers, also of those that are gone
    #[command(alias = "list")]
    Ls,
    /// Remove volumes that no server has
    Rm {
        #[arg(required = true)]
        names: Vec<String>,
    },
}

impl Volume {
    pub async fn run(self, format: Format) -> Result<(), Failure> {
        let client = self.server.client()?;
        match self.action {
            Action::Ls => {
                let volumes = client.get(&["mcp", "volumes"]).await?;
                format.print(&volumes, || table(&with_sizes(&volumes), &COLUMNS))
            }
            Action::Rm { names } => {
                let remove = async |name: &str| client.delete(&["mcp", "volumes", name]).await;
                remove_each(&names, remove, format, |name| format!("volume {name} removed")).await
            }
        }
    }
}

fn with_sizes(volumes: &Value) -> Value {
    let row = |volume: &Value| {
        let mut row = volume.clone();
        row["size"] = json!(volume["size_bytes"].as_u64().map(size));
        row
    };
    volumes.as_array().into_iter().flatten().map(row).collect()
}
