//! How it ends: asked, by its own hand, or not at all.

use std::os::unix::process::ExitStatusExt as _;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::peer::{Peer, QUIET};

#[test]
fn it_ends_with_zero_on_sigterm_and_when_stdin_ends() {
    let mut peer = Peer::start(&[]);
    peer.assert_alive();
    peer.signal(Signal::TERM);
    assert_eq!(peer.exit_status().code(), Some(0));
    let mut peer = Peer::start(&[]);
    peer.close_stdin();
    assert_eq!(peer.exit_status().code(), Some(0));
}

#[test]
fn sigterm_can_be_ignored() {
    let mut peer = Peer::start(&["--ignore-sigterm"]);
    peer.assert_alive();
    peer.signal(Signal::TERM);
    assert_eq!(peer.stderr_line(), "ignoring SIGTERM");
    peer.assert_alive();
}

#[test]
fn sigterm_can_take_its_time() {
    let mut peer = Peer::start(&["--sigterm-delay-ms", "200"]);
    peer.assert_alive();
    let start = Instant::now();
    peer.signal(Signal::TERM);
    assert_eq!(peer.exit_status().code(), Some(0));
    assert!(start.elapsed() >= Duration::from_millis(200));
}

#[test]
fn the_end_of_stdin_can_be_ignored() {
    let mut peer = Peer::start(&["--ignore-eof"]);
    peer.assert_alive();
    peer.close_stdin();
    std::thread::sleep(QUIET);
    assert!(peer.is_running());
    peer.signal(Signal::TERM);
    assert_eq!(peer.exit_status().code(), Some(0));
}

#[test]
fn it_answers_the_calls_it_was_given_and_then_crashes() {
    let mut peer = Peer::start(&["--crash-after-calls", "3", "--exit-code", "42"]);
    for _ in 0..3 {
        peer.assert_alive();
    }
    peer.assert_stdout_ended();
    assert_eq!(peer.exit_status().code(), Some(42));
}

#[test]
fn it_crashes_after_a_while() {
    let mut peer = Peer::start(&["--crash-after-ms", "50", "--exit-code", "3"]);
    assert_eq!(peer.exit_status().code(), Some(3));
}

#[test]
fn it_exits_before_it_reads_anything() {
    let mut peer = Peer::start(&["--exit-at-start", "12", "--stderr-line", "no configuration"]);
    assert_eq!(peer.exit_status().code(), Some(12));
    assert_eq!(peer.stderr_line(), "no configuration");
}

#[test]
fn a_slow_start_delays_the_first_answer() {
    let start = Instant::now();
    let mut peer = Peer::start(&["--slow-start-ms", "200", "--slow-initialize-ms", "100"]);
    peer.result("initialize", &json!({"protocolVersion": "2025-11-25"}));
    assert!(start.elapsed() >= Duration::from_millis(300));
}

#[test]
fn a_crash_has_the_exit_code_and_the_last_words_asked_for() {
    let mut peer = Peer::start(&[]);
    peer.call("crash", &json!({"exit_code": 77, "stderr": "out of luck"}));
    assert_eq!(peer.exit_status().code(), Some(77));
    assert_eq!(peer.stderr_line(), "out of luck");
    peer.assert_stdout_ended();
}

#[test]
fn a_crash_may_answer_first() {
    let mut peer = Peer::start(&[]);
    assert_eq!(peer.text("crash", &json!({"answer": "first"})), "goodbye");
    assert_eq!(peer.exit_status().code(), Some(1));
}

#[test]
fn it_dies_of_the_signal_asked_for() {
    for (name, number) in [("SIGABRT", 6), ("SIGKILL", 9), ("SIGSEGV", 11), ("SIGTERM", 15)] {
        let mut peer = Peer::start(&[]);
        peer.call("crash", &json!({"signal": name}));
        assert_eq!(peer.exit_status().signal(), Some(number), "{name}");
    }
}

#[test]
fn a_reader_that_goes_away_ends_it() {
    let mut peer = Peer::start(&[]);
    peer.close_stdout();
    peer.request("ping", &json!({}));
    assert_eq!(peer.exit_status().code(), Some(1));
    assert!(peer.stderr_line().starts_with("could not write to stdout"));
}

#[test]
fn the_journal_tells_after_a_crash_what_had_arrived() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal");
    let mut peer = Peer::start(&["--journal", path.to_str().unwrap()]);
    peer.assert_alive();
    peer.call("crash", &json!({"signal": "SIGKILL"}));
    peer.exit_status();
    let journal = std::fs::read_to_string(&path).unwrap();
    let tools: Vec<Value> =
        journal.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["tool"].clone()).collect();
    assert_eq!(tools, ["echo", "crash"]);
}
