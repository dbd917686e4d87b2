//! Environments, offered: their tools by themselves over stdin and stdout, and as native tools of every project; and all that are known
//! here, to be read of.

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use cofer_environments::tools::{INSTRUCTIONS, Offer, Progress, Toolbox};
use cofer_environments::{EnvError, Environments, NoVault, Register, Settings, Vault};
use cofer_gateway::{
    Gateway, GatewayRules, Native, NativeCall, NativeHandler, ProjectEntry, Recorder, Registry, text_result,
};
use cofer_model::{Namespacing, ProjectId, ServerId};
use cofer_sandbox::{EngineSettings, Providers, Variable};
use secrecy::SecretString;
use serde_json::value::{RawValue, to_raw_value};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::keyring::KeyRing;
use crate::settings::{EnvironmentSettings, default_data_dir};
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

/// Where who works by hand notes repositories: in the data directory of the Cofer that usually runs here.
pub fn usual_register() -> Option<Register> {
    let named = std::env::var_os("COFER_DATA_DIR").filter(|dir| !dir.is_empty()).map(PathBuf::from);
    let usual = || default_data_dir(&|name: &str| std::env::var(name).ok());
    named.or_else(usual).map(|dir| Register::of(&dir))
}

/// All environments that are known here, for people who look.
pub(crate) fn to_be_read(data_dir: &Path, providers: &Providers) -> Result<Arc<Environments>, EnvError> {
    let mut rules = Settings::from_variables(&|name| std::env::var(name).ok())?;
    rules.register = Some(Register::of(data_dir));
    Ok(Environments::new(rules, providers.clone(), Arc::new(NoVault)))
}

/// Whose tools they are: the same for everybody, or each project's own.
trait Boxes: Send + Sync + fmt::Debug {
    fn of(&self, project: ProjectId) -> Arc<Toolbox>;
}

impl Boxes for Arc<Toolbox> {
    fn of(&self, _project: ProjectId) -> Arc<Toolbox> {
        self.clone()
    }
}

/// One tool of the box.
#[derive(Debug)]
struct BoxedTool {
    boxes: Arc<dyn Boxes>,
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
        let toolbox = self.boxes.of(call.project);
        let result = toolbox.call(&self.name, arguments, call.trace_id, &progress).await;
        to_raw_value(&result).unwrap_or_else(|error| text_result(&error.to_string(), true))
    }
}

fn natives(boxes: &Arc<dyn Boxes>, offer: Offer) -> Vec<Arc<Native>> {
    let native = |tool: serde_json::Value| {
        let name = tool["name"].as_str().unwrap_or_default().to_owned();
        let handler = Box::new(BoxedTool { boxes: boxes.clone(), name });
        to_raw_value(&tool).ok().map(|description| Arc::new(Native { description, handler }))
    };
    offer.listed().into_iter().filter_map(native).collect()
}

/// Each project's own: they differ in the secrets that environments may name.
#[derive(Debug)]
struct OfProjects {
    settings: Settings,
    providers: Providers,
    keyring: Arc<KeyRing>,
    known: Mutex<HashMap<ProjectId, Arc<Toolbox>>>,
}

impl Boxes for OfProjects {
    fn of(&self, project: ProjectId) -> Arc<Toolbox> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let made = || {
            let vault = Arc::new(ProjectVault { project, keyring: self.keyring.clone() });
            let environments = Environments::new(self.settings.clone(), self.providers.clone(), vault);
            Arc::new(Toolbox::new(environments, Offer::default()))
        };
        known.entry(project).or_insert_with(made).clone()
    }
}

/// The secrets of a project.
#[derive(Debug)]
struct ProjectVault {
    project: ProjectId,
    keyring: Arc<KeyRing>,
}

#[async_trait]
impl Vault for ProjectVault {
    async fn secret(&self, name: &str) -> Result<Option<SecretString>, String> {
        let all = self.keyring.open_secrets(self.project).await.map_err(|error| error.to_string())?;
        Ok(all.into_iter().find(|(known, _)| known.as_str() == name).map(|(_, value)| value))
    }
}

/// The tools as native ones of every project, where the operator named repositories that may be a source.
pub(crate) fn of_projects(
    settings: &EnvironmentSettings,
    data_dir: &Path,
    providers: &Providers,
    keyring: &Arc<KeyRing>,
) -> Result<Vec<Arc<Native>>, EnvError> {
    if settings.held_back {
        tracing::warn!(
            "environments are not offered, because others than this machine could reach them; `expose_environments` says that they may"
        );
    }
    if settings.sources.is_empty() {
        return Ok(Vec::new());
    }
    let mut rules = Settings::from_variables(&|name| std::env::var(name).ok())?;
    rules.sources = Some(settings.sources.clone());
    rules.register = Some(Register::of(data_dir));
    let (providers, keyring) = (providers.clone(), keyring.clone());
    let boxes = OfProjects { settings: rules, providers, keyring, known: Mutex::default() };
    Ok(natives(&(Arc::new(boxes) as Arc<dyn Boxes>), Offer::default()))
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
    let boxes: Arc<dyn Boxes> = Arc::new(Arc::new(Toolbox::new(environments.clone(), offer)));
    let natives = natives(&boxes, offer);
    // Calls are in the log, and what was done is in the environment's own.
    let gateway = Gateway::start(Arc::new(OnlyTools), Recorder::nowhere(), natives, rules);
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
        Ok(Some(ProjectEntry { id, name, namespacing, repeat_safe_calls: false, servers: Vec::new() }))
    }

    fn tools_found(&self, _: ProjectId, _: ServerId, _: Vec<Arc<RawValue>>) {}

    fn warned(&self, _: ServerId, _: &str) {}

    async fn settled(&self) {}
}
