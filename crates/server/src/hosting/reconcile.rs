//! Makes what runs what is wanted.
//!
//! The rows say what is wanted, the fleet what is supervised, the engines what is there. [`settle`](Hosting::settle) compares the
//! first two, [`sweep`](Hosting::sweep) the last two. Both take no hints and may run at any time: the start of Cofer, a start after
//! SIGKILL, a registration and the everyday check are the same code.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cofer_model::{HostedStatus, ProviderName, ServerId};
use cofer_sandbox::{Provider, SandboxState, Sighting};
use cofer_store::{HostedServer, StoreError};
use cofer_supervisor::Supervised;
use futures_util::StreamExt;

use super::Hosting;
use super::fleet::{Entry, Told};
use super::planner::{Blueprint, OWNER_KIND, ServerPlanner};
use super::record::{follow, memory_of};

/// Whoever may have sandboxes of ours. gVisor shares an engine with one of the others, but each lists and hears its own alone.
const PROVIDERS: [ProviderName; 3] = [ProviderName::Gvisor, ProviderName::Docker, ProviderName::Podman];
/// Ends are told by the engine; this finds what was not told.
const BACKSTOP_EVERY: Duration = Duration::from_secs(5);
/// Between attempts to hear an engine that is away.
const LISTEN_RETRY: Duration = Duration::from_secs(2);
/// How often rows and sandboxes are compared though nobody said that anything changed.
const SETTLE_EVERY: Duration = Duration::from_mins(1);

impl Hosting {
    /// Brings the fleet in line with the rows.
    pub(super) async fn settle(self: &Arc<Self>) -> Result<(), StoreError> {
        let _one_at_a_time = self.settling.lock().await;
        if !self.is_in_office() {
            return Ok(());
        }
        let rows = self.store.hosted_servers().await?;
        let wanted: BTreeSet<ServerId> = rows.iter().map(|row| row.id).collect();
        for row in &rows {
            match self.fleet.get(row.id) {
                Some(entry) => bring_up_to_date(&entry, row),
                None => self.supervise(row),
            }
        }
        for entry in self.fleet.all().iter().filter(|entry| !wanted.contains(&entry.planner.id)) {
            self.let_go(entry);
        }
        self.knows_fleet.store(true, Ordering::Release);
        Ok(())
    }

    /// Takes a server into the fleet.
    fn supervise(&self, row: &HostedServer) {
        let (memory, latest) = memory_of(row, &self.office.providers);
        let (office, name) = (self.office.clone(), row.name.clone());
        let planner =
            Arc::new(ServerPlanner::new(office, row.id, row.project_id, name, blueprint_of(row), latest));
        let history = self.history.clone();
        let record = Arc::new(move |server, event| history.add(server, event));
        let (name, rules) = (row.name.clone(), self.rules.clone());
        let supervised = Supervised::start(row.id, name, planner.clone(), memory, rules, record);
        let entry = Arc::new(Entry::new(row, planner, supervised));
        entry.note_command(entry.supervised.want(row.wanted));
        self.tasks.spawn(follow(self.store.clone(), entry.clone(), self.stop.clone()));
        self.fleet.insert(entry);
        self.anything_to_watch.notify_waiters();
    }

    /// Takes a server out of the fleet: it ends, and its sandbox goes. Its end is waited for when we stop. Gives the number of the
    /// command.
    pub(super) fn let_go(self: &Arc<Self>, entry: &Arc<Entry>) -> u64 {
        // Among those who leave first: one that is in neither place would be swept away in the middle of its polite end.
        self.fleet.leaves(entry);
        let asked = entry.supervised.remove();
        let (hosting, entry) = (self.clone(), entry.clone());
        self.spawn_until_stop(async move {
            // An error says that the driver ended, which is an end as well.
            let _ = entry.supervised.truth().wait_for(|truth| truth.gone).await;
            hosting.fleet.has_left(entry.planner.id);
        });
        asked
    }

    /// Destroys what nobody wants: sandboxes of servers that are gone, and of earlier attempts.
    pub(super) async fn sweep(&self, provider: &dyn Provider) {
        // What another Cofer of this database runs carries the same label.
        if !self.is_in_charge() {
            return;
        }
        let Ok(sightings) = provider.list(&self.office.instance).await else { return };
        for sighting in sightings.into_iter().filter(|sighting| sighting.owner.kind == OWNER_KIND) {
            if self.is_wanted(&sighting) {
                continue;
            }
            let (id, name) = (&sighting.id, &sighting.owner.name);
            match provider.destroy(id).await {
                Ok(()) => tracing::info!("destroyed sandbox {id} of server {name}: nobody wants it any more"),
                Err(error) => tracing::warn!("sandbox {id} of server {name} could not be destroyed: {error}"),
            }
        }
    }

    fn is_wanted(&self, sighting: &Sighting) -> bool {
        let id = ServerId(sighting.owner.id);
        let Some(entry) = self.fleet.get(id) else {
            // Its supervisor is ending it, more politely than we would; or we have left office since we looked.
            return self.fleet.is_leaving(id) || !self.is_in_charge();
        };
        let truth = entry.supervised.truth().borrow().clone();
        if truth.seen < entry.last_command() {
            // What it says of itself is from before it was told what is wanted.
            return true;
        }
        match &truth.sandbox {
            Some(current) => *current == sighting.id,
            // While it is being started the sandbox is there before anybody has told of it.
            None => truth.status != HostedStatus::Stopped && sighting.owner.run >= truth.run,
        }
    }

    /// Hears one provider: whoever ended is looked at. An engine that went away and came back may have lost what we had there.
    async fn listen(self: Arc<Self>, provider: ProviderName) {
        let provider = self.office.providers.get(provider);
        self.sweep(&*provider).await;
        loop {
            self.wait_for_a_server().await;
            if let Ok(mut ends) = provider.watch(&self.office.instance).await {
                self.sweep(&*provider).await;
                self.look_everywhere();
                while let Some(ended) = ends.next().await {
                    for entry in self.fleet.all() {
                        if entry.supervised.truth().borrow().sandbox.as_ref() == Some(&ended) {
                            entry.supervised.exited_hint();
                        }
                    }
                }
                self.look_everywhere();
            }
            tokio::time::sleep(LISTEN_RETRY).await;
        }
    }

    fn look_everywhere(&self) {
        self.fleet.all().iter().for_each(|entry| entry.supervised.exited_hint());
    }

    async fn wait_for_a_server(&self) {
        loop {
            let added = self.anything_to_watch.notified();
            if !self.fleet.all().is_empty() {
                return;
            }
            added.await;
        }
    }

    /// One question to each provider that has something of ours, and a look at whoever does not run there any more.
    async fn backstop(&self) {
        for provider in PROVIDERS {
            let there: Vec<_> = self.fleet.all().into_iter().filter(|entry| is_on(entry, provider)).collect();
            if there.is_empty() {
                continue;
            }
            let Ok(sightings) = self.office.providers.get(provider).list(&self.office.instance).await else {
                continue;
            };
            let runs = |sighting: &&Sighting| matches!(sighting.state, SandboxState::Running { .. });
            let running: BTreeSet<_> = sightings.iter().filter(runs).map(|sighting| &sighting.id).collect();
            for entry in there {
                let sandbox = entry.supervised.truth().borrow().sandbox.clone();
                if sandbox.is_some_and(|sandbox| !running.contains(&sandbox)) {
                    entry.supervised.exited_hint();
                }
            }
        }
    }

    /// Everything that goes on as long as Cofer does.
    pub(super) fn begin_watching(self: &Arc<Self>) {
        for provider in PROVIDERS {
            self.spawn_until_stop(self.clone().listen(provider));
        }
        let hosting = self.clone();
        self.spawn_until_stop(async move {
            loop {
                hosting.wait_for_a_server().await;
                tokio::time::sleep(BACKSTOP_EVERY).await;
                hosting.backstop().await;
            }
        });
        let hosting = self.clone();
        self.spawn_until_stop(async move {
            loop {
                // Woken by a change whose row we did not write ourselves, or by the clock.
                let _ = tokio::time::timeout(SETTLE_EVERY, hosting.changed.notified()).await;
                if let Err(error) = hosting.settle().await {
                    tracing::warn!("hosted servers could not be compared with the database: {error}");
                }
                for provider in PROVIDERS {
                    hosting.sweep(&*hosting.office.providers.get(provider)).await;
                }
            }
        });
    }

    pub(super) fn spawn_until_stop(&self, work: impl Future<Output = ()> + Send + 'static) {
        let stop = self.stop.clone();
        self.tasks.spawn(async move {
            stop.run_until_cancelled(work).await;
        });
    }
}

fn is_on(entry: &Entry, provider: ProviderName) -> bool {
    let truth = entry.supervised.truth();
    let truth = truth.borrow();
    truth.sandbox.is_some() && truth.provider == Some(provider)
}

fn blueprint_of(row: &HostedServer) -> Blueprint {
    Blueprint { revision: row.revision, config: row.config.clone(), placed: row.placed }
}

/// Tells the supervisor what is new in the row, and nothing else.
fn bring_up_to_date(entry: &Entry, row: &HostedServer) {
    entry.set_project(&row.project);
    let told = entry.told();
    if told.revision != row.revision {
        entry.planner.set(blueprint_of(row));
        entry.note_command(entry.supervised.reconfigure());
    }
    if told.wanted != row.wanted {
        entry.note_command(entry.supervised.want(row.wanted));
    }
    entry.set_told(Told { revision: row.revision, wanted: row.wanted });
}
