//! A server that says exactly what a test tells it to, when it tells it to. Time stands still unless everybody waits.

use std::time::Duration;

use cofer_mcp::{CallError, Ended, Face, Limits, Pump, Reply, shake_hands};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, DuplexStream, ReadHalf, WriteHalf};

const SECOND: Duration = Duration::from_secs(1);

/// The server's end of the pipes.
struct Server {
    stdin: BufReader<ReadHalf<DuplexStream>>,
    stdout: WriteHalf<DuplexStream>,
}

fn pump(limits: Limits) -> (Pump, Server) {
    let (ours, theirs) = tokio::io::duplex(1 << 16);
    let (stdout, stdin) = tokio::io::split(ours);
    let (their_stdin, their_stdout) = tokio::io::split(theirs);
    (Pump::start(stdin, stdout, limits), Server { stdin: BufReader::new(their_stdin), stdout: their_stdout })
}

impl Server {
    async fn hears(&mut self) -> Value {
        let mut line = String::new();
        self.stdin.read_line(&mut line).await.unwrap();
        serde_json::from_str(&line).unwrap()
    }

    async fn says(&mut self, line: &str) {
        self.stdout.write_all(format!("{line}\n").as_bytes()).await.unwrap();
    }

    async fn answers(&mut self, asked: &Value, result: &Value) {
        self.says(&json!({"jsonrpc": "2.0", "id": asked["id"], "result": result}).to_string()).await;
    }
}

fn asking(
    pump: &Pump,
    method: &'static str,
    timeout: Duration,
) -> tokio::task::JoinHandle<Result<String, CallError>> {
    let pump = pump.clone();
    tokio::spawn(async move {
        pump.call(method, None, timeout).await.map(|reply| match reply {
            Reply::Result(result) => result.get().to_owned(),
            Reply::Error(error) => format!("{} {}", error.code, error.message),
        })
    })
}

/// Lets everything that can happen without time passing happen.
async fn settle() {
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn calls_are_served_one_at_a_time_in_the_order_they_came() {
    let (pump, mut server) = pump(Limits::default());
    let mut calls = Vec::new();
    for method in ["a", "b", "c"] {
        calls.push(asking(&pump, method, SECOND));
        settle().await;
    }
    for method in ["a", "b", "c"] {
        let asked = server.hears().await;
        assert_eq!(asked["method"], method);
        server.answers(&asked, &json!(method)).await;
    }
    for (call, expected) in calls.into_iter().zip(["\"a\"", "\"b\"", "\"c\""]) {
        assert_eq!(call.await.unwrap().unwrap(), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn as_many_as_allowed_are_in_flight_and_answers_may_come_in_any_order() {
    let (pump, mut server) = pump(Limits { in_flight_max: 2, ..Limits::default() });
    let (first, second) = (asking(&pump, "first", SECOND), asking(&pump, "second", SECOND));
    let (a, b) = (server.hears().await, server.hears().await);
    server.answers(&b, &b["method"]).await;
    server.answers(&a, &a["method"]).await;
    assert_eq!(
        (first.await.unwrap().unwrap(), second.await.unwrap().unwrap()),
        ("\"first\"".into(), "\"second\"".into())
    );
}

#[tokio::test(start_paused = true)]
async fn a_call_that_gets_no_answer_in_time_is_cancelled_and_its_late_answer_reaches_nobody() {
    let (pump, mut server) = pump(Limits::default());
    let slow = asking(&pump, "slow", SECOND);
    let asked = server.hears().await;
    assert_eq!(slow.await.unwrap(), Err(CallError::Timeout));
    let cancelled = server.hears().await;
    assert_eq!(
        (&cancelled["method"], &cancelled["params"]["requestId"]),
        (&json!("notifications/cancelled"), &asked["id"])
    );
    let next = asking(&pump, "next", SECOND);
    let next_asked = server.hears().await;
    server.answers(&asked, &json!("late")).await;
    server.answers(&next_asked, &json!("right")).await;
    assert_eq!(next.await.unwrap().unwrap(), "\"right\"");
}

#[tokio::test(start_paused = true)]
async fn time_in_the_waiting_line_counts() {
    let (pump, mut server) = pump(Limits::default());
    let _hanging = asking(&pump, "hangs", 10 * SECOND);
    server.hears().await;
    let began = tokio::time::Instant::now();
    assert_eq!(asking(&pump, "waits", SECOND).await.unwrap(), Err(CallError::Timeout));
    assert_eq!(began.elapsed(), SECOND);
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_leaves_gives_up_its_place_and_its_call_is_never_sent() {
    let (pump, mut server) = pump(Limits { queue_max: 1, ..Limits::default() });
    let first = asking(&pump, "first", SECOND);
    let asked = server.hears().await;
    let leaves = asking(&pump, "leaves", SECOND);
    settle().await;
    assert_eq!(asking(&pump, "no place", SECOND).await.unwrap(), Err(CallError::QueueFull));
    leaves.abort();
    settle().await;
    let last = asking(&pump, "last", SECOND);
    server.answers(&asked, &json!(1)).await;
    assert_eq!(server.hears().await["method"], "last");
    first.await.unwrap().unwrap();
    drop(last);
}

#[tokio::test(start_paused = true)]
async fn when_the_server_ends_everybody_hears_and_knows_whether_it_may_have_happened() {
    let (pump, mut server) = pump(Limits::default());
    let sent = asking(&pump, "sent", SECOND);
    server.hears().await;
    let waiting = asking(&pump, "waiting", SECOND);
    settle().await;
    drop(server);
    assert_eq!(sent.await.unwrap(), Err(CallError::MayHaveExecuted));
    assert_eq!(waiting.await.unwrap(), Err(CallError::Gone));
    assert_eq!(asking(&pump, "after", SECOND).await.unwrap(), Err(CallError::Gone));
    assert!(matches!(pump.ended().await, Ended::Stdout | Ended::Stdin));
}

#[tokio::test(start_paused = true)]
async fn the_servers_questions_are_answered_and_what_it_says_is_published() {
    let (pump, mut server) = pump(Limits::default());
    let mut said = pump.notifications();
    server.says(r#"{"jsonrpc":"2.0","id":"q1","method":"ping"}"#).await;
    assert_eq!(server.hears().await, json!({"jsonrpc": "2.0", "id": "q1", "result": {}}));
    server.says(r#"{"jsonrpc":"2.0","id":2,"method":"roots/list"}"#).await;
    assert_eq!(server.hears().await["error"]["code"], -32601);
    server.says(r#"{"method":"notifications/tools/list_changed","params":{"x":1.50}}"#).await;
    let heard = said.recv().await.unwrap();
    assert_eq!(
        (heard.method.as_str(), heard.params.as_ref().unwrap().get()),
        ("notifications/tools/list_changed", r#"{"x":1.50}"#)
    );
}

#[tokio::test(start_paused = true)]
async fn a_server_that_never_reads_blocks_nobody_past_their_time() {
    let (pump, _server) = pump(Limits { in_flight_max: 1000, ..Limits::default() });
    let big: Box<serde_json::value::RawValue> =
        serde_json::value::to_raw_value(&"x".repeat(1 << 20)).unwrap();
    let calls = (0..10).map(|_| {
        let (pump, big) = (pump.clone(), big.clone());
        tokio::spawn(async move { pump.call("echo", Some(big), SECOND).await.map(|_| ()) })
    });
    for call in calls.collect::<Vec<_>>() {
        assert_eq!(call.await.unwrap(), Err(CallError::Timeout));
    }
    pump.close();
    assert_eq!(pump.ended().await, Ended::Closed);
}

#[tokio::test(start_paused = true)]
async fn what_a_server_that_does_not_read_is_told_is_kept_up_to_a_limit_and_calls_are_not_lost_behind_it() {
    let (pump, mut server) = pump(Limits::default());
    let much = serde_json::value::to_raw_value(&"x".repeat(1 << 20)).unwrap();
    for _ in 0..64 {
        pump.notify("notifications/progress", Some(&much));
    }
    let call = asking(&pump, "tools/list", SECOND);
    settle().await;
    let mut told = 0;
    let asked = loop {
        let heard = server.hears().await;
        if heard["method"] == "tools/list" {
            break heard;
        }
        told += 1;
    };
    assert!((1..=5).contains(&told), "{told} MiB were kept");
    server.answers(&asked, &json!({})).await;
    call.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_server_hears_that_hands_were_shaken_before_any_other_call() {
    let (pump, mut server) = pump(Limits { in_flight_max: 8, ..Limits::default() });
    let shaking = tokio::spawn({
        let pump = pump.clone();
        async move {
            let handshake = shake_hands(&pump, &Face::default(), SECOND).await;
            let _ = pump.call("tools/list", None, SECOND).await;
            handshake
        }
    });
    let asked = server.hears().await;
    assert_eq!(asked["params"]["protocolVersion"], "2025-11-25");
    server
        .answers(
            &asked,
            &json!({"protocolVersion": "2024-11-05", "serverInfo": {"name": "s"}, "capabilities": {}}),
        )
        .await;
    assert_eq!(server.hears().await["method"], "notifications/initialized");
    let listed = server.hears().await;
    assert_eq!(listed["method"], "tools/list");
    server.answers(&listed, &json!({"tools": []})).await;
    assert_eq!(shaking.await.unwrap().unwrap().protocol_version.as_deref(), Some("2024-11-05"));
}

#[tokio::test(start_paused = true)]
async fn letting_go_of_the_pump_ends_it_and_closes_the_servers_stdin() {
    let (pump, mut server) = pump(Limits::default());
    drop(pump);
    let mut rest = String::new();
    assert_eq!(server.stdin.read_line(&mut rest).await.unwrap(), 0);
}

#[tokio::test(start_paused = true)]
async fn what_is_asked_aside_takes_nobodys_place_and_waits_for_no_turn() {
    let (pump, mut server) = pump(Limits { queue_max: 0, ..Limits::default() });
    let greeting = tokio::spawn({
        let pump = pump.clone();
        async move { shake_hands(&pump, &Face::default(), 10 * SECOND).await.map(|_| ()) }
    });
    assert_eq!(server.hears().await["method"], "initialize");
    assert!(pump.is_idle(), "a greeting is no call");
    let call = asking(&pump, "work", SECOND);
    let work = server.hears().await;
    assert!(!pump.is_idle());
    let ping = tokio::spawn({
        let pump = pump.clone();
        async move { pump.call_aside("ping", None, SECOND).await.map(|_| ()) }
    });
    let asked = server.hears().await;
    assert_eq!((&work["method"], &asked["method"]), (&json!("work"), &json!("ping")));
    server.answers(&asked, &json!({})).await;
    server.answers(&work, &json!(1)).await;
    ping.await.unwrap().unwrap();
    call.await.unwrap().unwrap();
    assert_eq!(greeting.await.unwrap(), Err(CallError::Timeout));
    assert!(pump.is_idle());
}

#[tokio::test(start_paused = true)]
async fn whoever_listens_hears_that_the_server_spoke_whatever_it_said() {
    let (pump, mut server) = pump(Limits::default());
    assert_eq!(pump.lines_heard(), 0);
    let listening = tokio::spawn({
        let pump = pump.clone();
        async move { pump.hears_more_than(0).await }
    });
    settle().await;
    assert!(!listening.is_finished());
    server.says("starting up").await;
    listening.await.unwrap();
    assert_eq!(pump.lines_heard(), 1);
    pump.hears_more_than(0).await;
}

#[tokio::test(start_paused = true)]
async fn ids_begin_where_no_earlier_process_began_and_are_read_alike_by_everybody() {
    let (pump, mut server) = pump(Limits::default());
    let _call = asking(&pump, "ping", SECOND);
    let id = server.hears().await["id"].as_u64().unwrap();
    assert!(id > 1 << 20, "{id} may be the number of an earlier process's call");
    assert!(id < 1 << 53, "{id} is not the same number for everybody");
}

#[tokio::test(start_paused = true)]
async fn a_notification_of_unreasonable_length_is_not_kept_for_subscribers() {
    let (pump, mut server) = pump(Limits::default());
    let mut said = pump.notifications();
    let long = json!({"method": "long", "params": {"text": "x".repeat(2 << 20)}}).to_string();
    tokio::spawn(async move {
        server.says(&long).await;
        server.says(r#"{"method":"short"}"#).await;
        std::future::pending::<()>().await;
    });
    assert_eq!(said.recv().await.unwrap().method, "short");
}
