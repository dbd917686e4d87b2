//! What it does to the machine: memory, processor, disk, files, environment, network.

use std::fs;
use std::net::TcpListener;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::peer::Peer;

#[test]
fn eaten_memory_is_really_held() {
    let mut peer = Peer::start(&[]);
    assert_eq!(peer.facts("eat_memory", &json!({"bytes": 40_000_000}))["held"], 40_000_000);
    assert_eq!(peer.facts("eat_memory", &json!({"bytes": 1}))["held"], 40_000_001);
    let status = peer.facts("read_file", &json!({"path": "/proc/self/status"}));
    let resident = status["text"].as_str().unwrap().lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes: u64 = resident.unwrap().trim().trim_end_matches(" kB").parse().unwrap();
    assert!(kilobytes > 39_000, "{kilobytes} kB");
}

#[test]
fn burning_takes_the_time_asked_for_while_others_are_answered() {
    let mut peer = Peer::start(&[]);
    let start = Instant::now();
    let burning = peer.call("burn_cpu", &json!({"ms": 200, "threads": 2}));
    peer.assert_alive();
    let answer = peer.answer(burning);
    assert!(start.elapsed() >= Duration::from_millis(200));
    assert!(answer["result"]["structuredContent"]["turns"].as_u64() > Some(0));
}

#[test]
fn a_disk_is_filled_as_far_as_it_goes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("filler");
    let mut peer = Peer::start(&[]);
    let facts = peer.facts("fill_disk", &json!({"path": path, "bytes": 3_000_000}));
    assert_eq!(facts, json!({"written": 3_000_000, "failure": null, "removal_failure": null}));
    assert_eq!(fs::metadata(&path).unwrap().len(), 3_000_000);
    peer.facts("fill_disk", &json!({"path": path, "bytes": 1, "remove": true}));
    assert!(!path.exists());
    let facts = peer.facts("fill_disk", &json!({"path": "/dev/full", "bytes": 1}));
    assert_eq!((&facts["written"], &facts["failure"]["errno"]), (&json!(0), &json!(28)));
}

#[test]
fn files_are_written_and_read_and_refusals_have_their_number() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("note");
    let mut peer = Peer::start(&[]);
    assert_eq!(peer.facts("write_file", &json!({"path": path, "text": "hi"})), json!({"failure": null}));
    assert_eq!(peer.facts("read_file", &json!({"path": path}))["text"], "hi");
    let missing = peer.facts("read_file", &json!({"path": folder.path().join("missing")}));
    assert_eq!(missing["failure"]["errno"], 2);
}

#[test]
fn its_environment_is_what_it_was_given() {
    let mut peer = Peer::start(&[]);
    let facts = peer.facts("env", &json!({}));
    assert_eq!(facts["env"]["PATH"].as_str(), std::env::var("PATH").ok().as_deref());
    assert!(facts["env"]["COFER_TEST_RUN"].is_string());
}

#[test]
fn a_connection_is_tried_and_its_outcome_told() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let mut peer = Peer::start(&[]);
    assert_eq!(peer.facts("connect", &json!({"address": address}))["connected"], true);
    drop(listener);
    let refused = peer.facts("connect", &json!({"address": address}));
    assert_eq!((&refused["connected"], &refused["failure"]["errno"]), (&json!(false), &json!(111)));
}
