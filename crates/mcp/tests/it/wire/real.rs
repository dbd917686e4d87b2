//! Servers that others made, as they are installed: from npm and from PyPI, over both transports.

use std::net::TcpListener;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use cofer_mcp::wire::{HttpTarget, Wire, WireFault, WireLimits, sse, streamable};
use cofer_mcp::{Face, Pump, Reply, shake_hands};
use cofer_testkit::engines;
use cofer_testkit::leaks::Leaks;
use cofer_testkit::until;
use serde_json::Value;
use serde_json::value::RawValue;
use tokio::process::{Child, Command};

use super::{SECONDS, client, pump};

/// A server of the Python SDK, with one tool that reports its progress.
const PYTHON: &str = "
import sys
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
server = MCPServer('python')
@server.tool()
async def echo(message: str, context: Context) -> str:
    for step in range(3):
        await context.report_progress(step, 3)
    return 'Echo: ' + message
server.run(sys.argv[1], host='127.0.0.1', port=int(sys.argv[2]))
";

/// Nobody listens there now.
fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn everything(tools: &Path, transport: &str, port: u16) -> Child {
    let mut command = Command::new(tools.join("bin/mcp-server-everything"));
    command.arg(transport).env("PORT", port.to_string());
    start(command)
}

fn python(tools: &Path, transport: &str, port: u16) -> Child {
    let mut command = Command::new(tools.join("bin/mcp-python"));
    command.args(["-c", PYTHON, transport, &port.to_string()]);
    start(command)
}

fn start(mut command: Command) -> Child {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap()
}

async fn listens(port: u16) {
    until("a server that listens", async || {
        tokio::net::TcpStream::connect(("127.0.0.1", port)).await.is_ok()
    })
    .await;
}

fn target(port: u16, path: &str) -> HttpTarget {
    HttpTarget { url: format!("http://127.0.0.1:{port}/{path}").parse().unwrap(), headers: Vec::new() }
}

async fn dial(transport: &str, target: HttpTarget) -> Result<Wire, WireFault> {
    match transport {
        "sse" => sse(target, client(), WireLimits::default()).await,
        _ => Ok(streamable(target, client(), WireLimits::default())),
    }
}

fn params(text: &str) -> Option<Box<RawValue>> {
    RawValue::from_string(text.to_owned()).ok()
}

async fn call(pump: &Pump, method: &str, arguments: &str) -> Value {
    match pump.call(method, params(arguments), SECONDS).await.unwrap() {
        Reply::Result(result) => serde_json::from_str(result.get()).unwrap(),
        Reply::Error(error) => panic!("{error:?}"),
    }
}

/// Shakes hands, lists, calls many times at once, and hears progress.
async fn serves(pump: &Pump) {
    let handshake = shake_hands(pump, &Face::default(), SECONDS).await.unwrap();
    assert_eq!(handshake.protocol_version.as_deref(), Some("2025-11-25"));
    let tools = call(pump, "tools/list", "{}").await;
    assert!(tools["tools"].as_array().unwrap().iter().any(|tool| tool["name"] == "echo"), "{tools}");
    let calls = (0..40).map(|number| async move {
        let arguments = format!(
            r#"{{"name":"echo","arguments":{{"message":"m{number}"}},"_meta":{{"progressToken":{number}}}}}"#
        );
        let answer = call(pump, "tools/call", &arguments).await;
        assert_eq!(answer["content"][0]["text"], format!("Echo: m{number}"), "{answer}");
    });
    futures_util::future::join_all(calls).await;
}

#[tokio::test]
async fn servers_of_the_typescript_sdk_are_served() {
    let Some(tools) = engines::tools() else { return };
    for (transport, path) in [("streamableHttp", "mcp"), ("sse", "sse")] {
        let _leaks = Leaks::watch_processes().adopt_orphans();
        let port = free_port();
        let mut server = everything(&tools, transport, port);
        listens(port).await;
        let (pump, fault) = pump(dial(transport, target(port, path)).await.unwrap());
        serves(&pump).await;
        let mut heard = pump.notifications();
        let long = r#"{"name":"trigger-long-running-operation","arguments":{"duration":1,"steps":4},"_meta":{"progressToken":"p"}}"#;
        call(&pump, "tools/call", long).await;
        let progress = tokio::time::timeout(Duration::from_secs(5), heard.recv()).await.unwrap().unwrap();
        assert_eq!(progress.method, "notifications/progress", "{transport}");
        assert_eq!(fault.get(), None);
        // It dies; whoever calls next hears, and the wire ends.
        server.kill().await.unwrap();
        let _ = pump.call("tools/list", None, SECONDS).await;
        pump.ended().await;
        assert!(fault.get().is_some(), "{transport}");
    }
}

#[tokio::test]
async fn servers_of_the_newer_era_are_served_without_a_handshake() {
    let Some(tools) = engines::tools() else { return };
    let _leaks = Leaks::watch_processes().adopt_orphans();
    let port = free_port();
    let mut server = python(&tools, "streamable-http", port);
    listens(port).await;
    let (pump, fault) = pump(dial("streamable-http", target(port, "mcp")).await.unwrap());
    let meta = r#""_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}"#;
    let found = call(&pump, "server/discover", &format!("{{{meta}}}")).await;
    assert!(found["supportedVersions"].as_array().unwrap().contains(&"2026-07-28".into()), "{found}");
    let arguments = format!(r#"{{"name":"echo","arguments":{{"message":"now"}},{meta}}}"#);
    let answer = call(&pump, "tools/call", &arguments).await;
    assert_eq!(
        (&answer["content"][0]["text"], &answer["resultType"]),
        (&"Echo: now".into(), &"complete".into())
    );
    assert_eq!(fault.get(), None);
    server.kill().await.unwrap();
}

#[tokio::test]
async fn servers_of_the_python_sdk_are_served() {
    let Some(tools) = engines::tools() else { return };
    for (transport, path) in [("streamable-http", "mcp"), ("sse", "sse")] {
        let _leaks = Leaks::watch_processes().adopt_orphans();
        let port = free_port();
        let mut server = python(&tools, transport, port);
        listens(port).await;
        let (pump, fault) = pump(dial(transport, target(port, path)).await.unwrap());
        serves(&pump).await;
        assert_eq!(fault.get(), None);
        drop(pump);
        server.kill().await.unwrap();
    }
}
