//! One server of a file, in the form that desktop clients share and each has added to.

use std::collections::BTreeMap;

use cofer_model::name::SERVER_NAME_CHARS_MAX;
use cofer_model::{
    ExternalConfig, OauthConfig, RemoteConfig, ServerName, SessionMode, StdioConfig, Transport, template,
};
use serde_json::{Map, Value};

use super::{DeclaredError, DeclaredServer, Notes, variables};

/// Parts of a name that say that its value should not be written out.
const SECRETIVE: [&str; 6] = ["KEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL"];
/// Known to us and to others, and without a meaning of its own.
const WITHOUT_MEANING: [&str; 4] = ["name", "version", "gallery", "$schema"];

/// All servers below `field`: an object of them by name, or a list of them with their names.
pub(super) fn all(
    field: &str,
    servers: &Value,
    notes: &mut Notes,
) -> Result<Vec<DeclaredServer>, DeclaredError> {
    match servers {
        Value::Object(servers) => {
            let read = |(key, fields): (&String, &Value)| {
                let server = one(&format!("{field}.{key}"), key, fields, notes)?;
                Ok(DeclaredServer { key: Some(key.clone()), ..server })
            };
            servers.iter().map(read).collect()
        }
        Value::Array(servers) => {
            let read = |(at, fields): (usize, &Value)| {
                let field = format!("{field}[{at}]");
                let name = fields.get("name").and_then(Value::as_str);
                let nameless =
                    || DeclaredError::new(format!("{field}.name"), "each server of a list has a `name`");
                one(&field, name.ok_or_else(nameless)?, fields, notes)
            };
            servers.iter().enumerate().map(read).collect()
        }
        _ => Err(DeclaredError::new(field, format!("`{field}` is an object of servers by name"))),
    }
}

fn one(field: &str, key: &str, fields: &Value, notes: &mut Notes) -> Result<DeclaredServer, DeclaredError> {
    let Value::Object(fields) = fields else {
        return Err(DeclaredError::new(field, format!("`{field}` is an object with `command` or `url`")));
    };
    let name = server_name(key, notes);
    let mut reading = Reading { field, name: name.as_str(), fields: fields.clone(), notes };
    let config = reading.config()?;
    let description = reading.text(&["description"])?.unwrap_or_default();
    let disabled = reading.flag("disabled")?.unwrap_or(false);
    let enabled = reading.flag("enabled")?.unwrap_or(true) && !disabled;
    let session = match reading.text(&["session"])? {
        None => SessionMode::Auto,
        Some(text) => text.parse().map_err(|error: cofer_model::UnknownWord| {
            DeclaredError::new(format!("{field}.session"), error.to_string())
        })?,
    };
    let optional = reading.flag("optional")?.unwrap_or(false);
    reading.warn_of_the_rest();
    advise_on_written_out(&name, &config, notes);
    Ok(DeclaredServer { key: None, name, description, config, enabled, session, optional })
}

/// The name, or the nearest that a server may have.
pub(super) fn server_name(text: &str, notes: &mut Notes) -> ServerName {
    if let Ok(name) = ServerName::try_from(text.to_owned()) {
        return name;
    }
    let plain = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.') { c } else { '-' };
    let mapped: String = text.chars().map(plain).collect();
    let trimmed = mapped.trim_matches(['-', '_', '.']);
    let short: String = trimmed.chars().take(SERVER_NAME_CHARS_MAX - "server-".len()).collect();
    let fallback = || ServerName::try_from(format!("server-{short}").trim_end_matches('-').to_owned());
    let name = ServerName::try_from(short.clone()).or_else(|_| fallback());
    let name = name.unwrap_or_else(|_| unreachable!("letters, digits, `-`, `_` and `.` after a letter"));
    let shown: String = text.chars().take(64).collect();
    notes.warn(format!("`{shown}` cannot be the name of a server here; it is called `{name}`"));
    name
}

/// An entry while its fields are taken out of it, one after the other.
struct Reading<'a> {
    field: &'a str,
    name: &'a str,
    fields: Map<String, Value>,
    notes: &'a mut Notes,
}

impl Reading<'_> {
    fn config(&mut self) -> Result<ExternalConfig, DeclaredError> {
        let stated = self.transport()?;
        let by_http_url = self.fields.contains_key("httpUrl");
        let url = self.text(&["url", "serverUrl", "httpUrl", "endpoint"])?;
        let (command, mut leading) = self.command()?;
        match (command, url) {
            (Some(_), Some(_)) => Err(self.refuse("url", "has a `command` and a `url`; keep one of them")),
            (None, None) => Err(self.refuse("command", "has neither a `command` nor a `url`")),
            (Some(command), None) if matches!(stated, None | Some(Transport::Stdio)) => {
                leading.extend(self.texts("args")?);
                let env = self.map(&["env", "environment"])?;
                let cwd = self.text(&["cwd", "workingDirectory"])?;
                Ok(ExternalConfig::Stdio(StdioConfig { command, args: leading, env, cwd }))
            }
            (Some(_), None) => Err(self.refuse("command", "has a `command`, which only `stdio` takes")),
            (None, Some(_)) if stated == Some(Transport::Stdio) => {
                Err(self.refuse("url", "has a `url`, which `stdio` does not take"))
            }
            (None, Some(url)) => {
                let headers = self.map(&["headers", "http_headers"])?;
                let legacy = !by_http_url && url.trim_end_matches('/').ends_with("/sse");
                let transport = stated.unwrap_or(if legacy { Transport::Sse } else { Transport::Http });
                let remote = RemoteConfig { url, headers, oauth: self.oauth()? };
                Ok(match transport {
                    Transport::Sse => ExternalConfig::Sse(remote),
                    _ => ExternalConfig::Http(remote),
                })
            }
        }
    }

    /// Who we are to whoever gives tokens for it.
    fn oauth(&mut self) -> Result<Option<OauthConfig>, DeclaredError> {
        let fields = match self.take(&["oauth"]) {
            None => return Ok(None),
            Some((_, Value::Object(fields))) => fields,
            Some(_) => return Err(self.refuse("oauth", "has an `oauth` that is not an object")),
        };
        let mut inner = Reading { field: self.field, name: self.name, fields, notes: self.notes };
        let oauth = OauthConfig {
            client_id: inner.text(&["client_id", "clientId"])?,
            client_secret: inner.text(&["client_secret", "clientSecret"])?,
            issuer: inner.text(&["issuer"])?,
            scopes: inner.texts("scopes")?,
        };
        inner.warn_of_the_rest();
        Ok(Some(oauth))
    }

    fn transport(&mut self) -> Result<Option<Transport>, DeclaredError> {
        let Some(word) = self.text(&["type", "transport", "transportType"])? else { return Ok(None) };
        match word.to_ascii_lowercase().replace(['-', '_'], "").as_str() {
            "stdio" | "local" => Ok(Some(Transport::Stdio)),
            "sse" => Ok(Some(Transport::Sse)),
            "http" | "streamablehttp" | "remote" => Ok(Some(Transport::Http)),
            _ => Err(self.refuse("type", "has a transport that is none of stdio, sse and http")),
        }
    }

    /// The program, and arguments where both are written as one list.
    fn command(&mut self) -> Result<(Option<String>, Vec<String>), DeclaredError> {
        if self.fields.get("command").is_some_and(Value::is_array) {
            let mut words = self.texts("command")?;
            if words.is_empty() {
                return Err(self.refuse("command", "has an empty `command`"));
            }
            return Ok((Some(words.remove(0)), words));
        }
        Ok((self.text(&["command"])?, Vec::new()))
    }

    fn refuse(&self, field: &str, what: &str) -> DeclaredError {
        DeclaredError::new(format!("{}.{field}", self.field), format!("server `{}` {what}", self.name))
    }

    fn take(&mut self, names: &[&str]) -> Option<(String, Value)> {
        let found =
            names.iter().find(|name| self.fields.get(**name).is_some_and(|value| !value.is_null()))?;
        Some(((*found).to_owned(), self.fields.remove(*found)?))
    }

    fn text(&mut self, names: &[&str]) -> Result<Option<String>, DeclaredError> {
        match self.take(names) {
            None => Ok(None),
            Some((_, Value::String(text))) => Ok(Some(variables::translate(self.name, &text, self.notes))),
            Some((field, _)) => Err(self.refuse(&field, &format!("has a `{field}` that is not a text"))),
        }
    }

    fn flag(&mut self, name: &str) -> Result<Option<bool>, DeclaredError> {
        match self.take(&[name]) {
            None => Ok(None),
            Some((_, Value::Bool(flag))) => Ok(Some(flag)),
            Some(_) => Err(self.refuse(name, &format!("has a `{name}` that is neither true nor false"))),
        }
    }

    fn texts(&mut self, name: &str) -> Result<Vec<String>, DeclaredError> {
        let items = match self.take(&[name]) {
            None => return Ok(Vec::new()),
            Some((_, Value::Array(items))) => items,
            Some(_) => return Err(self.refuse(name, &format!("has `{name}` that are not a list"))),
        };
        items.iter().map(|item| self.word(name, item)).collect()
    }

    fn map(&mut self, names: &[&str]) -> Result<BTreeMap<String, String>, DeclaredError> {
        let (name, entries) = match self.take(names) {
            None => return Ok(BTreeMap::new()),
            Some((name, Value::Object(entries))) => (name, entries),
            Some((name, _)) => {
                return Err(self.refuse(&name, &format!("has `{name}` that are not an object")));
            }
        };
        let given = entries.iter().filter(|(_, value)| !value.is_null());
        given.map(|(key, value)| Ok((key.clone(), self.word(&format!("{name}.{key}"), value)?))).collect()
    }

    /// A text; a number or a flag that somebody forgot to quote is one, too.
    fn word(&mut self, field: &str, value: &Value) -> Result<String, DeclaredError> {
        match value {
            Value::String(text) => Ok(variables::translate(self.name, text, self.notes)),
            Value::Number(_) | Value::Bool(_) => Ok(value.to_string()),
            _ => Err(self.refuse(field, &format!("has something in `{field}` that is not a text"))),
        }
    }

    fn warn_of_the_rest(&mut self) {
        for field in self.fields.keys().filter(|field| !WITHOUT_MEANING.contains(&field.as_str())) {
            let shown: String = field.chars().take(64).collect();
            let warning = match field.as_str() {
                "envFile" => "variables of an `envFile` are not read; set them as secrets".to_owned(),
                "image" => "`image` is for servers that Cofer hosts; add it with `cofer server add --image`"
                    .to_owned(),
                _ => format!("`{shown}` is not known here and does nothing"),
            };
            self.notes.warnings.push(format!("server `{}`: {warning}", self.name));
        }
    }
}

/// Passwords in a file are read by whoever reads the file; in the registry, by whoever reads the database.
pub(super) fn advise_on_written_out(name: &ServerName, config: &ExternalConfig, notes: &mut Notes) {
    let pairs = match config {
        ExternalConfig::Stdio(stdio) => &stdio.env,
        ExternalConfig::Sse(remote) | ExternalConfig::Http(remote) => &remote.headers,
    };
    for (key, value) in pairs {
        let upper = key.to_ascii_uppercase();
        let secretive = upper == "AUTHORIZATION" || SECRETIVE.iter().any(|word| upper.contains(word));
        if secretive && !value.is_empty() && template::names([value.as_str()]).is_empty() {
            let secret = variables::secret_name(key);
            notes.advise(format!(
                "server `{name}`: the value of `{key}` is written out; `cofer secret set {secret}` keeps it safe, and `${{{secret}}}` names it"
            ));
        }
    }
}
