// How anything gets onto the page. Whatever a server, a tool or a model said is text here and can become nothing else:
// elements are made by `h`, strings by the browser's own text nodes, and no markup is ever parsed.

const LINK = /^(#|https?:\/\/)/;
const CHARACTERS_AT_FIRST = 2000;

// An element: h('a', {href: '#/x', onclick: act}, 'text', [more, null]). What is null, undefined or false is left out.
export function h(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === 'function') element.addEventListener(name.slice(2), value);
    else if (name !== 'href' || LINK.test(value)) element.setAttribute(name, value === true ? '' : value);
  }
  return fill(element, ...children);
}

export function fill(element, ...children) {
  element.replaceChildren(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

// Puts `fresh` where `shown` is, unless it looks the same: then whatever a person selected or focused there stays.
export function renew(shown, fresh) {
  if (shown.isEqualNode(fresh)) return shown;
  shown.replaceWith(fresh);
  return fresh;
}

// A text of any length, with a way to see all of it.
export function cut(text, charactersMax = CHARACTERS_AT_FIRST) {
  const all = String(text);
  const pre = h('pre', {}, all.slice(0, charactersMax));
  const hidden = all.length - charactersMax;
  if (hidden <= 0) return pre;
  const more = h('button', { class: 'link', type: 'button', onclick: () => (pre.replaceChildren(all), more.remove()) }, `show ${hidden} more characters`);
  return h('div', {}, pre, more);
}

// The same on one line, for tables.
export function brief(text, charactersMax = 160) {
  const all = String(text ?? '');
  return all.length > charactersMax ? `${all.slice(0, charactersMax)}…` : all;
}

export function json(value) {
  return cut(typeof value === 'string' ? value : JSON.stringify(value, null, 2) ?? 'nothing');
}

// A moment in the reader's own time: today by the clock, else by the day.
export function when(moment) {
  if (!moment) return h('span', { class: 'quiet' }, '–');
  const at = new Date(moment);
  const pad = (number) => String(number).padStart(2, '0');
  const clock = `${pad(at.getHours())}:${pad(at.getMinutes())}`;
  const isToday = at.toDateString() === new Date().toDateString();
  const day = `${at.getFullYear()}-${pad(at.getMonth() + 1)}-${pad(at.getDate())}`;
  return h('time', { datetime: moment, title: moment }, isToday ? `${clock}:${pad(at.getSeconds())}` : `${day} ${clock}`);
}

export function bytes(count) {
  if (count === null || count === undefined) return '–';
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let unit = 0;
  for (; count >= 1024 && unit < units.length - 1; unit += 1) count /= 1024;
  return `${unit && count < 100 ? count.toFixed(1) : Math.round(count)} ${units[unit]}`;
}

export function took(ms) {
  if (ms === null || ms === undefined) return '–';
  return ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(ms < 10_000 ? 2 : 1)} s`;
}
