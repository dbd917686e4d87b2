//! What every handler can reach.

use std::ops::Deref;
use std::sync::Arc;

use axum::extract::FromRef;
use cofer_store::Store;
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::sync::Semaphore;

use crate::auth::Doorkeeper;
use crate::http::extract::BodyLimits;
use crate::keyring::KeyRing;
use crate::settings::Settings;
use crate::telemetry::{SharedMask, Telemetry};

/// Shared by all requests. Cheap to clone.
#[derive(Clone, Debug)]
pub struct App(Arc<Parts>);

#[derive(Debug)]
pub struct Parts {
    pub settings: Settings,
    pub store: Store,
    pub keyring: KeyRing,
    pub doorkeeper: Doorkeeper,
    pub mask: SharedMask,
    pub(crate) exports_traces: bool,
    pub metrics: PrometheusHandle,
    /// One permit for each request that may be in flight.
    pub(crate) requests: Semaphore,
}

impl App {
    pub fn new(
        settings: Settings,
        store: Store,
        keyring: KeyRing,
        telemetry: &Telemetry,
        metrics: PrometheusHandle,
    ) -> Self {
        let (mask, exports_traces) = (telemetry.mask.clone(), telemetry.exports_traces());
        let (doorkeeper, requests) = (Doorkeeper::new(store.clone()), Semaphore::new(settings.requests_max));
        Self(Arc::new(Parts {
            settings,
            store,
            keyring,
            doorkeeper,
            mask,
            exports_traces,
            metrics,
            requests,
        }))
    }

    /// Does nothing: at the end the socket closes at once, so there is nobody left to tell.
    #[expect(clippy::unused_self, reason = "`serve` still calls it; the two go together")]
    pub fn drain(&self) {}
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
