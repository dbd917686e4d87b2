// The names of a project's secrets. A value goes in and is never shown again, by this page or by anybody.

import { h, when } from './dom.js';
import { ask } from './api.js';
import { Grid, action, field, form, section } from './parts.js';

export function secrets(scene) {
  const grid = new Grid('Secrets', [
    { title: 'Name', cell: ({ name }) => h('code', {}, name) },
    { title: 'Set', cell: ({ updated_at }) => when(updated_at) },
    { title: '', narrow: true, cell: ({ name }) => action(scene, 'Remove', async () => {
      await ask('DELETE', scene.at`secrets/${name}`);
      await list();
    }, { kind: 'link', question: `Remove the secret ${name}? Servers that name it cannot start without it.` }) },
  ], ({ name }) => name, 'None yet.');
  const list = async () => grid.show(await scene.get(scene.at`secrets`));
  scene.attempt(list);
  const set = async (fields, element) => {
    await ask('PUT', scene.at`secrets/${fields.get('name')}`, { body: { value: fields.get('value') } });
    element.reset();
    await list();
  };
  return [
    grid.element,
    section('Set a secret', form(scene, { class: 'row' }, set,
      field('Name', h('input', { name: 'name', required: true, autocomplete: 'off', placeholder: 'API_KEY' })),
      // A password's field would drop the line breaks of a key.
      field('Value', h('textarea', { name: 'value', class: 'covered', rows: 3, required: true, autocomplete: 'off', autocapitalize: 'off', spellcheck: 'false' })),
      h('button', {}, 'Set'))),
    h('p', { class: 'quiet' }, 'Servers use it as ', h('code', {}, '${NAME}'), ' in variables, headers, arguments and addresses.'),
  ];
}
