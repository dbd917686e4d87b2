//! The gateway, put together: what is registered comes from the store and the fleet, servers are dialled by `hosted` and `external`, and
//! what was called goes into the store.

mod external;
mod hosted;
mod ledger;
mod registry;

use std::sync::Arc;

use cofer_gateway::{Gateway, Native};
use cofer_store::Store;

use crate::hosting::Hosting;
use crate::keyring::KeyRing;
use crate::settings::GatewaySettings;

/// Starts it. Nothing is connected before it is used.
pub fn open(
    store: &Store,
    keyring: &Arc<KeyRing>,
    hosting: &Arc<Hosting>,
    settings: &GatewaySettings,
    natives: Vec<Arc<Native>>,
) -> Arc<Gateway> {
    let registry = registry::StoredRegistry::new(store.clone(), keyring.clone(), hosting.clone());
    Gateway::start(Arc::new(registry), Arc::new(ledger::StoredLedger(store.clone())), natives, settings.rules)
}
