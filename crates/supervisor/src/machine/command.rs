//! What it is told. Asking twice is harmless; the last word counts; nothing calls back a removal.

use cofer_model::{HostedEventKind, Wanted};
use serde_json::json;

use super::telling::record;
use super::{Command, Effect, Machine, Now, Running, Stage, State, StoppedBy, Then, Way, Why};

impl Machine {
    pub(super) fn obey(&mut self, now: Now, command: Command, effects: &mut Vec<Effect>) {
        if self.is_over() {
            return;
        }
        match command {
            Command::Want(Wanted::Running) if self.wanted == Some(Wanted::Running) => {}
            Command::Want(Wanted::Running) | Command::Start => self.begin(effects),
            Command::Want(Wanted::Stopped) => self.end(Then::Stopped { by: StoppedBy::Person }, effects),
            Command::Restart => self.restart(now, effects),
            Command::Reconfigure => self.reconfigure(now, effects),
            Command::Remove => self.end(Then::Gone, effects),
            Command::ShutDown { grace } => self.shut_down(grace, effects),
        }
    }

    /// It should run: now, and not when a wait is over.
    fn begin(&mut self, effects: &mut Vec<Effect>) {
        self.wanted = Some(Wanted::Running);
        match &mut self.state {
            State::Stopped => self.start(Why::First, effects),
            // In a crash loop it waits its turn all the same; only a restart leaves that. What a person asks for is a first try, and
            // whoever waits for it must not be shown why the one before failed.
            State::BackingOff(back_off) if back_off.then == Why::Again => self.start(Why::First, effects),
            State::Stopping { then, .. } => match then {
                Then::Stopped { .. } => *then = Then::Start(Why::First),
                Then::BackOff(back_off) if back_off.then == Why::Again => *then = Then::Start(Why::First),
                Then::Start(_) | Then::BackOff(_) | Then::Gone | Then::Ended => {}
            },
            State::BackingOff(_)
            | State::Starting { .. }
            | State::Running(_)
            | State::Gone
            | State::Ended => {}
        }
    }

    /// It should not run any more, and this is what comes after.
    fn end(&mut self, then: Then, effects: &mut Vec<Effect>) {
        self.wanted = Some(Wanted::Stopped);
        self.kept.start_failure = None;
        self.kept.progress = None;
        if let State::Stopping { then: was, .. } = &mut self.state {
            if !matches!(was, Then::Gone | Then::Ended) {
                *was = then;
                self.kept.reason = None;
            }
            return;
        }
        self.kept.reason = None;
        self.replace(then, effects);
    }

    /// A new sandbox, whatever there is; and all counting begins anew.
    fn restart(&mut self, now: Now, effects: &mut Vec<Effect>) {
        self.wanted = Some(Wanted::Running);
        self.kept.restart_count = 0;
        self.leave_crash_loop(now, "it was restarted by hand", effects);
        self.crashes.clear();
        match &mut self.state {
            // A new sandbox is just what is being made.
            State::Starting { way: Way::Launch, why, .. } => *why = Why::Person,
            State::Stopping { then: Then::Gone | Then::Ended, .. } | State::Gone | State::Ended => {}
            State::Stopping { then, .. } => *then = Then::Start(Why::Person),
            State::Stopped | State::Starting { .. } | State::Running(_) | State::BackingOff(_) => {
                record(now, HostedEventKind::Restarted, "restarted by hand", json!({}), effects);
                self.replace(Then::Start(Why::Person), effects);
            }
        }
    }

    /// What is there was made by an older plan.
    fn reconfigure(&mut self, now: Now, effects: &mut Vec<Effect>) {
        match &mut self.state {
            State::Starting { .. } | State::Running(_) | State::BackingOff(_) => {
                self.leave_crash_loop(now, "it was changed", effects);
                self.crashes.clear();
                self.replace(Then::Start(Why::Changed), effects);
            }
            State::Stopping { then: then @ (Then::Start(_) | Then::BackOff(_)), .. } => {
                *then = Then::Start(Why::Changed);
                self.leave_crash_loop(now, "it was changed", effects);
                self.crashes.clear();
            }
            State::Stopped | State::Stopping { .. } | State::Gone | State::Ended => {}
        }
    }

    fn shut_down(&mut self, grace: std::time::Duration, effects: &mut Vec<Effect>) {
        match &mut self.state {
            State::Stopping { then: Then::Gone, .. } => {}
            State::Stopping { then, stage: Stage::Cancelling | Stage::Destroying, .. } => *then = Then::Ended,
            // The engine was away a moment ago: there is no time to wait for it. The next life finds what is left.
            State::Stopping { .. } => self.state = State::Ended,
            _ => {
                let grace = Some(grace);
                self.replace_with_grace(Then::Ended, grace, effects);
            }
        }
    }

    fn replace(&mut self, then: Then, effects: &mut Vec<Effect>) {
        self.replace_with_grace(then, Some(self.rules.stop_grace), effects);
    }

    /// Ends whatever is there, and goes on with `then`. Not for a state that is stopping already.
    fn replace_with_grace(
        &mut self,
        then: Then,
        grace: Option<std::time::Duration>,
        effects: &mut Vec<Effect>,
    ) {
        match &self.state {
            State::Starting { run, .. } => {
                let run = *run;
                self.state = State::Stopping { run, stage: Stage::Cancelling, grace, then };
                effects.push(Effect::Cancel { run });
            }
            State::Running(Running { run, .. }) => self.stop(*run, grace, then, effects),
            State::Stopped | State::BackingOff(_) => match self.leftover {
                Some(run) => self.stop(run, grace, then, effects),
                None => self.go_on(then, effects),
            },
            State::Stopping { .. } | State::Gone | State::Ended => {}
        }
    }

    /// Nothing is live.
    pub(super) fn go_on(&mut self, then: Then, effects: &mut Vec<Effect>) {
        match then {
            Then::Stopped { .. } => self.state = State::Stopped,
            Then::Start(why) => self.start(why, effects),
            Then::BackOff(back_off) => self.state = State::BackingOff(back_off),
            Then::Gone => self.state = State::Gone,
            Then::Ended => self.state = State::Ended,
        }
    }
}
