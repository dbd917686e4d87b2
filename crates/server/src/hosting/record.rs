//! Writes down what happens to hosted servers: their history, and what a later start of Cofer must know.
//!
//! Both follow what happened and hold nobody up. A database that is away is waited for; what happened meanwhile is kept, the
//! history up to a bound.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use cofer_model::{HostedEvent, ProviderName, ServerId};
use cofer_sandbox::{Providers, SandboxId};
use cofer_store::{HostedServer, Seen, Store};
use cofer_supervisor::{Adoptable, Facts, Memory, Truth};
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::fleet::{Entry, Fleet};
use super::planner::Drawn;
use crate::http::error::chain;
use crate::telemetry::metrics;

/// Events that wait to be written. Past it the newest are dropped, and that is said.
const EVENTS_WAITING_MAX: usize = 10_000;
const BATCH_MAX: usize = 256;
const DATABASE_RETRY: Duration = Duration::from_secs(1);
/// At the end of Cofer.
const LAST_PAGES_DEADLINE: Duration = Duration::from_secs(5);

/// What a sandbox is found by after a SIGKILL, as it is kept.
#[derive(Debug, Serialize, Deserialize)]
struct KeptSandbox {
    provider: ProviderName,
    id: String,
    run: u64,
    /// Of the configuration that it runs by.
    revision: i64,
    greeted: bool,
    facts: Facts,
}

/// What is remembered of a server from an earlier life, and which revision its sandbox was planned by.
pub(crate) fn memory_of(row: &HostedServer, providers: &Providers) -> (Memory, Drawn) {
    let kept = row.seen.sandbox.clone().and_then(|kept| serde_json::from_value::<KeptSandbox>(kept).ok());
    let drawn = kept.as_ref().map(|kept| Drawn { run: kept.run, revision: kept.revision });
    let memory = Memory {
        runs: row.seen.runs.unsigned_abs(),
        restart_count: row.seen.restart_count.unsigned_abs(),
        last_crash: row.seen.last_crash,
        last_exit: row.seen.last_exit.clone(),
        sandbox: kept.map(|kept| Adoptable {
            provider: providers.get(kept.provider),
            id: SandboxId(kept.id),
            run: kept.run,
            // One that was changed since is not taken over but replaced.
            greeted: kept.greeted && kept.revision == row.revision,
            facts: kept.facts,
        }),
    };
    (memory, drawn.unwrap_or_default())
}

fn seen_in(truth: &Truth, entry: &Entry) -> Seen {
    let kept = truth.sandbox.as_ref().zip(truth.provider).map(|(id, provider)| {
        let revision = entry.planner.revision_of(truth.run);
        KeptSandbox {
            provider,
            id: id.0.clone(),
            run: truth.run,
            revision: revision.unwrap_or_default(),
            greeted: truth.greeted && revision.is_some(),
            facts: truth.facts.clone(),
        }
    });
    Seen {
        status: truth.status,
        runs: truth.run.cast_signed(),
        restart_count: truth.restart_count.cast_signed(),
        last_crash: truth.last_crash,
        last_exit: truth.last_exit.clone(),
        sandbox: kept.and_then(|kept| serde_json::to_value(kept).ok()),
    }
}

/// Follows one server's truth into the database, until it is gone or we stop.
pub(crate) async fn follow(store: Store, entry: Arc<Entry>, stop: CancellationToken) {
    let mut truth = entry.supervised.truth();
    let mut written: Option<(Option<ProviderName>, Seen)> = None;
    loop {
        let now = truth.borrow_and_update().clone();
        if now.gone {
            return;
        }
        let seen = (now.provider, seen_in(&now, &entry));
        if written.as_ref() != Some(&seen) {
            match store.note_hosted_seen(entry.planner.id, seen.0, &seen.1).await {
                Ok(()) => written = Some(seen),
                Err(error) => {
                    tracing::warn!(
                        "what was seen of server {} is kept for later: {}",
                        entry.planner.name,
                        chain(&error)
                    );
                    if stop.run_until_cancelled(tokio::time::sleep(DATABASE_RETRY)).await.is_none() {
                        return;
                    }
                    continue;
                }
            }
        }
        match stop.run_until_cancelled(truth.changed()).await {
            Some(Ok(())) => {}
            Some(Err(_)) | None => return,
        }
    }
}

/// Where events are handed in. Never waits.
#[derive(Clone, Debug)]
pub(crate) struct History {
    pages: mpsc::Sender<Page>,
}

enum Page {
    Event(ServerId, HostedEvent),
    /// Whoever waits until everything before is written.
    Mark(oneshot::Sender<()>),
}

impl History {
    /// The way in, and the task that writes; it ends when every way in is gone.
    pub(crate) fn open(store: Store) -> (Self, impl Future<Output = ()>) {
        let (pages, arriving) = mpsc::channel(EVENTS_WAITING_MAX);
        (Self { pages }, write_down(store, arriving))
    }

    pub(crate) fn add(&self, server: ServerId, event: HostedEvent) {
        metrics::hosted_event(event.kind);
        if self.pages.try_send(Page::Event(server, event)).is_err() {
            tracing::warn!("the history of server {server} has a gap: the database does not keep up");
        }
    }

    /// Waits until what was handed in so far is written, as far as the database lets us.
    pub(crate) async fn written(&self) {
        let (mark, reached) = oneshot::channel();
        let written = async {
            if self.pages.send(Page::Mark(mark)).await.is_ok() {
                // An error says that the writer is gone.
                let _ = reached.await;
            }
        };
        if tokio::time::timeout(LAST_PAGES_DEADLINE, written).await.is_err() {
            tracing::warn!("the end of the history of some servers could not be written");
        }
    }
}

async fn write_down(store: Store, mut arriving: mpsc::Receiver<Page>) {
    let mut pages = Vec::new();
    while arriving.recv_many(&mut pages, BATCH_MAX).await > 0 {
        let (mut events, mut marks) = (Vec::new(), Vec::new());
        for page in pages.drain(..) {
            match page {
                Page::Event(server, event) => events.push((server, event)),
                Page::Mark(reached) => marks.push(reached),
            }
        }
        while let Err(error) = store.add_hosted_events(&events).await {
            tracing::warn!("{} events of servers are kept for later: {}", events.len(), chain(&error));
            tokio::time::sleep(DATABASE_RETRY).await;
        }
        for reached in marks {
            // Who waited may have given up.
            let _ = reached.send(());
        }
    }
}

/// Writes down when servers were last called.
pub(crate) async fn write_down_uses(store: &Store, fleet: &Fleet) {
    let uses: BTreeMap<_, _> =
        fleet.all().iter().filter_map(|entry| Some((entry.planner.id, entry.take_use()?))).collect();
    if uses.is_empty() {
        return;
    }
    if let Err(error) = store.note_hosted_uses(&uses).await {
        tracing::debug!("uses of servers were not written down: {}", chain(&error));
    }
}
