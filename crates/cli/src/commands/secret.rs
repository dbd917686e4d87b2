//! `cofer secret`. A value is taken from standard input, a file or a hidden prompt: a command line is visible to
//! everybody on the machine.

use std::io::{self, IsTerminal, Read};
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use cofer_model::Kind;
use cofer_model::secret::SECRET_BYTES_MAX;
use secrecy::{ExposeSecret, SecretString};
use serde_json::json;

use super::remove_each;
use crate::client::Target;
use crate::exit::Failure;
use crate::output::{Format, table};

const COLUMNS: [(&str, &str); 3] = [("NAME", "name"), ("CREATED", "created_at"), ("UPDATED", "updated_at")];

#[derive(Debug, Args)]
pub struct Secret {
    #[command(subcommand)]
    action: Action,
    /// The project it belongs to
    #[arg(long, global = true, default_value = "default")]
    project: String,
    #[command(flatten)]
    server: Target,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Keep a secret; the value comes from standard input or a hidden prompt
    Set {
        /// As it is written in ${NAME}
        name: String,
        /// Take the value from this file instead
        #[arg(long, value_name = "FILE")]
        from_file: Option<PathBuf>,
    },
    /// List names
    #[command(alias = "list")]
    Ls,
    /// Forget secrets
    Rm {
        #[arg(required = true)]
        names: Vec<String>,
    },
    /// Replace the master key and seal every secret of every project anew
    RotateKey,
}

impl Secret {
    pub async fn run(self, format: Format) -> Result<(), Failure> {
        let client = self.server.client()?;
        let project = self.project.as_str();
        match self.action {
            Action::Set { name, from_file } => {
                let value = read_value(&name, from_file.as_deref())?;
                let body = json!({"value": value.expose_secret()});
                let kept = client.put(&["projects", project, "secrets", &name], &body).await?;
                format.print(&kept, || format!("secret {name} set"))
            }
            Action::Ls => {
                let names = client.get(&["projects", project, "secrets"]).await?;
                format.print(&names, || table(&names, &COLUMNS))
            }
            Action::Rm { names } => {
                let remove = async |name: &str| client.delete(&["projects", project, "secrets", name]).await;
                remove_each(&names, remove, format, |name| format!("secret {name} removed")).await
            }
            Action::RotateKey => {
                let rotated = client.post(&["master-key", "rotate"], &json!({})).await?;
                let fingerprint = rotated["fingerprint"].as_str().unwrap_or_default();
                format.print(&rotated, || {
                    format!(
                        "master key replaced by {fingerprint}; secrets sealed anew: {}",
                        rotated["secrets"]
                    )
                })
            }
        }
    }
}

fn read_value(name: &str, file: Option<&Path>) -> Result<SecretString, Failure> {
    let unreadable =
        |error: io::Error| Failure::new(Kind::Invalid, format!("the value cannot be read: {error}"));
    if let Some(file) = file {
        return std::fs::File::open(file).and_then(read_all).map_err(unreadable);
    }
    if io::stdin().is_terminal() {
        let typed = rpassword::prompt_password(format!("Value of {name}: "));
        return typed.map(SecretString::from).map_err(unreadable);
    }
    read_all(io::stdin()).map_err(unreadable)
}

/// Without the newline that `echo` and editors add. One byte past the limit is enough for the server to refuse it.
fn read_all(from: impl Read) -> io::Result<SecretString> {
    let mut text = String::new();
    from.take(SECRET_BYTES_MAX as u64 + 2).read_to_string(&mut text)?;
    let end = text.strip_suffix("\r\n").or_else(|| text.strip_suffix('\n')).map_or(text.len(), str::len);
    text.truncate(end);
    Ok(SecretString::from(text))
}
