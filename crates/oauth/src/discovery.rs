//! Whose tokens does a server take? Its own description says so (RFC 9728), and theirs where to ask (RFC 8414, `OpenID` Connect).
//!
//! Servers from before 2025-06-18 have no description: then the authorization server is at their own origin, and where that has none
//! either, at the addresses that were usual.

use url::Url;

use crate::challenge::Challenge;
use crate::failure::OauthError;
use crate::metadata::{ResourceMetadata, ServerMetadata, is_name_of, places_of_issuer, places_of_resource};
use crate::web::{Web, shown};

/// What was found out about a server.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    /// What tokens for it are asked for, to the letter.
    pub resource: String,
    /// What it says that clients need; none where it says nothing.
    pub scopes: Option<Vec<String>>,
    pub authority: Authority,
}

/// An authorization server that was checked: it is who it is said to be, and its logins are protected.
#[derive(Clone, Debug)]
pub(crate) struct Authority {
    pub issuer: String,
    pub authorization_endpoint: String,
    pub token_endpoint: String,
    pub metadata: ServerMetadata,
}

pub(crate) async fn discover(web: &Web, server: &Url, challenge: &Challenge) -> Result<Found, OauthError> {
    let Some(described) = describe(web, server, challenge).await? else {
        let authority = at_own_origin(web, server).await?;
        return Ok(Found { resource: canonical(server), scopes: None, authority });
    };
    let resource = described.resource.unwrap_or_else(|| canonical(server));
    if !is_name_of(&resource, server) {
        return Err(OauthError::OtherResource { said: shown(&resource) });
    }
    let issuer = described.authorization_servers.first().ok_or(OauthError::NobodyToAsk)?;
    let metadata = look_up(web, issuer).await?;
    let metadata = metadata.ok_or_else(|| OauthError::Undescribed { issuer: shown(issuer) })?;
    let authority = Authority::of(web, issuer, metadata)?;
    Ok(Found { resource, scopes: described.scopes_supported, authority })
}

/// What the server says of itself, from where it says that it does, else from the usual places.
async fn describe(
    web: &Web,
    server: &Url,
    challenge: &Challenge,
) -> Result<Option<ResourceMetadata>, OauthError> {
    if let Some(place) = &challenge.resource_metadata
        && let Some(described) = web.get(place).await?
    {
        return Ok(Some(described));
    }
    for place in places_of_resource(server) {
        if let Some(described) = web.get(&place).await? {
            return Ok(Some(described));
        }
    }
    Ok(None)
}

/// The description of an authorization server, which must be its own.
pub(crate) async fn look_up(web: &Web, issuer: &str) -> Result<Option<ServerMetadata>, OauthError> {
    let url = web.fit(issuer)?;
    for place in places_of_issuer(&url) {
        if let Some(found) = web.get::<ServerMetadata>(&place).await? {
            if found.issuer != issuer {
                return Err(OauthError::OtherIssuer { expected: shown(issuer), said: shown(&found.issuer) });
            }
            return Ok(Some(found));
        }
    }
    Ok(None)
}

/// As it was until 2025-03-26.
async fn at_own_origin(web: &Web, server: &Url) -> Result<Authority, OauthError> {
    let origin = server.origin().ascii_serialization();
    if let Some(metadata) = look_up(web, &origin).await? {
        return Authority::of(web, &origin, metadata);
    }
    let at = |path: &str| Some(format!("{origin}{path}"));
    let metadata = ServerMetadata {
        issuer: origin.clone(),
        authorization_endpoint: at("/authorize"),
        token_endpoint: at("/token"),
        registration_endpoint: at("/register"),
        // Nobody says so; whoever does not know it passes it over.
        code_challenge_methods_supported: vec!["S256".to_owned()],
        ..ServerMetadata::default()
    };
    Authority::of(web, &origin, metadata)
}

impl Authority {
    fn of(web: &Web, issuer: &str, metadata: ServerMetadata) -> Result<Self, OauthError> {
        let incomplete = || OauthError::Nonsense {
            whom: shown(issuer),
            what: "a description without the addresses of its login".to_owned(),
        };
        let authorization_endpoint = metadata.authorization_endpoint.clone().ok_or_else(incomplete)?;
        let token_endpoint = metadata.token_endpoint.clone().ok_or_else(incomplete)?;
        for endpoint in [&authorization_endpoint, &token_endpoint] {
            web.fit(endpoint)?;
        }
        if !metadata.code_challenge_methods_supported.iter().any(|method| method == "S256") {
            return Err(OauthError::NoPkce { issuer: shown(issuer) });
        }
        Ok(Self { issuer: issuer.to_owned(), authorization_endpoint, token_endpoint, metadata })
    }
}

/// A server's address as its name: without what follows the path, and without a slash at the end.
fn canonical(server: &Url) -> String {
    let path = server.path().trim_end_matches('/');
    format!("{}{path}", server.origin().ascii_serialization())
}
