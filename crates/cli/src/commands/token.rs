//! `cofer token`.

use clap::{Args, Subcommand};
use cofer_model::Scope;
use serde_json::json;

use super::project::object;
use crate::client::{Server, segment};
use crate::exit::Failure;
use crate::output::{Format, print_line, table};

const COLUMNS: [(&str, &str); 6] = [
    ("NAME", "name"),
    ("ID", "id"),
    ("PROJECT", "project"),
    ("SCOPES", "scopes"),
    ("EXPIRES", "expires_at"),
    ("LAST USED", "last_used_at"),
];

#[derive(Debug, Args)]
pub struct Token {
    #[command(subcommand)]
    action: Action,
    #[command(flatten)]
    server: Server,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Make a token and print it, this once
    Create {
        /// What to call it
        name: String,
        /// What it may do; repeat or separate with commas
        #[arg(long = "scope", required = true, value_delimiter = ',', value_parser = Scope::ALL.map(Scope::as_str))]
        scopes: Vec<String>,
        /// The only project it can see [default: all]
        #[arg(long)]
        project: Option<String>,
        /// How long it lasts, such as 12h or 30d [default: until revoked]
        #[arg(long, value_parser = humantime::parse_duration)]
        expires_in: Option<std::time::Duration>,
    },
    /// List tokens, without the tokens themselves
    #[command(alias = "list")]
    Ls,
    /// Revoke tokens, at once
    Rm {
        /// Ids, or names where only one token has it
        #[arg(required = true)]
        tokens: Vec<String>,
    },
}

impl Token {
    pub async fn run(self, format: Format) -> Result<(), Failure> {
        let client = self.server.client()?;
        match self.action {
            Action::Create { name, scopes, project, expires_in } => {
                let seconds = expires_in.map(|duration| duration.as_secs());
                let body = object([
                    ("name", json!(name)),
                    ("scopes", json!(scopes)),
                    ("project", json!(project)),
                    ("expires_in_seconds", json!(seconds)),
                ]);
                let made = client.post("/api/v1/tokens", &body).await?;
                // The token alone, so that `TOKEN=$(cofer token create …)` works.
                format.print(&made, || made["token"].as_str().unwrap_or_default().to_owned());
            }
            Action::Ls => {
                let tokens = client.get("/api/v1/tokens").await?;
                format.print(&tokens, || table(&tokens, &COLUMNS));
            }
            Action::Rm { tokens } => {
                for token in tokens {
                    client.delete(&format!("/api/v1/tokens/{}", segment(&token))).await?;
                    if format == Format::Text {
                        print_line(&format!("token {token} revoked"));
                    }
                }
            }
        }
        Ok(())
    }
}
