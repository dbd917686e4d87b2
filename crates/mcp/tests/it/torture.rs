//! The misbehaving server in its moods, over real pipes.

use std::process::Stdio;
use std::time::Duration;

use cofer_mcp::{CallError, Face, Limits, Pump, Reply, shake_hands};
use cofer_testkit::leaks::Leaks;
use cofer_testkit::misbehaving;
use serde_json::value::to_raw_value;
use serde_json::{Value, json};
use tokio::process::{Child, Command};

/// Far more than any of these takes on a busy machine; reached only by calls that are meant to fail at once or hang.
const LONG: Duration = Duration::from_secs(30);
const SHORT: Duration = Duration::from_millis(300);

struct Bed {
    pump: Pump,
    child: Child,
    leaks: Leaks,
}

impl Bed {
    fn start(flags: &[&str], limits: Limits) -> Self {
        let leaks = Leaks::watch_processes();
        let mut child = Command::new(misbehaving::program())
            .args(flags)
            .envs([leaks.mark()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let (stdin, stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Self { pump: Pump::start(stdin, stdout, limits), child, leaks }
    }

    async fn tool(&self, name: &str, arguments: Value, timeout: Duration) -> Result<Value, CallError> {
        let params = to_raw_value(&json!({"name": name, "arguments": arguments})).unwrap();
        self.pump.call("tools/call", Some(params), timeout).await.map(|reply| match reply {
            Reply::Result(result) => serde_json::from_str(result.get()).unwrap(),
            Reply::Error(error) => json!({"code": error.code, "message": error.message}),
        })
    }

    /// Proof that all is well.
    async fn echoes(&self) {
        let answer = self.tool("echo", json!({"text": "still here"}), LONG).await.unwrap();
        assert!(answer.to_string().contains("still here"), "{answer}");
    }

    async fn end(self) {
        let Self { pump, mut child, leaks } = self;
        drop(pump);
        tokio::time::timeout(LONG, child.wait()).await.unwrap().unwrap();
        leaks.assert_none();
    }
}

#[tokio::test]
async fn noise_of_every_kind_does_not_break_it() {
    let bed = Bed::start(&[], Limits::default());
    for (tool, arguments) in [
        ("flood_stdout_noise", json!({"bytes": 1 << 20})),
        ("flood_stdout_noise", json!({"bytes": 1 << 16, "kind": "json"})),
        ("flood_stderr", json!({"bytes": 1 << 20})),
        ("half_line", json!({"ms": 20})),
        ("invalid_utf8", json!({"place": "noise"})),
        ("odd_line", json!({"style": "crlf"})),
        ("notify", json!({"count": 100})),
        ("duplicate_answer", json!({})),
        ("wrong_id_answer", json!({})),
    ] {
        let answer = bed.tool(tool, arguments, LONG).await;
        assert!(answer.is_ok(), "{tool}: {answer:?}");
        bed.echoes().await;
    }
    bed.end().await;
}

#[tokio::test]
async fn ten_megabytes_pass_and_more_than_the_limit_fails_that_call_alone() {
    let bed = Bed::start(&[], Limits { message_bytes_max: 11 << 20, ..Limits::default() });
    let answer = bed.tool("huge", json!({"bytes": 10 << 20}), LONG).await.unwrap();
    assert!(answer.to_string().len() > 10 << 20);
    let too_long = bed.tool("huge", json!({"bytes": 12 << 20}), LONG).await;
    assert_eq!(too_long, Err(CallError::TooLong { bytes_max: 11 << 20 }));
    bed.echoes().await;
    bed.end().await;
}

#[tokio::test]
async fn fifty_callers_at_once_each_get_their_own_answer() {
    let bed = Bed::start(&[], Limits { in_flight_max: 16, ..Limits::default() });
    let calls = (0..50)
        .map(async |n| (n, bed.tool("echo", json!({"text": format!("caller {n}.")}), LONG).await.unwrap()));
    for (n, answer) in futures_util::future::join_all(calls).await {
        assert!(answer.to_string().contains(&format!("caller {n}.")), "{n}: {answer}");
    }
    bed.end().await;
}

#[tokio::test]
async fn a_call_that_hangs_is_cancelled_and_the_next_one_is_served() {
    let bed = Bed::start(&[], Limits::default());
    assert_eq!(bed.tool("hang", json!({}), SHORT).await, Err(CallError::Timeout));
    bed.echoes().await;
    let seen = bed.tool("cancel_seen", json!({}), LONG).await.unwrap();
    assert_eq!(seen["structuredContent"]["cancelled"].as_array().map(Vec::len), Some(1), "{seen}");
    let calls = bed.tool("calls_seen", json!({}), LONG).await.unwrap();
    assert_eq!(calls["structuredContent"]["calls"]["hang"], 1, "never sent twice: {calls}");
    bed.end().await;
}

#[tokio::test]
async fn a_crash_tells_the_caller_that_the_call_may_have_been_executed() {
    let bed = Bed::start(&[], Limits::default());
    assert_eq!(bed.tool("crash", json!({"exit_code": 3}), LONG).await, Err(CallError::MayHaveExecuted));
    assert_eq!(bed.tool("echo", json!({}), LONG).await, Err(CallError::Gone));
    bed.end().await;
}

#[tokio::test]
async fn a_dead_server_whose_stdout_is_held_by_its_child_is_let_go_by_closing() {
    let mut bed = Bed::start(&[], Limits { in_flight_max: 2, ..Limits::default() });
    bed.tool("spawn", json!({"children": 1, "hold_stdout": true, "seconds": 600}), LONG).await.unwrap();
    bed.child.start_kill().unwrap();
    bed.child.wait().await.unwrap();
    let pump = bed.pump.clone();
    let waiting = tokio::spawn(async move { pump.call("ping", None, LONG).await.map(|_| ()) });
    bed.pump.close();
    assert!(waiting.await.unwrap().is_err());
    // Its child is no business of the pump's; the test ends it.
    let Bed { leaks, .. } = bed;
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| leaks.assert_none())).is_err());
}

#[tokio::test]
async fn an_answer_that_is_no_text_fails_its_call_and_no_other() {
    let bed = Bed::start(&[], Limits::default());
    let broken = bed.tool("invalid_utf8", json!({"place": "answer"}), LONG).await;
    assert_eq!(broken, Err(CallError::Unreadable));
    bed.echoes().await;
    bed.end().await;
}

#[tokio::test]
async fn a_server_without_a_handshake_is_a_server_all_the_same() {
    let bed = Bed::start(&["--no-initialize"], Limits::default());
    let handshake = shake_hands(&bed.pump, &Face::default(), LONG).await.unwrap();
    assert_eq!(handshake.protocol_version, None);
    bed.echoes().await;
    bed.end().await;

    let strict = Bed::start(&["--strict-handshake"], Limits::default());
    let handshake = shake_hands(&strict.pump, &Face::default(), LONG).await.unwrap();
    assert_eq!(handshake.protocol_version.as_deref(), Some("2025-11-25"));
    strict.echoes().await;
    strict.end().await;
}

#[tokio::test]
async fn errors_and_unknown_things_arrive_to_the_letter() {
    let bed = Bed::start(&[], Limits::default());
    let error = bed.tool("error", json!({"code": -32099, "message": "no such luck"}), LONG).await.unwrap();
    assert_eq!(error, json!({"code": -32099, "message": "no such luck"}));
    let params = to_raw_value(&json!({"name": "unknown_content", "arguments": {}})).unwrap();
    let Reply::Result(first) = bed.pump.call("tools/call", Some(params.clone()), LONG).await.unwrap() else {
        panic!()
    };
    let Reply::Result(second) = bed.pump.call("tools/call", Some(params), LONG).await.unwrap() else {
        panic!()
    };
    assert_eq!(first.get(), second.get(), "byte for byte");
    let unknown = bed.pump.call("no/such/method", None, LONG).await.unwrap();
    assert!(matches!(unknown, Reply::Error(error) if error.code == -32601));
    bed.end().await;
}
