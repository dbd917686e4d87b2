//! Right answers in torn, padded or broken lines.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::peer::{Peer, text_of};

#[test]
fn a_half_line_is_finished_after_the_pause() {
    let mut peer = Peer::start(&[]);
    let start = Instant::now();
    assert_eq!(peer.text("half_line", &json!({"ms": 100})), "in two halves");
    assert!(start.elapsed() >= Duration::from_millis(100));
    peer.assert_alive();
}

#[test]
fn a_half_line_is_torn_by_the_death_of_its_writer() {
    let mut peer = Peer::start(&["--exit-code", "9"]);
    peer.call("half_line", &json!({"ms": 0, "then": "crash"}));
    let line = peer.line();
    assert!(line.starts_with(b"{\"jsonrpc\":") && !line.ends_with(b"\n"), "{line:?}");
    peer.assert_stdout_ended();
    assert_eq!(peer.exit_status().code(), Some(9));
}

#[test]
fn a_half_line_without_its_rest_spoils_the_line_that_follows() {
    let mut peer = Peer::start(&[]);
    peer.call("half_line", &json!({"ms": 0, "then": "nothing"}));
    peer.assert_quiet();
    peer.call("echo", &json!({"text": "alive"}));
    let line = String::from_utf8(peer.line()).unwrap();
    assert!(line.starts_with("{\"jsonrpc\":\"2.0\",\"id\":1,") && line.ends_with("}}\n"), "{line}");
    assert!(serde_json::from_str::<serde_json::Value>(&line).is_err(), "{line}");
    peer.assert_alive();
}

#[test]
fn bytes_that_are_no_text_come_as_noise_or_inside_an_answer() {
    let mut peer = Peer::start(&[]);
    peer.call("invalid_utf8", &json!({}));
    assert!(String::from_utf8(peer.line()).is_err());
    assert_eq!(text_of(&peer.message()), "after the noise");
    peer.call("invalid_utf8", &json!({"place": "answer"}));
    let broken = peer.line();
    assert!(String::from_utf8(broken.clone()).is_err());
    assert!(String::from_utf8_lossy(&broken).contains("\"text\":\"broken: \u{fffd}\""));
    peer.assert_alive();
}

#[test]
fn odd_lines_are_still_whole_answers() {
    let mut peer = Peer::start(&[]);
    peer.call("odd_line", &json!({"style": "crlf"}));
    assert!(peer.line().ends_with(b"}\r\n"));
    peer.call("odd_line", &json!({"style": "spaces"}));
    let lines: Vec<_> = (0..4).map(|_| peer.line()).collect();
    assert_eq!((&lines[0][..], &lines[1][..], &lines[3][..]), (&b"\n"[..], &b"  \n"[..], &b"\n"[..]));
    assert!(lines[2].starts_with(b"\t {") && lines[2].ends_with(b"} \t\n"));
    assert_eq!(peer.text("odd_line", &json!({"style": "bytes"})), "odd");
}
