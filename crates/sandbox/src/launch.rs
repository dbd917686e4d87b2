//! From what was asked for to what the engine is told: the sandbox's shape, with every door closed that can be.
//!
//! Nothing here talks to an engine. No image and no setting can take the hardening away; the little that depends on the engine
//! comes in as [`Latitude`].

use std::collections::HashMap;

use bollard::models::{
    ContainerCreateBody, EndpointSettings, HostConfig, HostConfigLogConfig, Mount, MountType,
    NetworkingConfig, PortBinding, ResourcesUlimits, RestartPolicy, RestartPolicyNameEnum,
};
use cofer_model::NetworkMode;
use secrecy::ExposeSecret as _;

use crate::engine::{Engine, EngineKind};
use crate::{Owner, Rights, SandboxSpec, Stdio};

const LOOPBACK: &str = "127.0.0.1";
/// gVisor's own threads, on the machine's side, count towards the limit of a sandbox that it keeps.
const GVISOR_THREADS: i64 = 128;
const NANO_CPUS_PER_MILLI: i64 = 1_000_000;

/// What this engine was found to take, beyond what every engine does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Latitude {
    /// A quota for the root filesystem.
    pub quota: bool,
    /// A limit for the length of one file.
    pub file_size_limit: bool,
}

/// Names a sandbox, so that an owner can have only one. The end of the id is its random part.
pub(crate) fn container_name(owner: &Owner) -> String {
    let id = owner.id.simple().to_string();
    let plain = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.') { c } else { '-' };
    let name: String = owner.name.chars().map(plain).take(64).collect();
    format!("cofer-{name}-{}", &id[id.len() - 12..])
}

/// What the engine is asked to make.
pub(crate) fn create_body(
    spec: &SandboxSpec,
    engine: &Engine,
    runtime: Option<&str>,
    labels: HashMap<String, String>,
    latitude: Latitude,
) -> ContainerCreateBody {
    let bridged = spec.stdio == Stdio::Bridged;
    let environment =
        spec.environment.iter().map(|(name, value)| format!("{name}={}", value.expose_secret()));
    ContainerCreateBody {
        image: Some(spec.image.clone()),
        entrypoint: spec.entrypoint.clone(),
        cmd: spec.cmd.clone(),
        user: spec.user.clone(),
        working_dir: spec.workdir.clone(),
        env: Some(environment.collect()),
        labels: Some(labels),
        tty: Some(false),
        open_stdin: Some(bridged),
        stdin_once: Some(false),
        attach_stdin: Some(bridged),
        attach_stdout: Some(spec.stdio != Stdio::None),
        attach_stderr: Some(spec.stdio != Stdio::None),
        // The image may ask for another one; a polite end is the same for all.
        stop_signal: Some("SIGTERM".to_owned()),
        exposed_ports: Some(spec.ports.iter().map(|port| port_key(port.container_port)).collect()),
        host_config: Some(host_config(spec, engine, runtime, latitude)),
        networking_config: networking(spec),
        ..Default::default()
    }
}

fn host_config(spec: &SandboxSpec, engine: &Engine, runtime: Option<&str>, latitude: Latitude) -> HostConfig {
    let limits = spec.limits.as_ref();
    let memory = limits.filter(|_| engine.enforces.memory).map(|limits| signed(limits.memory.bytes()));
    let under_gvisor = runtime.is_some() || engine.is_gvisor_by_default();
    let own_threads = if under_gvisor { GVISOR_THREADS } else { 0 };
    let disk = limits.map(|limits| signed(limits.disk.bytes()));
    let dropped = spec.rights == Rights::Dropped;
    let (binds, mounts) = mounts(spec, engine);
    HostConfig {
        runtime: runtime.map(ToOwned::to_owned),
        cap_drop: dropped.then(|| vec!["ALL".to_owned()]),
        security_opt: dropped.then(|| vec!["no-new-privileges:true".to_owned()]),
        privileged: Some(false),
        init: Some(spec.entrypoint.is_none()),
        ipc_mode: Some("private".to_owned()),
        memory,
        // As much as memory alone: no swap.
        memory_swap: memory,
        nano_cpus: limits
            .filter(|_| engine.enforces.cpu)
            .map(|limits| signed(limits.cpu.millis()).saturating_mul(NANO_CPUS_PER_MILLI)),
        pids_limit: limits
            .filter(|_| engine.enforces.pids)
            .map(|limits| i64::from(limits.pids) + own_threads),
        storage_opt: disk
            .filter(|_| latitude.quota)
            .map(|disk| HashMap::from([("size".to_owned(), disk.to_string())])),
        ulimits: disk
            .filter(|_| latitude.file_size_limit)
            .map(|_| vec![ResourcesUlimits { name: Some("fsize".to_owned()), soft: disk, hard: disk }]),
        // The log is ours, as it comes; nothing is kept on the engine's disk.
        log_config: Some(HostConfigLogConfig { typ: Some("none".to_owned()), config: None }),
        restart_policy: Some(RestartPolicy {
            name: Some(RestartPolicyNameEnum::NO),
            maximum_retry_count: None,
        }),
        auto_remove: Some(false),
        network_mode: Some(network_mode(spec, engine.kind)),
        port_bindings: Some(
            spec.ports
                .iter()
                .map(|port| (port_key(port.container_port), Some(vec![binding(port.host_port)])))
                .collect(),
        ),
        binds: Some(binds),
        mounts: Some(mounts),
        ..Default::default()
    }
}

/// A sandbox that may reach nobody, and publishes nothing, has no network. That holds on every engine, whatever its
/// firewall does, and takes none of the few subnets that an engine has to give.
fn network_mode(spec: &SandboxSpec, kind: EngineKind) -> String {
    match (spec.network, kind) {
        (NetworkMode::None | NetworkMode::Isolated, _) => "none".to_owned(),
        (NetworkMode::Egress, kind) => spec.network_name.clone().unwrap_or_else(|| {
            let default = match kind {
                EngineKind::Docker => "default",
                EngineKind::Podman => "bridge",
            };
            default.to_owned()
        }),
    }
}

/// Volumes are mounts in every engine's words. So are binds, but only the older words have a place for the label of `SELinux`; it is the shared one,
/// because a directory may be seen by several sandboxes at once.
fn mounts(spec: &SandboxSpec, engine: &Engine) -> (Vec<String>, Vec<Mount>) {
    let volume = |volume: &crate::VolumeMount| Mount {
        typ: Some(MountType::VOLUME),
        source: Some(volume.name.clone()),
        target: Some(volume.path.clone()),
        ..Default::default()
    };
    let bind = |bind: &crate::BindMount| Mount {
        typ: Some(MountType::BIND),
        source: Some(bind.source.display().to_string()),
        target: Some(bind.target.clone()),
        read_only: Some(bind.read_only),
        ..Default::default()
    };
    let labelled = |bind: &crate::BindMount| {
        let mode = if bind.read_only { "ro,z" } else { "rw,z" };
        format!("{}:{}:{mode}", bind.source.display(), bind.target)
    };
    let volumes = spec.volumes.iter().map(volume);
    if engine.selinux {
        (spec.binds.iter().map(labelled).collect(), volumes.collect())
    } else {
        (Vec::new(), volumes.chain(spec.binds.iter().map(bind)).collect())
    }
}

/// What it is called on its network.
fn networking(spec: &SandboxSpec) -> Option<NetworkingConfig> {
    let network = spec
        .network_name
        .as_ref()
        .filter(|_| spec.network == NetworkMode::Egress && !spec.aliases.is_empty())?;
    let endpoint = EndpointSettings { aliases: Some(spec.aliases.clone()), ..Default::default() };
    Some(NetworkingConfig { endpoints_config: Some(HashMap::from([(network.clone(), endpoint)])) })
}

fn port_key(port: u16) -> String {
    format!("{port}/tcp")
}

/// Port 0 lets the engine pick a free one.
fn binding(host_port: u16) -> PortBinding {
    PortBinding { host_ip: Some(LOOPBACK.to_owned()), host_port: Some(host_port.to_string()) }
}

/// Engines count in signed numbers.
fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// What was asked for and this engine cannot hold a sandbox to.
pub(crate) fn warnings(spec: &SandboxSpec, engine: &Engine) -> Vec<String> {
    let missing = if spec.limits.is_some() { engine.enforces.missing() } else { Vec::new() };
    missing
        .into_iter()
        .map(|limit| format!("{} does not enforce the {limit} limit here", engine.kind))
        .collect()
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    #[test]
    fn a_sandbox_is_named_for_people_and_by_the_random_part_of_its_owner() {
        let id = Uuid::parse_str("0199a000-0000-7000-8000-0123456789ab").unwrap();
        let owner = Owner { instance: "i".into(), kind: "k".into(), id, name: "my server/1".into(), run: 1 };
        assert_eq!(container_name(&owner), "cofer-my-server-1-0123456789ab");
    }
}
