//! What a command in a workshop costs, beside the engine's own exec of the same program in the same container, in turns.

use std::time::{Duration, Instant};

use cofer_model::ProviderName;
use cofer_sandbox::{CommandSpec, Provider as _};
use tokio::io::AsyncReadExt as _;

use crate::bed::Bed;
use crate::workbench::{Workbench, exited, rest, shell};

conformance! {
    a_command_costs_a_fraction_of_the_engines_own_exec,
}

const ROUNDS: usize = 10;
const COMMANDS_PER_ROUND: usize = 20;
/// Generous, because the machine is shared; the figures themselves are printed.
const FRACTION_MAX: f64 = 0.25;

async fn a_command_costs_a_fraction_of_the_engines_own_exec(bed: &Bed) {
    if bed.is(ProviderName::Gvisor) {
        return; // There both are the same.
    }
    let start = Instant::now();
    let bench = Workbench::new(bed).await;
    let launched_in = start.elapsed();
    let command = CommandSpec { argv: vec!["/bin/true".into()], ..shell("") };
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        for _ in 0..COMMANDS_PER_ROUND {
            let start = Instant::now();
            let outcome = rest(&mut bench.start(&command).await).await;
            ours.push(start.elapsed());
            assert_eq!(outcome.end, exited(0));
        }
        if bed.is(ProviderName::Docker) {
            let start = Instant::now();
            let mut streams = bed.provider.exec(&bench.launched.id, &command.argv).await.unwrap();
            streams.stdout.read_to_end(&mut Vec::new()).await.unwrap();
            theirs.push(start.elapsed());
        }
    }
    let name = bed.provider.name();
    eprintln!("{name}: ready in {launched_in:?}; a command {}", told(&mut ours));
    if theirs.is_empty() {
        return; // Podman keeps a process for each exec, for five minutes.
    }
    eprintln!("{name}: the engine's own exec {}", told(&mut theirs));
    let fraction = ours[ours.len() / 2].as_secs_f64() / theirs[theirs.len() / 2].as_secs_f64();
    assert!(fraction < FRACTION_MAX, "{fraction:.2}");
}

/// Sorts them, too.
fn told(times: &mut [Duration]) -> String {
    times.sort();
    let at = |percent: usize| times[(times.len() * percent / 100).min(times.len() - 1)];
    format!("p50 {:?}, p95 {:?}, at best {:?}", at(50), at(95), times[0])
}
