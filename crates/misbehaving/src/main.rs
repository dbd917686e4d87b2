//! An MCP server that does on purpose what real ones do by accident.
//!
//! Left alone it is a correct server of the handshake era (2024-11-05 to 2025-11-25): JSON-RPC 2.0, one message
//! per line, on stdin and stdout. Flags make it misbehave from the start, tools make it misbehave when called;
//! `--help` lists both. Tests run it as a child, and linked static it runs in a bare image, under gVisor too,
//! which is why it has threads instead of a runtime and next to no dependencies.
//!
//! ```text
//!   stdin ──► server::serve ──► catalogue ──► tools::*  ──► wire ──► stdout
//!              one reader        finds one     in order, or           one line
//!                                              on a thread            at a time
//! ```
//!
//! The same program is also the child it spawns when told to leave processes behind: see `sleeper`.

mod catalogue;
mod end;
mod flags;
mod server;
mod sleeper;
mod state;
mod tools;
mod wire;

use std::io::{self, Write as _};
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use flags::{Asked, Flags};
use state::Server;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1).peekable();
    if arguments.next_if(|first| first == sleeper::FLAG).is_some() {
        return sleeper::be_one(&arguments.next().unwrap_or_default());
    }
    match flags::parse(arguments) {
        Ok(Asked::Serve(flags)) => serve(*flags),
        Ok(Asked::Help) => print(&format!("{}{}", flags::help(), catalogue::help())),
        Err(wrong) => {
            wire::complain(&format!("{wrong}; --help lists what there is"));
            ExitCode::from(2)
        }
    }
}

/// Everything that happens before the first line is read, in the order a real server would get to it.
fn serve(flags: Flags) -> ExitCode {
    if let Err(error) = end::heed_signals(&flags) {
        wire::complain(&format!("could not listen for signals: {error}"));
        return ExitCode::FAILURE;
    }
    flags.stderr_line.iter().for_each(|line| wire::complain(line));
    if flags.stderr_flood_at_start {
        wire::flood(&mut io::stderr().lock(), flags::STDERR_FLOOD_BYTES, flags::FLOOD_LINE_BYTES);
    }
    if let Some(code) = flags.exit_at_start {
        end::exit(code);
    }
    thread::sleep(Duration::from_millis(flags.slow_start_ms));
    if let Some(after_ms) = flags.crash_after_ms {
        end::crash_later(Duration::from_millis(after_ms), flags.exit_code);
    }
    sleeper::spawn_at_start(&flags);
    server::serve(&Server::new(flags))
}

fn print(text: &str) -> ExitCode {
    // A reader that has seen enough (`--help | head`) is no failure.
    drop(io::stdout().lock().write_all(text.as_bytes()));
    ExitCode::SUCCESS
}
