//! The way to a running server: found by itself on this machine, or named by `--url` and `COFER_TOKEN`.
//!
//! The admin token that a local server left in its data directory is sent to that server alone, never to an address that
//! somebody named.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use cofer_model::Kind;
use cofer_server::data_dir;
use cofer_server::settings::default_data_dir;
use reqwest::{Method, RequestBuilder};
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::exit::Failure;
use crate::output::with_spinner;

const CONNECT_DEADLINE: Duration = Duration::from_secs(5);
const ANSWER_DEADLINE: Duration = Duration::from_mins(1);

/// Which server to talk to.
#[derive(Debug, Args)]
pub struct Server {
    /// Address of the server [default: the one running on this machine]
    #[arg(long, global = true, env = "COFER_URL", value_name = "URL")]
    url: Option<String>,

    /// Data directory of the server on this machine [default: ~/.local/share/cofer]
    #[arg(long, global = true, env = "COFER_DATA_DIR", value_name = "DIR")]
    data_dir: Option<PathBuf>,
}

#[derive(Debug)]
pub struct Client {
    http: reqwest::Client,
    url: String,
    token: Option<SecretString>,
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
    details: Map<String, Value>,
    trace_id: Option<String>,
}

impl Server {
    pub fn client(&self) -> Result<Client, Failure> {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let given = variable("COFER_TOKEN").map(SecretString::from);
        let http = reqwest::Client::builder().connect_timeout(CONNECT_DEADLINE).timeout(ANSWER_DEADLINE);
        if let Some(url) = &self.url {
            let http = http.build().map_err(Failure::internal)?;
            return Ok(Client { http, url: url.trim_end_matches('/').to_owned(), token: given });
        }
        let dir = self.data_dir.clone().or_else(|| default_data_dir(&variable)).ok_or_else(|| {
            Failure::new(Kind::Invalid, "no HOME to look for a server in; give `--url` or `--data-dir`")
        })?;
        let url = local_url(&dir)?;
        let token = given
            .or_else(|| data_dir::admin_token(&dir))
            .or_else(|| variable("COFER_ADMIN_TOKEN").map(SecretString::from));
        // A proxy for the wide world has no business between two processes of one machine.
        let http = http.no_proxy().build().map_err(Failure::internal)?;
        Ok(Client { http, url, token })
    }
}

fn local_url(dir: &Path) -> Result<String, Failure> {
    let running = data_dir::running(dir).and_then(|running| running.url);
    running.ok_or_else(|| {
        let message = format!(
            "no server is running on {}; start one with `cofer serve`, or name one by `--url`",
            dir.display()
        );
        Failure::new(Kind::Unavailable, message)
    })
}

impl Client {
    pub async fn get(&self, path: &str) -> Result<Value, Failure> {
        self.send(self.request(Method::GET, path)).await
    }

    pub async fn post(&self, path: &str, body: &Value) -> Result<Value, Failure> {
        self.send(self.request(Method::POST, path).json(body)).await
    }

    pub async fn put(&self, path: &str, body: &Value) -> Result<Value, Failure> {
        self.send(self.request(Method::PUT, path).json(body)).await
    }

    pub async fn patch(&self, path: &str, body: &Value) -> Result<Value, Failure> {
        self.send(self.request(Method::PATCH, path).json(body)).await
    }

    pub async fn delete(&self, path: &str) -> Result<Value, Failure> {
        self.send(self.request(Method::DELETE, path)).await
    }

    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let request = self.http.request(method, format!("{}{path}", self.url));
        match &self.token {
            Some(token) => request.bearer_auth(token.expose_secret()),
            None => request,
        }
    }

    async fn send(&self, request: RequestBuilder) -> Result<Value, Failure> {
        let exchange = async {
            let response = request.send().await?;
            let status = response.status();
            Ok((status, response.bytes().await?))
        };
        let (status, body) =
            with_spinner("waiting for the server", exchange).await.map_err(|error| self.no_answer(&error))?;
        if status.is_success() {
            let value = if body.is_empty() { Ok(Value::Null) } else { serde_json::from_slice(&body) };
            return value.map_err(|_| self.stranger());
        }
        match serde_json::from_slice::<Envelope>(&body) {
            Ok(Envelope { error }) => Err(self.refused(error)),
            Err(_) => Err(self.stranger()),
        }
    }

    fn refused(&self, error: EnvelopeError) -> Failure {
        let EnvelopeError { code, mut message, details, trace_id } = error;
        if code == Kind::Unauthorized && self.token.is_none() {
            message = format!("{} wants a token; set COFER_TOKEN", self.url);
        }
        Failure { kind: code, message, details, trace_id }
    }

    fn no_answer(&self, error: &reqwest::Error) -> Failure {
        let kind = if error.is_timeout() { Kind::Timeout } else { Kind::Unavailable };
        let Failure { message, .. } = Failure::caused(kind, error);
        Failure::new(kind, format!("no answer from {}: {message}", self.url))
    }

    fn stranger(&self) -> Failure {
        Failure::new(Kind::Upstream, format!("what answers at {} is not Cofer; check `--url`", self.url))
    }
}

/// A name or id as a part of an address.
pub fn segment(text: &str) -> String {
    use std::fmt::Write;
    text.bytes().fold(String::new(), |mut encoded, byte| {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'~' => encoded.push(byte.into()),
            b'.' if text.chars().any(|c| c != '.') => encoded.push('.'),
            byte => _ = write!(encoded, "%{byte:02X}"),
        }
        encoded
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_leaves_its_place_in_an_address() {
        assert_eq!(segment("my-project_1.2"), "my-project_1.2");
        assert_eq!(segment("a/b?c#d e"), "a%2Fb%3Fc%23d%20e");
        assert_eq!(segment(".."), "%2E%2E");
        assert_eq!(segment("ä"), "%C3%A4");
    }
}
