//! Clients that others made, in their handshake mode, in front of servers over each transport: all that a client does, in one go.
//!
//! Each client is a few lines that print what they saw as one JSON object; what it must be is the same for all.

use std::net::TcpListener;
use std::path::Path;
use std::process::Stdio;

use cofer_testkit::{engines, until};
use serde_json::{Value, json};
use tokio::process::{Child, Command};

use super::Gate;

const PYTHON: &str = r"
import sys, json, anyio
import mcp_types as types
from mcp import Client
async def main(url):
    facts, changed, begun = {}, anyio.Event(), anyio.Event()
    async def elicit(context, params):
        return types.ElicitResult(action='accept', content={'name': 'Ada'})
    async def sample(context, params):
        text = types.TextContent(type='text', text='from the model')
        return types.CreateMessageResult(role='assistant', content=text, model='m')
    async def heard(message):
        if 'tools/list_changed' in repr(message):
            changed.set()
    steps = []
    async def progress(done, total, message):
        steps.append(done)
    async with Client(url, mode='legacy', elicitation_callback=elicit, sampling_callback=sample, message_handler=heard) as client:
        facts['version'] = str(client.session.protocol_version)
        facts['tools'] = [tool.name for tool in (await client.list_tools()).tools]
        text = lambda result: ' '.join(part.text for part in result.content if part.type == 'text')
        facts['echo'] = text(await client.call_tool('echo', {'message': 'hi'}))
        await client.call_tool('trigger-long-running-operation', {'duration': 1, 'steps': 4}, progress_callback=progress)
        facts['progress'] = steps
        facts['elicited'] = text(await client.call_tool('trigger-elicitation-request', {}))
        facts['sampled'] = text(await client.call_tool('trigger-sampling-request', {'prompt': 'say', 'maxTokens': 9}))
        async with anyio.create_task_group() as group:
            async def hang():
                await client.call_tool('hang', {})
            group.start_soon(hang)
            while json.loads(text(await client.call_tool('calls_seen', {})))['calls'].get('hang') != 1:
                await anyio.sleep(0.01)
            group.cancel_scope.cancel()
        with anyio.fail_after(20):
            while True:
                seen = json.loads(text(await client.call_tool('cancel_seen', {})))
                facts['cancelled'] = len(seen['cancelled'])
                if facts['cancelled']:
                    break
                await anyio.sleep(0.01)
        await client.call_tool('add_tools', {'count': 1})
        with anyio.fail_after(20):
            await changed.wait()
        facts['changed'] = True
    print(json.dumps(facts))
anyio.run(main, sys.argv[1])
";

/// Both TypeScript clients do the same; how they are told to differs.
const TYPESCRIPT: &str = r"
const facts = {}, steps = [];
let changed; const wasChanged = new Promise(resolve => { changed = resolve; });
const client = new Client({name: 'ts', version: '1'}, {capabilities: {elicitation: {}, sampling: {}}});
onRequest('elicitation/create', async () => ({action: 'accept', content: {name: 'Ada'}}));
onRequest('sampling/createMessage', async () => ({role: 'assistant', content: {type: 'text', text: 'from the model'}, model: 'm'}));
onNotification('notifications/tools/list_changed', () => changed());
const transport = new StreamableHTTPClientTransport(new URL(process.argv[1]));
await client.connect(transport);
facts.version = transport.protocolVersion;
facts.tools = (await client.listTools()).tools.map(tool => tool.name);
const text = result => result.content.filter(part => part.type === 'text').map(part => part.text).join(' ');
facts.echo = text(await call('echo', {message: 'hi'}));
await call('trigger-long-running-operation', {duration: 1, steps: 4}, {onprogress: progress => steps.push(progress.progress)});
facts.progress = steps;
facts.elicited = text(await call('trigger-elicitation-request', {}));
facts.sampled = text(await call('trigger-sampling-request', {prompt: 'say', maxTokens: 9}));
const until = async holds => { while (!await holds()) await new Promise(resolve => setTimeout(resolve, 10)); };
const stop = new AbortController();
const hanging = call('hang', {}, {signal: stop.signal}).catch(() => {});
await until(async () => JSON.parse(text(await call('calls_seen', {}))).calls.hang === 1);
stop.abort();
await hanging;
await until(async () => (facts.cancelled = JSON.parse(text(await call('cancel_seen', {}))).cancelled.length) > 0);
await call('add_tools', {count: 1});
await wasChanged;
facts.changed = true;
await client.close();
console.log(JSON.stringify(facts));
process.exit(0);
";

const TYPESCRIPT_V1: &str = r"
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import * as types from '@modelcontextprotocol/sdk/types.js';
const schemas = {'elicitation/create': types.ElicitRequestSchema, 'sampling/createMessage': types.CreateMessageRequestSchema, 'notifications/tools/list_changed': types.ToolListChangedNotificationSchema};
const onRequest = (method, handler) => client.setRequestHandler(schemas[method], handler);
const onNotification = (method, handler) => client.setNotificationHandler(schemas[method], handler);
const call = (name, args, options) => client.callTool({name, arguments: args}, undefined, options);
";

const TYPESCRIPT_V2: &str = r"
import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';
const onRequest = (method, handler) => client.setRequestHandler(method, handler);
const onNotification = (method, handler) => client.setNotificationHandler(method, handler);
const call = (name, args, options) => client.callTool({name, arguments: args}, options);
";

/// The project: `everything` by this transport, and one that hangs and changes its list when told to.
pub(super) async fn everything(tools: &Path, transport: &str) -> (Gate, Option<Child>) {
    let gate = Gate::started(|start| start.arg("--mcp-auth=none")).await;
    gate.misbehaving("misbehaving", &[]).await;
    let everything = tools.join("bin/mcp-server-everything");
    if transport == "stdio" {
        gate.stdio("everything", &everything, &[], json!({})).await;
        return (gate, None);
    }
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let (mode, path) = if transport == "sse" { ("sse", "sse") } else { ("streamableHttp", "mcp") };
    let mut server = Command::new(everything);
    server.arg(mode).env("PORT", port.to_string()).kill_on_drop(true);
    server.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let server = server.spawn().unwrap();
    until("a server that listens", async || {
        tokio::net::TcpStream::connect(("127.0.0.1", port)).await.is_ok()
    })
    .await;
    let url = format!("http://127.0.0.1:{port}/{path}");
    gate.register("everything", transport, json!({"url": url}), &json!({})).await;
    (gate, Some(server))
}

/// What the client saw.
async fn seen(tools: &Path, client: &str, url: &str) -> Result<Value, String> {
    let mut command = if client == "python" {
        let mut command = Command::new(tools.join("bin/mcp-python"));
        command.args(["-c", PYTHON, url]);
        command
    } else {
        let own = if client == "typescript v1" { TYPESCRIPT_V1 } else { TYPESCRIPT_V2 };
        let mut command = Command::new(tools.join("bin/node"));
        let script = format!("{own}\n{TYPESCRIPT}");
        command.args(["--input-type=module", "-e", &script, url]).current_dir(tools.join("npm"));
        command
    };
    let ran = command.stdin(Stdio::null()).kill_on_drop(true).output();
    let ran = tokio::time::timeout(std::time::Duration::from_secs(90), ran).await;
    let ran = ran.map_err(|_| "it did not end".to_owned())?.unwrap();
    let said = String::from_utf8_lossy(&ran.stdout).into_owned();
    let facts = said.lines().last().and_then(|line| serde_json::from_str(line).ok());
    facts.filter(|_| ran.status.success()).ok_or_else(|| {
        format!("{said}\n{}", String::from_utf8_lossy(&ran.stderr).chars().take(4000).collect::<String>())
    })
}

async fn does_all(client: &str, transport: &str) {
    let Some(tools) = engines::tools() else { return };
    let (gate, server) = everything(&tools, transport).await;
    let facts = seen(&tools, client, &format!("{}/mcp", gate.app.url)).await;
    let facts = facts.unwrap_or_else(|error| panic!("{error}\nlog: {}", gate.app.log()));
    assert_eq!(facts["version"], "2025-11-25", "{facts}");
    let names = facts["tools"].as_array().unwrap();
    assert!(names.contains(&json!("get-tiny-image")) && names.contains(&json!("hang")), "{facts}");
    assert_eq!(facts["echo"], "Echo: hi");
    assert!(facts["progress"].as_array().unwrap().len() >= 3, "{facts}");
    assert!(facts["elicited"].as_str().unwrap().contains("Ada"), "{facts}");
    assert!(facts["sampled"].as_str().unwrap().contains("from the model"), "{facts}");
    assert_eq!((&facts["cancelled"], &facts["changed"]), (&json!(1), &json!(true)), "{facts}");
    if let Some(mut server) = server {
        server.kill().await.unwrap();
    }
    gate.stop().await;
}

/// A test of each client in front of each transport.
macro_rules! each {
    ($($name:ident: $client:literal, $transport:literal;)*) => {
        $(#[tokio::test] async fn $name() { does_all($client, $transport).await; })*
    };
}

each! {
    python_does_all_in_front_of_a_child: "python", "stdio";
    python_does_all_in_front_of_sse: "python", "sse";
    python_does_all_in_front_of_http: "python", "http";
    typescript_v1_does_all_in_front_of_a_child: "typescript v1", "stdio";
    typescript_v1_does_all_in_front_of_sse: "typescript v1", "sse";
    typescript_v1_does_all_in_front_of_http: "typescript v1", "http";
    typescript_v2_does_all_in_front_of_a_child: "typescript v2", "stdio";
    typescript_v2_does_all_in_front_of_sse: "typescript v2", "sse";
    typescript_v2_does_all_in_front_of_http: "typescript v2", "http";
}

#[tokio::test]
async fn the_inspector_lists_and_calls() {
    let Some(tools) = engines::tools() else { return };
    let (gate, _) = everything(&tools, "stdio").await;
    let inspect = async |arguments: &[&str]| {
        let mut command = Command::new(tools.join("bin/mcp-inspector"));
        command.args(["--cli", &format!("{}/mcp", gate.app.url), "--transport", "http"]).args(arguments);
        let ran = command.stdin(Stdio::null()).kill_on_drop(true).output().await.unwrap();
        assert!(ran.status.success(), "{ran:?}");
        String::from_utf8(ran.stdout).unwrap()
    };
    let listed = inspect(&["--method", "tools/list"]).await;
    assert!(listed.contains("get-tiny-image") && listed.contains("cancel_seen"), "{listed}");
    let called =
        inspect(&["--method", "tools/call", "--tool-name", "echo", "--tool-arg", "message=hi"]).await;
    assert!(called.contains("Echo: hi"), "{called}");
    gate.stop().await;
}
