//! Each effect as a task: with a deadline, and with one outcome whatever becomes of it.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use cofer_mcp::Notification;
use cofer_model::Kind;
use cofer_sandbox::ProgressSink;
use futures_util::FutureExt;
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;

use super::{Done, Driver, Held, Outcome};
use crate::errands::{self, Peer};
use crate::machine::{Checked, Effect, News, Seen};
use crate::rules::Rules;
use crate::start::{self, Attempt, Made, NotMade};

impl Driver {
    pub(super) fn perform(&mut self, effect: Effect) {
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
    pub(super) fn spawn(
        &mut self,
        run: u64,
        limit: Option<Duration>,
        otherwise: Outcome,
        task: impl Future<Output = Outcome> + Send + 'static,
    ) {
        let attempt = self.attempts;
        self.tasks.spawn(async move {
            let task = AssertUnwindSafe(task).catch_unwind();
            let outcome = match limit {
                Some(limit) => tokio::time::timeout(limit, task).await.ok().and_then(Result::ok),
                None => task.await.ok(),
            };
            Done { run, attempt, outcome: outcome.unwrap_or(otherwise) }
        });
    }

    fn attempt(&mut self, run: u64) {
        self.attempts += 1;
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
        let failed = NotMade::clean(Kind::Internal, "the start came to no end");
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

    pub(super) fn watch_tools(&mut self, run: u64, mut said: broadcast::Receiver<Arc<Notification>>) {
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
