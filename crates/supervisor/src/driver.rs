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
use std::time::Duration;

use cofer_mcp::Notification;
use cofer_model::{Kind, Moment, ServerId, ServerName};
use cofer_sandbox::{Owner, ProgressSink, Provider, SandboxId};
use futures_util::FutureExt;
use std::panic::AssertUnwindSafe;
use tokio::sync::{broadcast, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::errands::{self, Peer};
use crate::live::{Live, Stage};
use crate::machine::{Checked, Command, Effect, Event, Machine, News, Now, Seen};
use crate::plan::Planner;
use crate::rules::Rules;
use crate::start::{self, Attempt, Made, NotMade};
use crate::supervised::{History, Shared};
use crate::truth::Truth;

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
                    commands.into_iter().for_each(|command| self.step(Event::Command(command)));
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

    fn publish(&self) {
        let truth = self.machine.truth();
        self.truth.send_if_modified(|old| {
            let changed = *old != truth;
            if changed {
                *old = truth;
            }
            changed
        });
        let open = self.machine.open_run();
        self.stage.send_if_modified(|stage| {
            let takes_calls = open.is_some() && stage.live.as_ref().map(|live| live.run) == open;
            std::mem::replace(&mut stage.takes_calls, takes_calls) != takes_calls
        });
    }

    /// A task has come to its end.
    fn settle(&mut self, Done { run, outcome }: Done) {
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
            Outcome::NotMade(NotMade { kind, message, sweep }) => {
                held.sweep = sweep;
                self.news(run, News::StartFailed { kind, message });
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

    fn perform(&mut self, effect: Effect) {
        match effect {
            Effect::Record(event) => {
                tracing::info!(server.id = %self.id, kind = %event.kind, "server {}: {}", self.name.as_str(), event.message);
                (self.history)(self.id, event);
            }
            Effect::Launch { run } => {
                self.held = Some(Held::new(run, None));
                self.attempt(run);
            }
            Effect::Adopt { run } => self.attempt(run),
            Effect::Cancel { run } => self.with(run, |held| held.cancel.cancel()),
            Effect::CloseBridge { run } => self.with(run, |held| {
                if let Some(pump) = held.made.as_ref().and_then(|made| made.pump.as_ref()) {
                    pump.close();
                }
            }),
            Effect::StopAndDestroy { run, grace } => self.tear_down(run, Some(grace)),
            Effect::Destroy { run } => self.tear_down(run, None),
            Effect::Greet { run } => self.greet(run),
            Effect::Listen { run } => self.listen(run),
            Effect::Check { run } => self.check(run),
            Effect::Look { run } => self.look(run),
            Effect::CountTools { run } => self.count_tools(run),
        }
    }

    fn with(&mut self, run: u64, act: impl FnOnce(&mut Held)) {
        if let Some(held) = self.held.as_mut().filter(|held| held.run == run) {
            act(held);
        }
    }

    /// Runs a task to one outcome, also when it panics or takes longer than it may.
    fn spawn(
        &mut self,
        run: u64,
        limit: Option<Duration>,
        otherwise: Outcome,
        task: impl Future<Output = Outcome> + Send + 'static,
    ) {
        self.tasks.spawn(async move {
            let task = AssertUnwindSafe(task).catch_unwind();
            let outcome = match limit {
                Some(limit) => tokio::time::timeout(limit, task).await.ok().and_then(Result::ok),
                None => task.await.ok(),
            };
            Done { run, outcome: outcome.unwrap_or(otherwise) }
        });
    }

    fn attempt(&mut self, run: u64) {
        let progress = self.progress.clone();
        let progress: ProgressSink = Arc::new(move |said| _ = progress.send_replace((run, said)));
        let cancel = CancellationToken::new();
        // What was asked of the run before it is taken over again is asked no longer.
        self.with(run, |held| std::mem::replace(&mut held.cancel, cancel.clone()).cancel());
        let attempt = Attempt {
            run,
            planner: self.planner.clone(),
            rules: self.rules.clone(),
            book: self.shared.logs.clone(),
            publisher: self.shared.notifications.clone(),
            progress,
            cancel,
        };
        let adopted = self.held.as_ref().and_then(|held| held.sandbox.clone());
        let rules = &self.rules;
        // Each part of it has a deadline of its own; this is for what nobody thought of.
        let limit = rules.plan_timeout + rules.image_timeout + rules.launch_timeout + rules.engine_timeout;
        let failed =
            NotMade { kind: Kind::Internal, message: "the start came to no end".to_owned(), sweep: None };
        self.spawn(run, Some(limit), Outcome::NotMade(failed), async move {
            let made = match adopted {
                Some((provider, id)) => attempt.adopt(provider, id).await,
                None => attempt.launch().await,
            };
            made.map_or_else(Outcome::NotMade, |made| Outcome::Made(Box::new(made)))
        });
    }

    fn tear_down(&mut self, run: u64, grace: Option<Duration>) {
        let limit = self.rules.engine_timeout;
        let Some(held) = self.held.as_ref().filter(|held| held.run == run) else { return };
        held.cancel.cancel();
        let (sandbox, sweep) = (held.sandbox.clone(), held.sweep.clone());
        let pump = held.made.as_ref().and_then(|made| made.pump.clone());
        let panicked = Outcome::News(News::Destroyed(Err("removing it failed".to_owned())));
        self.spawn(run, Some(grace.unwrap_or_default() + 3 * limit), panicked, async move {
            let destroyed = match (sandbox, sweep) {
                (Some((provider, id)), _) => start::tear_down(provider, id, pump, grace, limit).await,
                (None, Some((provider, owner))) => start::sweep(provider, owner, limit).await,
                (None, None) => Ok(()),
            };
            Outcome::News(News::Destroyed(destroyed))
        });
    }

    /// A question to the live run, given up when the run is.
    fn errand<F: Future<Output = Option<News>> + Send + 'static>(
        &mut self,
        run: u64,
        limit: Option<Duration>,
        otherwise: Option<News>,
        ask: impl FnOnce(&Made, Arc<Rules>) -> F,
    ) {
        let Some(held) = self.held.as_ref().filter(|held| held.run == run) else { return };
        let (Some(made), cancel) = (&held.made, held.cancel.clone()) else { return };
        let ask = ask(made, self.rules.clone());
        let otherwise = otherwise.map_or(Outcome::Nothing, Outcome::News);
        self.spawn(run, limit, otherwise, async move {
            let news = cancel.run_until_cancelled_owned(ask).await.flatten();
            news.map_or(Outcome::Nothing, Outcome::News)
        });
    }

    fn greet(&mut self, run: u64) {
        let limit = 2 * self.rules.handshake_patience;
        self.errand(run, Some(limit), None, |made, rules| {
            Peer::of(made).greet(made.born_at.is_none(), rules)
        });
    }

    /// Has no deadline but the run's: it waits for as long as the server is silent.
    fn listen(&mut self, run: u64) {
        self.errand(run, None, None, |made, rules| {
            let heard = made.pump.as_ref().map_or(0, cofer_mcp::Pump::lines_heard);
            Peer::of(made).listen(heard, rules).map(Some)
        });
    }

    fn check(&mut self, run: u64) {
        let limit = 2 * self.rules.ping_timeout;
        self.errand(run, Some(limit), Some(News::Checked(Checked::Busy)), |made, rules| {
            let check = Peer::of(made).check(made.lines_at_check.clone(), rules);
            check.map(|checked| checked.map(News::Checked))
        });
    }

    fn look(&mut self, run: u64) {
        let limit = self.rules.engine_timeout;
        let unknown = News::Looked(Seen::Unknown("looking at it came to no end".to_owned()));
        self.errand(run, Some(2 * limit), Some(unknown), |made, _| {
            let (provider, sandbox) = (made.plan.provider.clone(), made.sandbox.clone());
            errands::look(provider, sandbox, made.pump.clone(), made.diary.clone(), limit)
                .map(|seen| Some(News::Looked(seen)))
        });
    }

    fn count_tools(&mut self, run: u64) {
        let Some(held) = self.held.as_mut().filter(|held| held.run == run) else { return };
        let Some(pump) = held.made.as_ref().and_then(|made| made.pump.clone()) else { return };
        if std::mem::replace(&mut held.tools_watched, true) {
            return self.errand(run, None, None, |_, _| async move {
                errands::count_tools(&pump).await.map(News::Tools)
            });
        }
        // From before the count, so that no change is missed.
        let said = pump.notifications();
        self.spawn(run, None, Outcome::Nothing, async move {
            Outcome::Tools { count: errands::count_tools(&pump).await, said }
        });
    }

    fn watch_tools(&mut self, run: u64, mut said: broadcast::Receiver<Arc<Notification>>) {
        let Some(held) = self.held.as_ref().filter(|held| held.run == run) else { return };
        let Some(pump) = held.made.as_ref().and_then(|made| made.pump.clone()) else { return };
        self.spawn(run, None, Outcome::Nothing, async move {
            match errands::tools_changed(&pump, &mut said).await {
                Some(()) => Outcome::Tools { count: errands::count_tools(&pump).await, said },
                None => Outcome::Nothing,
            }
        });
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
