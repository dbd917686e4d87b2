//! Whose turn it is to host. Of several Cofers on one database, one runs the servers, and another takes over when it ends.
//!
//! ```text
//!   standing by ── the lease is free ──► in office ── somebody else has it ──► standing by, own servers ended
//!                                            │
//!                                 the database is away: nobody can take it, so nothing changes
//! ```

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cofer_store::{Lease, StoreError};

use super::Hosting;

/// Between two looks at the lease.
const LOOK_EVERY: Duration = Duration::from_secs(2);

impl Hosting {
    /// Whether this process runs the servers.
    pub fn is_in_office(&self) -> bool {
        self.in_office.load(Ordering::Relaxed)
    }

    /// Whether it does, and knows which there are: who has only just taken over must neither deny a server nor sweep it away.
    pub(super) fn is_in_charge(&self) -> bool {
        self.is_in_office() && self.knows_fleet.load(Ordering::Acquire)
    }

    /// Takes office if it is free, and starts what is wanted; else stands by.
    pub(super) async fn run_for_office(self: &Arc<Self>) -> Result<(), StoreError> {
        let lease = self.store.try_lease().await?;
        if lease.is_some() {
            self.take_office().await?;
        } else {
            tracing::info!("another Cofer on this database runs the servers; standing by");
        }
        if lease.as_ref().is_none_or(Lease::can_be_lost) {
            self.spawn_until_stop(self.clone().hold_office(lease));
        }
        Ok(())
    }

    async fn take_office(self: &Arc<Self>) -> Result<(), StoreError> {
        self.in_office.store(true, Ordering::Relaxed);
        self.settle().await
    }

    async fn hold_office(self: Arc<Self>, mut lease: Option<Lease>) {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            if let Some(held) = &mut lease
                && held.is_held().await
            {
                continue;
            }
            // Nobody can take it while the database is away, so that is no reason to end anything.
            let Ok(free) = self.store.try_lease().await else { continue };
            match (lease.take().is_some(), &free) {
                (true, None) => self.step_down().await,
                (false, Some(_)) => {
                    tracing::info!("the Cofer that ran the servers is gone; taking over");
                    if let Err(error) = self.take_office().await {
                        tracing::warn!("hosted servers could not be read; trying again soon: {error}");
                    }
                }
                _ => {}
            }
            lease = free;
        }
    }

    /// Somebody else runs the servers now: ours end, and their rows are not ours to change.
    async fn step_down(&self) {
        tracing::warn!("another Cofer on this database took over; ending the servers that run here");
        self.in_office.store(false, Ordering::Relaxed);
        self.knows_fleet.store(false, Ordering::Release);
        self.end_all().await;
        self.fleet.forget_all();
    }
}
