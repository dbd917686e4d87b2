//! What follows when a sandbox ends by itself: counted once, told, and answered by its policy.

use cofer_model::{HostedEventKind, LastExit, RestartPolicy};
use cofer_sandbox::{Exit, ExitCause};
use serde_json::json;

use super::telling::record;
use super::{BackOff, Effect, Machine, Now, Running, Seen, State, StoppedBy, Then, Why};

/// How it came to its end.
pub(super) struct End {
    /// `None` when nobody knows.
    exit: Option<Exit>,
    stderr_tail: String,
    /// In a few words, as in "it …".
    what: String,
}

impl End {
    pub(super) fn of(seen: Seen) -> Option<Self> {
        match seen {
            Seen::Ended { exit, stderr_tail } => {
                let what = describe(&exit);
                Some(Self { exit: Some(exit), stderr_tail, what })
            }
            Seen::Gone { stderr_tail } => {
                Some(Self { exit: None, stderr_tail, what: "its sandbox was removed".to_owned() })
            }
            Seen::Running | Seen::Unknown(_) => None,
        }
    }

    pub(super) fn of_bridge() -> Self {
        Self {
            exit: None,
            stderr_tail: String::new(),
            what: "it closed its stdin or stdout and went on running".to_owned(),
        }
    }

    fn cause(&self) -> ExitCause {
        self.exit.as_ref().map_or(ExitCause::Itself, |exit| exit.cause)
    }

    fn is_success(&self) -> bool {
        self.cause() == ExitCause::Itself
            && self.exit.as_ref().is_some_and(|exit| exit.code == Some(0) && exit.signal.is_none())
    }
}

fn describe(exit: &Exit) -> String {
    match (exit.cause, exit.signal, exit.code) {
        (ExitCause::OutOfMemory, ..) => "it ran out of memory and was killed".to_owned(),
        (ExitCause::DiskLimit, ..) => "it wrote more than its disk limit and was stopped".to_owned(),
        (_, Some(signal), _) => format!("it was ended by signal {signal}"),
        (_, None, Some(code)) => format!("it exited with code {code}"),
        (_, None, None) => "it ended".to_owned(),
    }
}

impl Machine {
    /// The live run has ended by itself, or as good as.
    pub(super) fn ended(&mut self, now: Now, end: &End, effects: &mut Vec<Effect>) {
        let State::Running(Running { run, about, .. }) = &self.state else { return };
        let (run, policy) = (*run, about.restart_policy);
        effects.push(Effect::CloseBridge { run });
        self.note_exit(now, end);
        let again = match policy {
            RestartPolicy::Always => true,
            RestartPolicy::OnFailure => !end.is_success(),
            RestartPolicy::Never => false,
        };
        let wanted_so = end.is_success() && !again;
        self.tell_end(now, run, end, wanted_so, effects);
        self.kept.reason = Some(end.what.clone());
        let then =
            if again { self.after_crash(now, effects) } else { Then::Stopped { by: StoppedBy::Policy } };
        self.stop(run, None, then, effects);
    }

    fn after_crash(&mut self, now: Now, effects: &mut Vec<Effect>) -> Then {
        self.crashes.push_back(now.at);
        while self.crashes.front().is_some_and(|at| now.at.duration_since(*at) > self.rules.crash_window)
            || self.crashes.len() > self.rules.crash_threshold
        {
            self.crashes.pop_front();
        }
        if self.crash_loop_step == 0 && self.crashes.len() < self.rules.crash_threshold {
            return Then::Start(Why::Crashed);
        }
        self.crash_loop_step += 1;
        let step = self.crash_loop_step;
        let delay = self.rules.crash_delay(step);
        let next_at = now.wall.after(delay);
        let message = match step {
            1 => format!(
                "crash loop: it crashed {} times in a short while; restart in {delay:?}",
                self.crashes.len()
            ),
            _ => format!("crash loop: it crashed again; restart in {delay:?}"),
        };
        let details = json!({"step": step, "delay_ms": u64::try_from(delay.as_millis()).ok(), "next_restart_at": next_at});
        record(now, HostedEventKind::CrashLoop, &message, details, effects);
        Then::BackOff(BackOff { until: now.at + delay, next_at, then: Why::Crashed })
    }

    pub(super) fn leave_crash_loop(&mut self, now: Now, why: &str, effects: &mut Vec<Effect>) {
        if self.crash_loop_step > 0 {
            self.crash_loop_step = 0;
            self.crashes.clear();
            let message = format!("the crash loop is over: {why}");
            record(now, HostedEventKind::CrashLoopLeft, &message, json!({}), effects);
        }
    }

    fn note_exit(&mut self, now: Now, end: &End) {
        self.kept.last_exit = Some(LastExit {
            code: end.exit.as_ref().and_then(|exit| exit.code),
            signal: end.exit.as_ref().and_then(|exit| exit.signal),
            oom_killed: end.cause() == ExitCause::OutOfMemory,
            at: end.exit.as_ref().map_or(now.wall, |exit| exit.at),
            stderr_tail: end.stderr_tail.clone(),
        });
    }

    fn tell_end(&mut self, now: Now, run: u64, end: &End, wanted_so: bool, effects: &mut Vec<Effect>) {
        let cause = match end.cause() {
            ExitCause::Itself => "itself",
            ExitCause::OutOfMemory => "out_of_memory",
            ExitCause::DiskLimit => "disk_limit",
        };
        let details = json!({
            "run": run,
            "code": end.exit.as_ref().and_then(|exit| exit.code),
            "signal": end.exit.as_ref().and_then(|exit| exit.signal),
            "oom_killed": end.cause() == ExitCause::OutOfMemory,
            "cause": cause,
            "stderr_tail": end.stderr_tail,
        });
        let kind = if wanted_so {
            HostedEventKind::Exited
        } else {
            self.kept.last_crash = Some(now.wall);
            HostedEventKind::Crashed
        };
        if end.cause() == ExitCause::DiskLimit {
            record(now, HostedEventKind::DiskLimit, &end.what, json!({"run": run}), effects);
        }
        record(now, kind, &end.what, details, effects);
    }
}
