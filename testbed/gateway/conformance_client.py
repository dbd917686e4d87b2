"""What the conformance suite runs as "the client": a fresh Cofer with the suite's server as its only upstream, and an ordinary client of
the era that the suite speaks before it. The client lists the tools and calls each of them, with what the suite says or what fits its schema.

    COFER=PROGRAM python conformance_client.py URL
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import urllib.request

import anyio
import mcp_types as types
from mcp import Client
from mcp.shared.exceptions import MCPError

SERVERS = "/api/v1/projects/default/mcp-servers"
FITTING = {"string": "text", "integer": 7, "number": 5, "boolean": True, "array": [], "object": {}, "null": None}


def ask(base, method, path, body):
    headers = {"Authorization": "Bearer conformance", "Content-Type": "application/json"}
    request = urllib.request.Request(base + path, json.dumps(body).encode(), headers, method=method)
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


def arguments_for(tool):
    """Something for everything that its schema names."""
    properties = (tool.input_schema or {}).get("properties", {})
    return {name: FITTING.get(about.get("type"), "text") for name, about in properties.items()}


def accepted(params):
    """What a person who takes every default says."""
    schema = getattr(params, "requested_schema", None) or {}
    properties = schema.get("properties", {})
    return {name: about.get("default", FITTING.get(about.get("type"), "text")) for name, about in properties.items()}


async def use(url, mode, planned):
    async def elicit(_, params):
        return types.ElicitResult(action="accept", content=accepted(params))

    async def sample(_, params):
        text = types.TextContent(type="text", text="from the model")
        return types.CreateMessageResult(role="assistant", content=text, model="m")

    async def roots(_):
        return types.ListRootsResult(roots=[types.Root(uri="file:///project")])

    answers = {"elicitation_callback": elicit, "sampling_callback": sample, "list_roots_callback": roots}
    async with Client(url, mode=mode, **answers) as client:
        tools = (await client.list_tools()).tools
        calls = planned or [{"name": tool.name, "arguments": arguments_for(tool)} for tool in tools]
        for call in calls:
            # Some tools are only there to be listed.
            with contextlib.suppress(MCPError):
                await client.call_tool(call["name"], call.get("arguments") or {})


def main(upstream):
    version = os.environ.get("MCP_CONFORMANCE_PROTOCOL_VERSION", "")
    context = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}")
    mode = "auto" if version >= "2026" else "legacy"
    with tempfile.TemporaryDirectory() as home:
        environment = {"PATH": os.environ["PATH"], "HOME": home, "COFER_ADMIN_TOKEN": "conformance"}
        command = [os.environ["COFER"], "serve", "--listen", "127.0.0.1:0", "--data-dir", home + "/data", "--mcp-auth", "none"]
        cofer = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        try:
            base = cofer.stdout.readline().split()[-1]
            ask(base, "POST", SERVERS, {"name": "upstream", "transport": "http", "config": {"url": upstream}})
            anyio.run(use, base + "/mcp", mode, context.get("toolCalls"))
        finally:
            cofer.send_signal(signal.SIGTERM)
            cofer.wait()


main(sys.argv[-1])
