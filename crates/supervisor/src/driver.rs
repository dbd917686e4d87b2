//! Performs what the [`machine`](crate::machine) decides: one loop, which waits for channels and the clock and nothing else.
//!
//! ```text
//!   handle ── inbox ──►┐            ┌─► tasks (JoinSet): launch, greet, look, destroy … each with a deadline
//!   handle ── hint ───►│  machine ──┤        │
//!   clock ── tick ────►│            └─► watch: truth, live
//!   tasks ── outcome ─►┘◄────────────────────┘
//! ```
//!
//! Every task is in the set and ends in exactly one outcome, also when it panics; when the loop ends they all end.

use std::sync::Arc;

use cofer_mcp::Notification;
use cofer_model::{Moment, ServerId, ServerName};
use cofer_sandbox::{Owner, Provider, SandboxId};
use tokio::sync::{broadcast, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::live::{Live, Stage};
use crate::machine::{Command, Event, Machine, News, Now};
use crate::plan::Planner;
use crate::rules::Rules;
use crate::start::{Made, NotMade};
use crate::supervised::{History, Shared};
use crate::truth::Truth;

mod perform;

pub(crate) struct Driver {
    pub id: ServerId,
    pub name: ServerName,
    pub planner: Arc<dyn Planner>,
    pub rules: Arc<Rules>,
    pub history: History,
    pub shared: Arc<Shared>,
    pub machine: Machine,
    /// What the live run has, or the one that may be adopted.
    pub held: Option<Held>,
    pub tasks: JoinSet<Done>,
    /// How many attempts were made. A run that is taken over again keeps its number; what was asked of it before is old news.
    pub attempts: u64,
    pub truth: watch::Sender<Truth>,
    pub stage: watch::Sender<Stage>,
    pub progress: watch::Sender<(u64, String)>,
    /// Nobody holds the handle any more.
    pub abandoned: CancellationToken,
}

/// What is there of one run.
pub(crate) struct Held {
    pub run: u64,
    /// The run is over, or is to be.
    pub cancel: CancellationToken,
    pub sandbox: Option<(Arc<dyn Provider>, SandboxId)>,
    pub sweep: Option<(Arc<dyn Provider>, Owner)>,
    pub made: Option<Made>,
    pub tools_watched: bool,
}

impl Held {
    pub(crate) fn new(run: u64, sandbox: Option<(Arc<dyn Provider>, SandboxId)>) -> Self {
        Self { run, cancel: CancellationToken::new(), sandbox, sweep: None, made: None, tools_watched: false }
    }
}

pub(crate) struct Done {
    run: u64,
    /// During which attempt it was asked.
    attempt: u64,
    outcome: Outcome,
}

/// What comes of a task.
enum Outcome {
    Made(Box<Made>),
    NotMade(NotMade),
    News(News),
    Tools {
        count: Option<u64>,
        said: broadcast::Receiver<Arc<Notification>>,
    },
    /// The run ended meanwhile.
    Nothing,
}

/// Everything that may happen.
enum Cause {
    Commands(Vec<Command>, u64),
    Done(Done),
    Progress(u64, String),
    Hint,
    Tick,
    Abandoned,
}

impl Driver {
    pub(crate) async fn run(mut self) {
        let mut progress = self.progress.subscribe();
        while !self.machine.is_over() {
            let deadline = self.machine.next_deadline().map(Instant::from_std);
            let cause = tokio::select! {
                biased;
                () = self.abandoned.cancelled() => Cause::Abandoned,
                Some(done) = self.tasks.join_next() => match done {
                    Ok(done) => Cause::Done(done),
                    // Tasks catch their panics and are aborted only with this loop.
                    Err(_) => continue,
                },
                (commands, seen) = self.shared.inbox.commands() => Cause::Commands(commands, seen),
                () = self.shared.hint.notified() => Cause::Hint,
                Ok(()) = progress.changed() => {
                    let (run, progress) = progress.borrow_and_update().clone();
                    Cause::Progress(run, progress)
                }
                () = sleep_until(deadline.unwrap_or_else(Instant::now)), if deadline.is_some() => Cause::Tick,
            };
            match cause {
                Cause::Commands(commands, seen) => {
                    for command in commands {
                        self.step(Event::Command(command));
                    }
                    self.machine.has_seen(seen);
                }
                Cause::Done(done) => self.settle(done),
                Cause::Progress(run, progress) => self.news(run, News::Progress(progress)),
                Cause::Hint => self.step(Event::Hint),
                Cause::Tick => self.step(Event::Tick),
                Cause::Abandoned => break,
            }
            self.publish();
        }
        if let Some(held) = &self.held {
            held.cancel.cancel();
        }
        tracing::debug!(server.id = %self.id, "server {} is no longer supervised", self.name.as_str());
    }

    fn step(&mut self, event: Event) {
        let now = Now { at: Instant::now().into_std(), wall: Moment::now() };
        for effect in self.machine.step(now, event) {
            self.perform(effect);
        }
    }

    fn news(&mut self, run: u64, news: News) {
        self.step(Event::News { run, news });
    }

    /// Opens to calls before it is told ready: who reads that it is, and calls at once, is answered.
    fn publish(&self) {
        let open = self.machine.open_run();
        self.stage.send_if_modified(|stage| {
            let takes_calls = open.is_some() && stage.live.as_ref().map(|live| live.run) == open;
            std::mem::replace(&mut stage.takes_calls, takes_calls) != takes_calls
        });
        let truth = self.machine.truth();
        self.truth.send_if_modified(|old| {
            let changed = *old != truth;
            if changed {
                *old = truth;
            }
            changed
        });
    }

    /// A task has come to its end.
    fn settle(&mut self, Done { run, attempt, outcome }: Done) {
        if attempt != self.attempts {
            return;
        }
        let Some(held) = self.held.as_mut().filter(|held| held.run == run) else { return };
        match outcome {
            Outcome::Nothing => {}
            Outcome::Made(made) => {
                held.sandbox = Some((made.plan.provider.clone(), made.sandbox.clone()));
                self.stage.send_replace(Stage { live: Some(Arc::new(live(run, &made))), takes_calls: false });
                let about = Box::new(made.about());
                if let Some(pump) = made.pump.clone() {
                    self.spawn(run, None, Outcome::News(News::BridgeEnded), async move {
                        pump.ended().await;
                        Outcome::News(News::BridgeEnded)
                    });
                }
                if let Some(held) = &mut self.held {
                    held.made = Some(*made);
                    held.tools_watched = false;
                }
                self.news(run, News::Launched(about));
            }
            Outcome::NotMade(NotMade { failure, sweep }) => {
                held.sweep = sweep;
                self.news(run, News::StartFailed(failure));
            }
            Outcome::News(News::Destroyed(Ok(()))) => {
                self.held = None;
                self.stage.send_replace(Stage::default());
                self.news(run, News::Destroyed(Ok(())));
            }
            Outcome::News(news) => self.news(run, news),
            Outcome::Tools { count, said } => {
                self.watch_tools(run, said);
                if let Some(count) = count {
                    self.news(run, News::Tools(count));
                }
            }
        }
    }
}

fn live(run: u64, made: &Made) -> Live {
    Live {
        run,
        provider: made.plan.provider.clone(),
        sandbox: made.sandbox.clone(),
        pump: made.pump.clone(),
        born_at: made.born_at,
    }
}
