//! `cofer version`: of this program, and of the server it would talk to.

use clap::Args;
use serde_json::{Value, json};

use crate::client::Server;
use crate::exit::Failure;
use crate::output::Format;

#[derive(Debug, Args)]
pub struct Version {
    #[command(flatten)]
    server: Server,
}

impl Version {
    #[expect(clippy::unnecessary_wraps, reason = "every command can fail; this one only has not yet")]
    pub async fn run(self, format: Format) -> Result<(), Failure> {
        let program = env!("CARGO_PKG_VERSION");
        let server = self.ask().await;
        format.print(&json!({"client": program, "server": server}), || match server.as_str() {
            Some(server) => format!("cofer {program} (server {server})"),
            None => format!("cofer {program} (no server running)"),
        });
        Ok(())
    }

    /// A server that is not there is nothing wrong here.
    async fn ask(&self) -> Value {
        match self.server.client() {
            Ok(client) => {
                client.get("/healthz").await.map(|health| health["version"].clone()).unwrap_or_default()
            }
            Err(_) => Value::Null,
        }
    }
}
