//! `cofer stdio`: tools for clients that start a program and speak to its stdin and stdout. By itself it offers environments, with no
//! server running; with `--project` it is that project's MCP endpoint, relayed to the running Cofer.

use std::time::Duration;

use clap::{Args, ValueEnum};
use cofer_environments::tools::Offer;
use cofer_model::Kind;
use cofer_server::environments::serve_environments;
use cofer_server::settings::LogFormat;
use cofer_server::telemetry::Telemetry;
use rustix::event::{PollFd, PollFlags, poll};

use super::env::Workplace;
use super::external::project_of;
use crate::client::Target;
use crate::exit::Failure;
use crate::signals::told_to_end;

const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Serve coding environments to an MCP client on stdin and stdout; or, with --project, a project's tools by the running Cofer
#[derive(Debug, Args)]
pub struct Stdio {
    /// Serve this project's tools instead, by the running Cofer
    #[arg(long)]
    project: Option<String>,

    /// Which tools of environments are offered
    #[arg(long, value_enum, default_value_t = ToolSet::All, value_name = "SET")]
    tools: ToolSet,

    /// One environment for the whole conversation: tools need not name it
    #[arg(long)]
    single_tenant: bool,

    /// What is logged to standard error, such as `debug`
    #[arg(long, env = "COFER_LOG", default_value = "info", value_name = "FILTER")]
    log: String,

    #[command(flatten)]
    workplace: Workplace,
    #[command(flatten)]
    target: Target,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum ToolSet {
    /// All of them
    All,
    /// Create, run and destroy alone
    Core,
}

impl Stdio {
    pub async fn run(self) -> Result<(), Failure> {
        match &self.project {
            Some(project) => self.relay(project).await,
            None => self.environments().await,
        }
    }

    async fn environments(self) -> Result<(), Failure> {
        let variable = |name: &str| std::env::var(name).ok();
        let _telemetry = Telemetry::start(LogFormat::Text, &self.log, variable)
            .map_err(|error| Failure::caused(error.kind(), &error))?;
        let offer =
            Offer { core_only: matches!(self.tools, ToolSet::Core), single_tenant: self.single_tenant };
        let environments = self.workplace.environments()?;
        let (stdin, stdout) = (tokio::io::stdin(), tokio::io::stdout());
        let gone = async {
            tokio::select! {
                () = nobody_reads() => {}
                () = told_to_end() => {}
            }
        };
        serve_environments(&environments, offer, stdin, stdout, gone).await;
        Ok(())
    }

    async fn relay(&self, project: &str) -> Result<(), Failure> {
        let project = project_of(&self.target.client()?, Some(project)).await?;
        let endpoint = self.target.patient_client()?.mcp_endpoint(&project)?;
        let (stdin, stdout) = (tokio::io::stdin(), tokio::io::stdout());
        let relayed = cofer_server::relay(endpoint.http, endpoint.url, endpoint.token, stdin, stdout).await;
        relayed.map_err(|fault| {
            let kind = if fault.kind == Kind::NotFound { Kind::Unavailable } else { fault.kind };
            Failure::new(kind, format!("the connection to Cofer ended: {fault}"))
        })
    }
}

/// Comes back when nobody can read what we write any more.
async fn nobody_reads() {
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let stdout = rustix::stdio::stdout();
        let mut asked = [PollFd::new(&stdout, PollFlags::empty())];
        let at_once = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        let answered = poll(&mut asked, Some(&at_once));
        if answered.is_ok()
            && asked[0].revents().intersects(PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL)
        {
            return;
        }
    }
}
