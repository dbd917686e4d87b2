//! Whoever listens to a server: what it says without being asked, and what it asks.
//!
//! An ear is called by the pump's own task, between two lines: so what a server said before its answer is heard before the answer is.
//! It must not wait; it puts things where they belong and returns.

use std::fmt;

use serde_json::value::RawValue;
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};

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

/// The way back.
pub(crate) enum Answerer {
    ToServer(ToServer),
    /// To whoever asks on a server's behalf.
    ToAsker(oneshot::Sender<Reply>),
}

/// Holds one of the places that bound how much one server may ask at once.
pub(crate) struct ToServer {
    /// As the server wrote it; none once it was answered.
    pub id: Option<Box<RawValue>>,
    pub inbox: mpsc::WeakUnboundedSender<Command>,
    pub _place: OwnedSemaphorePermit,
}

impl fmt::Debug for Answerer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ToServer(_) => "ToServer",
            Self::ToAsker(_) => "ToAsker",
        })
    }
}

impl Question {
    /// Asked on a server's behalf; what is returned has the answer, or nothing if nobody could give one.
    pub fn on_behalf(method: String, params: Option<Box<RawValue>>) -> (Self, oneshot::Receiver<Reply>) {
        let (asker, answer) = oneshot::channel();
        (Self { method, params, answerer: Answerer::ToAsker(asker) }, answer)
    }

    /// What its server calls it; nothing where it is asked on a server's behalf.
    pub fn id(&self) -> Option<&RawValue> {
        match &self.answerer {
            Answerer::ToServer(server) => server.id.as_deref(),
            Answerer::ToAsker(_) => None,
        }
    }

    /// Tells its server something meanwhile.
    pub fn tell(&self, method: &str, params: Option<&RawValue>) {
        if let Answerer::ToServer(server) = &self.answerer {
            server.say(message::notification(method, params));
        }
    }

    /// Its server does not want to know any more.
    pub fn forget(mut self) {
        if let Answerer::ToServer(server) = &mut self.answerer {
            server.id = None;
        }
    }

    pub fn answer(self, reply: Reply) {
        match self.answerer {
            Answerer::ToServer(mut server) => server.send(&reply),
            // Whoever asked may have left.
            Answerer::ToAsker(asker) => drop(asker.send(reply)),
        }
    }
}

impl ToServer {
    fn send(&mut self, reply: &Reply) {
        if let Some(id) = self.id.take() {
            self.say(message::response(&id, reply));
        }
    }

    fn say(&self, line: Vec<u8>) {
        // A pump that is gone has nobody to hear it.
        if let Some(inbox) = self.inbox.upgrade() {
            let _ = inbox.send(Command::Say(line));
        }
    }
}

impl Drop for ToServer {
    fn drop(&mut self) {
        if self.id.is_some() {
            self.send(&Reply::Error(RpcError::new(
                message::INTERNAL_ERROR,
                "nobody who could answer this is there any more",
            )));
        }
    }
}
