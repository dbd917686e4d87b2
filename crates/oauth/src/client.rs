//! Who are we to an authorization server? In the order of the specification: whoever an operator registered us as, the document in which we
//! describe ourselves, or whoever we just registered as.

use cofer_model::Moment;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use url::Url;

use crate::discovery::Authority;
use crate::failure::OauthError;
use crate::hidden::Hidden;
use crate::web::{Answer, Web, shown};

const NAME: &str = "Cofer";

/// What an operator registered by hand.
#[derive(Clone, Debug)]
pub struct Configured {
    pub id: String,
    pub secret: Option<Hidden>,
    /// With whom, where that was said.
    pub issuer: Option<String>,
}

/// A client of one authorization server. What is good there is shown to no other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Client {
    pub issuer: String,
    pub id: String,
    secret: Option<Hidden>,
    method: AuthMethod,
    pub source: Source,
    redirect_uri: String,
    /// When its secret ends.
    expires_at: Option<Moment>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    Configured,
    Document,
    Registered,
}

/// How a client proves who it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum AuthMethod {
    #[serde(rename = "none")]
    None,
    #[serde(rename = "client_secret_basic")]
    Basic,
    #[serde(rename = "client_secret_post")]
    Post,
}

/// Everything by which the choice is made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Choice<'a> {
    pub configured: Option<&'a Configured>,
    /// Where we describe ourselves, if anybody can read that.
    pub document: Option<&'a str>,
    /// Who we were at this server's last login.
    pub known: Option<&'a Client>,
    pub redirect_uri: &'a str,
}

impl Choice<'_> {
    pub(crate) async fn make(self, web: &Web, authority: &Authority) -> Result<Client, OauthError> {
        if let Some(configured) = self.configured {
            return self.configured(configured, authority);
        }
        if let Some(document) = self.document
            && authority.metadata.client_id_metadata_document_supported
        {
            return Ok(self.client(authority, document.to_owned(), None, AuthMethod::None, Source::Document));
        }
        if let Some(known) = self.known.filter(|known| self.is_still_good(known, authority)) {
            return Ok(known.clone());
        }
        self.register(web, authority).await
    }

    fn configured(self, configured: &Configured, authority: &Authority) -> Result<Client, OauthError> {
        let of_same =
            self.known.filter(|known| known.source == Source::Configured && known.id == configured.id);
        let registered_at = configured.issuer.as_ref().or(of_same.map(|known| &known.issuer));
        if let Some(registered_at) = registered_at.filter(|issuer| **issuer != authority.issuer) {
            let (registered_at, issuer) = (shown(registered_at), shown(&authority.issuer));
            return Err(OauthError::OtherClient { registered_at, issuer });
        }
        let method = match &configured.secret {
            None => AuthMethod::None,
            Some(_) => authority.method_with_secret(),
        };
        let secret = configured.secret.clone();
        Ok(self.client(authority, configured.id.clone(), secret, method, Source::Configured))
    }

    fn is_still_good(self, known: &Client, authority: &Authority) -> bool {
        known.source == Source::Registered
            && known.issuer == authority.issuer
            && known.redirect_uri == self.redirect_uri
            && known.expires_at.is_none_or(|at| at > Moment::now())
    }

    fn client(
        self,
        authority: &Authority,
        id: String,
        secret: Option<Hidden>,
        method: AuthMethod,
        source: Source,
    ) -> Client {
        let (issuer, redirect_uri) = (authority.issuer.clone(), self.redirect_uri.to_owned());
        Client { issuer, id, secret, method, source, redirect_uri, expires_at: None }
    }

    async fn register(self, web: &Web, authority: &Authority) -> Result<Client, OauthError> {
        let Some(endpoint) = &authority.metadata.registration_endpoint else {
            let (issuer, redirect_uri) = (shown(&authority.issuer), self.redirect_uri.to_owned());
            return Err(OauthError::NoRegistration { issuer, redirect_uri });
        };
        let wanted = authority.method_to_register();
        let mut body = description(self.redirect_uri);
        body["token_endpoint_auth_method"] = json!(wanted);
        let answer = web.post_json(endpoint, &body).await?;
        if !(200..300).contains(&answer.status) {
            return Err(refusal(endpoint, &answer));
        }
        let nonsense = || OauthError::Nonsense { whom: shown(endpoint), what: "no client id".to_owned() };
        let told: Registered = serde_json::from_value(answer.body).map_err(|_| nonsense())?;
        let secret = told.client_secret.filter(|secret| !secret.is_empty()).map(Hidden::new);
        let method = match (told.token_endpoint_auth_method, &secret) {
            (_, None) => AuthMethod::None,
            (Some(method), Some(_)) => method,
            // It says nothing of how, so as we asked.
            (None, Some(_)) => wanted,
        };
        let client = self.client(authority, told.client_id, secret, method, Source::Registered);
        let expires_at = told.client_secret_expires_at.filter(|seconds| *seconds > 0);
        let expires_at = expires_at.map(|seconds| Moment::from_unix_ms(seconds.saturating_mul(1000)));
        Ok(Client { expires_at, ..client })
    }
}

#[derive(Deserialize)]
struct Registered {
    client_id: String,
    client_secret: Option<String>,
    client_secret_expires_at: Option<i64>,
    token_endpoint_auth_method: Option<AuthMethod>,
}

/// What we say of ourselves, whoever asks.
pub(crate) fn description(redirect_uri: &str) -> Value {
    let is_here = Url::parse(redirect_uri).is_ok_and(|url| url.scheme() == "http");
    json!({
        "client_name": NAME,
        "redirect_uris": [redirect_uri],
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "application_type": if is_here { "native" } else { "web" },
    })
}

impl Authority {
    fn takes(&self, method: &str) -> bool {
        let supported = self.metadata.token_endpoint_auth_methods_supported.as_ref();
        // RFC 8414: who says nothing takes passwords in the header.
        supported.map_or(method == "client_secret_basic", |all| all.iter().any(|one| one == method))
    }

    fn method_with_secret(&self) -> AuthMethod {
        let only_post = self.takes("client_secret_post") && !self.takes("client_secret_basic");
        if only_post { AuthMethod::Post } else { AuthMethod::Basic }
    }

    /// PKCE protects a client without a password as well, and what it does not have cannot be lost.
    fn method_to_register(&self) -> AuthMethod {
        if self.takes("none") { AuthMethod::None } else { self.method_with_secret() }
    }
}

impl Client {
    /// The document in which we describe ourselves, at the address that is our id.
    pub fn document(address: &str, redirect_uri: &str) -> Value {
        let mut document = description(redirect_uri);
        document["client_id"] = json!(address);
        document["token_endpoint_auth_method"] = json!(AuthMethod::None);
        document
    }

    /// Nobody knows it any more: at the next login there is another.
    pub fn forget(&mut self) {
        self.expires_at = Some(Moment::now());
    }

    pub(crate) fn redirect_uri(&self) -> &str {
        &self.redirect_uri
    }

    /// Sends a form as this client.
    pub(crate) async fn post(
        &self,
        web: &Web,
        endpoint: &str,
        fields: &[(&str, &str)],
    ) -> Result<Answer, OauthError> {
        let mut fields = fields.to_vec();
        let mut basic = None;
        match (self.method, &self.secret) {
            (AuthMethod::Basic, Some(secret)) => basic = Some((self.id.as_str(), secret)),
            (AuthMethod::Post, Some(secret)) => {
                fields.extend([("client_id", self.id.as_str()), ("client_secret", secret.clear())]);
            }
            _ => fields.push(("client_id", self.id.as_str())),
        }
        web.post_form(endpoint, &fields, basic).await
    }
}

/// An answer that says no, in the words that the protocol has for it.
pub(crate) fn refusal(endpoint: &str, answer: &Answer) -> OauthError {
    let whom = Url::parse(endpoint).map_or_else(|_| shown(endpoint), |url| crate::web::whom(&url));
    let text = |field: &str| answer.body[field].as_str().map(shown);
    match text("error") {
        Some(error) => OauthError::Refused { whom, error, description: text("error_description") },
        None => OauthError::Status { whom, status: answer.status },
    }
}
