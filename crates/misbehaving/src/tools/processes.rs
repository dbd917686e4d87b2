//! Dying, and leaving processes behind.

use super::{Call, Reply, facts, invalid, text_result};
use crate::catalogue::{Runs, Tool, choice, count, switch, text};
use crate::end::{self, Deadly};
use crate::sleeper::{self, Plan};
use crate::state::Server;
use crate::wire;

#[rustfmt::skip]
pub(super) const TOOLS: &[Tool] = &[
    Tool { name: "crash", about: "Dies: by exit code, or by signal (as process 1 of a container, where that is impossible, by exit code 128 + signal).", parameters: &[count("exit_code", "its exit code (that of --exit-code)"), choice("signal", Deadly::NAMES, "the signal to die of instead"), text("stderr", "a last line on stderr"), choice("answer", &["never", "first"], "whether the call is answered (never)")], runs: Runs::InOrder, run: crash },
    Tool { name: "spawn", about: "Starts children that sleep and answers with their pids, children's children included.", parameters: &[count("children", "how many (1)"), count("grandchildren", "how many of each child (0)"), switch("detached", "in sessions of their own (false)"), switch("ignore_sigterm", "ignoring SIGTERM, SIGINT and SIGHUP (false)"), switch("orphan_grandchildren", "the children exit at once and leave theirs to process 1 (false)"), switch("hold_stdout", "holding this server's stdout open (false)"), count("seconds", "how long they sleep (300)")], runs: Runs::Aside, run: spawn },
];

fn crash(server: &Server, call: &Call) -> Reply {
    let code = match call.count("exit_code")? {
        None => server.flags.exit_code,
        Some(code) => u8::try_from(code).map_err(|_| invalid("exit_code must be at most 255"))?,
    };
    let signal = match call.text("signal")? {
        None => None,
        Some(name) => Some(Deadly::named(name).ok_or_else(|| invalid(format!("unknown signal {name}")))?),
    };
    if call.text("answer")? == Some("first") {
        server.answer(&call.id, Ok(text_result("goodbye")));
    }
    call.text("stderr")?.into_iter().for_each(wire::complain);
    match signal {
        Some(signal) => end::by_signal(signal),
        None => end::exit(code),
    }
}

fn spawn(_: &Server, call: &Call) -> Reply {
    let plan = Plan {
        seconds: call.count("seconds")?,
        grandchildren: call.count("grandchildren")?.unwrap_or_default(),
        detached: call.switch("detached")?,
        ignore_sigterm: call.switch("ignore_sigterm")?,
        orphan_grandchildren: call.switch("orphan_grandchildren")?,
        hold_stdout: call.switch("hold_stdout")?,
    };
    facts(&sleeper::spawn_many(call.count("children")?.unwrap_or(1), plan))
}
