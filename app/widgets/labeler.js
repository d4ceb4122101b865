// Labeler: see labeler.py. The root's data-labels holds the labels by item id, as JSON.
const COLORS = 6; // in probe.css
const labels = new Map();
let current = '', collection = null, valueId = null;
const field = make('input', {type: 'text', id: 'labeler-label', maxlength: 80, autocomplete: 'off',
  placeholder: 'cat, dog, ...', oninput: event => choose(event.target.value.trim())});
const chips = make('div', {class: 'chips'});
const count = make('p', {class: 'count', role: 'status'});
const none = make('button', {type: 'button', class: 'plain-button', hidden: true,
  onclick: () => { labels.clear(); show(); }}, 'Remove all labels');
const list = make('ul', {class: 'tiles'});
const more = make('button', {type: 'button', class: 'plain-button', hidden: true,
  onclick: () => trigger('more', {shown: list.children.length})}, 'Show more images');
const form = make('div', {class: 'form'}, make('label', {for: 'labeler-label'}, 'Label'), field, chips);
root.className = 'labeler';
root.append(form, make('div', {class: 'summary'}, count, none), list, more);

const names = () => [...new Set(labels.values())];
const color = (label, known) => `label-${known.indexOf(label) % COLORS}`;

function choose(label) {
  current = label;
  if (field.value.trim() !== label) field.value = label;
  for (const chip of chips.children) chip.setAttribute('aria-pressed', String(chip.dataset.label === current));
}

function click(id) {
  if (!current) {
    count.textContent = 'Enter a label first, then click the images that have it.';
    field.focus();
    return;
  }
  labels.get(id) === current ? labels.delete(id) : labels.set(id, current);
  show();
}

function show() {
  root.dataset.labels = JSON.stringify(Object.fromEntries(labels));
  const known = names();
  chips.replaceChildren(...known.map(label => make('button', {type: 'button', class: `chip ${color(label, known)}`,
    'data-label': label, 'aria-pressed': String(label === current), onclick: () => choose(label)},
  `${label} · ${[...labels.values()].filter(one => one === label).length}`)));
  let notShown = labels.size;
  for (const tile of list.children) {
    const label = labels.get(tile.dataset.id), badge = tile.querySelector('.badge');
    tile.querySelector('.image').setAttribute('aria-pressed', String(label !== undefined));
    badge.hidden = label === undefined;
    badge.className = label === undefined ? 'badge' : `badge ${color(label, known)}`;
    badge.textContent = label ?? '';
    if (label !== undefined) notShown -= 1;
  }
  none.hidden = labels.size === 0;
  count.textContent = labels.size === 0 ? 'No image is labeled yet. Enter a label, then click the images that have it.'
    : `${labels.size} ${labels.size === 1 ? 'image' : 'images'} with ${known.length} `
      + `${known.length === 1 ? 'label; a second label is required' : 'labels'}. Click an image again to remove its label.`
      + (notShown ? ` ${notShown} of them ${notShown === 1 ? 'is' : 'are'} not shown here.` : '');
}

onValue(value => {
  root.hidden = !value; // the first value is not here yet
  if (!value) return;
  form.hidden = list.hidden = !value.tiles.length;
  if (form.hidden) {
    labels.clear();
    list.replaceChildren();
    none.hidden = more.hidden = true;
    root.dataset.labels = '{}';
    collection = null;
    count.textContent = value.collection ? 'This collection is empty. Add images on the Collections tab.'
      : 'There is no collection yet. Create one on the Collections tab.';
    return;
  }
  if (collection !== value.collection) { labels.clear(); choose(''); collection = value.collection; }
  if (value.labels && value.id !== valueId) {
    labels.clear();
    for (const [id, label] of Object.entries(value.labels)) labels.set(id, label);
    choose(names()[0] ?? '');
  }
  valueId = value.id;
  list.replaceChildren(...value.tiles.map(({id, src, caption}) => make('li', {class: 'tile', 'data-id': id},
    make('button', {type: 'button', class: 'image', 'aria-pressed': 'false', onclick: () => click(id)},
      make('img', {loading: 'lazy', src, alt: ''}), make('span', {class: 'badge', hidden: true}),
      make('span', {class: 'caption'}, caption)))));
  more.hidden = !value.more;
  show();
});
