//! `cofer version`: of this program, and of the server it would talk to.

use clap::Args;
use cofer_model::Kind;
use serde_json::{Value, json};

use crate::client::Target;
use crate::exit::Failure;
use crate::output::Format;

#[derive(Debug, Args)]
pub struct Version {
    #[command(flatten)]
    server: Target,
}

impl Version {
    pub async fn run(self, format: Format) -> Result<(), Failure> {
        let program = env!("CARGO_PKG_VERSION");
        let server = self.ask().await?;
        format.print(&json!({"client": program, "server": server}), || match server.as_str() {
            Some(server) => format!("cofer {program} (server {server})"),
            None => format!("cofer {program} (no server running)"),
        })
    }

    /// A server that is not there is nothing wrong here. An address that is none, is.
    async fn ask(&self) -> Result<Value, Failure> {
        match self.server.client() {
            Ok(client) => {
                Ok(client.health().await.map(|health| health["version"].clone()).unwrap_or_default())
            }
            Err(failure) if failure.kind == Kind::Unavailable => Ok(Value::Null),
            Err(failure) => Err(failure),
        }
    }
}
