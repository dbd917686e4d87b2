//! The way to a running server: found by itself on this machine, or named by `--url` and `COFER_TOKEN`.
//!
//! The admin token that a local server left in its data directory is sent to that server alone, never to an address that
//! somebody named. Whether it is that server, its certificate proves: see `trust`.
//!
//! Paths are given as their parts, and [`below`] alone makes an address of them, so that no name that somebody typed
//! can become another place.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use clap::Args;
use cofer_model::Kind;
use cofer_model::project::DEFAULT_PROJECT;
use cofer_server::data_dir;
use cofer_server::settings::{any_path, default_data_dir};
use reqwest::{Method, RequestBuilder, StatusCode, Url};
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::events::Events;
use crate::exit::Failure;
use crate::output::with_spinner;
use crate::trust;

const CONNECT_DEADLINE: Duration = Duration::from_secs(5);
const ANSWER_DEADLINE: Duration = Duration::from_mins(1);
const API: [&str; 2] = ["api", "v1"];

/// Which server to talk to.
#[derive(Debug, Args)]
pub struct Target {
    // Its variable is read by hand: `server add` has a `--url` of its own, which must not be filled from it.
    /// Address of the server [default: the one running on this machine] [env: `COFER_URL`]
    #[arg(long, global = true, value_name = "URL")]
    url: Option<String>,

    /// Authorities (PEM) to trust, in place of the machine's, for the server at `--url`
    #[arg(long, global = true, env = "COFER_CA_CERT", value_name = "FILE", value_parser = any_path())]
    ca_cert: Option<PathBuf>,

    /// Data directory of the server on this machine [default: ~/.local/share/cofer]
    #[arg(long, global = true, env = "COFER_DATA_DIR", value_name = "DIR", value_parser = any_path())]
    data_dir: Option<PathBuf>,
}

#[derive(Debug)]
pub struct Client {
    http: reqwest::Client,
    /// Without a slash at the end.
    url: String,
    token: Option<SecretString>,
    /// When the certificate is not believed.
    advice: &'static str,
}

#[derive(Deserialize)]
struct Envelope {
    error: EnvelopeError,
}

#[derive(Deserialize)]
struct EnvelopeError {
    code: Kind,
    message: String,
    #[serde(default)]
    details: BTreeMap<String, Value>,
    trace_id: Option<String>,
}

impl Target {
    pub fn client(&self) -> Result<Client, Failure> {
        self.open(builder().timeout(ANSWER_DEADLINE))
    }

    /// One whose answers may go on for as long as they like.
    pub fn patient_client(&self) -> Result<Client, Failure> {
        self.open(builder())
    }

    fn open(&self, http: reqwest::ClientBuilder) -> Result<Client, Failure> {
        // An empty one, as scripts like to leave them, says nothing.
        let given = self.url.clone().filter(|url| !url.is_empty());
        match given.or_else(|| variable("COFER_URL")) {
            None => self.local(http),
            Some(url) => self.named(http, &url),
        }
    }

    /// For a command whose `--url` is something else: a server elsewhere is named by its variable alone.
    #[must_use]
    pub fn without_url(self) -> Self {
        Self { url: None, ..self }
    }

    /// What tells another process on this machine, which has none of our variables, where the same server is.
    pub fn as_arguments(&self) -> Result<Vec<String>, Failure> {
        let given = self.url.clone().filter(|url| !url.is_empty());
        if given.or_else(|| variable("COFER_URL")).is_some() {
            let message = "a server at an address wants a token, which a program that is started has no place for; give `--http` too, or leave out `--url` and COFER_URL";
            return Err(Failure::new(Kind::Invalid, message));
        }
        let usual = default_data_dir(&variable);
        let Some(dir) = self.data_dir.clone().filter(|dir| !dir.as_os_str().is_empty()) else {
            return Ok(Vec::new());
        };
        let dir = std::path::absolute(dir).map_err(Failure::internal)?;
        if usual.as_ref() == Some(&dir) {
            return Ok(Vec::new());
        }
        let dir = dir.into_os_string().into_string().map_err(|dir| {
            let message = format!("the data directory {} is not UTF-8; name another", dir.display());
            Failure::new(Kind::Invalid, message)
        })?;
        Ok(vec!["--data-dir".to_owned(), dir])
    }

    fn named(&self, http: reqwest::ClientBuilder, url: &str) -> Result<Client, Failure> {
        let url = parse_url(url)?;
        let http = match self.ca_cert.as_deref().filter(|file| !file.as_os_str().is_empty()) {
            Some(file) => trust::only_authorities(http, file)?,
            None => http,
        };
        let http = http.build().map_err(Failure::internal)?;
        let advice = "name whoever signed its certificate by `--ca-cert`, if you trust them";
        Ok(Client { http, url, token: secret("COFER_TOKEN"), advice })
    }

    fn local(&self, http: reqwest::ClientBuilder) -> Result<Client, Failure> {
        let nowhere = |message: String| Failure::new(Kind::Unavailable, message);
        let given = self.data_dir.clone().filter(|dir| !dir.as_os_str().is_empty());
        let dir = given.or_else(|| default_data_dir(&variable)).ok_or_else(|| {
            nowhere("no HOME to look for a server in; give `--url` or `--data-dir`".to_owned())
        })?;
        let running = data_dir::running(&dir);
        let Some((url, certificate)) = running.and_then(|running| Some((running.url?, running.certificate)))
        else {
            let dir = dir.display();
            return Err(nowhere(format!(
                "no server is running on {dir}; start one with `cofer serve`, or name one by `--url`"
            )));
        };
        let http = match certificate {
            Some(certificate) => trust::only_certificate(http, &certificate)?,
            None => http,
        };
        // A proxy for the wide world has no business between two processes of one machine.
        let http = http.no_proxy().build().map_err(Failure::internal)?;
        // What somebody set just now is likelier to hold than what a server wrote once.
        let token = secret("COFER_TOKEN")
            .or_else(|| secret("COFER_ADMIN_TOKEN"))
            .or_else(|| data_dir::admin_token(&dir));
        let advice = "the server that holds the data directory has another certificate or key";
        Ok(Client { http, url, token, advice })
    }
}

/// An empty value is none.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

fn secret(name: &str) -> Option<SecretString> {
    variable(name).map(SecretString::from)
}

fn builder() -> reqwest::ClientBuilder {
    reqwest::Client::builder().connect_timeout(CONNECT_DEADLINE).tcp_nodelay(true)
}

/// The address of a server, with the path that it may be below. Not repeated when it is wrong: there may be a password
/// in it.
fn parse_url(text: &str) -> Result<String, Failure> {
    let refused = |why: &str| {
        let message = format!(
            "`--url` (or COFER_URL) is not the address of a server: {why}; write it like https://cofer.example.com or http://127.0.0.1:7070"
        );
        Failure::new(Kind::Invalid, message)
    };
    let begins_with =
        |scheme: &str| text.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme));
    if !begins_with("http://") && !begins_with("https://") {
        return Err(refused("it must begin with http:// or https://"));
    }
    let url = Url::parse(text).map_err(|error| refused(&error.to_string()))?;
    if !url.username().is_empty() || url.password().is_some() {
        return Err(refused("there is no place for a user in it, only for a token in COFER_TOKEN"));
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err(refused("it must end before any `?` or `#`"));
    }
    Ok(url.as_str().trim_end_matches('/').to_owned())
}

impl Client {
    /// One for a Cofer that this very process runs.
    pub fn beside(url: &str, token: &SecretString) -> Result<Self, Failure> {
        let http = builder().no_proxy().build().map_err(Failure::internal)?;
        Ok(Self { http, url: url.to_owned(), token: Some(token.clone()), advice: "" })
    }

    /// Says something, and hears what comes of it.
    pub async fn events(&self, path: &[&str], body: &Value) -> Result<Events, Failure> {
        let request = self.request(Method::POST, path)?.json(body).timeout(Duration::MAX);
        let response = request.send().await.map_err(|error| self.no_answer(&error))?;
        if response.status().is_success() {
            return Ok(Events::of(response));
        }
        let body = response.bytes().await.map_err(|error| self.no_answer(&error))?;
        Err(self.failed(&body))
    }

    /// Where clients find a project's MCP endpoint.
    pub fn mcp_address(&self, project: &str) -> Result<Url, Failure> {
        if project == DEFAULT_PROJECT {
            return below(&self.url, &["mcp"]);
        }
        below(&self.url, &["projects", project, "mcp"])
    }

    /// The MCP endpoint of a project, for whoever speaks to it directly.
    pub fn mcp_endpoint(self, project: &str) -> Result<Endpoint, Failure> {
        let url = below(&self.url, &["projects", project, "mcp"])?;
        Ok(Endpoint { http: self.http, url, token: self.token })
    }
}

/// Where a project's MCP endpoint is, and what it takes to be let in.
#[derive(Debug)]
pub struct Endpoint {
    pub http: reqwest::Client,
    pub url: Url,
    pub token: Option<SecretString>,
}

/// The address of what has these parts in its path, names as they were typed.
fn below(base: &str, path: &[&str]) -> Result<Url, Failure> {
    let mut address = base.to_owned();
    for part in path {
        address.push('/');
        push_encoded(&mut address, part)?;
    }
    Url::parse(&address).map_err(Failure::internal)
}

fn push_encoded(address: &mut String, part: &str) -> Result<(), Failure> {
    use std::fmt::Write;
    match part {
        "" => return Err(Failure::new(Kind::Invalid, "a name or id must not be empty")),
        // However they are encoded, these are steps in a path to whoever reads an address, and never names.
        "." | ".." => {
            return Err(Failure::new(
                Kind::NotFound,
                format!("there is nothing with the name or id `{part}`"),
            ));
        }
        _ => {}
    }
    for byte in part.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'~' | b'.' => address.push(byte.into()),
            // Writing to memory does not fail.
            byte => _ = write!(address, "%{byte:02X}"),
        }
    }
    Ok(())
}

/// How long an answer is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// A minute.
    Usual,
    /// As long as the server takes: it has deadlines of its own for what it does, such as fetching an image.
    Endless,
}

/// What a hosted server answered, good or bad.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub outcome: Outcome,
}

/// Its result to the letter, or its error.
#[derive(Debug, Deserialize)]
pub struct Outcome {
    pub result: Box<RawValue>,
    pub error: Value,
}

impl Client {
    /// Below `/api/v1`, as are all that follow.
    pub async fn get(&self, path: &[&str]) -> Result<Value, Failure> {
        self.send(self.request(Method::GET, path)?).await
    }

    pub async fn get_with(&self, path: &[&str], query: &[(&str, &str)]) -> Result<Value, Failure> {
        self.send(self.request(Method::GET, path)?.query(query)).await
    }

    /// The same without a word to the person who waits, for looking now and then.
    pub async fn peek(&self, path: &[&str], query: &[(&str, &str)]) -> Option<Value> {
        let response = self.request(Method::GET, path).ok()?.query(query).send().await.ok()?;
        if response.status().is_success() { response.json().await.ok() } else { None }
    }

    pub async fn change_with(
        &self,
        method: Method,
        path: &[&str],
        query: &[(&str, &str)],
        body: Option<&Value>,
        patience: Patience,
    ) -> Result<Value, Failure> {
        let mut request = self.request(method, path)?.query(query);
        if let Some(body) = body {
            request = request.json(body);
        }
        if patience == Patience::Endless {
            request = request.timeout(Duration::MAX);
        }
        self.send(request).await
    }

    /// For answers whose status belongs to somebody behind the server: whatever is not our envelope is given back.
    pub async fn relay(
        &self,
        path: &[&str],
        query: &[(&str, &str)],
        body: &impl Serialize,
    ) -> Result<Answer, Failure> {
        let request = self.request(Method::POST, path)?.query(query).json(body).timeout(Duration::MAX);
        let (status, bytes) = self.exchange(request).await?;
        if let Ok(Envelope { error }) = serde_json::from_slice(&bytes) {
            return Err(self.refused(error));
        }
        let outcome = serde_json::from_slice(&bytes).map_err(|_| self.stranger())?;
        Ok(Answer { status: status.as_u16(), outcome })
    }

    /// Hands on each server-sent event's data until the stream ends, or nobody wants more.
    pub async fn follow(
        &self,
        path: &[&str],
        query: &[(&str, &str)],
        mut take: impl FnMut(&str) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let request = self.request(Method::GET, path)?.query(query).timeout(Duration::MAX);
        let mut response = request.send().await.map_err(|error| self.no_answer(&error))?;
        if !response.status().is_success() {
            let body = response.bytes().await.map_err(|error| self.no_answer(&error))?;
            return Err(self.failed(&body));
        }
        let mut received = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(|error| self.no_answer(&error))? {
            received.extend_from_slice(&chunk);
            while let Some(end) = received.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = received.drain(..=end).collect();
                if let Some(data) = String::from_utf8_lossy(&line).trim_end().strip_prefix("data: ") {
                    take(data)?;
                }
            }
        }
        Ok(())
    }

    /// The answer to the letter: what servers wrote in it may be more than we can read.
    pub async fn get_raw(&self, path: &[&str], query: &[(&str, &str)]) -> Result<Box<RawValue>, Failure> {
        self.send_raw(self.request(Method::GET, path)?.query(query)).await
    }

    /// The same, however long it takes.
    pub async fn post_raw(&self, path: &[&str], body: &impl Serialize) -> Result<Box<RawValue>, Failure> {
        self.send_raw(self.request(Method::POST, path)?.json(body).timeout(Duration::MAX)).await
    }

    async fn send_raw(&self, request: RequestBuilder) -> Result<Box<RawValue>, Failure> {
        let (status, bytes) = self.exchange(request).await?;
        if !status.is_success() {
            return Err(self.failed(&bytes));
        }
        serde_json::from_slice(&bytes).map_err(|_| self.stranger())
    }

    pub async fn post(&self, path: &[&str], body: &Value) -> Result<Value, Failure> {
        self.send(self.request(Method::POST, path)?.json(body)).await
    }

    pub async fn put(&self, path: &[&str], body: &Value) -> Result<Value, Failure> {
        self.send(self.request(Method::PUT, path)?.json(body)).await
    }

    pub async fn patch(&self, path: &[&str], body: &Value) -> Result<Value, Failure> {
        self.send(self.request(Method::PATCH, path)?.json(body)).await
    }

    pub async fn delete(&self, path: &[&str]) -> Result<Value, Failure> {
        self.send(self.request(Method::DELETE, path)?).await
    }

    /// What anybody may ask.
    pub async fn health(&self) -> Result<Value, Failure> {
        self.send(self.http.get(below(&self.url, &["healthz"])?)).await
    }

    fn request(&self, method: Method, path: &[&str]) -> Result<RequestBuilder, Failure> {
        let request = self.http.request(method, below(&self.url, &[&API[..], path].concat())?);
        Ok(match &self.token {
            Some(token) => request.bearer_auth(token.expose_secret()),
            None => request,
        })
    }

    async fn send(&self, request: RequestBuilder) -> Result<Value, Failure> {
        let (status, body) = self.exchange(request).await?;
        if status.is_success() {
            let value = if body.is_empty() { Ok(Value::Null) } else { serde_json::from_slice(&body) };
            return value.map_err(|_| self.stranger());
        }
        Err(self.failed(&body))
    }

    async fn exchange(&self, request: RequestBuilder) -> Result<(StatusCode, Bytes), Failure> {
        let exchange = async {
            let response = request.send().await?;
            let status = response.status();
            Ok((status, response.bytes().await?))
        };
        with_spinner("waiting for the server", exchange).await.map_err(|error| self.no_answer(&error))
    }

    pub fn failed(&self, body: &[u8]) -> Failure {
        match serde_json::from_slice::<Envelope>(body) {
            Ok(Envelope { error }) => self.refused(error),
            Err(_) => self.stranger(),
        }
    }

    fn refused(&self, error: EnvelopeError) -> Failure {
        let EnvelopeError { code, mut message, details, trace_id } = error;
        if code == Kind::Unauthorized && self.token.is_none() {
            message = format!("{} wants a token; set COFER_TOKEN", self.url);
        }
        Failure { kind: code, message, details, trace_id }
    }

    pub fn no_answer(&self, error: &reqwest::Error) -> Failure {
        let kind = if error.is_timeout() { Kind::Timeout } else { Kind::Unavailable };
        let Failure { message, .. } = Failure::caused(kind, error);
        let message = format!("no answer from {}: {message}", self.url);
        let advised = trust::is_lacking(error).then(|| format!("{message}; {}", self.advice));
        Failure::new(kind, advised.unwrap_or(message))
    }

    fn stranger(&self) -> Failure {
        Failure::new(Kind::Upstream, format!("what answers at {} is not Cofer; check `--url`", self.url))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What goes over the wire, as the library that sends it understands it.
    fn wire(name: &str) -> Result<String, Kind> {
        let address = below("http://host:1/cofer", &["projects", name, "secrets"]);
        address.map(|url| url[url::Position::BeforePath..].to_owned()).map_err(|failure| failure.kind)
    }

    #[test]
    fn names_are_sent_to_the_letter() {
        for (name, sent) in [
            ("my-project_1.2", "my-project_1.2"),
            ("a/b?c#d e", "a%2Fb%3Fc%23d%20e"),
            ("%2e%2e", "%252e%252e"),
            ("...", "..."),
            (".hidden", ".hidden"),
            ("\\", "%5C"),
            ("ä", "%C3%A4"),
        ] {
            assert_eq!(wire(name), Ok(format!("/cofer/projects/{sent}/secrets")));
        }
    }

    #[test]
    fn steps_in_a_path_and_nothing_are_no_names() {
        assert_eq!([".", "..", ""].map(wire), [Err(Kind::NotFound), Err(Kind::NotFound), Err(Kind::Invalid)]);
    }

    #[test]
    fn no_name_leaves_its_place_in_an_address() {
        // Every name of up to four of the characters that mean something in an address, or to those who parse them.
        let alphabet = ['.', '/', '\\', '%', '2', 'e', 'E', '?', '#', '\t', '\n', ' ', ':', '@', ';', '\0'];
        let mut names = vec![String::new()];
        for _ in 0..4 {
            let longer: Vec<_> = names
                .iter()
                .flat_map(|name| alphabet.map(|character| format!("{name}{character}")))
                .collect();
            for name in &longer {
                let Ok(path) = wire(name) else {
                    assert!([".", ".."].contains(&name.as_str()), "{name:?}");
                    continue;
                };
                let name_sent =
                    path.strip_prefix("/cofer/projects/").and_then(|rest| rest.strip_suffix("/secrets"));
                let name_sent = name_sent.unwrap_or_else(|| panic!("{name:?} became {path}"));
                assert!(!name_sent.contains(['/', '?', '#', '\\']), "{name:?} became {path}");
            }
            names = longer;
        }
    }
}
