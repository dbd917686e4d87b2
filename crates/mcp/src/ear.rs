//! Whoever listens to a server: what it says without being asked, and what it asks.
//!
//! An ear is called by the pump's own task, between two lines: so what a server said before its answer is heard before the answer is.
//! It must not wait; it puts things where they belong and returns.

use std::fmt;

use serde_json::value::RawValue;
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use crate::message::{self, Notification, Reply, RpcError};
use crate::pump::Command;

pub trait Ear: Send + Sync + fmt::Debug + 'static {
    fn hears(&self, notification: Notification);

    /// To be answered, now or later, through the question itself.
    fn is_asked(&self, question: Question);
}

/// What a server asks of its client. Dropped unanswered, the server hears that nobody could.
#[derive(Debug)]
pub struct Question {
    pub method: String,
    pub params: Option<Box<RawValue>>,
    pub(crate) answerer: Answerer,
}

/// The way back. Holds one of the places that bound how much one server may ask at once.
pub(crate) struct Answerer {
    /// As the server wrote it; none once it was answered.
    pub id: Option<Box<RawValue>>,
    pub inbox: mpsc::WeakUnboundedSender<Command>,
    pub _place: OwnedSemaphorePermit,
}

impl fmt::Debug for Answerer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answerer").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Question {
    pub fn answer(mut self, reply: &Reply) {
        self.answerer.send(reply);
    }
}

impl Answerer {
    fn send(&mut self, reply: &Reply) {
        // A pump that is gone has nobody to answer.
        if let (Some(id), Some(inbox)) = (self.id.take(), self.inbox.upgrade()) {
            let _ = inbox.send(Command::Say(message::response(&id, reply)));
        }
    }
}

impl Drop for Answerer {
    fn drop(&mut self) {
        if self.id.is_some() {
            self.send(&Reply::Error(RpcError::new(
                message::INTERNAL_ERROR,
                "nobody who could answer this is there any more",
            )));
        }
    }
}
