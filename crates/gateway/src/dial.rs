//! How a server is reached. The gateway cannot tell a hosted server from an external one: both are dialled, both are spoken to through
//! a pump, and what keeps them alive is held for as long as the conversation lasts.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use cofer_mcp::{Ear, Era, Face, Handshake, Pump, era};
use cofer_model::Kind;
use cofer_model::mask::Mask;
use serde_json::value::RawValue;

use crate::lists::Item;

/// One way to one server.
#[async_trait]
pub trait Dial: Send + Sync + fmt::Debug + 'static {
    /// A new conversation: streams open, hands shaken, the ear listening from before the first word. The caller bounds it.
    async fn dial(&self, face: &Face, ear: Arc<dyn Ear>) -> Result<Dialled, DialError>;

    /// Whether each client can have a conversation of its own.
    fn takes_many(&self) -> bool;

    /// How long to wait before the first attempt after a conversation broke off.
    fn first_wait(&self) -> Duration;
}

/// A conversation.
#[derive(Debug)]
pub struct Dialled {
    pub pump: Pump,
    pub hands: Handshake,
    /// Hides what the server was given in confidence.
    pub mask: Arc<Mask>,
    /// Whatever must live as long as the conversation does, and ends with it.
    pub held: Arc<dyn Held>,
}

impl Dialled {
    /// Whether each request stands alone, as since 2026-07-28.
    pub(crate) fn is_standalone(&self) -> bool {
        self.hands.era == Era::Standalone
    }

    /// The parameters of a request as this server takes them, for a client that looks so.
    pub(crate) fn dressed(
        &self,
        params: Option<Box<RawValue>>,
        face: &Face,
        log_level: Option<&str>,
    ) -> Option<Box<RawValue>> {
        if self.is_standalone() { era::introduced(params, face, log_level) } else { params }
    }
}

#[async_trait]
pub trait Held: Send + Sync + fmt::Debug {
    /// Why it ended, as far as is known; asked after the pump has ended. Answers soon.
    async fn last_words(&self) -> Option<String>;

    /// What it offers, for whoever must know how to call it.
    fn learn_tools(&self, _tools: &[Item]) {}
}

/// Nothing to hold.
#[async_trait]
impl Held for () {
    async fn last_words(&self) -> Option<String> {
        None
    }
}

#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub struct DialError {
    pub kind: Kind,
    pub message: String,
    /// Whether it says something of the server; a secret that is missing here does not.
    pub counts: bool,
    /// For one that is known not to be there: when to try again at the earliest.
    pub retry_after: Option<Duration>,
}

impl DialError {
    pub fn of_server(kind: Kind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), counts: true, retry_after: None }
    }

    pub fn of_ours(kind: Kind, message: impl Into<String>) -> Self {
        Self { counts: false, ..Self::of_server(kind, message) }
    }
}
