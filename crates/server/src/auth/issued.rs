//! Tokens that an issuer whom we trust gave to MCP clients, beside our own.
//!
//! Such a token is for one endpoint: its audience is that endpoint's address, so a client of one project does not get into another. What it
//! may do is what its scopes say. It is looked at here and goes no further: no upstream ever sees it.

use cofer_model::{Kind, Moment, Scope, Scopes, Token, TokenId};
use cofer_oauth::{Issuer, Rejected, Subject, Web};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use url::Url;

use super::Caller;
use crate::http::ApiError;
use crate::http::error::chain;
use crate::settings::OauthSettings;
use crate::telemetry::metrics;

const WELL_KNOWN: &str = "/.well-known/oauth-protected-resource";
/// Longer than any that is made for a header.
pub(super) const TOKEN_BYTES_MAX: usize = 16 << 10;

/// The issuer, and what its tokens must say.
#[derive(Debug)]
pub struct Issued {
    issuer: Issuer,
    audience: Option<String>,
    scopes: Vec<(String, Scope)>,
    /// Where clients find us.
    base: String,
}

impl Issued {
    /// None where nobody is trusted.
    pub(crate) fn of(settings: &OauthSettings, base: &str) -> Option<Self> {
        let issuer = Issuer::new(settings.issuer.as_deref()?, &Web::new());
        let (audience, scopes) = (settings.audience.clone(), settings.scopes.clone());
        Some(Self { issuer, audience, scopes, base: base.to_owned() })
    }

    /// What the endpoint at this path says of itself (RFC 9728).
    pub(crate) fn description(&self, path: &str) -> Value {
        json!({
            "resource": self.resource(path),
            "authorization_servers": [self.issuer.name()],
            "scopes_supported": [self.word_for(Scope::ToolsCall)],
            "bearer_methods_supported": ["header"],
            "resource_name": "Cofer",
        })
    }

    /// Whoever holds this token, if it is good for the endpoint at this path.
    pub(super) async fn admit(&self, token: &str, path: &str) -> Result<Caller, ApiError> {
        let audience = self.audience.clone().unwrap_or_else(|| self.address(path));
        match self.issuer.verify(token, &audience).await {
            Ok(subject) => Ok(self.caller(subject)),
            Err(Rejected::NoKeys(error)) => {
                metrics::auth_failed("issuer_away");
                let message =
                    "whoever issued this token cannot be asked whether it is good; try again shortly";
                let cause = chain(&Rejected::NoKeys(error));
                Err(ApiError { cause: Some(cause), ..ApiError::new(Kind::Unavailable, message) })
            }
            Err(rejected) => {
                metrics::auth_failed("issued");
                let message = format!("{rejected}; ask its issuer for a new one");
                Err(self.explained(ApiError::new(Kind::Unauthorized, message), path, Some("invalid_token")))
            }
        }
    }

    /// A refusal that says where a token is to be had.
    pub(super) fn explained(&self, refusal: ApiError, path: &str, error: Option<&str>) -> ApiError {
        let error = error.map(|error| format!("error=\"{error}\", ")).unwrap_or_default();
        let (place, scope) = (self.place(path), self.word_for(Scope::ToolsCall));
        refusal.challenging(format!("Bearer {error}resource_metadata=\"{place}\", scope=\"{scope}\""))
    }

    fn caller(&self, subject: Subject) -> Caller {
        let meaning = |word: &String| {
            let translated = self.scopes.iter().find(|(theirs, _)| theirs == word).map(|(_, ours)| *ours);
            translated.or_else(|| Scope::ALL.into_iter().find(|scope| scope.as_str() == word))
        };
        let scopes: Scopes = subject.scopes.iter().filter_map(meaning).collect();
        let expires_at = i64::try_from(subject.expires_at.saturating_mul(1000)).unwrap_or(i64::MAX);
        let token = Token {
            id: TokenId(id_of(self.issuer.name(), &subject.name)),
            name: "issued".to_owned().try_into().unwrap_or_else(|_| unreachable!("a word is a name")),
            scopes,
            project_id: None,
            project: None,
            created_at: Moment::now(),
            expires_at: Some(Moment::from_unix_ms(expires_at)),
            last_used_at: None,
        };
        Caller { token: token.into(), subject: Some(subject.name.into()) }
    }

    fn word_for(&self, scope: Scope) -> &str {
        let theirs = self.scopes.iter().find(|(_, ours)| *ours == scope);
        theirs.map_or(scope.as_str(), |(theirs, _)| theirs)
    }

    fn address(&self, path: &str) -> String {
        format!("{}{path}", self.base)
    }

    /// What tokens are asked for. An audience that is no address cannot be the name of an endpoint.
    fn resource(&self, path: &str) -> String {
        let audience =
            self.audience.clone().filter(|audience| Url::parse(audience).is_ok_and(|url| url.has_host()));
        audience.unwrap_or_else(|| self.address(path))
    }

    /// Where the description of the endpoint at this path is.
    fn place(&self, path: &str) -> String {
        let Ok(url) = Url::parse(&self.base) else { return self.base.clone() };
        let above = url.path().trim_end_matches('/');
        format!("{}{WELL_KNOWN}{above}{path}", url.origin().ascii_serialization())
    }
}

/// The same for the same person, in every life.
fn id_of(issuer: &str, subject: &str) -> uuid::Uuid {
    let digest = Sha256::digest(format!("{issuer}\n{subject}"));
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&digest[..16]);
    uuid::Builder::from_custom_bytes(bytes).into_uuid()
}
