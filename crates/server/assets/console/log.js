// A server's log as it is written. Lines may come by the million: they are put on the page once a frame, and the newest are kept.
// It is followed only while the page can be seen: a browser has few connections to one address, and all its tabs share them.

import { h, fill } from './dom.js';
import { events, send } from './api.js';
import { section, trouble } from './parts.js';

const LINES_KEPT = 1000;
const LINE_CHARACTERS_MAX = 2000;
const AGAIN_AFTER_MS = 2000;

export function log(scene, path, query = {}) {
  const lines = h('pre', { class: 'log', role: 'log', 'aria-label': 'Log', 'aria-live': 'off', tabindex: '0' });
  const said = h('div', { role: 'status' });
  let waiting = [];
  let isDue = false;

  const flush = () => {
    isDue = false;
    const isAtEnd = lines.scrollHeight - lines.scrollTop - lines.clientHeight < 40;
    lines.append(...waiting.map(({ at, line }) =>
      h('div', {}, h('time', { datetime: at }, at.slice(11, 23)), ' ', line.slice(0, LINE_CHARACTERS_MAX), line.length > LINE_CHARACTERS_MAX ? '…' : '')));
    waiting = [];
    while (lines.childElementCount > LINES_KEPT) lines.firstChild.remove();
    if (isAtEnd) lines.scrollTop = lines.scrollHeight;
  };

  const follow = async (signal) => {
    const answer = await send('GET', path, { query: { ...query, tail: 200, follow: true }, accept: 'text/event-stream', signal });
    fill(lines);
    fill(said);
    for await (const { data } of events(answer)) {
      waiting.push(data);
      if (waiting.length > LINES_KEPT) waiting.shift();
      if (!isDue) requestAnimationFrame(flush);
      isDue = true;
    }
  };

  (async () => {
    while (!scene.signal.aborted) {
      const watching = new AbortController();
      const { signal } = watching;
      document.addEventListener('visibilitychange', () => document.visibilityState === 'hidden' && watching.abort(), { signal });
      try {
        if (document.visibilityState === 'visible') await follow(AbortSignal.any([scene.signal, signal]));
      } catch (error) {
        if (scene.signal.aborted) return;
        if (!signal.aborted) fill(said, trouble(error));
        if (error.status >= 400 && error.status < 500) return;
      } finally {
        watching.abort();
      }
      await scene.pause(AGAIN_AFTER_MS);
    }
  })();
  return section('Log', h('p', { class: 'quiet' }, 'Times are UTC; the newest ', LINES_KEPT, ' lines.'), said, lines);
}
