//! Logins at servers elsewhere: begun by whoever administers a project, finished by their browser, kept sealed, renewed by themselves.
//!
//! ```text
//!   a server refuses us ─► login required ─► begin ─► the person's browser ─► /oauth/callback ─► finish ─► done
//!        ▲                                                                                              │
//!        └── revoked, or ended without being renewed ◄── shown with each request, renewed in time ◄─────┘
//! ```
//!
//! [`Login`] is what is known of one server's login, and [`Shown`] what the wire shows of it. Here is what people do with it. Attempts live in
//! memory only: whoever restarts Cofer in the middle of one begins anew.

mod login;
mod shown;
mod target;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cofer_model::{Kind, LoginState, Moment, ProjectId, ServerId};
use cofer_oauth::{Attempt, Callback, Client, OauthError, Wanted, Web, begin};
use cofer_store::{Store, StoreError};
use serde::Serialize;

pub(crate) use login::Login;
pub(crate) use shown::Shown;
pub(crate) use target::LoginTarget;

use crate::keyring::{KeyError, KeyRing};

/// How long a person may take.
const ATTEMPT_LIFE: Duration = Duration::from_mins(10);
const ATTEMPTS_MAX: usize = 256;
pub(crate) const CALLBACK: &str = "/oauth/callback";
pub(crate) const CLIENT_DOCUMENT: &str = "/client-metadata.json";

/// All logins. One for the whole server.
#[derive(Debug)]
pub struct Logins {
    store: Store,
    keyring: Arc<KeyRing>,
    web: Web,
    /// Where browsers find us.
    base: String,
    servers: Mutex<HashMap<ServerId, Arc<Login>>>,
    attempts: Mutex<Attempts>,
}

#[derive(Debug, Default)]
struct Attempts {
    /// By what the browser brings back.
    waiting: HashMap<String, Waiting>,
    /// How the latest one at each server does.
    latest: HashMap<ServerId, AttemptStatus>,
}

#[derive(Debug)]
struct Waiting {
    project: ProjectId,
    server: ServerId,
    id: uuid::Uuid,
    attempt: Attempt,
    until: Moment,
}

/// A login that a person is asked for.
#[derive(Clone, Debug, Serialize, utoipa::ToSchema)]
pub struct Begun {
    pub id: uuid::Uuid,
    /// To be opened in a browser.
    pub authorize_url: String,
    /// Until then.
    pub expires_at: Moment,
}

/// How an attempt to log in does.
#[derive(Clone, Debug, Serialize, utoipa::ToSchema)]
pub struct AttemptStatus {
    pub id: uuid::Uuid,
    pub state: AttemptState,
    /// Why it failed.
    pub error: Option<String>,
    pub expires_at: Moment,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum AttemptState {
    Waiting,
    Done,
    Failed,
}

#[derive(Debug, thiserror::Error)]
pub enum LoginError {
    #[error(
        "this login is not known: it was finished, began too long ago, or Cofer was restarted; begin again with `cofer server login`"
    )]
    Unknown,
    #[error("too many logins wait for somebody; finish one, or wait a few minutes")]
    TooMany,
    #[error(transparent)]
    Oauth(#[from] OauthError),
    #[error(transparent)]
    Key(#[from] KeyError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("what was kept of the login cannot be read; log out, and in again")]
    Unreadable,
}

impl LoginError {
    pub fn kind(&self) -> Kind {
        match self {
            Self::Unknown => Kind::NotFound,
            Self::TooMany => Kind::LimitExceeded,
            Self::Oauth(error) => error.kind(),
            Self::Key(error) => error.kind(),
            Self::Store(error) => error.kind(),
            Self::Unreadable => Kind::Internal,
        }
    }
}

impl Logins {
    /// `base` is the address at which browsers find this server.
    pub fn new(store: Store, keyring: Arc<KeyRing>, base: String) -> Self {
        let (servers, attempts) = (Mutex::default(), Mutex::default());
        Self { store, keyring, web: Web::new(), base, servers, attempts }
    }

    pub(crate) fn keyring(&self) -> Arc<KeyRing> {
        self.keyring.clone()
    }

    pub(crate) fn redirect_uri(&self) -> String {
        format!("{}{CALLBACK}", self.base)
    }

    /// Where we describe ourselves to authorization servers, if they can read it.
    pub(crate) fn document_address(&self) -> Option<String> {
        self.base.starts_with("https://").then(|| format!("{}{CLIENT_DOCUMENT}", self.base))
    }

    /// How we describe ourselves there.
    pub(crate) fn document(&self) -> Option<serde_json::Value> {
        Some(Client::document(&self.document_address()?, &self.redirect_uri()))
    }

    /// What is known of one server's login.
    pub(crate) fn of(self: &Arc<Self>, server: ServerId) -> Arc<Login> {
        let mut servers = self.servers.lock().unwrap_or_else(PoisonError::into_inner);
        let make = || Arc::new(Login::new(server, self.keyring.clone(), self.web.clone()));
        servers.entry(server).or_insert_with(make).clone()
    }

    /// How it does, where this process knows better than what was kept (`has_tokens`).
    pub(crate) fn state(&self, server: ServerId, has_tokens: Option<bool>) -> Option<LoginState> {
        let servers = self.servers.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = has_tokens.map(|live| if live { LoginState::Done } else { LoginState::Required });
        servers.get(&server).and_then(|login| login.state()).or(kept)
    }

    /// What has to be done about a login that is required.
    pub(crate) fn words(self: &Arc<Self>, server: ServerId, name: &str) -> String {
        self.of(server).words(name)
    }

    pub(crate) fn attempt(&self, server: ServerId) -> Option<AttemptStatus> {
        let mut attempts = self.attempts();
        attempts.drop_old(Moment::now());
        attempts.latest.get(&server).cloned()
    }

    /// Finds out whom to ask, and what a person has to open.
    pub(crate) async fn begin(
        self: &Arc<Self>,
        project: ProjectId,
        server: ServerId,
        target: LoginTarget,
    ) -> Result<Begun, LoginError> {
        let login = self.of(server);
        let before = login.grant_for(&target.url).await?;
        let (redirect_uri, document) = (self.redirect_uri(), self.document_address());
        let challenge = login.challenge();
        let wanted = Wanted {
            server: &target.url,
            challenge: &challenge,
            configured: target.configured.as_ref(),
            document: document.as_deref(),
            redirect_uri: &redirect_uri,
            before: before.as_ref(),
            scopes: &target.scopes,
        };
        let attempt = begin(&self.web, wanted).await?;
        self.attempts().add(project, server, attempt, Moment::now())
    }

    /// What a browser brought back. Says which server of which project this was for.
    pub(crate) async fn finish(
        self: &Arc<Self>,
        state: &str,
        callback: Callback,
    ) -> Result<(ProjectId, ServerId), LoginError> {
        let now = Moment::now();
        let waiting = {
            let mut attempts = self.attempts();
            attempts.drop_old(now);
            attempts.waiting.remove(state).ok_or(LoginError::Unknown)?
        };
        let Waiting { project, server, id, attempt, until } = waiting;
        let finished = match attempt.finish(&self.web, callback, now).await {
            Ok(grant) => self.of(server).take(grant).await,
            Err(error) => Err(error.into()),
        };
        let error = finished.as_ref().err().map(|error: &LoginError| crate::http::error::chain(error));
        let state = if error.is_none() { AttemptState::Done } else { AttemptState::Failed };
        let mut attempts = self.attempts();
        // A later attempt at the same server is none of this one's business.
        if attempts.latest.get(&server).is_none_or(|latest| latest.id == id) {
            attempts.latest.insert(server, AttemptStatus { id, state, error, expires_at: until });
        }
        finished.map(|()| (project, server))
    }

    /// Forgets the login, and has the authorization server forget it too. Says whether there was one.
    pub(crate) async fn log_out(self: &Arc<Self>, server: ServerId) -> Result<bool, LoginError> {
        let grant = self.of(server).forget().await?;
        let deleted = self.store.delete_login(server).await?;
        if let Some(grant) = grant
            && let Err(error) = grant.revoke(&self.web_for(&grant.server)).await
        {
            tracing::warn!(server.id = %server, "the tokens of server {server} are forgotten here, but could not be revoked: {error}");
        }
        Ok(deleted)
    }

    /// The server was removed, and its login with it.
    pub(crate) fn removed(&self, server: ServerId) {
        self.servers.lock().unwrap_or_else(PoisonError::into_inner).remove(&server);
        let mut attempts = self.attempts();
        attempts.latest.remove(&server);
        attempts.waiting.retain(|_, waiting| waiting.server != server);
    }

    fn web_for(&self, server: &str) -> Web {
        url::Url::parse(server).map_or_else(|_| self.web.clone(), |url| self.web.on_behalf_of(&url))
    }

    fn attempts(&self) -> MutexGuard<'_, Attempts> {
        self.attempts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Attempts {
    fn add(
        &mut self,
        project: ProjectId,
        server: ServerId,
        attempt: Attempt,
        now: Moment,
    ) -> Result<Begun, LoginError> {
        self.drop_old(now);
        // Who begins anew has given up the one before.
        self.waiting.retain(|_, waiting| waiting.server != server);
        if self.waiting.len() >= ATTEMPTS_MAX {
            return Err(LoginError::TooMany);
        }
        let (id, expires_at) = (uuid::Uuid::now_v7(), now.after(ATTEMPT_LIFE));
        let authorize_url = attempt.authorize_url.clone();
        let waiting = AttemptStatus { id, state: AttemptState::Waiting, error: None, expires_at };
        self.latest.insert(server, waiting);
        let state = attempt.state.clone();
        self.waiting.insert(state, Waiting { project, server, id, attempt, until: expires_at });
        Ok(Begun { id, authorize_url, expires_at })
    }

    fn drop_old(&mut self, now: Moment) {
        self.waiting.retain(|_, waiting| waiting.until > now);
        self.latest.retain(|_, latest| latest.expires_at > now);
    }
}
