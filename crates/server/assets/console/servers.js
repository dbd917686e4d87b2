// A project's servers, hosted and external, as they are now; and where its agents connect. One of them is shown by `server.js`.

import { h, brief, bytes } from './dom.js';
import { at } from './api.js';
import { Grid, badge, copyable, section } from './parts.js';
import { hostedServer, externalServer } from './server.js';

export function servers(scene, heading) {
  const [kind, name] = scene.rest;
  if (kind === 'hosted' && name) return hostedServer(scene, heading, name);
  if (kind === 'external' && name) return externalServer(scene, heading, name);

  const link = (kind) => ({ name }) => h('a', { href: scene.link('servers', kind, name) }, name);
  const hosted = new Grid('Hosted servers', [
    { title: 'Name', cell: link('hosted') },
    { title: 'State', cell: ({ status }) => badge(status) },
    { title: 'Why', cell: (server) => brief(whyHosted(server)) },
    { title: 'Up', cell: ({ uptime }) => uptime ?? '–', narrow: true },
    { title: 'Restarts', cell: ({ restart_count }) => restart_count, narrow: true },
    { title: 'CPU', cell: ({ usage }) => (usage ? `${usage.cpu_percent.toFixed(1)} %` : '–'), narrow: true },
    { title: 'Memory', cell: ({ usage }) => (usage ? `${bytes(usage.memory_bytes)} of ${bytes(usage.memory_limit_bytes)}` : '–'), narrow: true },
    { title: 'Tools', cell: ({ tool_count }) => tool_count ?? '–', narrow: true },
  ], ({ workspace_id }) => workspace_id, 'None yet: cofer server add NAME --image IMAGE');
  const external = new Grid('External servers', [
    { title: 'Name', cell: link('external') },
    { title: 'State', cell: ({ enabled, status }) => badge(enabled ? status : 'off') },
    { title: 'Why', cell: (server) => brief(whyExternal(server)) },
    { title: 'By', cell: ({ transport }) => transport, narrow: true },
    { title: 'Protocol', cell: ({ protocol_version }) => protocol_version ?? '–', narrow: true },
    { title: 'Tools', cell: ({ tool_count }) => tool_count ?? '–', narrow: true },
  ], ({ id }) => id, 'None yet: cofer server add NAME -- COMMAND, or --url ADDRESS');

  const hostedTrouble = h('div', { role: 'status' });
  const externalTrouble = h('div', { role: 'status' });
  scene.poll(async () => hosted.show(await scene.get(at`mcp/hosted`, { project: scene.project })), hostedTrouble);
  scene.poll(async () => external.show(await scene.get(scene.at`mcp-servers`)), externalTrouble);
  return [
    h('p', {}, 'Agents connect to ', copyable(new URL(`projects/${encodeURIComponent(scene.project)}/mcp`, document.baseURI.split('#')[0]).href)),
    section('Hosted', hostedTrouble, hosted.element),
    section('External', externalTrouble, external.element),
  ];
}

export function whyHosted({ reason, progress, crash_loop: loop, last_exit: exit, status }) {
  const crashes = loop?.active ? `crash loop, step ${loop.step}${loop.next_restart_at ? `, next start ${clock(loop.next_restart_at)}` : ''}` : null;
  const ended = exit && status !== 'ready' ? `ended with ${exit.signal ? `signal ${exit.signal}` : `code ${exit.code}`}${exit.oom_killed ? ', out of memory' : ''}` : null;
  return [reason, progress, crashes, ended].filter(Boolean).join('; ');
}

export function whyExternal({ enabled, last_error, login, circuit, status }) {
  if (!enabled) return 'switched off';
  const asks = login === 'required' || login === 'insufficient' ? 'somebody has to log in' : null;
  const waits = circuit.state === 'refusing' ? `refused until ${clock(circuit.retry_at)} after ${circuit.failures} failures` : null;
  return [asks, status === 'connected' ? null : last_error, waits].filter(Boolean).join('; ');
}

const clock = (moment) => (moment ? new Date(moment).toLocaleTimeString() : 'later');
