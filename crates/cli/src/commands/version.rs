//! `cofer version`: of this program, and of the server it would talk to.

use clap::Args;
use serde_json::{Value, json};

use crate::client::Server;
use crate::output::Format;

#[derive(Debug, Args)]
pub struct Version {
    #[command(flatten)]
    server: Server,
}

impl Version {
    pub async fn run(self, format: Format) {
        let program = env!("CARGO_PKG_VERSION");
        let server = self.ask().await;
        format.print(&json!({"client": program, "server": server}), || match server.as_str() {
            Some(server) => format!("cofer {program} (server {server})"),
            None => format!("cofer {program} (no server running)"),
        });
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
