//! Ends: how a sandbox came to its own, how it is brought to one, and how that is told.

use std::time::{Duration, Instant};

use cofer_model::Size;
use cofer_sandbox::{ExitCause, Provider as _, SandboxId, SandboxState};
use futures_util::StreamExt as _;

use crate::bed::Bed;

conformance! {
    codes_are_told,
    signals_are_told,
    one_that_wants_too_much_memory_is_told_apart,
    a_polite_one_is_stopped_politely,
    a_stubborn_one_is_killed_after_its_grace,
    stopping_and_destroying_twice_is_harmless,
    ends_are_news,
}

const LONG: Duration = Duration::from_mins(1);

async fn codes_are_told(bed: &Bed) {
    for code in [0, 3] {
        let sandbox = bed.run(&format!("exit {code}")).await;
        let exit = bed.exit(&sandbox.id).await;
        assert_eq!((exit.code, exit.signal, exit.cause), (Some(code), None, ExitCause::Itself));
    }
}

async fn signals_are_told(bed: &Bed) {
    // It is not the first process of its sandbox, so that its own signals reach it.
    for (name, number) in [("KILL", 9), ("SEGV", 11)] {
        let sandbox = bed.run(&format!("kill -{name} $$; sleep 1000")).await;
        let exit = bed.exit(&sandbox.id).await;
        assert_eq!(
            (exit.code, exit.signal, exit.cause),
            (Some(128 + number), Some(number), ExitCause::Itself)
        );
    }
}

async fn one_that_wants_too_much_memory_is_told_apart(bed: &Bed) {
    let mut spec = bed.spec("exec tail /dev/zero");
    spec.limits.as_mut().unwrap().memory = Size::from_bytes(64 << 20);
    let sandbox = bed.launch(&spec).await;
    let exit = bed.exit(&sandbox.id).await;
    assert_eq!((exit.signal, exit.cause), (Some(9), ExitCause::OutOfMemory));
}

async fn a_polite_one_is_stopped_politely(bed: &Bed) {
    let mut sandbox = bed.run("trap 'echo bye; exit 7' TERM; echo ready; while :; do sleep 0.05; done").await;
    assert_eq!(sandbox.line().await, "ready");
    bed.provider.stop(&sandbox.id, LONG).await.unwrap();
    assert_eq!(bed.exit(&sandbox.id).await.code, Some(7));
    assert_eq!(sandbox.rest().await, "bye\n");
}

async fn a_stubborn_one_is_killed_after_its_grace(bed: &Bed) {
    let grace = Duration::from_millis(300);
    let mut sandbox = bed.run("trap '' TERM; echo ready; while :; do sleep 1000; done").await;
    assert_eq!(sandbox.line().await, "ready");
    let start = Instant::now();
    bed.provider.stop(&sandbox.id, grace).await.unwrap();
    assert!(start.elapsed() >= grace, "it had no grace");
    let SandboxState::Ended(exit) = bed.state(&sandbox.id).await else {
        panic!("stop returned before the end")
    };
    assert_eq!((exit.signal, exit.cause), (Some(9), ExitCause::Itself));
}

async fn stopping_and_destroying_twice_is_harmless(bed: &Bed) {
    let sandbox = bed.run("exec sleep 1000").await;
    for _ in 0..2 {
        bed.provider.stop(&sandbox.id, LONG).await.unwrap();
    }
    for _ in 0..2 {
        bed.provider.destroy(&sandbox.id).await.unwrap();
    }
    bed.provider.stop(&sandbox.id, LONG).await.unwrap();
    assert_eq!(bed.provider.look(&sandbox.id).await.unwrap(), None);
    let running = bed.run("exec sleep 1000").await;
    let (one, other) = tokio::join!(bed.provider.destroy(&running.id), bed.provider.destroy(&running.id));
    one.and(other).unwrap();
    bed.provider.destroy(&SandboxId("0123456789ab".repeat(5))).await.unwrap();
}

async fn ends_are_news(bed: &Bed) {
    let mut news = bed.provider.watch(&bed.instance).await.unwrap();
    let mut others = bed.provider.watch("somebody else").await.unwrap();
    let sandbox = bed.run("read line").await;
    let lives_on = bed.run("cat").await;
    let mut sandbox = sandbox;
    sandbox.say("go").await;
    let told = tokio::time::timeout(LONG, news.next()).await.unwrap();
    assert_eq!(told.as_ref(), Some(&sandbox.id));
    assert_eq!(bed.exit(&sandbox.id).await.code, Some(0));
    bed.provider.destroy(&lives_on.id).await.unwrap();
    assert_eq!(tokio::time::timeout(LONG, news.next()).await.unwrap(), Some(lives_on.id));
    let nothing = tokio::time::timeout(Duration::from_millis(50), others.next()).await;
    assert!(nothing.is_err(), "news of somebody else's: {nothing:?}");
}
