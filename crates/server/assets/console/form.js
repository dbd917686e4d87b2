// A form out of a tool's schema. What has an own control here (texts, numbers, yes and no, choices) gets it; everything else is written as JSON,
// and so can be the whole. What is left empty and not required is not sent. Cofer and the server check; this only helps.

import { h, fill } from './dom.js';
import { field } from './parts.js';

const LONG_TEXT = /content|text|body|code|query|prompt|message|sql/i;

export class Unfit extends Error {}

// {element, read}: `read` gives the arguments, or throws what does not fit.
export function schemaForm(schema) {
  const properties = Object.entries(schema?.properties ?? {});
  const required = new Set(Array.isArray(schema?.required) ? schema.required : []);
  const inputs = properties.map(([name, shape]) => input(name, resolved(shape, schema), required.has(name)));
  const readFields = () => Object.fromEntries(inputs.map((one) => [one.name, one.read()]).filter(([, value]) => value !== undefined));

  const whole = h('textarea', { rows: 8, spellcheck: 'false', 'aria-label': 'Arguments as JSON' });
  const place = h('div', { class: 'fields' });
  const byFields = () => fill(place, inputs.length ? inputs.map(({ element }) => element) : h('p', { class: 'quiet' }, 'It takes no arguments.'));
  const asJson = h('input', { type: 'checkbox', onchange: () => {
    if (!asJson.checked) return byFields();
    try {
      whole.value = JSON.stringify(readFields(), null, 2);
    } catch {
      whole.value = '{}'; // what does not fit yet is written anew
    }
    return fill(place, whole);
  } });
  byFields();
  return {
    element: h('div', {}, place, h('label', { class: 'check' }, asJson, ' write the arguments as JSON')),
    read: () => (asJson.checked ? parsed('the arguments', whole.value) : readFields()),
  };
}

// One property: {name, element, read}; `read` gives undefined for what is not to be sent.
function input(name, shape, isRequired) {
  const label = [name, isRequired ? h('abbr', { title: 'required' }, ' *') : null];
  const { control, value } = controlFor(name, shape, isRequired);
  const limits = ['minimum', 'maximum', 'minLength', 'maxLength', 'pattern', 'format'].filter((key) => shape[key] !== undefined).map((key) => `${key} ${shape[key]}`).join(', ');
  const kind = [shape.type ?? 'any JSON'].flat().join(' or ');
  const hint = [kind, limits, shape.description].filter(Boolean).map(String).join(' · ');
  return { name, element: field(label, control, hint.slice(0, 600)), read: value };
}

function controlFor(name, shape, isRequired) {
  const preset = shape.default;
  const kind = kindOf(shape);
  if (Array.isArray(shape.enum)) {
    const texts = shape.enum.map((one) => JSON.stringify(one));
    const control = h('select', {}, isRequired ? null : h('option', { value: '' }, '(not sent)'),
      texts.map((text, at) => h('option', { value: text, selected: text === JSON.stringify(preset) }, String(shape.enum[at]))));
    return { control, value: () => (control.value === '' ? undefined : JSON.parse(control.value)) };
  }
  if (kind === 'boolean') {
    const control = h('select', {}, isRequired ? null : h('option', { value: '' }, '(not sent)'),
      ['true', 'false'].map((text) => h('option', { value: text, selected: text === String(preset) }, text)));
    return { control, value: () => (control.value === '' ? undefined : control.value === 'true') };
  }
  if (kind === 'number' || kind === 'integer') {
    const control = h('input', { type: 'text', inputmode: kind === 'integer' ? 'numeric' : 'decimal', value: preset ?? '', autocomplete: 'off' });
    return { control, value: () => numberOf(name, control.value.trim(), kind, isRequired) };
  }
  if (kind === 'string') {
    const attributes = { spellcheck: 'false', autocomplete: 'off', rows: 3 };
    const control = LONG_TEXT.test(name) ? h('textarea', attributes, preset ?? '') : h('input', { ...attributes, rows: null, value: preset ?? '' });
    return { control, value: () => (control.value === '' && !isRequired ? undefined : control.value) };
  }
  const control = h('textarea', { rows: 3, spellcheck: 'false', placeholder: kind === 'array' ? '[]' : kind === 'object' ? '{}' : 'JSON' },
    preset === undefined ? '' : JSON.stringify(preset));
  return { control, value: () => (control.value.trim() === '' && !isRequired ? undefined : parsed(name, control.value)) };
}

function numberOf(name, text, kind, isRequired) {
  if (text === '' && !isRequired) return undefined;
  const number = Number(text);
  if (text === '' || !Number.isFinite(number)) throw new Unfit(`${name} must be a number`);
  if (kind === 'integer' && !Number.isSafeInteger(number)) throw new Unfit(`${name} must be a whole number`);
  return number;
}

function parsed(name, text) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Unfit(`${name} must be JSON: ${error.message}`);
  }
}

// `["string", "null"]` is a text that may be left out.
function kindOf(shape) {
  const kinds = [shape.type].flat().filter((kind) => kind !== 'null');
  return kinds.length === 1 ? kinds[0] : undefined;
}

// What is meant by a reference into the schema's own definitions, and by "this or null".
function resolved(shape, schema) {
  const one = shape && typeof shape === 'object' ? shape : {};
  const alternatives = (one.anyOf ?? one.oneOf)?.filter?.((other) => other?.type !== 'null');
  if (alternatives?.length === 1) return { ...resolvedReference(alternatives[0], schema), ...pick(one) };
  return { ...resolvedReference(one, schema), ...pick(one) };
}

function resolvedReference(shape, schema) {
  const [, place, name] = /^#\/(\$defs|definitions)\/([^/]+)$/.exec(shape?.$ref ?? '') ?? [];
  const defined = place && Object.hasOwn(schema?.[place] ?? {}, name) ? schema[place][name] : null;
  return defined && typeof defined === 'object' ? defined : shape;
}

const pick = ({ description, default: preset }) => ({ ...(description && { description }), ...(preset !== undefined && { default: preset }) });
