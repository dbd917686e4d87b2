//! Lives of servers, told as words. One helper knows the machine.

use std::fmt::Write;

use cofer_model::Kind;
use cofer_sandbox::ExitCause;
use insta::assert_snapshot;

use super::*;

pub(super) const SECOND: Duration = Duration::from_secs(1);

pub(super) fn about(restart_policy: RestartPolicy) -> About {
    About {
        sandbox: SandboxId("box".to_owned()),
        provider: ProviderName::Docker,
        isolation: Isolation::Container,
        endpoints: Vec::new(),
        running_since: moment(),
        restart_policy,
        health_interval: 30 * SECOND,
        bridged: true,
        warnings: Vec::new(),
    }
}

pub(super) fn moment() -> Moment {
    Moment::parse("2026-11-16T00:00:00Z").unwrap()
}

pub(super) fn exit(code: Option<i64>, signal: Option<i64>, cause: ExitCause) -> Seen {
    Seen::Ended { exit: Exit { code, signal, cause, at: moment() }, stderr_tail: "last words".to_owned() }
}

pub(super) fn rules() -> Arc<Rules> {
    Arc::new(Rules { unavailable_spread: Duration::ZERO, ..Rules::default() })
}

struct Teller {
    machine: Machine,
    began: Instant,
    elapsed: Duration,
    run: u64,
    policy: RestartPolicy,
    told: String,
}

/// Tells a life, one word an event, and what came of each. `+N` lets N seconds pass, ticking at every deadline.
fn story(events: &str) -> String {
    story_from(&Memory::default(), RestartPolicy::Always, events)
}

fn story_from(memory: &Memory, policy: RestartPolicy, events: &str) -> String {
    let machine = Machine::new(rules(), Duration::ZERO, memory);
    let mut teller = Teller {
        machine,
        began: Instant::now(),
        elapsed: Duration::ZERO,
        run: 0,
        policy,
        told: String::new(),
    };
    for word in events.split_whitespace() {
        match word.strip_prefix('+') {
            Some(seconds) => teller.pass(SECOND * seconds.parse::<u32>().unwrap()),
            None => teller.tell(word),
        }
    }
    teller.told
}

impl Teller {
    fn pass(&mut self, span: Duration) {
        let end = self.elapsed + span;
        while let Some(due) =
            self.machine.next_deadline().map(|at| at.duration_since(self.began)).filter(|due| *due <= end)
        {
            self.elapsed = due.max(self.elapsed);
            self.step("tick", Event::Tick);
        }
        self.elapsed = end;
    }

    fn tell(&mut self, word: &str) {
        // News of the run before the live one: `late:exited`.
        let (run, word_alone) = match word.strip_prefix("late:") {
            Some(rest) => (self.run - 1, rest),
            None => (self.run, word),
        };
        let event = command(word_alone).unwrap_or_else(|| Event::News { run, news: self.news(word_alone) });
        self.step(word, event);
    }

    fn news(&self, word: &str) -> News {
        let failed = |kind, message: &str| News::StartFailed(StartFailure::new(kind, message));
        match word {
            "launched" => News::Launched(Box::new(about(self.policy))),
            "away" => failed(Kind::Unavailable, "the engine is away"),
            "refused" => failed(Kind::Invalid, "no such image"),
            "greeted" => News::Greeted(Facts::default()),
            "spoke" => News::Spoke,
            "alive" => News::Checked(Checked::Alive),
            "missed" => News::Checked(Checked::Missed),
            "eof" => News::BridgeEnded,
            "runs" => News::Looked(Seen::Running),
            "exited" => News::Looked(exit(Some(1), None, ExitCause::Itself)),
            "succeeded" => News::Looked(exit(Some(0), None, ExitCause::Itself)),
            "oom" => News::Looked(exit(Some(137), Some(9), ExitCause::OutOfMemory)),
            "diskfull" => News::Looked(exit(Some(137), Some(9), ExitCause::DiskLimit)),
            "unknown" => News::Looked(Seen::Unknown("the engine is away".to_owned())),
            "destroyed" => News::Destroyed(Ok(())),
            "undestroyed" => News::Destroyed(Err("the engine is away".to_owned())),
            word => panic!("no such word: {word}"),
        }
    }

    fn step(&mut self, word: &str, event: Event) {
        let now = Now { at: self.began + self.elapsed, wall: moment().after(self.elapsed) };
        let effects = self.machine.step(now, event);
        let done: Vec<String> = effects.iter().map(|effect| self.describe(effect)).collect();
        let truth = self.machine.truth();
        let reason = truth.reason.map(|reason| format!(" ({reason})")).unwrap_or_default();
        let done = if done.is_empty() { String::new() } else { format!(" -> {}", done.join(", ")) };
        writeln!(self.told, "{}s {word}: {}{reason}{done}", self.elapsed.as_secs(), truth.status).unwrap();
    }

    fn describe(&mut self, effect: &Effect) -> String {
        if let Effect::Launch { run }
        | Effect::Adopt { run }
        | Effect::Destroy { run }
        | Effect::StopAndDestroy { run, .. } = effect
        {
            self.run = *run;
        }
        match effect {
            Effect::Launch { run } => format!("launch {run}"),
            Effect::Adopt { run } => format!("adopt {run}"),
            Effect::Cancel { run } => format!("cancel {run}"),
            Effect::Greet { .. } => "greet".to_owned(),
            Effect::Listen { .. } => "listen".to_owned(),
            Effect::Check { .. } => "check".to_owned(),
            Effect::CountTools { .. } => "count tools".to_owned(),
            Effect::Look { .. } => "look".to_owned(),
            Effect::CloseBridge { .. } => "close".to_owned(),
            Effect::StopAndDestroy { run, grace } => format!("stop {run} within {grace:?}"),
            Effect::Destroy { run } => format!("destroy {run}"),
            Effect::Record(event) => format!("<{}>", event.kind),
        }
    }
}

fn command(word: &str) -> Option<Event> {
    let command = match word {
        "run" => Command::Want(Wanted::Running),
        "stop" => Command::Want(Wanted::Stopped),
        "start" => Command::Start,
        "restart" => Command::Restart,
        "reconfigure" => Command::Reconfigure,
        "remove" => Command::Remove,
        "shutdown" => Command::ShutDown { grace: 30 * SECOND },
        "hint" => return Some(Event::Hint),
        _ => return None,
    };
    Some(Event::Command(command))
}

pub(super) fn remembered(run: u64) -> Memory {
    Memory {
        runs: run,
        restart_count: 2,
        sandbox: Some(crate::plan::Adoptable {
            provider: Arc::new(crate::testing::Fake(crate::testing::Engine::new())),
            id: SandboxId("box".to_owned()),
            run,
            greeted: true,
            facts: Facts { tool_count: Some(4), ..Facts::default() },
        }),
        ..Memory::default()
    }
}

#[test]
fn from_wanted_to_gone() {
    assert_snapshot!(story("run run launched greeted stop destroyed start launched greeted remove destroyed run"), @r"
    0s run: creating -> launch 1
    0s run: creating
    0s launched: creating -> <started>, greet
    0s greeted: ready -> <ready>, count tools
    0s stop: stopping -> stop 1 within 10s
    0s destroyed: stopped -> <stopped>
    0s start: creating -> launch 2
    0s launched: creating -> <started>, greet
    0s greeted: ready -> <ready>, count tools
    0s remove: stopping -> stop 2 within 10s
    0s destroyed: stopped
    0s run: stopped
    ");
}

#[test]
fn a_crash_is_counted_once_however_often_it_is_told() {
    assert_snapshot!(story("run launched greeted eof hint exited exited destroyed late:exited launched greeted"), @r"
    0s run: creating -> launch 1
    0s launched: creating -> <started>, greet
    0s greeted: ready -> <ready>, count tools
    0s eof: restarting (its streams ended) -> look
    0s hint: restarting (its streams ended)
    0s exited: restarting (it exited with code 1) -> close, <crashed>, destroy 1
    0s exited: restarting (it exited with code 1)
    0s destroyed: restarting (it exited with code 1) -> launch 2
    0s late:exited: restarting (it exited with code 1)
    0s launched: restarting (it exited with code 1) -> <started>, greet
    0s greeted: ready -> <ready>, count tools
    ");
}

#[test]
fn three_crashes_in_a_minute_are_a_loop_and_stable_running_leaves_it() {
    let crash = "launched greeted hint exited destroyed ";
    assert_snapshot!(story(&format!("run {crash}{crash}{crash} +5 {crash} +15 {crash} +45 {crash} +120 {crash} +300 {crash} +300 launched greeted +61")), @r"
    0s run: creating -> launch 1
    0s launched: creating -> <started>, greet
    0s greeted: ready -> <ready>, count tools
    0s hint: ready -> look
    0s exited: restarting (it exited with code 1) -> close, <crashed>, destroy 1
    0s destroyed: restarting (it exited with code 1) -> launch 2
    0s launched: restarting (it exited with code 1) -> <started>, greet
    0s greeted: ready -> <ready>, count tools
    0s hint: ready -> look
    0s exited: restarting (it exited with code 1) -> close, <crashed>, destroy 2
    0s destroyed: restarting (it exited with code 1) -> launch 3
    0s launched: restarting (it exited with code 1) -> <started>, greet
    0s greeted: ready -> <ready>, count tools
    0s hint: ready -> look
    0s exited: restarting (it exited with code 1) -> close, <crashed>, <crash_loop>, destroy 3
    0s destroyed: restarting (it exited with code 1)
    5s tick: restarting (it exited with code 1) -> launch 4
    5s launched: restarting (it exited with code 1) -> <started>, greet
    5s greeted: ready -> <ready>, count tools
    5s hint: ready -> look
    5s exited: restarting (it exited with code 1) -> close, <crashed>, <crash_loop>, destroy 4
    5s destroyed: restarting (it exited with code 1)
    20s tick: restarting (it exited with code 1) -> launch 5
    20s launched: restarting (it exited with code 1) -> <started>, greet
    20s greeted: ready -> <ready>, count tools
    20s hint: ready -> look
    20s exited: restarting (it exited with code 1) -> close, <crashed>, <crash_loop>, destroy 5
    20s destroyed: restarting (it exited with code 1)
    65s tick: restarting (it exited with code 1) -> launch 6
    65s launched: restarting (it exited with code 1) -> <started>, greet
    65s greeted: ready -> <ready>, count tools
    65s hint: ready -> look
    65s exited: restarting (it exited with code 1) -> close, <crashed>, <crash_loop>, destroy 6
    65s destroyed: restarting (it exited with code 1)
    185s tick: restarting (it exited with code 1) -> launch 7
    185s launched: restarting (it exited with code 1) -> <started>, greet
    185s greeted: ready -> <ready>, count tools
    185s hint: ready -> look
    185s exited: restarting (it exited with code 1) -> close, <crashed>, <crash_loop>, destroy 7
    185s destroyed: restarting (it exited with code 1)
    485s tick: restarting (it exited with code 1) -> launch 8
    485s launched: restarting (it exited with code 1) -> <started>, greet
    485s greeted: ready -> <ready>, count tools
    485s hint: ready -> look
    485s exited: restarting (it exited with code 1) -> close, <crashed>, <crash_loop>, destroy 8
    485s destroyed: restarting (it exited with code 1)
    785s tick: restarting (it exited with code 1) -> launch 9
    785s launched: restarting (it exited with code 1) -> <started>, greet
    785s greeted: ready -> <ready>, count tools
    815s tick: ready -> check
    845s tick: ready -> <crash_loop_left>
    ");
}

#[test]
fn a_manual_restart_leaves_the_loop() {
    let crash = "launched greeted hint exited destroyed ";
    assert_snapshot!(story(&format!("run {crash}{crash}{crash} run start restart launched greeted hint exited")), @r"
    0s run: creating -> launch 1
    0s launched: creating -> <started>, greet
    0s greeted: ready -> <ready>, count tools
    0s hint: ready -> look
    0s exited: restarting (it exited with code 1) -> close, <crashed>, destroy 1
    0s destroyed: restarting (it exited with code 1) -> launch 2
    0s launched: restarting (it exited with code 1) -> <started>, greet
    0s greeted: ready -> <ready>, count tools
    0s hint: ready -> look
    0s exited: restarting (it exited with code 1) -> close, <crashed>, destroy 2
    0s destroyed: restarting (it exited with code 1) -> launch 3
    0s launched: restarting (it exited with code 1) -> <started>, greet
    0s greeted: ready -> <ready>, count tools
    0s hint: ready -> look
    0s exited: restarting (it exited with code 1) -> close, <crashed>, <crash_loop>, destroy 3
    0s destroyed: restarting (it exited with code 1)
    0s run: restarting (it exited with code 1)
    0s start: restarting (it exited with code 1)
    0s restart: restarting -> <crash_loop_left>, <restarted>, launch 4
    0s launched: restarting -> <started>, greet
    0s greeted: ready -> <ready>, count tools
    0s hint: ready -> look
    0s exited: restarting (it exited with code 1) -> close, <crashed>, destroy 4
    ");
}

#[test]
fn policies_decide_what_follows_an_exit() {
    let mut told = String::new();
    for policy in RestartPolicy::ALL {
        for end in ["succeeded", "exited"] {
            let life = story_from(
                &Memory::default(),
                *policy,
                &format!("run launched greeted hint {end} destroyed run start"),
            );
            let tail: Vec<&str> = life.lines().skip(4).collect();
            writeln!(told, "{policy}\n{}", tail.join("\n")).unwrap();
        }
    }
    assert_snapshot!(told, @r"
    always
    0s succeeded: restarting (it exited with code 0) -> close, <crashed>, destroy 1
    0s destroyed: restarting (it exited with code 0) -> launch 2
    0s run: restarting (it exited with code 0)
    0s start: restarting (it exited with code 0)
    always
    0s exited: restarting (it exited with code 1) -> close, <crashed>, destroy 1
    0s destroyed: restarting (it exited with code 1) -> launch 2
    0s run: restarting (it exited with code 1)
    0s start: restarting (it exited with code 1)
    on-failure
    0s succeeded: stopped (it exited with code 0) -> close, <exited>, destroy 1
    0s destroyed: stopped (it exited with code 0)
    0s run: stopped (it exited with code 0)
    0s start: creating -> launch 2
    on-failure
    0s exited: restarting (it exited with code 1) -> close, <crashed>, destroy 1
    0s destroyed: restarting (it exited with code 1) -> launch 2
    0s run: restarting (it exited with code 1)
    0s start: restarting (it exited with code 1)
    never
    0s succeeded: stopped (it exited with code 0) -> close, <exited>, destroy 1
    0s destroyed: stopped (it exited with code 0)
    0s run: stopped (it exited with code 0)
    0s start: creating -> launch 2
    never
    0s exited: stopped (it exited with code 1) -> close, <crashed>, destroy 1
    0s destroyed: stopped (it exited with code 1)
    0s run: stopped (it exited with code 1)
    0s start: creating -> launch 2
    ");
}

#[test]
fn memory_and_disk_are_told_apart() {
    assert_snapshot!(story("run launched greeted hint oom destroyed launched greeted hint diskfull"), @r"
    0s run: creating -> launch 1
    0s launched: creating -> <started>, greet
    0s greeted: ready -> <ready>, count tools
    0s hint: ready -> look
    0s oom: restarting (it ran out of memory and was killed) -> close, <crashed>, destroy 1
    0s destroyed: restarting (it ran out of memory and was killed) -> launch 2
    0s launched: restarting (it ran out of memory and was killed) -> <started>, greet
    0s greeted: ready -> <ready>, count tools
    0s hint: ready -> look
    0s diskfull: restarting (it wrote more than its disk limit and was stopped) -> close, <disk_limit>, <crashed>, destroy 2
    ");
}

#[test]
fn an_engine_that_is_away_is_asked_again_soon_and_told_once() {
    assert_snapshot!(story("run away destroyed +3 away undestroyed +3 destroyed +3 launched greeted"), @r"
    0s run: creating -> launch 1
    0s away: error (the engine is away) -> <start_failed>, destroy 1
    0s destroyed: error (the engine is away)
    3s tick: error (the engine is away) -> launch 2
    3s away: error (the engine is away) -> destroy 2
    3s undestroyed: error (the engine is away)
    6s tick: error (the engine is away) -> destroy 2
    6s destroyed: error (the engine is away) -> launch 3
    9s launched: creating -> <started>, greet
    9s greeted: ready -> <ready>, count tools
    ");
}

#[test]
fn a_refused_start_waits_for_a_person_or_the_slow_clock() {
    assert_snapshot!(story("run refused destroyed run +300 refused destroyed start refused destroyed reconfigure launched greeted"), @r"
    0s run: creating -> launch 1
    0s refused: error (no such image) -> <start_failed>, destroy 1
    0s destroyed: error (no such image)
    0s run: error (no such image)
    300s tick: error (no such image) -> launch 2
    300s refused: error (no such image) -> destroy 2
    300s destroyed: error (no such image)
    300s start: creating -> launch 3
    300s refused: error (no such image) -> <start_failed>, destroy 3
    300s destroyed: error (no such image)
    300s reconfigure: restarting -> launch 4
    300s launched: restarting -> <started>, greet
    300s greeted: ready -> <ready>, count tools
    ");
}

#[test]
fn the_last_word_counts_while_it_starts_and_stops() {
    assert_snapshot!(story("run stop run launched destroyed launched restart stop restart destroyed launched greeted stop remove run destroyed"), @r"
    0s run: creating -> launch 1
    0s stop: stopping -> cancel 1
    0s run: creating
    0s launched: creating -> stop 1 within 10s
    0s destroyed: creating -> launch 2
    0s launched: creating -> <started>, greet
    0s restart: restarting -> <restarted>, stop 2 within 10s
    0s stop: stopping
    0s restart: restarting
    0s destroyed: restarting -> launch 3
    0s launched: restarting -> <started>, greet
    0s greeted: ready -> <ready>, count tools
    0s stop: stopping -> stop 3 within 10s
    0s remove: stopping
    0s run: stopping
    0s destroyed: stopped
    ");
}

#[test]
fn a_removal_outlasts_an_engine_that_is_away() {
    assert_snapshot!(story("run launched greeted remove undestroyed start restart +3 undestroyed +3 destroyed"), @r"
    0s run: creating -> launch 1
    0s launched: creating -> <started>, greet
    0s greeted: ready -> <ready>, count tools
    0s remove: stopping -> stop 1 within 10s
    0s undestroyed: stopping (the engine is away)
    0s start: stopping (the engine is away)
    0s restart: stopping (the engine is away)
    3s tick: stopping (the engine is away) -> stop 1 within 10s
    3s undestroyed: stopping (the engine is away)
    6s tick: stopping (the engine is away) -> stop 1 within 10s
    6s destroyed: stopped
    ");
}

#[test]
fn two_misses_make_it_unresponsive_and_a_word_makes_it_ready() {
    assert_snapshot!(story("run launched greeted +30 missed runs +30 missed runs +30 missed spoke alive +30 alive"), @r"
    0s run: creating -> launch 1
    0s launched: creating -> <started>, greet
    0s greeted: ready -> <ready>, count tools
    30s tick: ready -> check
    30s missed: ready -> look
    30s runs: ready
    60s tick: ready -> check
    60s missed: unresponsive (2 pings were not answered) -> listen, <unresponsive>, look
    60s runs: unresponsive (2 pings were not answered)
    90s tick: unresponsive (2 pings were not answered) -> check
    90s missed: unresponsive (2 pings were not answered) -> look
    90s spoke: ready -> <recovered>, count tools
    90s alive: ready
    120s tick: ready -> check
    120s alive: ready
    ");
}

#[test]
fn one_that_does_not_answer_the_greeting_takes_calls_and_may_answer_later() {
    assert_snapshot!(story("run launched +10 spoke greeted"), @r"
    0s run: creating -> launch 1
    0s launched: creating -> <started>, greet
    10s tick: unresponsive (it has not answered the greeting) -> listen, <unresponsive>
    10s spoke: ready -> <recovered>, count tools
    10s greeted: ready -> count tools
    ");
}

#[test]
fn a_broken_bridge_is_a_crash_once_it_is_sure() {
    assert_snapshot!(story("run launched greeted eof runs +1 runs +1 runs destroyed"), @r"
    0s run: creating -> launch 1
    0s launched: creating -> <started>, greet
    0s greeted: ready -> <ready>, count tools
    0s eof: restarting (its streams ended) -> look
    0s runs: restarting (its streams ended)
    0s tick: restarting (its streams ended) -> look
    1s runs: restarting (its streams ended)
    1s tick: restarting (its streams ended) -> look
    2s runs: restarting (it closed its stdin or stdout and went on running) -> close, <crashed>, destroy 1
    2s destroyed: restarting (it closed its stdin or stdout and went on running) -> launch 2
    ");
}

#[test]
fn a_bridge_that_broke_with_the_engine_is_built_anew() {
    assert_snapshot!(story("run launched greeted eof unknown +3 unknown +3 runs launched greeted"), @r"
    0s run: creating -> launch 1
    0s launched: creating -> <started>, greet
    0s greeted: ready -> <ready>, count tools
    0s eof: restarting (its streams ended) -> look
    0s unknown: error (the engine is away)
    3s tick: error (the engine is away) -> look
    3s unknown: error (the engine is away)
    6s tick: error (the engine is away) -> look
    6s runs: error (the engine is away) -> close, adopt 1
    6s launched: restarting -> greet
    6s greeted: ready -> <adopted>, count tools
    ");
}

#[test]
fn what_ran_before_us_is_taken_over() {
    assert_snapshot!(story_from(&remembered(7), RestartPolicy::Always, "run away +3 launched greeted hint exited destroyed launched"), @r"
    0s run: creating -> adopt 7
    0s away: error (the engine is away) -> <start_failed>
    3s tick: error (the engine is away) -> adopt 7
    3s launched: restarting -> greet
    3s greeted: ready -> <adopted>, count tools
    3s hint: ready -> look
    3s exited: restarting (it exited with code 1) -> close, <crashed>, destroy 7
    3s destroyed: restarting (it exited with code 1) -> launch 8
    3s launched: restarting (it exited with code 1) -> <started>, greet
    ");
}

#[test]
fn what_cannot_be_taken_over_is_replaced() {
    assert_snapshot!(story_from(&remembered(7), RestartPolicy::Always, "run refused destroyed launched greeted"), @r"
    0s run: creating -> adopt 7
    0s refused: creating -> destroy 7
    0s destroyed: creating -> launch 8
    0s launched: creating -> <started>, greet
    0s greeted: ready -> <ready>, count tools
    ");
    assert_snapshot!(story_from(&remembered(7), RestartPolicy::Always, "stop destroyed run launched"), @r"
    0s stop: stopping -> stop 7 within 10s
    0s destroyed: stopped -> <stopped>
    0s run: creating -> launch 8
    0s launched: creating -> <started>, greet
    ");
    assert_snapshot!(story_from(&remembered(7), RestartPolicy::Always, "remove undestroyed +3 destroyed"), @r"
    0s remove: stopping -> stop 7 within 10s
    0s undestroyed: stopping (the engine is away)
    3s tick: stopping (the engine is away) -> stop 7 within 10s
    3s destroyed: stopped
    ");
}

#[test]
fn at_the_end_of_cofer_nothing_is_started_and_nothing_waited_for() {
    assert_snapshot!(story("run launched greeted shutdown destroyed"), @r"
    0s run: creating -> launch 1
    0s launched: creating -> <started>, greet
    0s greeted: ready -> <ready>, count tools
    0s shutdown: stopping -> stop 1 within 30s
    0s destroyed: stopped
    ");
    assert_snapshot!(story("run launched greeted hint exited undestroyed shutdown"), @r"
    0s run: creating -> launch 1
    0s launched: creating -> <started>, greet
    0s greeted: ready -> <ready>, count tools
    0s hint: ready -> look
    0s exited: restarting (it exited with code 1) -> close, <crashed>, destroy 1
    0s undestroyed: error (the engine is away)
    0s shutdown: stopped (the engine is away)
    ");
    assert_snapshot!(story("run shutdown launched undestroyed"), @r"
    0s run: creating -> launch 1
    0s shutdown: stopping -> cancel 1
    0s launched: stopping -> stop 1 within 30s
    0s undestroyed: stopped
    ");
}
