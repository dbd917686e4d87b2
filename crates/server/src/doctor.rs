//! Has this machine what Cofer needs? Each finding says what is so and, where that is not well, what to do.
//!
//! Nothing is changed by looking: no directory, database or key is made.

use cofer_model::Kind;
use cofer_sandbox::engine::{self, Engine, EngineKind, NoEngine};
use cofer_store::{Inspection, Store};
use serde::Serialize;

use crate::data_dir;
use crate::http::error::chain;
use crate::keyring::{KEY_FILE, KeyError, read_key};
use crate::settings::Settings;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    Ok,
    Warn,
    Fail,
}

#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    pub check: &'static str,
    pub verdict: Verdict,
    pub message: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advice: Option<String>,
}

fn ok(check: &'static str, message: impl Into<String>) -> Finding {
    Finding { check, verdict: Verdict::Ok, message: message.into(), advice: None }
}

fn warn(check: &'static str, message: impl Into<String>, advice: impl Into<String>) -> Finding {
    Finding { check, verdict: Verdict::Warn, message: message.into(), advice: Some(advice.into()) }
}

fn fail(check: &'static str, message: impl Into<String>, advice: impl Into<String>) -> Finding {
    Finding { check, verdict: Verdict::Fail, message: message.into(), advice: Some(advice.into()) }
}

/// Looks at everything, in the order in which a start would need it.
pub async fn examine(settings: &Settings, variable: impl Fn(&str) -> Option<String>) -> Vec<Finding> {
    let docker = engine::find(EngineKind::Docker, settings.docker_host.as_deref(), &variable).await;
    let podman = engine::find(EngineKind::Podman, settings.podman_host.as_deref(), &variable).await;
    let inspection = Store::inspect(&settings.database).await;
    let sealed_with = match &inspection {
        Ok(Inspection::Made { master_key }) => master_key.clone(),
        _ => None,
    };
    let mut findings = vec![data_directory(settings), port(settings).await];
    findings.push(match inspection {
        Ok(Inspection::Made { .. }) => ok("database", format!("{} answers", settings.database)),
        Ok(Inspection::NotMade) => {
            ok("database", format!("{} has no tables yet; the first start makes them", settings.database))
        }
        Err(error) => fail("database", chain(&error), "correct `--database`, or start the database server"),
    });
    findings.push(master_key(settings, sealed_with.as_deref()));
    findings.push(git().await);
    findings.push(found_engine(
        "docker",
        &docker,
        "install and start Docker (Debian: `apt-get install docker.io`), or set DOCKER_HOST",
    ));
    findings.push(found_engine(
        "podman",
        &podman,
        "install Podman and run `podman system service --time=0`, or set CONTAINER_HOST",
    ));
    findings.push(gvisor(&docker, &podman));
    findings.push(limits(&docker, &podman));
    findings
}

fn data_directory(settings: &Settings) -> Finding {
    const CHECK: &str = "data directory";
    let path = &settings.data_dir;
    let shown = path.display();
    let nearest = path.ancestors().find(|dir| dir.exists());
    match nearest {
        Some(dir) if rustix::fs::access(dir, rustix::fs::Access::WRITE_OK).is_err() => fail(
            CHECK,
            format!("{shown} is not writable"),
            "make it writable for this user, or give another by `--data-dir`",
        ),
        Some(dir) if dir == path && !dir.is_dir() => {
            fail(CHECK, format!("{shown} is not a directory"), "give another by `--data-dir`")
        }
        Some(dir) if dir == path => ok(CHECK, format!("{shown} is writable")),
        _ => ok(CHECK, format!("{shown} is made at first start")),
    }
}

async fn port(settings: &Settings) -> Finding {
    const CHECK: &str = "port";
    if let Some(running) = data_dir::running(&settings.data_dir) {
        let url = running.url.unwrap_or_else(|| "an address not yet known".to_owned());
        return ok(CHECK, format!("cofer is running at {url} (process {})", running.pid));
    }
    match tokio::net::TcpListener::bind(&settings.listen).await {
        Ok(_) => ok(CHECK, format!("{} is free", settings.listen)),
        Err(error) => fail(
            CHECK,
            format!("cannot listen on {}: {error}", settings.listen),
            "stop the program that uses it, or give another address by `--listen`",
        ),
    }
}

/// Whether the key at hand is the one that the database is sealed with.
fn master_key(settings: &Settings, sealed_with: Option<&str>) -> Finding {
    const CHECK: &str = "master key";
    let file = settings.data_dir.join(KEY_FILE);
    let held = match &settings.confidential.master_key {
        Some(key) => Ok(Some((key.fingerprint(), "COFER_MASTER_KEY".to_owned()))),
        None => read_key(&file).map(|key| key.map(|key| (key.fingerprint(), file.display().to_string()))),
    };
    match (held, sealed_with) {
        (Err(error), _)
            if matches!(error, KeyError::Unreadable { .. }) && error.kind() == Kind::Forbidden =>
        {
            warn(CHECK, chain(&error), "run this as the user who runs the server")
        }
        (Err(error), _) => {
            fail(CHECK, chain(&error), "bring back the right key, by file or by COFER_MASTER_KEY")
        }
        (Ok(None), None) => ok(CHECK, "made at first start"),
        (Ok(None), Some(sealed)) => fail(
            CHECK,
            format!("missing; the secrets are sealed with key {sealed}"),
            format!("put {} back, or set COFER_MASTER_KEY", file.display()),
        ),
        (Ok(Some((held, place))), Some(sealed)) if held != sealed => fail(
            CHECK,
            format!("{place} holds key {held}, and the secrets are sealed with key {sealed}"),
            "bring that key back",
        ),
        (Ok(Some((held, place))), _) => ok(CHECK, format!("{held} from {place}")),
    }
}

async fn git() -> Finding {
    const CHECK: &str = "git";
    match tokio::process::Command::new("git").arg("--version").output().await {
        Ok(output) if output.status.success() => {
            ok(CHECK, String::from_utf8_lossy(&output.stdout).trim().to_owned())
        }
        _ => warn(
            CHECK,
            "git is not installed: no coding environments",
            "install it (Debian: `apt-get install git`)",
        ),
    }
}

fn found_engine(check: &'static str, engine: &Result<Engine, NoEngine>, advice: &str) -> Finding {
    match engine {
        Ok(engine) => {
            let rootless = if engine.rootless { ", rootless" } else { "" };
            ok(check, format!("{} {} at {}{rootless}", engine.kind, engine.version, engine.endpoint))
        }
        Err(none) => warn(check, none.to_string(), advice),
    }
}

fn gvisor(docker: &Result<Engine, NoEngine>, podman: &Result<Engine, NoEngine>) -> Finding {
    const CHECK: &str = "gvisor";
    const ADVICE: &str = "install runsc and register it with Docker as a runtime (`dockerd --add-runtime runsc=/usr/bin/runsc`)";
    let found =
        [docker, podman].into_iter().flatten().find_map(|engine| Some((engine, engine.gvisor_runtime()?)));
    match (found, docker.is_ok() || podman.is_ok()) {
        (Some((engine, runtime)), _) => ok(CHECK, format!("{} has it as the runtime {runtime}", engine.kind)),
        (None, true) => warn(CHECK, "no engine has gVisor: hosted servers run in plain containers", ADVICE),
        (None, false) => fail(
            CHECK,
            "there is no container engine: no hosted servers and no environments",
            "install and start Docker or Podman",
        ),
    }
}

fn limits(docker: &Result<Engine, NoEngine>, podman: &Result<Engine, NoEngine>) -> Finding {
    const CHECK: &str = "cgroup limits";
    let engines: Vec<&Engine> = [docker, podman].into_iter().flatten().collect();
    let gaps: Vec<_> = engines.iter().filter(|engine| !engine.enforces.missing().is_empty()).collect();
    match (engines.is_empty(), gaps.first()) {
        (true, _) => {
            warn(CHECK, "not known without a container engine", "install and start Docker or Podman")
        }
        (false, None) => ok(CHECK, "memory, cpu and pids limits are enforced"),
        (false, Some(engine)) => {
            let missing = engine.enforces.missing().join(", ");
            warn(
                CHECK,
                format!("{} cannot enforce limits on: {missing}", engine.kind),
                "enable these cgroup controllers; for a rootless engine, delegate them to the user",
            )
        }
    }
}
