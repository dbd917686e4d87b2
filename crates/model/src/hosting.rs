//! Hosted servers: what was asked for, and the words for how it goes.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::words::words;
use crate::{Cpu, Moment, Size};

words! {
    /// One way to run a sandbox.
    ProviderName {
        Gvisor = "gvisor",
        Firecracker = "firecracker",
        E2b = "e2b",
        Docker = "docker",
        Podman = "podman",
        Kubernetes = "kubernetes",
    }
}
words! {
    /// What stands between a sandbox and the machine.
    Isolation {
        /// A kernel of its own, in user space.
        Gvisor = "gvisor",
        /// A kernel of its own, in a virtual machine.
        Microvm = "microvm",
        /// The machine's kernel, with namespaces, seccomp and no capabilities.
        Container = "container",
    }
}
words! {
    /// What is done when a server ends by itself.
    RestartPolicy { Always = "always", OnFailure = "on-failure", Never = "never" }
}
words! {
    /// Whom a sandbox can reach.
    NetworkMode {
        /// Nobody: it has no network at all.
        None = "none",
        /// Nobody outside, and no other server; ports cannot be published.
        Isolated = "isolated",
        /// The world.
        Egress = "egress",
    }
}
words! {
    /// How a hosted server does.
    HostedStatus {
        Creating = "creating",
        Ready = "ready",
        Restarting = "restarting",
        Unresponsive = "unresponsive",
        Stopping = "stopping",
        Stopped = "stopped",
        Error = "error",
    }
}
words! {
    /// How its container does.
    ContainerStatus { Running = "running", Stopped = "stopped", Restarting = "restarting" }
}
words! {
    /// Whether a person wants it to run.
    Wanted { Running = "running", Stopped = "stopped" }
}
words! {
    /// What happened to a server, in its history.
    HostedEventKind {
        Started = "started",
        Adopted = "adopted",
        StartFailed = "start_failed",
        Ready = "ready",
        Crashed = "crashed",
        Exited = "exited",
        CrashLoop = "crash_loop",
        CrashLoopLeft = "crash_loop_left",
        Unresponsive = "unresponsive",
        Recovered = "recovered",
        CallTimedOut = "call_timed_out",
        DiskLimit = "disk_limit",
        Stopped = "stopped",
        Restarted = "restarted",
        Changed = "changed",
        Warning = "warning",
    }
}

/// What one server may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ResourceLimits {
    pub cpu: Cpu,
    pub memory: Size,
    /// Root filesystem and volumes together.
    pub disk: Size,
    pub pids: u32,
}

impl Default for ResourceLimits {
    fn default() -> Self {
        Self {
            cpu: Cpu::from_millis(500),
            memory: Size::from_bytes(512 << 20),
            disk: Size::from_bytes(1 << 30),
            pids: 256,
        }
    }
}

/// A port of a sandbox, published on the machine's loopback. Host port 0 picks a free one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PortMapping {
    #[schema(minimum = 1)]
    pub container_port: u16,
    #[serde(default)]
    pub host_port: u16,
}

/// Everything that was asked for when a server was registered, with what was left open decided.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HostedConfig {
    pub image: String,
    pub cmd: Option<Vec<String>>,
    pub stdio_bridge: bool,
    pub ports: Vec<PortMapping>,
    pub http_path: String,
    pub restart_policy: RestartPolicy,
    /// As written: `${NAME}` stays until the start.
    pub environment: BTreeMap<String, String>,
    pub volumes: Vec<String>,
    pub resource_limits: ResourceLimits,
    /// Asked for; `None` leaves the choice to us.
    pub provider: Option<ProviderName>,
    pub network: NetworkMode,
    pub call_timeout_ms: u64,
    pub max_in_flight: usize,
    pub health_interval_ms: u64,
    pub user: Option<String>,
    pub workdir: Option<String>,
}

/// How a sandbox came to its end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct LastExit {
    pub code: Option<i64>,
    pub signal: Option<i64>,
    pub oom_killed: bool,
    pub at: Moment,
    pub stderr_tail: String,
}

/// One line of a server's history.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct HostedEvent {
    pub at: Moment,
    pub kind: HostedEventKind,
    pub message: String,
    #[schema(value_type = Object)]
    pub details: serde_json::Value,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_those_of_the_guide() {
        let limits = serde_json::to_value(ResourceLimits::default()).unwrap();
        assert_eq!(limits, serde_json::json!({"cpu": "0.5", "memory": "512M", "disk": "1G", "pids": 256}));
        let given: ResourceLimits = serde_json::from_str(r#"{"memory":"1G"}"#).unwrap();
        assert_eq!((given.cpu.to_string().as_str(), given.memory.to_string().as_str()), ("0.5", "1G"));
    }

    #[test]
    fn an_unknown_word_is_answered_with_the_known_ones() {
        let error = "sometimes".parse::<RestartPolicy>().unwrap_err();
        assert_eq!(
            error.to_string(),
            "`sometimes` is not known here; it is one of always, on-failure, never"
        );
    }
}
