//! The servers that are supervised now, found by id or by name without asking the database: calls come this way.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use cofer_model::{Moment, ProjectId, ProjectName, Reference, ServerId, Wanted};
use cofer_store::HostedServer;
use cofer_supervisor::Supervised;

use super::planner::ServerPlanner;

/// One server: what was asked for, and who sees to it.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) planner: Arc<ServerPlanner>,
    pub(crate) supervised: Supervised,
    pub(crate) created_at: Moment,
    /// Of a project that was renamed, the latest.
    project: RwLock<ProjectName>,
    told: RwLock<Told>,
    /// The number of the newest command that its supervisor got.
    last_command: AtomicU64,
    last_used: LastUse,
}

/// What the supervisor has been told so far, so that it is told only what is new.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Told {
    pub(crate) revision: i64,
    pub(crate) wanted: Wanted,
}

/// Milliseconds, so that noting a use costs the hot path one store.
#[derive(Debug, Default)]
struct LastUse {
    at: AtomicI64,
    written_down: AtomicI64,
}

impl Entry {
    pub(crate) fn new(row: &HostedServer, planner: Arc<ServerPlanner>, supervised: Supervised) -> Self {
        let last_used = LastUse::default();
        let before = row.last_used_at.map_or(0, Moment::unix_ms);
        last_used.at.store(before, Ordering::Relaxed);
        last_used.written_down.store(before, Ordering::Relaxed);
        Self {
            planner,
            supervised,
            created_at: row.created_at,
            project: RwLock::new(row.project.clone()),
            told: RwLock::new(Told { revision: row.revision, wanted: row.wanted }),
            last_command: AtomicU64::default(),
            last_used,
        }
    }

    pub(crate) fn project(&self) -> ProjectName {
        self.project.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn set_project(&self, name: &ProjectName) {
        if self.project() != *name {
            *self.project.write().unwrap_or_else(PoisonError::into_inner) = name.clone();
        }
    }

    pub(crate) fn told(&self) -> Told {
        *self.told.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_told(&self, told: Told) {
        *self.told.write().unwrap_or_else(PoisonError::into_inner) = told;
    }

    pub(crate) fn note_command(&self, number: u64) {
        self.last_command.fetch_max(number, Ordering::Relaxed);
    }

    /// Whoever waits for the outcome of a command waits for a truth that has seen this one.
    pub(crate) fn last_command(&self) -> u64 {
        self.last_command.load(Ordering::Relaxed)
    }

    pub(crate) fn note_use(&self, now: Moment) {
        self.last_used.at.store(now.unix_ms(), Ordering::Relaxed);
    }

    pub(crate) fn last_used_at(&self) -> Option<Moment> {
        match self.last_used.at.load(Ordering::Relaxed) {
            0 => None,
            ms => Some(Moment::from_unix_ms(ms)),
        }
    }

    /// The last use, if it has not been written down.
    pub(crate) fn take_use(&self) -> Option<Moment> {
        let at = self.last_used.at.load(Ordering::Relaxed);
        let before = self.last_used.written_down.swap(at, Ordering::Relaxed);
        (at != before).then(|| Moment::from_unix_ms(at))
    }
}

/// All of them.
#[derive(Debug, Default)]
pub(crate) struct Fleet {
    entries: RwLock<BTreeMap<ServerId, Arc<Entry>>>,
    /// Those whose row is gone and whose sandbox may not be yet. Nobody finds them by name any more.
    leaving: RwLock<BTreeMap<ServerId, Arc<Entry>>>,
}

impl Fleet {
    /// In the order of registration: ids sort by the time they were made.
    pub(crate) fn all(&self) -> Vec<Arc<Entry>> {
        self.entries.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    pub(crate) fn get(&self, id: ServerId) -> Option<Arc<Entry>> {
        self.entries.read().unwrap_or_else(PoisonError::into_inner).get(&id).cloned()
    }

    /// By id, or by name within this project.
    pub(crate) fn find(&self, project: ProjectId, reference: &Reference) -> Option<Arc<Entry>> {
        let entries = self.entries.read().unwrap_or_else(PoisonError::into_inner);
        match reference {
            Reference::Id(id) => entries.get(&ServerId(*id)).cloned(),
            Reference::Name(name) => {
                let named = |entry: &&Arc<Entry>| {
                    entry.planner.project_id == project && entry.planner.name.as_str() == name
                };
                entries.values().find(named).cloned()
            }
        }
    }

    pub(crate) fn insert(&self, entry: Arc<Entry>) {
        let mut entries = self.entries.write().unwrap_or_else(PoisonError::into_inner);
        entries.insert(entry.planner.id, entry);
    }

    pub(crate) fn remove(&self, id: ServerId) -> Option<Arc<Entry>> {
        self.entries.write().unwrap_or_else(PoisonError::into_inner).remove(&id)
    }

    /// From now on it is only waited for.
    pub(crate) fn leaves(&self, entry: &Arc<Entry>) {
        let id = entry.planner.id;
        self.leaving.write().unwrap_or_else(PoisonError::into_inner).insert(id, entry.clone());
        self.remove(id);
    }

    pub(crate) fn has_left(&self, id: ServerId) {
        self.leaving.write().unwrap_or_else(PoisonError::into_inner).remove(&id);
    }

    /// They are somebody else's now.
    pub(crate) fn forget_all(&self) {
        self.entries.write().unwrap_or_else(PoisonError::into_inner).clear();
    }

    pub(crate) fn is_leaving(&self, id: ServerId) -> bool {
        self.leaving.read().unwrap_or_else(PoisonError::into_inner).contains_key(&id)
    }

    /// Everybody who may still have a sandbox.
    pub(crate) fn all_and_leaving(&self) -> Vec<Arc<Entry>> {
        let mut all = self.all();
        all.extend(self.leaving.read().unwrap_or_else(PoisonError::into_inner).values().cloned());
        all
    }
}
