//! Which tools has this project, and who answers?
//!
//! ```text
//!   client ── endpoint ── session ─┐                               ┌─ slot ── dial ──► server
//!   REST  ─────────────────────────┴─ project ── catalogue ── upstream
//!                                        │                         └─ slot ── dial ──► server (a client's own)
//!                                     recorder ── journal ──► ledger
//! ```
//!
//! Messages are carried, not re-typed: of a call only its name and its progress token are looked at. One server that is down, slow or
//! mad costs its own callers their answer and nobody else anything.

#[cfg(feature = "adk")]
pub mod adk;
pub mod alone;
mod breaker;
mod call;
mod catalogue;
mod desk;
mod dial;
pub mod endpoint;
mod journal;
mod listening;
mod lists;
mod names;
mod native;
mod others;
mod outbox;
mod parked;
mod project;
mod record;
mod rounds;
mod session;
mod slot;
mod state;
mod tasks;
#[cfg(test)]
mod tests;
mod translate;
mod upstream;
mod visitors;

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};
use std::time::Duration;

use async_trait::async_trait;
use cofer_model::mask::Mask;
use cofer_model::{ProjectId, Reference, ServerId};
use serde_json::value::RawValue;
use tokio::sync::OnceCell;

pub use breaker::BreakerRules;
pub use call::{CallFailed, Caller, Recording, ToolAsked};
pub use catalogue::ListedTool;
pub use dial::{Dial, DialError, Dialled, Held};
pub use lists::Item;
pub use native::{Display, NATIVE, Native, NativeCall, NativeHandler, NativeProgress, text_result};
pub use outbox::{Next, Outbox};
pub use project::{Listing, Missing, Project, ProjectEntry};
pub use record::{Ledger, Recorder, Room, Unwritten};
pub use session::{Reading, Session};
pub use slot::SlotRules;
use state::Sealer;
pub use state::StateKey;
pub use upstream::{LiveState, ServerEntry};

/// How often sessions are looked at for those that nobody uses, at least.
const SESSIONS_LOOK: Duration = Duration::from_secs(30);
const SESSIONS_LOOK_MIN: Duration = Duration::from_millis(50);

/// What is registered, and where what was found out is kept.
#[async_trait]
pub trait Registry: Send + Sync + fmt::Debug + 'static {
    /// `None` if there is no such project.
    async fn project(&self, id: ProjectId) -> Result<Option<ProjectEntry>, String>;

    /// What a server offers now. Kept for the next life; must not wait.
    fn tools_found(&self, project: ProjectId, server: ServerId, tools: Vec<Arc<RawValue>>);

    /// Something about a server that people should know. Must not wait.
    fn warned(&self, server: ServerId, warning: &str);

    /// Comes back when everything found so far is kept.
    async fn settled(&self);
}

#[derive(Clone, Copy, Debug)]
pub struct GatewayRules {
    pub slots: SlotRules,
    pub call_timeout: Duration,
    /// How long a list waits for a server that nobody has asked yet.
    pub list_patience: Duration,
    pub session_idle: Duration,
    /// Seals what clients hold for us. The same for every Cofer that shares a database.
    pub state_key: StateKey,
    /// For the model of whoever connects.
    pub instructions: Option<&'static str>,
}

impl Default for GatewayRules {
    fn default() -> Self {
        Self {
            slots: SlotRules::default(),
            call_timeout: Duration::from_mins(1),
            list_patience: Duration::from_secs(10),
            session_idle: Duration::from_mins(30),
            state_key: StateKey::random(),
            instructions: None,
        }
    }
}

/// A client's session, and whose it is.
#[derive(Debug)]
pub(crate) struct OpenSession {
    pub project: Weak<Project>,
    pub session: Weak<Session>,
}

/// What all projects share.
#[derive(Debug)]
pub(crate) struct House {
    pub registry: Arc<dyn Registry>,
    pub recorder: Recorder,
    pub natives: Vec<Arc<Native>>,
    pub slot_rules: SlotRules,
    pub call_timeout: Duration,
    pub list_patience: Duration,
    pub instructions: Option<&'static str>,
    pub no_mask: Mask,
    /// Of tools, by whichever door.
    pub calls_under_way: AtomicUsize,
    /// In which project each session is.
    pub sessions_open: RwLock<HashMap<String, OpenSession>>,
    /// For what clients hold for us.
    pub sealer: Sealer,
    /// Calls that wait for their clients.
    pub lot: Arc<parked::Lot>,
}

/// All projects. One for the whole server.
#[derive(Debug)]
pub struct Gateway {
    house: Arc<House>,
    /// Read from the registry at their first use.
    projects: Mutex<HashMap<ProjectId, Arc<OnceCell<Arc<Project>>>>>,
    session_idle: Duration,
}

impl Gateway {
    pub fn start(
        registry: Arc<dyn Registry>,
        recorder: Recorder,
        natives: Vec<Arc<Native>>,
        rules: GatewayRules,
    ) -> Arc<Self> {
        let house = House {
            registry,
            recorder,
            natives,
            slot_rules: rules.slots,
            call_timeout: rules.call_timeout,
            list_patience: rules.list_patience,
            instructions: rules.instructions,
            no_mask: Mask::default(),
            calls_under_way: AtomicUsize::new(0),
            sealer: Sealer::new(&rules.state_key),
            lot: Arc::default(),
            sessions_open: RwLock::default(),
        };
        let gateway = Arc::new(Self {
            house: Arc::new(house),
            projects: Mutex::default(),
            session_idle: rules.session_idle,
        });
        let look_after = (rules.session_idle / 4).clamp(SESSIONS_LOOK_MIN, SESSIONS_LOOK);
        tokio::spawn(dismiss_unused(Arc::downgrade(&gateway), look_after));
        gateway
    }

    /// The project, read from the registry if nobody has asked for it yet. `None` if there is none.
    pub async fn project(&self, id: ProjectId) -> Result<Option<Arc<Project>>, String> {
        let cell = {
            let mut projects = self.projects.lock().unwrap_or_else(PoisonError::into_inner);
            projects.entry(id).or_default().clone()
        };
        if let Some(project) = cell.get() {
            return Ok(Some(project.clone()));
        }
        let made = cell.get_or_try_init(async || match self.house.registry.project(id).await {
            Ok(Some(entry)) => Ok(Project::new(self.house.clone(), entry)),
            Ok(None) => Err(None),
            Err(error) => Err(Some(error)),
        });
        match made.await {
            Ok(project) => Ok(Some(project.clone())),
            Err(None) => Ok(None),
            Err(Some(error)) => Err(error),
        }
    }

    /// The project, if anybody has used it before.
    pub fn in_use(&self, reference: &Reference) -> Option<Arc<Project>> {
        match reference {
            Reference::Id(id) => self.known(ProjectId(*id)),
            Reference::Name(name) => {
                let projects = self.projects.lock().unwrap_or_else(PoisonError::into_inner);
                projects
                    .values()
                    .filter_map(|cell| cell.get())
                    .find(|project| *project.name() == **name)
                    .cloned()
            }
        }
    }

    fn known(&self, id: ProjectId) -> Option<Arc<Project>> {
        let cell = self.projects.lock().unwrap_or_else(PoisonError::into_inner).get(&id)?.clone();
        cell.get().cloned()
    }

    /// The registry has changed for this project.
    pub async fn changed(&self, id: ProjectId) -> Result<(), String> {
        let Some(project) = self.known(id) else { return Ok(()) };
        // One at a time: who reads the registry later also has the later word.
        let _turn = project.turn.lock().await;
        if let Some(entry) = self.house.registry.project(id).await? {
            project.take(entry);
        } else {
            self.projects.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
            project.close();
        }
        Ok(())
    }

    /// A client's session, and where it is.
    pub fn session(&self, id: &str) -> Option<(Arc<Project>, Arc<Session>)> {
        let open = self.house.sessions_open.read().unwrap_or_else(PoisonError::into_inner);
        let OpenSession { project, session } = open.get(id)?;
        Some((project.upgrade()?, session.upgrade()?))
    }

    /// How many clients there are now.
    pub fn session_count(&self) -> usize {
        self.house.sessions_open.read().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// How a server stands. Asking never connects.
    pub fn state(&self, project: ProjectId, server: ServerId) -> LiveState {
        let known = self.known(project).and_then(|project| project.state(server));
        known.unwrap_or_else(LiveState::idle)
    }

    /// Connects now and lists anew.
    pub async fn refresh(&self, project: ProjectId, server: ServerId) -> Result<(), CallFailed> {
        let internal = |message: String| CallFailed {
            kind: cofer_model::Kind::Internal,
            message,
            may_have_executed: false,
            server_ended: false,
            retry_after: None,
        };
        let found = self.project(project).await.map_err(internal)?;
        let Some(upstream) = found.and_then(|project| project.upstream(server)) else {
            return Err(CallFailed {
                kind: cofer_model::Kind::NotFound,
                ..internal("there is no such server".to_owned())
            });
        };
        let refreshed = upstream.refresh().await.map_err(|unreached| CallFailed {
            kind: unreached.kind,
            retry_after: unreached.retry_after,
            ..internal(unreached.reason.to_string())
        });
        self.found().await;
        refreshed
    }

    /// Takes down a call of a tool that goes to its server by another door than a catalogue's.
    pub fn take_down<'a>(
        &'a self,
        project: ProjectId,
        tool: &'a ToolAsked,
        caller: &'a Caller,
    ) -> Recording<'a> {
        Recording::begin(&self.house, project, tool, caller)
    }

    /// How many bytes of records are in the journal and not in the ledger yet.
    pub fn record_bytes_waiting(&self) -> u64 {
        self.house.recorder.bytes_waiting()
    }

    /// Comes back when every call that has ended is recorded.
    pub async fn recorded(&self) {
        self.house.recorder.flush().await;
    }

    /// Comes back when all tools that were found, and may have been listed to somebody, are written down.
    pub async fn found(&self) {
        self.house.registry.settled().await;
    }

    /// Ends every conversation and every session, and writes down what is still to be.
    pub async fn stop(&self) {
        let projects: Vec<_> = self
            .projects
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .drain()
            .map(|(_, cell)| cell)
            .collect();
        for project in projects.iter().filter_map(|cell| cell.get()) {
            project.close();
        }
        self.found().await;
        self.recorded().await;
    }
}

async fn dismiss_unused(gateway: Weak<Gateway>, look_after: Duration) {
    loop {
        tokio::time::sleep(look_after).await;
        let Some(gateway) = gateway.upgrade() else { return };
        let cells: Vec<_> =
            gateway.projects.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect();
        for project in cells.iter().filter_map(|cell| cell.get()) {
            project.dismiss_unused(gateway.session_idle);
        }
    }
}
