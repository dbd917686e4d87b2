//! The login at one server: what it gave us, how it stands, and how it is renewed.
//!
//! However many calls find a token waning or refused, it is renewed once: whoever is first holds [`Held`], the others wait for it and find
//! a newer one. Renewing is finished once begun, also when whoever began it hangs up: the old refresh token is worthless by then.

use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

use cofer_model::mask::Mask;
use cofer_model::{LoginState, Moment, ServerId};
use cofer_oauth::{Challenge, Grant, OauthError, Tokens, Web};
use secrecy::{ExposeSecret, SecretString};
use tokio::sync::{Mutex, OwnedMutexGuard};
use url::Url;

use super::LoginError;
use crate::http::error::chain;
use crate::keyring::KeyRing;

/// For so long after a server wanted a login it is not asked whether it still does.
const TAKE_ITS_WORD: Duration = Duration::from_secs(30);
/// Texts that are masked before the oldest are forgotten.
const HIDDEN_MAX: usize = 64;

#[derive(Debug)]
pub(crate) struct Login {
    server: ServerId,
    keyring: Arc<KeyRing>,
    web: Web,
    held: Arc<Mutex<Held>>,
    seen: RwLock<Seen>,
    /// Hides the tokens of now and of a moment ago.
    mask: Arc<RwLock<Mask>>,
}

/// What was kept, read when it is first needed.
#[derive(Debug, Default)]
pub(super) struct Held {
    is_read: bool,
    pub grant: Option<Grant>,
}

/// What the server said last.
#[derive(Debug, Default)]
struct Seen {
    state: Option<LoginState>,
    since: Option<Instant>,
    /// Why the login before is no good any more.
    reason: Option<String>,
    challenge: Challenge,
}

impl Login {
    pub(super) fn new(server: ServerId, keyring: Arc<KeyRing>, web: Web) -> Self {
        let (held, seen, mask) = (Arc::default(), RwLock::default(), Arc::default());
        Self { server, keyring, web, held, seen, mask }
    }

    /// How it does, as far as this process has seen.
    pub(super) fn state(&self) -> Option<LoginState> {
        self.seen().state
    }

    pub(super) fn challenge(&self) -> Challenge {
        self.seen().challenge.clone()
    }

    pub(crate) fn wants_somebody(&self) -> bool {
        matches!(self.seen().state, Some(LoginState::Required | LoginState::Insufficient))
    }

    pub(crate) fn mask(&self) -> Arc<RwLock<Mask>> {
        self.mask.clone()
    }

    /// Why there is no use in connecting now. After a while the server is asked anew whether it still wants a login.
    pub(crate) fn refusal(&self, name: &str) -> Option<String> {
        let mut seen = self.seen_mut();
        if seen.since.is_none_or(|since| since.elapsed() >= TAKE_ITS_WORD)
            && seen.state == Some(LoginState::Required)
        {
            seen.state = None;
        }
        seen.needs_somebody().then(|| seen.words(name))
    }

    /// What has to be done, once it is known that something has to.
    pub(crate) fn advice(&self, name: &str) -> Option<String> {
        let seen = self.seen();
        seen.needs_somebody().then(|| seen.words(name))
    }

    /// The same, for who knows that something has to.
    pub(super) fn words(&self, name: &str) -> String {
        self.seen().words(name)
    }

    /// What was kept.
    pub(crate) async fn grant(&self) -> Result<Option<Grant>, LoginError> {
        Ok(self.read().await?.grant.clone())
    }

    /// What was kept for this address.
    pub(super) async fn grant_for(&self, url: &Url) -> Result<Option<Grant>, LoginError> {
        let held = self.read().await?;
        Ok(held.grant.clone().filter(|grant| grant.server == url.as_str()))
    }

    /// A login that was just finished.
    pub(super) async fn take(&self, grant: Grant) -> Result<(), LoginError> {
        let mut held = self.held.clone().lock_owned().await;
        self.keep(&grant).await?;
        self.hide(grant.tokens.as_ref());
        *held = Held { is_read: true, grant: Some(grant) };
        *self.seen_mut() = Seen { state: Some(LoginState::Done), ..Seen::default() };
        Ok(())
    }

    /// Gives up what was kept; gives it back, for whoever revokes it.
    pub(super) async fn forget(&self) -> Result<Option<Grant>, LoginError> {
        let mut held = self.read().await?;
        let grant = held.grant.take();
        *self.seen_mut() = Seen::default();
        Ok(grant)
    }

    pub(super) async fn read(&self) -> Result<OwnedMutexGuard<Held>, LoginError> {
        let mut held = self.held.clone().lock_owned().await;
        if !held.is_read {
            held.grant = self.kept().await?;
            held.is_read = true;
            self.hide(held.grant.as_ref().and_then(|grant| grant.tokens.as_ref()));
        }
        Ok(held)
    }

    async fn kept(&self) -> Result<Option<Grant>, LoginError> {
        let Some(clear) = self.keyring.open_login(self.server).await? else { return Ok(None) };
        serde_json::from_str(clear.expose_secret()).map(Some).map_err(|_| LoginError::Unreadable)
    }

    async fn keep(&self, grant: &Grant) -> Result<(), LoginError> {
        let clear = serde_json::to_string(grant).map_err(|_| LoginError::Unreadable)?;
        let clear = SecretString::from(clear);
        let has_tokens = grant.tokens.is_some();
        Ok(self.keyring.put_login(self.server, &clear, has_tokens, Moment::now()).await?)
    }

    fn hide(&self, tokens: Option<&Tokens>) {
        let Some(tokens) = tokens else { return };
        let mut mask = self.mask.write().unwrap_or_else(PoisonError::into_inner);
        if mask.hides() > HIDDEN_MAX {
            *mask = Mask::default();
        }
        for token in [Some(&tokens.access), tokens.refresh.as_ref()].into_iter().flatten() {
            mask.hide(&SecretString::from(token.clear()));
        }
    }

    fn seen(&self) -> RwLockReadGuard<'_, Seen> {
        self.seen.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn seen_mut(&self) -> RwLockWriteGuard<'_, Seen> {
        self.seen.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn note(&self, state: LoginState, reason: Option<String>) {
        // It may repeat what it was sent.
        let mask = self.mask.read().unwrap_or_else(PoisonError::into_inner);
        let reason = reason.map(|reason| mask.apply(&reason).into_owned());
        let mut seen = self.seen_mut();
        seen.reason = reason.or_else(|| seen.reason.take().filter(|_| seen.state == Some(state)));
        (seen.state, seen.since) = (Some(state), Some(Instant::now()));
    }

    pub(super) fn note_challenge(&self, challenge: Challenge) {
        self.seen_mut().challenge = challenge;
    }
}

impl Seen {
    fn needs_somebody(&self) -> bool {
        self.state == Some(LoginState::Required)
    }

    fn words(&self, name: &str) -> String {
        match &self.reason {
            None => format!("server `{name}` wants a login; run `cofer server login {name}`"),
            Some(reason) => {
                format!(
                    "server `{name}` wants a new login; run `cofer server login {name}`. The last one ended: {reason}"
                )
            }
        }
    }
}

/// What a renewal came to.
pub(super) enum Renewed {
    Yes,
    /// There was nobody to ask; what we have may still be good.
    NotNow(OauthError),
    /// The login has ended.
    Ended(String),
}

impl Login {
    /// Renews what is held. To be run to its end.
    pub(super) async fn renew(
        self: Arc<Self>,
        mut held: OwnedMutexGuard<Held>,
    ) -> (OwnedMutexGuard<Held>, Renewed) {
        let asked = held.grant.as_ref().and_then(|grant| {
            let refresh = grant.tokens.as_ref()?.refresh.clone()?;
            Some((grant.clone(), refresh))
        });
        let Some((mut grant, refresh)) = asked else {
            let ended = Renewed::Ended("it cannot be renewed".to_owned());
            return (self.end(held, None).await, ended);
        };
        let web =
            Url::parse(&grant.server).map_or_else(|_| self.web.clone(), |url| self.web.on_behalf_of(&url));
        match grant.refresh(&web, &refresh, Moment::now()).await {
            Ok(tokens) => {
                self.hide(Some(&tokens));
                grant.tokens = Some(tokens);
                if let Err(error) = self.keep(&grant).await {
                    let why = chain(&error);
                    tracing::error!(server.id = %self.server, "renewed tokens of server {} could not be kept, and are lost at the next restart: {why}", self.server);
                }
                held.grant = Some(grant);
                (held, Renewed::Yes)
            }
            Err(error) if error.may_pass() => (held, Renewed::NotNow(error)),
            Err(error) => {
                // Another process on the same database may have been faster.
                if let Ok(Some(kept)) = self.kept().await
                    && kept.tokens.is_some()
                    && kept.tokens != grant.tokens
                {
                    self.hide(kept.tokens.as_ref());
                    held.grant = Some(kept);
                    return (held, Renewed::Yes);
                }
                let ended = Renewed::Ended(error.to_string());
                (self.end(held, Some(&error)).await, ended)
            }
        }
    }

    /// Keeps who we are there, unless nobody knows us any more.
    pub(super) async fn end(
        &self,
        mut held: OwnedMutexGuard<Held>,
        error: Option<&OauthError>,
    ) -> OwnedMutexGuard<Held> {
        let Some(mut grant) = held.grant.take() else { return held };
        grant.tokens = None;
        let unknown = error.is_some_and(OauthError::is_unknown_client);
        if unknown {
            grant.client.forget();
        }
        if let Err(error) = self.keep(&grant).await {
            let why = chain(&error);
            tracing::warn!(server.id = %self.server, "that the login at server {} has ended could not be kept: {why}", self.server);
        }
        held.grant = Some(grant);
        held
    }
}
