//! One server's life: start, serve, stop.

use std::error::Error;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use cofer_gateway::Gateway;
use cofer_model::{Kind, Moment, ProjectId};
use cofer_sandbox::{EngineSettings, Providers, Variable};
use cofer_store::{OpenError, Store, StoreError};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::admin::{self, AdminError};
use crate::agents::Agents;
use crate::app::{App, Rooms};
use crate::auth::Issued;
use crate::data_dir::{DataDir, DataDirError};
use crate::environments;
use crate::gateway::{self, FileError, ServersFile};
use crate::hosting::Hosting;
use crate::http::error::chain;
use crate::http::listen::{ListenError, Listener};
use crate::http::router;
use crate::keyring::{KeyError, KeyRing};
use crate::logins::Logins;
use crate::settings::{DatabaseAtStart, McpAuth, Settings};
use crate::telemetry::{Telemetry, metrics};

/// Between attempts to reach a database that we were told to wait for.
const DATABASE_RETRY: Duration = Duration::from_secs(1);
/// How often the uses of tokens are written down and metrics tidied.
const TEND_EVERY: Duration = Duration::from_secs(5);
/// After this long, an operator is told what is waited for.
const DATABASE_SLOW: Duration = Duration::from_secs(5);

/// Why the server could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(transparent)]
    DataDir(#[from] DataDirError),
    #[error(transparent)]
    Listen(#[from] ListenError),
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error(transparent)]
    Key(#[from] KeyError),
    #[error("the database could not be prepared")]
    Store(#[from] StoreError),
    #[error(transparent)]
    Admin(#[from] AdminError),
    #[error(transparent)]
    Servers(#[from] FileError),
    #[error(transparent)]
    Environments(#[from] cofer_environments::EnvError),
    #[error("{what} could not be set up")]
    Process {
        what: &'static str,
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
}

impl StartError {
    pub fn kind(&self) -> Kind {
        match self {
            Self::DataDir(error) => error.kind(),
            Self::Listen(error) => error.kind(),
            Self::Open(error) => error.kind(),
            Self::Key(error) => error.kind(),
            Self::Store(error) => error.kind(),
            Self::Admin(error) => error.kind(),
            Self::Servers(error) => error.kind(),
            Self::Environments(error) => error.kind.kind(),
            Self::Process { .. } => Kind::Internal,
        }
    }

    fn process(what: &'static str) -> impl FnOnce(Box<dyn Error + Send + Sync>) -> Self {
        move |source| Self::Process { what, source }
    }
}

/// Serves until SIGTERM or SIGINT, then stops cleanly.
pub async fn serve(settings: Settings, telemetry: &Telemetry) -> Result<(), StartError> {
    let engines = EngineSettings {
        docker_host: settings.docker_host.clone(),
        podman_host: settings.podman_host.clone(),
    };
    let variable: Variable = Arc::new(|name: &str| std::env::var(name).ok());
    serve_with(settings, telemetry, Providers::new(&engines, &variable)).await
}

/// The same, with these ways of running a sandbox.
pub async fn serve_with(
    settings: Settings,
    telemetry: &Telemetry,
    providers: Providers,
) -> Result<(), StartError> {
    let stop = stop_on_signal()?;
    Box::pin(serve_until(settings, telemetry, providers, stop, None)).await
}

/// What a program that serves by the way hears when it does.
pub(crate) struct Ready {
    pub url: String,
    pub gateway: Arc<Gateway>,
    pub default_project: ProjectId,
}

/// Serves until told to stop. Whoever is at the other end of `ready` hears the address; else standard output does.
pub(crate) async fn serve_until(
    mut settings: Settings,
    telemetry: &Telemetry,
    providers: Providers,
    stop: CancellationToken,
    ready: Option<oneshot::Sender<Ready>>,
) -> Result<(), StartError> {
    settings.confidential.never_to_be_logged.drain(..).for_each(|text| telemetry.mask.hide(&text));
    let mut data_dir = DataDir::claim(&settings.data_dir)?;
    let listener = Listener::bind(&settings).await?;
    let Some(store) = open_store(&settings, &stop).await? else { return Ok(()) };
    let now = Moment::now();
    store.ensure_default_project(now).await?;
    let keyring = Arc::new(KeyRing::load(&store, data_dir.path(), &mut settings.confidential, now).await?);
    let given = settings.confidential.admin_token.take();
    match &given {
        Some(given) => admin::use_given(given, &store, &data_dir, now).await?,
        None => admin::ensure(&store, &data_dir, now).await?,
    }
    let metrics = metrics::install().map_err(|error| StartError::process("metrics")(error.into()))?;
    let for_environments = providers.clone();
    let hosting = Hosting::open(store.clone(), settings.hosting.clone(), providers, keyring.clone()).await?;
    let file = settings.gateway.servers.as_deref().map(ServersFile::read).transpose()?;
    let file = Arc::new(file.unwrap_or_default());
    for (name, value) in settings.confidential.secrets.drain(..) {
        keyring.put_secret(hosting.default_project(), &name, &value, now).await?;
    }
    let mut natives = file.natives(&settings.gateway.native_tools)?;
    let environments = environments::to_be_read(data_dir.path(), &for_environments)?;
    let asked = &settings.environments;
    natives.extend(environments::of_projects(asked, data_dir.path(), &for_environments, &keyring)?);
    let base = settings.oauth.public_url.clone().unwrap_or_else(|| listener.local_url());
    let logins = Arc::new(Logins::new(store.clone(), keyring.clone(), base.clone()));
    let recorder = gateway::recorder(&store, data_dir.path())
        .map_err(|source| DataDirError::Unwritable { path: data_dir.path().to_owned(), source })?;
    let (gateway, shelf) =
        gateway::open(&store, &hosting, &settings.gateway, &file, natives, &logins, recorder);
    if let Err(error) = file.start(&gateway, hosting.default_project()).await {
        gateway.stop().await;
        hosting.shut_down().await;
        return Err(error.into());
    }
    let issued = Issued::of(&settings.oauth, &base);
    let key = settings.confidential.model_key.take();
    let agents =
        Arc::new(Agents::new(store.clone(), keyring.clone(), gateway.clone(), settings.agent.clone(), key));
    agents.recover().await;
    let rooms = Rooms {
        store: store.clone(),
        keyring,
        hosting: hosting.clone(),
        gateway: gateway.clone(),
        shelf,
        logins,
        agents: agents.clone(),
        environments,
        issued,
    };
    let app = App::new(settings, rooms, stop.clone(), telemetry, metrics);
    if let Some(token) = &given {
        app.doorkeeper.knows(token);
    }

    data_dir.announce(listener.url(), listener.certificate())?;
    match ready {
        Some(ready) => {
            let (url, default_project) = (listener.url().clone(), hosting.default_project());
            let _ = ready.send(Ready { url, gateway: gateway.clone(), default_project });
        }
        None => greet(&listener, &data_dir, &app.settings),
    }
    let tending = tokio::spawn(tend(app.clone(), stop.clone()));
    listener.serve(app.clone(), router(app.clone()), stop).await;
    agents.stop().await;
    app.finish().await;
    gateway.stop().await;
    hosting.shut_down().await;

    if let Err(error) = tending.await {
        tracing::error!("the housekeeping task ended badly: {error}");
    }
    write_down_uses(&app).await;
    store.close().await;
    tracing::info!("stopped");
    Ok(())
}

/// The first signal asks politely. The second means it.
fn stop_on_signal() -> Result<CancellationToken, StartError> {
    let refused = |error: std::io::Error| StartError::process("signal handling")(error.into());
    let mut terminate = signal(SignalKind::terminate()).map_err(refused)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(refused)?;
    let stop = CancellationToken::new();
    let asked = stop.clone();
    tokio::spawn(async move {
        for signals_left in [1, 0] {
            tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
            if signals_left == 0 {
                tracing::warn!("told twice to stop; leaving at once");
                std::process::exit(1);
            }
            tracing::info!("stopping: finishing what is in flight");
            asked.cancel();
        }
    });
    Ok(stop)
}

/// Opens the database, waiting for it if that was asked. `None` when told to stop while waiting.
async fn open_store(settings: &Settings, stop: &CancellationToken) -> Result<Option<Store>, OpenError> {
    loop {
        let Some(opened) = stop.run_until_cancelled(open_telling_when_slow(settings)).await else {
            return Ok(None);
        };
        let wait = settings.database_at_start == DatabaseAtStart::WaitFor;
        match opened {
            Err(error) if wait && error.kind() == Kind::Unavailable => {
                tracing::warn!("waiting for the database: {}", chain(&error));
            }
            outcome => return outcome.map(Some),
        }
        tokio::select! {
            () = stop.cancelled() => return Ok(None),
            () = tokio::time::sleep(DATABASE_RETRY) => {}
        }
    }
}

async fn open_telling_when_slow(settings: &Settings) -> Result<Store, OpenError> {
    let opening = Store::open(&settings.database);
    tokio::pin!(opening);
    loop {
        match tokio::time::timeout(DATABASE_SLOW, &mut opening).await {
            Ok(opened) => return opened,
            Err(_elapsed) => tracing::info!(
                "still opening {}; another Cofer may be bringing it up to date",
                settings.database
            ),
        }
    }
}

/// The line that scripts wait for goes to standard output; what a person wants to know, to standard error.
fn greet(listener: &Listener, data_dir: &DataDir, settings: &Settings) {
    let url = listener.url();
    if settings.behind_proxy && settings.gateway.mcp_auth == McpAuth::None {
        tracing::warn!(
            "`mcp_auth = none` behind a proxy: whoever the proxy lets through can use every tool; let it ask who they are, or use tokens"
        );
    }
    if listener.is_exposed(settings.behind_proxy) {
        tracing::warn!(
            "listening on {url} without TLS: tokens can be read on the network; give `--tls-cert` and `--tls-key`, or `--behind-proxy` if a proxy in front ends TLS"
        );
    }
    let token = data_dir.admin_token_file();
    if token.exists() {
        let (token, quoted) = (token.display(), quoted_for_shell(&token));
        tracing::info!(
            "admin token in {token}; try: curl -H \"Authorization: Bearer $(cat {quoted})\" {url}/api/v1/projects"
        );
    }
    tracing::info!("console at {url}/");
    // Nobody listening to standard output is no reason not to serve.
    let _ = writeln!(std::io::stdout(), "listening on {url}");
}

/// As one word of a POSIX shell, whatever is in it.
fn quoted_for_shell(path: &Path) -> String {
    format!("'{}'", path.display().to_string().replace('\'', r"'\''"))
}

/// What is done now and then.
async fn tend(app: App, stop: CancellationToken) {
    while stop.run_until_cancelled(tokio::time::sleep(TEND_EVERY)).await.is_some() {
        app.metrics.run_upkeep();
        write_down_uses(&app).await;
        app.hosting.write_down_uses().await;
        app.agents.tend().await;
    }
}

async fn write_down_uses(app: &App) {
    if let Err(error) = app.doorkeeper.write_down_uses().await {
        tracing::debug!("uses of tokens are kept for later: {}", chain(&error));
    }
}
