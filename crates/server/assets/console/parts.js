// What several views are made of: the scene that a view plays in, tables that change without jumping, badges, buttons, fields.

import { h, fill, renew } from './dom.js';
import { ask, at, send } from './api.js';

const POLLED_EVERY_MS = 2000;
const ANSWERED_WITHIN_MS = 30_000;

const MOODS = {
  good: ['ready', 'connected', 'completed', 'admitting', 'on'],
  busy: ['creating', 'restarting', 'connecting', 'stopping', 'running', 'probing', 'limited', 'cancelled', 'waiting'],
  bad: ['error', 'unresponsive', 'unavailable', 'failed', 'timeout', 'refusing'],
};

// A view's time on the page. When it is left, its requests are given up and its polling ends.
export class Scene {
  constructor(project, rest, query) {
    Object.assign(this, { project, rest, query });
    this.leaving = new AbortController();
    this.signal = this.leaving.signal;
    this.failed = h('div', { role: 'alert', class: 'failed' }); // of what a person did
    this.stale = h('div', { role: 'status' }); // of what is asked again and again
  }

  leave() {
    this.leaving.abort();
  }

  // An address of the API below this project: scene.at`tools/call`.
  at(parts, ...names) {
    return at(['projects/', `/${parts[0]}`, ...parts.slice(1)], this.project, ...names);
  }

  // An address of this page below this project.
  link(...parts) {
    return `#/${['projects', this.project, ...parts].map(encodeURIComponent).join('/')}`;
  }

  // For requests that have no deadline of their own.
  patience() {
    return AbortSignal.any([this.signal, AbortSignal.timeout(ANSWERED_WITHIN_MS)]);
  }

  get(path, query) {
    return ask('GET', path, { query, signal: this.patience() });
  }

  // A page of a list, and where the next one begins.
  async page(path, query) {
    const answer = await send('GET', path, { query, signal: this.patience() });
    return { items: await answer.json(), next: answer.headers.get('X-Next-Cursor') };
  }

  // Does what a person asked for, and says so if it went wrong.
  async attempt(action, place = this.failed) {
    try {
      fill(place);
      return await action();
    } catch (error) {
      if (error.name !== 'AbortError') fill(place, trouble(error));
      return undefined;
    }
  }

  // Asks now and every two seconds, while the page can be seen, until the view is left or `look` answers false.
  async poll(look, place = this.stale) {
    while (!this.signal.aborted) {
      if (document.visibilityState === 'visible') {
        try {
          if ((await look()) === false) return;
          if (place.firstChild) fill(place);
        } catch (error) {
          if (error.name === 'AbortError' || this.signal.aborted) return;
          const fresh = h('div', {}, trouble(error));
          if (!place.firstChild?.isEqualNode(fresh)) fill(place, fresh);
          if (error.status === 403 || error.status === 404) return; // asking again will not help
        }
      }
      await this.pause(POLLED_EVERY_MS);
    }
  }

  pause(ms) {
    return new Promise((resume) => {
      const end = () => {
        clearTimeout(timer);
        this.signal.removeEventListener('abort', end);
        resume();
      };
      const timer = setTimeout(end, ms);
      this.signal.addEventListener('abort', end);
    });
  }
}

// An error in words, with what leads to it in the log. What a token may not see is no failure, and looks calmer.
export function trouble(error) {
  return h('p', { class: error.status === 403 ? 'note' : 'note bad' },
    error.status === 403 ? 'Not for this token to see or do: ' : null, error.message,
    error.traceId ? h('small', {}, ' trace ', h('code', {}, error.traceId)) : null);
}

export function badge(state) {
  const mood = Object.keys(MOODS).find((mood) => MOODS[mood].includes(state)) ?? 'quiet';
  return h('span', { class: `badge ${mood}` }, state);
}

// A table whose rows are known by a key: only cells that look different are replaced. Columns are {title, cell, narrow?}.
export class Grid {
  constructor(label, columns, keyOf, nothing) {
    Object.assign(this, { columns, keyOf, nothing });
    this.rows = new Map();
    const heads = columns.map(({ title }) => h('th', { role: 'columnheader', scope: 'col' }, title));
    this.body = h('tbody', { role: 'rowgroup' });
    this.empty = h('p', { class: 'quiet', hidden: true }, nothing);
    this.table = h('table', { role: 'table', 'aria-label': label, hidden: true }, h('thead', { role: 'rowgroup' }, h('tr', { role: 'row' }, heads)), this.body);
    this.element = h('div', { class: 'grid' }, this.table, this.empty);
  }

  show(items) {
    const before = this.rows;
    this.rows = new Map();
    items.forEach((item, place) => {
      const key = this.keyOf(item);
      const row = before.get(key) ?? h('tr', { role: 'row' }, this.columns.map(() => h('td')));
      before.delete(key);
      this.rows.set(key, row);
      this.columns.forEach(({ title, cell, narrow }, at) =>
        renew(row.children[at], h('td', { role: 'cell', 'data-title': title, class: narrow ? 'narrow' : null }, h('div', {}, cell(item)))));
      if (this.body.children[place] !== row) this.body.insertBefore(row, this.body.children[place] ?? null);
    });
    before.forEach((row) => row.remove());
    this.table.hidden = items.length === 0;
    this.empty.hidden = items.length > 0;
  }
}

// A button that cannot be pressed twice at once. `question` is asked first.
export function action(scene, label, act, { question, kind } = {}) {
  const button = h('button', { type: 'button', class: kind, onclick: async () => {
    if (question && !window.confirm(question)) return;
    button.disabled = true; // which takes the focus from it
    await scene.attempt(act);
    button.disabled = false;
    if (document.activeElement === document.body && button.isConnected) button.focus({ preventScroll: true });
  } }, label);
  return button;
}

// A form whose submission is ours; `act` gets its fields.
export function form(scene, attributes, act, ...children) {
  return h('form', { ...attributes, onsubmit: async (event) => {
    event.preventDefault();
    const button = event.target.querySelector('button:not([type])');
    if (button) button.disabled = true;
    await scene.attempt(() => act(new FormData(event.target), event.target));
    if (button) button.disabled = false;
  } }, children);
}

export function field(label, control, hint) {
  return h('label', { class: 'field' }, h('span', {}, label), control, hint ? h('small', {}, hint) : null);
}

export function options(values, chosen) {
  return values.map((value) => h('option', { value, selected: value === chosen }, value === '' ? 'any' : value));
}

// Names and what they are: [name, node or text]. What is null is left out.
export function facts(pairs) {
  return h('dl', { class: 'facts' }, pairs.filter(([, value]) => value !== null && value !== undefined && value !== '').map(([name, value]) =>
    h('div', {}, h('dt', {}, name), h('dd', {}, value))));
}

export function copyable(text) {
  const said = h('span', { role: 'status' });
  const copy = async () => {
    const done = await navigator.clipboard?.writeText(text).then(() => true, () => false);
    fill(said, done ? ' copied' : ' select it and copy by hand');
  };
  return h('span', { class: 'copyable' }, h('code', {}, text), ' ', h('button', { type: 'button', class: 'link', onclick: copy }, 'copy'), said);
}

export function section(title, ...children) {
  return h('section', {}, h('h2', {}, title), children);
}

// A list that goes on: `load(cursor)` shows a page and answers where the next one begins.
export function pager(scene, load) {
  let cursor = null;
  const more = action(scene, 'More', async () => turn());
  const turn = async () => {
    cursor = await load(cursor);
    more.hidden = !cursor;
  };
  more.hidden = true;
  scene.attempt(turn);
  return more;
}
