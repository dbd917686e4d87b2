//! The tools of environments, offered: by themselves over stdin and stdout, and as native tools of every project.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use cofer_environments::tools::{INSTRUCTIONS, Offer, Progress, Toolbox};
use cofer_environments::{Environments, NoVault, Settings};
use cofer_gateway::{
    Gateway, GatewayRules, Ledger, Native, NativeCall, NativeHandler, ProjectEntry, Registry, text_result,
};
use cofer_model::{Namespacing, ProjectId, ServerId, ToolCallRecord};
use cofer_sandbox::{EngineSettings, Providers, Variable};
use serde_json::value::{RawValue, to_raw_value};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::stdio::serve_lines;

/// How long what was begun and is not wanted any more may take to be undone.
const UNDO_MAX: Duration = Duration::from_secs(30);

/// Environments on the engines of this machine.
pub fn of_this_machine(
    settings: Settings,
    docker_host: Option<String>,
    podman_host: Option<String>,
) -> Arc<Environments> {
    let engines = EngineSettings { docker_host, podman_host };
    let variable: Variable = Arc::new(|name: &str| std::env::var(name).ok());
    Environments::new(settings, Providers::new(&engines, &variable), Arc::new(NoVault))
}

/// One tool of the box.
#[derive(Debug)]
struct BoxedTool {
    toolbox: Arc<Toolbox>,
    name: String,
}

#[async_trait]
impl NativeHandler for BoxedTool {
    async fn call(&self, call: NativeCall<'_>) -> Box<RawValue> {
        let arguments = call.arguments.map(|arguments| serde_json::from_str(arguments.get())).transpose();
        let arguments = match arguments {
            Ok(arguments) => arguments,
            Err(error) => return text_result(&format!("the arguments cannot be read: {error}"), true),
        };
        let told = call.progress;
        let progress: Progress = Arc::new(move |progress, message| told.tell(progress, message));
        let result = self.toolbox.call(&self.name, arguments, call.trace_id, &progress).await;
        to_raw_value(&result).unwrap_or_else(|error| text_result(&error.to_string(), true))
    }
}

/// All tools of an offer, as native ones.
pub fn natives(environments: &Arc<Environments>, offer: Offer) -> Vec<Arc<Native>> {
    let toolbox = Arc::new(Toolbox::new(environments.clone(), offer));
    let native = |tool: serde_json::Value| {
        let name = tool["name"].as_str().unwrap_or_default().to_owned();
        let handler = Box::new(BoxedTool { toolbox: toolbox.clone(), name });
        to_raw_value(&tool).ok().map(|description| Arc::new(Native { description, handler }))
    };
    toolbox.listed().into_iter().filter_map(native).collect()
}

/// Serves the tools to one client, with no running Cofer behind it.
pub async fn serve_environments(
    environments: &Arc<Environments>,
    offer: Offer,
    from_client: impl AsyncRead + Unpin,
    to_client: impl AsyncWrite + Unpin + Send + 'static,
    gone: impl Future<Output = ()>,
) {
    let rules = GatewayRules { instructions: Some(INSTRUCTIONS), ..GatewayRules::default() };
    let project = ProjectId::generate();
    let gateway = Gateway::start(Arc::new(OnlyTools), Arc::new(NoLedger), natives(environments, offer), rules);
    if let Ok(Some(project)) = gateway.project(project).await {
        serve_lines(&project, from_client, to_client, gone).await;
    }
    gateway.stop().await;
    environments.settled(UNDO_MAX).await;
}

/// A project without servers.
#[derive(Debug)]
struct OnlyTools;

#[async_trait]
impl Registry for OnlyTools {
    async fn project(&self, id: ProjectId) -> Result<Option<ProjectEntry>, String> {
        let (name, namespacing) = ("environments".to_owned(), Namespacing::default());
        Ok(Some(ProjectEntry { id, name, namespacing, servers: Vec::new() }))
    }

    fn tools_found(&self, _: ProjectId, _: ServerId, _: Vec<Box<RawValue>>) {}

    async fn settled(&self) {}
}

/// Calls are in the log, and what was done is in the environment's own.
#[derive(Debug)]
struct NoLedger;

#[async_trait]
impl Ledger for NoLedger {
    async fn write(&self, _: &[ToolCallRecord]) -> Result<(), String> {
        Ok(())
    }
}
