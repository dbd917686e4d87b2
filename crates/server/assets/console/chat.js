// A conversation with the model, as it happens. The run does not depend on this page: who leaves finds it among the runs, and only `Stop` ends it.

import { h, cut, fill, json, took } from './dom.js';
import { events, post, send } from './api.js';
import { badge, trouble } from './parts.js';
import { toolCall, toolResult } from './content.js';
import { approval, messages, tokensOf, utterance } from './runs.js';

export function chat(scene) {
  let run = scene.rest[0] ?? null;
  const base = () => scene.at`agent-runs/${run}`;
  const talk = h('div', { class: 'talk', 'aria-live': 'polite', 'aria-label': 'Conversation' });
  const state = h('p', { class: 'quiet', role: 'status' });
  const message = h('textarea', { name: 'message', rows: 3, required: true, 'aria-label': 'Message', placeholder: 'Say something (Ctrl+Enter sends)' });
  const asks = h('input', { type: 'checkbox', checked: true });
  const model = h('input', { placeholder: 'model (default)', 'aria-label': 'Model', autocomplete: 'off' });
  const system = h('input', { placeholder: 'system text (none)', 'aria-label': 'System text', autocomplete: 'off' });
  const say = h('button', { class: 'main' }, 'Send');
  const stop = h('button', { type: 'button', hidden: true, onclick: () => scene.attempt(() => post(`${base()}/cancel`)) }, 'Stop');

  const submit = async (event) => {
    event.preventDefault();
    const text = message.value;
    if (!text.trim() || say.disabled) return;
    talk.append(utterance('You', cut(text)));
    const turn = new Turn(scene, talk, base, (id) => { run = id; stop.hidden = false; });
    say.disabled = true;
    fill(state, 'The model is asked…');
    try {
      const body = { message: text, run_id: run ?? undefined, approve: asks.checked ? ['*'] : undefined, model: model.value.trim() || undefined, system: system.value.trim() || undefined };
      const answer = await send('POST', scene.at`chat`, { body, accept: 'text/event-stream', signal: scene.signal });
      message.value = '';
      for await (const { name, data } of events(answer)) turn.on(name, data);
      fill(state, turn.outcome ?? 'The stream ended early; the run may go on.', ' ', run ? h('a', { href: scene.link('runs', run) }, 'the record') : null);
    } catch (error) {
      if (scene.signal.aborted) return;
      fill(state);
      talk.append(trouble(error));
    }
    [say.disabled, stop.hidden] = [false, true];
  };
  const hurry = (event) => {
    if (event.key === 'Enter' && (event.ctrlKey || event.metaKey)) event.target.form.requestSubmit();
  };
  message.addEventListener('keydown', hurry);
  if (run) scene.attempt(() => messages(base(), talk, scene));
  return [
    talk, state,
    h('form', { class: 'compose', onsubmit: submit }, message,
      h('div', { class: 'row' }, say, stop, h('label', { class: 'check' }, asks, ' ask before a tool that is not read-only'), model, system)),
  ];
}

// One turn: what each event does to the page.
class Turn {
  constructor(scene, talk, base, onRun) {
    Object.assign(this, { scene, talk, base, onRun, outcome: null, text: null, cards: new Map() });
  }

  add(element) {
    const isAtEnd = window.innerHeight + window.scrollY > document.body.scrollHeight - 120;
    this.talk.append(element);
    if (isAtEnd) window.scrollTo(0, document.body.scrollHeight);
    return element;
  }

  on(name, data) {
    switch (name) {
      case 'run': return this.onRun(data.run_id);
      case 'text': return this.say(data.delta);
      case 'tool_call': return this.put(toolCall(data.name, data.input));
      case 'tool_result': {
        this.settle(data.name);
        return this.put(toolResult(data.status, data.content, `${data.name} ${took(data.duration_ms)}`));
      }
      case 'display': return this.put(utterance(data.name, json(data.input)));
      case 'approval': {
        const card = approval(this.scene, this.base(), data.approval_id, data.name, data.input);
        this.cards.set(data.approval_id, [data.name, card]);
        return this.put(card);
      }
      case 'retry': {
        this.text?.article.remove(); // what was said so far is void
        return this.put(h('p', { class: 'note' }, `It broke off (${data.reason}); asked again in ${took(data.wait_ms)}.`));
      }
      case 'error': return this.put(trouble({ message: data.error?.message ?? 'something went wrong', traceId: data.error?.trace_id }));
      case 'done': {
        for (const [, card] of this.cards.values()) card.remove();
        this.outcome = h('span', {}, badge(data.status), ` ${data.reason ?? ''} · ${tokensOf(data.usage)}`);
        return undefined;
      }
      default: return undefined; // of a later Cofer
    }
  }

  say(delta) {
    if (!this.text) {
      const pre = h('pre');
      this.text = { pre, article: this.add(utterance('Model', pre)) };
    }
    this.text.pre.append(delta);
  }

  // Anything but text ends the text before it.
  put(element) {
    this.text = null;
    return this.add(element);
  }

  // A question that was answered elsewhere, or by nobody in time, is a question no longer.
  settle(name) {
    for (const [id, [asked, card]] of this.cards) {
      if (asked !== name) continue;
      card.remove();
      this.cards.delete(id);
      return;
    }
  }
}
