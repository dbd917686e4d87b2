// What the conformance suite runs as "the client": a fresh Cofer with the suite's server as its only upstream, and a person whose browser
// follows whatever redirect it is sent.
//
//   COFER=PROGRAM node conformance-client.mjs URL
//
// It uses a tool until that works. When Cofer says that somebody has to log in, it does, but no more often than a patient person would.

import { spawn } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";

const LOGINS_MAX = 4;
const PUBLIC = "https://conformance-test.local";
const address = process.argv.at(-1);
const scenario = process.env.MCP_CONFORMANCE_SCENARIO ?? "";
const context = JSON.parse(process.env.MCP_CONFORMANCE_CONTEXT ?? "{}");
// Only there does anybody ask for the document in which we describe ourselves.
const isPublic = scenario === "auth/basic-cimd";

const home = mkdtempSync(join(tmpdir(), "cofer-conformance-"));
const settings = isPublic ? ["--public-url", PUBLIC] : [];
const cofer = spawn(process.env.COFER, ["serve", "--listen", "127.0.0.1:0", "--data-dir", home, ...settings], {
  env: { PATH: process.env.PATH, HOME: home, COFER_ADMIN_TOKEN: "conformance" },
  stdio: ["ignore", "pipe", "inherit"],
});
const ended = new Promise((resolve) => cofer.on("exit", resolve));

async function listening() {
  for await (const line of createInterface({ input: cofer.stdout })) {
    if (line.startsWith("listening on ")) return line.slice("listening on ".length);
  }
  throw new Error("Cofer did not start");
}

const base = await listening();
const servers = "/api/v1/projects/default/mcp-servers";

async function ask(method, path, body) {
  const headers = { Authorization: "Bearer conformance", ...(body && { "Content-Type": "application/json" }) };
  const response = await fetch(`${base}${path}`, { method, headers, body: body && JSON.stringify(body) });
  const text = await response.text();
  return { status: response.status, body: text ? JSON.parse(text) : undefined };
}

// Follows redirects as a browser does, to Cofer itself where they lead to its public name.
async function browse(url) {
  for (let step = 0; step < 10; step += 1) {
    const response = await fetch(url.replace(PUBLIC, base), { redirect: "manual" });
    const location = response.headers.get("location");
    if (!location) return response.status;
    url = new URL(location, url).href;
  }
  throw new Error("redirects without end");
}

async function logIn() {
  const begun = await ask("POST", `${servers}/upstream/login`);
  if (begun.status !== 200) throw new Error(`no login: ${JSON.stringify(begun.body)}`);
  const status = await browse(begun.body.authorize_url);
  if (status !== 200) throw new Error(`the login did not work: HTTP ${status}`);
}

// Whether everything there is works, the tool included.
async function use() {
  const listed = await ask("POST", `${servers}/upstream/refresh`);
  if (listed.status !== 200) return { works: false, listed };
  const called = await ask("POST", "/api/v1/projects/default/tools/call", { name: "test-tool", arguments: {} });
  return { works: called.status === 200 && !called.body.isError, listed, called };
}

async function run() {
  const oauth = context.client_id && { client_id: context.client_id, client_secret: context.client_secret, issuer: context.issuer };
  const config = { url: address, ...(oauth && { oauth }) };
  const made = await ask("POST", servers, { name: "upstream", transport: "http", config });
  if (made.status !== 201) throw new Error(JSON.stringify(made.body));
  // Twice: a server may change its mind after it has let us in.
  for (let worked = 0, logins = 0; worked < 2; ) {
    const { works, ...outcome } = await use();
    const { login } = (await ask("GET", `${servers}/upstream`)).body;
    if (works) {
      worked += 1;
    } else if ((login === "required" || login === "insufficient") && logins < LOGINS_MAX) {
      logins += 1;
      await logIn();
    } else {
      throw new Error(`login ${login}: ${JSON.stringify(outcome)}`);
    }
  }
}

try {
  await run();
} catch (error) {
  console.error(`${error.message}`);
  process.exitCode = 1;
}
cofer.kill("SIGTERM");
await ended;
rmSync(home, { recursive: true, force: true });
