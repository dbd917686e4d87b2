//! Answers that are late, missing, doubled, for somebody else, huge or strange.

use serde_json::{Value, json};

use crate::peer::{Peer, text_of};

#[test]
fn echo_answers_in_the_order_of_the_calls() {
    let mut peer = Peer::start(&[]);
    let ids: Vec<_> = (0..20).map(|n| peer.call("echo", &json!({"text": format!("text {n}")}))).collect();
    for (n, id) in ids.into_iter().enumerate() {
        let answer = peer.message();
        assert_eq!((answer["id"].as_u64(), text_of(&answer)), (Some(id), format!("text {n}")));
    }
}

#[test]
fn a_hanging_call_is_never_answered_and_others_go_on() {
    let mut peer = Peer::start(&[]);
    peer.call("hang", &json!({}));
    peer.assert_alive();
    peer.assert_quiet();
}

#[test]
fn a_late_answer_comes_although_the_call_was_cancelled() {
    let mut peer = Peer::start(&[]);
    let late = peer.call("late", &json!({"ms": 200, "text": "at last"}));
    let cancel =
        json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": late}});
    peer.send(&cancel);
    peer.assert_alive();
    assert_eq!(peer.facts("cancel_seen", &json!({})), json!({"cancelled": [late]}));
    assert_eq!(text_of(&peer.answer(late)), "at last");
}

#[test]
fn out_of_order_is_answered_after_the_call_that_followed_it() {
    let mut peer = Peer::start(&[]);
    let first = peer.call("out_of_order", &json!({}));
    let second = peer.call("echo", &json!({}));
    let order: Vec<Value> = (0..2).map(|_| peer.message()["id"].clone()).collect();
    assert_eq!(order, [second, first]);
}

#[test]
fn out_of_order_gives_up_when_nothing_follows() {
    let mut peer = Peer::start(&[]);
    assert_eq!(peer.text("out_of_order", &json!({"ms": 10})), "no later call came");
}

#[test]
fn a_duplicate_answer_is_the_same_line_twice() {
    let mut peer = Peer::start(&[]);
    peer.call("duplicate_answer", &json!({}));
    assert_eq!(peer.line(), peer.line());
    peer.assert_alive();
}

#[test]
fn the_second_answer_of_a_pair_comes_later_and_differs() {
    let mut peer = Peer::start(&[]);
    let id = peer.call("answer_twice_late", &json!({"ms": 50}));
    assert_eq!(text_of(&peer.answer(id)), "first");
    peer.assert_alive();
    assert_eq!(text_of(&peer.answer(id)), "second");
}

#[test]
fn an_answer_with_a_wrong_id_comes_before_the_right_one_or_alone() {
    let mut peer = Peer::start(&[]);
    let id = peer.call("wrong_id_answer", &json!({}));
    assert_eq!(peer.message()["id"], 999_999);
    assert_eq!(peer.message()["id"], id);
    peer.call("wrong_id_answer", &json!({"id": "1", "then": "nothing"}));
    assert_eq!(peer.message()["id"], "1");
    peer.assert_quiet();
}

#[test]
fn a_huge_answer_has_the_size_asked_for() {
    let mut peer = Peer::start(&[]);
    assert_eq!(peer.text("huge", &json!({"bytes": 10_000_000})).len(), 10_000_000);
    peer.assert_alive();
}

#[test]
fn an_error_has_the_code_message_and_data_asked_for() {
    let mut peer = Peer::start(&[]);
    let asked = json!({"code": -32099, "message": "no luck", "data": {"why": [1, 2]}});
    let id = peer.call("error", &asked);
    assert_eq!(peer.answer(id)["error"], asked);
    let id = peer.call("error", &json!({}));
    assert_eq!(peer.answer(id)["error"], json!({"code": -32000, "message": "asked to fail"}));
}

#[test]
fn a_tool_error_is_a_result() {
    let mut peer = Peer::start(&[]);
    let id = peer.call("tool_error", &json!({"text": "broken"}));
    let answer = peer.answer(id);
    assert_eq!((text_of(&answer).as_str(), &answer["result"]["isError"]), ("broken", &json!(true)));
}

#[test]
fn unknown_content_and_fields_keep_an_order_that_a_map_would_lose() {
    let mut peer = Peer::start(&[]);
    peer.call("unknown_content", &json!({}));
    let line = String::from_utf8(peer.line()).unwrap();
    let answer: Value = serde_json::from_str(&line).unwrap();
    assert_eq!(answer["result"]["content"][0]["type"], "hologram");
    assert!(line.find("zeta").unwrap() < line.find("content").unwrap(), "{line}");
    assert!(line.contains("2.50"), "{line}");
}

#[test]
fn every_call_is_counted_once() {
    let mut peer = Peer::start(&[]);
    peer.assert_alive();
    peer.assert_alive();
    peer.call("hang", &json!({}));
    let seen = peer.facts("calls_seen", &json!({}));
    assert_eq!(seen["calls"], json!({"calls_seen": 1, "echo": 2, "hang": 1}));
}
