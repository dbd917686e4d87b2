//! The gateway, put together: what is registered comes from the store and the fleet, servers are dialled by `hosted` and `external`, and
//! what was called goes into the store.

mod external;
mod file;
mod hosted;
mod ledger;
mod registry;
mod shelf;

use std::path::Path;
use std::sync::Arc;

use cofer_gateway::{Gateway, GatewayRules, Native, Recorder, Room, StateKey};
use cofer_mcp::wire::{direct_http_client, http_client};
use cofer_store::Store;

use external::Means;
pub use file::{FileError, ServersFile};
use ledger::StoredLedger;
use registry::StoredRegistry;
pub use shelf::LogShelf;

use crate::hosting::Hosting;
use crate::logins::Logins;
use crate::settings::GatewaySettings;

/// Starts it, and what servers say beside their answers goes to the shelf. Nothing is connected before it is used.
pub fn open(
    store: &Store,
    hosting: &Arc<Hosting>,
    settings: &GatewaySettings,
    file: &Arc<ServersFile>,
    natives: Vec<Arc<Native>>,
    logins: &Arc<Logins>,
    recorder: Recorder,
) -> (Arc<Gateway>, Arc<LogShelf>) {
    let shelf = Arc::<LogShelf>::default();
    let means = Means {
        keyring: logins.keyring(),
        http: http_client(),
        direct_http: direct_http_client(),
        message_bytes_max: hosting.settings().message_bytes_max,
        shelf: shelf.clone(),
        logins: logins.clone(),
    };
    let registry = StoredRegistry {
        store: store.clone(),
        hosting: hosting.clone(),
        means: Arc::new(means),
        default_project: hosting.default_project(),
        file: file.clone(),
        found: registry::writer(store.clone()),
    };
    let state_key = StateKey(logins.keyring().current().derived("what clients hold between two requests"));
    let rules = GatewayRules { state_key, ..settings.rules };
    (Gateway::start(Arc::new(registry), recorder, natives, rules), shelf)
}

/// What was called becomes rows of the store, by way of a journal in the data directory.
pub fn recorder(store: &Store, data_dir: &Path) -> std::io::Result<Recorder> {
    Recorder::open(data_dir, Arc::new(StoredLedger(store.clone())), Room::default())
}
