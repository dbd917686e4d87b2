//! A stand-in for Cofer that can be killed.
//!
//! - `work ENGINE HOST SANDBOX CHANNEL SCRIPT` runs a script in a workshop, copies its stdout, and waits for ever.
//! - `keep PROGRAM ARGUMENT…` starts a child under a guardian, copies its stdout, and waits for ever.

use std::env;
use std::ffi::OsString;
use std::io::Write as _;
use std::process::ExitCode;
use std::sync::Arc;

use cofer_sandbox::{
    ChildProcess, ChildSpec, CommandSpec, EngineProvider, EngineSettings, Said, SandboxId, Workshop, child,
};
use tokio::io::AsyncReadExt as _;

fn main() -> ExitCode {
    let mut args = env::args_os().skip(1);
    match args.next().as_deref().and_then(|mode| mode.to_str()) {
        Some("keep") => keep(args),
        Some("work") => work(args),
        _ => ExitCode::from(2),
    }
}

fn work(args: impl Iterator<Item = OsString>) -> ExitCode {
    let words: Vec<_> = args.filter_map(|word| word.into_string().ok()).collect();
    let [engine, host, sandbox, channel, script] = words.as_slice() else { return ExitCode::from(2) };
    let settings = EngineSettings { docker_host: Some(host.clone()), podman_host: Some(host.clone()) };
    let make = match engine.as_str() {
        "podman" => EngineProvider::podman,
        "docker" => EngineProvider::docker,
        _ => EngineProvider::gvisor,
    };
    let shell = ["sh".to_owned(), "-c".to_owned(), script.clone()];
    let command = CommandSpec {
        argv: shell.into(),
        environment: Vec::new(),
        workdir: None,
        terminal: None,
        stdin: false,
    };
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else {
        return ExitCode::FAILURE;
    };
    runtime.block_on(async {
        let provider = Arc::new(make(settings, Arc::new(|_: &str| None)));
        let workshop = Workshop::at(provider, SandboxId(sandbox.clone()), channel.as_ref());
        let Ok(mut command) = workshop.start(&command).await else { return ExitCode::FAILURE };
        while let Some(Said::Stdout(bytes)) = command.next().await {
            let mut stdout = std::io::stdout();
            let _ = stdout.write_all(&bytes).and_then(|()| stdout.flush());
        }
        std::future::pending().await
    })
}

fn keep(args: impl Iterator<Item = OsString>) -> ExitCode {
    let mut words = args.filter_map(|word| word.into_string().ok());
    let Some(program) = words.next() else { return ExitCode::from(2) };
    let spec = ChildSpec { program, args: words.collect(), environment: Vec::new(), cwd: None };
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else {
        return ExitCode::FAILURE;
    };
    runtime.block_on(async {
        let child = child::spawn(&spec, Arc::new(|_, _| ()));
        let Some(mut streams) = child.as_ref().ok().and_then(ChildProcess::streams) else {
            return ExitCode::FAILURE;
        };
        // Until somebody kills us.
        let mut said = [0; 1024];
        while let Ok(length @ 1..) = streams.stdout.read(&mut said).await {
            let _ = std::io::stdout().write_all(&said[..length]);
        }
        std::future::pending().await
    })
}
