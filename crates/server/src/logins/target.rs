//! Where a login is for, with its secrets put in.

use std::collections::BTreeMap;

use cofer_model::{ExternalConfig, RemoteConfig, SecretName, template};
use cofer_oauth::{Configured, Hidden};
use secrecy::{ExposeSecret, SecretString};
use url::Url;

#[derive(Clone, Debug)]
pub(crate) struct LoginTarget {
    pub url: Url,
    pub configured: Option<Configured>,
    pub scopes: Vec<String>,
}

impl LoginTarget {
    /// None for a server that takes no login: a program, one whose credentials were written down, or one whose secrets are missing.
    pub(crate) fn of(config: &ExternalConfig, secrets: &BTreeMap<SecretName, SecretString>) -> Option<Self> {
        let (ExternalConfig::Http(remote) | ExternalConfig::Sse(remote)) = config else { return None };
        if has_credentials(remote) {
            return None;
        }
        let filled = |text: &String| Some(template::fill(text, secrets).ok()?.expose_secret().to_owned());
        let url = Url::parse(&filled(&remote.url)?).ok()?;
        let oauth = remote.oauth.clone().unwrap_or_default();
        let configured = match &oauth.client_id {
            None => None,
            Some(id) => Some(Configured {
                id: filled(id)?,
                secret: match &oauth.client_secret {
                    None => None,
                    Some(secret) => Some(Hidden::new(filled(secret)?)),
                },
                issuer: oauth.issuer,
            }),
        };
        Some(Self { url, configured, scopes: oauth.scopes })
    }
}

/// Whoever wrote down what to show wants that shown, and nothing else.
fn has_credentials(remote: &RemoteConfig) -> bool {
    remote.headers.keys().any(|name| name.eq_ignore_ascii_case("authorization"))
}
