//! The status object: what callers see of a hosted server. Every field of the guide, and then some.

use cofer_model::{
    ContainerStatus, HostedStatus, Isolation, LastExit, Moment, NetworkMode, ProjectName, ProviderName,
    ResourceLimits, RestartPolicy, ServerId, ServerName,
};
use cofer_sandbox::Endpoint;
use cofer_supervisor::{Truth, UsageNow};
use serde::Serialize;

use super::fleet::Entry;

#[derive(Clone, Debug, Serialize, utoipa::ToSchema)]
pub struct ServerStatus {
    pub workspace_id: ServerId,
    pub name: ServerName,
    pub project: ProjectName,
    pub image: String,
    pub status: HostedStatus,
    /// Why, where the status does not say it all.
    pub reason: Option<String>,
    /// What is being done right now.
    pub progress: Option<String>,
    pub container_status: ContainerStatus,
    pub provider: Option<ProviderName>,
    pub isolation: Option<Isolation>,
    pub stdio_bridge: bool,
    pub bridge_connected: bool,
    pub restart_policy: RestartPolicy,
    /// Restarts after crashes; a manual restart sets it to 0.
    pub restart_count: u64,
    pub last_crash: Option<Moment>,
    pub last_exit: Option<LastExit>,
    pub crash_loop: CrashLoopStatus,
    /// Such as `2h15m30s`; `null` when it does not run.
    pub uptime: Option<String>,
    pub cmd: Option<Vec<String>>,
    pub volumes: Vec<String>,
    pub resource_limits: ResourceLimits,
    pub network: NetworkMode,
    /// Names only.
    pub environment: Vec<String>,
    pub endpoints: Vec<EndpointStatus>,
    pub usage: Option<UsageStatus>,
    #[schema(value_type = Option<Object>)]
    pub server_info: Option<serde_json::Value>,
    pub protocol_version: Option<String>,
    pub tool_count: Option<u64>,
    pub call_timeout_ms: u64,
    pub max_in_flight: usize,
    pub health_interval_ms: u64,
    pub user: Option<String>,
    pub workdir: Option<String>,
    pub created_at: Moment,
    pub last_used_at: Option<Moment>,
}

#[derive(Clone, Debug, Serialize, utoipa::ToSchema)]
pub struct CrashLoopStatus {
    pub active: bool,
    pub step: usize,
    pub next_restart_at: Option<Moment>,
}

#[derive(Clone, Debug, Serialize, utoipa::ToSchema)]
pub struct EndpointStatus {
    pub container_port: u16,
    pub host_port: u16,
    pub url: String,
}

#[derive(Clone, Debug, Serialize, utoipa::ToSchema)]
pub struct UsageStatus {
    /// 100 is one processor.
    pub cpu_percent: f64,
    pub memory_bytes: u64,
    pub memory_limit_bytes: u64,
    pub pids: u64,
    pub disk_bytes: Option<u64>,
}

impl ServerStatus {
    pub(crate) fn of(entry: &Entry, truth: &Truth, usage: Option<UsageNow>, now: Moment) -> Self {
        let blueprint = entry.planner.blueprint();
        let config = blueprint.config.clone();
        let url = |endpoint: &Endpoint| EndpointStatus {
            container_port: endpoint.container_port,
            host_port: endpoint.host_port,
            url: format!("http://127.0.0.1:{}{}", endpoint.host_port, config.http_path),
        };
        Self {
            workspace_id: entry.planner.id,
            name: entry.planner.name.clone(),
            project: entry.project(),
            status: truth.status,
            reason: truth.reason.clone(),
            progress: truth.progress.clone(),
            container_status: truth.container_status,
            provider: truth.provider.or(blueprint.placed).or(config.provider),
            isolation: truth.isolation,
            stdio_bridge: config.stdio_bridge,
            bridge_connected: truth.bridge_connected,
            restart_policy: config.restart_policy,
            restart_count: truth.restart_count,
            last_crash: truth.last_crash,
            last_exit: truth.last_exit.clone(),
            crash_loop: CrashLoopStatus {
                active: truth.crash_loop.active,
                step: truth.crash_loop.step,
                next_restart_at: truth.crash_loop.next_restart_at,
            },
            uptime: truth.running_since.map(|since| uptime(now.seconds_since(since))),
            endpoints: truth.endpoints.iter().map(url).collect(),
            usage: usage.map(UsageStatus::from),
            server_info: truth.facts.server_info.clone(),
            protocol_version: truth.facts.protocol_version.clone(),
            tool_count: truth.facts.tool_count,
            environment: config.environment.into_keys().collect(),
            image: config.image,
            cmd: config.cmd,
            volumes: config.volumes,
            resource_limits: config.resource_limits,
            network: config.network,
            call_timeout_ms: config.call_timeout_ms,
            max_in_flight: config.max_in_flight,
            health_interval_ms: config.health_interval_ms,
            user: config.user,
            workdir: config.workdir,
            created_at: entry.created_at,
            last_used_at: entry.last_used_at(),
        }
    }
}

impl From<UsageNow> for UsageStatus {
    fn from(usage: UsageNow) -> Self {
        Self {
            cpu_percent: usage.cpu_percent,
            memory_bytes: usage.memory_bytes,
            memory_limit_bytes: usage.memory_limit_bytes,
            pids: usage.pids,
            disk_bytes: usage.disk_bytes,
        }
    }
}

/// `2h15m30s`; only the seconds are always there.
fn uptime(seconds: u64) -> String {
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    match (hours, minutes) {
        (0, 0) => format!("{seconds}s"),
        (0, minutes) => format!("{minutes}m{seconds}s"),
        (hours, minutes) => format!("{hours}h{minutes}m{seconds}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uptime_reads_like_the_guide() {
        for (seconds, text) in
            [(0, "0s"), (59, "59s"), (60, "1m0s"), (8130, "2h15m30s"), (360_000, "100h0m0s")]
        {
            assert_eq!(uptime(seconds), text);
        }
    }
}
