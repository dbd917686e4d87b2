//! One conversation: made once, made anew, given up; and what callers hear meanwhile.

use std::sync::{Arc, Weak};
use std::time::Duration;

use cofer_mcp::Face;
use cofer_model::{CircuitState, Kind};
use futures_util::future::join_all;
use tokio::time::{Instant, sleep};

use super::Attempt::{CannotBegin, Connects, Fails, Hangs};
use super::MadeUp;
use crate::desk::{Desk, Whose};
use crate::slot::{Slot, SlotRules, Standing};

fn slot(server: &Arc<MadeUp>) -> Slot {
    let desk = Desk::new(Weak::new(), Whose::Everybodys);
    Slot::new(server.clone(), Face::default(), desk, SlotRules::default(), Arc::new(|_| ()))
}

/// Where it stands, in a word.
fn standing(slot: &Slot) -> &'static str {
    match slot.place().standing {
        Standing::Idle => "idle",
        Standing::Connecting => "connecting",
        Standing::Connected(_) => "connected",
        Standing::Waiting { .. } => "waiting",
        Standing::Failed { .. } => "failed",
        Standing::Closed => "closed",
    }
}

/// Lets everything happen that happens at once.
async fn settle() {
    sleep(Duration::from_millis(1)).await;
}

#[tokio::test(start_paused = true)]
async fn many_first_uses_make_one_connection() {
    let server = MadeUp::that([]);
    let slot = slot(&server);
    settle().await;
    assert_eq!((server.dialled(), standing(&slot)), (0, "idle"), "nothing is connected before it is used");
    let all = join_all((0..50).map(|_| slot.connection())).await;
    assert!(all.iter().all(Result::is_ok));
    assert_eq!(server.dialled(), 1);
}

#[tokio::test(start_paused = true)]
async fn callers_hear_at_once_that_it_waits_and_when_it_is_tried_next() {
    let server = MadeUp::that([Fails]);
    let slot = slot(&server);
    let first = slot.connection().await.unwrap_err();
    assert_eq!((first.kind, &*first.reason), (Kind::Unavailable, "nobody is there"));
    let began = Instant::now();
    let second = slot.connection().await.unwrap_err();
    assert_eq!(began.elapsed(), Duration::ZERO, "nobody waits for the next try");
    let after = second.retry_after.unwrap();
    assert!(after <= Duration::from_millis(500), "{after:?}");
    sleep(after + Duration::from_millis(2)).await;
    assert_eq!((standing(&slot), server.dialled()), ("connected", 2), "it was tried without being asked");
    assert!(slot.place().last_error.is_none());
}

#[tokio::test(start_paused = true)]
async fn three_failures_cut_it_off_and_one_probe_decides() {
    let server = MadeUp::that([Fails, Fails, Fails, Fails]);
    let slot = slot(&server);
    let _ = slot.connection().await;
    sleep(Duration::from_secs(2)).await;
    assert_eq!(
        (server.dialled(), slot.place().circuit, slot.place().failures),
        (3, CircuitState::Refusing, 3)
    );
    sleep(Duration::from_secs(50)).await;
    assert!(slot.connection().await.is_err());
    assert_eq!(server.dialled(), 3, "nobody tries during the cool-down");
    sleep(Duration::from_secs(12)).await;
    assert_eq!((server.dialled(), slot.place().circuit), (4, CircuitState::Refusing), "the probe failed");
    sleep(Duration::from_secs(61)).await;
    assert_eq!((server.dialled(), slot.place().circuit), (5, CircuitState::Admitting));
    assert_eq!((slot.place().failures, standing(&slot)), (0, "connected"));
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_breaks_off_is_made_anew_and_the_next_call_waits_for_it() {
    let server = MadeUp::that([]);
    let slot = slot(&server);
    let first = slot.connection().await.unwrap();
    server.hangs_up();
    first.dialled.pump.ended().await;
    let began = Instant::now();
    let second = slot.connection().await.unwrap();
    assert!(!Arc::ptr_eq(&first, &second));
    assert_eq!((server.dialled(), began.elapsed()), (2, Duration::ZERO));
}

#[tokio::test(start_paused = true)]
async fn what_nobody_uses_is_closed_and_stays_so_until_it_is_used() {
    let server = MadeUp::that([]);
    let slot = slot(&server);
    // Many ask at once: the words that nobody needed must not bring it back later.
    join_all((0..10).map(|_| slot.connection())).await;
    sleep(Duration::from_mins(9)).await;
    assert_eq!(standing(&slot), "connected");
    slot.connection().await.unwrap();
    sleep(Duration::from_mins(9)).await;
    assert_eq!(standing(&slot), "connected", "it was used meanwhile");
    sleep(Duration::from_mins(2)).await;
    assert_eq!(standing(&slot), "idle");
    sleep(Duration::from_hours(1)).await;
    assert_eq!((standing(&slot), server.dialled()), ("idle", 1));
    slot.connection().await.unwrap();
    assert_eq!(server.dialled(), 2);
}

#[tokio::test(start_paused = true)]
async fn whoever_will_not_wait_need_not_and_leaves_no_wish_behind() {
    let server = MadeUp::that([Fails, Fails, Fails]);
    let slot = slot(&server);
    let _ = slot.connection().await;
    sleep(Duration::from_secs(2)).await;
    assert_eq!(slot.place().circuit, CircuitState::Refusing);
    let began = Instant::now();
    slot.reconnect().await.unwrap();
    assert_eq!((server.dialled(), began.elapsed()), (4, Duration::ZERO));
    // Asked for while it is connected, there is nothing to hurry; and the next wait is not cut short by it.
    slot.reconnect().await.unwrap();
    server.will([Fails, Fails, Fails, Connects]);
    server.hangs_up();
    sleep(Duration::from_secs(2)).await;
    assert_eq!((server.dialled(), slot.place().circuit), (7, CircuitState::Refusing));
    sleep(Duration::from_secs(30)).await;
    assert_eq!(server.dialled(), 7, "the cool-down is kept");
}

#[tokio::test(start_paused = true)]
async fn what_is_not_the_servers_fault_counts_against_nobody_and_is_tried_at_the_next_use() {
    let server = MadeUp::that([CannotBegin, CannotBegin, CannotBegin, CannotBegin]);
    let slot = slot(&server);
    for attempt in 1..=4 {
        let failed = slot.connection().await.unwrap_err();
        assert_eq!((failed.kind, failed.retry_after), (Kind::PreconditionFailed, None));
        sleep(Duration::from_mins(10)).await;
        assert_eq!((server.dialled(), slot.place().failures, standing(&slot)), (attempt, 0, "failed"));
    }
    slot.connection().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn one_that_hangs_is_given_up_after_the_deadline() {
    let server = MadeUp::that([Hangs]);
    let slot = slot(&server);
    let began = Instant::now();
    let failed = slot.connection().await.unwrap_err();
    assert_eq!(began.elapsed(), Duration::from_secs(30));
    assert!(failed.reason.contains("handshake within 30 s"), "{failed:?}");
}

#[tokio::test(start_paused = true)]
async fn a_slot_that_is_closed_says_so_and_lets_go() {
    let server = MadeUp::that([Hangs]);
    let slot = slot(&server);
    let (failed, ()) = tokio::join!(slot.connection(), async {
        settle().await;
        slot.close();
    });
    assert!(failed.unwrap_err().reason.contains("removed"));
    assert_eq!(standing(&slot), "closed");
    assert!(slot.connection().await.is_err());
    assert!(slot.reconnect().await.is_err());
}
