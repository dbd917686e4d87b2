//! Cofer's helper: inside an environment's container, and beside each program that Cofer starts on its own machine.
//!
//! In a container it is mounted read-only and is the first process. It is one program with several parts to play, so that it needs nothing of the
//! image: no shell, no library, no user.
//!
//! | called as | what it is |
//! |---|---|
//! | `serve CHANNEL` | the first process of an environment: `serve` |
//! | `main CHANNEL -- COMMAND…` | the same, of a background command |
//! | `warden` | who looks after one command, its connection on standard input and output: `warden` |
//! | `step COMMAND…` | a command on a terminal, a moment before it is itself: `job` |
//! | `guard COFER PROGRAM…` | who owns the processes of a program that runs in no container: `guard` |

mod bell;
mod files;
mod guard;
mod host;
mod job;
mod log;
mod serve;
mod user;
mod warden;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use cofer_inside::guarding::GUARD;
use serve::Purpose;

const USER: &str = "--user";

fn main() -> ExitCode {
    let mut args = std::env::args_os().skip(1);
    let part = args.next().unwrap_or_default();
    match part.to_str() {
        Some(GUARD) => guard::guard_main(args),
        Some(job::STEP) => job::step_main(args),
        Some("warden") => warden::warden_main(user_of(args).or_else(user_of_the_first_process).as_deref()),
        Some("serve" | "main") => match purpose(args.collect()) {
            Some(purpose) => serve::serve_main(purpose),
            None => not_for_people(),
        },
        _ => not_for_people(),
    }
}

fn not_for_people() -> ExitCode {
    job::complain("this is a part of Cofer that is not for people; there is nothing to see");
    ExitCode::FAILURE
}

fn purpose(args: Vec<OsString>) -> Option<Purpose> {
    let (ours, main) = match args.iter().position(|arg| arg == "--") {
        Some(at) => (args[..at].to_vec(), Some(args[at + 1..].to_vec())),
        None => (args, None),
    };
    let channel = PathBuf::from(ours.first()?);
    Some(Purpose { channel, user: user_of(ours.into_iter()), main })
}

fn user_of(args: impl Iterator<Item = OsString>) -> Option<String> {
    let user = args.skip_while(|arg| arg != USER).nth(1)?;
    user.into_string().ok()
}

/// A warden that the engine started, and not the first process, does not know whom commands run as; but that one was told.
fn user_of_the_first_process() -> Option<String> {
    let line = std::fs::read("/proc/1/cmdline").ok()?;
    let args =
        line.split(|byte| *byte == 0).map(|arg| OsString::from(String::from_utf8_lossy(arg).into_owned()));
    user_of(args.take_while(|arg| arg != "--"))
}
