//! Cofer whole, with one thing replaced: a sandbox is a plain child process. What is measured is what Cofer itself adds.

use std::collections::HashMap;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use cofer_model::{Isolation, Moment, NetworkMode, ProviderName};
use cofer_sandbox::{
    Capabilities, DiskLimit, ImageRecipe, Launched, LogSink, ProgressSink, Provider, Providers, SandboxError,
    SandboxId, SandboxSpec, SandboxState, Sighting, Streams, Usage, Volume,
};
use cofer_server::settings::{Layer, Settings};
use cofer_server::telemetry::Telemetry;
use futures_util::stream::BoxStream;
use tokio::process::{Child, Command};

/// A program that was built with this one.
pub fn sibling(name: &str) -> PathBuf {
    std::env::current_exe().expect("this program").with_file_name(name)
}

/// The trivial server, as a child of whoever calls.
pub fn child() -> Command {
    let mut command = Command::new(sibling("misbehaving-mcp-server"));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).kill_on_drop(true);
    command
}

/// Serves like `cofer serve`, with processes for sandboxes.
pub async fn serve(data_dir: PathBuf) {
    let layer = Layer {
        listen: Some("127.0.0.1:0".to_owned()),
        data_dir: Some(data_dir),
        log: Some("error".to_owned()),
        ..Layer::default()
    };
    let settings = Settings::decide(layer, |_| None).expect("settings");
    let telemetry = Telemetry::start(settings.log_format, &settings.log, |_| None).expect("telemetry");
    let provider: Arc<dyn Provider> = Arc::new(Processes::default());
    cofer_server::serve_with(settings, &telemetry, Providers::of([provider])).await.expect("a server");
}

#[derive(Debug, Default)]
struct Processes {
    running: Mutex<HashMap<SandboxId, (Child, Sighting)>>,
}

#[async_trait]
impl Provider for Processes {
    fn name(&self) -> ProviderName {
        ProviderName::Docker
    }

    async fn examine(&self) -> Result<Capabilities, SandboxError> {
        Ok(Capabilities {
            description: "child processes".to_owned(),
            isolation: Isolation::Container,
            memory_limit: false,
            cpu_limit: false,
            pids_limit: false,
            disk_limit: DiskLimit::Watched,
            volumes: false,
            ports: false,
            networks: NetworkMode::ALL.to_vec(),
            reattach: false,
            pull: false,
            build: false,
            rootless: false,
        })
    }

    async fn fetch_image(&self, _: &str, _: ProgressSink) -> Result<(), SandboxError> {
        Ok(())
    }

    async fn build_image(&self, _: &ImageRecipe, _: ProgressSink) -> Result<(), SandboxError> {
        Ok(())
    }

    async fn launch(&self, spec: &SandboxSpec, _: LogSink) -> Result<Launched, SandboxError> {
        let mut child = child().spawn().expect("the server");
        let (stdin, stdout) = (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
        let id = SandboxId(uuid::Uuid::new_v4().to_string());
        let sighting = Sighting {
            id: id.clone(),
            owner: spec.owner.clone(),
            state: SandboxState::Running { since: Moment::now() },
            endpoints: Vec::new(),
        };
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        running.insert(id.clone(), (child, sighting));
        let streams = Some(Streams { stdin: Box::new(stdin), stdout: Box::new(stdout) });
        Ok(Launched { id, streams, endpoints: Vec::new(), warnings: Vec::new() })
    }

    async fn attach(&self, id: &SandboxId, _: LogSink) -> Result<Streams, SandboxError> {
        Err(SandboxError::Gone { id: id.clone() })
    }

    async fn look(&self, id: &SandboxId) -> Result<Option<Sighting>, SandboxError> {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(running.get(id).map(|(_, sighting)| sighting.clone()))
    }

    async fn list(&self, _: &str) -> Result<Vec<Sighting>, SandboxError> {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(running.values().map(|(_, sighting)| sighting.clone()).collect())
    }

    async fn watch(&self, _: &str) -> Result<BoxStream<'static, SandboxId>, SandboxError> {
        Ok(Box::pin(futures_util::stream::pending()))
    }

    async fn stop(&self, id: &SandboxId, _: Duration) -> Result<(), SandboxError> {
        self.destroy(id).await
    }

    async fn destroy(&self, id: &SandboxId) -> Result<(), SandboxError> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner).remove(id);
        Ok(())
    }

    async fn usage(&self, _: &SandboxId) -> Result<Usage, SandboxError> {
        Ok(Usage::default())
    }

    async fn volumes(&self, _: &str) -> Result<Vec<Volume>, SandboxError> {
        Ok(Vec::new())
    }

    async fn remove_volume(&self, _: &str) -> Result<(), SandboxError> {
        Ok(())
    }
}
