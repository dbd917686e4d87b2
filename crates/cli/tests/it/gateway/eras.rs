//! Clients of both eras in front of servers of both, over every transport: all that a client does, in one go. What came of it is the table
//! in `docs/clients.md`, which this compares with what it saw.
//!
//! Each client is a few lines that print what they saw as one JSON object; what it must be is the same for all.

use std::net::TcpListener;
use std::path::Path;
use std::process::Stdio;

use cofer_testkit::{engines, fixture, until};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use super::Gate;

const PYTHON: &str = r"
import sys, json, anyio
import mcp_types as types
from mcp import Client
async def main(url, mode, plan):
    facts, heard = {}, {}
    for what in ('tools/list_changed', 'resources/updated', 'ToolsListChanged', 'ResourceUpdated'):
        heard[what] = anyio.Event()
    async def elicit(context, params):
        return types.ElicitResult(action='accept', content={'name': 'Ada', 'username': 'Ada', 'email': 'ada@example.org'})
    async def sample(context, params):
        text = types.TextContent(type='text', text='from the model')
        return types.CreateMessageResult(role='assistant', content=text, model='m')
    async def roots(context):
        return types.ListRootsResult(roots=[types.Root(uri='file:///project')])
    async def hear(message):
        for what, event in heard.items():
            if what in repr(message):
                event.set()
    steps = []
    async def progress(done, total, message):
        steps.append(done)
    text = lambda result: ' '.join(part.text for part in result.content if part.type == 'text')
    async with Client(url, mode=mode, elicitation_callback=elicit, sampling_callback=sample, list_roots_callback=roots, message_handler=hear) as client:
        call = lambda step, **more: client.call_tool(step[0], step[1], **more)
        facts['version'] = str(client.protocol_version)
        facts['list'] = [tool.name for tool in (await client.list_tools()).tools]
        facts['call'] = text(await call(plan['echo']))
        await call(plan['progress'], progress_callback=progress)
        facts['progress'] = len(steps)
        async with anyio.create_task_group() as group:
            async def hang():
                await client.call_tool('hang', {})
            group.start_soon(hang)
            with anyio.fail_after(20):
                while not json.loads(text(await client.call_tool('calls_seen', {})))['calls'].get('hang'):
                    await anyio.sleep(0.01)
            group.cancel_scope.cancel()
        with anyio.fail_after(20):
            while not json.loads(text(await client.call_tool('cancel_seen', {})))['cancelled']:
                await anyio.sleep(0.01)
        facts['cancel'] = True
        facts['elicitation'] = text(await call(plan['elicit']))
        facts['sampling'] = text(await call(plan['sample']))
        facts['roots'] = text(await call(plan['roots']))
        watched = [plan['watch'][0]] if plan['watch'] else []
        async def act():
            with anyio.fail_after(20):
                # It may become what it is for others already, who have a process of their own.
                while not changed.is_set():
                    await call(plan['change'])
                    with anyio.move_on_after(1):
                        await changed.wait()
                facts['list_changed'] = True
                if watched:
                    await client.call_tool(plan['watch'][1], {})
                    await heard['ResourceUpdated' if modern else 'resources/updated'].wait()
                    facts['subscription'] = True
        modern = facts['version'] >= '2026'
        changed = heard['ToolsListChanged' if modern else 'tools/list_changed']
        if modern:
            async with client.listen(tools_list_changed=True, resource_subscriptions=watched) as events:
                async with anyio.create_task_group() as group:
                    async def follow():
                        async for event in events:
                            await hear(event)
                    group.start_soon(follow)
                    await act()
                    group.cancel_scope.cancel()
        else:
            for uri in watched:
                await client.subscribe_resource(uri)
            await act()
    print(json.dumps(facts))
anyio.run(main, sys.argv[1], sys.argv[2], json.loads(sys.argv[3]))
";

/// Both TypeScript clients do the same; how they are told to differs.
const TYPESCRIPT: &str = r"
const [url, mode, planned] = process.argv.slice(1);
const plan = JSON.parse(planned), facts = {}, steps = [];
const event = () => { let fire; const fired = new Promise(resolve => { fire = resolve; }); return {fire, fired}; };
const changed = event(), updated = event();
const options = {capabilities: {elicitation: {}, sampling: {}, roots: {}}};
if (mode === 'auto') options.versionNegotiation = {mode: 'auto'};
if (mode === 'modern') options.versionNegotiation = {mode: {pin: '2026-07-28'}};
const client = new Client({name: 'ts', version: '1'}, options);
onRequest('elicitation/create', async () => ({action: 'accept', content: {name: 'Ada', username: 'Ada', email: 'ada@example.org'}}));
onRequest('sampling/createMessage', async () => ({role: 'assistant', content: {type: 'text', text: 'from the model'}, model: 'm'}));
onRequest('roots/list', async () => ({roots: [{uri: 'file:///project'}]}));
onNotification('notifications/tools/list_changed', () => changed.fire());
onNotification('notifications/resources/updated', () => updated.fire());
const transport = new StreamableHTTPClientTransport(new URL(url));
await client.connect(transport);
const modern = mode === 'modern' || (mode === 'auto' && client.getProtocolEra?.() === 'modern');
facts.version = modern ? '2026-07-28' : transport.protocolVersion;
const text = result => result.content.filter(part => part.type === 'text').map(part => part.text).join(' ');
const run = (step, more) => call(step[0], step[1], more);
facts.list = (await client.listTools()).tools.map(tool => tool.name);
facts.call = text(await run(plan.echo));
await run(plan.progress, {onprogress: progress => steps.push(progress.progress)});
facts.progress = steps.length;
const until = async holds => { while (!await holds()) await new Promise(resolve => setTimeout(resolve, 10)); };
const stop = new AbortController();
const hanging = call('hang', {}, {signal: stop.signal}).catch(() => {});
await until(async () => JSON.parse(text(await call('calls_seen', {}))).calls.hang > 0);
stop.abort();
await hanging;
await until(async () => JSON.parse(text(await call('cancel_seen', {}))).cancelled.length > 0);
facts.cancel = true;
facts.elicitation = text(await run(plan.elicit));
facts.sampling = text(await run(plan.sample));
facts.roots = text(await run(plan.roots));
const watched = plan.watch ? [plan.watch[0]] : [];
const listening = modern ? await client.listen({toolsListChanged: true, resourceSubscriptions: watched}) : null;
if (!modern) for (const uri of watched) await client.subscribeResource({uri});
// It may become what it is for others already, who have a process of their own.
let has_changed = false;
changed.fired.then(() => { has_changed = true; });
while (!has_changed) {
    await run(plan.change);
    await Promise.race([changed.fired, new Promise(resolve => setTimeout(resolve, 1000))]);
}
facts.list_changed = true;
if (plan.watch) {
    await call(plan.watch[1], {});
    await updated.fired;
    facts.subscription = true;
}
await listening?.close();
await client.close();
console.log(JSON.stringify(facts));
process.exit(0);
";

const TYPESCRIPT_V1: &str = r"
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import * as types from '@modelcontextprotocol/sdk/types.js';
const schemas = {'elicitation/create': types.ElicitRequestSchema, 'sampling/createMessage': types.CreateMessageRequestSchema,
    'roots/list': types.ListRootsRequestSchema, 'notifications/tools/list_changed': types.ToolListChangedNotificationSchema,
    'notifications/resources/updated': types.ResourceUpdatedNotificationSchema};
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

/// Client, how it is told to negotiate, and the version that must come of it.
const CLIENTS: [(&str, &str, &str); 7] = [
    ("Python", "legacy", "2025-11-25"),
    ("Python", "auto", "2026-07-28"),
    ("Python", "2026-07-28", "2026-07-28"),
    ("TypeScript v1", "legacy", "2025-11-25"),
    ("TypeScript v2", "legacy", "2025-11-25"),
    ("TypeScript v2", "auto", "2026-07-28"),
    ("TypeScript v2", "modern", "2026-07-28"),
];
const FEATURES: [&str; 9] = [
    "list",
    "call",
    "progress",
    "cancel",
    "elicitation",
    "sampling",
    "roots",
    "list_changed",
    "subscription",
];

/// A server behind the gateway, and what to ask of it.
struct Form {
    gate: Gate,
    plan: Value,
    /// What lives beside it.
    server: Option<Child>,
}

impl Form {
    async fn end(self) {
        if let Some(mut server) = self.server {
            server.kill().await.unwrap();
        }
        self.gate.stop().await;
    }
}

fn asks(method: &str, params: &Value) -> Value {
    json!(["ask", {"method": method, "params": params}])
}

fn plan_of_fixture() -> Value {
    json!({
        "echo": ["test_simple_text", {}],
        "progress": ["test_tool_with_progress", {}],
        "elicit": ["test_elicitation", {"message": "who are you?"}],
        "sample": ["test_sampling", {"prompt": "say"}],
        "roots": ["test_roots", {}],
        "change": ["test_trigger_tool_change", {}],
        "watch": ["test://watched-resource", "test_trigger_resource_update"],
    })
}

async fn in_front_of_fixture(transport: &str, era: &str) -> Form {
    let gate = Gate::started(|start| start.arg("--mcp-auth=none")).await;
    gate.misbehaving("misbehaving", &[]).await;
    let arguments = [transport, "--era", era];
    let server = if transport == "stdio" {
        gate.stdio("fixture", &fixture::program(), &arguments, json!({})).await;
        None
    } else {
        let mut server = Command::new(fixture::program());
        server.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut server = server.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).await.unwrap();
        let url = line.trim().strip_prefix("listening on ").unwrap();
        gate.register("fixture", "http", json!({"url": url}), &json!({})).await;
        Some(server)
    };
    Form { gate, plan: plan_of_fixture(), server }
}

/// The project: `everything` over HTTP+SSE, and one that hangs and changes its list when told to.
async fn everything(tools: &Path) -> (Gate, Option<Child>) {
    let gate = Gate::started(|start| start.arg("--mcp-auth=none")).await;
    gate.misbehaving("misbehaving", &[]).await;
    let everything = tools.join("bin/mcp-server-everything");
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut server = Command::new(everything);
    server.arg("sse").env("PORT", port.to_string()).kill_on_drop(true);
    server.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let server = server.spawn().unwrap();
    until("a server that listens", async || {
        tokio::net::TcpStream::connect(("127.0.0.1", port)).await.is_ok()
    })
    .await;
    let url = format!("http://127.0.0.1:{port}/sse");
    gate.register("everything", "sse", json!({"url": url}), &json!({})).await;
    (gate, Some(server))
}

async fn in_front_of_sse(tools: &Path) -> Form {
    let (gate, server) = everything(tools).await;
    let plan = json!({
        "echo": ["echo", {"message": "simple text"}],
        "progress": ["trigger-long-running-operation", {"duration": 1, "steps": 4}],
        "elicit": ["trigger-elicitation-request", {}],
        "sample": ["trigger-sampling-request", {"prompt": "say", "maxTokens": 9}],
        "roots": asks("roots/list", &json!({})),
        "change": ["add_tools", {"count": 1}],
        "watch": null,
    });
    Form { gate, plan, server }
}

/// What the client saw.
async fn seen(tools: &Path, client: &str, mode: &str, form: &Form) -> Result<Value, String> {
    let (url, plan) = (format!("{}/mcp", form.gate.app.url), form.plan.to_string());
    let mut command = if client == "Python" {
        let mut command = Command::new(tools.join("bin/mcp-python"));
        command.args(["-c", PYTHON, &url, mode, &plan]);
        command
    } else {
        let own = if client == "TypeScript v1" { TYPESCRIPT_V1 } else { TYPESCRIPT_V2 };
        let script = format!("{own}\n{TYPESCRIPT}");
        let mut command = Command::new(tools.join("bin/node"));
        command
            .args(["--input-type=module", "-e", &script, &url, mode, &plan])
            .current_dir(tools.join("npm"));
        command
    };
    let ran = command.stdin(Stdio::null()).kill_on_drop(true).output();
    let ran = tokio::time::timeout(std::time::Duration::from_mins(1), ran).await;
    let ran = ran.map_err(|_| "it did not end".to_owned())?.unwrap();
    let said = String::from_utf8_lossy(&ran.stdout).into_owned();
    let facts = said.lines().last().and_then(|line| serde_json::from_str(line).ok());
    facts.filter(|_| ran.status.success()).ok_or_else(|| {
        let errors = String::from_utf8_lossy(&ran.stderr);
        // What matters stands at the end.
        format!("{said}\n{}", &errors[errors.floor_char_boundary(errors.len().saturating_sub(3000))..])
    })
}

/// Which of the features were seen to work.
fn worked(facts: &Value, has_subscription: bool) -> Vec<bool> {
    let says = |fact: &str, part: &str| facts[fact].as_str().is_some_and(|text| text.contains(part));
    FEATURES
        .iter()
        .map(|feature| match *feature {
            "list" => facts["list"].as_array().is_some_and(|tools| tools.contains(&json!("hang"))),
            "call" => says("call", "simple text"),
            "progress" => facts["progress"].as_u64().is_some_and(|steps| steps >= 3),
            "elicitation" => says("elicitation", "Ada"),
            "sampling" => says("sampling", "from the model"),
            "roots" => says("roots", "file:///project"),
            "subscription" => !has_subscription || facts["subscription"] == true,
            other => facts[other] == true,
        })
        .collect()
}

async fn everybody_does_all(name: &str, form: Form, tools: &Path) {
    let has_subscription = !form.plan["watch"].is_null();
    let mut cells = Vec::new();
    for (client, mode, version) in CLIENTS {
        let facts = seen(tools, client, mode, &form).await;
        let facts =
            facts.unwrap_or_else(|error| panic!("{client} {mode}: {error}\nlog: {}", form.gate.app.log()));
        assert_eq!(facts["version"], version, "{client} {mode}: {facts}");
        let worked = worked(&facts, has_subscription);
        assert!(worked.iter().all(|works| *works), "{client} {mode}: {FEATURES:?} {worked:?} {facts}");
        cells.push(if has_subscription { "all" } else { "all but subscription" });
    }
    let row = format!("| {name} | {} |", cells.join(" | "));
    let docs =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/clients.md")).unwrap();
    assert!(docs.lines().any(|line| line == row), "docs/clients.md should have this row:\n{row}");
    form.end().await;
}

#[tokio::test]
async fn everybody_does_all_in_front_of_a_child_of_the_handshake_era() {
    let Some(tools) = engines::tools() else { return };
    everybody_does_all("handshake, stdio", in_front_of_fixture("stdio", "handshake").await, &tools).await;
}

#[tokio::test]
async fn everybody_does_all_in_front_of_http_of_the_handshake_era() {
    let Some(tools) = engines::tools() else { return };
    everybody_does_all("handshake, HTTP", in_front_of_fixture("http", "handshake").await, &tools).await;
}

#[tokio::test]
async fn everybody_does_all_in_front_of_sse() {
    let Some(tools) = engines::tools() else { return };
    everybody_does_all("handshake, HTTP+SSE", in_front_of_sse(&tools).await, &tools).await;
}

#[tokio::test]
async fn everybody_does_all_in_front_of_a_child_of_both_eras() {
    let Some(tools) = engines::tools() else { return };
    everybody_does_all("both eras, stdio", in_front_of_fixture("stdio", "both").await, &tools).await;
}

#[tokio::test]
async fn everybody_does_all_in_front_of_http_of_both_eras() {
    let Some(tools) = engines::tools() else { return };
    everybody_does_all("both eras, HTTP", in_front_of_fixture("http", "both").await, &tools).await;
}

#[tokio::test]
async fn everybody_does_all_in_front_of_http_of_the_later_era_alone() {
    let Some(tools) = engines::tools() else { return };
    everybody_does_all("2026-07-28 only, HTTP", in_front_of_fixture("http", "alone").await, &tools).await;
}

/// In a container, without gVisor, which changes nothing here: its bridge is the same.
#[tokio::test]
async fn everybody_does_all_in_front_of_a_hosted_server() {
    let (Some(tools), Some(_)) = (engines::tools(), engines::docker()) else { return };
    let gate = Gate::started(|start| start.with_engines().arg("--mcp-auth=none")).await;
    let server = json!({"name": "misbehaving", "image": "cofer-test/misbehaving", "provider": "docker", "max_in_flight": 8});
    let made = gate.app.post("/api/v1/mcp/hosted", &server).await;
    assert_eq!(made.status, 201, "{made:?}");
    let schema = json!({"type": "object", "properties": {"name": {"type": "string"}}});
    let message = json!({"role": "user", "content": {"type": "text", "text": "say"}});
    let plan = json!({
        "echo": ["echo", {"text": "simple text"}],
        "progress": ["progress", {"steps": 4}],
        "elicit": asks("elicitation/create", &json!({"message": "who are you?", "requestedSchema": schema})),
        "sample": asks("sampling/createMessage", &json!({"messages": [message], "maxTokens": 9})),
        "roots": asks("roots/list", &json!({})),
        "change": ["add_tools", {"count": 1}],
        "watch": null,
    });
    everybody_does_all("hosted in a container, stdio", Form { gate, plan, server: None }, &tools).await;
}

#[tokio::test]
async fn the_inspector_lists_and_calls_in_every_era() {
    let Some(tools) = engines::tools() else { return };
    for (transport, known) in [("stdio", "handshake"), ("http", "alone")] {
        let form = in_front_of_fixture(transport, known).await;
        for era in ["legacy", "auto", "modern"] {
            let inspect = async |arguments: &[&str]| {
                let mut command = Command::new(tools.join("bin/mcp-inspector"));
                let url = format!("{}/mcp", form.gate.app.url);
                command.args(["--cli", &url, "--transport", "http", "--protocol-era", era]).args(arguments);
                let ran = command.stdin(Stdio::null()).kill_on_drop(true).output().await.unwrap();
                assert!(ran.status.success(), "{era}: {ran:?}");
                String::from_utf8(ran.stdout).unwrap()
            };
            let listed = inspect(&["--method", "tools/list"]).await;
            assert!(
                listed.contains("test_image_content") && listed.contains("cancel_seen"),
                "{era}: {listed}"
            );
            let called = inspect(&["--method", "tools/call", "--tool-name", "test_simple_text"]).await;
            assert!(called.contains("simple text"), "{era}: {called}");
        }
        form.end().await;
    }
}
