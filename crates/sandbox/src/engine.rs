//! The container engines of this machine: where they are and what they can do.
//!
//! Docker and Podman answer the same API. An engine is looked for where the settings say, else where the customary
//! variable says, else at the usual sockets, rootless ones included. What it can do is asked, never assumed.

use std::fmt;
use std::io;
use std::time::Duration;

use bollard::{API_DEFAULT_VERSION, ClientVersion, Docker};

use crate::plain;

/// One that hangs is as good as gone; one that answered this may be slow to tell of itself on a busy machine.
const PONG_MAX: Duration = Duration::from_secs(5);
const ANSWER_DEADLINE: Duration = Duration::from_secs(15);
const REQUEST_SECONDS_MAX: u64 = 24 * 60 * 60;
/// The names under which gVisor is registered as a runtime.
const GVISOR_RUNTIMES: [&str; 3] = ["runsc", "gvisor", "io.containerd.runsc.v1"];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EngineKind {
    Docker,
    Podman,
}

impl fmt::Display for EngineKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Docker => "Docker",
            Self::Podman => "Podman",
        })
    }
}

impl EngineKind {
    /// The variable by which its own tools are told where it is.
    fn variable(self) -> &'static str {
        match self {
            Self::Docker => "DOCKER_HOST",
            Self::Podman => "CONTAINER_HOST",
        }
    }

    fn usual_places(self, variable: &impl Fn(&str) -> Option<String>) -> Vec<String> {
        let (system, below_runtime_dir): (&[_], _) = match self {
            Self::Docker => (&["/run/docker.sock", "/var/run/docker.sock"], "docker.sock"),
            Self::Podman => (&["/run/podman/podman.sock"], "podman/podman.sock"),
        };
        let rootless = variable("XDG_RUNTIME_DIR").map(|dir| format!("{dir}/{below_runtime_dir}"));
        let sockets = rootless.into_iter().chain(system.iter().map(ToString::to_string));
        sockets
            .filter(|path| std::fs::exists(path).unwrap_or(false))
            .map(|path| format!("unix://{path}"))
            .collect()
    }
}

/// An engine that answered.
#[derive(Clone, Debug)]
pub struct Engine {
    pub kind: EngineKind,
    pub endpoint: String,
    pub version: String,
    pub runtimes: Vec<String>,
    pub default_runtime: String,
    pub rootless: bool,
    /// Whether what is mounted must be labelled for the container.
    pub selinux: bool,
    pub enforces: Enforces,
    /// Whether a quota for a container's own files is worth asking for.
    pub may_have_quota: bool,
    /// Where it keeps containers and volumes, as it sees it itself.
    pub data_root: String,
}

/// Which limits the engine can hold a container to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Enforces {
    pub memory: bool,
    pub cpu: bool,
    pub pids: bool,
}

impl Enforces {
    /// The limits that it cannot hold a container to.
    pub fn missing(self) -> Vec<&'static str> {
        [("memory", self.memory), ("cpu", self.cpu), ("pids", self.pids)]
            .into_iter()
            .filter_map(|(name, enforced)| (!enforced).then_some(name))
            .collect()
    }
}

impl Engine {
    /// The runtime that runs containers under gVisor, if this engine has one.
    ///
    /// Podman's API has no say in the runtime of a container, so there only the default one counts, which is given by
    /// `podman --runtime runsc system service`; its list names what is known, not what can be asked for.
    pub fn gvisor_runtime(&self) -> Option<&str> {
        let known = |runtime: &&String| GVISOR_RUNTIMES.contains(&runtime.as_str());
        match self.kind {
            EngineKind::Docker => self.runtimes.iter().find(known).map(String::as_str),
            EngineKind::Podman => Some(&self.default_runtime).filter(known).map(String::as_str),
        }
    }

    /// Whether every container runs under gVisor, asked for or not.
    pub fn is_gvisor_by_default(&self) -> bool {
        GVISOR_RUNTIMES.contains(&self.default_runtime.as_str())
    }
}

/// No engine of this kind answered.
#[derive(Debug)]
pub struct NoEngine {
    pub kind: EngineKind,
    /// Each place that was tried, and what happened there.
    pub tried: Vec<(String, String)>,
}

impl std::error::Error for NoEngine {}

impl fmt::Display for NoEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.tried.is_empty() {
            return write!(
                f,
                "{} is not running: {} is not set and none of its usual sockets exists",
                self.kind,
                self.kind.variable()
            );
        }
        let tried: Vec<_> = self.tried.iter().map(|(place, reason)| format!("{place} ({reason})")).collect();
        write!(f, "{} does not answer at {}", self.kind, tried.join(", "))
    }
}

/// Looks for an engine. A place that was named is the only one that counts.
pub async fn find(
    kind: EngineKind,
    setting: Option<&str>,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<Engine, NoEngine> {
    open(kind, setting, variable).await.map(|(engine, _)| engine)
}

/// Looks for an engine as [`find`] does, and hands out the client that found it.
pub(crate) async fn open(
    kind: EngineKind,
    setting: Option<&str>,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<(Engine, Docker), NoEngine> {
    let named =
        setting.map(ToOwned::to_owned).or_else(|| variable(kind.variable()).filter(|host| !host.is_empty()));
    let places = named.map_or_else(|| kind.usual_places(&variable), |place| vec![place]);
    let mut tried = Vec::new();
    for place in places {
        match tokio::time::timeout(ANSWER_DEADLINE, ask(kind, &place)).await {
            Ok(Ok(found)) => return Ok(found),
            Ok(Err(error)) => tried.push((place, error.to_string())),
            Err(_elapsed) => tried.push((place, format!("no answer within {ANSWER_DEADLINE:?}"))),
        }
    }
    Err(NoEngine { kind, tried })
}

async fn ask(kind: EngineKind, endpoint: &str) -> Result<(Engine, Docker), bollard::errors::Error> {
    let client = connect(endpoint, &version(endpoint).await?)?;
    let engine = describe(kind, endpoint, &client).await?;
    Ok((engine, client))
}

/// Engines live for years; they are spoken to in the newest version they know. It is told with a ping, because Podman takes
/// half a second to tell of its version.
async fn version(endpoint: &str) -> io::Result<ClientVersion> {
    let pong = tokio::time::timeout(PONG_MAX, plain::get(endpoint, "/_ping")).await;
    let pong = pong.map_err(|_elapsed| io::Error::other(format!("no answer within {PONG_MAX:?}")))??;
    let told = pong.header("Api-Version").and_then(|version| version.split_once('.'));
    let (major, minor) = told.ok_or_else(|| plain::invalid("whoever answers is no container engine"))?;
    let number = |text: &str| text.parse().map_err(|_| plain::invalid("the engine's version is no version"));
    let theirs = ClientVersion { major_version: number(major)?, minor_version: number(minor)? };
    Ok(if theirs < *API_DEFAULT_VERSION { theirs } else { *API_DEFAULT_VERSION })
}

/// Asks an engine that is connected what it is and what it can do.
pub(crate) async fn describe(
    kind: EngineKind,
    endpoint: &str,
    client: &Docker,
) -> Result<Engine, bollard::errors::Error> {
    let info = client.info().await?;
    let options = info.security_options.unwrap_or_default();
    let mut runtimes: Vec<_> = info.runtimes.unwrap_or_default().into_keys().collect();
    runtimes.sort();
    Ok(Engine {
        kind,
        endpoint: endpoint.to_owned(),
        version: info.server_version.unwrap_or_default(),
        runtimes,
        default_runtime: info.default_runtime.unwrap_or_default(),
        rootless: options.iter().any(|option| option.contains("rootless")),
        selinux: options.iter().any(|option| option.contains("selinux")),
        enforces: Enforces {
            memory: info.memory_limit.unwrap_or_default(),
            cpu: info.cpu_cfs_quota.unwrap_or_default(),
            pids: info.pids_limit.unwrap_or_default(),
        },
        may_have_quota: may_have_quota(
            info.driver.as_deref().unwrap_or_default(),
            &info.driver_status.unwrap_or_default(),
        ),
        data_root: info.docker_root_dir.unwrap_or_default(),
    })
}

/// Layers that lie over each other have quotas on XFS alone. Asking in vain costs a container that is made and undone, and at start
/// twenty servers ask at once.
fn may_have_quota(driver: &str, status: &[Vec<String>]) -> bool {
    let filesystem = status.iter().find_map(|fact| match &fact[..] {
        [name, value] if name == "Backing Filesystem" => Some(value.as_str()),
        _ => None,
    });
    !driver.starts_with("overlay") || filesystem.is_none_or(|filesystem| filesystem == "xfs")
}

/// The client's own deadline is generous, because some requests last as long as a sandbox does; each request brings its own.
fn connect(endpoint: &str, version: &ClientVersion) -> Result<Docker, bollard::errors::Error> {
    let seconds = REQUEST_SECONDS_MAX;
    match endpoint.strip_prefix("unix://") {
        Some(path) => Docker::connect_with_unix(path, seconds, version),
        None => Docker::connect_with_http(endpoint, seconds, version),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quota_is_asked_for_where_there_may_be_one() {
        let on = |filesystem: &str| vec![vec!["Backing Filesystem".to_owned(), filesystem.to_owned()]];
        for (driver, status, worth_it) in [
            ("overlay2", on("extfs"), false),
            ("overlay", on("btrfs"), false),
            ("overlay2", on("xfs"), true),
            ("overlayfs", vec![vec!["driver-type".to_owned(), "snapshotter".to_owned()]], true),
            ("btrfs", on("btrfs"), true),
            ("", Vec::new(), true),
        ] {
            assert_eq!(may_have_quota(driver, &status), worth_it, "{driver} {status:?}");
        }
    }

    #[tokio::test]
    async fn a_place_that_was_named_is_the_only_one_tried_and_the_failure_names_it() {
        let variable = |_: &str| Some("unix:///elsewhere.sock".to_owned());
        let none = find(EngineKind::Docker, Some("unix:///nowhere.sock"), variable).await.unwrap_err();
        assert_eq!(none.tried.len(), 1);
        assert!(none.to_string().starts_with("Docker does not answer at unix:///nowhere.sock ("), "{none}");
        let none = find(EngineKind::Podman, None, variable).await.unwrap_err();
        assert!(none.to_string().contains("unix:///elsewhere.sock"), "{none}");
    }
}
