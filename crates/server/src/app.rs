//! What every handler can reach.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::FromRef;
use cofer_environments::Environments;
use cofer_gateway::Gateway;
use cofer_model::ProjectId;
use cofer_store::Store;
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::agents::Agents;
use crate::auth::{Doorkeeper, Issued};
use crate::gateway::LogShelf;
use crate::hosting::Hosting;
use crate::http::extract::BodyLimits;
use crate::keyring::KeyRing;
use crate::logins::Logins;
use crate::settings::Settings;
use crate::telemetry::Telemetry;

/// Beside the time to drain. What is cut off then is a transaction, which happens whole or not at all.
const FINISH_GRACE: Duration = Duration::from_secs(5);

/// Shared by all requests. Cheap to clone.
#[derive(Clone, Debug)]
pub struct App(Arc<Parts>);

#[derive(Debug)]
pub struct Parts {
    pub settings: Settings,
    pub store: Store,
    pub keyring: Arc<KeyRing>,
    pub doorkeeper: Doorkeeper,
    pub hosting: Arc<Hosting>,
    pub gateway: Arc<Gateway>,
    pub shelf: Arc<LogShelf>,
    pub logins: Arc<Logins>,
    pub agents: Arc<Agents>,
    /// To be read of; tools have their own.
    pub environments: Arc<Environments>,
    /// Whose tokens are taken beside our own.
    pub issued: Option<Issued>,
    /// Cancelled when we are told to stop: what would go on for ever ends.
    pub(crate) stopping: CancellationToken,
    pub(crate) exports_traces: bool,
    pub metrics: PrometheusHandle,
    /// One permit for each request that may be in flight.
    pub(crate) requests: Semaphore,
    /// What must be finished, whoever hangs up.
    pub(crate) begun: TaskTracker,
}

/// What was opened before the doors are.
#[derive(Debug)]
pub struct Rooms {
    pub store: Store,
    pub keyring: Arc<KeyRing>,
    pub hosting: Arc<Hosting>,
    pub gateway: Arc<Gateway>,
    pub shelf: Arc<LogShelf>,
    pub logins: Arc<Logins>,
    pub agents: Arc<Agents>,
    pub environments: Arc<Environments>,
    pub issued: Option<Issued>,
}

impl App {
    pub fn new(
        settings: Settings,
        rooms: Rooms,
        stop: CancellationToken,
        telemetry: &Telemetry,
        metrics: PrometheusHandle,
    ) -> Self {
        let Rooms { store, keyring, hosting, gateway, shelf, logins, agents, environments, issued } = rooms;
        let exports_traces = telemetry.exports_traces();
        let (doorkeeper, requests) = (Doorkeeper::new(store.clone()), Semaphore::new(settings.requests_max));
        let begun = TaskTracker::new();
        Self(Arc::new(Parts {
            settings,
            store,
            keyring,
            doorkeeper,
            hosting,
            gateway,
            shelf,
            logins,
            agents,
            environments,
            issued,
            stopping: stop,
            exports_traces,
            metrics,
            requests,
            begun,
        }))
    }

    /// What is registered in this project, or the project itself, is not what it was. When this comes back, clients see it so.
    pub async fn registry_changed(&self, project: ProjectId) {
        if let Err(error) = self.gateway.changed(project).await {
            tracing::warn!(%project, "what changed in project {project} is not known to the gateway yet: {error}");
        }
    }

    /// Waits for what was begun by those who hung up since; the others had their time to drain.
    pub async fn finish(&self) {
        self.begun.close();
        if tokio::time::timeout(FINISH_GRACE, self.begun.wait()).await.is_err() {
            tracing::warn!("{} changes were still under way at the end", self.begun.len());
        }
    }
}

impl Deref for App {
    type Target = Parts;

    fn deref(&self) -> &Parts {
        &self.0
    }
}

impl FromRef<App> for BodyLimits {
    fn from_ref(app: &App) -> Self {
        Self { bytes_max: app.settings.body_bytes_max, timeout: app.settings.body_timeout }
    }
}
