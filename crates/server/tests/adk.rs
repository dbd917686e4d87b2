//! The example for the Agent Development Kit, run as anybody would run it.

use std::process::Command;

use cofer_testkit::leaks::Leaks;
use cofer_testkit::misbehaving;
use serde_json::{Value, json};

#[test]
fn discovered_tools_are_tools_of_the_kit_and_are_called_through_the_gateway() {
    let leaks = Leaks::watch_processes().adopt_orphans();
    let folder = tempfile::tempdir().unwrap();
    let servers = folder.path().join("servers.json");
    let server = json!({"command": misbehaving::program(), "args": ["--tool-name", "cut/up"]});
    std::fs::write(&servers, json!({"mcpServers": {"kitchen": server}}).to_string()).unwrap();
    // Beside the tests, where cargo builds examples.
    let example = std::env::current_exe().unwrap().parent().unwrap().join("../examples/adk");
    let ran = Command::new(example).arg(&servers).args(["echo", r#"{"text": "soup"}"#]).output().unwrap();
    let said = String::from_utf8_lossy(&ran.stdout).into_owned();
    assert!(ran.status.success(), "{said} {}", String::from_utf8_lossy(&ran.stderr));
    let lines: Vec<Value> = said.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let (result, declared) = lines.split_last().unwrap();
    assert_eq!(result["content"][0]["text"], "soup");
    let echo = declared.iter().find(|tool| tool["name"] == "echo").unwrap();
    assert_eq!(echo["parameters"]["properties"]["text"]["type"], "string", "its whole schema: {echo}");
    assert!(echo["description"].as_str().unwrap().contains("Answers with the text"));
    assert!(declared.iter().any(|tool| tool["name"] == "cut/up"), "names are kept to the letter");
    leaks.assert_none();
}
