//! Servers out of a file, native tools, and a client on stdin and stdout.

use std::process::Stdio;
use std::time::Duration;

use cofer_testkit::app::{App, Ran, Start};
use cofer_testkit::leaks::Leaks;
use cofer_testkit::{engines, misbehaving};
use serde_json::{Value, json};
use tokio::process::Command;

use super::Gate;

fn with_file(start: Start, file: &Value) -> Start {
    let path = start.path().join("servers.json");
    std::fs::write(&path, file.to_string()).unwrap();
    start.arg(format!("--servers={}", path.display()))
}

async fn tried(file: Value) -> Result<App, Ran> {
    with_file(crate::start(), &file).try_serve().await
}

/// The misbehaving server, writing down what it hears.
fn server(journal: &std::path::Path, flags: &[&str]) -> Value {
    let journal = journal.display().to_string();
    let args: Vec<&str> = [&["--journal", &journal], flags].concat();
    json!({"command": misbehaving::program(), "args": args})
}

#[tokio::test]
async fn servers_of_a_file_start_one_after_another_before_anybody_is_served() {
    let folder = tempfile::tempdir().unwrap();
    let (first, second) = (folder.path().join("first"), folder.path().join("second"));
    // As text, because the order of the names is what this is about.
    let (zebra, ape) = (server(&first, &["--slow-initialize-ms", "700"]), server(&second, &[]));
    let text = format!(r#"{{"mcpServers": {{"zebra": {zebra}, "ape": {ape}}}}}"#);
    let gate = Gate::started(|start| {
        let path = start.path().join("servers.json");
        std::fs::write(&path, &text).unwrap();
        start.arg(format!("--servers={}", path.display()))
    })
    .await;
    // Both are there before anybody could have asked, the second after the first had answered.
    let born = |path: &std::path::Path| std::fs::metadata(path).unwrap().created().unwrap();
    let between = born(&second).duration_since(born(&first)).expect("in the order of the file");
    assert!(between >= Duration::from_millis(600), "{between:?}");
    let tools = gate.listing().await;
    assert_eq!(tools["missing"], json!([]), "{tools}");
    assert_eq!(gate.text("zebra__echo", json!({"text": "z"})).await, "z");
    assert_eq!(gate.text("ape__echo", json!({"text": "a"})).await, "a");
    assert!(!gate.app.log().contains("could not be kept"), "{}", gate.app.log());
    gate.stop().await;
}

#[tokio::test]
async fn one_that_fails_fails_all_and_is_named() {
    let leaks = Leaks::watch_processes().adopt_orphans();
    let folder = tempfile::tempdir().unwrap();
    let file = json!({"mcpServers": {
        "good": server(&folder.path().join("good"), &[]),
        "the-culprit": server(&folder.path().join("bad"), &["--exit-at-start", "7"]),
    }});
    let refused = tried(file).await.expect_err("it starts").stderr;
    assert!(refused.contains("the-culprit") && refused.contains('7'), "{refused}");
    assert!(refused.contains("optional"), "it says what to do: {refused}");
    leaks.assert_none();
}

#[tokio::test]
async fn one_that_is_optional_may_fail() {
    let folder = tempfile::tempdir().unwrap();
    let mut bad = server(&folder.path().join("bad"), &["--exit-at-start", "7"]);
    bad["optional"] = json!(true);
    let good = server(&folder.path().join("good"), &[]);
    let file = json!({"mcpServers": {"bad": bad, "good": good}});
    let gate = Gate::started(|start| with_file(start, &file)).await;
    assert_eq!(gate.text("echo", json!({"text": "well"})).await, "well");
    let listing = gate.listing().await;
    assert_eq!(listing["missing"][0]["server"], "bad", "{listing}");
    gate.stop().await;
}

#[tokio::test]
async fn a_file_that_is_wrong_or_not_there_is_said_so() {
    for (text, word) in [("{", "servers.json"), (r#"{"mcpServers": {"x": {}}}"#, "x")] {
        let start = crate::start();
        let path = start.path().join("servers.json");
        std::fs::write(&path, text).unwrap();
        let refused = start.arg(format!("--servers={}", path.display())).try_serve().await.expect_err(text);
        assert!(refused.stderr.contains(word), "{text}: {}", refused.stderr);
    }
    let refused = crate::start().arg("--servers=/there/is/none.json").try_serve().await.expect_err("no file");
    assert!(refused.stderr.contains("none.json"), "{}", refused.stderr);
}

#[tokio::test]
async fn native_tools_are_listed_called_and_recorded_like_any_other() {
    let schema = json!({"type": "object", "properties": {"text": {"type": "string"}}});
    let show = json!({"name": "show", "description": "Shows.", "input_schema": schema, "handler": "display"});
    let file = json!({"mcpServers": {}, "nativeTools": [show]});
    let gate = Gate::started(|start| with_file(start, &file)).await;
    let listing = gate.listing().await;
    let tool = &listing["tools"][0];
    assert_eq!(
        (&tool["name"], &tool["server"], &tool["input_schema"]),
        (&json!("show"), &json!("native"), &schema)
    );
    let client = gate.client().await;
    assert_eq!(client.tool_names().await, ["show"]);
    assert_eq!(client.tool("show", json!({"text": "x"})).await.result()["isError"], false);
    let call = gate.recorded("show").await;
    assert_eq!((&call["server"], &call["status"]), (&json!("native"), &json!("completed")), "{call}");
    gate.stop().await;
}

const OVER_STDIO: &str = r"
import sys, json, os, anyio
import mcp_types as types
from mcp import Client, StdioServerParameters
async def main():
    async def elicit(context, params):
        return types.ElicitResult(action='accept', content={'me': 'ada'})
    steps = []
    async def progress(done, total, message):
        steps.append(done)
    server = StdioServerParameters(command=sys.argv[1], args=['stdio', '--project', 'default'], env=dict(os.environ))
    async with Client(server, mode='legacy', elicitation_callback=elicit) as client:
        names = [tool.name for tool in (await client.list_tools()).tools]
        text = lambda result: ' '.join(part.text for part in result.content if part.type == 'text')
        echo = text(await client.call_tool('echo', {'text': 'through'}))
        await client.call_tool('progress', {'steps': 3}, progress_callback=progress)
        params = {'message': 'who', 'requestedSchema': {'type': 'object', 'properties': {}}}
        asked = text(await client.call_tool('ask', {'method': 'elicitation/create', 'params': params}))
    print(json.dumps({'tools': len(names), 'echo': echo, 'steps': len(steps), 'asked': asked}))
anyio.run(main)
";

#[tokio::test]
async fn a_real_client_is_served_on_stdin_and_stdout() {
    let Some(tools) = engines::tools() else { return };
    let gate = Gate::new().await;
    gate.misbehaving("server", &[]).await;
    let mut client = Command::new(tools.join("bin/mcp-python"));
    client.args(["-c", OVER_STDIO, env!("CARGO_BIN_EXE_cofer")]).stdin(Stdio::null()).kill_on_drop(true);
    client.env("COFER_URL", &gate.app.url).env("COFER_TOKEN", &gate.app.token);
    client.env("COFER_DATA_DIR", gate.app.data_dir());
    let ran = client.output().await.unwrap();
    let said = String::from_utf8_lossy(&ran.stdout).into_owned();
    assert!(ran.status.success(), "{said} {}", String::from_utf8_lossy(&ran.stderr));
    let facts: Value = serde_json::from_str(said.lines().last().unwrap()).unwrap();
    assert!(facts["tools"].as_u64() > Some(20), "{facts}");
    assert_eq!((&facts["echo"], &facts["steps"]), (&json!("through"), &json!(3)), "{facts}");
    assert!(facts["asked"].as_str().unwrap().contains("ada"), "{facts}");
    gate.stop().await;
}
