//! `cofer server add`: from an image, from a package that an image is made for, or a server that lives elsewhere.
//!
//! `--image`, `--npx` and `--uvx` are run by Cofer in a sandbox. A command alone, or `--url`, is registered as an external
//! server: see [`super::external`].

use std::collections::BTreeMap;

use clap::Args;
use cofer_model::Kind;
use reqwest::Method;
use serde_json::{Value, json};

use super::super::object;
use super::{Hosted, SERVERS, external, show};
use crate::client::Patience;
use crate::exit::Failure;
use crate::output::with_progress;

#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("source").required(true).multiple(true).args(["image", "npx", "uvx", "url", "command"]))]
pub struct Add {
    /// What it is called, and found by
    pub(super) name: String,
    /// Image to run; pulled if the engine does not have it
    #[arg(long, conflicts_with_all = ["npx", "uvx", "url"])]
    image: Option<String>,
    /// npm package to make an image for, such as `@modelcontextprotocol/server-everything`
    #[arg(long, value_name = "PACKAGE", conflicts_with_all = ["uvx", "url"])]
    npx: Option<String>,
    /// PyPI package to make an image for, such as `mcp-server-time`
    #[arg(long, value_name = "PACKAGE", conflicts_with = "url")]
    uvx: Option<String>,
    /// Address of a server that lives elsewhere (Cofer's own is named by `COFER_URL` here)
    #[arg(long, value_name = "URL", conflicts_with = "command")]
    pub(super) url: Option<String>,
    /// How it speaks: sse or http [default: http, or sse where the address ends so]
    #[arg(long)]
    pub(super) transport: Option<String>,
    /// Header to send to it, as `Name: value`; ${SECRET} in it is one of the project's
    #[arg(long = "header", value_name = "HEADER")]
    pub(super) headers: Vec<String>,
    /// Client id for logins there, where clients cannot register themselves
    #[arg(long, value_name = "ID", requires = "url")]
    pub(super) oauth_client_id: Option<String>,
    /// Its secret, as ${SECRET} of the project
    #[arg(long, value_name = "SECRET", requires = "oauth_client_id")]
    pub(super) oauth_client_secret: Option<String>,
    /// Scope to ask for at logins there in any case
    #[arg(long = "oauth-scope", value_name = "SCOPE", requires = "url")]
    pub(super) oauth_scopes: Vec<String>,
    /// Directory to run the command in
    #[arg(long, value_name = "PATH")]
    pub(super) cwd: Option<String>,
    /// Whether clients share a session with it: auto, shared or `per_client` [default: auto]
    #[arg(long, value_name = "MODE")]
    pub(super) session: Option<String>,
    /// What it is for, in words
    #[arg(long)]
    pub(super) description: Option<String>,
    /// Image that the package's image is made from [default: the server's setting]
    #[arg(long, value_name = "IMAGE", conflicts_with = "image")]
    base: Option<String>,
    /// Environment variable; NAME alone takes its value from here, ${SECRET} in a value from the project's secrets
    #[arg(short, long = "env", value_name = "NAME[=VALUE]")]
    pub(super) environment: Vec<String>,
    /// Path that gets a volume which outlives the container
    #[arg(short, long = "volume", value_name = "PATH")]
    volumes: Vec<String>,
    /// Share of processors, such as 0.5
    #[arg(long)]
    cpu: Option<String>,
    /// Memory, such as 512M
    #[arg(long)]
    memory: Option<String>,
    /// Disk for the container and its volumes together, such as 1G
    #[arg(long)]
    disk: Option<String>,
    /// How many processes it may have
    #[arg(long)]
    pids: Option<u32>,
    /// Port to publish on this machine's loopback; without a host port, a free one is picked
    #[arg(short, long = "port", value_name = "[HOST:]CONTAINER")]
    ports: Vec<String>,
    /// Where an HTTP server answers [default: /mcp]
    #[arg(long, value_name = "PATH")]
    http_path: Option<String>,
    /// Speak MCP over its stdin and stdout [default: true, or false with --port]
    #[arg(long, value_name = "BOOL")]
    stdio_bridge: Option<bool>,
    /// When it ends by itself: always, on-failure or never [default: always]
    #[arg(long, value_name = "POLICY")]
    restart: Option<String>,
    /// gvisor, docker, podman [default: the best there is]
    #[arg(long)]
    provider: Option<String>,
    /// Whom it can reach: none, isolated or egress [default: egress]
    #[arg(long, value_name = "MODE")]
    network: Option<String>,
    /// User to run as [default: the image's]
    #[arg(long)]
    user: Option<String>,
    /// Directory to run in [default: the image's]
    #[arg(long, value_name = "PATH")]
    workdir: Option<String>,
    /// How long a call may take [default: 30000]
    #[arg(long, value_name = "MS")]
    call_timeout_ms: Option<u64>,
    /// Calls it works on at once [default: 1]
    #[arg(long, value_name = "N")]
    max_in_flight: Option<usize>,
    /// How often it is asked whether it lives [default: 30000]
    #[arg(long, value_name = "MS")]
    health_interval_ms: Option<u64>,
    /// Command and arguments: instead of the image's, or run on this machine as a server of its own
    #[arg(last = true, value_name = "COMMAND")]
    pub(super) command: Vec<String>,
}

impl Add {
    pub(super) async fn run(mut self, hosted: &Hosted) -> Result<(), Failure> {
        self.check_form()?;
        if !self.is_hosted() {
            return external::add(self, hosted).await;
        }
        let environment = environment(&self.environment)?;
        let ports = self.ports.iter().map(|port| parse_port(port)).collect::<Result<Vec<_>, _>>()?;
        if self.image.is_none() {
            self.image = Some(self.build(hosted).await?);
        }
        let name = self.name.clone();
        let body = self.body(hosted, &environment, &ports);
        let work = hosted.client.change_with(Method::POST, &SERVERS, &[], Some(&body), Patience::Endless);
        let progress = async || hosted.progress(&name).await;
        let made = with_progress(&format!("starting {name}"), work, progress).await?;
        hosted.format.print(&made, || show::outcome_of(&made))
    }

    fn is_hosted(&self) -> bool {
        self.image.is_some() || self.npx.is_some() || self.uvx.is_some()
    }

    /// Options of one kind of server mean nothing to the other.
    fn check_form(&self) -> Result<(), Failure> {
        let hosted = [
            ("--base", self.base.is_some()),
            ("--volume", !self.volumes.is_empty()),
            ("--cpu", self.cpu.is_some()),
            ("--memory", self.memory.is_some()),
            ("--disk", self.disk.is_some()),
            ("--pids", self.pids.is_some()),
            ("--port", !self.ports.is_empty()),
            ("--http-path", self.http_path.is_some()),
            ("--stdio-bridge", self.stdio_bridge.is_some()),
            ("--restart", self.restart.is_some()),
            ("--provider", self.provider.is_some()),
            ("--network", self.network.is_some()),
            ("--user", self.user.is_some()),
            ("--workdir", self.workdir.is_some()),
            ("--call-timeout-ms", self.call_timeout_ms.is_some()),
            ("--max-in-flight", self.max_in_flight.is_some()),
            ("--health-interval-ms", self.health_interval_ms.is_some()),
        ];
        let external = [
            ("--url", self.url.is_some()),
            ("--transport", self.transport.is_some()),
            ("--header", !self.headers.is_empty()),
            ("--cwd", self.cwd.is_some()),
            ("--session", self.session.is_some()),
            ("--description", self.description.is_some()),
        ];
        let with_url = [
            ("--env", !self.environment.is_empty()),
            ("--cwd", self.cwd.is_some()),
            ("-- COMMAND", !self.command.is_empty()),
        ];
        let with_command =
            [("--header", !self.headers.is_empty()), ("--transport", self.transport.is_some())];
        let (unfit, why): (Vec<_>, _) = match (self.is_hosted(), self.url.is_some()) {
            (true, _) => (
                external.to_vec(),
                "is for servers that live elsewhere; leave out `--image`, `--npx` and `--uvx`, or this",
            ),
            (false, true) => {
                ([&hosted[..], &with_url].concat(), "means nothing to a server at `--url`; leave it out")
            }
            (false, false) => (
                [&hosted[..], &with_command].concat(),
                "means nothing to a command that Cofer runs without a sandbox; leave it out, or host it with `--image`",
            ),
        };
        match unfit.into_iter().find(|(_, given)| *given) {
            Some((flag, _)) => Err(Failure::new(Kind::Invalid, format!("`{flag}` {why}"))),
            None => Ok(()),
        }
    }

    /// The image for the package, made now or found.
    async fn build(&self, hosted: &Hosted) -> Result<String, Failure> {
        let package = self.npx.as_ref().or(self.uvx.as_ref()).cloned().unwrap_or_default();
        let body = object([
            ("npx", json!(self.npx)),
            ("uvx", json!(self.uvx)),
            ("base", json!(self.base)),
            ("provider", json!(self.provider)),
        ]);
        let work =
            hosted.client.change_with(Method::POST, &["mcp", "images"], &[], Some(&body), Patience::Endless);
        let built = with_progress(&format!("making an image for {package}"), work, async || None).await?;
        Ok(built["image"].as_str().unwrap_or_default().to_owned())
    }

    fn body(self, hosted: &Hosted, environment: &BTreeMap<String, String>, ports: &[Value]) -> Value {
        let limits = object([
            ("cpu", json!(self.cpu)),
            ("memory", json!(self.memory)),
            ("disk", json!(self.disk)),
            ("pids", json!(self.pids)),
        ]);
        object([
            ("name", json!(self.name)),
            ("image", json!(self.image)),
            ("cmd", if self.command.is_empty() { Value::Null } else { json!(self.command) }),
            ("stdio_bridge", json!(self.stdio_bridge)),
            ("ports", json!(ports)),
            ("http_path", json!(self.http_path)),
            ("restart_policy", json!(self.restart)),
            ("environment", json!(environment)),
            ("volumes", json!(self.volumes)),
            ("resource_limits", limits),
            ("provider", json!(self.provider)),
            ("network", json!(self.network)),
            ("project", json!(hosted.project)),
            ("call_timeout_ms", json!(self.call_timeout_ms)),
            ("max_in_flight", json!(self.max_in_flight)),
            ("health_interval_ms", json!(self.health_interval_ms)),
            ("user", json!(self.user)),
            ("workdir", json!(self.workdir)),
        ])
    }
}

/// `NAME=VALUE`, or `NAME` for the value it has here.
pub(super) fn environment(given: &[String]) -> Result<BTreeMap<String, String>, Failure> {
    let variable = |text: &String| match text.split_once('=') {
        Some((name, value)) => Ok((name.to_owned(), value.to_owned())),
        None => std::env::var(text).map(|value| (text.clone(), value)).map_err(|_| {
            let message = format!("the variable `{text}` has no value here; write `--env {text}=VALUE`");
            Failure::new(Kind::Invalid, message)
        }),
    };
    given.iter().map(variable).collect()
}

/// `8080`, or `18080:8080` with the host's port first.
fn parse_port(text: &str) -> Result<Value, Failure> {
    let refused = || {
        let message =
            format!("`{text}` is not a port; write `8080`, or `18080:8080` with this machine's port first");
        Failure::new(Kind::Invalid, message)
    };
    let number = |text: &str| text.parse::<u16>().map_err(|_| refused());
    let (host, container) = match text.split_once(':') {
        Some((host, container)) => (number(host)?, number(container)?),
        None => (0, number(text)?),
    };
    Ok(json!({"container_port": container, "host_port": host}))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_read_as_docker_writes_them() {
        assert_eq!(parse_port("8080").unwrap(), json!({"container_port": 8080, "host_port": 0}));
        assert_eq!(parse_port("1:2").unwrap(), json!({"container_port": 2, "host_port": 1}));
        for bad in ["", "x", "1:2:3", "70000", "127.0.0.1:1:2"] {
            assert_eq!(parse_port(bad).unwrap_err().kind, Kind::Invalid, "{bad}");
        }
    }
}
