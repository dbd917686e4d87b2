// Every tool that the project offers, and a form to try each: what it was given, what it answered, and how long that took.

import { h, brief, cut, fill, json, took } from './dom.js';
import { post } from './api.js';
import { Grid, badge, section, trouble } from './parts.js';
import { mcpResult } from './content.js';
import { schemaForm } from './form.js';

const SHOWN_MAX = 200;

export function tools(scene, heading) {
  const [wanted] = scene.rest;
  const load = () => scene.get(scene.at`tools`);
  if (wanted) return oneTool(scene, heading, wanted, load);

  const grid = new Grid('Tools', [
    { title: 'Name', cell: (tool) => [h('a', { href: scene.link('tools', tool.called_as) }, tool.called_as), tool.enabled ? null : [' ', badge('off')]] },
    { title: 'Server', cell: ({ server }) => server, narrow: true },
    { title: 'Description', cell: ({ title, description }) => brief(title ?? description) },
    { title: 'Says it is', cell: ({ annotations }) => hints(annotations), narrow: true },
  ], (tool) => `${tool.server}\n${tool.name}`, 'No tool has this.');
  const more = h('p', { class: 'quiet', role: 'status' });
  const notes = h('div');
  const search = h('input', { type: 'search', placeholder: 'Search', 'aria-label': 'Search tools', oninput: () => draw() });
  let all = [];
  const draw = () => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const found = all.filter((tool) => {
      const text = `${tool.called_as} ${tool.server} ${tool.title ?? ''} ${tool.description ?? ''}`.toLowerCase();
      return words.every((word) => text.includes(word));
    });
    grid.show(found.slice(0, SHOWN_MAX));
    fill(more, found.length > SHOWN_MAX ? `${found.length - SHOWN_MAX} more; search for them` : `${found.length} of ${all.length}`);
  };
  scene.attempt(async () => {
    const { tools: listed, missing, warnings } = await load();
    all = listed;
    draw();
    fill(notes, missing.map(({ server, reason }) => h('p', { class: 'note' }, h('b', {}, server), ' is missing: ', brief(reason, 400))),
      warnings.length ? h('details', {}, h('summary', {}, `${warnings.length} warnings`), h('ul', {}, warnings.map((text) => h('li', {}, brief(text, 400))))) : null);
  });
  return [h('div', { class: 'row' }, search), notes, grid.element, more];
}

const HINTS = { readOnlyHint: 'read-only', destructiveHint: 'destructive', idempotentHint: 'idempotent', openWorldHint: 'open world' };
const hints = (annotations) => Object.entries(HINTS).filter(([key]) => annotations?.[key] === true).map(([, text]) => text).join(', ');

function oneTool(scene, heading, wanted, load) {
  fill(heading, wanted);
  const place = h('div', {}, h('p', { class: 'quiet' }, 'Looking for it…'));
  scene.attempt(async () => {
    const tool = (await load()).tools.find((tool) => tool.called_as === wanted);
    fill(place, tool ? trial(scene, tool) : h('p', { class: 'note' }, 'This project has no tool of this name now.'));
  });
  return place;
}

function trial(scene, tool) {
  const form = schemaForm(tool.input_schema);
  const answer = h('div', { 'aria-live': 'polite' });
  const call = h('button', { class: 'main', disabled: !tool.enabled }, 'Call');
  const stop = h('button', { type: 'button', hidden: true }, 'Give up');
  const deadline = h('input', { type: 'number', min: 1, max: 3600, value: 60, 'aria-label': 'Seconds to wait' });
  const submit = async (event) => {
    event.preventDefault();
    const leaving = new AbortController();
    const began = performance.now();
    const since = () => took(performance.now() - began);
    stop.onclick = () => leaving.abort();
    try {
      const body = { name: tool.called_as, arguments: form.read(), timeout_ms: Math.round(Number(deadline.value) * 1000) || undefined };
      [call.disabled, stop.hidden] = [true, false];
      fill(answer, h('p', { class: 'quiet' }, 'Calling…'));
      const result = await post(scene.at`tools/call`, body, { signal: AbortSignal.any([scene.signal, leaving.signal]) });
      fill(answer, h('p', { class: 'quiet' }, `Answered after ${since()}`), mcpResult(result));
    } catch (error) {
      fill(answer, error.name === 'AbortError' ? h('p', { class: 'note' }, `Given up after ${since()}; it may have been executed.`) : trouble(error));
    }
    [call.disabled, stop.hidden] = [false, true];
  };
  return [
    h('p', {}, 'of ', h('b', {}, tool.server), hints(tool.annotations) ? ` · says it is ${hints(tool.annotations)}` : null,
      tool.shadowed_by ? ` · hidden by that of ${tool.shadowed_by}` : null),
    tool.enabled ? null : h('p', { class: 'note' }, 'It is switched off.'),
    cut(tool.description ?? 'It says nothing about itself.', 1200),
    h('form', { onsubmit: submit }, form.element, h('div', { class: 'row' }, call, stop, h('label', { class: 'check' }, 'wait ', deadline, ' s'))),
    section('Answer', answer),
    h('details', {}, h('summary', {}, 'Schemas'), json({ input_schema: tool.input_schema, output_schema: tool.output_schema, annotations: tool.annotations })),
  ];
}
