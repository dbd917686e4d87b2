//! The states, and what is known in each.

use std::time::{Duration, Instant};

use cofer_model::{HostedStatus, Moment};

use super::About;
use crate::rules::Rules;

#[derive(Debug)]
pub(super) enum State {
    Stopped,
    Starting {
        run: u64,
        way: Way,
        why: Why,
    },
    Running(Running),
    Stopping {
        run: u64,
        stage: Stage,
        grace: Option<Duration>,
        then: Then,
    },
    BackingOff(BackOff),
    /// Told to go, and nothing is left.
    Gone,
    /// Cofer ends.
    Ended,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Launch,
    Adopt,
}

/// Why it is started: decides what is counted, and what people read meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    First,
    Person,
    Changed,
    Crashed,
    /// The start before this one failed.
    Again,
}

#[derive(Debug)]
pub(super) struct Running {
    pub run: u64,
    pub about: About,
    pub since: Instant,
    pub way: Way,
    pub why: Why,
    pub voice: Voice,
    pub misses: u32,
    pub check: Errand,
    pub look: Errand,
    /// Since when its bridge is gone.
    pub bridge_lost: Option<BridgeLost>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Voice {
    Greeting { silent_at: Instant },
    Ready,
    Silent,
}

/// Something that is done from time to time, once at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Errand {
    Idle,
    At(Instant),
    Asked,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct BridgeLost {
    pub since: Instant,
    /// The engine was away meanwhile: the bridge broke with it, and the server may be fine.
    pub engine_was_away: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// `Launch` or `Adopt` has not answered yet.
    Cancelling,
    Destroying,
    /// The engine did not let us.
    AgainAt(Instant),
}

impl Stage {
    pub(super) fn is_due(self, now: Instant) -> bool {
        matches!(self, Self::AgainAt(at) if at <= now)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Then {
    Stopped { by: StoppedBy },
    Start(Why),
    BackOff(BackOff),
    Gone,
    Ended,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StoppedBy {
    Person,
    Policy,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BackOff {
    pub until: Instant,
    /// The same for people.
    pub next_at: Moment,
    pub then: Why,
}

impl Running {
    pub(super) fn takes_calls(&self) -> bool {
        !matches!(self.voice, Voice::Greeting { .. }) && self.bridge_lost.is_none()
    }

    /// When it should have answered the greeting. Nobody expects that of a server whose bridge is gone.
    pub(super) fn silent_at(&self) -> Option<Instant> {
        match self.voice {
            Voice::Greeting { silent_at } if self.bridge_lost.is_none() => Some(silent_at),
            Voice::Greeting { .. } | Voice::Ready | Voice::Silent => None,
        }
    }

    pub(super) fn deadlines(&self, rules: &Rules, crash_loop: bool) -> impl Iterator<Item = Instant> {
        let errands = [self.check, self.look].into_iter().filter_map(|errand| match errand {
            Errand::At(at) => Some(at),
            Errand::Idle | Errand::Asked => None,
        });
        let stable = crash_loop.then(|| self.since + rules.stable);
        errands.chain(self.silent_at()).chain(stable)
    }
}

/// What people read while it is started for this reason.
pub(super) fn status_of_start(why: Why, was_ready: bool) -> HostedStatus {
    match why {
        Why::Person | Why::Changed | Why::Crashed => HostedStatus::Restarting,
        Why::Again if was_ready => HostedStatus::Restarting,
        Why::First | Why::Again => HostedStatus::Creating,
    }
}
