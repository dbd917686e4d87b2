//! `cofer stdio`: a project's MCP endpoint for clients that start a program and speak to its stdin and stdout.

use clap::Args;
use cofer_model::Kind;

use super::external::project_of;
use crate::client::Target;
use crate::exit::Failure;

/// Serve a project's tools to an MCP client on stdin and stdout, by the running Cofer
#[derive(Debug, Args)]
pub struct Stdio {
    /// The project [default: the token's, else `default`]
    #[arg(long)]
    project: Option<String>,
    #[command(flatten)]
    target: Target,
}

impl Stdio {
    pub async fn run(self) -> Result<(), Failure> {
        let project = project_of(&self.target.client()?, self.project.as_deref()).await?;
        let endpoint = self.target.patient_client()?.mcp_endpoint(&project)?;
        let (stdin, stdout) = (tokio::io::stdin(), tokio::io::stdout());
        let relayed = cofer_server::relay(endpoint.http, endpoint.url, endpoint.token, stdin, stdout).await;
        relayed.map_err(|fault| {
            let kind = if fault.kind == Kind::NotFound { Kind::Unavailable } else { fault.kind };
            Failure::new(kind, format!("the connection to Cofer ended: {fault}"))
        })
    }
}
