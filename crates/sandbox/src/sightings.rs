//! What is written on a sandbox, and how it is read back: labels for its owner, the engine's account for its state.

use std::collections::HashMap;

use bollard::models::PortMap;
use cofer_model::{Moment, ProviderName, Size};
use serde::Deserialize;

use crate::{Endpoint, Exit, ExitCause, Owner, SandboxId, SandboxSpec, SandboxState, Sighting, Stdio};

pub(crate) const INSTANCE: &str = "cofer.instance";
const KIND: &str = "cofer.kind";
const ID: &str = "cofer.id";
const NAME: &str = "cofer.name";
const RUN: &str = "cofer.run";
/// Docker and gVisor share an engine; each finds its own.
pub(crate) const PROVIDER: &str = "cofer.provider";
const DISK_LIMIT: &str = "cofer.disk_limit";
const STDIO: &str = "cofer.stdio";
const LOG_ONLY: &str = "log";
const BRIDGED: &str = "bridged";
const NO_STDIO: &str = "none";
/// All that is ever written on a container; an image that is made of one must not bear it.
pub(crate) const LABELS: [&str; 8] = [INSTANCE, KIND, ID, NAME, RUN, PROVIDER, DISK_LIMIT, STDIO];

/// By convention a shell's, and an engine's: the code of a process that a signal ended is this and the signal's number.
const SIGNAL_BASE: i64 = 128;
const SIGNAL_MAX: i64 = 64;

type Labels = HashMap<String, String>;

/// What is written on whatever belongs to somebody.
pub(crate) fn owner_labels(owner: &Owner) -> Labels {
    let Owner { instance, kind, id, name, run } = owner;
    [
        (INSTANCE, instance.clone()),
        (KIND, kind.clone()),
        (ID, id.to_string()),
        (NAME, name.clone()),
        (RUN, run.to_string()),
    ]
    .into_iter()
    .map(|(name, value)| (name.to_owned(), value))
    .collect()
}

pub(crate) fn labels(spec: &SandboxSpec, provider: ProviderName) -> Labels {
    let stdio = match spec.stdio {
        Stdio::Bridged => BRIDGED,
        Stdio::LogOnly => LOG_ONLY,
        Stdio::None => NO_STDIO,
    };
    let disk_limit = spec.limits.map(|limits| (DISK_LIMIT, limits.disk.bytes().to_string()));
    let about = [(PROVIDER, provider.to_string()), (STDIO, stdio.to_owned())].into_iter().chain(disk_limit);
    let mut labels = owner_labels(&spec.owner);
    labels.extend(about.map(|(name, value)| (name.to_owned(), value)));
    labels
}

pub(crate) fn owner(labels: &Labels) -> Option<Owner> {
    let label = |name: &str| labels.get(name).cloned();
    Some(Owner {
        instance: label(INSTANCE)?,
        kind: label(KIND)?,
        id: label(ID)?.parse().ok()?,
        name: label(NAME)?,
        run: label(RUN)?.parse().ok()?,
    })
}

/// What we read of an engine's account of a container. The client's own type knows fewer states than Podman has.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(crate) struct Inspected {
    id: String,
    /// The id of its image.
    pub image: String,
    state: State,
    pub config: Config,
    pub graph_driver: Option<GraphDriver>,
    pub mounts: Option<Vec<Mount>>,
    network_settings: Option<NetworkSettings>,
    /// Told only when asked for.
    pub size_rw: Option<u64>,
}

/// One of a list of containers.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(crate) struct Listed {
    pub id: String,
    pub mounts: Option<Vec<Mount>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct State {
    status: String,
    #[serde(rename = "OOMKilled")]
    oom_killed: bool,
    exit_code: i64,
    pid: u32,
    started_at: String,
    finished_at: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(crate) struct Config {
    labels: Option<Labels>,
    pub env: Option<Vec<String>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(crate) struct GraphDriver {
    pub data: Option<HashMap<String, String>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(crate) struct Mount {
    #[serde(rename = "Type")]
    pub kind: String,
    pub name: Option<String>,
    pub source: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct NetworkSettings {
    ports: Option<PortMap>,
}

/// A container as the engine shows it, read as a sandbox of ours.
pub(crate) struct Seen {
    pub sighting: Sighting,
    pub stdio: Stdio,
    pub disk_limit: Option<Size>,
    /// The engine said itself that memory was the end of it, or did not.
    pub told_out_of_memory: bool,
    pub paused: bool,
    /// Of its first process, as the engine's machine counts.
    pub pid: u32,
    pub inspected: Inspected,
}

/// `None` for what is none of ours.
pub(crate) fn read(inspected: Inspected) -> Option<Seen> {
    let labels = inspected.config.labels.as_ref()?;
    let state = &inspected.state;
    let sighting = Sighting {
        id: SandboxId(inspected.id.clone()),
        owner: owner(labels)?,
        state: sandbox_state(state),
        endpoints: endpoints(&inspected),
    };
    let stdio = match labels.get(STDIO).map(String::as_str) {
        Some(LOG_ONLY) => Stdio::LogOnly,
        Some(NO_STDIO) => Stdio::None,
        _ => Stdio::Bridged,
    };
    Some(Seen {
        sighting,
        stdio,
        disk_limit: labels.get(DISK_LIMIT).and_then(|limit| limit.parse().ok()).map(Size::from_bytes),
        told_out_of_memory: state.oom_killed && state.exit_code != 0,
        paused: state.status == "paused",
        pid: state.pid,
        inspected,
    })
}

fn sandbox_state(state: &State) -> SandboxState {
    let moment = |text: &str| Moment::parse(text).unwrap_or_else(|_| Moment::now());
    match state.status.as_str() {
        // One that is on its way out has not ended: its exit is not known yet.
        "running" | "paused" | "restarting" | "stopping" => {
            SandboxState::Running { since: moment(&state.started_at) }
        }
        // Podman says `stopped` until it has tidied up, `exited` then.
        "exited" | "stopped" | "dead" | "removing" => SandboxState::Ended(Exit {
            code: Some(state.exit_code),
            signal: Some(state.exit_code - SIGNAL_BASE).filter(|signal| (1..=SIGNAL_MAX).contains(signal)),
            cause: ExitCause::Itself,
            at: moment(&state.finished_at),
        }),
        _ => SandboxState::Made,
    }
}

/// Published ports, in order.
fn endpoints(inspected: &Inspected) -> Vec<Endpoint> {
    let ports = inspected.network_settings.as_ref().and_then(|settings| settings.ports.as_ref());
    let mut endpoints: Vec<_> = ports
        .into_iter()
        .flatten()
        .filter_map(|(key, bindings)| {
            let container_port = key.split('/').next()?.parse().ok()?;
            let host_port = bindings.as_ref()?.first()?.host_port.as_ref()?.parse().ok()?;
            Some(Endpoint { container_port, host_port })
        })
        .collect();
    endpoints.sort_by_key(|endpoint| endpoint.container_port);
    endpoints
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_past_128_is_a_signal_and_others_are_not() {
        let exit = |code| {
            let finished_at = "2026-11-15T20:47:28.123456789Z".into();
            let state = State { status: "exited".into(), exit_code: code, finished_at, ..State::default() };
            let SandboxState::Ended(exit) = sandbox_state(&state) else { panic!("it has ended") };
            assert_eq!(exit.at.to_string(), "2026-11-15T20:47:28.123Z");
            exit.signal
        };
        assert_eq!(
            (exit(0), exit(3), exit(128), exit(143), exit(137), exit(255)),
            (None, None, None, Some(15), Some(9), None)
        );
    }
}
