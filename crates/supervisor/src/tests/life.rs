//! Lives: starts, crashes, stops, changes and removals, against an engine in memory, on a paused clock.

use std::sync::atomic::Ordering;

use cofer_model::Kind;
use serde_json::json;

use super::*;
use crate::Adoptable;
use crate::testing::{LaunchFailure, Manners};

#[tokio::test(start_paused = true)]
async fn it_starts_tells_of_itself_and_goes_without_a_trace() {
    let bed = Bed::ready().await;
    let truth = bed.until(|truth| truth.facts.tool_count == Some(2)).await;
    assert_eq!(truth.facts.protocol_version.as_deref(), Some("2025-11-25"));
    assert!(truth.bridge_connected && truth.sandbox.is_some() && truth.running_since.is_some());
    assert_eq!(bed.server.logs().tail(10)[0].line, "server started");
    bed.removed().await;
}

#[tokio::test(start_paused = true)]
async fn a_crash_is_followed_by_a_restart_at_once_and_counted_once() {
    let bed = Bed::ready().await;
    let began = tokio::time::Instant::now();
    let refused = bed.call("crash", json!(7), SECOND).await;
    assert_eq!(refused, Err(CallRefused::Pump(cofer_mcp::CallError::MayHaveExecuted)));
    bed.server.exited_hint();
    let truth = bed.until(|truth| truth.restart_count == 1 && truth.status == HostedStatus::Ready).await;
    assert!(began.elapsed() < SECOND, "{:?}", began.elapsed());
    let exit = truth.last_exit.unwrap();
    assert_eq!((exit.code, exit.stderr_tail.as_str()), (Some(7), "server started\nabout to crash"));
    assert_eq!(bed.count(HostedEventKind::Crashed), 1);
    bed.removed().await;
}

#[tokio::test(start_paused = true)]
async fn one_that_is_killed_from_outside_is_noticed_by_its_stream() {
    let bed = Bed::ready().await;
    bed.engine.kill_all();
    let truth = bed.until(|truth| truth.restart_count == 1 && truth.status == HostedStatus::Ready).await;
    assert_eq!(truth.last_exit.unwrap().signal, Some(9));
    bed.removed().await;
}

#[tokio::test(start_paused = true)]
async fn one_that_always_crashes_is_restarted_ever_more_slowly() {
    let bed = Bed::new();
    bed.engine.mind(Manners { crashes_after: Some(SECOND), ..Manners::default() });
    bed.server.want(Wanted::Running);
    let truth = bed.until(|truth| truth.crash_loop.step == 3 && truth.next_try.is_some()).await;
    assert!(truth.crash_loop.active && truth.status == HostedStatus::Restarting);
    assert_eq!(bed.engine.launches(), 5);
    let refused = bed.call("echo", json!(1), SECOND).await;
    assert!(
        matches!(refused, Err(CallRefused::NotReady { retry_after, .. }) if retry_after > 40 * SECOND),
        "{refused:?}"
    );
    bed.engine.mind(Manners::default());
    bed.until(|truth| truth.status == HostedStatus::Ready && !truth.crash_loop.active).await;
    assert_eq!(bed.count(HostedEventKind::CrashLoopLeft), 1);
    bed.removed().await;
}

#[tokio::test(start_paused = true)]
async fn a_server_that_passes_over_the_greeting_takes_calls_all_the_same() {
    let bed = Bed::new();
    bed.engine.mind(Manners { ignores_greeting: true, ..Manners::default() });
    bed.server.want(Wanted::Running);
    let truth = bed.until_status(HostedStatus::Unresponsive).await;
    assert!(truth.bridge_connected);
    assert_eq!(bed.call("echo", json!("hello"), SECOND).await, Ok(json!("hello")));
    bed.until_ready().await;
    bed.removed().await;
}

#[tokio::test(start_paused = true)]
async fn a_slow_starter_is_greeted_properly_in_the_end() {
    let bed = Bed::new();
    bed.engine.mind(Manners { greets_after: 25 * SECOND, ..Manners::default() });
    bed.server.want(Wanted::Running);
    bed.until_status(HostedStatus::Unresponsive).await;
    let truth = bed.until_ready().await;
    bed.until(|truth| truth.facts.server_info.is_some()).await;
    assert_eq!(truth.restart_count, 0);
    bed.removed().await;
}

#[tokio::test(start_paused = true)]
async fn one_that_falls_silent_is_unresponsive_and_not_restarted() {
    let bed = Bed::ready().await;
    assert!(bed.call("mute", json!(0), SECOND).await.is_err());
    let truth = bed.until_status(HostedStatus::Unresponsive).await;
    assert_eq!((truth.restart_count, bed.engine.launches()), (0, 1));
    assert_eq!(bed.call("speak", json!(0), SECOND).await, Ok(json!("well")));
    bed.until_ready().await;
    assert_eq!((bed.count(HostedEventKind::Unresponsive), bed.count(HostedEventKind::Recovered)), (1, 1));
    bed.removed().await;
}

#[tokio::test(start_paused = true)]
async fn one_that_closes_its_stdout_and_runs_on_is_replaced() {
    let bed = Bed::ready().await;
    assert!(bed.call("close_stdout", json!(0), SECOND).await.is_err());
    let truth = bed.until(|truth| truth.restart_count == 1 && truth.status == HostedStatus::Ready).await;
    assert_eq!(truth.last_exit.unwrap().code, None);
    bed.removed().await;
}

#[tokio::test(start_paused = true)]
async fn an_engine_that_goes_away_and_comes_back_finds_it_running() {
    let bed = Bed::ready().await;
    bed.engine.go_away();
    let truth = bed.until_status(HostedStatus::Error).await;
    assert!(truth.reason.unwrap().contains("gone fishing"));
    tokio::time::sleep(60 * SECOND).await;
    bed.engine.come_back();
    let truth = bed.until_ready().await;
    assert_eq!((truth.restart_count, bed.engine.launches(), bed.count(HostedEventKind::Adopted)), (0, 1, 1));
    assert_eq!(bed.call("echo", json!(1), SECOND).await, Ok(json!(1)));
    bed.removed().await;
}

#[tokio::test(start_paused = true)]
async fn a_start_that_cannot_be_says_why_and_is_tried_at_once_when_something_changes() {
    let bed = Bed::new();
    *bed.planner.image.lock().unwrap() = "missing".to_owned();
    bed.server.want(Wanted::Running);
    let truth = bed.until(|truth| truth.start_failure.is_some()).await;
    assert_eq!(truth.status, HostedStatus::Error);
    assert!(truth.start_failure.unwrap().message.contains("no such image"));
    *bed.planner.image.lock().unwrap() = "there".to_owned();
    let began = tokio::time::Instant::now();
    bed.server.reconfigure();
    bed.until_ready().await;
    assert!(began.elapsed() < SECOND);
    bed.removed().await;
}

#[tokio::test(start_paused = true)]
async fn while_the_engine_is_away_it_is_tried_again_every_few_seconds() {
    let bed = Bed::new();
    bed.engine.go_away();
    bed.server.want(Wanted::Running);
    bed.until_status(HostedStatus::Error).await;
    tokio::time::sleep(300 * SECOND).await;
    assert_eq!(bed.count(HostedEventKind::StartFailed), 1, "told once");
    bed.engine.come_back();
    let began = tokio::time::Instant::now();
    bed.until_ready().await;
    assert!(began.elapsed() <= 4 * SECOND);
    bed.removed().await;
}

#[tokio::test(start_paused = true)]
async fn what_a_failed_launch_left_is_swept_up() {
    let bed = Bed::new();
    bed.engine.fail_next(LaunchFailure::HalfMade);
    bed.server.want(Wanted::Running);
    bed.until(|truth| truth.status == HostedStatus::Error && truth.next_try.is_some()).await;
    bed.server.remove();
    bed.until(|truth| truth.gone).await;
    assert!(bed.engine.boxes().is_empty());
    let bed = Bed::new();
    bed.engine.fail_next(LaunchFailure::Refused);
    bed.server.want(Wanted::Running);
    assert_eq!(
        bed.until(|truth| truth.start_failure.is_some()).await.start_failure.unwrap().kind,
        Kind::Invalid
    );
    bed.removed().await;
}

#[tokio::test(start_paused = true)]
async fn commands_are_obeyed_whenever_they_come() {
    let bed = Bed::new();
    bed.engine.launch_takes(2 * SECOND);
    bed.server.want(Wanted::Running);
    tokio::time::sleep(SECOND).await;
    bed.server.want(Wanted::Stopped);
    bed.until_status(HostedStatus::Stopped).await;
    assert_eq!(bed.engine.boxes().len(), 0, "the launch that was under way left nothing");
    let seen = bed.server.restart();
    bed.until_ready_after(seen).await;
    bed.server.want(Wanted::Stopped);
    let seen = bed.server.want(Wanted::Running);
    bed.until_ready_after(seen).await;
    bed.engine.mind(Manners { stubborn: true, ..Manners::default() });
    let began = tokio::time::Instant::now();
    let seen = bed.server.restart();
    let truth = bed.until_ready_after(seen).await;
    assert!(began.elapsed() >= 10 * SECOND && truth.restart_count == 0);
    bed.removed().await;
}

#[tokio::test(start_paused = true)]
async fn a_removal_waits_for_an_engine_that_is_away() {
    let bed = Bed::ready().await;
    bed.engine.go_away();
    bed.server.remove();
    tokio::time::sleep(600 * SECOND).await;
    assert!(!bed.server.truth().borrow().gone);
    bed.engine.come_back();
    bed.until(|truth| truth.gone).await;
    assert!(bed.engine.boxes().is_empty());
}

/// What Cofer would have stored of it.
pub(super) fn remembered(bed: &Bed) -> Memory {
    let truth = bed.server.truth().borrow().clone();
    let provider = Arc::new(Fake(bed.engine.clone()));
    let (run, greeted, facts) = (truth.run, truth.greeted, truth.facts);
    let sandbox = truth.sandbox.map(|id| Adoptable { provider, id, run, greeted, facts });
    Memory { runs: truth.run, restart_count: truth.restart_count, sandbox, ..Memory::default() }
}

#[tokio::test(start_paused = true)]
async fn after_a_kill_of_cofer_it_is_taken_over_and_not_greeted_again() {
    let first = Bed::ready().await;
    first.until(|truth| truth.facts.tool_count.is_some()).await;
    let (memory, engine, planner) = (remembered(&first), first.engine.clone(), first.planner.clone());
    drop(first);
    let second = Bed::with(engine, planner, memory);
    second.server.want(Wanted::Running);
    let truth = second.until_ready().await;
    assert_eq!((second.engine.launches(), second.count(HostedEventKind::Adopted)), (1, 1));
    assert_eq!(truth.facts.protocol_version.as_deref(), Some("2025-11-25"));
    assert_eq!(second.call("echo", json!(2), SECOND).await, Ok(json!(2)));
    second.removed().await;
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_taken_over_is_replaced_and_what_is_not_wanted_removed() {
    for wanted in [Wanted::Running, Wanted::Stopped] {
        let first = Bed::ready().await;
        let (memory, engine, planner) = (remembered(&first), first.engine.clone(), first.planner.clone());
        drop(first);
        engine.cannot_reattach();
        let second = Bed::with(engine, planner, memory);
        let seen = second.server.want(wanted);
        let status = if wanted == Wanted::Running { HostedStatus::Ready } else { HostedStatus::Stopped };
        second.until(|truth| truth.seen >= seen && truth.status == status).await;
        assert_eq!(second.engine.running(), usize::from(wanted == Wanted::Running));
        second.removed().await;
    }
}

#[tokio::test(start_paused = true)]
async fn at_the_end_of_cofer_it_is_ended_and_nothing_is_left() {
    let bed = Bed::ready().await;
    bed.engine.mind(Manners { stubborn: true, ..Manners::default() });
    let began = tokio::time::Instant::now();
    bed.server.shut_down(30 * SECOND).await;
    assert!(began.elapsed() < 32 * SECOND);
    assert!(bed.engine.boxes().is_empty());
    bed.server.shut_down(30 * SECOND).await;
}

#[tokio::test(start_paused = true)]
async fn the_engine_is_asked_for_usage_rarely_however_many_ask() {
    let bed = Bed::ready().await;
    let soon = || tokio::time::Instant::now() + SECOND;
    let asking = || async { bed.server.usage(soon()).await.unwrap() };
    let answers = futures_util::future::join_all((0..20).map(|_| asking())).await;
    assert_eq!(bed.engine.usage_asked.load(Ordering::SeqCst), 1);
    assert_eq!(answers[19].memory_bytes, 5);
    tokio::time::sleep(10 * SECOND).await;
    let later = asking().await;
    assert!((later.cpu_percent - 10.0).abs() < 1.0, "one second of ten: {}", later.cpu_percent);
    bed.engine.go_away();
    tokio::time::sleep(3 * SECOND).await;
    bed.engine.come_back();
    bed.removed().await;
}
