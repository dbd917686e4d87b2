//! A long random life on a paused clock. The seed is printed; `COFER_SIMULATION_SEED` plays one again, `COFER_SIMULATION_LIVES` plays more.

use serde_json::json;

use super::*;
use crate::testing::{LaunchFailure, Manners};

/// Splitmix: small, good enough, and the same everywhere.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % sides
    }

    fn span(&mut self, ms_max: u64) -> Duration {
        Duration::from_millis(self.roll(ms_max))
    }
}

async fn live(dice: &mut Dice) {
    let mut bed = Bed::new();
    bed.server.want(Wanted::Running);
    for _ in 0..60 {
        match dice.roll(17) {
            0 => _ = bed.server.want(Wanted::Running),
            // Cofer is killed, and lives again.
            16 => {
                let memory = super::life::remembered(&bed);
                bed.engine.sweep_except(memory.sandbox.as_ref().map(|sandbox| &sandbox.id));
                bed = Bed::with(bed.engine.clone(), bed.planner.clone(), memory);
                bed.server.want(Wanted::Running);
            }
            1 => _ = bed.server.want(Wanted::Stopped),
            2 => _ = bed.server.restart(),
            3 => _ = bed.server.reconfigure(),
            4 => _ = bed.server.start_now(),
            5 => bed.engine.go_away(),
            6 | 7 => bed.engine.come_back(),
            8 => bed.engine.kill_all(),
            9 => bed.server.exited_hint(),
            10 => bed.engine.launch_takes(dice.span(3000)),
            11 => bed.engine.fail_next(if dice.roll(2) == 0 {
                LaunchFailure::HalfMade
            } else {
                LaunchFailure::Refused
            }),
            12 => bed.engine.mind(Manners {
                ignores_greeting: dice.roll(4) == 0,
                greets_after: dice.span(2000),
                stubborn: dice.roll(4) == 0,
                crashes_after: (dice.roll(3) == 0).then(|| dice.span(20_000)),
            }),
            13 => _ = bed.call("crash", json!(dice.roll(3)), SECOND).await,
            14 => {
                let moods = ["mute", "close_stdout", "hang"];
                let mood = moods[usize::try_from(dice.roll(3)).unwrap()];
                _ = bed.call(mood, json!(0), SECOND).await;
            }
            _ => tokio::time::sleep(dice.span(120_000)).await,
        }
        tokio::time::sleep(dice.span(2000)).await;
    }
    bed.engine.come_back();
    bed.engine.mind(Manners::default());
    if dice.roll(2) == 0 {
        let seen = bed.server.restart();
        bed.until_ready_after(seen).await;
        assert_eq!(bed.engine.running(), 1);
        assert_eq!(bed.call("echo", json!("well"), SECOND).await, Ok(json!("well")));
    }
    bed.removed().await;
}

#[tokio::test(start_paused = true)]
async fn whatever_happens_it_ends_as_it_should_and_leaves_nothing() {
    let lives =
        std::env::var("COFER_SIMULATION_LIVES").ok().and_then(|lives| lives.parse().ok()).unwrap_or(100);
    let given = std::env::var("COFER_SIMULATION_SEED").ok().and_then(|seed| seed.parse().ok());
    let first: u64 = given.unwrap_or_else(|| u64::from(std::process::id()) << 20);
    for seed in first..first + if given.is_some() { 1 } else { lives } {
        println!("COFER_SIMULATION_SEED={seed}");
        live(&mut Dice(seed)).await;
    }
}
