// What tools and models say, block by block: those of MCP (text, image, audio, resource) and those of the Claude Messages API (text, thinking,
// tool_use, tool_result, image). A block of an unknown kind is shown as it came.

import { h, cut, json } from './dom.js';
import { badge } from './parts.js';

const PICTURES = /^image\/(png|jpeg|gif|webp|avif)$/;
const BASE64 = /^[A-Za-z0-9+/=\s]+$/;

export function blocks(content) {
  if (typeof content === 'string') return [cut(content)];
  return Array.isArray(content) ? content.map(block) : [json(content)];
}

function block(one) {
  switch (one?.type) {
    case 'text': return cut(one.text);
    case 'thinking': return h('details', {}, h('summary', {}, 'thinking'), cut(one.thinking));
    case 'image': return picture(one.data ?? one.source?.data, one.mimeType ?? one.source?.media_type);
    case 'audio': return h('p', { class: 'quiet' }, `a sound (${one.mimeType}), ${one.data?.length ?? 0} characters of base64`);
    case 'resource': return h('figure', {}, h('figcaption', {}, h('code', {}, one.resource?.uri)), one.resource?.text === undefined ? json(one.resource) : cut(one.resource.text));
    case 'resource_link': return h('p', {}, 'see ', h('code', {}, one.uri), ' ', one.title ?? one.name);
    case 'tool_use': return toolCall(one.name, one.input);
    case 'tool_result': return toolResult(one.is_error ? 'error' : 'completed', one.content);
    default: return json(one);
  }
}

function picture(data, kind) {
  if (typeof data !== 'string' || !PICTURES.test(kind) || !BASE64.test(data)) return h('p', { class: 'quiet' }, `a picture that cannot be shown (${kind})`);
  return h('img', { src: `data:${kind};base64,${data}`, alt: 'a picture that the tool answered with', class: 'picture' });
}

export function toolCall(name, input) {
  return h('details', { class: 'step', open: JSON.stringify(input ?? {}).length < 300 }, h('summary', {}, '→ ', h('b', {}, name)), json(input ?? {}));
}

export function toolResult(status, content, took) {
  return h('details', { class: 'step' }, h('summary', {}, '← ', badge(status), took ? ` ${took}` : null), blocks(content ?? []));
}

// The result of an MCP tool call.
export function mcpResult(result) {
  const { content, structuredContent, isError, ...others } = result ?? {};
  return h('div', { class: isError ? 'result bad' : 'result' },
    isError ? h('p', {}, badge('error'), ' The tool says that it failed.') : null,
    blocks(content ?? []),
    structuredContent === undefined ? null : h('div', {}, h('h3', {}, 'Structured'), json(structuredContent)),
    Object.keys(others).length ? h('details', {}, h('summary', {}, 'and besides'), json(others)) : null);
}
