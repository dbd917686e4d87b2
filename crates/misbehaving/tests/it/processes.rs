//! Processes left behind, and that the leak check finds and ends each kind of them.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use cofer_testkit::leaks::Leaks;
use rustix::process::{Pid, Signal};
use serde_json::{Value, json};

use crate::peer::Peer;

fn pids(facts: &Value) -> Vec<i32> {
    let pids = facts["pids"].as_array().unwrap();
    pids.iter().map(|pid| i32::try_from(pid.as_i64().unwrap()).unwrap()).collect()
}

/// Parent, process group's session and state, as `/proc` has them; none for the dead.
fn stat(pid: i32) -> Option<(i32, i32)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split(' ').collect();
    (fields[0] != "Z").then(|| (fields[1].parse().unwrap(), fields[3].parse().unwrap()))
}

/// The leak check's complaint; afterwards every one of these is dead.
fn leak_report(leaks: Leaks, pids: &[i32]) -> String {
    let leaks = leaks.settle_for(Duration::from_millis(100));
    let panic = catch_unwind(AssertUnwindSafe(|| leaks.assert_none())).expect_err("a leak was planted");
    let report = panic.downcast_ref::<String>().expect("the panic has a message").clone();
    for pid in pids {
        assert!(report.contains(&format!("process {pid} ")), "{pid} is not in: {report}");
        assert_eq!(stat(*pid), None, "{pid} was not cleaned up");
    }
    report
}

#[test]
fn children_and_grandchildren_outlive_the_server_until_the_leak_check_ends_them() {
    let mut peer = Peer::start(&[]);
    let facts = peer.facts("spawn", &json!({"children": 2, "grandchildren": 2}));
    let pids = pids(&facts);
    assert_eq!((pids.len(), &facts["failure"]), (6, &Value::Null));
    let report = leak_report(peer.kill(), &pids);
    assert!(report.starts_with("the test left 6 behind:") && report.contains("(killed)"), "{report}");
}

#[test]
fn detached_children_have_sessions_of_their_own_and_shrug_at_sigterm() {
    let mut peer = Peer::start(&[]);
    let facts = peer.facts("spawn", &json!({"detached": true, "ignore_sigterm": true, "grandchildren": 1}));
    let pids = pids(&facts);
    for pid in &pids {
        assert_eq!(stat(*pid).map(|(_, session)| session), Some(*pid));
        rustix::process::kill_process(Pid::from_raw(*pid).unwrap(), Signal::TERM).unwrap();
    }
    std::thread::sleep(Duration::from_millis(50));
    assert!(pids.iter().all(|pid| stat(*pid).is_some()));
    leak_report(peer.kill(), &pids);
}

#[test]
fn orphaned_grandchildren_are_nobody_s_children_here() {
    let mut peer = Peer::start(&[]);
    let facts = peer.facts("spawn", &json!({"grandchildren": 1, "orphan_grandchildren": true}));
    let pids = pids(&facts);
    assert_eq!(pids.len(), 1);
    let child = i32::try_from(facts["children"][0]["pid"].as_i64().unwrap()).unwrap();
    assert_eq!(stat(child), None);
    assert_ne!(stat(pids[0]).unwrap().0, child);
    leak_report(peer.kill(), &pids);
}

#[test]
fn a_child_that_holds_stdout_keeps_the_stream_open_after_the_crash() {
    let mut peer = Peer::start(&[]);
    let facts = peer.facts("spawn", &json!({"hold_stdout": true}));
    peer.call("crash", &json!({}));
    assert_eq!(peer.exit_status().code(), Some(1));
    peer.assert_quiet();
    leak_report(peer.kill(), &pids(&facts));
}

#[test]
fn children_can_be_there_from_the_start() {
    let mut peer = Peer::start(&["--children", "2", "--detached-children", "1"]);
    peer.assert_alive();
    let report = leak_report(peer.kill(), &[]);
    assert!(report.starts_with("the test left 3 behind:"), "{report}");
}

#[test]
fn children_end_by_themselves_after_their_sleep() {
    let mut peer = Peer::start(&[]);
    let facts = peer.facts("spawn", &json!({"seconds": 0}));
    assert_eq!(pids(&facts).len(), 1);
    peer.kill().assert_none();
}
