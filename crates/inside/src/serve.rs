//! The container's first process: listens in the channel directory, starts a warden for each who connects, reaps whatever ends, and, in a
//! container of a background command, runs that command and ends as it does.
//!
//! It cannot be killed from inside, and when it ends so does everything else in the container.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs;
use std::io::{self, PipeReader, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use cofer_inside::{READY, Reason, SOCKET, Word, tree};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus};

use crate::bell::Bell;
use crate::job::{self, OURSELVES};
use crate::log::Log;
use crate::warden::FORCED;
use crate::{user, warden};

/// The engine's own patience is shorter or longer, and it ends us when that is over.
const GRACE: Duration = Duration::from_secs(10);
const KILL_AGAIN_AFTER: Duration = Duration::from_millis(10);
/// More commands at once than a container has use for.
const WARDENS_MAX: usize = 256;
const READ_BYTES: usize = 16 << 10;
const SIGNAL_BASE: i32 = 128;

/// What a container is for.
pub struct Purpose {
    pub channel: PathBuf,
    pub user: Option<String>,
    /// The command of a background container.
    pub main: Option<Vec<OsString>>,
}

pub fn serve_main(purpose: Purpose) -> ExitCode {
    match Serve::begin(purpose) {
        Ok(serve) => serve.keep(),
        Err(error) => {
            job::complain(&format!("the helper could not begin: {error}"));
            job::code_of(&error)
        }
    }
}

struct Serve {
    purpose: Purpose,
    /// None where the channel takes no socket: then commands come by the engine's own exec.
    listener: Option<UnixListener>,
    bell: Bell,
    wardens: HashSet<Pid>,
    main: Option<Main>,
    /// When those who do not end are killed; none while nobody has to end.
    kill_at: Option<Instant>,
    /// Whether anybody had to be killed since.
    forced: bool,
}

/// The command of a background container.
struct Main {
    pid: Pid,
    output: Option<PipeReader>,
    log: Log,
    status: Option<WaitStatus>,
}

impl Serve {
    fn begin(purpose: Purpose) -> io::Result<Self> {
        let bell = Bell::listen()?;
        let listener = listen(&purpose.channel).ok();
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        drop(rustix::fs::open(purpose.channel.join(READY), flags, Mode::RUSR | Mode::RGRP | Mode::ROTH)?);
        let main = purpose.main.as_deref().map(|argv| Main::begin(&purpose, argv)).transpose()?;
        Ok(Self { purpose, listener, bell, wardens: HashSet::new(), main, kill_at: None, forced: false })
    }

    fn keep(mut self) -> ExitCode {
        loop {
            let nobody_is_left = self.reap();
            if let Some(code) = self.main.as_mut().and_then(Main::code_at_its_end) {
                return code;
            }
            if self.kill_at.is_some() && nobody_is_left {
                return if self.forced { ExitCode::from(FORCED) } else { ExitCode::SUCCESS };
            }
            if self.bell.end_was_asked() && self.kill_at.is_none() {
                self.kill_at = Some(Instant::now() + GRACE);
                tell_all(Signal::TERM);
                // There may be nobody left who would wake us.
                continue;
            }
            if self.kill_at.is_some_and(|at| at <= Instant::now()) {
                self.forced = true;
                tell_all(Signal::KILL);
            }
            self.wait();
            self.bell.silence();
            self.admit();
            if let Some(main) = &mut self.main {
                main.note();
            }
        }
    }

    /// Takes note of everybody who has ended. Tells whether nobody is left.
    fn reap(&mut self) -> bool {
        loop {
            match rustix::process::wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) => self.ended(pid, status),
                Err(Errno::INTR) => {}
                Ok(None) => return false,
                Err(_no_child) => return true,
            }
        }
    }

    fn ended(&mut self, pid: Pid, status: WaitStatus) {
        if let Some(main) = self.main.as_mut().filter(|main| main.pid == pid) {
            main.status = Some(status);
        }
        if !self.wardens.remove(&pid) {
            return;
        }
        // One that was killed could not see to its tree.
        if status.signaled() {
            warden::sweep(pid);
        }
        self.forced |= self.kill_at.is_some() && status.exit_status() == Some(i32::from(FORCED));
    }

    fn wait(&self) {
        let mut waited = vec![PollFd::from_borrowed_fd(self.bell.rings.as_fd(), PollFlags::IN)];
        waited.extend(
            self.listener.as_ref().map(|listener| PollFd::from_borrowed_fd(listener.as_fd(), PollFlags::IN)),
        );
        let output = self.main.as_ref().and_then(|main| main.output.as_ref());
        waited.extend(output.map(|output| PollFd::from_borrowed_fd(output.as_fd(), PollFlags::IN)));
        let patience =
            self.kill_at.map(|at| at.saturating_duration_since(Instant::now()).max(KILL_AGAIN_AFTER));
        let timeout = patience.and_then(|patience| Timespec::try_from(patience).ok());
        // Interrupted means that a signal came, and the bell will say so.
        let _ = rustix::event::poll(&mut waited, timeout.as_ref());
    }

    /// A warden for each who waits at the door.
    fn admit(&mut self) {
        while let Some(Ok((connection, _))) = self.listener.as_ref().map(UnixListener::accept) {
            let outcome = if self.wardens.len() >= WARDENS_MAX || self.kill_at.is_some() {
                Err(io::Error::other(format!(
                    "{} commands run already, or the container is ending",
                    self.wardens.len()
                )))
            } else {
                self.appoint(&connection)
            };
            match outcome {
                Ok(warden) => _ = self.wardens.insert(warden),
                Err(error) => turn_away(connection, &error),
            }
        }
    }

    fn appoint(&self, connection: &UnixStream) -> io::Result<Pid> {
        let warden = Command::new(OURSELVES)
            .arg("warden")
            .args(self.purpose.user.as_ref().map(|user| ["--user", user]).into_iter().flatten())
            .stdin(OwnedFd::from(connection.try_clone()?))
            .stdout(OwnedFd::from(connection.try_clone()?))
            .stderr(Stdio::null())
            .spawn()?;
        Pid::from_raw(warden.id().cast_signed()).ok_or_else(|| io::Error::other("it has no number"))
    }
}

/// The socket belongs to whom the directory belongs to: the host's user. Nobody else inside may use it.
fn listen(channel: &Path) -> io::Result<UnixListener> {
    let path = channel.join(SOCKET);
    let _ = fs::remove_file(&path);
    let listener = UnixListener::bind(&path)?;
    listener.set_nonblocking(true)?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
    let owner = fs::metadata(channel)?;
    // Nothing to do, or not allowed: then it is the owner who runs this.
    let _ = std::os::unix::fs::lchown(&path, Some(owner.uid()), Some(owner.gid()));
    Ok(listener)
}

fn turn_away(mut connection: UnixStream, error: &io::Error) {
    let text = format!("the helper in the container could not start another command: {error}");
    // It fits into what a fresh connection holds, or is not waited for.
    let _ = connection.set_nonblocking(true);
    let _ = connection.write_all(&Word::Refused(Reason::Failed, text).frame());
}

fn tell_all(signal: Signal) {
    for process in tree::descendants_of(rustix::process::getpid()) {
        process.signal(signal);
    }
}

impl Main {
    fn begin(purpose: &Purpose, argv: &[OsString]) -> io::Result<Self> {
        let mut log = Log::begin(&purpose.channel)?;
        let (output, its_side) = io::pipe()?;
        rustix::io::ioctl_fionbio(&output, true)?;
        match start(purpose.user.as_deref(), argv, its_side) {
            Ok(pid) => Ok(Self { pid, output: Some(output), log, status: None }),
            Err(error) => {
                log.note(format!("cofer: {error}\n").as_bytes());
                Err(error)
            }
        }
    }

    /// Writes down what it said.
    fn note(&mut self) {
        let Some(output) = &self.output else { return };
        let mut buffer = [0; READ_BYTES];
        match rustix::io::read(output, &mut buffer) {
            Ok(0) => self.output = None,
            Ok(length) => self.log.note(&buffer[..length]),
            Err(_nothing_yet) => {}
        }
    }

    /// When it has ended, and what it said before is written down.
    fn code_at_its_end(&mut self) -> Option<ExitCode> {
        let status = self.status?;
        let mut left =
            self.output.as_ref().map_or(0, |output| rustix::io::ioctl_fionread(output).unwrap_or(0));
        while left > 0 {
            self.note();
            left = left.saturating_sub(READ_BYTES as u64);
        }
        let signalled = status.terminating_signal().map(|signal| SIGNAL_BASE + signal);
        let code = status.exit_status().or(signalled).unwrap_or(1);
        Some(ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX)))
    }
}

fn start(user: Option<&str>, argv: &[OsString], output: io::PipeWriter) -> io::Result<Pid> {
    let program = argv.first().ok_or_else(|| io::Error::other("there is no command"))?;
    let mut command = Command::new(program);
    command.args(&argv[1..]).process_group(0).stdin(Stdio::null());
    if let Some(name) = user {
        let account = user::find(name)
            .ok_or_else(|| io::Error::other(format!("there is no user `{name}` in this container")))?;
        command.uid(account.uid).gid(account.gid);
        command.envs(account.home.map(|home| ("HOME", home)));
    }
    let said = |error: io::Error| {
        io::Error::new(error.kind(), format!("could not start {}: {error}", program.display()))
    };
    let child = command.stdout(output.try_clone()?).stderr(output).spawn().map_err(said)?;
    Pid::from_raw(child.id().cast_signed()).ok_or_else(|| io::Error::other("it has no number"))
}
