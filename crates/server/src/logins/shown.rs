//! What the wire shows of a login to one server, and what becomes of a refusal: something newer is shown, or a person is asked.

use std::sync::Arc;

use async_trait::async_trait;
use cofer_mcp::wire::{Credentials, Next, Refusal, WireFault};
use cofer_model::{Kind, LoginState, Moment};
use cofer_oauth::{Challenge, Tokens};
use secrecy::SecretString;
use tokio::sync::OwnedMutexGuard;
use url::Url;

use super::login::{Held, Login, Renewed};
use crate::http::error::chain;

/// What the wire shows of a login to one server.
#[derive(Debug)]
pub(crate) struct Shown {
    pub login: Arc<Login>,
    pub name: String,
    pub url: Url,
}

#[async_trait]
impl Credentials for Shown {
    async fn bearer(&self) -> Result<Option<SecretString>, WireFault> {
        let held = self.login.read().await.map_err(|error| unavailable(&error))?;
        let now = Moment::now();
        let Some(tokens) = self.tokens(&held) else { return Ok(None) };
        if !tokens.is_waning(now) || tokens.refresh.is_none() {
            return Ok(Some(SecretString::from(tokens.access.clear())));
        }
        let has_ended = tokens.has_ended(now);
        let (held, renewed) = self.renew(held).await?;
        match renewed {
            Renewed::NotNow(error) if has_ended => Err(unavailable(&error)),
            Renewed::Ended(reason) => Err(self.barred(Some(reason), 401)),
            Renewed::Yes | Renewed::NotNow(_) => {
                Ok(self.tokens(&held).map(|tokens| SecretString::from(tokens.access.clear())))
            }
        }
    }

    async fn refused(&self, refusal: Refusal<'_>) -> Next {
        let challenge = Challenge::read(refusal.challenge);
        match refusal.status {
            401 => self.unauthorized(refusal, challenge).await,
            _ if challenge.wants_more_scope() => self.insufficient(challenge).await,
            _ => Next::Leave,
        }
    }
}

impl Shown {
    /// Tokens are for the address that they were given for, whatever the server is registered with now.
    fn tokens<'a>(&self, held: &'a Held) -> Option<&'a Tokens> {
        held.grant.as_ref().filter(|grant| grant.server == self.url.as_str())?.tokens.as_ref()
    }

    async fn unauthorized(&self, refusal: Refusal<'_>, challenge: Challenge) -> Next {
        let held = match self.login.read().await {
            Ok(held) => held,
            Err(error) => return Next::Barred(unavailable(&error)),
        };
        self.login.note_challenge(challenge);
        let Some(tokens) = self.tokens(&held) else { return Next::Barred(self.barred(None, 401)) };
        if !refusal.was_shown(tokens.access.clear()) {
            return Next::Again;
        }
        if refusal.before > 0 {
            let reason = "it does not take the tokens that are given for it".to_owned();
            drop(self.login.end(held, None).await);
            return Next::Barred(self.barred(Some(reason), 401));
        }
        match self.renew(held).await {
            Err(fault) => Next::Barred(fault),
            Ok((_, Renewed::Yes)) => Next::Again,
            Ok((_, Renewed::NotNow(error))) => Next::Barred(unavailable(&error)),
            Ok((_, Renewed::Ended(reason))) => Next::Barred(self.barred(Some(reason), 401)),
        }
    }

    /// More has to be granted, which a person does. What was asked for already is not asked for again.
    async fn insufficient(&self, challenge: Challenge) -> Next {
        let asked = match self.login.read().await {
            Ok(held) => held.grant.as_ref().map(|grant| grant.scopes.clone()).unwrap_or_default(),
            Err(error) => return Next::Barred(unavailable(&error)),
        };
        let more: Vec<_> = challenge.scopes.iter().filter(|scope| !asked.contains(scope)).cloned().collect();
        let name = &self.name;
        let fault =
            |message| WireFault { kind: Kind::Forbidden, message, status: Some(403), www_authenticate: None };
        if more.is_empty() {
            let message = format!(
                "server `{name}` refuses this for want of scope, and everything it names was asked for at the login"
            );
            return Next::Barred(fault(message));
        }
        let more = more.join(" ");
        self.login.note_challenge(challenge);
        self.login.note(LoginState::Insufficient, None);
        Next::Barred(fault(format!(
            "server `{name}` wants more to be granted for this ({more}); `cofer server login {name}` asks for it"
        )))
    }

    /// In a task of its own: whoever waits for it may hang up.
    async fn renew(
        &self,
        held: OwnedMutexGuard<Held>,
    ) -> Result<(OwnedMutexGuard<Held>, Renewed), WireFault> {
        let renewing = tokio::spawn(self.login.clone().renew(held));
        renewing.await.map_err(|error| unavailable(&error))
    }

    fn barred(&self, reason: Option<String>, status: u16) -> WireFault {
        self.login.note(LoginState::Required, reason);
        let message = self.login.words(&self.name);
        WireFault { kind: Kind::PreconditionFailed, message, status: Some(status), www_authenticate: None }
    }
}

fn unavailable(error: &(dyn std::error::Error + 'static)) -> WireFault {
    let message = format!("the login cannot be used now: {}", chain(error));
    WireFault { kind: Kind::Unavailable, message, status: None, www_authenticate: None }
}
