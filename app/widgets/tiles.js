// Tiles: see tiles.py. A tile stays selected while more tiles are loaded.
const ACTIONS = {
  'more': ['More like this', 'M12 5v14M5 12h14'],
  'less': ['Less like this', 'M5 12h14'],
  'why': ['Why does this image match?', 'M2 12s3.5-7 10-7 10 7 10 7-3.5 7-10 7S2 12 2 12zM12 9a3 3 0 1 0 0 6 3 3 0 0 0 0-6z'],
  'view': ['Show the original', 'M15 3h6v6M21 3l-8 8M19 14v5a2 2 0 0 1-2 2H5a2 2 0 0 1-2-2V7a2 2 0 0 1 2-2h5'],
  'remove': ['Remove', 'M6 6l12 12M18 6L6 18'],
};
const SELECTION = {'export': 'Export as CSV', 'delete': 'Delete'};
const selected = new Set();
const list = make('ul', {class: 'tiles'});
const count = make('span', {role: 'status'});
const bar = make('div', {class: 'selected-bar', hidden: true}, count, ...settings.selection.map(name =>
  make('button', {type: 'button', class: `plain-button ${name}`, onclick: event => act(name, event.currentTarget)},
    SELECTION[name])),
make('button', {type: 'button', class: 'plain-button', onclick: () => { selected.clear(); showSelection(); }}, 'Clear selection'));
root.append(bar, list);

/** Run a command. Deleting requires a second click within five seconds, on a button that shows the number. */
function act(name, button) {
  if (name === 'delete' && !button.dataset.confirm) {
    button.dataset.confirm = 'yes';
    button.textContent = `Delete ${selected.size} ${selected.size === 1 ? 'image' : 'images'}?`;
    setTimeout(() => { delete button.dataset.confirm; button.textContent = SELECTION[name]; }, 5000);
    return;
  }
  trigger(name, {ids: [...selected]});
}

function showSelection() {
  for (const box of list.querySelectorAll('.select input')) box.checked = selected.has(box.value);
  bar.hidden = selected.size === 0;
  count.textContent = `${selected.size} selected`;
}

// Ignore the second click of a double click: by then another tile may be in this place.
function tileOf({id, src, caption, score}) {
  const text = make('span', {class: 'caption'}, score ? make('span', {class: 'score'}, score) : null,
    make('span', {}, caption));
  const image = make('button', {type: 'button', class: 'image', 'data-id': id,
    onclick: event => { if (event.detail < 2) trigger('open', {id}); }},
    make('img', {loading: 'lazy', src, alt: ''}), text);
  const box = make('input', {type: 'checkbox', value: id, 'aria-label': `Select ${caption}`,
    onchange: event => { event.target.checked ? selected.add(id) : selected.delete(id); showSelection(); }});
  const actions = settings.actions.map(name => make('button', {type: 'button', class: name, title: ACTIONS[name][0],
    'aria-label': `${ACTIONS[name][0]} (${caption})`, onclick: () => trigger(name, {id})}, icon(ACTIONS[name][1])));
  return make('li', {class: 'tile', 'data-id': id}, image,
    settings.selection.length ? make('label', {class: 'select'}, box) : null,
    actions.length ? make('div', {class: 'actions'}, ...actions) : null);
}

onValue(tiles => {
  const focused = document.activeElement?.closest?.('.tile')?.dataset.id;
  const before = new Map([...list.children].map(one => [one.dataset.id, one]));
  const current = new Set(tiles.map(one => one.id));
  for (const id of [...selected]) if (!current.has(id)) selected.delete(id);
  const replaced = before.size > 0 && list.firstElementChild.dataset.id !== tiles[0]?.id;
  list.replaceChildren(...tiles.map(tileOf));
  if (before.has(focused)) list.querySelector(`.tile[data-id="${CSS.escape(focused)}"] .image`)?.focus();
  showSelection();
  if (replaced && root.getBoundingClientRect().top < 0) root.scrollIntoView(); // the new results start above
});
