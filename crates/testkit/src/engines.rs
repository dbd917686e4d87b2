//! What the test bed offers, read from the environment.
//!
//! A test that needs something which is not there says so and returns early; where skipping is not acceptable
//! (`COFER_TEST_REQUIRED=1`, as in CI) it fails instead. So a test begins with
//!
//! ```no_run
//! # use cofer_testkit::engines;
//! # async fn test() {
//! let Some(postgres) = engines::postgres() else { return };
//! let database = postgres.fresh_database().await; // dropped with `database`
//! # }
//! ```

use std::collections::HashMap;
use std::env;
use std::io;
use std::path::PathBuf;
use std::str::FromStr as _;

use bollard::Docker;
use serde::Deserialize;
use serde_json::{Value, json};
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, Executor as _};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use url::Url;
use uuid::Uuid;

use crate::aside;

const REQUIRED: &str = "COFER_TEST_REQUIRED";

/// Something tests need and the bed may offer.
#[derive(Clone, Copy)]
struct Need {
    what: &'static str,
    variable: &'static str,
}

const DOCKER: Need = Need { what: "Docker", variable: "COFER_TEST_DOCKER_HOST" };
const PODMAN: Need = Need { what: "Podman", variable: "COFER_TEST_PODMAN_HOST" };
const POSTGRES: Need = Need { what: "PostgreSQL", variable: "COFER_TEST_POSTGRES_URL" };
const TOOLS: Need = Need { what: "the downloaded tools", variable: "COFER_TEST_TOOLS" };
const BROWSER: Need = Need { what: "Chromium", variable: "COFER_TEST_BROWSER" };

/// Docker, or the reason printed why this test is skipped.
pub fn docker() -> Option<Engine> {
    DOCKER.or_skip().map(|host| Engine { name: DOCKER.what, host })
}

/// Podman, or the reason printed why this test is skipped.
pub fn podman() -> Option<Engine> {
    PODMAN.or_skip().map(|host| Engine { name: PODMAN.what, host })
}

/// `PostgreSQL`, or the reason printed why this test is skipped.
pub fn postgres() -> Option<Postgres> {
    POSTGRES.or_skip().map(|url| Postgres { url })
}

/// The folder with real MCP servers and clients, or the reason printed why this test is skipped.
pub fn tools() -> Option<PathBuf> {
    TOOLS.or_skip().map(PathBuf::from)
}

/// A browser's program, or the reason printed why this test is skipped.
pub fn browser() -> Option<PathBuf> {
    BROWSER.or_skip().map(PathBuf::from)
}

/// Every container engine there is. For clean-up, which has nothing to do where there is none.
pub fn all_present() -> Vec<Engine> {
    let present = |need: Need| Some(Engine { name: need.what, host: need.value()? });
    [DOCKER, PODMAN].into_iter().filter_map(present).collect()
}

impl Need {
    fn value(self) -> Option<String> {
        env::var(self.variable).ok().filter(|value| !value.is_empty())
    }

    fn or_skip(self) -> Option<String> {
        match self.decide(self.value(), env::var(REQUIRED).is_ok_and(|value| value == "1")) {
            Decision::Run(value) => Some(value),
            Decision::Skip(reason) => {
                eprintln!("skipped: {reason}");
                None
            }
            Decision::Fail(reason) => panic!("{reason}, and {REQUIRED}=1 allows no skipping"),
        }
    }

    fn decide(self, value: Option<String>, required: bool) -> Decision {
        let Self { what, variable } = self;
        let reason = format!("this test needs {what} ({variable} is not set): run `make test`");
        match value {
            Some(value) => Decision::Run(value),
            None if required => Decision::Fail(reason),
            None => Decision::Skip(reason),
        }
    }
}

#[derive(Debug, PartialEq)]
enum Decision {
    Run(String),
    Skip(String),
    Fail(String),
}

/// A container engine of the bed.
#[derive(Debug, Clone)]
pub struct Engine {
    name: &'static str,
    host: String,
}

impl Engine {
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// As in `DOCKER_HOST`: `unix:///…` or `tcp://…`.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// A client that speaks the version this engine speaks, which may be years old.
    pub async fn client(&self) -> Result<Docker, bollard::errors::Error> {
        Docker::connect_with_host(&self.host)?.negotiate_version().await
    }

    /// Every container, everybody's, whatever its state.
    pub(crate) async fn all_containers(&self) -> io::Result<Vec<Container>> {
        self.listed(&json!({})).await
    }

    /// Every container with this label (`name=value`), whatever its state.
    pub async fn containers(&self, label: &str) -> io::Result<Vec<Container>> {
        self.listed(&json!({"label": [label]})).await
    }

    /// Asked without the engine's client, which fails the whole list for one word it does not know, and Podman has such.
    async fn listed(&self, filters: &Value) -> io::Result<Vec<Container>> {
        let socket = self.host.strip_prefix("unix://").expect("the engines of the bed listen on sockets");
        let mut stream = UnixStream::connect(socket).await?;
        let filters: String = url::form_urlencoded::byte_serialize(filters.to_string().as_bytes()).collect();
        let path = format!("/containers/json?all=true&filters={filters}");
        stream.write_all(format!("GET {path} HTTP/1.0\r\nHost: engine\r\n\r\n").as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        serde_json::from_str(body).map_err(|error| io::Error::other(format!("{error} in {answer}")))
    }
}

/// A container as an engine lists it.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Container {
    pub id: String,
    #[serde(default)]
    pub names: Vec<String>,
    #[serde(default)]
    pub labels: HashMap<String, String>,
    /// In the engine's own word.
    pub state: String,
    /// For people, as in "Up 6 seconds".
    #[serde(default)]
    pub status: String,
}

impl Container {
    pub fn runs(&self) -> bool {
        self.state == "running"
    }
}

/// The `PostgreSQL` server of the bed.
#[derive(Debug, Clone)]
pub struct Postgres {
    url: String,
}

impl Postgres {
    /// The server's own database. Tests that write ask for `fresh_database` instead.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// An empty database that nobody else uses; it is dropped, with whoever is still connected, with the value.
    pub async fn fresh_database(&self) -> Database {
        let name = format!("cofer_test_{}", Uuid::now_v7().simple());
        execute(&self.url, format!("CREATE DATABASE {name}")).await.expect("a database for this test");
        let mut url = Url::parse(&self.url).expect("the URL of PostgreSQL");
        url.set_path(&name);
        Database { url: url.into(), name, server_url: self.url.clone() }
    }
}

/// A database of one test.
#[derive(Debug)]
pub struct Database {
    url: String,
    name: String,
    server_url: String,
}

impl Database {
    pub fn url(&self) -> &str {
        &self.url
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        let Self { name, server_url, .. } = self;
        let drop = execute(server_url, format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)"));
        if let Err(error) = aside::run(drop) {
            // The server goes with the bed; one database more until then fails no test.
            eprintln!("could not drop the test database {name}: {error}");
        }
    }
}

/// Runs one statement of ours. The names in it are made here, of hexadecimal digits.
async fn execute(url: &str, statement: String) -> sqlx::Result<()> {
    let mut connection: PgConnection = PgConnectOptions::from_str(url)?.connect().await?;
    connection.execute(AssertSqlSafe(statement)).await?;
    connection.close().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_offered_is_used() {
        assert_eq!(DOCKER.decide(Some("unix:///x".into()), true), Decision::Run("unix:///x".into()));
    }

    #[test]
    fn what_is_missing_skips_with_its_reason() {
        let reason = "this test needs Docker (COFER_TEST_DOCKER_HOST is not set): run `make test`";
        assert_eq!(DOCKER.decide(None, false), Decision::Skip(reason.into()));
    }

    #[test]
    fn what_is_missing_fails_where_skipping_is_not_allowed() {
        assert!(
            matches!(POSTGRES.decide(None, true), Decision::Fail(reason) if reason.contains("PostgreSQL"))
        );
    }
}
