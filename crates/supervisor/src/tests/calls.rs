//! Calls: refused at once while it is down, answered in order, and never sent twice.

use cofer_mcp::CallError;
use serde_json::json;

use super::*;

#[tokio::test(start_paused = true)]
async fn while_it_is_down_callers_hear_so_at_once() {
    let bed = Bed::new();
    let began = tokio::time::Instant::now();
    let refused = bed.call("echo", json!(1), SECOND).await;
    assert!(
        matches!(refused, Err(CallRefused::NotReady { status: HostedStatus::Stopped, .. })),
        "{refused:?}"
    );
    bed.engine.launch_takes(5 * SECOND);
    let seen = bed.server.want(Wanted::Running);
    bed.until(|truth| truth.seen >= seen).await;
    let refused = bed.call("echo", json!(1), SECOND).await;
    assert!(
        matches!(refused, Err(CallRefused::NotReady { status: HostedStatus::Creating, .. })),
        "{refused:?}"
    );
    assert_eq!(began.elapsed(), Duration::ZERO);
    bed.removed().await;
}

#[tokio::test(start_paused = true)]
async fn calls_are_served_in_the_order_they_came_and_past_the_queue_refused() {
    let bed = Bed::ready().await;
    let served = Mutex::new(Vec::new());
    let calls = (0..6).map(async |n| {
        let outcome = bed.call("sleep", json!(100), 10 * SECOND).await;
        served.lock().unwrap().push((n, outcome.is_ok()));
    });
    futures_util::future::join_all(calls).await;
    // One in flight and four in the queue; the sixth heard at once.
    assert_eq!(*served.lock().unwrap(), [(5, false), (0, true), (1, true), (2, true), (3, true), (4, true)]);
    bed.removed().await;
}

#[tokio::test(start_paused = true)]
async fn a_call_that_hangs_times_out_alone_and_the_history_is_not_flooded() {
    let bed = Bed::ready().await;
    for _ in 0..30 {
        let refused = bed.call("hang", json!(0), Duration::from_millis(100)).await;
        assert_eq!(refused, Err(CallRefused::Pump(CallError::Timeout)));
    }
    assert_eq!(bed.call("echo", json!(1), SECOND).await, Ok(json!(1)));
    assert_eq!(bed.count(HostedEventKind::CallTimedOut), 10);
    tokio::time::sleep(60 * SECOND).await;
    let _ = bed.call("hang", json!(0), Duration::from_millis(100)).await;
    let last = bed.events.lock().unwrap().last().cloned().unwrap();
    assert_eq!(last.details["others_before"], 20);
    assert_eq!(bed.engine.launches(), 1, "not restarted");
    bed.removed().await;
}

#[tokio::test(start_paused = true)]
async fn when_it_is_stopped_callers_in_flight_hear_that_it_may_have_happened() {
    let bed = Bed::ready().await;
    let server = bed.server.clone();
    let call = tokio::spawn(async move { server.call("hang", None, 60 * SECOND).await.map(|_| ()) });
    tokio::time::sleep(SECOND).await;
    bed.server.want(Wanted::Stopped);
    assert_eq!(call.await.unwrap(), Err(CallRefused::Pump(CallError::MayHaveExecuted)));
    let refused = bed.call("echo", json!(1), SECOND).await;
    assert!(matches!(refused, Err(CallRefused::NotReady { .. })));
    bed.removed().await;
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_leaves_holds_nobody_up() {
    let bed = Bed::ready().await;
    let server = bed.server.clone();
    let call = tokio::spawn(async move { server.call("hang", None, 60 * SECOND).await.map(|_| ()) });
    tokio::time::sleep(SECOND).await;
    call.abort();
    assert_eq!(bed.call("echo", json!(1), SECOND).await, Ok(json!(1)));
    bed.removed().await;
}

#[tokio::test(start_paused = true)]
async fn what_it_says_by_itself_is_heard_over_all_its_lives_and_new_tools_are_counted() {
    let bed = Bed::ready().await;
    let mut said = bed.server.notifications();
    for _ in 0..2 {
        bed.until(|truth| truth.status == HostedStatus::Ready && truth.facts.tool_count == Some(2)).await;
        bed.call("learn", json!(0), SECOND).await.unwrap();
        assert_eq!(said.recv().await.unwrap().method, "notifications/tools/list_changed");
        bed.until(|truth| truth.facts.tool_count == Some(3)).await;
        let seen = bed.server.restart();
        bed.until_ready_after(seen).await;
    }
    bed.removed().await;
}

/// On the real clock: its server listens on a real port.
#[tokio::test]
async fn an_http_server_is_ready_when_its_port_answers_and_is_not_called_here() {
    use tokio::io::AsyncWriteExt;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let bed = Bed::new();
    bed.engine.publishes(listener.local_addr().unwrap().port());
    *bed.planner.bridge.lock().unwrap() = Bridge::Http { path: "/mcp".to_owned() };
    bed.server.want(Wanted::Running);
    // As an engine's proxy does for a server that is not there yet.
    for _ in 0..2 {
        drop(listener.accept().await.unwrap());
    }
    assert_eq!(bed.server.truth().borrow().status, HostedStatus::Creating);
    let (mut stream, _) = listener.accept().await.unwrap();
    stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
    let truth = bed.until_ready().await;
    assert!(!truth.bridge_connected && truth.endpoints.len() == 1);
    assert_eq!(bed.call("echo", json!(1), SECOND).await, Err(CallRefused::NoBridge));
    bed.engine.kill_all();
    tokio::time::sleep(Duration::from_millis(100)).await;
    bed.server.exited_hint();
    bed.until(|truth| truth.restart_count == 1).await;
    bed.removed().await;
}
