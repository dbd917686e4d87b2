//! What a caller asks for when an external server is registered or changed, and the rules it must keep.
//!
//! Every rule has a field, and every refusal names it. Nothing is resolved and nothing is tried here: whether a program or an
//! address is there shows when somebody connects.

use std::collections::{BTreeMap, BTreeSet};

use cofer_model::{
    ExternalConfig, OauthConfig, RemoteConfig, ServerName, SessionMode, StdioConfig, Transport,
    external::MASKED, template,
};
use cofer_store::{ExternalChange, NewExternalServer};
use serde::Deserialize;
use serde_json::{Map, Value};
use url::Url;

use crate::http::ApiError;
use crate::http::error::shown;
use crate::http::extract::part;

const DESCRIPTION_CHARS_MAX: usize = 4096;
const COMMAND_BYTES_MAX: usize = 4096;
/// What a process can be handed at its start.
const TEXT_BYTES_MAX: usize = 128 << 10;
const URL_BYTES_MAX: usize = 8192;
const HEADERS_MAX: usize = 64;
const HEADER_BYTES_MAX: usize = 32 << 10;
const OAUTH_BYTES_MAX: usize = 2048;
const SCOPES_MAX: usize = 64;
/// What Cofer itself says to a server, in lower case.
const OWN_HEADERS: [&str; 9] = [
    "host",
    "connection",
    "content-length",
    "content-type",
    "transfer-encoding",
    "accept",
    "mcp-session-id",
    "mcp-protocol-version",
    "last-event-id",
];

/// `POST /api/v1/projects/:project/mcp-servers`.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Registration {
    pub name: ServerName,
    #[serde(default)]
    #[schema(max_length = 4096, pattern = r"^[^\x00]*$")]
    description: String,
    transport: Transport,
    /// `{command, args, env, cwd}` for `stdio`, `{url, headers, oauth}` for the others. `${NAME}` in `args`, `env`, `url`,
    /// `headers` and `oauth` is a secret of the project, put in when Cofer connects.
    #[schema(value_type = Object)]
    config: Value,
    /// Default true.
    enabled: Option<bool>,
    /// Default `auto`.
    session: Option<SessionMode>,
}

/// `PATCH /api/v1/projects/:project/mcp-servers/:id`. What is not named stays, in `config` too; `null` in `config` brings the
/// default back.
#[derive(Debug, Default, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Change {
    pub name: Option<ServerName>,
    #[schema(max_length = 4096, pattern = r"^[^\x00]*$")]
    description: Option<String>,
    transport: Option<Transport>,
    #[schema(value_type = Option<Object>)]
    config: Option<Value>,
    enabled: Option<bool>,
    session: Option<SessionMode>,
}

impl Registration {
    pub(crate) fn decide(self, project_id: cofer_model::ProjectId) -> Result<NewExternalServer, ApiError> {
        check_description(&self.description)?;
        let config = read_config(self.transport, self.config)?;
        check_config(&config)?;
        Ok(NewExternalServer {
            project_id,
            name: self.name,
            description: self.description,
            config,
            enabled: self.enabled.unwrap_or(true),
            session: self.session.unwrap_or(SessionMode::Auto),
        })
    }
}

impl Change {
    pub(crate) fn decide(self, old: &ExternalConfig) -> Result<ExternalChange, ApiError> {
        self.description.as_deref().map_or(Ok(()), check_description)?;
        let config = match (self.transport, self.config) {
            (None, None) => None,
            (transport, given) => Some(change_config(old, transport, given)?),
        };
        Ok(ExternalChange {
            name: self.name,
            description: self.description,
            config,
            enabled: self.enabled,
            session: self.session,
        })
    }
}

/// The old configuration with what was given put over it. To a transport of another kind, nothing is carried over.
fn change_config(
    old: &ExternalConfig,
    transport: Option<Transport>,
    given: Option<Value>,
) -> Result<ExternalConfig, ApiError> {
    let transport = transport.unwrap_or(old.transport());
    let same_kind = (transport == Transport::Stdio) == (old.transport() == Transport::Stdio);
    let given = given.unwrap_or_else(|| Value::Object(Map::new()));
    let Value::Object(given) = given else {
        return Err(ApiError::invalid("config", "`config`: expected an object"));
    };
    let mut fields = match serde_json::to_value(old) {
        Ok(Value::Object(fields)) if same_kind => fields,
        _ => Map::new(),
    };
    fields.extend(given);
    fields.retain(|_, value| !value.is_null());
    let config = read_config(transport, Value::Object(fields))?.with_masked_from(old);
    check_config(&config)?;
    Ok(config)
}

fn read_config(transport: Transport, config: Value) -> Result<ExternalConfig, ApiError> {
    Ok(match transport {
        Transport::Stdio => ExternalConfig::Stdio(part("config", config)?),
        Transport::Sse => ExternalConfig::Sse(part("config", config)?),
        Transport::Http => ExternalConfig::Http(part("config", config)?),
    })
}

pub(crate) fn check_config(config: &ExternalConfig) -> Result<(), ApiError> {
    match config {
        ExternalConfig::Stdio(stdio) => check_stdio(stdio),
        ExternalConfig::Sse(remote) | ExternalConfig::Http(remote) => check_remote(remote),
    }
}

fn check_description(text: &str) -> Result<(), ApiError> {
    let fits = text.chars().count() <= DESCRIPTION_CHARS_MAX && !text.contains('\0');
    let rule = format!("a description is at most {DESCRIPTION_CHARS_MAX} characters, none of them NUL");
    require(fits, "description", rule)
}

fn check_stdio(stdio: &StdioConfig) -> Result<(), ApiError> {
    let command = stdio.command.as_str();
    let fits = (1..=COMMAND_BYTES_MAX).contains(&command.trim().len()) && !command.contains(char::is_control);
    require(
        fits,
        "config.command",
        format!("a command is 1 to {COMMAND_BYTES_MAX} bytes, none of them a control character"),
    )?;
    let is_path = command.starts_with(['/', '.', '~']);
    require(
        is_path || !command.contains(char::is_whitespace),
        "config.command",
        "a command is one program; its arguments go to `args`, one each",
    )?;
    require(
        template::names([command]).is_empty(),
        "config.command",
        "secrets are put into `args` and `env`, not into the command",
    )?;
    let bytes: usize = stdio.args.iter().map(String::len).sum();
    require(
        bytes <= TEXT_BYTES_MAX && !stdio.args.iter().any(|arg| arg.contains('\0')),
        "config.args",
        format!("arguments are at most {TEXT_BYTES_MAX} bytes, none of them NUL"),
    )?;
    check_env(&stdio.env)?;
    let cwd = stdio.cwd.as_deref().unwrap_or("/");
    let absolute = cwd.starts_with('/') && cwd.len() <= COMMAND_BYTES_MAX && !cwd.contains('\0');
    require(absolute, "config.cwd", "a working directory is an absolute path")
}

fn check_env(env: &BTreeMap<String, String>) -> Result<(), ApiError> {
    for (name, value) in env {
        let named = !name.is_empty() && !name.contains(['=', '\0']);
        require(named, "config.env", "a variable's name is not empty and has neither `=` nor NUL in it")?;
        let message = format!("the value of `{}` has a NUL in it", shown(name));
        require(!value.contains('\0'), &format!("config.env.{}", shown(name)), message)?;
    }
    let bytes: usize = env.iter().map(|(name, value)| name.len() + value.len()).sum();
    require(
        bytes <= TEXT_BYTES_MAX,
        "config.env",
        format!("names and values together are at most {TEXT_BYTES_MAX} bytes"),
    )
}

fn check_remote(remote: &RemoteConfig) -> Result<(), ApiError> {
    check_url(&remote.url)?;
    let headers = &remote.headers;
    let bytes: usize = headers.iter().map(|(name, value)| name.len() + value.len()).sum();
    require(
        headers.len() <= HEADERS_MAX && bytes <= HEADER_BYTES_MAX,
        "config.headers",
        format!("at most {HEADERS_MAX} headers with {HEADER_BYTES_MAX} bytes in all can be sent"),
    )?;
    let mut seen = BTreeSet::new();
    for (name, value) in headers {
        let field = format!("config.headers.{}", shown(name));
        check_header(&field, name, value)?;
        require(seen.insert(name.to_ascii_lowercase()), &field, "each header is named once, in any case")?;
    }
    remote.oauth.as_ref().map_or(Ok(()), check_oauth)
}

fn check_oauth(oauth: &OauthConfig) -> Result<(), ApiError> {
    let fits = |text: &String| {
        (1..=OAUTH_BYTES_MAX).contains(&text.len()) && !text.contains(|c: char| c.is_control())
    };
    let rule = format!("this is 1 to {OAUTH_BYTES_MAX} bytes, none of them a control character");
    let fields =
        [("client_id", &oauth.client_id), ("client_secret", &oauth.client_secret), ("issuer", &oauth.issuer)];
    for (name, value) in fields {
        require(value.iter().all(fits), &format!("config.oauth.{name}"), rule.clone())?;
    }
    let secret = oauth.client_secret.as_deref().unwrap_or_default();
    require(!shows_mask(secret), "config.oauth.client_secret", MASK_RULE)?;
    require(
        oauth.client_id.is_some() || (oauth.client_secret.is_none() && oauth.issuer.is_none()),
        "config.oauth.client_id",
        "a client secret and an issuer belong to a client id",
    )?;
    // RFC 6749, 3.3.
    let is_scope = |scope: &String| {
        !scope.is_empty()
            && scope.len() <= OAUTH_BYTES_MAX
            && scope.bytes().all(|b| b.is_ascii_graphic() && b != b'"' && b != b'\\')
    };
    require(
        oauth.scopes.len() <= SCOPES_MAX && oauth.scopes.iter().all(is_scope),
        "config.oauth.scopes",
        format!("these are at most {SCOPES_MAX} words"),
    )
}

/// With a digit in the place of each secret, which is fine as a host, as a port and anywhere else.
fn check_url(url: &str) -> Result<(), ApiError> {
    const RULE: &str =
        "an address begins with http:// or https:// and names a host; `${NAME}` in it is a secret";
    let field = "config.url";
    require(url.len() <= URL_BYTES_MAX, field, format!("an address is at most {URL_BYTES_MAX} bytes"))?;
    require(!url.contains(|c: char| c.is_control() || c == ' '), field, RULE)?;
    let filled = template::with_each_as(url, "1");
    // The scheme may be part of the secret; then it shows when somebody connects.
    let filled =
        if url.starts_with("${") && filled.starts_with('1') { format!("http://{filled}") } else { filled };
    let parsed = Url::parse(&filled).map_err(|_| ApiError::invalid(field, RULE))?;
    let is_web = matches!(parsed.scheme(), "http" | "https") && parsed.has_host();
    require(is_web, field, RULE)?;
    require(parsed.fragment().is_none(), field, "what follows a `#` is not sent to servers; leave it out")?;
    require(!shows_mask(parsed.password().unwrap_or_default()), field, MASK_RULE)
}

const MASK_RULE: &str =
    "this is how a password is shown, not the password; write it, or better name a secret like `${NAME}`";

fn check_header(field: &str, name: &str, value: &str) -> Result<(), ApiError> {
    let token = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
    require(!name.is_empty() && name.chars().all(token), field, "this is not the name of a header")?;
    require(
        !OWN_HEADERS.contains(&name.to_ascii_lowercase().as_str()),
        field,
        format!("`{}` is a header that Cofer sets itself; leave it out", shown(name)),
    )?;
    let printable = |c: char| c == '\t' || !c.is_control();
    require(
        value.chars().all(printable),
        field,
        "a header's value has no line ends or other control characters",
    )?;
    require(!shows_mask(value), field, MASK_RULE)
}

fn shows_mask(text: &str) -> bool {
    // An address has it with its brackets encoded.
    text.ends_with(MASKED) || text == "%5Bmasked%5D"
}

fn require(kept: bool, field: &str, rule: impl Into<String>) -> Result<(), ApiError> {
    if kept { Ok(()) } else { Err(ApiError::invalid(field, rule)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn refused(error: &ApiError) -> String {
        error.details["field"].as_str().unwrap_or_default().to_owned()
    }

    fn decided(transport: &str, config: &Value) -> Result<ExternalConfig, String> {
        let body = json!({"name": "x", "transport": transport, "config": config});
        let registration: Registration = serde_json::from_value(body).map_err(|error| error.to_string())?;
        let decided = registration.decide(cofer_model::ProjectId::generate());
        decided.map(|new| new.config).map_err(|error| refused(&error))
    }

    #[test]
    fn configurations_that_people_write_are_taken() {
        for (transport, config) in [
            ("stdio", json!({"command": "npx", "args": ["-y", "x"], "env": {"K": "${S}"}, "cwd": "/srv"})),
            ("stdio", json!({"command": "/opt/my tools/server"})),
            (
                "http",
                json!({"url": "https://host:8443/mcp?key=${KEY}", "headers": {"Authorization": "Bearer ${T}"}}),
            ),
            ("sse", json!({"url": "http://${HOST}:${PORT}/sse"})),
            ("http", json!({"url": "${URL}"})),
            ("http", json!({"url": "https://user:${PASSWORD}@[::1]/mcp"})),
        ] {
            let outcome = decided(transport, &config);
            assert!(outcome.is_ok(), "{config} {outcome:?}");
        }
    }

    #[test]
    fn every_refusal_names_its_field() {
        let long = "x".repeat(200_000);
        for (transport, config, field) in [
            ("stdio", json!({}), "config.command"),
            ("stdio", json!({"command": ""}), "config.command"),
            ("stdio", json!({"command": "npx -y server"}), "config.command"),
            ("stdio", json!({"command": "${CMD}"}), "config.command"),
            ("stdio", json!({"command": "a\0b"}), "config.command"),
            ("stdio", json!({"command": "x", "url": "y"}), "config.url"),
            ("stdio", json!({"command": "x", "args": "y"}), "config.args"),
            ("stdio", json!({"command": "x", "args": [7]}), "config.args[0]"),
            ("stdio", json!({"command": "x", "args": [long]}), "config.args"),
            ("stdio", json!({"command": "x", "env": {"A": 1}}), "config.env.A"),
            ("stdio", json!({"command": "x", "env": {"A=B": "1"}}), "config.env"),
            ("stdio", json!({"command": "x", "env": {"A": "\0"}}), "config.env.A"),
            ("stdio", json!({"command": "x", "env": {"A": long}}), "config.env"),
            ("stdio", json!({"command": "x", "cwd": "relative"}), "config.cwd"),
            ("http", json!({"command": "x"}), "config.command"),
            ("http", json!({"url": ""}), "config.url"),
            ("http", json!({"url": "host/mcp"}), "config.url"),
            ("http", json!({"url": "file:///etc/passwd"}), "config.url"),
            ("http", json!({"url": "javascript:alert(1)"}), "config.url"),
            ("http", json!({"url": "http://"}), "config.url"),
            ("http", json!({"url": "http://host/ a"}), "config.url"),
            ("http", json!({"url": "http://host\r\nX: y"}), "config.url"),
            ("http", json!({"url": "http://host/#here"}), "config.url"),
            ("http", json!({"url": "https://u:[masked]@host"}), "config.url"),
            ("http", json!({"url": format!("http://host/{long}")}), "config.url"),
            ("http", json!({"url": "http://h", "headers": {"A b": "1"}}), "config.headers.A b"),
            ("http", json!({"url": "http://h", "headers": {"A": "1\r\nB: 2"}}), "config.headers.A"),
            ("http", json!({"url": "http://h", "headers": {"Host": "x"}}), "config.headers.Host"),
            (
                "http",
                json!({"url": "http://h", "headers": {"Mcp-Session-Id": "x"}}),
                "config.headers.Mcp-Session-Id",
            ),
            ("http", json!({"url": "http://h", "headers": {"A": "1", "a": "2"}}), "config.headers.a"),
            (
                "http",
                json!({"url": "http://h", "headers": {"Authorization": "Bearer [masked]"}}),
                "config.headers.Authorization",
            ),
        ] {
            assert_eq!(decided(transport, &config).map(|_| ()), Err(field.to_owned()), "{config}");
        }
    }

    fn changed(old: &ExternalConfig, change: Value) -> Result<ExternalConfig, String> {
        let change: Change = serde_json::from_value(change).unwrap();
        let decided = change.decide(old).map_err(|error| refused(&error))?;
        Ok(decided.config.unwrap_or_else(|| old.clone()))
    }

    #[test]
    fn a_change_keeps_what_it_does_not_name() {
        let old = decided("stdio", &json!({"command": "npx", "args": ["x"], "env": {"A": "1"}, "cwd": "/"}))
            .unwrap();
        assert_eq!(changed(&old, json!({"enabled": false})).unwrap(), old);
        let new = changed(&old, json!({"config": {"args": ["y"], "cwd": null}})).unwrap();
        let expected =
            decided("stdio", &json!({"command": "npx", "args": ["y"], "env": {"A": "1"}})).unwrap();
        assert_eq!(new, expected);
        assert_eq!(changed(&old, json!({"transport": "http"})), Err("config.url".to_owned()));
        assert_eq!(changed(&old, json!({"config": {"command": null}})), Err("config.command".to_owned()));
        let remote = changed(&old, json!({"transport": "sse", "config": {"url": "http://h"}})).unwrap();
        assert_eq!(changed(&remote, json!({"transport": "http"})).unwrap().transport(), Transport::Http);
    }

    #[test]
    fn what_is_sent_back_as_it_was_shown_stays_as_it_is() {
        let config = json!({"url": "https://u:hunter2@host/mcp", "headers": {"Authorization": "Bearer hunter2", "X": "1"}});
        let old = decided("http", &config).unwrap();
        let mut seen = serde_json::to_value(old.shown()).unwrap();
        assert_eq!(changed(&old, json!({"config": seen})).unwrap(), old);
        seen["headers"]["Authorization"] = json!("Basic [masked]");
        assert_eq!(changed(&old, json!({"config": seen})), Err("config.headers.Authorization".to_owned()));
    }
}
