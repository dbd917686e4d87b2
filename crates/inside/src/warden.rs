//! A warden: one process for one connection. It starts the command, carries its streams, tells its end, and sees to it that nothing of its
//! tree outlives the wish that it ends.
//!
//! It is who orphans of the tree are given to (a *subreaper*), so nothing escapes by forking twice or by beginning a session of its own;
//! and when it has no child left, nothing is left. Where the kernel knows no subreapers (gVisor) the tree bears a mark in its environment instead.
//!
//! ```text
//!   running ── the command ends by itself ─► told at once ─► lingers while something of its own lives on, and drains what that says
//!      └── Cofer says `end`, or hangs up, or SIGTERM ─► SIGTERM to all ── grace ─► SIGKILL to all, until none is left ─► told
//! ```

use std::os::fd::{AsFd as _, BorrowedFd};
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use cofer_inside::tree::{self, Asked, Relative};
use cofer_inside::{Deed, End, Garbled, How, Order, Reason, Run, STDIN_WINDOW_BYTES, Word};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus};

use crate::bell::Bell;
use crate::files;
use crate::host::{Expected, Host, Line};
use crate::job::{self, Job, Refusal};

/// For the tree of a command whose Cofer hung up.
const GRACE: Duration = Duration::from_secs(2);
const KILL_AGAIN_AFTER: Duration = Duration::from_millis(10);
/// A terminal says its last words in its own time; and whoever still holds it need not be waited for.
const TERMINAL_LAST_WORDS_MAX: Duration = Duration::from_millis(100);
/// For who escaped, or came after all others were asked to end.
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(100);
const MARK: &str = "COFER_COMMAND";
const DRAIN_BYTES: usize = 16 << 10;
/// What a person types to say that there is no more.
const END_OF_TYPING: u8 = 4;

/// How a warden and the first process end when somebody would not: as if by SIGKILL.
pub const FORCED: u8 = 137;

pub fn warden_main(container_user: Option<&str>) -> ExitCode {
    let Ok(mut host) = Host::take_over() else { return ExitCode::FAILURE };
    match host.request() {
        Ok(Deed::Ping) => host.say(&Word::Pong),
        Ok(Deed::Own { path, uid, gid }) => host.say(&files::own(&path, uid, gid)),
        Ok(Deed::Wipe { path }) => host.say(&files::wipe(&path)),
        Ok(Deed::Run(run)) => return watch(host, &run, container_user),
        Err(Garbled) => {
            let text = "the helper in this container does not understand the request; it may be older than this Cofer: make the environment anew";
            host.say(&Word::Refused(Reason::NotUnderstood, text.to_owned()));
        }
    }
    host.finish();
    ExitCode::SUCCESS
}

fn watch(mut host: Host, run: &Run, container_user: Option<&str>) -> ExitCode {
    // A session of its own: what belongs to this command is known by it, should this process be killed.
    let _ = rustix::process::setsid();
    let tree = Tree::begin();
    let started = Bell::listen()
        .map_err(|error| Refusal(Reason::Failed, format!("could not listen for signals: {error}")))
        .and_then(|bell| Ok((bell, job::start(run, container_user, tree.variable())?)));
    match started {
        Ok((bell, job)) => {
            host.say(&Word::Started);
            let killed = Watch::new(host, job, bell, tree).keep();
            if killed { ExitCode::from(FORCED) } else { ExitCode::SUCCESS }
        }
        Err(Refusal(reason, text)) => {
            host.say(&Word::Refused(reason, text));
            host.finish();
            ExitCode::FAILURE
        }
    }
}

struct Watch {
    /// None once it hung up, or knows the end.
    host: Option<Host>,
    job: Job,
    tree: Tree,
    bell: Bell,
    stdin: Stdin,
    status: Option<WaitStatus>,
    how: Option<How>,
    ending: Option<Ending>,
    /// Set when the end may be told as soon as what was said before it is: how long a terminal is waited for.
    last_words: Option<Instant>,
    told: bool,
}

/// What the command has not read yet.
#[derive(Default)]
struct Stdin {
    waiting: Vec<u8>,
    closes: bool,
}

struct Ending {
    kill_at: Instant,
    asked: Asked,
    killed: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Family {
    Lives,
    Gone,
}

/// Something that can be waited for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Source {
    Bell,
    HostSays,
    HostListens,
    Stdin,
    Output(usize),
}

impl Watch {
    fn new(host: Host, job: Job, bell: Bell, tree: Tree) -> Self {
        Self {
            host: Some(host),
            job,
            tree,
            bell,
            stdin: Stdin::default(),
            status: None,
            how: None,
            ending: None,
            last_words: None,
            told: false,
        }
    }

    /// Whether anybody had to be killed.
    fn keep(mut self) -> bool {
        loop {
            let family = self.reap();
            if self.bell.end_was_asked() {
                self.end_within(GRACE);
            }
            self.tell_the_end_if_it_is_time(family);
            if self.host.as_mut().is_some_and(|host| host.flush() == Line::HungUp) {
                self.hung_up();
            }
            if self.told && self.host.as_ref().is_some_and(|host| !host.has_something_to_say()) {
                self.host = None;
            }
            if family == Family::Gone && (self.told || self.host.is_none()) {
                if let Some(host) = self.host {
                    host.finish();
                }
                return self.ending.is_some_and(|ending| ending.killed);
            }
            self.end_who_is_left();
            // The last first, because an output that is at its end is taken out of the list.
            for source in self.wait().into_iter().rev() {
                self.attend(source);
            }
        }
    }

    fn reap(&mut self) -> Family {
        loop {
            match rustix::process::wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) if pid == self.job.pid => {
                    self.status = Some(status);
                    if self.ending.is_none() {
                        self.how = Some(How::Exited);
                    }
                }
                Ok(Some(_)) | Err(Errno::INTR) => {}
                Ok(None) => return Family::Lives,
                Err(_no_child) if self.tree.has_escaped() => return Family::Lives,
                Err(_no_child) => return Family::Gone,
            }
        }
    }

    fn end_within(&mut self, grace: Duration) {
        let at = Instant::now() + grace;
        if let Some(ending) = &mut self.ending {
            ending.kill_at = ending.kill_at.min(at);
            return;
        }
        self.ending = Some(Ending { kill_at: at, asked: Asked::default(), killed: false });
    }

    /// Asks who is left, or kills them when their time is over.
    fn end_who_is_left(&mut self) {
        if let Some(ending) = &mut self.ending {
            ending.killed |= ending.asked.to_end_by(ending.kill_at, self.tree.members());
        }
    }

    /// By itself: when the command has ended, whatever it left behind. By order: when nothing is left. Then what was said before comes
    /// first, so much as there is by then.
    fn tell_the_end_if_it_is_time(&mut self, family: Family) {
        if self.told {
            return;
        }
        if family == Family::Gone && self.how.is_none() {
            let killed = self.ending.as_ref().is_some_and(|ending| ending.killed);
            self.how = Some(if killed { How::Killed } else { How::Terminated });
        }
        let Some(how) = self.how else { return };
        if self.has_last_words() {
            return;
        }
        for output in &mut self.job.outputs {
            output.left = None;
        }
        self.told = true;
        let code = self.status.and_then(WaitStatus::exit_status);
        let signal = self.status.and_then(WaitStatus::terminating_signal);
        if let Some(host) = &mut self.host {
            host.say(&Word::Ended(End { code, signal, how }));
        }
    }

    /// Whether something that was said before the end is still to be passed on.
    fn has_last_words(&mut self) -> bool {
        let on_terminal = self.job.terminal.is_some();
        let said_by = *self.last_words.get_or_insert_with(|| {
            for output in &mut self.job.outputs {
                let in_pipe = rustix::io::ioctl_fionread(&output.fd).unwrap_or(0);
                output.left = Some(if on_terminal { u64::MAX } else { in_pipe });
            }
            Instant::now() + TERMINAL_LAST_WORDS_MAX
        });
        let in_time = !on_terminal || Instant::now() < said_by;
        self.host.is_some() && in_time && self.job.outputs.iter().any(|output| output.left > Some(0))
    }

    fn hung_up(&mut self) {
        self.host = None;
        if !self.told {
            self.end_within(GRACE);
        }
    }

    /// Until something happens; tells what.
    fn wait(&self) -> Vec<Source> {
        let watched = self.watched();
        let mut polled: Vec<_> =
            watched.iter().map(|(_, fd, flags)| PollFd::from_borrowed_fd(*fd, *flags)).collect();
        let timeout = self.patience().and_then(|patience| Timespec::try_from(patience).ok());
        // Interrupted means that a signal came, and the bell will say so.
        let _ = rustix::event::poll(&mut polled, timeout.as_ref());
        let happened = polled.iter().zip(&watched).filter(|(polled, _)| !polled.revents().is_empty());
        happened.map(|(_, (source, ..))| *source).collect()
    }

    fn patience(&self) -> Option<Duration> {
        let now = Instant::now();
        let kill = self.ending.as_ref().map(|ending| {
            ending.kill_at.saturating_duration_since(now).clamp(KILL_AGAIN_AFTER, LOOK_AGAIN_AFTER)
        });
        let last_words = self.last_words.filter(|_| !self.told && self.job.terminal.is_some());
        let last_words = last_words.map(|at| at.saturating_duration_since(now));
        // Nobody tells of the end of those who are no children.
        let escaped = self.tree.mark.as_ref().map(|_| LOOK_AGAIN_AFTER);
        kill.into_iter().chain(last_words).chain(escaped).min()
    }

    fn watched(&self) -> Vec<(Source, BorrowedFd<'_>, PollFlags)> {
        let mut watched = vec![(Source::Bell, self.bell.rings.as_fd(), PollFlags::IN)];
        let mut has_room = true;
        if let Some(host) = &self.host {
            watched.push((Source::HostSays, host.input.as_fd(), PollFlags::IN));
            if host.has_something_to_say() {
                has_room = false;
                watched.push((Source::HostListens, host.output.as_fd(), PollFlags::OUT));
            }
        }
        if let Some(stdin) = self.job.stdin.as_ref().filter(|_| !self.stdin.waiting.is_empty()) {
            watched.push((Source::Stdin, stdin.as_fd(), PollFlags::OUT));
        }
        let outputs =
            self.job.outputs.iter().enumerate().filter(|(_, output)| has_room && output.left != Some(0));
        watched
            .extend(outputs.map(|(index, output)| (Source::Output(index), output.fd.as_fd(), PollFlags::IN)));
        watched
    }

    fn attend(&mut self, source: Source) {
        match source {
            Source::Bell => self.bell.silence(),
            Source::HostSays => self.listen(),
            // Everything is said in `keep`.
            Source::HostListens => {}
            Source::Stdin => self.feed(),
            Source::Output(index) => self.pass_on(index),
        }
    }

    /// Takes what Cofer says. Whoever speaks in riddles is taken for one who hung up.
    fn listen(&mut self) {
        let Some(host) = &mut self.host else { return };
        let line = host.read();
        let mut frames = Vec::new();
        let understood = loop {
            match host.take_frame(Expected::Order) {
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => break true,
                Err(Garbled) => break false,
            }
        };
        let obeyed = frames.iter().all(|(kind, payload)| self.obey(*kind, payload).is_ok());
        if line == Line::HungUp || !understood || !obeyed {
            self.hung_up();
        }
    }

    fn obey(&mut self, kind: u8, payload: &[u8]) -> Result<(), Garbled> {
        match Order::parse(kind, payload)? {
            Order::Stdin(bytes) if self.stdin.closes => self.taken(bytes.len()),
            Order::Stdin(bytes) => {
                if self.stdin.waiting.len() + bytes.len() > STDIN_WINDOW_BYTES {
                    return Err(Garbled);
                }
                self.stdin.waiting.extend(bytes);
                self.feed();
            }
            Order::CloseStdin => {
                self.stdin.closes = true;
                self.feed();
            }
            Order::Resize(size) => {
                if let Some(terminal) = &self.job.terminal {
                    let _ = job::resize(terminal, size);
                }
            }
            Order::End { grace_ms } => self.end_within(Duration::from_millis(grace_ms.into())),
        }
        Ok(())
    }

    /// Gives the command what it takes of its stdin.
    fn feed(&mut self) {
        let written = match (&self.job.stdin, self.stdin.waiting.as_slice()) {
            (_, []) => 0,
            (None, waiting) => waiting.len(),
            (Some(stdin), waiting) => match rustix::io::write(stdin, waiting) {
                Ok(written) => written,
                Err(Errno::AGAIN | Errno::INTR) => 0,
                // Nobody will ever read it.
                Err(_) => {
                    let length = waiting.len();
                    self.job.stdin = None;
                    length
                }
            },
        };
        self.stdin.waiting.drain(..written);
        self.taken(written);
        if self.stdin.closes && self.stdin.waiting.is_empty() {
            let stdin = self.job.stdin.take();
            if let Some(typed) = stdin.filter(|_| self.job.terminal.is_some()) {
                // A terminal is not closed: this is typed on it. One that is full of what nobody reads needs no end either.
                let _ = rustix::io::write(&typed, &[END_OF_TYPING]);
            }
        }
    }

    fn taken(&mut self, bytes: usize) {
        if let (Some(host), Ok(bytes @ 1..)) = (&mut self.host, u32::try_from(bytes)) {
            host.say(&Word::Taken(bytes));
        }
    }

    /// Carries what the command says to Cofer; to nobody, when the end is told or nobody listens.
    fn pass_on(&mut self, index: usize) {
        let Some(output) = self.job.outputs.get_mut(index) else { return };
        let read = match self.host.as_mut().filter(|_| !self.told) {
            Some(host) => {
                let left = output.left.and_then(|left| usize::try_from(left).ok());
                host.relay(output.kind, &output.fd, left.unwrap_or(usize::MAX))
            }
            None => rustix::io::read(&output.fd, &mut [0; DRAIN_BYTES]),
        };
        match read {
            Ok(length @ 1..) => output.left = output.left.map(|left| left.saturating_sub(length as u64)),
            Err(Errno::AGAIN | Errno::INTR) => {}
            // A terminal that nobody has any more says so by an error.
            Ok(0) | Err(_) => _ = self.job.outputs.remove(index),
        }
    }
}

/// Who belongs to the command.
struct Tree {
    /// What all of it has in its environment, where orphans are not given to us.
    mark: Option<String>,
}

impl Tree {
    fn begin() -> Self {
        let adopts = rustix::process::set_child_subreaper(Some(rustix::process::getpid())).is_ok()
            && rustix::process::child_subreaper().is_ok_and(|adopts| adopts.is_some());
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { mark: (!adopts).then(|| format!("{}-{}", std::process::id(), since_1970.as_nanos())) }
    }

    fn variable(&self) -> Option<(&str, &str)> {
        self.mark.as_deref().map(|mark| (MARK, mark))
    }

    fn escaped(&self) -> Vec<Relative> {
        self.mark
            .as_ref()
            .map(|mark| tree::bearers_of(format!("{MARK}={mark}").as_bytes()))
            .unwrap_or_default()
    }

    fn has_escaped(&self) -> bool {
        !self.escaped().is_empty()
    }

    fn members(&self) -> impl Iterator<Item = Relative> {
        tree::descendants_of(rustix::process::getpid()).into_iter().chain(self.escaped())
    }
}

/// Everything that a warden who was killed has left behind.
pub fn sweep(warden: Pid) {
    for process in tree::members_of_session(warden) {
        process.signal(Signal::KILL);
    }
}
