// The frame around the views: who may come in (the gate), which project is meant (the chooser), and which view the address asks for.
//
//   #/projects                          all projects
//   #/projects/NAME/servers…            a view of a project, see VIEWS
//   #/tokens                            tokens
//
// A new address ends the scene of the one before: its polling, its streams and whatever it still waits for.

import { h, fill } from './dom.js';
import { ask, at, forgetToken, hasToken, keepToken, stranger } from './api.js';
import { Scene, trouble } from './parts.js';
import { projects } from './projects.js';
import { servers } from './servers.js';
import { tools } from './tools.js';
import { calls } from './calls.js';
import { runs } from './runs.js';
import { chat } from './chat.js';
import { environments } from './environments.js';
import { secrets } from './secrets.js';
import { tokens } from './tokens.js';

const VIEWS = { servers, tools, calls, runs, chat, environments, secrets };
const titleOf = (view) => view[0].toUpperCase() + view.slice(1);
const PROJECT_AT_FIRST = 'default';

let scene = null;
let lastProject = PROJECT_AT_FIRST;
let known = null; // projects, as far as this token may see them
const stage = h('main', { id: 'stage', tabindex: '-1' });
const top = h('header', { class: 'top' });

// What the address asks for: {view, project, rest, query}; names in it are escaped.
function address() {
  const [path, query] = location.hash.replace(/^#\/?/, '').split('?');
  let parts = [];
  try {
    parts = path.split('/').filter(Boolean).map(decodeURIComponent);
  } catch {
    // Not an address of ours: as if nothing was asked for.
  }
  const asked = new URLSearchParams(query ?? '');
  if (parts[0] === 'tokens') return { view: 'tokens', rest: [], query: asked };
  if (parts[0] === 'projects' && !parts[1]) return { view: 'projects', rest: [], query: asked };
  const view = Object.hasOwn(VIEWS, parts[2] ?? '') ? parts[2] : null;
  if (parts[0] !== 'projects' || !view || /^\.\.?$/.test(parts[1])) return null;
  return { view, project: parts[1], rest: parts.slice(3), query: asked };
}

function show() {
  scene?.leave();
  if (!hasToken()) return gate();
  const asked = address();
  if (!asked) {
    const name = known?.length && !known.some(({ name }) => name === lastProject) ? known[0].name : lastProject;
    return location.replace(`#/projects/${encodeURIComponent(name)}/servers`);
  }
  lastProject = asked.project ?? lastProject;
  scene = new Scene(asked.project, asked.rest, asked.query);
  frame(asked.view);
  const draw = { ...VIEWS, projects, tokens }[asked.view];
  const heading = h('h1', {}, titleOf(asked.view));
  fill(stage, heading, scene.failed, scene.stale);
  document.title = `${titleOf(asked.view)} · ${asked.project ?? 'Cofer'}`;
  stage.focus({ preventScroll: true });
  try {
    stage.append(...[draw(scene, heading)].flat());
  } catch (error) {
    fill(scene.failed, trouble(error));
  }
}

function frame(view) {
  const link = (name, href) => h('a', { href, 'aria-current': name === view ? 'page' : null }, titleOf(name));
  const inProject = (name) => link(name, `#/projects/${encodeURIComponent(lastProject)}/${name}`);
  fill(top,
    h('a', { class: 'brand', href: '#/' }, 'Cofer'), chooser(view),
    h('nav', { 'aria-label': 'Views' }, Object.keys(VIEWS).map(inProject), link('projects', '#/projects'), link('tokens', '#/tokens')),
    h('button', { type: 'button', class: 'link', onclick: () => forgetToken(null) }, 'Forget token'));
  if (stage.isConnected) return;
  const skip = h('button', { type: 'button', class: 'skip', onclick: () => stage.focus() }, 'To the content');
  fill(document.body, skip, top, stage);
}

// A list of projects for who may see it; else a field for the name of one.
function chooser(view) {
  const go = (event) => {
    const name = event.target.value.trim();
    if (name) location.hash = `#/projects/${encodeURIComponent(name)}/${Object.hasOwn(VIEWS, view) ? view : 'servers'}`;
  };
  const names = known?.map(({ name }) => name) ?? [];
  if (!names.length) return h('input', { 'aria-label': 'Project', value: lastProject, onchange: go, size: 12 });
  if (!names.includes(lastProject)) names.unshift(lastProject);
  return h('select', { 'aria-label': 'Project', onchange: go }, names.map((name) => h('option', { value: name, selected: name === lastProject }, name)));
}

// Asks for a token, tries it, and keeps it if Cofer knows it. One that may not list projects is as good as any.
function gate(why) {
  const said = h('div', { role: 'alert' }, why ? h('p', { class: 'note bad' }, why) : null);
  const enter = async (event) => {
    event.preventDefault();
    const token = new FormData(event.target).get('token').trim();
    if (!/^[\x21-\x7e]+$/.test(token)) return fill(said, h('p', { class: 'note bad' }, 'A token has letters, digits and signs, and no spaces.'));
    keepToken(token);
    if (await learnProjects(said)) show();
  };
  fill(document.body, h('main', { class: 'gate' },
    h('h1', {}, 'Cofer'), said,
    h('form', { onsubmit: enter },
      h('label', { class: 'field' }, h('span', {}, 'Token'), h('input', { name: 'token', type: 'password', autocomplete: 'off', required: true })),
      h('button', { class: 'main' }, 'Enter')),
    h('p', { class: 'quiet' }, 'The first one is in ', h('code', {}, 'admin.token'), ' of the data directory; ', h('code', {}, 'cofer token create NAME'),
      ' makes more. It is kept in this tab until you close it.')));
  document.querySelector('input').focus();
}

// Whether the token is good.
async function learnProjects(place) {
  try {
    known = await ask('GET', at`projects`);
  } catch (error) {
    known = null;
    if (error.status === 401) return false; // the gate says so already
    if (error.status !== 403) return fill(place, trouble(error)), false;
  }
  return true;
}

stranger.addEventListener('stranger', ({ detail }) => {
  scene?.leave();
  known = null;
  gate(detail);
});
window.addEventListener('hashchange', show);
document.addEventListener('projects', () => learnProjects(h('div')).then(() => scene && frame(address()?.view)));
if (hasToken()) learnProjects(document.body).then((isGood) => isGood && show());
else gate();
