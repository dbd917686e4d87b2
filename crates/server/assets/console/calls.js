// Every call that was made, by any door, newest first; what was given and answered is shown when asked for.

import { h, fill, json, took, when } from './dom.js';
import { badge, facts, field, options, pager } from './parts.js';
import { mcpResult } from './content.js';

const STATUSES = ['', 'completed', 'error', 'timeout', 'cancelled'];
const FILTERS = ['tool', 'server', 'status', 'run_id', 'since', 'until'];
const ON_A_PAGE = 50;

export function calls(scene) {
  const chosen = Object.fromEntries(FILTERS.map((name) => [name, scene.query.get(name) ?? '']));
  const text = (name, label) => field(label, h('input', { name, value: chosen[name], autocomplete: 'off' }));
  const time = (name, label) => field(label, h('input', { name, type: 'datetime-local', value: localTime(chosen[name]) }));
  const filter = (event) => {
    event.preventDefault();
    const asked = new URLSearchParams();
    for (const [name, value] of new FormData(event.target)) {
      if (value.trim()) asked.set(name, name === 'since' || name === 'until' ? new Date(value).toISOString() : value.trim());
    }
    const address = `${scene.link('calls')}?${asked}`;
    if (location.hash === address) window.dispatchEvent(new Event('hashchange')); // the same again: look anew
    else location.hash = address;
  };
  return [
    h('form', { class: 'row', onsubmit: filter },
      text('tool', 'Tool'), text('server', 'Server'), field('Status', h('select', { name: 'status' }, options(STATUSES, chosen.status))),
      text('run_id', 'Run'), time('since', 'Since'), time('until', 'Until'), h('button', {}, 'Look')),
    callList(scene, scene.at`tool-calls`, chosen),
  ];
}

// The calls at an address, page by page.
export function callList(scene, path, query = {}) {
  const list = h('div', { class: 'list' });
  const empty = h('p', { class: 'quiet', hidden: true }, 'No call matches.');
  const load = async (cursor) => {
    const { items, next } = await scene.page(path, { ...query, limit: ON_A_PAGE, cursor });
    list.append(...items.map((call) => oneCall(scene, call)));
    empty.hidden = list.childElementCount > 0;
    return next;
  };
  return h('div', {}, list, empty, pager(scene, load));
}

function oneCall(scene, call) {
  const inside = h('div');
  const open = ({ target }) => {
    if (target.open && !inside.firstChild) fill(inside, detail(scene, call));
  };
  return h('details', { class: 'call', ontoggle: open },
    h('summary', {}, when(call.created_at), ' ', badge(call.status), ' ', h('b', {}, call.tool_name), ' ',
      h('span', { class: 'quiet' }, [call.server, took(call.duration_ms), call.caller].filter(Boolean).join(' · '))), inside);
}

function detail(scene, call) {
  const run = call.run_id && h('a', { href: scene.link('runs', call.run_id) }, call.run_id);
  return [
    facts([['Run', run], ['Step', call.step_number === null ? null : `${call.step_number}`], ['Trace', call.trace_id && h('code', {}, call.trace_id)]]),
    h('h3', {}, 'Given'), json(call.input),
    h('h3', {}, 'Answered'), Array.isArray(call.output?.content) ? mcpResult(call.output) : json(call.output),
  ];
}

// What a `datetime-local` field takes, in the reader's own time.
function localTime(moment) {
  const at = new Date(moment);
  if (Number.isNaN(at.getTime())) return '';
  return new Date(at.getTime() - at.getTimezoneOffset() * 60_000).toISOString().slice(0, 16);
}
