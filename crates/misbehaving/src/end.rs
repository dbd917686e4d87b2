//! How it ends: politely, when asked; or by its own hand, as a crash.
//!
//! As process 1 of a container it cannot kill itself with a signal (the kernel ignores those from inside), so a
//! crash by signal there ends with the exit code a shell would report, 128 + signal.

use std::process;
use std::thread;
use std::time::Duration;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level;

use crate::flags::Flags;
use crate::wire;

/// SIGTERM and SIGINT end it with 0, unless the flags say that they are ignored or take their time.
pub(crate) fn heed_signals(flags: &Flags) -> std::io::Result<()> {
    let mut signals = Signals::new([SIGTERM, SIGINT])?;
    let (ignore_sigterm, delay) = (flags.ignore_sigterm, Duration::from_millis(flags.sigterm_delay_ms));
    let listener = move || {
        for signal in signals.forever() {
            if signal == SIGTERM && ignore_sigterm {
                wire::complain("ignoring SIGTERM");
            } else {
                thread::sleep(delay);
                exit(0);
            }
        }
    };
    thread::Builder::new().name("signals".to_owned()).spawn(listener).map(drop)
}

pub(crate) fn exit(code: u8) -> ! {
    process::exit(i32::from(code))
}

pub(crate) fn crash_later(after: Duration, code: u8) {
    thread::spawn(move || {
        thread::sleep(after);
        exit(code)
    });
}

/// Dies of this signal where that is possible.
pub(crate) fn by_signal(signal: Deadly) -> ! {
    let number = signal.number();
    // Process 1 would live through the attempt, or die of the wrong signal.
    if process::id() != 1 && low_level::emulate_default_handler(number).is_err() {
        wire::complain(&format!("could not raise signal {number}"));
    }
    exit(128u8.saturating_add(u8::try_from(number).unwrap_or(0)))
}

/// The signals a tool may ask to die of, by name.
#[derive(Clone, Copy)]
pub(crate) enum Deadly {
    Abort,
    Kill,
    Segfault,
    Terminate,
}

impl Deadly {
    pub(crate) const NAMES: &[&str] = &["SIGABRT", "SIGKILL", "SIGSEGV", "SIGTERM"];

    pub(crate) fn named(name: &str) -> Option<Self> {
        Some(match name {
            "SIGABRT" => Self::Abort,
            "SIGKILL" => Self::Kill,
            "SIGSEGV" => Self::Segfault,
            "SIGTERM" => Self::Terminate,
            _ => return None,
        })
    }

    fn number(self) -> i32 {
        match self {
            Self::Abort => signal_hook::consts::SIGABRT,
            Self::Kill => 9,
            Self::Segfault => 11,
            Self::Terminate => SIGTERM,
        }
    }
}
