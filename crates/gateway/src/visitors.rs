//! Clients whose requests stand alone. Each request is a visit; what servers need of a session is lent to it, and kept for the same
//! client's next one. A server that asks its clients things has one conversation with each client, known by how the client looks.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use cofer_mcp::era::Introduction;

use crate::project::Project;
use crate::session::{Session, looks_of};

/// More than this are not kept for one client.
const KEPT_MAX: usize = 64;

/// By how a client looks.
type Kept = HashMap<Arc<str>, Vec<Arc<Session>>>;

#[derive(Debug, Default)]
pub(crate) struct Visitors(Mutex<Kept>);

impl Visitors {
    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets what nobody has used for so long.
    pub(crate) fn forget_unused(&self, unused: Duration) {
        self.kept().retain(|_, sessions| {
            sessions.retain(|session| session.unused_for() < unused);
            !sessions.is_empty()
        });
    }
}

/// A request that stands alone, for as long as it is being answered.
#[derive(Debug)]
pub(crate) struct Visit {
    pub session: Arc<Session>,
    project: Weak<Project>,
}

impl Visit {
    pub(crate) fn begin(
        project: &Arc<Project>,
        owner: Option<uuid::Uuid>,
        introduction: &Introduction<'_>,
    ) -> Self {
        let known = project.visitors.kept().get_mut(&looks_of(owner, introduction)).and_then(Vec::pop);
        let session = known.unwrap_or_else(|| Arc::new(Session::visiting(owner, introduction)));
        session.note_use();
        Self { session, project: Arc::downgrade(project) }
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        self.session.forget_questions();
        let (Some(project), Some(looks)) = (self.project.upgrade(), self.session.looks()) else { return };
        let mut kept = project.visitors.kept();
        let sessions = kept.entry(looks.clone()).or_default();
        if sessions.len() < KEPT_MAX {
            self.session.note_use();
            sessions.push(self.session.clone());
        }
    }
}
