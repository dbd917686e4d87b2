// A real authorization server (oidc-provider) whose people approve everything, and an MCP server that takes its tokens alone.
//
//   node authority.mjs NODE_MODULES          prints {"issuer": …, "mcp": …} and serves until its stdin ends
//
// TOKEN_SECONDS is how long access tokens live. For tests there are, below the issuer's address:
//   GET  /control/counts     how often tokens were given, by kind of grant, and how many calls the MCP server answered
//   POST /control/revoke     a person takes back everything that they approved
//   POST /control/rotate     new signing keys; the old ones are forgotten
//   POST /control/mint       signs {header, claims} with the key of now, or with a stranger's ({"stranger": true})
//   POST /control/deny       whether people say no from now on ({"deny": true})
//   POST /control/hold       whether tokens are given only when this is taken back ({"hold": true})

import { createHash, createPublicKey, generateKeyPairSync, randomUUID, sign, verify } from "node:crypto";
import { createServer } from "node:http";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const modules = createRequire(`${process.argv[2]}/here.js`);
const load = (name) => import(pathToFileURL(modules.resolve(name)));
const { Provider } = await load("oidc-provider");
const { Server } = await load("@modelcontextprotocol/sdk/server/index.js");
const { StreamableHTTPServerTransport } = await load("@modelcontextprotocol/sdk/server/streamableHttp.js");
const { CallToolRequestSchema, ListToolsRequestSchema } = await load("@modelcontextprotocol/sdk/types.js");

const TOKEN_SECONDS = Number(process.env.TOKEN_SECONDS ?? 3600);
const SCOPES = ["mcp:basic", "mcp:write", "tools:call"];

const counts = { authorization_code: 0, refresh_token: 0, refused: 0, revoked: 0, calls: 0, held: 0 };
const grants = new Set();
let denies = false;
let released = Promise.resolve();
let release = () => {};
let key = newKey();
const stranger = newKey();

function newKey() {
  const { privateKey } = generateKeyPairSync("rsa", { modulusLength: 2048 });
  const jwk = privateKey.export({ format: "jwk" });
  return { privateKey, jwk: { ...jwk, kid: randomUUID(), use: "sig", alg: "RS256" } };
}

const encoded = (value) => Buffer.from(JSON.stringify(value)).toString("base64url");

function signed(header, claims, by) {
  const text = `${encoded({ alg: "RS256", typ: "at+jwt", kid: by.jwk.kid, ...header })}.${encoded(claims)}`;
  if (header?.alg === "none") return `${text}.`;
  return `${text}.${sign("sha256", Buffer.from(text), by.privateKey).toString("base64url")}`;
}

// Whom a token of ours is about, or nothing.
function read(token, audience) {
  const [header, claims, signature] = token.split(".");
  const publicKey = createPublicKey(key.privateKey);
  try {
    const good = verify("sha256", Buffer.from(`${header}.${claims}`), publicKey, Buffer.from(signature, "base64url"));
    const read = JSON.parse(Buffer.from(claims, "base64url"));
    return good && read.aud === audience && read.exp > Date.now() / 1000 ? read : undefined;
  } catch {
    return undefined;
  }
}

// Outlives new keys, which are a new provider's.
const kept = new Map();

class Memory {
  constructor(model) {
    this.model = model;
  }
  key = (id) => `${this.model}:${id}`;
  upsert = async (id, payload) => void kept.set(this.key(id), payload);
  find = async (id) => kept.get(this.key(id));
  findByUid = async (uid) => [...kept.values()].find((payload) => payload.uid === uid && payload.kind === this.model);
  findByUserCode = async () => undefined;
  destroy = async (id) => void kept.delete(this.key(id));
  consume = async (id) => void (kept.get(this.key(id)).consumed = Math.floor(Date.now() / 1000));
  revokeByGrantId = async (grantId) => {
    for (const [key, payload] of kept) if (payload.grantId === grantId) kept.delete(key);
  };
}

function provider(issuer, cookieKey) {
  const made = new Provider(issuer, {
    adapter: Memory,
    jwks: { keys: [key.jwk] },
    scopes: ["openid", "offline_access", ...SCOPES],
    cookies: { keys: [cookieKey] },
    pkce: { required: () => true },
    rotateRefreshToken: true,
    issueRefreshToken: async (_, client, code) =>
      client.grantTypeAllowed("refresh_token") && code.scopes.has("offline_access"),
    interactions: { url: (_, interaction) => `/interaction/${interaction.uid}` },
    findAccount: (_, id) => ({ accountId: id, claims: async () => ({ sub: id }) }),
    ttl: { AccessToken: TOKEN_SECONDS, RefreshToken: 3600, Grant: 3600, Session: 3600, Interaction: 600, IdToken: 600 },
    features: {
      devInteractions: { enabled: false },
      registration: { enabled: true },
      revocation: { enabled: true },
      resourceIndicators: {
        enabled: true,
        useGrantedResource: async () => true,
        getResourceServerInfo: async (_, resource) => ({
          scope: SCOPES.join(" "),
          audience: resource,
          accessTokenTTL: TOKEN_SECONDS,
          accessTokenFormat: "jwt",
          jwt: { sign: { alg: "RS256" } },
        }),
      },
    },
  });
  made.on("grant.success", (ctx) => {
    counts[ctx.oidc.params.grant_type] += 1;
    if (ctx.oidc.entities.Grant) grants.add(ctx.oidc.entities.Grant.jti);
  });
  made.on("grant.error", () => (counts.refused += 1));
  made.on("grant.revoked", () => (counts.revoked += 1));
  made.on("server_error", (_, error) => console.error(error));
  return made;
}

// The person: says yes to whatever is asked, or no to all of it.
async function decide(authority, request, response) {
  const { params, session, grantId } = await authority.interactionDetails(request, response);
  if (denies) {
    const result = { error: "access_denied", error_description: "<script>no</script>" };
    return authority.interactionFinished(request, response, result, { mergeWithLastSubmission: false });
  }
  const accountId = session?.accountId ?? "ada@example.com";
  const found = grantId ? await authority.Grant.find(grantId) : undefined;
  const grant = found ?? new authority.Grant({ accountId, clientId: params.client_id });
  grant.addOIDCScope(`openid offline_access ${params.scope ?? ""}`);
  for (const resource of [params.resource].flat().filter(Boolean)) grant.addResourceScope(resource, params.scope ?? "");
  const result = { login: { accountId }, consent: { grantId: await grant.save() } };
  return authority.interactionFinished(request, response, result, { mergeWithLastSubmission: true });
}

function answer(response, body, status = 200, headers = {}) {
  response.writeHead(status, { "Content-Type": "application/json", ...headers });
  response.end(JSON.stringify(body));
}

async function bodyOf(request) {
  const pieces = [];
  for await (const piece of request) pieces.push(piece);
  const text = Buffer.concat(pieces).toString();
  return text ? JSON.parse(text) : {};
}

async function control(state, request, response) {
  const body = request.method === "POST" ? await bodyOf(request) : {};
  switch (request.url) {
    case "/control/counts":
      return answer(response, counts);
    case "/control/revoke":
      for (const id of grants) {
        await state.authority.RefreshToken.revokeByGrantId(id);
        await (await state.authority.Grant.find(id))?.destroy();
      }
      // Access tokens are JWTs, and nobody can take them back: a new key makes them worthless.
      key = newKey();
      state.authority = provider(state.issuer, state.cookieKey);
      return answer(response, {});
    case "/control/rotate":
      key = newKey();
      state.authority = provider(state.issuer, state.cookieKey);
      return answer(response, { kid: key.jwk.kid });
    case "/control/mint":
      return answer(response, { token: signed(body.header, body.claims, body.stranger ? stranger : key) });
    case "/control/deny":
      denies = body.deny;
      return answer(response, {});
    case "/control/hold":
      release();
      released = body.hold ? new Promise((resolve) => (release = resolve)) : Promise.resolve();
      return answer(response, {});
    default:
      return answer(response, {}, 404);
  }
}

async function authorize(state, request, response) {
  if (request.url.startsWith("/control/")) return control(state, request, response);
  if (request.url.startsWith("/interaction/")) return decide(state.authority, request, response);
  if (request.url === "/token") {
    counts.held += 1;
    await released;
  }
  return state.authority.callback()(request, response);
}

const TOOLS = [
  { name: "whoami", description: "Says whom the token is about.", inputSchema: { type: "object" } },
  { name: "write", description: "Needs mcp:write.", inputSchema: { type: "object" } },
  { name: "tell_token", description: "Tells what it was shown.", inputSchema: { type: "object" } },
];

function tools(claims, token) {
  const server = new Server({ name: "protected", version: "1.0.0" }, { capabilities: { tools: {} } });
  server.setRequestHandler(ListToolsRequestSchema, async () => ({ tools: TOOLS }));
  server.setRequestHandler(CallToolRequestSchema, async ({ params }) => {
    counts.calls += 1;
    const text = params.name === "tell_token" ? `shown: ${token}` : `${params.name}: ${claims.sub} ${claims.scope}`;
    return { content: [{ type: "text", text }] };
  });
  return server;
}

async function protect(state, request, response) {
  const described = "/.well-known/oauth-protected-resource/mcp";
  if (request.url === described) {
    const servers = [state.issuer];
    return answer(response, { resource: state.mcp, authorization_servers: servers, scopes_supported: ["mcp:basic"] });
  }
  if (request.url !== "/mcp" || request.method !== "POST") return answer(response, {}, request.url === "/mcp" ? 405 : 404);
  const body = await bodyOf(request);
  const token = request.headers.authorization?.replace(/^Bearer /, "") ?? "";
  const claims = read(token, state.mcp);
  const place = `resource_metadata="${new URL(described, state.mcp)}"`;
  const challenge = (text) => ({ "WWW-Authenticate": `Bearer ${text}, ${place}` });
  if (!claims) return answer(response, { error: "invalid_token" }, 401, challenge('error="invalid_token", scope="mcp:basic"'));
  const needed = body.method === "tools/call" && body.params.name === "write" ? "mcp:write" : "mcp:basic";
  if (!claims.scope.split(" ").includes(needed)) {
    return answer(response, {}, 403, challenge(`error="insufficient_scope", scope="${needed}"`));
  }
  const server = tools(claims, token);
  const transport = new StreamableHTTPServerTransport({ sessionIdGenerator: undefined, enableJsonResponse: true });
  response.on("close", () => (transport.close(), server.close()));
  await server.connect(transport);
  return transport.handleRequest(request, response, body);
}

function listen(handle, port = 0) {
  const server = createServer((request, response) => {
    handle(request, response).catch((error) => {
      console.error(error);
      if (!response.headersSent) answer(response, {}, 500);
    });
  });
  return new Promise((resolve) => server.listen(port, "127.0.0.1", () => resolve(`http://127.0.0.1:${server.address().port}`)));
}

const state = { cookieKey: createHash("sha256").update(randomUUID()).digest("hex") };
state.issuer = await listen((request, response) => authorize(state, request, response));
state.mcp = `${await listen((request, response) => protect(state, request, response))}/mcp`;
state.authority = provider(state.issuer, state.cookieKey);
console.log(JSON.stringify({ issuer: state.issuer, mcp: state.mcp }));
process.stdin.resume().on("end", () => process.exit(0));
