//! A workshop on a real engine, and the few things that tests do in one.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use cofer_model::NetworkMode;
use cofer_sandbox::{
    BindMount, CommandEnd, CommandSpec, HowCommandEnded, Launched, Rights, RunningCommand, Said, SandboxSpec,
    Workshop,
};
use tempfile::TempDir;

use crate::bed::Bed;

const WAIT_MAX: Duration = Duration::from_mins(1);

/// A workshop with a directory of this machine at `/workdir`.
pub struct Workbench {
    pub workshop: Workshop,
    pub launched: Launched,
    /// Removed last.
    pub place: Place,
}

/// What a workshop needs of this machine.
pub struct Place {
    directory: TempDir,
}

impl Place {
    pub fn new() -> Self {
        let place = Self { directory: tempfile::tempdir().unwrap() };
        std::fs::create_dir(place.workdir()).unwrap();
        place
    }

    pub fn workdir(&self) -> PathBuf {
        self.directory.path().join("workdir")
    }

    pub fn channel(&self) -> PathBuf {
        self.directory.path().join("channel")
    }

    pub fn helpers(&self) -> PathBuf {
        self.directory.path().join("helpers")
    }

    pub fn spec(&self, bed: &Bed) -> SandboxSpec {
        let mut spec = bed.spec("");
        spec.owner.kind = "environment".into();
        spec.cmd = None;
        spec.workdir = Some("/workdir".into());
        spec.rights = Rights::Ordinary;
        spec.limits = None;
        spec.network = NetworkMode::Egress;
        let workdir = BindMount { source: self.workdir(), target: "/workdir".into(), read_only: false };
        spec.binds = vec![workdir];
        spec
    }
}

impl Workbench {
    pub async fn new(bed: &Bed) -> Self {
        Self::with(bed, |_| ()).await
    }

    pub async fn with(bed: &Bed, change: impl FnOnce(&mut SandboxSpec)) -> Self {
        Self::launched(bed, Place::new(), change).await
    }

    pub async fn at(bed: &Bed, place: Place) -> Self {
        Self::launched(bed, place, |_| ()).await
    }

    async fn launched(bed: &Bed, place: Place, change: impl FnOnce(&mut SandboxSpec)) -> Self {
        let mut spec = place.spec(bed);
        change(&mut spec);
        let provider = Arc::new(bed.provider.clone());
        let (channel, helpers) = (place.channel(), place.helpers());
        let launch = Workshop::launch(provider, spec, &channel, &helpers);
        let (workshop, launched) = within(launch).await.expect("it is launched");
        bed.note(&launched.id);
        Self { workshop, launched, place }
    }

    /// A background command.
    pub async fn background(bed: &Bed, script: &str, change: impl FnOnce(&mut SandboxSpec)) -> Self {
        Self::background_command(bed, &shell(script), change).await
    }

    pub async fn background_command(
        bed: &Bed,
        main: &CommandSpec,
        change: impl FnOnce(&mut SandboxSpec),
    ) -> Self {
        let place = Place::new();
        let provider = Arc::new(bed.provider.clone());
        let mut spec = place.spec(bed);
        change(&mut spec);
        let (channel, helpers) = (place.channel(), place.helpers());
        let launch = Workshop::launch_main(provider, spec, main, &channel, &helpers);
        let (workshop, launched) = within(launch).await.expect("it is launched");
        bed.note(&launched.id);
        Self { workshop, launched, place }
    }

    pub async fn start(&self, command: &CommandSpec) -> RunningCommand {
        within(self.workshop.start(command)).await.expect("it is started")
    }

    /// Runs a script to its end.
    pub async fn run(&self, script: &str) -> Outcome {
        rest(&mut self.start(&shell(script)).await).await
    }
}

/// All that a command said.
#[derive(Debug, PartialEq, Eq)]
pub struct Outcome {
    pub stdout: String,
    pub stderr: String,
    pub end: CommandEnd,
}

pub fn exited(code: i32) -> CommandEnd {
    CommandEnd { code: Some(code), signal: None, how: HowCommandEnded::Exited }
}

pub fn shell(script: &str) -> CommandSpec {
    let argv = ["sh", "-c", script].map(ToOwned::to_owned).into();
    CommandSpec { argv, environment: Vec::new(), workdir: None, terminal: None, stdin: false }
}

/// Everything that it still says, and its end.
pub async fn rest(command: &mut RunningCommand) -> Outcome {
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    loop {
        match within(command.next()).await.expect("its end is told") {
            Said::Stdout(bytes) => stdout.extend(bytes),
            Said::Stderr(bytes) => stderr.extend(bytes),
            Said::Ended(end) => {
                assert_eq!(within(command.next()).await, None);
                let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
                return Outcome { stdout: text(stdout), stderr: text(stderr), end };
            }
        }
    }
}

/// Until it has said this on stdout.
pub async fn until_said(command: &mut RunningCommand, wanted: &str) -> String {
    let mut stdout = String::new();
    while !stdout.contains(wanted) {
        match within(command.next()).await {
            Some(Said::Stdout(bytes)) => stdout.push_str(&String::from_utf8_lossy(&bytes)),
            other => panic!("instead of `{wanted}` it said {other:?} after {stdout:?}"),
        }
    }
    stdout
}

pub async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(WAIT_MAX, future).await.expect("it comes in time")
}
