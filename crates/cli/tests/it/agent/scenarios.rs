//! The scenarios of the specification for several servers behind one agent, each under its name: with servers that others made, from
//! npm ("recipes" is the memory server: it keeps what it is told) and from PyPI ("fetch"), and a native tool, out of one file.

use std::path::Path;

use cofer_testkit::app::Start;
use cofer_testkit::model_api::{ModelApi, Reply};
use cofer_testkit::{engines, misbehaving, until_seen};
use serde_json::{Value, json};
use uuid::Uuid;

use super::{asked, chat, gate_with, hello, offered, results};
use crate::gateway::{Gate, processes_with};

/// The two servers, what they are given, and the native tool.
fn recipes_and_fetch(tools: &Path, mark: &str, memory: &Path) -> Value {
    let program = |name: &str| tools.join("bin").join(format!("mcp-server-{name}"));
    json!({
        "mcpServers": {
            "recipes": {
                "command": program("memory"),
                "env": {"API_KEY": mark, "USER_EMAIL": "cook@example.com", "MEMORY_FILE_PATH": memory},
            },
            "fetch": {"command": program("fetch"), "args": ["--ignore-robots-txt", "--allow-private-ips"], "env": {"FETCH_MARK": mark}},
        },
        "nativeTools": [{
            "name": "display_recipe",
            "description": "Shows a recipe",
            "input_schema": {"type": "object", "properties": {"title": {"type": "string"}}},
            "handler": "display",
        }],
    })
}

fn with_file(start: Start, file: &Value) -> Start {
    let path = start.path().join("servers.json");
    std::fs::write(&path, file.to_string()).unwrap();
    start.arg(format!("--servers={}", path.display()))
}

struct Kitchen {
    gate: Gate,
    api: ModelApi,
    mark: String,
}

/// `None` where the servers are not there.
async fn kitchen(replies: Vec<Reply>) -> Option<Kitchen> {
    let tools = engines::tools()?;
    let mark = Uuid::now_v7().simple().to_string();
    let api = ModelApi::scripted(replies).await;
    let gate = gate_with(&api, |start| {
        let file = recipes_and_fetch(&tools, &mark, &start.path().join("memory.json"));
        with_file(start, &file)
    })
    .await;
    Some(Kitchen { gate, api, mark })
}

fn new_recipe() -> Value {
    json!({"entities": [{"name": "Soup", "entityType": "recipe", "observations": ["boil"]}]})
}

#[tokio::test]
async fn start_multiple_servers_successfully() {
    let Some(kitchen) = kitchen(vec![Reply::text("ready")]).await else { return };
    // Before anything was asked.
    for variable in [format!("API_KEY={}", kitchen.mark), format!("FETCH_MARK={}", kitchen.mark)] {
        assert!(!processes_with(&variable).is_empty(), "{variable}");
    }
    let listing = kitchen.gate.listing().await;
    assert_eq!(listing["missing"], json!([]), "both shook hands: {listing}");
    chat(&kitchen.gate, &hello()).await;
    kitchen.gate.stop().await;
}

#[tokio::test]
async fn server_process_tracking() {
    let api = ModelApi::start(|request| match request["messages"].as_array().unwrap().len() {
        1 | 3 => {
            Reply::tools(&[("1", "one__echo", json!({"text": "x"})), ("2", "two__calls_seen", json!({}))])
        }
        _ => Reply::text("done"),
    })
    .await;
    let folder = tempfile::tempdir().unwrap();
    let journal = |name: &str| folder.path().join(name).display().to_string();
    let server = |name: &str| json!({"command": misbehaving::program(), "args": ["--server-name", name, "--journal", journal(name)]});
    let file = json!({"mcpServers": {"one": server("one"), "two": server("two")}});
    let gate = gate_with(&api, |start| with_file(start, &file)).await;
    let events = chat(&gate, &hello()).await;
    assert_eq!(events.one("done")["status"], "completed");
    let ids = |name: &str| -> Vec<u64> {
        let heard = std::fs::read_to_string(journal(name)).unwrap();
        let messages = heard.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let message = |line: Value| line.get("message").cloned().unwrap_or(line);
        messages.filter_map(|line| message(line)["id"].as_u64()).collect()
    };
    for name in ["one", "two"] {
        let ids = ids(name);
        let counted: Vec<_> = (ids[0]..).take(ids.len()).collect();
        assert!(
            ids.len() >= 3 && ids == counted,
            "{name} is counted by itself, whatever the other hears: {ids:?}"
        );
    }
    let pids: Vec<_> =
        results(&api.requests()[1]).iter().map(|result| result["content"].to_string()).collect();
    assert_ne!(pids[0], pids[1]);
    gate.stop().await;
}

#[tokio::test]
async fn aggregate_tools_from_multiple_servers() {
    let Some(kitchen) = kitchen(vec![Reply::text("seen")]).await else { return };
    chat(&kitchen.gate, &hello()).await;
    let request = &kitchen.api.requests()[0];
    let listing = kitchen.gate.listing().await;
    let listed: Vec<_> =
        listing["tools"].as_array().unwrap().iter().map(|tool| tool["name"].as_str().unwrap()).collect();
    assert_eq!(offered(request), listed, "every one, of both servers and our own");
    for tool in listing["tools"].as_array().unwrap() {
        let shown =
            request["tools"].as_array().unwrap().iter().find(|shown| shown["name"] == tool["name"]).unwrap();
        assert_eq!(shown["input_schema"], tool["input_schema"], "its whole schema");
    }
    kitchen.gate.stop().await;
}

#[tokio::test]
async fn build_tool_to_server_mapping() {
    let Some(kitchen) = kitchen(vec![Reply::text("seen")]).await else { return };
    let listing = kitchen.gate.listing().await;
    let server_of = |name: &str| {
        let tools = listing["tools"].as_array().unwrap();
        tools.iter().find(|tool| tool["name"] == name).map(|tool| tool["server"].clone())
    };
    assert_eq!(server_of("create_entities"), Some(json!("recipes")));
    assert_eq!(server_of("fetch"), Some(json!("fetch")));
    assert_eq!(server_of("display_recipe"), Some(json!("native")));
    kitchen.gate.stop().await;
}

#[tokio::test]
async fn handle_duplicate_tool_names() {
    let api = ModelApi::scripted(vec![Reply::tool("1", "same", &json!({})), Reply::text("done")]).await;
    let server = |name: &str| json!({"command": misbehaving::program(), "args": ["--server-name", name, "--only-fillers", "--tool-name", "same"]});
    let file =
        format!(r#"{{"mcpServers": {{"earlier": {}, "later": {}}}}}"#, server("earlier"), server("later"));
    let gate = gate_with(&api, |start| {
        let path = start.path().join("servers.json");
        std::fs::write(&path, &file).unwrap();
        start.arg(format!("--servers={}", path.display()))
    })
    .await;
    chat(&gate, &hello()).await;
    assert_eq!(offered(&api.requests()[0]), ["same"], "offered once");
    assert!(results(&api.requests()[1])[0].to_string().contains("filled by later"));
    gate.app.logged("`same` is offered by `earlier` and by `later`").await;
    gate.stop().await;
}

#[tokio::test]
async fn route_to_correct_server() {
    let Some(kitchen) = kitchen(vec![
        Reply::tool("1", "create_entities", &new_recipe()),
        Reply::tool("2", "fetch", &json!({"url": "http://127.0.0.1:1/"})),
        Reply::text("done"),
    ])
    .await
    else {
        return;
    };
    let answer = asked(&kitchen.gate, &hello()).await.json();
    let servers: Vec<_> =
        answer["tool_calls"].as_array().unwrap().iter().map(|call| call["server"].clone()).collect();
    assert_eq!(servers, ["recipes", "fetch"]);
    let requests = kitchen.api.requests();
    assert!(results(&requests[1])[0].to_string().contains("Soup"), "the result goes back: {}", requests[1]);
    assert_eq!(kitchen.gate.recorded("create_entities").await["server"], "recipes");
    kitchen.gate.stop().await;
}

#[tokio::test]
async fn route_to_native_tool() {
    let Some(kitchen) =
        kitchen(vec![Reply::tool("1", "display_recipe", &json!({"title": "Soup"})), Reply::text("There.")])
            .await
    else {
        return;
    };
    let events = chat(&kitchen.gate, &hello()).await;
    assert_eq!(events.one("display")["input"], json!({"title": "Soup"}));
    assert_eq!(events.one("tool_result")["status"], "completed");
    assert_eq!(kitchen.gate.recorded("display_recipe").await["server"], "native");
    kitchen.gate.stop().await;
}

#[tokio::test]
async fn unknown_tool_call() {
    let Some(kitchen) =
        kitchen(vec![Reply::tool("1", "bake_cake", &json!({})), Reply::text("I cannot.")]).await
    else {
        return;
    };
    let events = chat(&kitchen.gate, &hello()).await;
    assert_eq!(events.one("done")["text"], "I cannot.");
    let requests = kitchen.api.requests();
    let result = results(&requests[1])[0];
    assert_eq!(
        (&result["content"][0]["text"], &result["is_error"]),
        (&json!("Unknown tool: bake_cake"), &json!(true))
    );
    kitchen.gate.stop().await;
}

#[tokio::test]
async fn configure_server_with_environment_variables() {
    let Some(kitchen) = kitchen(vec![Reply::text("ready")]).await else { return };
    let own = processes_with(&format!("API_KEY={}", kitchen.mark));
    assert!(own.iter().all(|(_, all)| all.contains(&"USER_EMAIL=cook@example.com".to_owned())), "{own:?}");
    let others = processes_with(&format!("FETCH_MARK={}", kitchen.mark));
    assert!(!own.is_empty() && !others.is_empty());
    for (pid, environment) in others {
        let leaked =
            environment.iter().find(|one| one.starts_with("API_KEY=") || one.starts_with("USER_EMAIL="));
        assert!(leaked.is_none(), "process {pid} of fetch has {leaked:?}");
    }
    kitchen.gate.stop().await;
}

#[tokio::test]
async fn configure_server_command_and_args() {
    let Some(kitchen) = kitchen(vec![Reply::text("ready")]).await else { return };
    let (pid, _) = processes_with(&format!("FETCH_MARK={}", kitchen.mark)).remove(0);
    let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap();
    let command = String::from_utf8_lossy(&command).into_owned();
    assert!(command.contains("mcp-server-fetch") && command.contains("--ignore-robots-txt"), "{command:?}");
    kitchen.gate.stop().await;
}

#[tokio::test]
async fn sequential_server_startup() {
    let folder = tempfile::tempdir().unwrap();
    let journal = |name: &str| folder.path().join(name);
    let server = |name: &str, flags: &[&str]| {
        let path = journal(name).display().to_string();
        let args: Vec<&str> = [&["--journal", &path], flags].concat();
        json!({"command": misbehaving::program(), "args": args})
    };
    let file = |last: &[&str]| {
        let (first, second) = (server("first", &["--slow-initialize-ms", "600"]), server("second", last));
        format!(r#"{{"mcpServers": {{"z": {first}, "a": {second}}}}}"#)
    };
    let start = |text: &str| {
        let start = crate::start();
        let path = start.path().join("servers.json");
        std::fs::write(&path, text).unwrap();
        start.arg(format!("--servers={}", path.display()))
    };
    start(&file(&[])).serve().await.stop().await;
    let born = |name: &str| std::fs::metadata(journal(name)).unwrap().created().unwrap();
    let between = born("second").duration_since(born("first")).expect("in the order of the file");
    assert!(between.as_millis() >= 500, "not in parallel: {between:?}");
    let refused = start(&file(&["--exit-at-start", "9"])).try_serve().await.expect_err("it starts");
    assert!(refused.stderr.contains("server `a`"), "{}", refused.stderr);
}

#[tokio::test]
async fn graceful_shutdown() {
    let Some(kitchen) = kitchen(vec![Reply::text("ready")]).await else { return };
    chat(&kitchen.gate, &hello()).await;
    let mark = kitchen.mark.clone();
    // Fails if a process is left.
    kitchen.gate.stop().await;
    assert!(processes_with(&format!("API_KEY={mark}")).is_empty());
    assert!(processes_with(&format!("FETCH_MARK={mark}")).is_empty());
}

#[tokio::test]
async fn lazy_initialization() {
    let Some(tools) = engines::tools() else { return };
    let mark = Uuid::now_v7().simple().to_string();
    let api = ModelApi::start(|request| match request["messages"].as_array().unwrap().len() {
        1 => Reply::tool("1", "create_entities", &new_recipe()),
        _ => Reply::text("done"),
    })
    .await;
    let gate = super::gate(&api).await;
    let folder = tempfile::tempdir().unwrap();
    let env = json!({"LAZY_MARK": mark, "MEMORY_FILE_PATH": folder.path().join("memory.json")});
    gate.stdio("recipes", &tools.join("bin/mcp-server-memory"), &[], env).await;
    let running =
        || processes_with(&format!("LAZY_MARK={mark}")).into_iter().map(|(pid, _)| pid).collect::<Vec<_>>();
    assert!(running().is_empty(), "nothing runs before it is wanted");
    // Ten at once, one connection.
    let body = hello();
    let chats = (0..10).map(|_| chat(&gate, &body));
    for events in futures_util::future::join_all(chats).await {
        assert_eq!(events.one("tool_result")["status"], "completed");
    }
    let first = running();
    let status = until_seen("its status", async || match gate.status("recipes").await {
        status if status["status"] == "connected" => Ok(status),
        status => Err(status.to_string()),
    })
    .await;
    assert!(status["tool_count"].as_u64() > Some(3), "{status}");
    chat(&gate, &hello()).await;
    assert_eq!(running(), first, "and is used again");
    gate.stop().await;
}
