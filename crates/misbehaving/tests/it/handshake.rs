//! The good mode, and the flags that spoil the handshake, the list and the pings.

use serde_json::{Value, json};

use crate::peer::Peer;

#[test]
fn left_alone_it_agrees_to_every_version_of_the_handshake_era() {
    for version in ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"] {
        let mut peer = Peer::start(&[]);
        let hello = peer.result("initialize", &json!({"protocolVersion": version}));
        assert_eq!(hello["protocolVersion"], version);
        assert_eq!(hello["capabilities"]["tools"]["listChanged"], true);
    }
}

#[test]
fn an_unknown_version_is_answered_with_the_newest_it_knows() {
    let mut peer = Peer::start(&[]);
    let hello = peer.result("initialize", &json!({"protocolVersion": "2999-01-01"}));
    assert_eq!(hello["protocolVersion"], "2025-11-25");
}

#[test]
fn it_answers_pings_refuses_unknown_methods_and_reports_what_is_not_json() {
    let mut peer = Peer::start(&[]);
    assert_eq!(peer.result("ping", &json!({})), json!({}));
    let id = peer.request("resources/list", &json!({}));
    assert_eq!(peer.answer(id)["error"]["code"], -32601);
    let id = peer.call("no_such_tool", &json!({}));
    assert_eq!(peer.answer(id)["error"]["code"], -32602);
    peer.send_line("{not json");
    assert_eq!(peer.message()["error"]["code"], -32700);
    peer.send_line("\n  \n[]");
    assert_eq!(peer.message()["error"]["code"], -32600);
    peer.assert_alive();
}

#[test]
fn every_tool_has_a_description_and_a_schema() {
    let mut peer = Peer::start(&[]);
    let list = peer.result("tools/list", &json!({}));
    let tools = list["tools"].as_array().unwrap();
    assert!(tools.len() > 30, "only {} tools", tools.len());
    for tool in tools {
        assert!(tool["description"].as_str().unwrap().ends_with('.'), "{tool}");
        assert_eq!(tool["inputSchema"]["type"], "object", "{tool}");
    }
}

#[test]
fn arguments_of_the_wrong_type_are_invalid_params() {
    let mut peer = Peer::start(&[]);
    let id = peer.call("late", &json!({"ms": "soon"}));
    assert_eq!(peer.answer(id)["error"]["code"], -32602);
}

#[test]
fn the_list_comes_in_pages_that_add_up() {
    let mut peer = Peer::start(&["--tools", "7", "--only-fillers", "--page-size", "3"]);
    let (mut sizes, mut names, mut cursor) = (Vec::new(), Vec::new(), json!({}));
    loop {
        let page = peer.result("tools/list", &cursor);
        let tools = page["tools"].as_array().unwrap();
        sizes.push(tools.len());
        names.extend(tools.iter().map(|tool| tool["name"].as_str().unwrap().to_owned()));
        match page.get("nextCursor") {
            Some(next) => cursor = json!({"cursor": next}),
            None => break,
        }
    }
    assert_eq!(sizes, [3, 3, 1]);
    assert_eq!((names[0].as_str(), names[6].as_str()), ("filler_0001", "filler_0007"));
    let id = peer.request("tools/list", &json!({"cursor": "nonsense"}));
    assert_eq!(peer.answer(id)["error"]["code"], -32602);
}

#[test]
fn endless_pages_lead_back_to_the_first() {
    let mut peer = Peer::start(&["--tools", "2", "--only-fillers", "--page-size", "1", "--endless-pages"]);
    let last = peer.result("tools/list", &json!({"cursor": "from-1"}));
    assert_eq!(last["nextCursor"], "from-0");
}

#[test]
fn a_filler_may_take_a_name_and_says_whose_it_is() {
    let mut peer = Peer::start(&["--server-name", "other", "--tool-name", "echo"]);
    assert_eq!(peer.text("echo", &json!({"text": "hello"})), "filled by other");
    let list = peer.result("tools/list", &json!({}));
    let echoes = list["tools"].as_array().unwrap().iter().filter(|tool| tool["name"] == "echo");
    assert_eq!(echoes.count(), 1);
}

#[test]
fn without_initialize_the_tools_still_work() {
    let mut peer = Peer::start(&["--no-initialize"]);
    let id = peer.request("initialize", &json!({"protocolVersion": "2025-11-25"}));
    assert_eq!(peer.answer(id)["error"]["code"], -32601);
    peer.assert_alive();
}

#[test]
fn it_can_insist_on_another_version() {
    let mut peer = Peer::start(&["--initialize-version", "1999-12-31"]);
    let hello = peer.result("initialize", &json!({"protocolVersion": "2025-11-25"}));
    assert_eq!(hello["protocolVersion"], "1999-12-31");
}

#[test]
fn a_strict_handshake_must_be_finished_before_tools_are_listed_or_called() {
    let mut peer = Peer::start(&["--strict-handshake"]);
    peer.result("initialize", &json!({"protocolVersion": "2025-11-25"}));
    let id = peer.call("echo", &json!({}));
    assert_eq!(peer.answer(id)["error"]["code"], -32600);
    peer.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
    peer.assert_alive();
}

#[test]
fn an_early_request_may_be_its_death() {
    let mut peer = Peer::start(&["--exit-on-early-request", "--exit-code", "7"]);
    peer.request("server/discover", &json!({}));
    assert_eq!(peer.exit_status().code(), Some(7));
}

#[test]
fn silent_means_that_nothing_is_ever_answered() {
    let mut peer = Peer::start(&["--silent"]);
    peer.request("initialize", &json!({}));
    peer.request("ping", &json!({}));
    peer.call("echo", &json!({}));
    peer.assert_quiet();
    peer.close_stdin();
    assert_eq!(peer.exit_status().code(), Some(0));
}

#[test]
fn it_falls_mute_after_the_calls_it_was_given() {
    let mut peer = Peer::start(&["--mute-after-calls", "2"]);
    peer.assert_alive();
    peer.assert_alive();
    peer.call("echo", &json!({}));
    peer.request("ping", &json!({}));
    peer.assert_quiet();
}

#[test]
fn pings_can_be_ignored_or_refused_while_calls_are_answered() {
    let mut peer = Peer::start(&["--ignore-ping"]);
    peer.request("ping", &json!({}));
    peer.assert_alive();
    peer.assert_quiet();
    let mut peer = Peer::start(&["--ping-error"]);
    let id = peer.request("ping", &json!({}));
    assert_eq!(peer.answer(id)["error"]["code"], -32601);
}

#[test]
fn a_serial_server_reads_nothing_more_until_it_has_answered() {
    let mut peer = Peer::start(&["--serial"]);
    let slow = peer.call("late", &json!({"ms": 100}));
    let quick = peer.call("echo", &json!({}));
    let order: Vec<Value> = (0..2).map(|_| peer.message()["id"].clone()).collect();
    assert_eq!(order, [slow, quick]);
}

#[test]
fn other_tests_find_this_very_program() {
    let found = cofer_testkit::misbehaving::program();
    assert_eq!(found, std::path::Path::new(env!("CARGO_BIN_EXE_misbehaving-mcp-server")));
}

#[test]
fn the_help_names_every_flag_and_tool_and_a_wrong_flag_is_refused() {
    let mut peer = Peer::start(&["--help"]);
    assert_eq!(peer.exit_status().code(), Some(0));
    let help = peer.rest_of_stdout();
    for expected in ["--crash-after-calls N", "--ignore-sigterm", "half_line [ms] [then]", "cancel_seen"] {
        assert!(help.contains(expected), "{expected} is missing in {help}");
    }
    let mut peer = Peer::start(&["--crash-after-cals", "3"]);
    assert_eq!(peer.exit_status().code(), Some(2));
    assert!(peer.stderr_line().contains("--crash-after-cals"));
}
