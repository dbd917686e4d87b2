// One server: what is so, what can be done about it, what it wrote and what happened to it.

import { h, brief, bytes, cut, fill, json, renew, when } from './dom.js';
import { ask, at, post } from './api.js';
import { Grid, action, badge, copyable, facts, pager, section } from './parts.js';
import { log } from './log.js';
import { whyExternal, whyHosted } from './servers.js';

export function hostedServer(scene, heading, name) {
  fill(heading, name);
  const query = { project: scene.project };
  let shown = facts([]);
  const place = h('div', {}, shown);
  const past = h('div');
  const draw = (server) => {
    shown = renew(shown, hostedFacts(server));
    const state = `${server.status} ${server.restart_count} ${server.last_crash}`;
    if (past.dataset.state === state) return;
    past.dataset.state = state; // something has happened
    fill(past, happened(scene, name, query));
  };
  scene.poll(async () => draw(await scene.get(at`mcp/hosted/${name}`, query)));
  const does = (label, verb, extra) => action(scene, label, async () => {
    draw(await post(at`mcp/hosted/${name}/${verb}`, undefined, { query }));
  }, extra);
  return [
    h('div', { class: 'row' },
      does('Restart', 'restart', { question: `Restart ${name}? Calls that are under way fail.` }), does('Start', 'start'),
      does('Stop', 'stop', { question: `Stop ${name}? It stays stopped until somebody starts it.` })),
    place, log(scene, at`mcp/hosted/${name}/logs`, query), past,
  ];
}

function hostedFacts(server) {
  const { usage, last_exit: exit, resource_limits: limits } = server;
  const meter = (value, max, text) => h('span', {}, h('meter', { value, min: 0, max, 'aria-hidden': 'true' }), ` ${text}`);
  return facts([
    ['State', badge(server.status)],
    ['Why', whyHosted(server)],
    ['Up', server.uptime],
    ['Restarts', `${server.restart_count}`],
    ['CPU', usage && meter(usage.cpu_percent, 100 * Number(limits.cpu) || 100, `${usage.cpu_percent.toFixed(1)} %, limit ${limits.cpu}`)],
    ['Memory', usage && meter(usage.memory_bytes, usage.memory_limit_bytes, `${bytes(usage.memory_bytes)} of ${bytes(usage.memory_limit_bytes)}`)],
    ['Disk', usage && `${bytes(usage.disk_bytes)}, limit ${limits.disk}`],
    ['Processes', usage && `${usage.pids} of ${limits.pids}`],
    ['Image', h('code', {}, server.image)],
    ['Command', server.cmd && h('code', {}, server.cmd.join(' '))],
    ['Isolation', [server.isolation, server.provider].filter(Boolean).join(', by ')],
    ['Network', server.network],
    ['Endpoints', server.endpoints.length ? server.endpoints.map(({ url }) => h('div', {}, copyable(url))) : null],
    ['Tools', server.tool_count === null ? null : `${server.tool_count}`],
    ['Says it is', server.server_info && brief([server.server_info.name, server.server_info.version].filter(Boolean).join(' '))],
    ['Protocol', server.protocol_version],
    ['Restart policy', server.restart_policy],
    ['Variables', server.environment.length ? server.environment.join(', ') : null],
    ['Volumes', server.volumes.length ? server.volumes.join(', ') : null],
    ['Last end', exit && h('div', {}, when(exit.at), ` code ${exit.code ?? '–'}, signal ${exit.signal ?? '–'}${exit.oom_killed ? ', out of memory' : ''}`,
      exit.stderr_tail ? cut(exit.stderr_tail, 600) : null)],
    ['Since', when(server.created_at)],
  ]);
}

function happened(scene, name, query) {
  const all = [];
  const grid = new Grid('Events', [
    { title: 'When', cell: ({ at }) => when(at), narrow: true },
    { title: 'What', cell: ({ kind }) => kind, narrow: true },
    { title: 'In words', cell: ({ message, details }) => [message, Object.keys(details ?? {}).length ? h('details', {}, h('summary', {}, 'details'), json(details)) : null] },
  ], (event) => event.key, 'Nothing has happened yet.');
  const load = async (cursor) => {
    const { items, next } = await scene.page(at`mcp/hosted/${name}/events`, { ...query, limit: 50, cursor });
    items.forEach((event) => all.push({ ...event, key: all.length }));
    grid.show(all);
    return next;
  };
  return section('Events', grid.element, pager(scene, load));
}

export function externalServer(scene, heading, name) {
  fill(heading, name);
  const base = scene.at`mcp-servers/${name}`;
  let shown = facts([]);
  const place = h('div', {}, shown);
  const changes = h('div', { class: 'row' });
  const login = h('div', { role: 'status' });
  const draw = (server) => {
    shown = renew(shown, externalFacts(server));
    if (changes.dataset.state === String(server.enabled)) return;
    changes.dataset.state = server.enabled;
    fill(changes, action(scene, 'Connect now and list again', refresh),
      action(scene, server.enabled ? 'Switch off' : 'Switch on', async () => draw(await ask('PATCH', base, { body: { enabled: !server.enabled } }))),
      server.transport === 'stdio' ? null : action(scene, 'Log in', logIn));
  };
  const offered = toolSwitches(scene, name);
  const refresh = async () => {
    await post(`${base}/refresh`);
    await offered.load();
  };
  const logIn = async () => {
    const { authorize_url: url } = await post(`${base}/login`);
    fill(login, h('p', { class: 'note' }, 'Go on at ', h('a', { href: url, target: '_blank', rel: 'noopener noreferrer' }, brief(url, 80))));
  };
  scene.poll(async () => draw(await scene.get(base)));
  return [
    changes, login, place, section('Tools', offered.element), log(scene, `${base}/logs`),
  ];
}

function externalFacts(server) {
  const { config, circuit } = server;
  return facts([
    ['State', badge(server.enabled ? server.status : 'off')],
    ['Why', whyExternal(server)],
    ['Last error', server.last_error],
    ['Breaker', h('span', {}, badge(circuit.state), circuit.failures ? ` ${circuit.failures} failures` : null, circuit.retry_at ? [', again at ', when(circuit.retry_at)] : null)],
    ['Login', server.login],
    ['By', server.transport],
    ['Command', config.command && h('code', {}, [config.command, ...(config.args ?? [])].join(' '))],
    ['Address', config.url && h('code', {}, config.url)],
    ['Variables', Object.keys(config.env ?? {}).join(', ')],
    ['Headers', Object.keys(config.headers ?? {}).join(', ')],
    ['Description', server.description],
    ['Protocol', server.protocol_version],
    ['Tools', server.tool_count === null ? null : `${server.tool_count}`],
    ['Since', when(server.created_at)],
  ]);
}

// Each tool can be switched off by itself.
function toolSwitches(scene, server) {
  const grid = new Grid('Tools of this server', [
    { title: 'Name', cell: ({ name }) => name },
    { title: 'Description', cell: ({ description }) => brief(description) },
    { title: '', narrow: true, cell: ({ name, enabled }) => [badge(enabled ? 'on' : 'off'), ' ', action(scene, enabled ? 'Switch off' : 'Switch on', async () => {
      await ask('PATCH', scene.at`mcp-servers/${server}/tools/${name}`, { body: { enabled: !enabled } });
      await load();
    }, { kind: 'link' })] },
  ], ({ name }) => name, 'None is known yet; connecting lists them.');
  const load = async () => grid.show(await scene.get(scene.at`mcp-servers/${server}/tools`));
  scene.attempt(load);
  return { element: grid.element, load };
}
