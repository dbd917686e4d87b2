//! What is shown to an upstream that wants to know who asks, where that changes while a connection lasts.
//!
//! Each request shows what is good at that moment. When it is refused all the same, whoever holds the credentials decides: there is
//! something newer to show, or a person has to do something first. A message that was refused was not executed, so it may be sent again.

use std::fmt;

use async_trait::async_trait;
use secrecy::{ExposeSecret as _, SecretString};

use super::WireFault;

/// Tries of one message, each with something newer to show.
pub(super) const TRIES_MAX: u32 = 2;

#[async_trait]
pub trait Credentials: fmt::Debug + Send + Sync + 'static {
    /// What to show now; none where there is nothing yet.
    async fn bearer(&self) -> Result<Option<SecretString>, WireFault>;

    /// The upstream refused.
    async fn refused(&self, refusal: Refusal<'_>) -> Next;
}

/// A 401 or 403.
#[derive(Debug)]
pub struct Refusal<'a> {
    pub status: u16,
    pub shown: Option<&'a SecretString>,
    /// All of its `WWW-Authenticate`.
    pub challenge: &'a str,
    /// How often this message was refused before.
    pub before: u32,
}

impl Refusal<'_> {
    /// Whether this is what was shown.
    pub fn was_shown(&self, token: &str) -> bool {
        self.shown.is_some_and(|shown| shown.expose_secret() == token)
    }
}

#[derive(Debug)]
pub enum Next {
    /// There is something newer to show.
    Again,
    /// It is not taken until somebody does something. The connection stays: once they have, it goes on.
    Barred(WireFault),
    /// It is a refusal like any other.
    Leave,
}
