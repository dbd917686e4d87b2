//! The process this server leaves behind when told to: a copy of the program that sleeps, alone or with children.
//!
//! Each sleeper reports the pids below it in one line on its stderr, which its parent reads; after that it holds
//! nothing of its parent's, save stdout when asked to: a bridge that waits for the end of stdout never sees it.
//! A sleeper ends by itself after a while, so that a failing test does not litter the machine for ever.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Error, Write as _};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use std::{env, io, process, thread};

use serde_json::{Value, json};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::flags::Flags;
use crate::wire;

pub(crate) const FLAG: &str = "--be-a-sleeper";
const SLEEP_SECONDS_DEFAULT: u64 = 300;

/// What a sleeper is like. It travels to it as JSON in its first argument.
#[derive(Clone, Copy, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is one independent switch of the `spawn` tool")]
pub(crate) struct Plan {
    pub(crate) seconds: Option<u64>,
    pub(crate) grandchildren: u64,
    pub(crate) detached: bool,
    pub(crate) ignore_sigterm: bool,
    pub(crate) orphan_grandchildren: bool,
    pub(crate) hold_stdout: bool,
}

impl Plan {
    fn to_json(self) -> Value {
        json!({
            "seconds": self.seconds, "grandchildren": self.grandchildren, "detached": self.detached,
            "ignore_sigterm": self.ignore_sigterm, "orphan_grandchildren": self.orphan_grandchildren,
            "hold_stdout": self.hold_stdout,
        })
    }

    fn from_json(plan: &Value) -> Self {
        let is = |name: &str| plan[name].as_bool().unwrap_or_default();
        Self {
            seconds: plan["seconds"].as_u64(),
            grandchildren: plan["grandchildren"].as_u64().unwrap_or_default(),
            detached: is("detached"),
            ignore_sigterm: is("ignore_sigterm"),
            orphan_grandchildren: is("orphan_grandchildren"),
            hold_stdout: is("hold_stdout"),
        }
    }
}

/// Starts one and returns what it reported: `{"pid", "grandchildren"}`.
pub(crate) fn spawn(plan: Plan) -> io::Result<Value> {
    let mut sleeper = Command::new(env::current_exe()?)
        .args([FLAG, &plan.to_json().to_string()])
        .stdin(Stdio::null())
        .stdout(if plan.hold_stdout { Stdio::inherit() } else { Stdio::null() })
        .stderr(Stdio::piped())
        .spawn()?;
    let mut report = String::new();
    if let Some(stderr) = sleeper.stderr.take() {
        BufReader::new(stderr).read_line(&mut report)?;
    }
    if plan.orphan_grandchildren {
        sleeper.wait()?;
    }
    // One that goes on is not waited for: this is a server that does not reap its children either.
    Ok(serde_json::from_str(&report)?)
}

/// Starts as many as were asked for, as far as the system lets it, and says how far that was.
pub(crate) fn spawn_many(children: u64, plan: Plan) -> Value {
    let mut born = Vec::new();
    let mut failure = Value::Null;
    for _ in 0..children {
        match spawn(plan) {
            Ok(child) => born.push(child),
            Err(error) => {
                failure = describe(&error);
                break;
            }
        }
    }
    let pids: Vec<&Value> = born
        .iter()
        .filter(|_| !plan.orphan_grandchildren)
        .map(|child| &child["pid"])
        .chain(born.iter().flat_map(|child| child["grandchildren"].as_array().into_iter().flatten()))
        .collect();
    json!({"pids": pids, "children": born, "failure": failure})
}

pub(crate) fn spawn_at_start(flags: &Flags) {
    spawn_many(flags.children, Plan::default());
    spawn_many(flags.detached_children, Plan { detached: true, ignore_sigterm: true, ..Plan::default() });
}

/// What the system said, with its number, so that a test need not parse prose.
pub(crate) fn describe(error: &Error) -> Value {
    json!({"errno": error.raw_os_error(), "message": error.to_string()})
}

/// The life of a sleeper.
pub(crate) fn be_one(plan: &str) -> ExitCode {
    match sleep_through(Plan::from_json(&serde_json::from_str(plan).unwrap_or_default())) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            wire::complain(&format!("the sleeper woke: {error}"));
            ExitCode::FAILURE
        }
    }
}

fn sleep_through(plan: Plan) -> io::Result<()> {
    if plan.detached {
        rustix::process::setsid()?;
    }
    if plan.ignore_sigterm {
        for signal in [SIGHUP, SIGINT, SIGTERM] {
            signal_hook::flag::register(signal, Arc::new(AtomicBool::new(false)))?;
        }
    }
    let below =
        spawn_many(plan.grandchildren, Plan { grandchildren: 0, orphan_grandchildren: false, ..plan });
    let report = json!({"pid": process::id(), "grandchildren": below["pids"], "failure": below["failure"]});
    io::stderr().write_all(&wire::line(&report))?;
    rustix::stdio::dup2_stderr(File::options().write(true).open("/dev/null")?)?;
    if !plan.orphan_grandchildren {
        thread::sleep(Duration::from_secs(plan.seconds.unwrap_or(SLEEP_SECONDS_DEFAULT)));
    }
    Ok(())
}
