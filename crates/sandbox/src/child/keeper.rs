//! Cofer's side of a child: waits for its guardian, and passes on who wants it to stop, and how patiently.
//!
//! | signal to the guardian | what it does |
//! |---|---|
//! | SIGHUP | asks the tree to end, and waits for a further signal (a minute at most) |
//! | SIGTERM | asks the tree to end, and kills it after its own grace of five seconds |
//! | SIGINT | kills the tree |
//!
//! A guardian that does not obey (somebody stopped it, say) is killed, and so is everything in its session. The same is done
//! when somebody else killed it.

use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;
use std::time::Duration;

use cofer_inside::{guarding, tree};
use rustix::process::{Pid, Signal};
use tokio::process::Child;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::last_words::LastWords;
use super::{ChildEnd, HowEnded};

pub(super) const SIGTERM: i32 = 15;
const SIGKILL: i32 = 9;
const NOT_STARTED: i32 = guarding::NOT_STARTED_CODE as i32;
/// How long a guardian may take to kill its tree.
const OBEDIENCE_MAX: Duration = Duration::from_secs(10);
/// How long the last of a child's stderr is waited for. Its writers are dead by then, unless they gave it to somebody else.
const LAST_WORDS_MAX: Duration = Duration::from_secs(1);
const SWEEP_ROUNDS_MAX: usize = 100;
const SWEEP_AGAIN_AFTER: Duration = Duration::from_millis(20);

pub(super) struct Keeper {
    guardian: Child,
    orders: mpsc::UnboundedReceiver<Duration>,
    last_words: LastWords,
    ending: watch::Sender<Option<ChildEnd>>,
    push: Option<Push>,
}

/// What is done next to a child that was asked to end, and when.
#[derive(Clone, Copy, Debug)]
struct Push {
    at: Instant,
    signal: Signal,
}

enum Cause {
    Ended(std::io::Result<ExitStatus>),
    Asked(Duration),
    LetGo,
    Impatience(Signal),
}

impl Keeper {
    pub(super) fn new(
        guardian: Child,
        orders: mpsc::UnboundedReceiver<Duration>,
        last_words: LastWords,
        ending: watch::Sender<Option<ChildEnd>>,
    ) -> Self {
        Self { guardian, orders, last_words, ending, push: None }
    }

    pub(super) async fn keep(mut self) {
        let session = self.pid();
        let mut held = true;
        let status = loop {
            let push = self.push;
            let cause = tokio::select! {
                status = self.guardian.wait() => Cause::Ended(status),
                order = self.orders.recv(), if held => order.map_or(Cause::LetGo, Cause::Asked),
                signal = wait_for(push), if push.is_some() => Cause::Impatience(signal),
            };
            match cause {
                Cause::Ended(status) => break status,
                Cause::Asked(grace) => self.ask(grace),
                Cause::LetGo => {
                    held = false;
                    self.let_go();
                }
                Cause::Impatience(signal) => self.insist(signal),
            }
        };
        let killed = status.as_ref().is_ok_and(|status| status.signal() == Some(SIGKILL));
        if let (true, Some(session)) = (killed, session) {
            sweep(session).await;
        }
        self.tell(status.ok()).await;
    }

    fn ask(&mut self, grace: Duration) {
        let at = Instant::now() + grace;
        if self.push.is_none_or(|push| push.signal == Signal::INT && at < push.at) {
            self.push = Some(Push { at, signal: Signal::INT });
        }
        self.signal(Signal::HUP);
    }

    /// The guardian has its own patience, which is waited for, and then some.
    fn let_go(&mut self) {
        self.push.get_or_insert(Push {
            at: Instant::now() + guarding::GRACE + OBEDIENCE_MAX,
            signal: Signal::KILL,
        });
        self.signal(Signal::TERM);
    }

    fn insist(&mut self, signal: Signal) {
        self.signal(signal);
        self.push = (signal != Signal::KILL)
            .then(|| Push { at: Instant::now() + OBEDIENCE_MAX, signal: Signal::KILL });
    }

    async fn tell(mut self, status: Option<ExitStatus>) {
        // Somebody else may hold its stderr.
        let _ = tokio::time::timeout(LAST_WORDS_MAX, &mut self.last_words.listening).await;
        let last_words = self.last_words.lines();
        let how = how_ended(status, last_words.last());
        self.ending.send_replace(Some(ChildEnd { how, last_words }));
    }

    /// None once it has been waited for, so that nobody else is ever signalled.
    fn pid(&self) -> Option<Pid> {
        Pid::from_raw(self.guardian.id()?.cast_signed())
    }

    fn signal(&self, signal: Signal) {
        if let Some(pid) = self.pid() {
            // It may have ended a moment ago.
            let _ = rustix::process::kill_process(pid, signal);
        }
    }
}

/// The runtime shuts down: nobody will wait, but the guardian knows what to do.
impl Drop for Keeper {
    fn drop(&mut self) {
        self.signal(Signal::TERM);
        self.last_words.listening.abort();
    }
}

async fn wait_for(push: Option<Push>) -> Signal {
    match push {
        Some(Push { at, signal }) => {
            tokio::time::sleep_until(at).await;
            signal
        }
        None => std::future::pending().await,
    }
}

fn how_ended(status: Option<ExitStatus>, last_line: Option<&String>) -> HowEnded {
    let code = status.and_then(|status| status.code());
    let signal = status.and_then(|status| status.signal());
    match (code, signal) {
        (Some(code), _)
            if code == NOT_STARTED
                && last_line.is_some_and(|line| line.starts_with(guarding::NOT_STARTED)) =>
        {
            HowEnded::NotStarted
        }
        (Some(code), _) => HowEnded::Exited { code },
        (None, signal) => HowEnded::Killed { signal: signal.unwrap_or(SIGKILL) },
    }
}

/// Kills whatever a guardian left that is dead itself.
async fn sweep(session: Pid) {
    for _ in 0..SWEEP_ROUNDS_MAX {
        let left = tree::members_of_session(session);
        if left.is_empty() {
            return;
        }
        for process in left {
            process.signal(Signal::KILL);
        }
        tokio::time::sleep(SWEEP_AGAIN_AFTER).await;
    }
}
