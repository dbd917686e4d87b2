//! `cofer token`.

use std::io;

use clap::{Args, Subcommand};
use cofer_model::{Kind, Scope};
use serde_json::{Value, json};

use super::{object, remove_each};
use crate::client::Target;
use crate::exit::Failure;
use crate::output::{Format, table};

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
    server: Target,
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
                let made = client.post(&["tokens"], &body).await?;
                // The token alone, so that `TOKEN=$(cofer token create …)` works.
                let written = format.deliver(&made, || made["token"].as_str().unwrap_or_default().to_owned());
                written.map_err(|error| lost(&made["id"], &error))
            }
            Action::Ls => {
                let tokens = client.get(&["tokens"]).await?;
                format.print(&tokens, || table(&tokens, &COLUMNS))
            }
            Action::Rm { tokens } => {
                let revoke = async |token: &str| client.delete(&["tokens", token]).await;
                remove_each(&tokens, revoke, format, |token| format!("token {token} revoked")).await
            }
        }
    }
}

/// What was made is not shown twice, so a token that nobody received is of no use, and still opens doors.
fn lost(id: &Value, error: &io::Error) -> Failure {
    let message = format!(
        "the token was made but could not be written: {error}; nobody has it now, so revoke it with `cofer token rm {}` and make another",
        id.as_str().unwrap_or_default()
    );
    let details = [("id".to_owned(), id.clone())].into_iter().collect();
    Failure { details, ..Failure::new(Kind::Internal, message) }
}
