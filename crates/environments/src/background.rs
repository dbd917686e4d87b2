//! Commands that go on while others run: each in a container of its own, with the same files, reached by its ports.

use std::time::Duration;

use cofer_model::Moment;
use cofer_sandbox::{Launched, Provider, SandboxId, SandboxState, Workshop};
use serde::Serialize;
use tokio::time::{Instant, sleep};

use crate::container::Role;
use crate::destroy::{Stopped, end};
use crate::environment::Environment;
use crate::error::{EnvError, ErrorKind, Result};
use crate::git::{LogEntry, remember};
use crate::run::{Listener, RunRequest};
use crate::state::{Background, PortEndpoint};
use crate::tail::{Tail, Told};
use crate::{id, secrets};

/// One that dies sooner was no background command.
const SURVIVES: Duration = Duration::from_millis(400);
const LOOK_AGAIN: Duration = Duration::from_millis(50);
const BACKGROUNDS_MAX: usize = 16;
const PORTS_MAX: usize = 32;

/// A background command as it is now.
#[derive(Clone, Debug, Serialize)]
pub struct BackgroundReport {
    #[serde(flatten)]
    pub background: Background,
    pub running: bool,
    pub exit_code: Option<i64>,
}

impl Environment {
    /// Starts it, and waits until its ports are served.
    pub async fn run_in_background(
        &mut self,
        request: &RunRequest,
        ports: &[u16],
        listener: &dyn Listener,
    ) -> Result<(Background, Vec<String>)> {
        if ports.len() > PORTS_MAX || ports.contains(&0) {
            let message = format!("`ports` are up to {PORTS_MAX} numbers from 1 to 65535");
            return Err(EnvError::invalid("arguments", message, "name the ports that the command listens on"));
        }
        let argv = self.argv(request).await?;
        let clear = secrets::read(&self.state.config, self.house.settings(), &*self.house.vault).await?;
        let (background, workshop) = {
            let _lock = self.lock_and_refresh().await?;
            self.refuse_conflicts(ports).await?;
            let spec = crate::run::command(argv, clear.variables);
            let name = format!("bg-{}", id::generate());
            let (workshop, launched) = self.launch_background(&name, &spec, ports).await?;
            let background = Background {
                command: clear.mask.apply(&request.command).into_owned(),
                endpoints: endpoints(&name, ports, &launched),
                container: launched.id.0,
                started_at: Moment::now(),
                id: name,
            };
            self.state.backgrounds.push(background.clone());
            self.save()?;
            (background, workshop)
        };
        let entry = LogEntry::Command {
            command: &background.command,
            outcome: "started in the background",
            stdout: "",
            stderr: "",
        };
        remember(&self.home.log(), &entry).map_err(|error| EnvError::io("log", "the log", &error))?;
        match self.settle(&background, &workshop, ports, listener).await {
            Ok(warnings) => Ok((background, warnings)),
            Err(error) => {
                self.background_stop(&background.id).await?;
                Err(error)
            }
        }
    }

    async fn launch_background(
        &self,
        name: &str,
        command: &cofer_sandbox::CommandSpec,
        ports: &[u16],
    ) -> Result<(Workshop, Launched)> {
        let mut spec = self.workspace(Role::Background(name), ports)?;
        spec.network_name = Some(self.join_network().await?);
        spec.aliases = vec![name.to_owned()];
        let channel = self.home.channel(name);
        let launched = Workshop::launch_main(self.provider(), spec, command, &channel, &self.helpers()).await;
        launched.map_err(|error| EnvError::engine("container", &error))
    }

    /// A port that another one serves is a mistake that is better told than found out.
    async fn refuse_conflicts(&mut self, ports: &[u16]) -> Result<()> {
        let mut running = 0;
        for report in self.background_reports().await? {
            running += usize::from(report.running);
            let clash = report.background.endpoints.iter().find(|endpoint| ports.contains(&endpoint.port));
            if let Some(endpoint) = clash.filter(|_| report.running) {
                let message =
                    format!("port {} is served by {} already: {}", endpoint.port, report.background.id, report.background.command);
                let advice = "use that one, stop it with `environment_background_stop`, or choose another port";
                return Err(EnvError::new(ErrorKind::Conflict, "ports", message, advice));
            }
        }
        if running < BACKGROUNDS_MAX {
            return Ok(());
        }
        let message = format!("{running} background commands run already in this environment");
        let advice = "stop one with `environment_background_stop`";
        Err(EnvError::new(ErrorKind::LimitExceeded, "limit", message, advice))
    }

    /// Waits until it serves its ports, or has lived for a moment if it has none.
    async fn settle(
        &self,
        background: &Background,
        workshop: &Workshop,
        ports: &[u16],
        listener: &dyn Listener,
    ) -> Result<Vec<String>> {
        let began = Instant::now();
        let limit = if ports.is_empty() { SURVIVES } else { self.house.settings().timeout_start };
        let mut told = began;
        loop {
            if let Some(code) = exit_of(&*self.provider(), &background.container).await? {
                return Err(died(background, code, &tail_of(workshop)));
            }
            let unserved = unserved(workshop, ports).await;
            if unserved.is_empty() && (!ports.is_empty() || began.elapsed() >= SURVIVES) {
                return Ok(Vec::new());
            }
            if began.elapsed() >= limit {
                return Ok(unserved.into_iter().map(|port| nobody_listens(port, limit)).collect());
            }
            if told.elapsed() >= Duration::from_secs(1) {
                told = Instant::now();
                listener.still_running(began.elapsed(), tail_of(workshop).last_line());
            }
            sleep(LOOK_AGAIN).await;
        }
    }

    /// All that were started and not stopped, also those that have ended.
    pub async fn background_reports(&self) -> Result<Vec<BackgroundReport>> {
        let mut reports = Vec::new();
        for background in &self.state.backgrounds {
            let seen = self.provider().look(&SandboxId(background.container.clone())).await;
            let seen = seen.map_err(|error| EnvError::engine("containers", &error))?;
            let (running, exit_code) = match seen.map(|seen| seen.state) {
                Some(SandboxState::Running { .. } | SandboxState::Made) => (true, None),
                Some(SandboxState::Ended(exit)) => (false, exit.code),
                None => (false, None),
            };
            reports.push(BackgroundReport { background: background.clone(), running, exit_code });
        }
        Ok(reports)
    }

    fn background(&self, id: &str) -> Result<&Background> {
        self.state.backgrounds.iter().find(|background| background.id == id).ok_or_else(|| {
            let message = format!("background command \"{id}\" not found");
            let advice = "`environment_background_list` shows those there are; sending this again will not help";
            EnvError::new(ErrorKind::NotFound, "find", message, advice)
        })
    }

    /// The end of what it has said so far.
    pub fn background_read(&self, id: &str, lines: usize) -> Result<Told> {
        let background = self.background(id)?;
        let sandbox = SandboxId(background.container.clone());
        let workshop = Workshop::at(self.provider(), sandbox, &self.home.channel(&background.id));
        Ok(tail_of(&workshop).last_lines(lines))
    }

    /// Ends it with all that it started.
    pub async fn background_stop(&mut self, id: &str) -> Result<Option<Stopped>> {
        let _lock = self.lock_and_refresh().await?;
        let background = self.background(id)?.clone();
        let provider = self.provider();
        let failed = |error| EnvError::engine("containers", &error);
        let seen = provider.look(&SandboxId(background.container.clone())).await.map_err(failed)?;
        let stopped = match seen {
            Some(seen) => Some(end(&*provider, seen).await.map_err(failed)?),
            None => None,
        };
        crate::state::remove_folder(&self.home.channel(&background.id))?;
        self.state.backgrounds.retain(|other| other.id != background.id);
        self.save()?;
        Ok(stopped)
    }
}

fn tail_of(workshop: &Workshop) -> Tail {
    let mut tail = Tail::default();
    // What is not there yet has not been said.
    tail.push(&workshop.log().unwrap_or_default());
    tail
}

async fn exit_of(provider: &dyn Provider, container: &str) -> Result<Option<Option<i64>>> {
    let seen = provider.look(&SandboxId(container.to_owned())).await;
    let seen = seen.map_err(|error| EnvError::engine("containers", &error))?;
    Ok(match seen.map(|seen| seen.state) {
        Some(SandboxState::Running { .. } | SandboxState::Made) => None,
        Some(SandboxState::Ended(exit)) => Some(exit.code),
        None => Some(None),
    })
}

fn died(background: &Background, code: Option<i64>, said: &Tail) -> EnvError {
    let code = code.map_or_else(|| "without an exit code".to_owned(), |code| format!("with exit code {code}"));
    let told = said.told().text;
    let message = format!("the command ended at once, {code}: {}\n{told}", background.command);
    let advice = "run it in the foreground to see why, or mend what it says";
    let details = serde_json::json!({"output": told});
    EnvError::new(ErrorKind::PreconditionFailed, "background", message, advice).with_details(details)
}

fn nobody_listens(port: u16, limit: Duration) -> String {
    format!(
        "nothing listens on port {port} after {} s; the command still runs, and `environment_background_read` shows what it says",
        limit.as_secs()
    )
}

/// Which of these ports nobody listens on, as the kernel sees it from inside.
async fn unserved(workshop: &Workshop, ports: &[u16]) -> Vec<u16> {
    if ports.is_empty() {
        return Vec::new();
    }
    let argv = ["cat", "/proc/net/tcp", "/proc/net/tcp6"].map(ToOwned::to_owned).to_vec();
    let Ok(mut running) = workshop.start(&crate::run::command(argv, Vec::new())).await else {
        return ports.to_vec();
    };
    let mut table = Vec::new();
    while let Some(said) = running.next().await {
        match said {
            cofer_sandbox::Said::Stdout(bytes) if table.len() < 1 << 20 => table.extend_from_slice(&bytes),
            cofer_sandbox::Said::Ended(_) => break,
            _ => {}
        }
    }
    let served = listening(&String::from_utf8_lossy(&table));
    ports.iter().copied().filter(|port| !served.contains(port)).collect()
}

/// The ports in the kernel's table that somebody listens on.
fn listening(table: &str) -> Vec<u16> {
    const LISTENS: &str = "0A";
    let rows = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    rows.filter(|row| row.get(3) == Some(&LISTENS))
        .filter_map(|row| u16::from_str_radix(row[1].rsplit(':').next()?, 16).ok())
        .collect()
}

/// How each port is reached.
pub(crate) fn endpoints(name: &str, ports: &[u16], launched: &Launched) -> Vec<PortEndpoint> {
    let endpoint = |port: &u16| PortEndpoint {
        port: *port,
        environment_internal: format!("tcp://{name}:{port}"),
        host_external: launched
            .endpoints
            .iter()
            .find(|endpoint| endpoint.container_port == *port)
            .map(|endpoint| format!("tcp://127.0.0.1:{}", endpoint.host_port)),
    };
    ports.iter().map(endpoint).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_table_tells_who_listens() {
        let table = "  sl  local_address rem_address   st tx_queue\n   0: 00000000:1F90 00000000:0000 0A 00000000\n   1: 0100007F:0050 0100007F:9999 01 0\n";
        assert_eq!(listening(table), [8080]);
    }
}
