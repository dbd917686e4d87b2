//! What our streams cost: one line there and back, against a connection made by hand, in turns.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use cofer_model::ProviderName;
use cofer_sandbox::Provider as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::bed::Bed;

conformance! {
    a_line_there_and_back_costs_little_more_than_by_hand,
}

const ROUNDS: usize = 20;
const LINES_PER_ROUND: usize = 20;
/// Generous, because the machine is shared; the figure itself is printed.
const RATIO_MAX: f64 = 1.6;

/// A blocking connection with no more in it than there must be.
struct ByHand(UnixStream);

impl ByHand {
    fn attach(host: &str, id: &str) -> Self {
        let mut stream = UnixStream::connect(host.strip_prefix("unix://").unwrap()).unwrap();
        let request = format!(
            "POST /v1.41/containers/{id}/attach?stream=1&stdin=1&stdout=1 HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n"
        );
        stream.write_all(request.as_bytes()).unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            head.push(byte[0]);
        }
        Self(stream)
    }

    fn round_trip(&mut self) {
        self.0.write_all(b"0123456789abcde\n").unwrap();
        let mut frame = [0; 8 + 16];
        self.0.read_exact(&mut frame).unwrap();
    }
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

async fn a_line_there_and_back_costs_little_more_than_by_hand(bed: &Bed) {
    let start = Instant::now();
    let mut ours = bed.run("cat").await;
    eprintln!("{}: launched in {:?}", bed.provider.name(), start.elapsed());
    let theirs = bed.run("cat").await;
    ours.say("warm").await;
    assert_eq!(ours.line().await, "warm");
    if bed.is(ProviderName::Podman) {
        // A second connection to one of Podman's sandboxes breaks the first.
        return;
    }
    let mut by_hand = ByHand::attach(bed.engine.host(), &theirs.id.0);
    let streams = ours.streams.as_mut().unwrap();
    let (mut our_times, mut their_times) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        for _ in 0..LINES_PER_ROUND {
            let start = Instant::now();
            streams.stdin.write_all(b"0123456789abcde\n").await.unwrap();
            streams.stdout.read_exact(&mut [0; 16]).await.unwrap();
            our_times.push(start.elapsed());
        }
        by_hand = tokio::task::spawn_blocking(move || {
            let times: Vec<_> = (0..LINES_PER_ROUND)
                .map(|_| {
                    let start = Instant::now();
                    by_hand.round_trip();
                    start.elapsed()
                })
                .collect();
            (by_hand, times)
        })
        .await
        .map(|(by_hand, times)| {
            their_times.extend(times);
            by_hand
        })
        .unwrap();
    }
    let (ours, theirs) = (median(our_times), median(their_times));
    let ratio = ours.as_secs_f64() / theirs.as_secs_f64();
    eprintln!("{}: {ours:?} here, {theirs:?} by hand: {ratio:.2} times", bed.provider.name());
    assert!(ratio < RATIO_MAX, "{ratio:.2} times");
}
