//! Who is asking, and may they?
//!
//! ```text
//!   header ─► Verified (seconds old)? ──yes─────────────────────────► Caller
//!                 │ no
//!             could it be a guess, from an address that guessed too often? ──yes──► 429
//!                 │ no
//!             store: hash known? ──no──► 401 (or 429), counted against the address
//!                 │ yes
//!              remembered in Verified ───────────────────────────────► Caller
//! ```
//!
//! A token of our making cannot be guessed, and one that was good before in this process's life is no guess: these are always
//! looked at, so nobody is locked out by what others do. What is slowed down is guessing a token that an operator chose.
//! Revoking a token forgets what was verified, so it takes effect at once.

mod address;
mod issued;
mod throttle;
mod verified;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use axum::extract::FromRequestParts;
use axum::http::header::AUTHORIZATION;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, Uri};
use cofer_model::mask::is_of_our_making;
use cofer_model::{Kind, Moment, Project, ProjectId, ProjectName, Reference, Scope, Token, TokenId};
use cofer_oauth::Issuer;
use cofer_store::{Store, StoreError, TokenHash};
use secrecy::{ExposeSecret, SecretString};

use crate::app::App;
use crate::http::ApiError;
use crate::http::listen::Peer;
use crate::settings::{McpAuth, Settings};
use crate::telemetry::metrics;
pub use issued::Issued;
use throttle::Throttle;
use verified::Verified;

const API_KEY: HeaderName = HeaderName::from_static("x-api-key");
/// Nobody's token is longer, and hashing is not free.
pub(crate) const TOKEN_BYTES_MAX: usize = 1024;

/// Checks tokens. One for the whole server.
#[derive(Debug)]
pub struct Doorkeeper {
    store: Store,
    verified: Verified,
    throttle: Mutex<Throttle>,
    /// Uses since the last time they were written down.
    uses: Mutex<BTreeMap<TokenId, Moment>>,
}

/// Who is asking: a token that was checked.
#[derive(Clone, Debug)]
pub struct Caller {
    token: Arc<Token>,
    /// Whom a token of another issuer's is about.
    subject: Option<Arc<str>>,
}

impl Caller {
    /// For what concerns every project.
    pub fn require_all_projects(&self) -> Result<(), ApiError> {
        let Some(project) = &self.token.project else { return Ok(()) };
        let message =
            format!("this token belongs to the project {project}; this needs a token for all projects");
        Err(ApiError::new(Kind::Forbidden, message).with("project", project.as_str()))
    }

    /// The one project it is confined to, if it is.
    pub fn confined_to(&self) -> Option<ProjectId> {
        self.token.project_id
    }

    pub fn may_see(&self, project: ProjectId) -> bool {
        self.token.project_id.is_none_or(|own| own == project)
    }

    /// The project, if there is one and this caller may know of it.
    pub async fn project(&self, store: &Store, reference: &Reference) -> Result<Project, ApiError> {
        let possible = match reference {
            Reference::Id(_) => true,
            Reference::Name(name) => ProjectName::try_from(name.clone()).is_ok(),
        };
        let found = if possible { store.project(reference).await? } else { None };
        let found = found.filter(|project| self.may_see(project.id));
        found.ok_or_else(|| ApiError::not_found("project", reference))
    }

    /// What it makes ends no later than it does.
    pub fn expires_at(&self) -> Option<Moment> {
        self.token.expires_at
    }

    /// Who this is, for the record.
    pub fn name(&self) -> String {
        self.subject.as_deref().unwrap_or(self.token.name.as_str()).to_owned()
    }

    /// Whose sessions these are.
    pub fn id(&self) -> uuid::Uuid {
        self.token.id.0
    }

    pub fn has(&self, scope: Scope) -> bool {
        self.token.scopes.contains(&scope)
    }
}

/// What a request says of who sent it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asking<'a> {
    pub headers: &'a HeaderMap,
    pub uri: &'a Uri,
    pub peer: Option<Peer>,
    /// If the same may be said again.
    pub seen: Option<&'a Seen>,
}

/// What was seen in the head of a request, and holds as long as Cofer runs: not whether its token is good.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    addresses_us: OnceLock<()>,
    token: OnceLock<TokenHash>,
}

impl<'a> Asking<'a> {
    fn of(parts: &'a Parts) -> Self {
        Self { headers: &parts.headers, uri: &parts.uri, peer: parts.extensions.get().copied(), seen: None }
    }

    fn check_address(&self, settings: &Settings) -> Result<(), ApiError> {
        if self.seen.is_some_and(|seen| seen.addresses_us.get().is_some()) {
            return Ok(());
        }
        address::check(self.headers, self.uri, settings)?;
        self.seen.map(|seen| seen.addresses_us.set(()));
        Ok(())
    }

    /// The one that it shows, if it does.
    fn token(&self) -> Option<TokenHash> {
        if let Some(known) = self.seen.and_then(|seen| seen.token.get()) {
            return Some(*known);
        }
        let hash = presented(self.headers).map(TokenHash::of)?;
        self.seen.map(|seen| seen.token.set(hash));
        Some(hash)
    }
}

/// A caller who has a scope, checked before anything else of the request is looked at.
macro_rules! scoped_caller {
    ($(#[$doc:meta])* $name:ident, $scope:expr) => {
        $(#[$doc])*
        #[derive(Clone, Debug)]
        pub struct $name(pub Caller);

        impl FromRequestParts<App> for $name {
            type Rejection = ApiError;

            async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, ApiError> {
                Self::admitted(&Asking::of(parts), app).await
            }
        }

        impl $name {
            pub(crate) async fn admitted(asking: &Asking<'_>, app: &App) -> Result<Self, ApiError> {
                let caller = Caller::admitted(asking, app).await?;
                if caller.has($scope) { Ok(Self(caller)) } else { Err(ApiError::missing_scope($scope)) }
            }
        }
    };
}

scoped_caller! {
    /// May read: `admin:read`.
    Reader, Scope::AdminRead
}
scoped_caller! {
    /// May change: `admin:write`.
    Writer, Scope::AdminWrite
}

scoped_caller! {
    /// May use tools: `tools:call`.
    ToolUser, Scope::ToolsCall
}

scoped_caller! {
    /// May run agents: `agents:run`.
    AgentUser, Scope::AgentsRun
}

/// Whoever uses the MCP endpoint: a token, or anybody on this machine where that is allowed. Either way they must address us by a
/// name of ours: a page in a browser that had its own name led here does not.
#[derive(Clone, Debug)]
pub enum McpUser {
    Token(Caller),
    Anybody,
}

impl FromRequestParts<App> for McpUser {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, ApiError> {
        Self::admitted(&Asking::of(parts), app).await
    }
}

impl McpUser {
    pub(crate) async fn admitted(asking: &Asking<'_>, app: &App) -> Result<Self, ApiError> {
        asking.check_address(&app.settings)?;
        match app.settings.gateway.mcp_auth {
            McpAuth::None => Ok(Self::Anybody),
            McpAuth::Token => by_token(asking, app).await.map(Self::Token),
        }
    }
}

/// A token of our own, or one of the issuer whom we trust.
async fn by_token(asking: &Asking<'_>, app: &App) -> Result<Caller, ApiError> {
    let Some(issued) = &app.issued else {
        return ToolUser::admitted(asking, app).await.map(|ToolUser(caller)| caller);
    };
    let path = asking.uri.path().to_owned();
    let token = bearer(asking.headers).filter(|token| token.len() <= issued::TOKEN_BYTES_MAX);
    let error = token.map(|_| "invalid_token");
    let caller = match token.filter(|token| Issuer::may_have_made(token)) {
        Some(token) => Box::pin(issued.admit(token, &path)).await?,
        None => Caller::admitted(asking, app).await.map_err(|refusal| match refusal.kind {
            Kind::Unauthorized => issued.explained(refusal, &path, error),
            _ => refusal,
        })?,
    };
    if caller.has(Scope::ToolsCall) {
        return Ok(caller);
    }
    Err(issued.explained(ApiError::missing_scope(Scope::ToolsCall), &path, Some("insufficient_scope")))
}

impl FromRequestParts<App> for Caller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, ApiError> {
        Self::admitted(&Asking::of(parts), app).await
    }
}

impl Caller {
    async fn admitted(asking: &Asking<'_>, app: &App) -> Result<Self, ApiError> {
        let peer = asking.peer.map(|peer| peer.address(asking.headers, app.settings.behind_proxy));
        app.doorkeeper.admit(asking, peer).await
    }
}

impl Doorkeeper {
    pub fn new(store: Store) -> Self {
        Self { store, verified: Verified::default(), throttle: Mutex::default(), uses: Mutex::default() }
    }

    async fn admit(&self, asking: &Asking<'_>, peer: Option<IpAddr>) -> Result<Caller, ApiError> {
        let Some(hash) = asking.token() else {
            metrics::auth_failed("missing");
            return Err(unauthorized("a token is needed: send `Authorization: Bearer TOKEN`"));
        };
        let now = Moment::now();
        let (token, is_noted) = match self.verified.get(&hash, Instant::now(), now) {
            Some(known) => known,
            // Aside: most requests need no room for it.
            None => (Box::pin(self.verify(asking, hash, peer)).await?, false),
        };
        if token.is_expired(now) {
            metrics::auth_failed("expired");
            return Err(unauthorized("this token has expired; ask for a new one"));
        }
        if !is_noted {
            self.uses.lock().unwrap_or_else(PoisonError::into_inner).insert(token.id, now);
        }
        Ok(Caller { token, subject: None })
    }

    async fn verify(
        &self,
        asking: &Asking<'_>,
        hash: TokenHash,
        peer: Option<IpAddr>,
    ) -> Result<Arc<Token>, ApiError> {
        let wait = peer.and_then(|peer| self.throttle().refuses(peer, Instant::now()));
        let was_good = self.verified.knew(&hash);
        let may_be_right = was_good || presented(asking.headers).is_some_and(is_of_our_making);
        if let Some(wait) = wait.filter(|_| !may_be_right) {
            return Err(throttled(wait));
        }
        let asked = self.verified.ask();
        if let Some(token) = self.store.token_by_hash(&hash).await?.map(Arc::new) {
            self.verified.remember(asked, hash, token.clone(), Instant::now());
            return Ok(token);
        }
        metrics::auth_failed("unknown");
        if was_good {
            return Err(unauthorized("this token was revoked"));
        }
        if let Some(peer) = peer {
            self.throttle().failed(peer, Instant::now());
        }
        Err(wait.map_or_else(|| unauthorized("this token is not known here"), throttled))
    }

    /// Told at start: the token that the operator chose is no guess.
    pub fn knows(&self, token: &SecretString) {
        self.verified.know(TokenHash::of(token.expose_secret()));
    }

    fn throttle(&self) -> std::sync::MutexGuard<'_, Throttle> {
        self.throttle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// After a token or a project went away: nothing that was remembered holds any more.
    pub fn forget(&self) {
        self.verified.forget();
    }

    /// Tokens with the newest use of each, written down or not.
    pub fn with_latest_uses(&self, mut tokens: Vec<Token>) -> Vec<Token> {
        let uses = self.uses.lock().unwrap_or_else(PoisonError::into_inner);
        for token in &mut tokens {
            token.last_used_at = token.last_used_at.max(uses.get(&token.id).copied());
        }
        tokens
    }

    /// Writes down when tokens were last used. What could not be written is kept for the next time.
    pub async fn write_down_uses(&self) -> Result<(), StoreError> {
        let uses = std::mem::take(&mut *self.uses.lock().unwrap_or_else(PoisonError::into_inner));
        if uses.is_empty() {
            return Ok(());
        }
        let outcome = self.store.note_token_uses(&uses).await;
        if outcome.is_err() {
            let mut newer = self.uses.lock().unwrap_or_else(PoisonError::into_inner);
            for (id, at) in uses {
                newer.entry(id).or_insert(at);
            }
        }
        outcome
    }
}

fn presented(headers: &HeaderMap) -> Option<&str> {
    let token = bearer(headers).or_else(|| headers.get(API_KEY)?.to_str().ok())?;
    (1..=TOKEN_BYTES_MAX).contains(&token.len()).then_some(token)
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

fn throttled(wait: Duration) -> ApiError {
    metrics::auth_failed("throttled");
    let message = "too many wrong tokens came from this address; wait before trying another";
    ApiError::new(Kind::LimitExceeded, message).retry_after(wait.as_secs().max(1))
}

fn unauthorized(message: &str) -> ApiError {
    ApiError::new(Kind::Unauthorized, message)
}
