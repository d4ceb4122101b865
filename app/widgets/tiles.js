// Tiles: see tiles.py. What is selected stays so while more tiles come, and goes with its tile.
const ACTIONS = {
  'more': ['More like this', 'M12 5v14M5 12h14'],
  'less': ['Less like this', 'M5 12h14'],
  'why': ['Why was this found?', 'M2 12s3.5-7 10-7 10 7 10 7-3.5 7-10 7S2 12 2 12zM12 9a3 3 0 1 0 0 6 3 3 0 0 0 0-6z'],
  'view': ['View the original', 'M15 3h6v6M21 3l-8 8M19 14v5a2 2 0 0 1-2 2H5a2 2 0 0 1-2-2V7a2 2 0 0 1 2-2h5'],
  'remove': ['Remove', 'M6 6l12 12M18 6L6 18'],
};
const SELECTION = {'export': 'Export as CSV', 'delete': 'Delete'};
const chosen = new Set();
const list = make('ul', {class: 'tiles'});
const count = make('span', {role: 'status'});
const bar = make('div', {class: 'chosen-bar', hidden: true}, count, ...settings.selection.map(name =>
  make('button', {type: 'button', class: `plain-button ${name}`, onclick: event => act(name, event.currentTarget)},
    SELECTION[name])),
make('button', {type: 'button', class: 'plain-button', onclick: () => { chosen.clear(); choose(); }}, 'Select none'));
root.append(bar, list);

/** Does it; what cannot be undone asks first: the button says how many, and a second click within five seconds does it. */
function act(name, button) {
  if (name === 'delete' && !button.dataset.sure) {
    button.dataset.sure = 'yes';
    button.textContent = `Really delete ${chosen.size}?`;
    setTimeout(() => { delete button.dataset.sure; button.textContent = SELECTION[name]; }, 5000);
    return;
  }
  trigger(name, {ids: [...chosen]});
}

function choose() {
  for (const box of list.querySelectorAll('.choose input')) box.checked = chosen.has(box.value);
  bar.hidden = chosen.size === 0;
  count.textContent = `${chosen.size} selected`;
}

// The second click of a double one would open what has taken the tile's place meanwhile.
function tileOf({id, src, caption, score}) {
  const words = make('span', {class: 'caption'}, score ? make('span', {class: 'score'}, score) : null,
    make('span', {}, caption));
  const picture = make('button', {type: 'button', class: 'picture', 'data-id': id, onclick: event => { if (event.detail < 2) trigger('open', {id}); }},
    make('img', {loading: 'lazy', src, alt: ''}), words);
  const box = make('input', {type: 'checkbox', value: id, 'aria-label': `Select ${caption}`,
    onchange: event => { event.target.checked ? chosen.add(id) : chosen.delete(id); choose(); }});
  const actions = settings.actions.map(name => make('button', {type: 'button', class: name, title: ACTIONS[name][0],
    'aria-label': `${ACTIONS[name][0]} (${caption})`, onclick: () => trigger(name, {id})}, icon(ACTIONS[name][1])));
  return make('li', {class: 'tile', 'data-id': id}, picture,
    settings.selection.length ? make('label', {class: 'choose'}, box) : null,
    actions.length ? make('div', {class: 'actions'}, ...actions) : null);
}

drawn(tiles => {
  const focused = document.activeElement?.closest?.('.tile')?.dataset.id;
  const before = new Map([...list.children].map(one => [one.dataset.id, one]));
  const there = new Set(tiles.map(one => one.id));
  for (const id of [...chosen]) if (!there.has(id)) chosen.delete(id);
  const another = before.size > 0 && list.firstElementChild.dataset.id !== tiles[0]?.id;
  list.replaceChildren(...tiles.map(tileOf));
  if (before.has(focused)) list.querySelector(`.tile[data-id="${CSS.escape(focused)}"] .picture`)?.focus();
  choose();
  if (another && root.getBoundingClientRect().top < 0) root.scrollIntoView(); // what is new begins above
});
