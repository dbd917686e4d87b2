// The one door to Cofer's API. It knows the token, which lives in this tab's session storage and nowhere else, sends it with each
// request, and forgets it when Cofer does not know it (401) or when asked to. A refusal keeps what the envelope said.

const KEPT_AS = 'cofer.token';
const EVENT_CHARACTERS_MAX = 32 << 20;

export const stranger = new EventTarget(); // says `stranger` when a token is needed

export const hasToken = () => sessionStorage.getItem(KEPT_AS) !== null;
export const keepToken = (token) => sessionStorage.setItem(KEPT_AS, token);

export function forgetToken(why) {
  sessionStorage.removeItem(KEPT_AS);
  stranger.dispatchEvent(new CustomEvent('stranger', { detail: why }));
}

export class Refusal extends Error {
  constructor(status, envelope) {
    super(envelope?.message ?? `Cofer answered ${status}`);
    this.status = status;
    this.traceId = envelope?.trace_id;
  }
}

// An address, with what is put into it escaped: at`tokens/${id}`. A browser would take dots for a way up.
export function at(parts, ...names) {
  const escaped = names.map((name) => {
    if (['', '.', '..'].includes(name)) throw new Refusal(404, { message: `\`${name}\` is no name` });
    return encodeURIComponent(name);
  });
  return `api/v1/${String.raw({ raw: parts }, ...escaped)}`;
}

// An answer of Cofer's that is not an error. `query` leaves out what is empty.
export async function send(method, path, { query, body, accept, signal } = {}) {
  const asked = new URLSearchParams(Object.entries(query ?? {}).filter(([, value]) => value !== undefined && value !== null && value !== ''));
  const headers = { Accept: accept ?? 'application/json' };
  const token = sessionStorage.getItem(KEPT_AS);
  if (token) headers.Authorization = `Bearer ${token}`;
  if (body !== undefined) headers['Content-Type'] = 'application/json';
  let answer;
  try {
    answer = await fetch(asked.size ? `${path}?${asked}` : path, {
      method, headers, signal, cache: 'no-store', credentials: 'omit', redirect: 'error',
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch (error) {
    if (error.name === 'AbortError') throw error;
    throw new Refusal(0, { message: 'Cofer does not answer; is it running?' });
  }
  if (answer.ok) return answer;
  const refusal = new Refusal(answer.status, (await answer.json().catch(() => null))?.error);
  if (answer.status === 401) forgetToken(token ? 'Cofer does not know this token, or no longer.' : null);
  throw refusal;
}

export async function ask(method, path, options) {
  const answer = await send(method, path, options);
  return answer.status === 204 ? null : answer.json();
}

export const post = (path, body, options) => ask('POST', path, { body, ...options });

// Server-sent events as they come: {name, data}.
export async function* events(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let waiting = '';
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      waiting += value.replaceAll('\r', '');
      const complete = waiting.split('\n\n');
      waiting = complete.pop();
      if (waiting.length > EVENT_CHARACTERS_MAX) throw new Refusal(0, { message: 'an event of the stream is too long' });
      for (const block of complete) yield* parsed(block);
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

function* parsed(block) {
  let name = 'message';
  const data = [];
  for (const line of block.split('\n')) {
    if (line.startsWith('event:')) name = line.slice(6).trim();
    if (line.startsWith('data:')) data.push(line.slice(5).replace(/^ /, ''));
  }
  if (data.length) yield { name, data: JSON.parse(data.join('\n')) };
}
