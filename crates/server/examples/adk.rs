//! Tools of MCP servers in a program made with the Agent Development Kit.
//!
//! `cargo run -p cofer-server --features adk --example adk -- SERVERS.json TOOL JSON` starts the servers of a file, lists their tools as an
//! agent would see them, and calls one.

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::error::Error;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use adk_core::{
    Artifacts, CallbackContext, Content, EventActions, MemoryEntry, ReadonlyContext, ToolContext, Toolset,
};
use async_trait::async_trait;
use cofer_gateway::adk::ProjectToolset;
use cofer_server::Aside;
use cofer_server::telemetry::Telemetry;

fn main() -> ExitCode {
    // An error says that it was told already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = tokio::runtime::Runtime::new();
    match runtime.map_err(Into::into).and_then(|runtime| runtime.block_on(run())) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [servers, wanted, arguments] = args.as_slice() else {
        return Err("give SERVERS.json TOOL JSON".into());
    };
    let cofer =
        Aside::start(Path::new(servers), |name| std::env::var_os(name), Telemetry::of_others()).await?;
    let toolset = ProjectToolset::new(cofer.project.clone());
    let context = Arc::new(Conversation { said: Content::new("user") });
    let tools = toolset.tools(context.clone()).await?;
    for tool in &tools {
        println!("{}", tool.declaration());
    }
    let tool = tools.iter().find(|tool| tool.name() == wanted).ok_or("there is no such tool")?;
    let result = tool.execute(context, serde_json::from_str(arguments)?).await?;
    println!("{result}");
    cofer.end().await;
    Ok(())
}

/// What an agent's runner would hand to its tools.
struct Conversation {
    said: Content,
}

impl ReadonlyContext for Conversation {
    fn invocation_id(&self) -> &'static str {
        "example"
    }

    fn agent_name(&self) -> &'static str {
        "cook"
    }

    fn user_id(&self) -> &'static str {
        "ada"
    }

    fn app_name(&self) -> &'static str {
        "kitchen"
    }

    fn session_id(&self) -> &'static str {
        "first"
    }

    fn branch(&self) -> &'static str {
        ""
    }

    fn user_content(&self) -> &Content {
        &self.said
    }
}

impl CallbackContext for Conversation {
    fn artifacts(&self) -> Option<Arc<dyn Artifacts>> {
        None
    }
}

#[async_trait]
impl ToolContext for Conversation {
    fn function_call_id(&self) -> &'static str {
        "call"
    }

    fn actions(&self) -> EventActions {
        EventActions::default()
    }

    fn set_actions(&self, _: EventActions) {}

    async fn search_memory(&self, _: &str) -> adk_core::Result<Vec<MemoryEntry>> {
        Ok(Vec::new())
    }
}
