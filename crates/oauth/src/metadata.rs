//! The documents in which a server and an authorization server describe themselves, and where they are found.

use serde::Deserialize;
use url::Url;

/// RFC 9728: what a server says of itself.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct ResourceMetadata {
    /// Its name for whoever gives tokens, to the letter.
    pub resource: Option<String>,
    #[serde(default)]
    pub authorization_servers: Vec<String>,
    pub scopes_supported: Option<Vec<String>>,
}

/// RFC 8414, and the same of `OpenID` Connect.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct ServerMetadata {
    pub issuer: String,
    pub authorization_endpoint: Option<String>,
    pub token_endpoint: Option<String>,
    pub registration_endpoint: Option<String>,
    pub revocation_endpoint: Option<String>,
    pub jwks_uri: Option<String>,
    #[serde(default)]
    pub scopes_supported: Vec<String>,
    #[serde(default)]
    pub code_challenge_methods_supported: Vec<String>,
    pub token_endpoint_auth_methods_supported: Option<Vec<String>>,
    #[serde(default)]
    pub client_id_metadata_document_supported: bool,
    /// RFC 9207: its answers name it.
    #[serde(default)]
    pub authorization_response_iss_parameter_supported: bool,
}

const RESOURCE: &str = "/.well-known/oauth-protected-resource";
const OAUTH: &str = "/.well-known/oauth-authorization-server";
const OPENID: &str = "/.well-known/openid-configuration";

/// Where a server's description may be, likeliest first.
pub(crate) fn places_of_resource(server: &Url) -> Vec<String> {
    let (origin, path) = (server.origin().ascii_serialization(), path_of(server));
    let mut places = vec![format!("{origin}{RESOURCE}{path}")];
    if !path.is_empty() {
        places.push(format!("{origin}{RESOURCE}"));
    }
    places
}

/// Where an authorization server's description may be, in the order of the specification.
pub(crate) fn places_of_issuer(issuer: &Url) -> Vec<String> {
    let (origin, path) = (issuer.origin().ascii_serialization(), path_of(issuer));
    let mut places = vec![format!("{origin}{OAUTH}{path}"), format!("{origin}{OPENID}{path}")];
    if !path.is_empty() {
        places.push(format!("{origin}{path}{OPENID}"));
    }
    places
}

fn path_of(url: &Url) -> &str {
    url.path().trim_end_matches('/')
}

/// Whether a server at this address may call itself so: the same origin, and the address is at or below it.
pub(crate) fn is_name_of(resource: &str, server: &Url) -> bool {
    let Ok(named) = Url::parse(resource) else { return false };
    let (above, path) = (path_of(&named), path_of(server));
    let is_below = path.strip_prefix(above).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    named.origin() == server.origin() && named.fragment().is_none() && is_below
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> Url {
        text.parse().unwrap()
    }

    #[test]
    fn descriptions_are_looked_for_in_the_order_of_the_specification() {
        assert_eq!(
            places_of_resource(&url("https://a.example/public/mcp")),
            [
                "https://a.example/.well-known/oauth-protected-resource/public/mcp",
                "https://a.example/.well-known/oauth-protected-resource"
            ]
        );
        assert_eq!(
            places_of_resource(&url("https://a.example")),
            ["https://a.example/.well-known/oauth-protected-resource"]
        );
        assert_eq!(
            places_of_issuer(&url("https://a.example/tenant1")),
            [
                "https://a.example/.well-known/oauth-authorization-server/tenant1",
                "https://a.example/.well-known/openid-configuration/tenant1",
                "https://a.example/tenant1/.well-known/openid-configuration"
            ]
        );
        assert_eq!(
            places_of_issuer(&url("https://a.example/")),
            [
                "https://a.example/.well-known/oauth-authorization-server",
                "https://a.example/.well-known/openid-configuration"
            ]
        );
    }

    #[test]
    fn a_server_goes_by_its_address_or_by_one_above_it_and_by_no_other() {
        let server = url("https://a.example/team/mcp");
        for resource in [
            "https://a.example/team/mcp",
            "https://a.example/team/",
            "https://a.example",
            "HTTPS://A.example",
        ] {
            assert!(is_name_of(resource, &server), "{resource}");
        }
        for resource in [
            "https://b.example/team/mcp",
            "https://a.example/tea",
            "https://a.example/team/mcp/more",
            "http://a.example",
            "https://a.example:8443",
            "https://a.example#x",
            "nonsense",
        ] {
            assert!(!is_name_of(resource, &server), "{resource}");
        }
    }
}
