//! Starting a command: with pipes, or on a terminal of its own.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};

use cofer_inside::{Reason, Run, Size, Word};
use rustix::fs::{Mode, OFlags};
use rustix::process::Pid;
use rustix::pty::OpenptFlags;
use rustix::termios::Winsize;

use crate::user::{self, Account};

/// This program, however it is called and whatever became of its name.
pub const OURSELVES: &str = "/proc/self/exe";
/// The mode in which it becomes a command on a terminal.
pub const STEP: &str = "step";
/// A shell's codes for a program that is missing, or is none.
pub const NOT_FOUND_CODE: u8 = 127;
pub const NOT_ALLOWED_CODE: u8 = 126;

/// A command that runs, and the ends of its streams that are ours.
pub struct Job {
    pub pid: Pid,
    pub stdin: Option<OwnedFd>,
    pub outputs: Vec<Output>,
    pub terminal: Option<OwnedFd>,
}

pub struct Output {
    pub fd: OwnedFd,
    /// Of the frames that carry it.
    pub kind: u8,
    /// How much of it is still waited for, once the command has ended.
    pub left: Option<u64>,
}

pub struct Refusal(pub Reason, pub String);

impl Refusal {
    fn of(what: &str, error: &io::Error) -> Self {
        let reason = match error.kind() {
            io::ErrorKind::NotFound => Reason::NotFound,
            io::ErrorKind::PermissionDenied => Reason::NotAllowed,
            _ => Reason::Failed,
        };
        Self(reason, format!("{what}: {error}"))
    }
}

/// Starts it, as the container's user if it does not say whom, with a variable more for its whole tree if there is a mark.
pub fn start(run: &Run, container_user: Option<&str>, mark: Option<(&str, &str)>) -> Result<Job, Refusal> {
    let program = run.argv.first().map(|program| OsStr::from_bytes(program));
    let Some(program) = program.filter(|program| !program.is_empty()) else {
        return Err(Refusal(Reason::NotUnderstood, "there is no command".to_owned()));
    };
    let mut command = Command::new(if run.terminal.is_some() { OURSELVES.as_ref() } else { program });
    let arguments = run.argv.iter().map(|part| OsString::from_vec(part.clone()));
    match run.terminal {
        Some(_) => command.arg(STEP).args(arguments),
        None => command.args(arguments.skip(1)).process_group(0),
    };
    if let Some(workdir) = &run.workdir {
        let workdir = Path::new(OsStr::from_bytes(workdir));
        if !workdir.is_dir() {
            return Err(Refusal(
                Reason::NotFound,
                format!("the directory {} is not there", workdir.display()),
            ));
        }
        command.current_dir(workdir);
    }
    become_user(&mut command, run, container_user)?;
    let named = |(name, value): &(Vec<u8>, Vec<u8>)| {
        (OsString::from_vec(name.clone()), OsString::from_vec(value.clone()))
    };
    command.envs(run.environment.iter().map(named)).envs(mark);
    let started = match run.terminal {
        Some(size) => on_terminal(&mut command, size),
        None => with_pipes(&mut command, run.stdin),
    };
    started.map_err(|error| Refusal::of(&format!("could not start {}", program.display()), &error))
}

fn become_user(command: &mut Command, run: &Run, container_user: Option<&str>) -> Result<(), Refusal> {
    let account = match (run.user, container_user) {
        (Some((uid, gid)), _) => Account { uid, gid, home: None },
        (None, None) => return Ok(()),
        (None, Some(name)) => user::find(name).ok_or_else(|| {
            Refusal(Reason::NotFound, format!("there is no user `{name}` in this container"))
        })?,
    };
    let is_us = rustix::process::geteuid().as_raw() == account.uid
        && rustix::process::getegid().as_raw() == account.gid;
    if is_us {
        return Ok(());
    }
    command.uid(account.uid).gid(account.gid);
    if let Some(home) = account.home {
        command.env("HOME", home);
    }
    Ok(())
}

fn with_pipes(command: &mut Command, stdin: bool) -> io::Result<Job> {
    command.stdin(if stdin { Stdio::piped() } else { Stdio::null() });
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let stdin = child.stdin.take().map(OwnedFd::from);
    let outputs = [
        child.stdout.take().map(|pipe| (pipe.into(), Word::STDOUT)),
        child.stderr.take().map(|pipe| (pipe.into(), Word::STDERR)),
    ];
    let outputs = outputs.into_iter().flatten().map(|(fd, kind)| Output { fd, kind, left: None }).collect();
    Job { pid: pid(&child)?, stdin, outputs, terminal: None }.without_waiting()
}

fn on_terminal(command: &mut Command, size: Size) -> io::Result<Job> {
    let terminal = rustix::pty::openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    rustix::pty::grantpt(&terminal)?;
    rustix::pty::unlockpt(&terminal)?;
    let name = rustix::pty::ptsname(&terminal, Vec::new())?;
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    let its_side = File::from(rustix::fs::open(name.as_c_str(), flags, Mode::empty())?);
    resize(&terminal, size)?;
    command.stdin(its_side.try_clone()?).stdout(its_side.try_clone()?).stderr(its_side);
    let child = command.spawn()?;
    let output = Output { fd: terminal.try_clone()?, kind: Word::STDOUT, left: None };
    let stdin = Some(terminal.try_clone()?);
    Job { pid: pid(&child)?, stdin, outputs: vec![output], terminal: Some(terminal) }.without_waiting()
}

fn pid(child: &Child) -> io::Result<Pid> {
    Pid::from_raw(child.id().cast_signed()).ok_or_else(|| io::Error::other("it has no number"))
}

impl Job {
    fn without_waiting(self) -> io::Result<Self> {
        let fds = self.outputs.iter().map(|output| &output.fd).chain(&self.stdin);
        fds.into_iter().try_for_each(|fd| rustix::io::ioctl_fionbio(fd, true))?;
        Ok(self)
    }
}

pub fn resize(terminal: &OwnedFd, size: Size) -> io::Result<()> {
    let Size { rows, columns } = size;
    let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    Ok(rustix::termios::tcsetwinsize(terminal, size)?)
}

/// Becomes the command, as the first of a session whose terminal is the one on standard input.
pub fn step_main(argv: impl Iterator<Item = OsString>) -> ExitCode {
    let mut argv = argv;
    let Some(program) = argv.next() else { return ExitCode::from(NOT_FOUND_CODE) };
    let settled = rustix::process::setsid()
        .and_then(|_| rustix::process::ioctl_tiocsctty(io::stdin()))
        .map_err(io::Error::from);
    let error = settled.map_or_else(|error| error, |()| Command::new(&program).args(argv).exec());
    complain(&format!("could not start {}: {error}", program.display()));
    code_of(&error)
}

/// Whoever reads stderr hears it.
pub fn complain(text: &str) {
    let _ = io::Write::write_all(&mut io::stderr(), format!("cofer: {text}\n").as_bytes());
}

pub fn code_of(error: &io::Error) -> ExitCode {
    let is_missing = error.kind() == io::ErrorKind::NotFound;
    ExitCode::from(if is_missing { NOT_FOUND_CODE } else { NOT_ALLOWED_CODE })
}
