//! What a caller asks for when a server is registered or changed, and the rules it must keep.
//!
//! Every rule has a field, and every refusal names it.

use std::collections::{BTreeMap, BTreeSet};

use cofer_model::{
    Cpu, HostedConfig, NetworkMode, PortMapping, ProviderName, Reference, ResourceLimits, RestartPolicy,
    ServerName, Size,
};
use serde::{Deserialize, Deserializer, Serialize};

use crate::http::ApiError;

const IMAGE_CHARS_MAX: usize = 512;
/// What a process can be handed at its start, arguments and environment together, on any engine.
const TEXT_BYTES_MAX: usize = 128 << 10;
const PORTS_MAX: usize = 64;
const VOLUMES_MAX: usize = 32;
const PATH_CHARS_MAX: usize = 512;
/// Engines refuse less.
const MEMORY_BYTES_MIN: u64 = 8 << 20;
const DISK_BYTES_MIN: u64 = 1 << 20;
/// The init process and a sandbox's own take a few.
const PIDS_MIN: u32 = 16;
const PIDS_MAX: u32 = 32_768;
const CALL_TIMEOUT_MS_MAX: u64 = 24 * 60 * 60 * 1000;
const IN_FLIGHT_MAX: usize = 1024;
const HEALTH_INTERVAL_MS_MIN: u64 = 100;
/// Where a volume would hide what every program needs.
const RESERVED_PATHS: [&str; 4] = ["/", "/proc", "/sys", "/dev"];

/// `POST /api/v1/mcp/hosted`.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Registration {
    pub name: ServerName,
    /// An image that the engine has, or can pull.
    image: String,
    cmd: Option<Vec<String>>,
    /// Default true, or false when `ports` is given.
    stdio_bridge: Option<bool>,
    #[serde(default)]
    ports: Vec<PortMapping>,
    http_path: Option<String>,
    restart_policy: Option<RestartPolicy>,
    #[serde(default)]
    environment: BTreeMap<String, String>,
    /// Absolute paths; each gets a volume that outlives the container.
    #[serde(default)]
    volumes: Vec<String>,
    resource_limits: Option<Limits>,
    provider: Option<ProviderName>,
    network: Option<NetworkMode>,
    /// Id or name; default `default`.
    #[schema(value_type = Option<String>)]
    pub project: Option<Reference>,
    call_timeout_ms: Option<u64>,
    max_in_flight: Option<usize>,
    health_interval_ms: Option<u64>,
    user: Option<String>,
    workdir: Option<String>,
}

/// `PATCH /api/v1/mcp/hosted/:id`. What is not named stays; `null` brings the default back.
#[derive(Debug, Default, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Change {
    image: Option<String>,
    #[serde(deserialize_with = "given")]
    #[schema(value_type = Option<Vec<String>>)]
    cmd: Given<Vec<String>>,
    stdio_bridge: Option<bool>,
    ports: Option<Vec<PortMapping>>,
    http_path: Option<String>,
    restart_policy: Option<RestartPolicy>,
    environment: Option<BTreeMap<String, String>>,
    volumes: Option<Vec<String>>,
    resource_limits: Option<Limits>,
    #[serde(deserialize_with = "given")]
    #[schema(value_type = Option<ProviderName>)]
    provider: Given<ProviderName>,
    network: Option<NetworkMode>,
    call_timeout_ms: Option<u64>,
    max_in_flight: Option<usize>,
    health_interval_ms: Option<u64>,
    #[serde(deserialize_with = "given")]
    #[schema(value_type = Option<String>)]
    user: Given<String>,
    #[serde(deserialize_with = "given")]
    #[schema(value_type = Option<String>)]
    workdir: Given<String>,
}

/// Not named, named as `null`, or named with a value.
type Given<T> = Option<Option<T>>;

fn given<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Given<T>, D::Error> {
    Option::deserialize(deserializer).map(Some)
}

#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    cpu: Option<Cpu>,
    memory: Option<Size>,
    disk: Option<Size>,
    pids: Option<u32>,
}

impl Limits {
    fn over(self, otherwise: ResourceLimits) -> ResourceLimits {
        ResourceLimits {
            cpu: self.cpu.unwrap_or(otherwise.cpu),
            memory: self.memory.unwrap_or(otherwise.memory),
            disk: self.disk.unwrap_or(otherwise.disk),
            pids: self.pids.unwrap_or(otherwise.pids),
        }
    }
}

impl Registration {
    /// The configuration, with everything decided that was left open.
    pub fn decide(self, default_network: NetworkMode) -> Result<HostedConfig, ApiError> {
        let config = HostedConfig {
            image: self.image,
            cmd: self.cmd.filter(|cmd| !cmd.is_empty()),
            stdio_bridge: self.stdio_bridge.unwrap_or(self.ports.is_empty()),
            ports: self.ports,
            http_path: self.http_path.unwrap_or_else(|| "/mcp".to_owned()),
            restart_policy: self.restart_policy.unwrap_or(RestartPolicy::Always),
            environment: self.environment,
            volumes: self.volumes,
            resource_limits: self.resource_limits.unwrap_or_default().over(ResourceLimits::default()),
            provider: self.provider,
            network: self.network.unwrap_or(default_network),
            call_timeout_ms: self.call_timeout_ms.unwrap_or(30_000),
            max_in_flight: self.max_in_flight.unwrap_or(1),
            health_interval_ms: self.health_interval_ms.unwrap_or(30_000),
            user: self.user,
            workdir: self.workdir,
        };
        check(&config)?;
        Ok(config)
    }
}

impl Change {
    /// The configuration after this change.
    pub fn apply(self, old: &HostedConfig) -> Result<HostedConfig, ApiError> {
        let old = old.clone();
        let config = HostedConfig {
            image: self.image.unwrap_or(old.image),
            cmd: self.cmd.unwrap_or(old.cmd).filter(|cmd| !cmd.is_empty()),
            stdio_bridge: self.stdio_bridge.unwrap_or(old.stdio_bridge),
            ports: self.ports.unwrap_or(old.ports),
            http_path: self.http_path.unwrap_or(old.http_path),
            restart_policy: self.restart_policy.unwrap_or(old.restart_policy),
            environment: self.environment.unwrap_or(old.environment),
            volumes: self.volumes.unwrap_or(old.volumes),
            resource_limits: self.resource_limits.unwrap_or_default().over(old.resource_limits),
            provider: self.provider.unwrap_or(old.provider),
            network: self.network.unwrap_or(old.network),
            call_timeout_ms: self.call_timeout_ms.unwrap_or(old.call_timeout_ms),
            max_in_flight: self.max_in_flight.unwrap_or(old.max_in_flight),
            health_interval_ms: self.health_interval_ms.unwrap_or(old.health_interval_ms),
            user: self.user.unwrap_or(old.user),
            workdir: self.workdir.unwrap_or(old.workdir),
        };
        check(&config)?;
        Ok(config)
    }

    /// Whether the choice of the provider is to be made anew.
    pub fn places_anew(&self) -> bool {
        self.provider.is_some()
    }
}

fn check(config: &HostedConfig) -> Result<(), ApiError> {
    check_image(&config.image)?;
    check_command(config)?;
    check_environment(&config.environment)?;
    check_ports(config)?;
    check_volumes(&config.volumes)?;
    check_limits(&config.resource_limits)?;
    check_calls(config)
}

fn check_image(image: &str) -> Result<(), ApiError> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | '/' | ':' | '@');
    let well_formed = (1..=IMAGE_CHARS_MAX).contains(&image.len())
        && image.starts_with(|c: char| c.is_ascii_alphanumeric());
    require(
        well_formed && image.chars().all(allowed),
        "image",
        "an image is a reference such as `registry.example.com/team/server:1.2`",
    )
}

fn check_command(config: &HostedConfig) -> Result<(), ApiError> {
    let cmd = config.cmd.as_deref().unwrap_or_default();
    let fits = cmd.iter().map(String::len).sum::<usize>() <= TEXT_BYTES_MAX;
    require(
        fits && !cmd.iter().any(|word| word.contains('\0')),
        "cmd",
        format!("a command is at most {TEXT_BYTES_MAX} bytes, none of them NUL"),
    )?;
    let word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | ':');
    let user = config.user.as_deref().unwrap_or("root");
    let plain = (1..=64).contains(&user.len()) && user.chars().all(word) && !user.starts_with(['-', ':']);
    require(plain, "user", "a user is a name or number, with `:group` after it if wanted")?;
    let workdir = config.workdir.as_deref().unwrap_or("/");
    require(is_absolute(workdir), "workdir", "a working directory is an absolute path")
}

fn check_environment(environment: &BTreeMap<String, String>) -> Result<(), ApiError> {
    for (name, value) in environment {
        let named = !name.is_empty() && !name.contains(['=', '\0']);
        require(named, "environment", "a variable's name is not empty and has neither `=` nor NUL in it")?;
        let message = format!("the value of `{}` has a NUL in it", crate::http::error::shown(name));
        require(!value.contains('\0'), &format!("environment.{name}"), message)?;
    }
    let bytes: usize = environment.iter().map(|(name, value)| name.len() + value.len()).sum();
    let message = format!("names and values together are at most {TEXT_BYTES_MAX} bytes");
    require(bytes <= TEXT_BYTES_MAX, "environment", message)
}

fn check_ports(config: &HostedConfig) -> Result<(), ApiError> {
    let ports = &config.ports;
    require(ports.len() <= PORTS_MAX, "ports", format!("at most {PORTS_MAX} ports can be published"))?;
    let mut seen = BTreeSet::new();
    let valid = ports.iter().all(|port| port.container_port != 0 && seen.insert(port.container_port));
    require(valid, "ports", "a container port is 1 to 65535, and each is published once")?;
    let mut seen = BTreeSet::new();
    let once = ports.iter().all(|port| port.host_port == 0 || seen.insert(port.host_port));
    require(once, "ports", "two ports cannot be published on the same host port")?;
    require(
        config.stdio_bridge || !ports.is_empty(),
        "ports",
        "a server without `stdio_bridge` is reached over HTTP: give at least one port",
    )?;
    require(
        config.network != NetworkMode::None || ports.is_empty(),
        "network",
        "ports cannot be published without a network; use `isolated` or `egress`",
    )?;
    let visible = |c: char| c.is_ascii_graphic();
    let path = &config.http_path;
    require(
        path.starts_with('/') && path.len() <= PATH_CHARS_MAX && path.chars().all(visible),
        "http_path",
        "a path begins with `/` and has no spaces",
    )
}

fn check_volumes(volumes: &[String]) -> Result<(), ApiError> {
    require(volumes.len() <= VOLUMES_MAX, "volumes", format!("at most {VOLUMES_MAX} volumes can be had"))?;
    let mut seen = BTreeSet::new();
    for volume in volumes {
        require(is_absolute(volume), "volumes", "a volume is an absolute path, such as `/data`")?;
        let trimmed = volume.trim_end_matches('/');
        let reserved =
            RESERVED_PATHS.iter().any(|path| *path == volume || (*path != "/" && *path == trimmed));
        require(!reserved && !trimmed.is_empty(), "volumes", "this path cannot be a volume")?;
        require(seen.insert(trimmed), "volumes", "each path is named once")?;
    }
    Ok(())
}

/// Absolute, with no part that would mean another directory, and nothing that engines read as a separator.
fn is_absolute(path: &str) -> bool {
    let parts = || path.split('/');
    path.starts_with('/')
        && path.len() <= PATH_CHARS_MAX
        && !path.contains([':', '\0', ','])
        && !path.contains(char::is_control)
        && !parts().any(|part| matches!(part, "." | ".."))
        && !path.contains("//")
}

fn check_limits(limits: &ResourceLimits) -> Result<(), ApiError> {
    let least = |bytes| Size::from_bytes(bytes).to_string();
    require(
        limits.memory.bytes() >= MEMORY_BYTES_MIN,
        "resource_limits.memory",
        format!("a server gets at least {} of memory", least(MEMORY_BYTES_MIN)),
    )?;
    require(
        limits.disk.bytes() >= DISK_BYTES_MIN,
        "resource_limits.disk",
        format!("a server gets at least {} of disk", least(DISK_BYTES_MIN)),
    )?;
    require(
        (PIDS_MIN..=PIDS_MAX).contains(&limits.pids),
        "resource_limits.pids",
        format!("a server gets {PIDS_MIN} to {PIDS_MAX} processes"),
    )
}

fn check_calls(config: &HostedConfig) -> Result<(), ApiError> {
    require(
        (1..=CALL_TIMEOUT_MS_MAX).contains(&config.call_timeout_ms),
        "call_timeout_ms",
        format!("a timeout is 1 to {CALL_TIMEOUT_MS_MAX} ms"),
    )?;
    require(
        (1..=IN_FLIGHT_MAX).contains(&config.max_in_flight),
        "max_in_flight",
        format!("1 to {IN_FLIGHT_MAX} calls can be in flight at once"),
    )?;
    require(
        (HEALTH_INTERVAL_MS_MIN..=CALL_TIMEOUT_MS_MAX).contains(&config.health_interval_ms),
        "health_interval_ms",
        format!("the interval is {HEALTH_INTERVAL_MS_MIN} to {CALL_TIMEOUT_MS_MAX} ms"),
    )
}

fn require(kept: bool, field: &str, rule: impl Into<String>) -> Result<(), ApiError> {
    if kept { Ok(()) } else { Err(ApiError::invalid(field, rule)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn decided(body: Value) -> Result<HostedConfig, String> {
        let registration: Registration = serde_json::from_value(body).map_err(|error| error.to_string())?;
        registration
            .decide(NetworkMode::Egress)
            .map_err(|error| error.details["field"].as_str().unwrap_or_default().to_owned())
    }

    /// A good registration with these fields changed.
    #[expect(clippy::needless_pass_by_value, reason = "it reads better where it is called")]
    fn with(changes: Value) -> Result<HostedConfig, String> {
        let mut body = json!({"name": "files", "image": "node:22"});
        body.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        decided(body)
    }

    #[test]
    fn what_is_left_open_is_decided_as_the_guide_says() {
        let config = with(json!({})).unwrap();
        assert!(config.stdio_bridge);
        assert_eq!((config.restart_policy, config.network), (RestartPolicy::Always, NetworkMode::Egress));
        assert_eq!(
            (config.call_timeout_ms, config.max_in_flight, config.http_path.as_str()),
            (30_000, 1, "/mcp")
        );
        let http = with(json!({"ports": [{"container_port": 8080}]})).unwrap();
        assert!(!http.stdio_bridge);
        let limits = with(json!({"resource_limits": {"cpu": "1"}})).unwrap().resource_limits;
        assert_eq!((limits.cpu.to_string(), limits.memory.to_string()), ("1".to_owned(), "512M".to_owned()));
    }

    #[test]
    fn every_broken_rule_names_its_field() {
        for (changes, field) in [
            (json!({"image": ""}), "image"),
            (json!({"image": "node 22"}), "image"),
            (json!({"image": "--privileged"}), "image"),
            (json!({"cmd": ["a\u{0}"]}), "cmd"),
            (json!({"cmd": ["x".repeat(TEXT_BYTES_MAX + 1)]}), "cmd"),
            (json!({"stdio_bridge": false}), "ports"),
            (json!({"ports": [{"container_port": 0}]}), "ports"),
            (json!({"ports": [{"container_port": 1}, {"container_port": 1}]}), "ports"),
            (
                json!({"ports": [{"container_port": 1, "host_port": 9}, {"container_port": 2, "host_port": 9}]}),
                "ports",
            ),
            (json!({"ports": [{"container_port": 1}], "network": "none"}), "network"),
            (json!({"http_path": "mcp"}), "http_path"),
            (json!({"http_path": "/a b"}), "http_path"),
            (json!({"environment": {"": "x"}}), "environment"),
            (json!({"environment": {"A=B": "x"}}), "environment"),
            (json!({"environment": {"A": "x\u{0}"}}), "environment.A"),
            (json!({"environment": {"A": "x".repeat(TEXT_BYTES_MAX)}}), "environment"),
            (json!({"volumes": ["data"]}), "volumes"),
            (json!({"volumes": ["/"]}), "volumes"),
            (json!({"volumes": ["/proc"]}), "volumes"),
            (json!({"volumes": ["/proc/"]}), "volumes"),
            (json!({"volumes": ["/a/../etc"]}), "volumes"),
            (json!({"volumes": ["/a:/etc"]}), "volumes"),
            (json!({"volumes": ["/data", "/data/"]}), "volumes"),
            (json!({"resource_limits": {"memory": "1K"}}), "resource_limits.memory"),
            (json!({"resource_limits": {"disk": "0"}}), "resource_limits.disk"),
            (json!({"resource_limits": {"pids": 0}}), "resource_limits.pids"),
            (json!({"call_timeout_ms": 0}), "call_timeout_ms"),
            (json!({"max_in_flight": 0}), "max_in_flight"),
            (json!({"health_interval_ms": 1}), "health_interval_ms"),
            (json!({"user": "a b"}), "user"),
            (json!({"user": ""}), "user"),
            (json!({"workdir": "app"}), "workdir"),
        ] {
            assert_eq!(with(changes.clone()).map(|_| ()), Err(field.to_owned()), "{changes}");
        }
    }

    #[test]
    fn a_change_keeps_what_it_does_not_name_and_null_brings_the_default_back() {
        let old = with(json!({"cmd": ["a"], "user": "mcp", "resource_limits": {"cpu": "2"}})).unwrap();
        let change: Change =
            serde_json::from_value(json!({"cmd": null, "resource_limits": {"memory": "1G"}})).unwrap();
        assert!(!change.places_anew());
        let new = change.apply(&old).unwrap();
        assert_eq!((new.cmd, new.user.as_deref()), (None, Some("mcp")));
        let limits = (new.resource_limits.cpu.to_string(), new.resource_limits.memory.to_string());
        assert_eq!(limits, ("2".to_owned(), "1G".to_owned()));
        let change: Change = serde_json::from_value(json!({"provider": null})).unwrap();
        assert!(change.places_anew());
    }
}
