//! One login, from the address for the person's browser to the tokens.

use cofer_model::Moment;
use data_encoding::BASE64URL_NOPAD;
use sha2::{Digest, Sha256};
use url::Url;

use crate::challenge::Challenge;
use crate::client::{Choice, Client, Configured, refusal};
use crate::discovery::{Found, discover};
use crate::failure::OauthError;
use crate::grant::{Grant, tokens_of};
use crate::hidden::Hidden;
use crate::web::{Answer, Web, shown};

/// Asks for tokens that renew themselves, where that is offered.
const OFFLINE: &str = "offline_access";
const RANDOM_BYTES: usize = 32;

/// What a login is for.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    pub server: &'a Url,
    /// What it said when it refused us last.
    pub challenge: &'a Challenge,
    pub configured: Option<&'a Configured>,
    /// Where we describe ourselves, if anybody can read that.
    pub document: Option<&'a str>,
    pub redirect_uri: &'a str,
    /// What is left of the login before.
    pub before: Option<&'a Grant>,
    /// Scopes that are wanted in any case.
    pub scopes: &'a [String],
}

/// A login that waits for its person. It is for one answer.
#[derive(Debug)]
pub struct Attempt {
    pub authorize_url: String,
    /// Tells answers apart, and cannot be guessed.
    pub state: String,
    verifier: Hidden,
    names_itself: bool,
    grant: Grant,
}

/// What the person's browser brought back.
#[derive(Clone, Debug, Default)]
pub struct Callback {
    pub code: Option<String>,
    pub iss: Option<String>,
    pub error: Option<String>,
    pub error_description: Option<String>,
}

/// Finds out whom to ask, and who we are to them.
pub async fn begin(web: &Web, wanted: Wanted<'_>) -> Result<Attempt, OauthError> {
    let web = web.on_behalf_of(wanted.server);
    let found = discover(&web, wanted.server, wanted.challenge).await?;
    let choice = Choice {
        configured: wanted.configured,
        document: wanted.document,
        known: wanted.before.map(|before| &before.client),
        redirect_uri: wanted.redirect_uri,
    };
    let client = choice.make(&web, &found.authority).await?;
    let scopes = scopes(&wanted, &found);
    Ok(Attempt::new(wanted.server, found, client, scopes))
}

/// What the server asks for, or else what it says that clients need; and what was asked for before, so that nothing is lost.
fn scopes(wanted: &Wanted<'_>, found: &Found) -> Vec<String> {
    let asked = &wanted.challenge.scopes;
    let needed = found.scopes.as_deref().filter(|_| asked.is_empty() && wanted.scopes.is_empty());
    let issuer = &found.authority.issuer;
    let before =
        wanted.before.filter(|before| before.client.issuer == *issuer).map(|before| &before.scopes[..]);
    let parts = [before.unwrap_or_default(), wanted.scopes, asked.as_slice(), needed.unwrap_or_default()];
    let mut scopes: Vec<String> = Vec::new();
    for scope in parts.into_iter().flatten() {
        if !scopes.contains(scope) {
            scopes.push(scope.clone());
        }
    }
    let offers = |scope: &str| found.authority.metadata.scopes_supported.iter().any(|one| one == scope);
    if offers(OFFLINE) && !scopes.iter().any(|scope| scope == OFFLINE) {
        scopes.push(OFFLINE.to_owned());
    }
    scopes
}

impl Attempt {
    fn new(server: &Url, found: Found, client: Client, scopes: Vec<String>) -> Self {
        let Found { resource, authority, .. } = found;
        let (state, verifier) = (random(), random());
        let challenge = BASE64URL_NOPAD.encode(&Sha256::digest(verifier.as_bytes()));
        let scope = scopes.join(" ");
        let mut fields = vec![
            ("response_type", "code"),
            ("client_id", client.id.as_str()),
            ("redirect_uri", client.redirect_uri()),
            ("state", state.as_str()),
            ("code_challenge", challenge.as_str()),
            ("code_challenge_method", "S256"),
            ("resource", resource.as_str()),
        ];
        if !scope.is_empty() {
            fields.push(("scope", scope.as_str()));
        }
        if scopes.iter().any(|scope| scope == OFFLINE) {
            // OpenID Connect gives such tokens only to whoever was asked.
            fields.push(("prompt", "consent"));
        }
        let authorize_url = with_query(&authority.authorization_endpoint, &fields);
        let grant = Grant {
            server: server.to_string(),
            resource,
            client,
            token_endpoint: authority.token_endpoint,
            revocation_endpoint: authority.metadata.revocation_endpoint,
            scopes,
            tokens: None,
        };
        let names_itself = authority.metadata.authorization_response_iss_parameter_supported;
        Self { authorize_url, state, verifier: Hidden::new(verifier), names_itself, grant }
    }

    /// Trades the code for tokens, if the answer comes from whom we asked. Nothing in one that does not is believed.
    pub async fn finish(self, web: &Web, callback: Callback, now: Moment) -> Result<Grant, OauthError> {
        let expected = &self.grant.client.issuer;
        let is_theirs = match &callback.iss {
            Some(iss) => iss == expected,
            None => !self.names_itself,
        };
        if !is_theirs {
            return Err(OauthError::OtherAnswer { expected: shown(expected) });
        }
        let Some(code) = callback.code.filter(|_| callback.error.is_none()) else {
            let error = callback.error.as_deref().map_or_else(|| "no code came back".to_owned(), shown);
            let description = callback.error_description.as_deref().map(shown);
            return Err(OauthError::Refused { whom: shown(expected), error, description });
        };
        let web =
            Url::parse(&self.grant.server).map_or_else(|_| web.clone(), |server| web.on_behalf_of(&server));
        let tokens = tokens_of(&self.grant.token_endpoint, self.redeem(&web, &code).await?, now)?;
        Ok(Grant { tokens: Some(tokens), ..self.grant })
    }

    async fn redeem(&self, web: &Web, code: &str) -> Result<Answer, OauthError> {
        let Grant { client, token_endpoint, resource, .. } = &self.grant;
        let fields = [
            ("grant_type", "authorization_code"),
            ("code", code),
            ("redirect_uri", client.redirect_uri()),
            ("code_verifier", self.verifier.clear()),
            ("resource", resource.as_str()),
        ];
        let answer = client.post(web, token_endpoint, &fields).await?;
        if answer.status >= 400 { Err(refusal(token_endpoint, &answer)) } else { Ok(answer) }
    }
}

/// An endpoint may have a query of its own.
fn with_query(endpoint: &str, fields: &[(&str, &str)]) -> String {
    let Ok(mut url) = Url::parse(endpoint) else { return endpoint.to_owned() };
    url.query_pairs_mut().extend_pairs(fields);
    url.into()
}

fn random() -> String {
    let mut bytes = [0; RANDOM_BYTES];
    #[expect(clippy::expect_used, reason = "without randomness nothing here is safe")]
    getrandom::fill(&mut bytes).expect("the system has randomness");
    BASE64URL_NOPAD.encode(&bytes)
}
