//! Calls that wait for their client: a server asked something in the middle of one, its client was answered so, and comes back with
//! what was asked for. Meanwhile the call stands here, for a while, and not too many of them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::alone::Running;
use crate::session::QUESTION_PATIENCE;

const PARKED_MAX: usize = 10_000;
/// So that one client cannot take all places.
const PARKED_BY_ONE_MAX: usize = 1000;
const LOOK: Duration = Duration::from_secs(5);

#[derive(Debug, Default)]
pub(crate) struct Lot(Mutex<HashMap<String, Parked>>);

#[derive(Debug)]
struct Parked {
    running: Running,
    until: Instant,
}

impl Lot {
    fn places(&self) -> MutexGuard<'_, HashMap<String, Parked>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The ticket for it, or the call itself if there is no place.
    pub(crate) fn park(self: &Arc<Self>, running: Running) -> Result<String, Box<Running>> {
        let ticket = uuid::Uuid::new_v4().simple().to_string();
        let mut places = self.places();
        let owner = running.owner();
        let by_one =
            places.values().filter(|parked| parked.running.owner() == owner).take(PARKED_BY_ONE_MAX).count();
        if places.len() >= PARKED_MAX || by_one >= PARKED_BY_ONE_MAX {
            return Err(Box::new(running));
        }
        let is_first = places.is_empty();
        places.insert(ticket.clone(), Parked { running, until: Instant::now() + QUESTION_PATIENCE });
        drop(places);
        if is_first {
            tokio::spawn(self.clone().see_off_the_late());
        }
        Ok(ticket)
    }

    /// It is continued once.
    pub(crate) fn take(&self, ticket: &str) -> Option<Running> {
        let parked = self.places().remove(ticket)?;
        (parked.until > Instant::now()).then_some(parked.running)
    }

    /// Ends those whose client has not come back, and itself when nobody waits any more.
    async fn see_off_the_late(self: Arc<Self>) {
        loop {
            tokio::time::sleep(LOOK).await;
            let (late, is_empty) = {
                let (mut places, now) = (self.places(), Instant::now());
                let late: Vec<_> = places.extract_if(|_, parked| parked.until <= now).collect();
                (late, places.is_empty())
            };
            // Each tells its server; not under our lock.
            drop(late);
            if is_empty {
                return;
            }
        }
    }
}
