// Coding environments of all repositories that are known here: what was done in each, what it changed, how it is taken over.

import { h, brief, cut, fill, renew, when } from './dom.js';
import { at } from './api.js';
import { Grid, badge, copyable, facts, section } from './parts.js';

const LINES_AT_FIRST = 2000;

export function environments(scene, heading) {
  if (scene.rest[0]) return oneEnvironment(scene, heading, scene.rest[0]);
  const grid = new Grid('Environments', [
    { title: 'Id', cell: ({ id, repository }) => h('a', { href: `${scene.link('environments', id)}?${new URLSearchParams({ repository })}` }, id) },
    { title: 'State', cell: ({ state }) => badge(state), narrow: true },
    { title: 'Title', cell: ({ title }) => title },
    { title: 'Repository', cell: ({ repository }) => repository },
    { title: 'Last command', cell: ({ last_command: last }) => brief(last?.command) },
    { title: 'Changed', cell: ({ updated_at }) => when(updated_at), narrow: true },
  ], ({ id, repository }) => `${id}/${repository}`, 'None yet. In a git repository: `cofer init`, then `cofer env create TITLE`.');
  scene.poll(async () => grid.show(await scene.get(at`environments`)));
  return grid.element;
}

function oneEnvironment(scene, heading, id) {
  fill(heading, id);
  const query = { repository: scene.query.get('repository') };
  const base = at`environments/${id}`;
  const [log, diff, commands, place] = [h('div'), h('div'), h('div'), h('div', {}, facts([]))];
  let seen = null;
  scene.poll(async () => {
    const one = await scene.get(base, query);
    renew(place.firstChild, factsOf(one));
    if (!commands.firstChild) fill(commands, takeover(one));
    if (seen === one.updated_at) return;
    const [done, changed] = await Promise.all([scene.get(`${base}/log`, query), scene.get(`${base}/diff`, query)]);
    fill(log, cut(done.log, 20_000), leftOut(done));
    fill(diff, coloured(changed.diff), leftOut(changed));
    seen = one.updated_at;
  });
  return [place, commands, section('Changes', diff), section('Log', log)];
}

function factsOf({ title, state, repository, remote_ref, base, provider, image, created_at, updated_at, last_command: last }) {
  return facts([['Title', title], ['State', badge(state)], ['Repository', repository], ['Branch', remote_ref], ['From', base], ['Image', `${image} (${provider})`],
    ['Made', when(created_at)], ['Changed', when(updated_at)], ['Last command', last && `${brief(last.command)} → ${last.exit_code ?? '–'}`]]);
}

// Somebody will run these: they are Cofer's own words, and never made of what stands in an address.
function takeover({ checkout_command, merge_command, apply_command }) {
  const commands = { 'check it out': checkout_command, 'merge it': merge_command, 'apply it': apply_command };
  return facts(Object.entries(commands).map(([what, command]) => [`To ${what}, in its repository`, copyable(command)]));
}

const leftOut = ({ bytes_left_out: count }) => (count ? h('p', { class: 'quiet' }, `${count} bytes left out`) : null);

function coloured(diff) {
  let isBody = false;
  const kind = (line) => {
    if (/^(diff |@@)/.test(line)) isBody = line[0] === '@';
    return isBody ? { '+': 'added', '-': 'removed', '@': 'quiet' }[line[0]] : 'quiet';
  };
  const lines = diff.split('\n').map((line) => h('span', { class: kind(line) }, `${line}\n`));
  const pre = h('pre', { tabindex: '0', 'aria-label': 'Changes' }, lines.slice(0, LINES_AT_FIRST));
  const more = h('button', { class: 'link', type: 'button', onclick: () => (fill(pre, lines), more.remove()) }, `all ${lines.length} lines`);
  return [pre, lines.length > LINES_AT_FIRST && more];
}
