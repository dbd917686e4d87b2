//! A Cofer of a program's own, for as long as the program wants it: on a free port of this machine, with the servers of one file, in a
//! directory that goes with it. `cofer chat --servers` talks to one.

use std::ffi::OsString;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use cofer_gateway::Project;
use cofer_model::Kind;
use cofer_sandbox::{EngineSettings, Providers, Variable};
use secrecy::SecretString;
use tempfile::TempDir;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::data_dir;
use crate::gateway::{FileError, ServersFile};
use crate::serve::{Ready, StartError, serve_until};
use crate::settings::{Layer, Settings, SettingsError};
use crate::telemetry::Telemetry;

const DRAIN_MS: u64 = 500;
const PREFIX: &str = "cofer-aside-";
/// One that is younger may be somebody's who has just made it.
const LEFT_BEHIND_AFTER: Duration = Duration::from_mins(10);

#[derive(Debug, thiserror::Error)]
pub enum AsideError {
    #[error(transparent)]
    Settings(#[from] SettingsError),
    #[error(transparent)]
    Servers(#[from] FileError),
    #[error(transparent)]
    Start(#[from] StartError),
    #[error("a directory for the time of the conversation could not be made")]
    Directory(#[source] std::io::Error),
    #[error("it ended before it served")]
    Ended,
}

impl AsideError {
    pub fn kind(&self) -> Kind {
        match self {
            Self::Settings(error) => error.kind(),
            Self::Servers(error) => error.kind(),
            Self::Start(error) => error.kind(),
            Self::Directory(_) | Self::Ended => Kind::Internal,
        }
    }
}

/// One that serves. End it with [`Aside::end`]; its servers end with it in any case.
#[derive(Debug)]
pub struct Aside {
    pub url: String,
    pub token: SecretString,
    /// Its tools, for a program that calls them itself.
    pub project: Arc<Project>,
    stop: CancellationToken,
    served: JoinHandle<Result<(), StartError>>,
    _dir: TempDir,
}

impl Aside {
    /// Starts the servers of the file, one after another, and comes back when all are there. `${NAME}` in the file is this program's
    /// own variable of that name.
    pub async fn start(
        servers: &Path,
        variable: impl Fn(&str) -> Option<OsString>,
        telemetry: Telemetry,
    ) -> Result<Self, AsideError> {
        sweep();
        let for_this_user = Permissions::from_mode(0o700);
        let made = tempfile::Builder::new().prefix(PREFIX).permissions(for_this_user).tempdir();
        let dir = made.map_err(AsideError::Directory)?;
        let text =
            |name: &str| variable(name).and_then(|value| value.into_string().ok()).filter(|v| !v.is_empty());
        let layer = Layer {
            listen: Some("127.0.0.1:0".to_owned()),
            data_dir: Some(dir.path().to_owned()),
            servers: Some(servers.to_owned()),
            enable_agent_workspaces: Some(false),
            drain_ms: Some(DRAIN_MS),
            anthropic_base_url: text("ANTHROPIC_BASE_URL"),
            agent_model: text("COFER_AGENT_MODEL"),
            ..Layer::default()
        };
        // Keys and tokens of the Cofer that may run on this machine are none of its business.
        let mut settings =
            Settings::decide(layer, |name| variable(name).filter(|_| !name.starts_with("COFER_")))?;
        let named = ServersFile::read(servers)?.secrets();
        let known = named.into_iter().filter_map(|name| Some((text(name.as_str())?, name)));
        settings.confidential.secrets = known.map(|(value, name)| (name, value.into())).collect();
        let (stop, (ready, told)) = (CancellationToken::new(), oneshot::channel());
        let providers = Providers::new(&EngineSettings::default(), &(Arc::new(|_: &str| None) as Variable));
        let served = tokio::spawn({
            let stop = stop.clone();
            async move { serve_until(settings, &telemetry, providers, stop, Some(ready)).await }
        });
        let Ok(Ready { url, gateway, default_project }) = told.await else {
            return Err(match served.await {
                Ok(Err(error)) => error.into(),
                _ => AsideError::Ended,
            });
        };
        let token = data_dir::admin_token(dir.path()).ok_or(AsideError::Ended)?;
        let project = gateway.project(default_project).await.ok().flatten().ok_or(AsideError::Ended)?;
        Ok(Self { url, token, project, stop, served, _dir: dir })
    }

    /// Ends it, its servers with all their processes, and its directory.
    pub async fn end(self) {
        const PATIENCE: Duration = Duration::from_mins(1);
        self.stop.cancel();
        if !matches!(tokio::time::timeout(PATIENCE, self.served).await, Ok(Ok(Ok(())))) {
            tracing::error!("the Cofer of this conversation did not end as it should");
        }
    }
}

/// Removes the directories of those that were killed before they could.
fn sweep() {
    let Ok(entries) = std::fs::read_dir(std::env::temp_dir()) else { return };
    for entry in entries.flatten().filter(|entry| entry.file_name().to_string_lossy().starts_with(PREFIX)) {
        let age =
            entry.metadata().and_then(|about| about.modified()).map(|at| at.elapsed().unwrap_or_default());
        let is_old = age.is_ok_and(|age| age > LEFT_BEHIND_AFTER);
        if is_old && data_dir::running(&entry.path()).is_none() {
            // Somebody else's, or gone meanwhile: either way not for us.
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}
