// Who may do what: the tokens there are, and a new one, which is shown this once.

import { h, fill, when } from './dom.js';
import { ask, at, post } from './api.js';
import { Grid, action, copyable, field, form, section } from './parts.js';

const SCOPES = {
  'admin:read': 'see servers, calls, secrets’ names and tokens',
  'admin:write': 'change them, and call hosted servers',
  'tools:call': 'list and call tools, and use the MCP endpoint',
  'agents:run': 'chat, and see runs',
  'environments:write': 'make and change environments',
};
const DAY_SECONDS = 86_400;

export function tokens(scene) {
  const grid = new Grid('Tokens', [
    { title: 'Name', cell: ({ name }) => name },
    { title: 'Scopes', cell: ({ scopes }) => scopes.join(', ') },
    { title: 'Project', cell: ({ project }) => project ?? 'all' },
    { title: 'Last used', cell: ({ last_used_at }) => when(last_used_at) },
    { title: 'Until', cell: ({ expires_at }) => (expires_at ? when(expires_at) : 'no end') },
    { title: '', narrow: true, cell: ({ id, name }) => action(scene, 'Revoke', async () => {
      await ask('DELETE', at`tokens/${id}`);
      await list();
    }, { kind: 'link', question: `Revoke the token ${name}? Whoever uses it is refused from now on.` }) },
  ], ({ id }) => id, 'None that this token may see.');
  const list = async () => grid.show(await scene.get(at`tokens`));
  scene.attempt(list);
  const made = h('div', { role: 'status' });
  const create = async (fields, element) => {
    const days = Number(fields.get('days'));
    const { token } = await post(at`tokens`, {
      name: fields.get('name'), scopes: fields.getAll('scope'), project: fields.get('project').trim() || undefined,
      expires_in_seconds: days > 0 ? Math.round(days * DAY_SECONDS) : undefined,
    });
    fill(made, h('p', { class: 'note' }, 'Shown this once: ', copyable(token)));
    element.reset();
    await list();
  };
  const scope = ([name, what]) => h('label', { class: 'check' }, h('input', { type: 'checkbox', name: 'scope', value: name }), ' ', h('code', {}, name), ' ', h('small', {}, what));
  return [
    grid.element,
    section('New token', made, form(scene, {}, create,
      h('div', { class: 'row' },
        field('Name', h('input', { name: 'name', required: true, autocomplete: 'off' })),
        field('Project', h('input', { name: 'project', autocomplete: 'off', placeholder: 'all' })),
        field('Days', h('input', { name: 'days', type: 'number', min: 0, step: 'any', placeholder: 'no end' }))),
      h('fieldset', {}, h('legend', {}, 'Scopes'), Object.entries(SCOPES).map(scope)),
      h('button', {}, 'Create'))),
  ];
}
