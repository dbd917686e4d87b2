//! What is so, as everybody is told it.

use cofer_model::{ContainerStatus, HostedEvent, HostedEventKind, HostedStatus};

use super::{
    BackOff, Effect, Machine, Now, Running, Stage, State, StoppedBy, Then, Voice, Why, status_of_start,
};
use crate::truth::{CrashLoop, Truth};

impl Machine {
    pub(crate) fn truth(&self) -> Truth {
        let running = match &self.state {
            State::Running(running) => Some(running),
            _ => None,
        };
        let about = running.map(|running| &running.about);
        let waits = self.waits();
        Truth {
            seen: self.kept.seen,
            status: self.status(),
            reason: self.kept.reason.clone(),
            progress: self.kept.progress.clone(),
            container_status: self.container_status(),
            run: self.kept.run,
            sandbox: self.kept.sandbox.as_ref().map(|(id, _)| id.clone()),
            provider: self.kept.sandbox.as_ref().map(|(_, provider)| *provider),
            greeted: self.kept.greeted,
            isolation: about.map(|about| about.isolation),
            bridge_connected: running.is_some_and(|running| running.about.bridged && running.takes_calls()),
            running_since: about.map(|about| about.running_since),
            restart_count: self.kept.restart_count,
            last_crash: self.kept.last_crash,
            last_exit: self.kept.last_exit.clone(),
            crash_loop: CrashLoop {
                active: self.crash_loop_step > 0,
                step: self.crash_loop_step,
                next_restart_at: waits.filter(|wait| wait.then == Why::Crashed).map(|wait| wait.next_at),
            },
            next_try: waits.map(|wait| wait.until),
            endpoints: about.map(|about| about.endpoints.clone()).unwrap_or_default(),
            facts: self.kept.facts.clone(),
            start_failure: self.kept.start_failure.clone(),
            gone: matches!(self.state, State::Gone),
        }
    }

    fn waits(&self) -> Option<BackOff> {
        match &self.state {
            State::BackingOff(back_off) | State::Stopping { then: Then::BackOff(back_off), .. } => {
                Some(*back_off)
            }
            _ => None,
        }
    }

    fn status(&self) -> HostedStatus {
        let was_ready = self.kept.was_ready;
        match &self.state {
            State::Stopped | State::Gone | State::Ended => HostedStatus::Stopped,
            // What went wrong stays to be read until it goes right.
            State::Starting { why: Why::Again, .. } => HostedStatus::Error,
            State::Starting { why, .. } => status_of_start(*why, was_ready),
            State::Running(Running { bridge_lost: Some(lost), .. }) if lost.engine_was_away => {
                HostedStatus::Error
            }
            State::Running(Running { bridge_lost: Some(_), .. }) => HostedStatus::Restarting,
            State::Running(running) => match running.voice {
                Voice::Greeting { .. } => status_of_start(running.why, was_ready),
                Voice::Ready => HostedStatus::Ready,
                Voice::Silent => HostedStatus::Unresponsive,
            },
            State::Stopping { stage: Stage::AgainAt(_), then: Then::Start(_) | Then::BackOff(_), .. } => {
                HostedStatus::Error
            }
            State::Stopping { then, .. } => match then {
                Then::Stopped { by: StoppedBy::Policy } => HostedStatus::Stopped,
                Then::Stopped { .. } | Then::Gone | Then::Ended => HostedStatus::Stopping,
                Then::Start(why) => status_of_start(*why, was_ready),
                Then::BackOff(back_off) => status_of_wait(*back_off),
            },
            State::BackingOff(back_off) => status_of_wait(*back_off),
        }
    }

    fn container_status(&self) -> ContainerStatus {
        match (&self.state, self.status()) {
            (State::Running(_), _) | (_, HostedStatus::Stopping) => ContainerStatus::Running,
            (_, HostedStatus::Restarting) => ContainerStatus::Restarting,
            _ => ContainerStatus::Stopped,
        }
    }
}

fn status_of_wait(back_off: BackOff) -> HostedStatus {
    match back_off.then {
        Why::Crashed => HostedStatus::Restarting,
        Why::First | Why::Person | Why::Changed | Why::Again => HostedStatus::Error,
    }
}

pub(super) fn record(
    now: Now,
    kind: HostedEventKind,
    message: &str,
    details: serde_json::Value,
    effects: &mut Vec<Effect>,
) {
    let event = HostedEvent { at: now.wall, kind, message: message.to_owned(), details };
    effects.push(Effect::Record(event));
}
