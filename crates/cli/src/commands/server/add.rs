//! `cofer server add`: from an image, or from a package that an image is made for.

use std::collections::BTreeMap;

use clap::Args;
use cofer_model::Kind;
use reqwest::Method;
use serde_json::{Value, json};

use super::super::object;
use super::{Hosted, SERVERS, show};
use crate::client::Patience;
use crate::exit::Failure;
use crate::output::with_progress;

#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("source").required(true).args(["image", "npx", "uvx"]))]
pub struct Add {
    /// What it is called, and found by
    name: String,
    /// Image to run; pulled if the engine does not have it
    #[arg(long)]
    image: Option<String>,
    /// npm package to make an image for, such as `@modelcontextprotocol/server-everything`
    #[arg(long, value_name = "PACKAGE")]
    npx: Option<String>,
    /// PyPI package to make an image for, such as `mcp-server-time`
    #[arg(long, value_name = "PACKAGE")]
    uvx: Option<String>,
    /// Image that the package's image is made from [default: the server's setting]
    #[arg(long, value_name = "IMAGE", conflicts_with = "image")]
    base: Option<String>,
    /// Environment variable; NAME alone takes its value from here, ${SECRET} in a value from the project's secrets
    #[arg(short, long = "env", value_name = "NAME[=VALUE]")]
    environment: Vec<String>,
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
    /// Command and arguments, instead of the image's
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

impl Add {
    pub(super) async fn run(mut self, hosted: &Hosted) -> Result<(), Failure> {
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
fn environment(given: &[String]) -> Result<BTreeMap<String, String>, Failure> {
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
