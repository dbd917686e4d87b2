//! External servers: MCP servers that live elsewhere, how each is reached, and the words for how that goes.
//!
//! A configuration is kept as it was written: `${NAME}` stays until the moment of connecting (see [`crate::template`]). What is
//! shown of it is [`ExternalConfig::shown`], where passwords that somebody wrote out are masked.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::words::words;
use crate::{Moment, ProductId, ProjectId, ServerId, ServerName, template};

/// What stands in place of a value that is not shown.
pub const MASKED: &str = "[masked]";
/// Headers whose values are credentials, in lower case.
const CREDENTIAL_HEADERS: [&str; 5] =
    ["authorization", "proxy-authorization", "cookie", "x-api-key", "api-key"];

words! {
    /// How an external server is spoken to.
    Transport {
        /// A child process of Cofer's, by its stdin and stdout.
        Stdio = "stdio",
        /// HTTP with server-sent events, as of 2024-11-05.
        Sse = "sse",
        /// Streamable HTTP.
        Http = "http",
    }
}
words! {
    /// Whether clients share the one session with a server.
    SessionMode {
        /// Decided by what the server does: one that asks things of its client gets a session for each.
        Auto = "auto",
        Shared = "shared",
        PerClient = "per_client",
    }
}
words! {
    /// How the connection to an external server does.
    ExternalStatus {
        /// Not connected, and nobody has asked for it yet.
        Idle = "idle",
        Connecting = "connecting",
        Connected = "connected",
        /// It could not be reached several times in a row, and is left alone for a while.
        Unavailable = "unavailable",
        /// It cannot be connected to as it is configured.
        Error = "error",
    }
}
words! {
    /// How the login at an external server does that wants one.
    LoginState {
        /// Nobody has logged in, or the login has ended and cannot be renewed.
        Required = "required",
        Done = "done",
        /// It is good, but a call was refused because more has to be granted: logging in again asks for that.
        Insufficient = "insufficient",
    }
}
words! {
    /// What the breaker in front of a server does with whoever wants to connect.
    CircuitState { Admitting = "admitting", Refusing = "refusing", Probing = "probing" }
}

/// The breaker in front of a server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Circuit {
    pub state: CircuitState,
    /// Attempts to connect that failed in a row.
    pub failures: u32,
    /// When the next attempt may be made.
    pub retry_at: Option<Moment>,
}

impl Circuit {
    /// Nothing has failed.
    pub const fn closed() -> Self {
        Self { state: CircuitState::Admitting, failures: 0, retry_at: None }
    }
}

/// A program to run, as it was written.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StdioConfig {
    pub command: String,
    #[serde(default)]
    pub args: Vec<String>,
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    #[serde(default)]
    pub cwd: Option<String>,
}

/// An address to connect to, as it was written.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RemoteConfig {
    pub url: String,
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    /// How to log in there, where that is not found out by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oauth: Option<OauthConfig>,
}

/// Who we are to the authorization server of a server, for one that does not let unknown clients register.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct OauthConfig {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_secret: Option<String>,
    /// Whom the client id is registered with; logins elsewhere are refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub issuer: Option<String>,
    /// What is asked for in any case.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub scopes: Vec<String>,
}

impl OauthConfig {
    fn texts(&self) -> impl Iterator<Item = &str> {
        self.client_id.iter().chain(&self.client_secret).map(String::as_str)
    }
}

/// How a server is reached: a transport and what that needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExternalConfig {
    Stdio(StdioConfig),
    Sse(RemoteConfig),
    Http(RemoteConfig),
}

impl ExternalConfig {
    /// A configuration as JSON has it beside its transport. The error names the field.
    pub fn read(transport: Transport, config: &Value) -> Result<Self, serde_json::Error> {
        Ok(match transport {
            Transport::Stdio => Self::Stdio(StdioConfig::deserialize(config)?),
            Transport::Sse => Self::Sse(RemoteConfig::deserialize(config)?),
            Transport::Http => Self::Http(RemoteConfig::deserialize(config)?),
        })
    }

    pub const fn transport(&self) -> Transport {
        match self {
            Self::Stdio(_) => Transport::Stdio,
            Self::Sse(_) => Transport::Sse,
            Self::Http(_) => Transport::Http,
        }
    }

    /// Every text in which `${NAME}` is a secret.
    pub fn texts(&self) -> Vec<&str> {
        match self {
            Self::Stdio(stdio) => stdio.args.iter().chain(stdio.env.values()).map(String::as_str).collect(),
            Self::Sse(remote) | Self::Http(remote) => {
                let headers = remote.headers.values().map(String::as_str);
                let oauth = remote.oauth.iter().flat_map(OauthConfig::texts);
                [remote.url.as_str()].into_iter().chain(headers).chain(oauth).collect()
            }
        }
    }

    /// The same with passwords masked that somebody wrote out instead of naming a secret.
    #[must_use]
    pub fn shown(&self) -> Self {
        let remote = |remote: &RemoteConfig| RemoteConfig {
            url: shown_url(&remote.url),
            headers: remote
                .headers
                .iter()
                .map(|(name, value)| (name.clone(), shown_header(name, value)))
                .collect(),
            oauth: remote.oauth.clone().map(|oauth| OauthConfig {
                client_secret: oauth.client_secret.as_deref().map(shown_password),
                ..oauth
            }),
        };
        match self {
            Self::Stdio(stdio) => Self::Stdio(stdio.clone()),
            Self::Sse(config) => Self::Sse(remote(config)),
            Self::Http(config) => Self::Http(remote(config)),
        }
    }

    /// The same, where every value that reads as `old` is shown is what `old` has: whoever sends back what they saw changes
    /// nothing.
    #[must_use]
    pub fn with_masked_from(self, old: &Self) -> Self {
        let (Self::Sse(before) | Self::Http(before)) = old else { return self };
        let filled = |mut remote: RemoteConfig| {
            if remote.url == shown_url(&before.url) {
                remote.url.clone_from(&before.url);
            }
            for (name, value) in &mut remote.headers {
                if let Some(old) = before.headers.get(name).filter(|old| shown_header(name, old) == *value) {
                    value.clone_from(old);
                }
            }
            let secret = before.oauth.as_ref().and_then(|oauth| oauth.client_secret.as_ref());
            if let (Some(oauth), Some(old)) = (&mut remote.oauth, secret)
                && oauth.client_secret.as_deref() == Some(shown_password(old).as_str())
            {
                oauth.client_secret = Some(old.clone());
            }
            remote
        };
        match self {
            Self::Stdio(stdio) => Self::Stdio(stdio),
            Self::Sse(remote) => Self::Sse(filled(remote)),
            Self::Http(remote) => Self::Http(filled(remote)),
        }
    }
}

/// As it stands beside its transport.
impl Serialize for ExternalConfig {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Stdio(stdio) => stdio.serialize(serializer),
            Self::Sse(remote) | Self::Http(remote) => remote.serialize(serializer),
        }
    }
}

/// An address with the password in it masked, unless it is a secret's name.
fn shown_url(url: &str) -> String {
    let Some(start) = url.find("://").map(|at| at + 3) else { return url.to_owned() };
    let end = url[start..].find(['/', '?', '#']).map_or(url.len(), |length| start + length);
    let Some(at) = url[start..end].rfind('@').map(|length| start + length) else { return url.to_owned() };
    let Some(colon) = url[start..at].find(':').map(|length| start + length) else { return url.to_owned() };
    let password = &url[colon + 1..at];
    if password.is_empty() || names_a_secret(password) {
        return url.to_owned();
    }
    format!("{}{MASKED}{}", &url[..=colon], &url[at..])
}

fn shown_password(password: &str) -> String {
    if names_a_secret(password) { password.to_owned() } else { MASKED.to_owned() }
}

/// A header with credentials in it masked, all but the word before them, unless they are a secret's name.
fn shown_header(name: &str, value: &str) -> String {
    let is_credential = CREDENTIAL_HEADERS.contains(&name.to_ascii_lowercase().as_str());
    if !is_credential || value.is_empty() || names_a_secret(value) {
        return value.to_owned();
    }
    match value.split_once(' ') {
        Some((scheme, _)) if scheme.chars().all(|c| c.is_ascii_alphabetic()) => format!("{scheme} {MASKED}"),
        _ => MASKED.to_owned(),
    }
}

fn names_a_secret(text: &str) -> bool {
    !template::names([text]).is_empty()
}

/// One external server.
#[derive(Clone, Debug, PartialEq)]
pub struct ExternalServer {
    pub id: ServerId,
    pub project_id: ProjectId,
    /// The product that brought it.
    pub product_id: Option<ProductId>,
    /// Later registrations have higher ones, hosted servers included.
    pub position: i64,
    pub name: ServerName,
    pub description: String,
    pub config: ExternalConfig,
    pub enabled: bool,
    pub session: SessionMode,
    pub created_at: Moment,
    pub updated_at: Moment,
}

/// A set of servers that came with one manifest, and goes with it.
#[derive(Clone, Debug, PartialEq, Serialize, utoipa::ToSchema)]
pub struct Product {
    pub id: ProductId,
    #[serde(skip)]
    pub project_id: ProjectId,
    pub name: String,
    pub version: String,
    /// As it was sent. Not shown: it may have passwords in it.
    #[serde(skip)]
    pub manifest: Value,
    pub created_at: Moment,
    pub updated_at: Moment,
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn shown(url: &str, headers: &[(&str, &str)]) -> Value {
        let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let config = ExternalConfig::Http(RemoteConfig { url: url.to_owned(), headers, oauth: None });
        serde_json::to_value(config.shown()).unwrap()
    }

    #[test]
    fn passwords_that_were_written_out_are_masked_and_names_of_secrets_are_not() {
        for (written, seen) in [
            ("https://host/mcp", "https://host/mcp"),
            ("https://user:hunter2@host/mcp", "https://user:[masked]@host/mcp"),
            ("https://user:hun@ter2@host/a@b:c", "https://user:[masked]@host/a@b:c"),
            ("https://user:${PASSWORD}@host", "https://user:${PASSWORD}@host"),
            ("https://user@host", "https://user@host"),
            ("https://host/x?next=a:b@c", "https://host/x?next=a:b@c"),
            ("${URL}", "${URL}"),
        ] {
            assert_eq!(shown(written, &[])["url"], seen);
        }
        let headers = [
            ("authorization", "Bearer hunter2"),
            ("Proxy-Authorization", "hunter2"),
            ("Cookie", "a=hunter2; b=hunter2"),
            ("X-API-Key", "${KEY}"),
            ("X-Team", "blue"),
        ];
        assert_eq!(
            shown("https://host", &headers)["headers"],
            json!({"Cookie": "[masked]", "Proxy-Authorization": "[masked]", "X-API-Key": "${KEY}", "X-Team": "blue",
                   "authorization": "Bearer [masked]"})
        );
    }

    #[test]
    fn a_client_secret_is_masked_unless_it_is_a_name_and_stays_what_it_is_when_it_is_sent_back() {
        let config = |secret: &str| {
            let oauth = json!({"client_id": "cofer", "client_secret": secret});
            ExternalConfig::read(Transport::Http, &json!({"url": "https://host", "oauth": oauth})).unwrap()
        };
        let seen = |config: &ExternalConfig| serde_json::to_value(config.shown()).unwrap()["oauth"].clone();
        let written = config("hunter2");
        assert_eq!(seen(&written), json!({"client_id": "cofer", "client_secret": "[masked]"}));
        assert_eq!(seen(&config("${SECRET}"))["client_secret"], "${SECRET}");
        assert_eq!(written.shown().with_masked_from(&written), written);
        assert_eq!(config("${SECRET}").texts(), ["https://host", "cofer", "${SECRET}"]);
    }

    #[test]
    fn a_configuration_is_that_of_its_transport_and_nothing_else() {
        let stdio = json!({"command": "uvx", "args": ["mcp-server-time"]});
        let config = ExternalConfig::read(Transport::Stdio, &stdio).unwrap();
        assert_eq!((config.transport(), config.texts()), (Transport::Stdio, vec!["mcp-server-time"]));
        for (transport, wrong, field) in [
            (Transport::Http, stdio, "command"),
            (Transport::Stdio, json!({"url": "http://host"}), "url"),
            (Transport::Stdio, json!({"command": "x", "comand": "y"}), "comand"),
            (Transport::Sse, json!({}), "url"),
        ] {
            let error = ExternalConfig::read(transport, &wrong).unwrap_err().to_string();
            assert!(error.contains(&format!("field `{field}`")), "{error}");
        }
    }
}
