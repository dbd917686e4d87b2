//! Both conformance suites, through the gateway, in front of a server that has all they ask for; and the suite's scenarios for clients,
//! where Cofer is the client and somebody else's client stands before it.

use std::path::Path;
use std::process::Stdio;

use cofer_testkit::{engines, fixture};
use serde_json::json;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use super::Gate;

/// The fixture behind the gateway: a child of Cofer's, or over HTTP.
async fn gate(transport: &str) -> (Gate, Option<Child>) {
    let gate = Gate::started(|start| start.arg("--mcp-auth=none")).await;
    if transport == "stdio" {
        gate.stdio("fixture", &fixture::program(), &["stdio"], json!({})).await;
        return (gate, None);
    }
    let mut server = Command::new(fixture::program());
    server.arg("http").stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
    let mut server = server.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).await.unwrap();
    let url = line.trim().strip_prefix("listening on ").unwrap();
    gate.register("fixture", "http", json!({"url": url}), &json!({})).await;
    (gate, Some(server))
}

/// Examines the gateway, and fails with the whole report if anything is wrong.
async fn examined(tools: &Path, transport: &str, suite: &str, arguments: &[&str]) -> String {
    let (gate, server) = gate(transport).await;
    let results = gate.app.data_dir().join("conformance");
    let mut suite = Command::new(tools.join("bin").join(suite));
    suite.args(["server", "--url", &format!("{}/mcp", gate.app.url), "-o"]).arg(&results).args(arguments);
    let report = suite.stdin(Stdio::null()).kill_on_drop(true).output().await.unwrap();
    let text = String::from_utf8_lossy(&report.stdout).into_owned();
    let errors = String::from_utf8_lossy(&report.stderr);
    assert!(report.status.success(), "{text}\n{errors}\nlog: {}", gate.app.log());
    if let Some(mut server) = server {
        // It ends with its stdin.
        drop(server.stdin.take());
        assert!(server.wait().await.unwrap().success());
    }
    gate.stop().await;
    text
}

async fn todays_suite_finds_nothing_wrong(transport: &str) {
    let Some(tools) = engines::tools() else { return };
    let report = examined(&tools, transport, "conformance", &["--suite", "all"]).await;
    assert!(report.contains(" passed, 0 failed"), "{report}");
}

async fn the_next_suite_finds_everything_required(transport: &str) {
    let Some(tools) = engines::tools() else { return };
    examined(&tools, transport, "conformance-next", &["--requirements", "2025-11-25"]).await;
}

/// What is not required (tasks, headers, what should be and need not) included.
async fn the_next_suite_finds_nothing_wrong_in_the_later_era(transport: &str) {
    let Some(tools) = engines::tools() else { return };
    let report = examined(&tools, transport, "conformance-next", &["--requirements", "2026-07-28"]).await;
    assert!(report.contains(" passed, 0 failed\n") && !report.contains('✗'), "{report}");
}

#[tokio::test]
async fn the_next_suite_finds_nothing_wrong_in_the_later_era_in_front_of_a_child() {
    the_next_suite_finds_nothing_wrong_in_the_later_era("stdio").await;
}

#[tokio::test]
async fn the_next_suite_finds_nothing_wrong_in_the_later_era_in_front_of_http() {
    the_next_suite_finds_nothing_wrong_in_the_later_era("http").await;
}

#[tokio::test]
async fn todays_suite_finds_nothing_wrong_in_front_of_a_child() {
    todays_suite_finds_nothing_wrong("stdio").await;
}

#[tokio::test]
async fn todays_suite_finds_nothing_wrong_in_front_of_http() {
    todays_suite_finds_nothing_wrong("http").await;
}

#[tokio::test]
async fn the_next_suite_finds_everything_required_in_front_of_a_child() {
    the_next_suite_finds_everything_required("stdio").await;
}

#[tokio::test]
async fn the_next_suite_finds_everything_required_in_front_of_http() {
    the_next_suite_finds_everything_required("http").await;
}

/// Runs one scenario for clients, and fails with the whole report if anything in it is wrong.
async fn passes_as_a_client(scenario: &str, version: &str) {
    let Some(tools) = engines::tools() else { return };
    let results = tempfile::tempdir().unwrap();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testbed/gateway/conformance_client.py");
    let client = format!("{} {script}", tools.join("bin/mcp-python").display());
    let mut suite = Command::new(tools.join("bin/conformance-next"));
    suite.args(["client", "--command", &client, "--scenario", scenario, "--spec-version", version, "-o"]);
    suite.arg(results.path()).env("COFER", env!("CARGO_BIN_EXE_cofer"));
    let report = suite.stdin(Stdio::null()).kill_on_drop(true).output().await.unwrap();
    let said =
        format!("{}{}", String::from_utf8_lossy(&report.stdout), String::from_utf8_lossy(&report.stderr));
    assert!(report.status.success() && said.contains("OVERALL: PASSED"), "{scenario}: {said}");
}

/// A test of each scenario.
macro_rules! as_a_client {
    ($($name:ident: $scenario:literal, $version:literal;)+) => {
        $(#[tokio::test] async fn $name() { passes_as_a_client($scenario, $version).await; })+
    };
}

as_a_client! {
    it_shakes_hands: "initialize", "2025-11-25";
    it_calls_a_tool: "tools_call", "2025-11-25";
    it_passes_defaults_on: "elicitation-sep1034-client-defaults", "2025-11-25";
    it_takes_up_a_stream_that_broke_off: "sse-retry", "2025-11-25";
    it_calls_a_tool_standing_alone: "tools_call", "2026-07-28";
    it_says_what_it_is_with_each_request: "request-metadata", "2026-07-28";
    it_repeats_in_headers_what_it_asks: "http-standard-headers", "2026-07-28";
    it_repeats_arguments_in_headers: "http-custom-headers", "2026-07-28";
    it_does_not_offer_tools_that_cannot_be_called: "http-invalid-tool-headers", "2026-07-28";
    it_fetches_nothing_that_a_schema_names: "json-schema-ref-no-deref", "2026-07-28";
    it_brings_back_what_a_server_wants_back: "sep-2322-client-request-state", "2026-07-28";
}
