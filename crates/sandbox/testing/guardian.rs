//! A guardian without the rest of Cofer, and a stand-in for Cofer that can be killed.
//!
//! - `guard …` is what `cofer guard …` is.
//! - `keep PROGRAM ARGUMENT…` starts a child under a guardian, copies its stdout, and waits for ever.

use std::env;
use std::ffi::OsString;
use std::io::Write as _;
use std::process::ExitCode;
use std::sync::Arc;

use cofer_sandbox::{ChildProcess, ChildSpec, Guardian, guard_main};
use tokio::io::AsyncReadExt as _;

fn main() -> ExitCode {
    let mut args = env::args_os().skip(1);
    match args.next().as_deref().and_then(|mode| mode.to_str()) {
        Some("guard") => guard_main(args),
        Some("keep") => keep(args),
        _ => ExitCode::from(2),
    }
}

fn keep(args: impl Iterator<Item = OsString>) -> ExitCode {
    let mut words = args.filter_map(|word| word.into_string().ok());
    let Some(program) = words.next() else { return ExitCode::from(2) };
    let spec = ChildSpec { program, args: words.collect(), environment: Vec::new(), cwd: None };
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else {
        return ExitCode::FAILURE;
    };
    runtime.block_on(async {
        let child = Guardian::of_this_program().spawn(&spec, Arc::new(|_, _| ()));
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
