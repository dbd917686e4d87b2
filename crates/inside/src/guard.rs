//! A guardian: starts a program beside Cofer, and sees to it that nothing which that program ever started outlives it, or Cofer.
//!
//! It is the parent that orphans of its tree are given to (a *subreaper*), so nothing escapes by forking twice or by beginning a session of
//! its own; and when it has no child left, nothing is left. It waits for three things: the end of Cofer, a signal, the end of a child.
//!
//! ```text
//!   watching ── Cofer ends, or asks (SIGHUP, SIGTERM), or the program ends ─► ending: SIGTERM to all
//!      └────────────────── SIGINT ─────────────────┐                             │ grace
//!                                                  └──► killing: SIGKILL to all ◄┘ until none is left
//! ```
//!
//! Then it ends as the program did: with its code, or by its signal. There is one of these for each program, so it has no threads and is small.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use cofer_inside::guarding::{GRACE, NOT_STARTED, NOT_STARTED_CODE};
use cofer_inside::tree::{self, Asked};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Resource, Rlimit, WaitOptions, WaitStatus};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM};

/// For whoever asked by SIGHUP and was never heard of again.
const PATIENCE_MAX: Duration = Duration::from_mins(1);
/// For what a program leaves behind that ended by itself. Short, because its end is told only when all is over.
const LEFTOVERS_GRACE: Duration = Duration::from_millis(500);
/// Descriptors from here on are not for the program.
const FIRST_AFTER_STANDARD: i32 = 3;
const KILL_AGAIN_AFTER: Duration = Duration::from_millis(10);
/// How often those are looked for who have not been asked to end yet.
const ASK_AGAIN_AFTER: Duration = Duration::from_millis(100);

/// The life of a guardian. `args` is Cofer's process id, the program, and the program's arguments.
pub fn guard_main(args: impl Iterator<Item = OsString>) -> ExitCode {
    match Watch::begin(args) {
        Ok(watch) => watch.keep(),
        Err(reason) => {
            // Nobody may be there to read it.
            let _ = writeln!(io::stderr(), "{NOT_STARTED}{reason}");
            ExitCode::from(NOT_STARTED_CODE)
        }
    }
}

struct Watch {
    /// Readable when Cofer has ended; none once that is known.
    cofer: Option<OwnedFd>,
    orders: Orders,
    program: Pid,
    status: Option<WaitStatus>,
    /// When those who do not end are killed; none while nobody has to end.
    kill_at: Option<Instant>,
    asked: Asked,
}

impl Watch {
    fn begin(mut args: impl Iterator<Item = OsString>) -> Result<Self, String> {
        let cofer = args.next().and_then(|pid| Pid::from_raw(pid.to_str()?.parse().ok()?));
        let (Some(cofer), Some(program)) = (cofer, args.next()) else {
            return Err("this is a part of Cofer that is not for people; there is nothing to see".to_owned());
        };
        let orders = settle().map_err(|error| format!("could not settle: {error}"))?;
        let cofer = hold(cofer)?;
        let child = Command::new(&program).args(args).process_group(0).spawn();
        let child = child.map_err(|error| format!("could not start {}: {error}", program.display()))?;
        let program = Pid::from_raw(child.id().cast_signed()).ok_or("the program has no number")?;
        // From here on the pipes are the program's alone. If this fails, ends are only seen later.
        let _ = let_go_of_pipes();
        Ok(Self { cofer: Some(cofer), orders, program, status: None, kill_at: None, asked: Asked::default() })
    }

    fn keep(mut self) -> ExitCode {
        loop {
            if self.reap() == Family::Gone {
                return self.end_likewise();
            }
            if let Some(grace) = self.reason_to_end() {
                self.end_all_within(grace);
            }
            self.end_who_is_left();
            self.wait();
        }
    }

    /// Takes note of everybody who has ended.
    fn reap(&mut self) -> Family {
        loop {
            match rustix::process::wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) if pid == self.program => self.status = Some(status),
                Ok(Some(_)) | Err(Errno::INTR) => {}
                Ok(None) => return Family::Lives,
                Err(_no_child) => return Family::Gone,
            }
        }
    }

    /// How long everybody has from now on, if somebody wants them to end.
    fn reason_to_end(&mut self) -> Option<Duration> {
        let cofer_ended = self.cofer.is_none();
        let leftovers = self.status.is_some() && self.kill_at.is_none();
        let asked = self.orders.take();
        let unasked = match (cofer_ended && self.kill_at.is_none(), leftovers) {
            (_, true) => Some(LEFTOVERS_GRACE),
            (true, false) => Some(GRACE),
            (false, false) => None,
        };
        asked.into_iter().chain(unasked).min()
    }

    fn end_all_within(&mut self, grace: Duration) {
        let at = Instant::now() + grace;
        self.kill_at = Some(self.kill_at.map_or(at, |earlier| earlier.min(at)));
    }

    /// Asks who is left, or kills them when their time is over.
    fn end_who_is_left(&mut self) {
        if let Some(kill_at) = self.kill_at {
            self.asked.to_end_by(kill_at, tree::descendants_of(rustix::process::getpid()));
        }
    }

    /// Until something happens: a signal, a child's end (which is one), the end of Cofer, or the end of our patience.
    fn wait(&mut self) {
        let timeout = self
            .kill_at
            .map(|at| at.saturating_duration_since(Instant::now()).clamp(KILL_AGAIN_AFTER, ASK_AGAIN_AFTER));
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        let mut waited = vec![PollFd::new(&self.orders.bell, PollFlags::IN)];
        waited.extend(self.cofer.as_ref().map(|cofer| PollFd::new(cofer, PollFlags::IN)));
        // Interrupted means that a signal came, and the bell will say so.
        let _ = rustix::event::poll(&mut waited, timeout.as_ref());
        let cofer_ended = waited.get(1).is_some_and(|cofer| !cofer.revents().is_empty());
        if cofer_ended {
            self.cofer = None;
            self.kill_at = self.kill_at.map(|at| at.min(Instant::now() + GRACE));
        }
        self.orders.silence();
    }

    fn end_likewise(&self) -> ExitCode {
        let code = self.status.and_then(WaitStatus::exit_status).and_then(|code| u8::try_from(code).ok());
        if let Some(signal) = self.status.and_then(WaitStatus::terminating_signal) {
            // The program has dumped its core, if any; ours tells nothing.
            let _ = rustix::process::setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
            let _ = signal_hook::low_level::emulate_default_handler(signal);
            // A signal that does not end us, or is none of the named ones.
            return ExitCode::from(u8::try_from(signal).unwrap_or(0).saturating_add(128));
        }
        ExitCode::from(code.unwrap_or(1))
    }
}

#[derive(PartialEq, Eq)]
enum Family {
    Lives,
    Gone,
}

/// What signals have asked for.
struct Orders {
    patiently: Arc<AtomicBool>,
    politely: Arc<AtomicBool>,
    now: Arc<AtomicBool>,
    /// Readable after each signal.
    bell: UnixStream,
}

impl Orders {
    fn listen() -> io::Result<Self> {
        let (bell, rope) = UnixStream::pair()?;
        bell.set_nonblocking(true)?;
        let (patiently, politely, now) = Default::default();
        for (signal, order) in [(SIGHUP, &patiently), (SIGTERM, &politely), (SIGINT, &now)] {
            signal_hook::flag::register(signal, Arc::clone(order))?;
        }
        for signal in [SIGHUP, SIGTERM, SIGINT, SIGCHLD] {
            signal_hook::low_level::pipe::register(signal, rope.try_clone()?)?;
        }
        Ok(Self { patiently, politely, now, bell })
    }

    /// The least patient of what was asked for since the last time.
    fn take(&self) -> Option<Duration> {
        let orders = [(&self.now, Duration::ZERO), (&self.politely, GRACE), (&self.patiently, PATIENCE_MAX)];
        let asked = orders.into_iter().filter(|(order, _)| order.swap(false, Ordering::Relaxed));
        asked.map(|(_, grace)| grace).min()
    }

    fn silence(&mut self) {
        while let Ok(1..) = self.bell.read(&mut [0; 64]) {}
    }
}

/// Makes this process what orphans are given to, in a session of its own: no terminal's Ctrl-C reaches it or anything below.
fn settle() -> io::Result<Orders> {
    // Cofer's own are marked so already; but whoever started Cofer may have left it some that are not.
    close_fds::set_fds_cloexec(FIRST_AFTER_STANDARD, &[]);
    // Only for people who look at a list of processes.
    let _ = fs::write("/proc/self/comm", "cofer-guard");
    rustix::process::setsid()?;
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    Orders::listen()
}

/// Something that tells when Cofer has ended. Cofer is our parent; if it is not, it has ended already.
fn hold(cofer: Pid) -> Result<OwnedFd, String> {
    let held = rustix::process::pidfd_open(cofer, PidfdFlags::empty());
    // Asked in this order, the number cannot have had another owner in between.
    let is_parent = rustix::process::getppid() == Some(cofer);
    match held {
        Ok(held) if is_parent => Ok(held),
        Ok(_) => Err("the Cofer that started this has ended".to_owned()),
        Err(error) => Err(format!("could not watch the Cofer that started this: {error}")),
    }
}

fn let_go_of_pipes() -> io::Result<()> {
    let nothing = File::options().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&nothing)?;
    rustix::stdio::dup2_stdout(&nothing)?;
    rustix::stdio::dup2_stderr(&nothing)?;
    Ok(())
}
