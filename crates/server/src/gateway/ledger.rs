//! Where the gateway's record of calls is kept.

use async_trait::async_trait;
use cofer_gateway::{Ledger, Unwritten};
use cofer_model::{Kind, ToolCallRecord};
use cofer_store::Store;

use crate::http::error::chain;

#[derive(Debug)]
pub(super) struct StoredLedger(pub Store);

#[async_trait]
impl Ledger for StoredLedger {
    async fn write(&self, records: &[ToolCallRecord]) -> Result<(), Unwritten> {
        let written = self.0.record_calls(records).await.map(drop);
        written.map_err(|error| Unwritten {
            reason: chain(&error),
            is_outage: error.kind() == Kind::Unavailable,
        })
    }
}
