//! Where the world finds us, and whose tokens we take beside our own, decided.

use std::net::IpAddr;

use cofer_model::Scope;
use url::{Host, Url};

use super::{Layer, SettingsError, text};

#[derive(Clone, Debug, Default)]
pub struct OauthSettings {
    /// Without a slash at the end.
    pub public_url: Option<String>,
    pub issuer: Option<String>,
    /// Whom its tokens must be for, where that is not the address of the endpoint.
    pub audience: Option<String>,
    /// What its words mean here, beside our own words.
    pub scopes: Vec<(String, Scope)>,
}

impl OauthSettings {
    pub(super) fn decide(flags: &Layer, file: &Layer) -> Result<Self, SettingsError> {
        let public_url = text(flags.public_url.clone(), file.public_url.clone());
        let issuer = text(flags.oauth_issuer.clone(), file.oauth_issuer.clone());
        if issuer.as_deref().is_some_and(|issuer| !is_safe(issuer)) {
            return Err(SettingsError::Address { name: "oauth_issuer" });
        }
        let given = if flags.oauth_scopes.is_empty() { &file.oauth_scopes } else { &flags.oauth_scopes };
        let scopes: Result<_, _> = given.iter().map(|pair| scope(pair)).collect();
        Ok(Self {
            public_url: public_url.map(|url| public(&url)).transpose()?,
            issuer,
            audience: text(flags.oauth_audience.clone(), file.oauth_audience.clone()),
            scopes: scopes?,
        })
    }

    /// The name under which the world knows us.
    pub fn public_host(&self) -> Option<String> {
        let url = Url::parse(self.public_url.as_deref()?).ok()?;
        url.host_str().map(|host| host.trim_matches(['[', ']']).to_owned())
    }
}

fn public(text: &str) -> Result<String, SettingsError> {
    let wrong = || SettingsError::Address { name: "public_url" };
    let url = Url::parse(text).map_err(|_| wrong())?;
    let is_plain = url.query().is_none() && url.fragment().is_none() && url.username().is_empty();
    let is_web = matches!(url.scheme(), "http" | "https") && url.has_host();
    if !is_plain || !is_web {
        return Err(wrong());
    }
    Ok(url.as_str().trim_end_matches('/').to_owned())
}

/// Whoever can change what an issuer answers decides who comes in: https, or this machine.
fn is_safe(issuer: &str) -> bool {
    let Ok(url) = Url::parse(issuer) else { return false };
    let is_here = match url.host() {
        Some(Host::Domain(name)) => name == "localhost",
        Some(Host::Ipv4(address)) => IpAddr::V4(address).is_loopback(),
        Some(Host::Ipv6(address)) => IpAddr::V6(address).is_loopback(),
        None => false,
    };
    url.scheme() == "https" || (url.scheme() == "http" && is_here)
}

/// `THEIRS=OURS`.
fn scope(pair: &str) -> Result<(String, Scope), SettingsError> {
    let (theirs, ours) = pair.rsplit_once('=').ok_or(SettingsError::ScopePair)?;
    let ours = Scope::ALL.into_iter().find(|scope| scope.as_str() == ours.trim());
    match (theirs.trim(), ours) {
        ("", _) | (_, None) => Err(SettingsError::ScopePair),
        (theirs, Some(ours)) => Ok((theirs.to_owned(), ours)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decide(layer: &Layer) -> Result<OauthSettings, String> {
        OauthSettings::decide(layer, &Layer::default()).map_err(|error| error.to_string())
    }

    #[test]
    fn an_address_is_one_and_an_issuer_is_safe() {
        let public = |url: &str| decide(&Layer { public_url: Some(url.to_owned()), ..Layer::default() });
        assert_eq!(
            public("https://Cofer.example.com/").unwrap().public_url.unwrap(),
            "https://cofer.example.com"
        );
        assert_eq!(public("https://a.example/cofer").unwrap().public_host().unwrap(), "a.example");
        for wrong in ["cofer.example.com", "ftp://a", "https://a/?x", "https://u@a/"] {
            assert!(public(wrong).unwrap_err().contains("`public_url`"), "{wrong}");
        }
        let issuer = |url: &str| decide(&Layer { oauth_issuer: Some(url.to_owned()), ..Layer::default() });
        assert!(issuer("https://auth.example.com/realm").is_ok() && issuer("http://127.0.0.1:9").is_ok());
        assert!(issuer("http://auth.example.com").unwrap_err().contains("`oauth_issuer`"));
    }

    #[test]
    fn words_of_an_issuer_are_given_a_meaning() {
        let scopes = |pair: &str| decide(&Layer { oauth_scopes: vec![pair.to_owned()], ..Layer::default() });
        assert_eq!(scopes("mcp:use=tools:call").unwrap().scopes, [("mcp:use".to_owned(), Scope::ToolsCall)]);
        for wrong in ["mcp:use", "=tools:call", "mcp:use=tools"] {
            assert!(scopes(wrong).unwrap_err().contains("`oauth_scopes`"), "{wrong}");
        }
    }
}
