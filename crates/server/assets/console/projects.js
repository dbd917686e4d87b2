// All projects that this token may see, and a form for another.

import { h, brief, when } from './dom.js';
import { at, post } from './api.js';
import { Grid, field, form, section } from './parts.js';

export function projects(scene) {
  const grid = new Grid('Projects', [
    { title: 'Name', cell: ({ name }) => h('a', { href: `#/projects/${encodeURIComponent(name)}/servers` }, name) },
    { title: 'Description', cell: ({ description }) => brief(description) },
    { title: 'Same name twice', cell: ({ namespacing }) => namespacing },
    { title: 'Since', cell: ({ created_at }) => when(created_at) },
  ], ({ id }) => id, 'There is no project that this token may see.');
  const list = async () => grid.show(await scene.get(at`projects`));
  scene.attempt(list);
  const create = async (fields, element) => {
    await post(at`projects`, { name: fields.get('name'), description: fields.get('description') });
    element.reset();
    document.dispatchEvent(new Event('projects')); // the chooser wants to know
    await list();
  };
  return [grid.element, section('New project', form(scene, { class: 'row' }, create,
    field('Name', h('input', { name: 'name', required: true, autocomplete: 'off' })),
    field('Description', h('input', { name: 'description', autocomplete: 'off' })),
    h('button', {}, 'Create')))];
}
