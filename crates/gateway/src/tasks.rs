//! Whose tasks these are: a call may be answered with a task, whose outcome is asked for later by its id. The ids stay what they are; it is
//! remembered which server they are of and who began them, for as many as have a place.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, PoisonError};

use cofer_mcp::raw;
use cofer_model::ServerId;
use serde_json::value::RawValue;

const TASKS_MAX: usize = 100_000;

#[derive(Debug, Default)]
pub(crate) struct Tasks(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    homes: HashMap<String, (ServerId, Option<uuid::Uuid>)>,
    /// The oldest is forgotten first.
    order: VecDeque<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Home {
    Server(ServerId),
    SomebodyElses,
}

impl Tasks {
    /// Takes note of the task that a result is, if it is one.
    pub(crate) fn learn(&self, result: &RawValue, server: ServerId, owner: Option<uuid::Uuid>) {
        if !result.get().contains("\"taskId\"") {
            return;
        }
        // In the earlier design it is inside.
        let id = raw::text_at(result, &["taskId"]).or_else(|| raw::text_at(result, &["task", "taskId"]));
        let Some(id) = id else { return };
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.homes.insert(id.clone().into_owned(), (server, owner)).is_none() {
            known.order.push_back(id.into_owned());
        }
        if known.order.len() > TASKS_MAX
            && let Some(oldest) = known.order.pop_front()
        {
            known.homes.remove(&oldest);
        }
    }

    /// `None` for one that is not known.
    pub(crate) fn home(&self, id: &str, owner: Option<uuid::Uuid>) -> Option<Home> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (server, whose) = known.homes.get(id)?;
        Some(if *whose == owner { Home::Server(*server) } else { Home::SomebodyElses })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_is_found_again_by_who_began_it_and_by_nobody_else() {
        let json = |text: &str| RawValue::from_string(text.to_owned()).unwrap();
        let (tasks, server) = (Tasks::default(), ServerId::generate());
        let (ann, bob) = (Some(uuid::Uuid::from_u128(1)), Some(uuid::Uuid::from_u128(2)));
        tasks.learn(&json(r#"{"resultType":"task","taskId":"new"}"#), server, ann);
        tasks.learn(&json(r#"{"task":{"taskId":"old"}}"#), server, ann);
        tasks.learn(&json(r#"{"content":[{"text":"\"taskId\""}]}"#), server, ann);
        for id in ["new", "old"] {
            assert_eq!(tasks.home(id, ann), Some(Home::Server(server)));
            assert_eq!(tasks.home(id, bob), Some(Home::SomebodyElses));
        }
        assert_eq!(tasks.home("other", ann), None);
    }
}
