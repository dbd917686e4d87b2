//! The life of one server, decided in plain code: `step(now, event) -> effects`. It does nothing itself and has no clock.
//!
//! ```text
//!                 launch / adopt            launched               crash, stop, restart …
//!   Stopped ───────────────► Starting ─────────────► Running ─────────────────┐
//!      ▲                        │ failed, stopped     greeting → ready ⇄ silent │
//!      │                        ▼                                               ▼
//!      │◄────── then ─────── Stopping  ◄───────────────────────────────────────┘
//!      │                        │ then
//!      │                        ├──────► Starting           (restart)
//!      │                        ├──────► BackingOff ──timer──► Starting
//!      └── (policy, person)     └──────► Gone, Ended
//! ```
//!
//! Whatever was made is destroyed in `Stopping`, which is the only way out of `Starting` and `Running`: there is never a second
//! sandbox, and never one left. A *run* is one attempt; news of any other run than the live one is yesterday's and changes nothing.
//! What is to come after `Stopping` is the last word that was said meanwhile.

mod command;
mod crash;
mod news;
mod state;
mod telling;

#[cfg(test)]
mod properties;
#[cfg(test)]
mod stories;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cofer_model::{HostedEvent, Isolation, LastExit, Moment, ProviderName, RestartPolicy, Wanted};
use cofer_sandbox::{Endpoint, Exit, SandboxId};

use crate::plan::{Facts, Memory};
use crate::rules::Rules;
use crate::truth::StartFailure;
use state::{
    BackOff, BridgeLost, Errand, Running, Stage, State, StoppedBy, Then, Voice, Way, Why, status_of_start,
};

/// Both clocks, asked once per step: one for waiting, one for people.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Now {
    pub at: Instant,
    pub wall: Moment,
}

/// Everything that may happen.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    Command(Command),
    News {
        run: u64,
        news: News,
    },
    /// Somebody saw something: look whether it still runs.
    Hint,
    /// A deadline may have passed.
    Tick,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    Want(Wanted),
    /// A person wants it to run, now.
    Start,
    Restart,
    Reconfigure,
    Remove,
    ShutDown {
        grace: Duration,
    },
}

/// What became of an effect, or what the live run did by itself.
#[derive(Clone, Debug)]
pub(crate) enum News {
    Progress(String),
    Launched(Box<About>),
    StartFailed(StartFailure),
    Greeted(Facts),
    Spoke,
    Checked(Checked),
    Tools(u64),
    BridgeEnded,
    Looked(Seen),
    /// Nothing of the run is left; or why something may be.
    Destroyed(Result<(), String>),
}

/// What is known of a sandbox once it runs.
#[derive(Clone, Debug)]
pub(crate) struct About {
    pub sandbox: SandboxId,
    pub provider: ProviderName,
    pub isolation: Isolation,
    pub endpoints: Vec<Endpoint>,
    pub running_since: Moment,
    pub restart_policy: RestartPolicy,
    pub health_interval: Duration,
    pub bridged: bool,
    pub warnings: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Checked {
    /// It answered, or said something.
    Alive,
    /// It has other work: neither a sign of life nor of death.
    Busy,
    Missed,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    Running,
    Ended {
        exit: Exit,
        stderr_tail: String,
    },
    /// Somebody removed it.
    Gone {
        stderr_tail: String,
    },
    /// The engine does not say.
    Unknown(String),
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Effect {
    /// Draw up a plan, fetch the image, launch. Answered by `Launched` or `StartFailed`.
    Launch {
        run: u64,
    },
    /// Take over the sandbox of this run. Answered likewise; what else was asked of the run before is not answered any more.
    Adopt {
        run: u64,
    },
    /// Give up `Launch` or `Adopt` where that leaves nothing behind. They answer all the same.
    Cancel {
        run: u64,
    },
    /// Answered by `Greeted`, if at all.
    Greet {
        run: u64,
    },
    /// Answered by `Spoke`, if at all.
    Listen {
        run: u64,
    },
    /// Answered by `Checked`, unless the run ends.
    Check {
        run: u64,
    },
    CountTools {
        run: u64,
    },
    /// Answered by `Looked`.
    Look {
        run: u64,
    },
    /// Nobody is on the other end any more: whoever waits for an answer hears it.
    CloseBridge {
        run: u64,
    },
    /// Answered by `Destroyed`.
    StopAndDestroy {
        run: u64,
        grace: Duration,
    },
    Destroy {
        run: u64,
    },
    Record(HostedEvent),
}

#[derive(Debug)]
pub(crate) struct Machine {
    rules: Arc<Rules>,
    /// Added to each wait for an engine that is away.
    spread: Duration,
    state: State,
    /// The last word on whether it should run; nobody has spoken yet in this life when `None`.
    wanted: Option<Wanted>,
    run_next: u64,
    /// A sandbox that is there and not spoken to: of an earlier life of Cofer, or behind an engine that was away.
    leftover: Option<u64>,
    crashes: VecDeque<Instant>,
    /// How many delays of the crash loop were taken; 0 outside of one.
    crash_loop_step: usize,
    kept: Kept,
}

/// What is told and does not follow from the state.
#[derive(Debug, Default)]
struct Kept {
    seen: u64,
    run: u64,
    restart_count: u64,
    last_crash: Option<Moment>,
    last_exit: Option<LastExit>,
    facts: Facts,
    /// What there is, whether it runs or not.
    sandbox: Option<(SandboxId, ProviderName)>,
    greeted: bool,
    reason: Option<String>,
    progress: Option<String>,
    start_failure: Option<StartFailure>,
    /// It has been ready, in this life or an earlier one.
    was_ready: bool,
}

impl Machine {
    pub(crate) fn new(rules: Arc<Rules>, spread: Duration, memory: &Memory) -> Self {
        let leftover = memory.sandbox.as_ref();
        let run = memory.runs.max(leftover.map_or(0, |sandbox| sandbox.run));
        let kept = Kept {
            run,
            restart_count: memory.restart_count,
            last_crash: memory.last_crash,
            last_exit: memory.last_exit.clone(),
            facts: leftover.map(|sandbox| sandbox.facts.clone()).unwrap_or_default(),
            sandbox: leftover.map(|sandbox| (sandbox.id.clone(), sandbox.provider.name())),
            greeted: leftover.is_some_and(|sandbox| sandbox.greeted),
            was_ready: leftover.is_some(),
            ..Kept::default()
        };
        Self {
            rules,
            spread,
            state: State::Stopped,
            wanted: None,
            run_next: run + 1,
            leftover: leftover.map(|sandbox| sandbox.run),
            crashes: VecDeque::new(),
            crash_loop_step: 0,
            kept,
        }
    }

    pub(crate) fn step(&mut self, now: Now, event: Event) -> Vec<Effect> {
        let mut effects = Vec::new();
        match event {
            Event::Command(command) => self.obey(now, command, &mut effects),
            Event::News { run, news } => self.hear(now, run, news, &mut effects),
            Event::Hint => self.look(&mut effects),
            Event::Tick => self.tick(now, &mut effects),
        }
        effects
    }

    /// So many commands have been obeyed.
    pub(crate) fn has_seen(&mut self, commands: u64) {
        self.kept.seen = commands;
    }

    /// When a tick is due.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        match &self.state {
            State::Running(running) => running.deadlines(&self.rules, self.crash_loop_step > 0).min(),
            State::Stopping { stage: Stage::AgainAt(at), .. } => Some(*at),
            State::BackingOff(back_off) => Some(back_off.until),
            _ => None,
        }
    }

    /// The run that takes calls.
    pub(crate) fn open_run(&self) -> Option<u64> {
        match &self.state {
            State::Running(running) if running.takes_calls() => Some(running.run),
            _ => None,
        }
    }

    /// Nothing will happen any more.
    pub(crate) fn is_over(&self) -> bool {
        matches!(self.state, State::Gone | State::Ended)
    }

    fn tick(&mut self, now: Now, effects: &mut Vec<Effect>) {
        match &mut self.state {
            State::Running(_) => self.tick_running(now, effects),
            State::Stopping { run, stage, grace, .. } if stage.is_due(now.at) => {
                *stage = Stage::Destroying;
                effects.push(destruction(*run, *grace));
            }
            State::BackingOff(back_off) if back_off.until <= now.at => {
                let why = back_off.then;
                self.start(why, effects);
            }
            _ => {}
        }
    }

    fn tick_running(&mut self, now: Now, effects: &mut Vec<Effect>) {
        let State::Running(running) = &mut self.state else { return };
        let run = running.run;
        if running.silent_at().is_some_and(|at| at <= now.at) {
            self.falls_silent(now, "it has not answered the greeting", effects);
        }
        let State::Running(running) = &mut self.state else { return };
        if matches!(running.check, Errand::At(at) if at <= now.at) {
            running.check = Errand::Asked;
            effects.push(Effect::Check { run });
        }
        if matches!(running.look, Errand::At(at) if at <= now.at) {
            running.look = Errand::Asked;
            effects.push(Effect::Look { run });
        }
        if self.crash_loop_step > 0 && running.since + self.rules.stable <= now.at {
            self.leave_crash_loop(now, "it has run stably", effects);
        }
    }

    /// Looks whether it runs, unless that is being done.
    fn look(&mut self, effects: &mut Vec<Effect>) {
        if let State::Running(running) = &mut self.state
            && running.look != Errand::Asked
        {
            running.look = Errand::Asked;
            effects.push(Effect::Look { run: running.run });
        }
    }

    /// From a state in which nothing is live.
    fn start(&mut self, why: Why, effects: &mut Vec<Effect>) {
        if why == Why::Crashed {
            self.kept.restart_count += 1;
        }
        if why != Why::Again {
            self.kept.start_failure = None;
        }
        if matches!(why, Why::First | Why::Person | Why::Changed) {
            self.kept.reason = None;
        }
        self.kept.progress = None;
        match self.leftover {
            Some(run) if self.kept.greeted && matches!(why, Why::First | Why::Again) => {
                self.state = State::Starting { run, way: Way::Adopt, why };
                effects.push(Effect::Adopt { run });
            }
            // Something else is wanted than what is there.
            Some(run) => self.stop(run, Some(self.rules.stop_grace), Then::Start(why), effects),
            None => {
                let run = self.run_next;
                self.run_next += 1;
                self.kept.run = run;
                self.kept.greeted = false;
                self.state = State::Starting { run, way: Way::Launch, why };
                effects.push(Effect::Launch { run });
            }
        }
    }

    fn stop(&mut self, run: u64, grace: Option<Duration>, then: Then, effects: &mut Vec<Effect>) {
        self.state = State::Stopping { run, stage: Stage::Destroying, grace, then };
        effects.push(destruction(run, grace));
    }

    fn engine_retry(&self) -> Duration {
        self.rules.unavailable_retry + self.spread
    }
}

fn destruction(run: u64, grace: Option<Duration>) -> Effect {
    match grace {
        Some(grace) => Effect::StopAndDestroy { run, grace },
        None => Effect::Destroy { run },
    }
}
