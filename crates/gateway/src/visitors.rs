//! Clients whose requests stand alone. Each request is a visit; what servers need of a session is lent to it, and kept for the same
//! client's next one: a server that asks its clients things keeps its conversation from call to call, and has one call in it at a time.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use cofer_mcp::Face;
use cofer_mcp::era::STANDALONE_VERSION;

use crate::project::Project;
use crate::session::Session;

/// More than this are not kept for one client.
const KEPT_MAX: usize = 64;

/// Whoever looks the same and has the same token is the same client.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Client {
    owner: Option<uuid::Uuid>,
    face: String,
}

#[derive(Debug, Default)]
pub(crate) struct Visitors(Mutex<HashMap<Client, Vec<Arc<Session>>>>);

impl Visitors {
    fn kept(&self) -> MutexGuard<'_, HashMap<Client, Vec<Arc<Session>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What nobody has used for so long, taken out.
    pub(crate) fn unused(&self, unused: Duration) -> Vec<Arc<Session>> {
        let mut old = Vec::new();
        self.kept().retain(|_, sessions| {
            let (stale, fresh) = sessions.drain(..).partition(|session| session.unused_for() >= unused);
            *sessions = fresh;
            old.extend::<Vec<_>>(stale);
            !sessions.is_empty()
        });
        old
    }
}

/// A request that stands alone, for as long as it is being answered.
#[derive(Debug)]
pub(crate) struct Visit {
    pub session: Arc<Session>,
    project: Weak<Project>,
}

impl Visit {
    pub(crate) fn begin(project: &Arc<Project>, owner: Option<uuid::Uuid>, face: Face) -> Self {
        let client = Client { owner, face: looks(&face) };
        let known = project.visitors.kept().get_mut(&client).and_then(Vec::pop);
        let session = known.unwrap_or_else(|| Arc::new(Session::new(owner, STANDALONE_VERSION, face)));
        session.note_use();
        Self { session, project: Arc::downgrade(project) }
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        self.session.forget_questions();
        let Some(project) = self.project.upgrade() else { return };
        let client = Client { owner: self.session.owner, face: looks(&self.session.face) };
        let mut kept = project.visitors.kept();
        let sessions = kept.entry(client).or_default();
        if sessions.len() < KEPT_MAX {
            self.session.note_use();
            sessions.push(self.session.clone());
            return;
        }
        drop(kept);
        project.see_off(&self.session);
    }
}

fn looks(face: &Face) -> String {
    format!("{}\n{}", face.capabilities, face.client_info)
}
