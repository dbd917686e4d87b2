//! What it hears of the live run.

use cofer_model::{HostedEventKind, Kind};
use serde_json::json;

use super::crash::End;
use super::telling::record;
use super::{
    About, BackOff, BridgeLost, Checked, Effect, Errand, Machine, News, Now, Running, Seen, Stage, State,
    StoppedBy, Then, Voice, Way, Why,
};
use crate::plan::Facts;
use crate::truth::StartFailure;

impl Machine {
    fn live(&self) -> Option<u64> {
        match &self.state {
            State::Starting { run, .. }
            | State::Running(Running { run, .. })
            | State::Stopping { run, .. } => Some(*run),
            State::Stopped | State::BackingOff(_) | State::Gone | State::Ended => None,
        }
    }

    pub(super) fn hear(&mut self, now: Now, run: u64, news: News, effects: &mut Vec<Effect>) {
        // Of an earlier run.
        if self.live() != Some(run) {
            return;
        }
        match &self.state {
            State::Starting { .. } => self.hear_starting(now, news, effects),
            State::Running(_) => self.hear_running(now, news, effects),
            State::Stopping { .. } => self.hear_stopping(now, run, news, effects),
            State::Stopped | State::BackingOff(_) | State::Gone | State::Ended => {}
        }
    }

    fn hear_starting(&mut self, now: Now, news: News, effects: &mut Vec<Effect>) {
        match news {
            News::Progress(progress) => self.kept.progress = Some(progress),
            News::Launched(about) => self.launched(now, *about, effects),
            News::StartFailed(failure) => self.start_failed(now, failure, effects),
            _ => {}
        }
    }

    fn launched(&mut self, now: Now, about: About, effects: &mut Vec<Effect>) {
        let State::Starting { run, way, why } = self.state else { return };
        self.leftover = None;
        self.kept.sandbox = Some((about.sandbox.clone(), about.provider));
        self.kept.progress = None;
        self.kept.start_failure = None;
        if why == Why::Again {
            // What was in the way no longer is.
            self.kept.reason = None;
        }
        if way == Way::Launch {
            let details = json!({"run": run, "provider": about.provider, "isolation": about.isolation});
            record(now, HostedEventKind::Started, "its sandbox runs", details, effects);
        }
        for warning in &about.warnings {
            record(now, HostedEventKind::Warning, warning, json!({"run": run}), effects);
        }
        let silent_at = now.at + self.rules.handshake_timeout;
        self.state = State::Running(Running {
            run,
            about,
            since: now.at,
            way,
            why,
            voice: Voice::Greeting { silent_at },
            misses: 0,
            check: Errand::Idle,
            look: Errand::Idle,
            bridge_lost: None,
        });
        effects.push(Effect::Greet { run });
    }

    fn start_failed(&mut self, now: Now, failure: StartFailure, effects: &mut Vec<Effect>) {
        let State::Starting { run, way, why } = self.state else { return };
        let StartFailure { kind, message, .. } = failure.clone();
        let soon = matches!(kind, Kind::Unavailable | Kind::Timeout);
        self.kept.progress = None;
        if way == Way::Adopt && !soon {
            // It cannot be had; a new one can.
            return self.stop(run, None, Then::Start(why), effects);
        }
        // While the engine is away this is heard every few seconds, and told once.
        if why != Why::Again || self.kept.reason.as_deref() != Some(message.as_str()) {
            let details = json!({"run": run, "code": kind});
            record(now, HostedEventKind::StartFailed, &message, details, effects);
        }
        let delay = if soon { self.engine_retry() } else { self.rules.refused_retry };
        self.kept.start_failure = (!soon).then_some(failure);
        self.kept.reason = Some(message);
        let back_off = BackOff { until: now.at + delay, next_at: now.wall.after(delay), then: Why::Again };
        match way {
            Way::Launch => self.stop(run, None, Then::BackOff(back_off), effects),
            Way::Adopt => self.state = State::BackingOff(back_off),
        }
    }

    fn hear_running(&mut self, now: Now, news: News, effects: &mut Vec<Effect>) {
        let lost = matches!(&self.state, State::Running(running) if running.bridge_lost.is_some());
        match news {
            // What it said before its bridge broke: it cannot be spoken to any more.
            News::Greeted(_) | News::Spoke | News::Checked(_) | News::Tools(_) if lost => {}
            News::Greeted(facts) => self.greeted(now, facts, effects),
            News::Spoke => self.recovers(now, effects),
            News::Checked(checked) => self.checked(now, checked, effects),
            News::Tools(count) => self.kept.facts.tool_count = Some(count),
            News::BridgeEnded => self.bridge_ended(now, effects),
            News::Looked(seen) => self.looked(now, seen, effects),
            News::Progress(_) | News::Launched(_) | News::StartFailed(_) | News::Destroyed(_) => {}
        }
    }

    fn greeted(&mut self, now: Now, facts: Facts, effects: &mut Vec<Effect>) {
        let State::Running(running) = &mut self.state else { return };
        let run = running.run;
        if running.way == Way::Launch {
            let tool_count = self.kept.facts.tool_count;
            self.kept.facts = Facts { tool_count, ..facts };
        }
        match running.voice {
            Voice::Greeting { .. } => self.becomes_ready(now, effects),
            Voice::Silent => self.recovers(now, effects),
            // It spoke before it answered the greeting; now more is known of it.
            Voice::Ready => effects.push(Effect::CountTools { run }),
        }
    }

    fn becomes_ready(&mut self, now: Now, effects: &mut Vec<Effect>) {
        let State::Running(running) = &mut self.state else { return };
        let (run, bridged) = (running.run, running.about.bridged);
        running.voice = Voice::Ready;
        running.misses = 0;
        running.check = Errand::At(now.at + running.about.health_interval);
        let (kind, message) = match running.way {
            Way::Launch => (HostedEventKind::Ready, "it is ready"),
            Way::Adopt => (HostedEventKind::Adopted, "it was found running and taken over"),
        };
        self.kept.reason = None;
        self.kept.was_ready = true;
        self.kept.greeted = true;
        record(now, kind, message, json!({"run": run}), effects);
        if bridged {
            effects.push(Effect::CountTools { run });
        }
    }

    pub(super) fn falls_silent(&mut self, now: Now, why: &str, effects: &mut Vec<Effect>) {
        let State::Running(running) = &mut self.state else { return };
        let run = running.run;
        running.voice = Voice::Silent;
        if running.check == Errand::Idle {
            running.check = Errand::At(now.at + running.about.health_interval);
        }
        self.kept.reason = Some(why.to_owned());
        effects.push(Effect::Listen { run });
        record(
            now,
            HostedEventKind::Unresponsive,
            &format!("no sign of life: {why}"),
            json!({"run": run}),
            effects,
        );
    }

    /// It said something.
    fn recovers(&mut self, now: Now, effects: &mut Vec<Effect>) {
        let State::Running(running) = &mut self.state else { return };
        if running.voice != Voice::Silent {
            return;
        }
        let (run, bridged) = (running.run, running.about.bridged);
        running.voice = Voice::Ready;
        running.misses = 0;
        self.kept.greeted = true;
        self.kept.reason = None;
        record(now, HostedEventKind::Recovered, "it speaks again", json!({"run": run}), effects);
        if bridged && self.kept.facts.tool_count.is_none() {
            effects.push(Effect::CountTools { run });
        }
    }

    fn checked(&mut self, now: Now, checked: Checked, effects: &mut Vec<Effect>) {
        let State::Running(running) = &mut self.state else { return };
        running.check = Errand::At(now.at + running.about.health_interval);
        match checked {
            Checked::Busy => {}
            Checked::Alive => {
                running.misses = 0;
                self.recovers(now, effects);
            }
            Checked::Missed => {
                running.misses += 1;
                let misses = running.misses;
                if running.voice == Voice::Ready && misses >= self.rules.misses_max {
                    self.falls_silent(now, &format!("{misses} pings were not answered"), effects);
                }
                self.look(effects);
            }
        }
    }

    fn bridge_ended(&mut self, now: Now, effects: &mut Vec<Effect>) {
        let State::Running(running) = &mut self.state else { return };
        if running.bridge_lost.is_some() {
            return;
        }
        running.bridge_lost = Some(BridgeLost { since: now.at, engine_was_away: false });
        running.check = Errand::Idle;
        self.kept.reason = Some("its streams ended".to_owned());
        self.look(effects);
    }

    fn looked(&mut self, now: Now, seen: Seen, effects: &mut Vec<Effect>) {
        let State::Running(running) = &mut self.state else { return };
        running.look = Errand::Idle;
        match (seen, &mut running.bridge_lost) {
            (Seen::Running | Seen::Unknown(_), None) => {}
            (Seen::Running, Some(lost)) if now.at < lost.since + self.rules.broken_bridge_after => {
                running.look = Errand::At(now.at + self.rules.look_again);
            }
            (Seen::Running, Some(lost)) if lost.engine_was_away => {
                let run = running.run;
                self.leftover = Some(run);
                effects.push(Effect::CloseBridge { run });
                self.start(Why::Again, effects);
            }
            (Seen::Running, Some(_)) => self.ended(now, &End::of_bridge(), effects),
            (Seen::Unknown(reason), Some(lost)) => {
                lost.engine_was_away = true;
                running.look = Errand::At(now.at + self.rules.unavailable_retry + self.spread);
                self.kept.reason = Some(reason);
            }
            (seen @ (Seen::Ended { .. } | Seen::Gone { .. }), _) => {
                if let Some(end) = End::of(seen) {
                    self.ended(now, &end, effects);
                }
            }
        }
    }

    fn hear_stopping(&mut self, now: Now, run: u64, news: News, effects: &mut Vec<Effect>) {
        let retry_at = now.at + self.engine_retry();
        let State::Stopping { stage, grace, then, .. } = &mut self.state else { return };
        match (news, *stage) {
            (News::Launched(_) | News::StartFailed(_), Stage::Cancelling) => {
                *stage = Stage::Destroying;
                effects.push(super::destruction(run, *grace));
            }
            (News::Destroyed(Ok(())), Stage::Destroying) => {
                let then = *then;
                self.destroyed(now, run, then, effects);
            }
            (News::Destroyed(Err(reason)), Stage::Destroying) => {
                if *then == Then::Ended {
                    // There is no time to wait for the engine. The next life finds what is left.
                    self.state = State::Ended;
                } else {
                    *stage = Stage::AgainAt(retry_at);
                    self.kept.reason = Some(reason);
                }
            }
            _ => {}
        }
    }

    fn destroyed(&mut self, now: Now, run: u64, then: Then, effects: &mut Vec<Effect>) {
        self.leftover = self.leftover.filter(|leftover| *leftover != run);
        self.kept.sandbox = None;
        if then == Then::Gone {
            self.kept.reason = None;
        }
        match then {
            Then::Stopped { by } => {
                if by == StoppedBy::Person {
                    self.kept.reason = None;
                    record(now, HostedEventKind::Stopped, "stopped", json!({"run": run}), effects);
                }
                self.state = State::Stopped;
            }
            Then::BackOff(back_off) if back_off.until <= now.at => self.start(back_off.then, effects),
            then => self.go_on(then, effects),
        }
    }
}
