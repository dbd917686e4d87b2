// Conversations with a model: which there were, what was said in one, what it called, and what it waits for.

import { h, brief, fill, renew, when } from './dom.js';
import { post } from './api.js';
import { Grid, action, badge, facts, section } from './parts.js';
import { blocks } from './content.js';
import { callList } from './calls.js';

const ON_A_PAGE = 50;
const SPEAKERS = { user: 'You', assistant: 'Model', tool: 'Tools' };

export const tokensOf = ({ input_tokens: read, output_tokens: written, cache_read_input_tokens: cached }) => `${read + (cached ?? 0)} in, ${written} out`;

export function runs(scene, heading) {
  if (scene.rest[0]) return oneRun(scene, heading, scene.rest[0]);
  const path = scene.at`agent-runs`;
  const known = new Map(); // newest first: ids are made of the time
  let cursor = null;
  const grid = new Grid('Runs', [
    { title: 'Begun', cell: ({ id, created_at }) => h('a', { href: scene.link('runs', id) }, when(created_at)), narrow: true },
    { title: 'State', cell: ({ status, approvals }) => [badge(status), approvals.length ? [' ', badge('waiting')] : null], narrow: true },
    { title: 'Reason', cell: ({ reason, error }) => brief(error ?? reason ?? '') },
    { title: 'Model', cell: ({ model }) => brief(model, 40) },
    { title: 'Steps', cell: ({ steps }) => steps, narrow: true },
    { title: 'Tokens', cell: ({ usage }) => tokensOf(usage), narrow: true },
    { title: 'By', cell: ({ caller }) => brief(caller, 40), narrow: true },
  ], ({ id }) => id, 'Nothing has been said yet.');
  const keep = (items) => {
    items.forEach((run) => known.set(run.id, run));
    grid.show([...known.values()].sort((one, other) => (one.id < other.id ? 1 : -1)));
  };
  const more = action(scene, 'More', async () => {
    const { items, next } = await scene.page(path, { limit: ON_A_PAGE, cursor });
    [cursor, more.hidden] = [next, !next];
    keep(items);
  });
  more.hidden = true;
  scene.poll(async () => {
    const { items, next } = await scene.page(path, { limit: ON_A_PAGE });
    if (known.size === 0) [cursor, more.hidden] = [next, !next];
    keep(items);
  });
  return [grid.element, more];
}

function oneRun(scene, heading, id) {
  fill(heading, 'Run');
  const base = scene.at`agent-runs/${id}`;
  const said = h('div', { class: 'talk' });
  const asked = h('div', { 'aria-live': 'assertive' });
  let shown = facts([]);
  const place = h('div', {}, shown);
  let written = null;
  const cancel = action(scene, 'Cancel', () => post(`${base}/cancel`), { question: 'End this run?' });
  scene.poll(async () => {
    const run = await scene.get(base);
    shown = renew(shown, runFacts(run));
    cancel.hidden = run.status !== 'running';
    approvals(scene, asked, base, run.approvals);
    if (written !== run.updated_at) await messages(base, said, scene);
    written = run.updated_at;
    return run.status === 'running';
  });
  return [
    h('div', { class: 'row' }, cancel, h('a', { href: scene.link('chat', id) }, 'Go on with it')),
    place, asked, section('Said', said), section('Tool calls', callList(scene, `${base}/tool-calls`)),
  ];
}

function runFacts(run) {
  return facts([
    ['Id', h('code', {}, run.id)], ['State', badge(run.status)], ['Reason', run.reason], ['Error', run.error], ['Model', run.model], ['System', brief(run.system ?? '', 600)],
    ['Steps', `${run.steps}`], ['Tokens', tokensOf(run.usage)], ['By', run.caller], ['Begun', when(run.created_at)], ['Last', when(run.updated_at)],
    ['Trace', run.trace_id && h('code', {}, run.trace_id)],
  ]);
}

// What was said so far; what is on the page already stays as it is.
export async function messages(base, said, scene) {
  const there = new Set([...said.children].map(({ dataset }) => dataset.id));
  let cursor = null;
  do {
    const { items, next } = await scene.page(`${base}/messages`, { limit: 200, cursor });
    said.append(...items.filter(({ id }) => !there.has(id)).map(({ id, role, content, created_at }) => utterance(SPEAKERS[role] ?? role, blocks(content), id, when(created_at))));
    cursor = next;
  } while (cursor);
}

export function utterance(who, content, id, time) {
  return h('article', { class: `said ${who.toLowerCase()}`, 'data-id': id }, h('h3', {}, who, ' ', time), content);
}

// Calls that wait for a yes or a no. `place` shows one card for each.
export function approvals(scene, place, base, waiting) {
  const wanted = new Set(waiting.map(({ approval_id: id }) => id));
  for (const card of [...place.children]) if (!wanted.has(card.dataset.id)) card.remove();
  const there = new Set([...place.children].map(({ dataset }) => dataset.id));
  for (const { approval_id: id, name, input } of waiting.filter(({ approval_id }) => !there.has(approval_id))) place.append(approval(scene, base, id, name, input));
}

export function approval(scene, base, id, name, input) {
  const answer = (label, allow, kind) => action(scene, label, async () => {
    await post(`${base}/approvals`, { approval_id: id, allow });
    card.remove();
  }, { kind });
  const card = h('div', { class: 'note ask', 'data-id': id }, h('p', {}, 'May ', h('b', {}, name), ' be called with this?'), blocks(JSON.stringify(input, null, 2)),
    h('div', { class: 'row' }, answer('Allow', true, 'main'), answer('Refuse', false)));
  return card;
}
