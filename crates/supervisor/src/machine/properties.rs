//! Random lives: whatever happens in whatever order, these hold.

use std::collections::BTreeSet;

use cofer_model::{HostedStatus, Kind};
use cofer_sandbox::ExitCause;
use proptest::prelude::*;

use super::stories::{SECOND, about, exit, moment, remembered, rules};
use super::*;

/// What the world may do next.
#[derive(Clone, Debug)]
enum Move {
    Tell(Command),
    /// The errand at this place of those that are out comes back, well or badly.
    Answer {
        place: usize,
        well: bool,
    },
    /// The live run does something by itself.
    Happens(News),
    /// An earlier run is heard of.
    Late {
        back: u64,
        news: News,
    },
    Hint,
    Pass(u64),
}

fn happenings() -> impl Strategy<Value = News> {
    prop_oneof![
        Just(News::BridgeEnded),
        Just(News::Spoke),
        Just(News::Tools(3)),
        Just(News::Progress("pulling".to_owned())),
        Just(News::Greeted(Facts::default())),
    ]
}

fn any_news() -> impl Strategy<Value = News> {
    prop_oneof![
        happenings(),
        Just(News::Looked(exit(Some(1), None, ExitCause::Itself))),
        Just(News::Launched(Box::new(about(RestartPolicy::Always)))),
        Just(News::StartFailed(StartFailure::new(Kind::Invalid, "no"))),
        Just(News::Destroyed(Ok(()))),
        Just(News::Checked(Checked::Missed)),
    ]
}

fn moves() -> impl Strategy<Value = Move> {
    let commands = prop_oneof![
        3 => Just(Command::Want(Wanted::Running)),
        2 => Just(Command::Want(Wanted::Stopped)),
        2 => Just(Command::Start),
        1 => Just(Command::Restart),
        1 => Just(Command::Reconfigure),
    ];
    prop_oneof![
        3 => commands.prop_map(Move::Tell),
        12 => (0_usize..4, prop::bool::weighted(0.7)).prop_map(|(place, well)| Move::Answer { place, well }),
        3 => happenings().prop_map(Move::Happens),
        2 => (1_u64..4, any_news()).prop_map(|(back, news)| Move::Late { back, news }),
        1 => Just(Move::Hint),
        3 => (0_u64..400).prop_map(Move::Pass),
    ]
}

/// Plays the world, and watches.
struct World {
    machine: Machine,
    now: Instant,
    elapsed: Duration,
    policy: RestartPolicy,
    /// What is being done for it.
    out: Vec<Effect>,
    /// Runs of which something may exist.
    live: BTreeSet<u64>,
    launched_last: u64,
    crashes: u64,
}

impl World {
    fn new(policy: RestartPolicy, found: bool) -> Self {
        let memory = if found { remembered(5) } else { Memory { runs: 5, ..Memory::default() } };
        Self {
            machine: Machine::new(rules(), Duration::ZERO, &memory),
            now: Instant::now(),
            elapsed: Duration::ZERO,
            policy,
            out: Vec::new(),
            live: BTreeSet::from_iter(found.then_some(5)),
            launched_last: 5,
            crashes: 0,
        }
    }

    fn step(&mut self, event: Event) {
        let now = Now { at: self.now, wall: moment().after(self.elapsed) };
        for effect in self.machine.step(now, event) {
            match &effect {
                Effect::Launch { run } => {
                    assert!(self.live.is_empty(), "run {run} is launched while {:?} may exist", self.live);
                    assert!(*run > self.launched_last, "a run's number is used again");
                    self.launched_last = *run;
                    self.live.insert(*run);
                }
                // The driver gives up whatever it was asking.
                Effect::Adopt { .. } => self.out.clear(),
                Effect::Record(event) if event.kind == cofer_model::HostedEventKind::Crashed => {
                    self.crashes += 1;
                }
                Effect::Record(_) => continue,
                _ => {}
            }
            if !matches!(effect, Effect::Record(_) | Effect::Cancel { .. } | Effect::CloseBridge { .. }) {
                assert!(
                    !self.out.contains(&effect)
                        || matches!(effect, Effect::CountTools { .. } | Effect::Listen { .. }),
                    "{effect:?} twice at once"
                );
                self.out.push(effect);
            }
        }
        self.check();
    }

    fn check(&self) {
        assert!(self.live.len() <= 1);
        assert_eq!(self.machine.truth(), self.machine.truth());
        if !self.machine.is_over()
            && self.machine.wanted == Some(Wanted::Running)
            && !matches!(self.machine.state, State::Running(_) | State::Stopped)
        {
            let busy = self.out.iter().any(|effect| {
                matches!(
                    effect,
                    Effect::Launch { .. }
                        | Effect::Adopt { .. }
                        | Effect::StopAndDestroy { .. }
                        | Effect::Destroy { .. }
                )
            });
            assert!(busy || self.machine.next_deadline().is_some(), "stuck in {:?}", self.machine.state);
        }
        if let State::Running(running) = &self.machine.state
            && running.bridge_lost.is_some()
        {
            let looks = self.out.contains(&Effect::Look { run: running.run });
            assert!(looks || running.look != Errand::Idle, "nobody looks after a lost bridge");
        }
    }

    fn news(&mut self, run: u64, news: News) {
        self.step(Event::News { run, news });
    }

    fn answer(&mut self, place: usize, well: bool) {
        if self.out.is_empty() {
            return;
        }
        let effect = self.out.remove(place % self.out.len());
        match effect {
            Effect::Launch { run } | Effect::Adopt { run } if well => {
                self.news(run, News::Launched(Box::new(about(self.policy))));
            }
            Effect::Launch { run } | Effect::Adopt { run } => {
                let kind = if place.is_multiple_of(2) { Kind::Unavailable } else { Kind::Invalid };
                self.news(run, News::StartFailed(StartFailure::new(kind, "no")));
            }
            Effect::StopAndDestroy { run, .. } | Effect::Destroy { run } if well => {
                self.live.remove(&run);
                self.news(run, News::Destroyed(Ok(())));
            }
            Effect::StopAndDestroy { run, .. } | Effect::Destroy { run } => {
                self.news(run, News::Destroyed(Err("away".to_owned())));
            }
            Effect::Greet { run } => self.news(run, News::Greeted(Facts::default())),
            Effect::Listen { run } => self.news(run, News::Spoke),
            Effect::Check { run } => {
                self.news(run, News::Checked(if well { Checked::Alive } else { Checked::Missed }));
            }
            Effect::Look { run } => {
                let seen = match (well, place) {
                    (true, _) => Seen::Running,
                    (false, 0) => Seen::Unknown("away".to_owned()),
                    (false, place) => exit(Some(i64::from(place > 1)), None, ExitCause::Itself),
                };
                self.news(run, News::Looked(seen));
            }
            _ => {}
        }
    }

    fn pass(&mut self, seconds: u64) {
        let end = self.elapsed + SECOND * u32::try_from(seconds).unwrap();
        let mut ticks = 0;
        while let Some(due) = self.machine.next_deadline() {
            let wait = due.saturating_duration_since(self.now);
            if self.elapsed + wait > end {
                break;
            }
            self.now += wait;
            self.elapsed += wait;
            self.step(Event::Tick);
            ticks += 1;
            assert!(ticks < 1000, "it ticks without end in {:?}", self.machine.state);
        }
        self.now += end.saturating_sub(self.elapsed);
        self.elapsed = end;
    }

    fn make(&mut self, next: Move) {
        match next {
            Move::Tell(command) => self.step(Event::Command(command)),
            Move::Answer { place, well } => self.answer(place, well),
            Move::Happens(news) => self.news(self.launched_last, news),
            Move::Late { back, news } => {
                let before = format!("{:?}", self.machine);
                self.news(self.launched_last.saturating_sub(back), news);
                assert_eq!(format!("{:?}", self.machine), before, "yesterday's news changed something");
            }
            Move::Hint => self.step(Event::Hint),
            Move::Pass(seconds) => self.pass(seconds),
        }
    }

    /// From now on the world is kind.
    fn settle(&mut self) {
        for _ in 0..12 {
            self.answer_all();
            self.pass(301);
            self.answer_all();
        }
    }

    fn answer_all(&mut self) {
        while !self.out.is_empty() {
            self.answer(0, true);
        }
    }
}

fn policies() -> impl Strategy<Value = RestartPolicy> {
    prop::sample::select(RestartPolicy::ALL)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn one_that_should_run_does_in_the_end(policy in policies(), found in any::<bool>(), story in prop::collection::vec(moves(), 0..80)) {
        let mut world = World::new(policy, found);
        for next in story {
            world.make(next);
        }
        // One whose policy forbids a restart may be about to end by itself.
        world.settle();
        world.step(Event::Command(Command::Start));
        world.settle();
        prop_assert_eq!(world.machine.truth().status, HostedStatus::Ready, "{:?}", world.machine.state);
        prop_assert_eq!(world.live.len(), 1);
    }

    #[test]
    fn after_a_removal_nothing_is_left(policy in policies(), found in any::<bool>(), story in prop::collection::vec(moves(), 0..80), after in prop::collection::vec(moves(), 0..10)) {
        let mut world = World::new(policy, found);
        for next in story {
            world.make(next);
        }
        world.step(Event::Command(Command::Remove));
        for next in after {
            world.make(next);
        }
        world.settle();
        prop_assert!(world.machine.truth().gone, "{:?}", world.machine.state);
        prop_assert!(world.live.is_empty());
        prop_assert_eq!(world.machine.next_deadline(), None);
    }

    #[test]
    fn waits_grow_as_promised_while_it_keeps_crashing(crashes in 1_usize..12) {
        let mut world = World::new(RestartPolicy::Always, false);
        world.step(Event::Command(Command::Want(Wanted::Running)));
        let mut waits = Vec::new();
        for _ in 0..crashes {
            world.answer(0, true);
            let run = world.launched_last;
            world.out.clear();
            world.step(Event::Hint);
            world.out.clear();
            world.news(run, News::Looked(exit(Some(1), None, ExitCause::Itself)));
            world.answer(0, true);
            waits.push(world.machine.next_deadline().map_or(0, |at| at.duration_since(world.now).as_secs()));
            world.pass(waits[waits.len() - 1]);
        }
        let promised = [0, 0, 5, 15, 45, 120, 300, 300, 300, 300, 300, 300];
        prop_assert_eq!(&waits[..], &promised[..crashes]);
        prop_assert_eq!(world.crashes, crashes as u64);
        prop_assert_eq!(world.machine.truth().restart_count, crashes as u64);
    }
}
