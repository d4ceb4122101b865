// Labeller: see labeller.py. The labels lie in the data-labels of the root, as JSON by id.
const COLOURS = 6; // of labeller.css
const labels = new Map();
let current = '', of = null, mark = null;
const field = make('input', {type: 'text', id: 'labeller-label', maxlength: 80, autocomplete: 'off',
  placeholder: 'cat, dog, ...', oninput: event => choose(event.target.value.trim())});
const chips = make('div', {class: 'chips'});
const count = make('p', {class: 'count', role: 'status'});
const none = make('button', {type: 'button', class: 'plain-button', hidden: true,
  onclick: () => { labels.clear(); show(); }}, 'Take all labels off');
const list = make('ul', {class: 'tiles'});
const more = make('button', {type: 'button', class: 'plain-button', hidden: true,
  onclick: () => trigger('more', {shown: list.children.length})}, 'Show more pictures');
const pen = make('div', {class: 'pen'}, make('label', {for: 'labeller-label'}, 'Label to give'), field, chips);
root.className = 'labeller';
root.append(pen, make('div', {class: 'told'}, count, none), list, more);

const names = () => [...new Set(labels.values())];
const colour = (label, known) => `label-${known.indexOf(label) % COLOURS}`;

function choose(label) {
  current = label;
  if (field.value.trim() !== label) field.value = label;
  for (const chip of chips.children) chip.setAttribute('aria-pressed', String(chip.dataset.label === current));
}

function click(id) {
  if (!current) {
    count.textContent = 'Type a label first: then click the pictures that it fits.';
    field.focus();
    return;
  }
  labels.get(id) === current ? labels.delete(id) : labels.set(id, current);
  show();
}

function show() {
  root.dataset.labels = JSON.stringify(Object.fromEntries(labels));
  const known = names();
  chips.replaceChildren(...known.map(label => make('button', {type: 'button', class: `chip ${colour(label, known)}`,
    'data-label': label, 'aria-pressed': String(label === current), onclick: () => choose(label)},
  `${label} · ${[...labels.values()].filter(one => one === label).length}`)));
  let unseen = labels.size;
  for (const tile of list.children) {
    const label = labels.get(tile.dataset.id), badge = tile.querySelector('.badge');
    tile.querySelector('.picture').setAttribute('aria-pressed', String(label !== undefined));
    badge.hidden = label === undefined;
    badge.className = label === undefined ? 'badge' : `badge ${colour(label, known)}`;
    badge.textContent = label ?? '';
    if (label !== undefined) unseen -= 1;
  }
  none.hidden = labels.size === 0;
  count.textContent = labels.size === 0 ? 'Nothing is labelled yet: type a label, then click the pictures that it fits.'
    : `${labels.size} ${labels.size === 1 ? 'picture' : 'pictures'} with ${known.length} `
      + `${known.length === 1 ? 'label: it takes a second one' : 'labels'}. A click with the same label takes it off.`
      + (unseen ? ` ${unseen} of them ${unseen === 1 ? 'is' : 'are'} not shown here.` : '');
}

drawn(value => {
  root.hidden = !value; // which is still to come
  if (!value) return;
  pen.hidden = list.hidden = !value.tiles.length;
  if (pen.hidden) {
    labels.clear();
    list.replaceChildren();
    none.hidden = more.hidden = true;
    root.dataset.labels = '{}';
    of = null;
    count.textContent = value.collection ? 'There is no picture in this collection yet: add some on the tab Collections.'
      : 'There is no collection whose pictures could be labelled: make one on the tab Collections.';
    return;
  }
  if (of !== value.collection) { labels.clear(); choose(''); of = value.collection; }
  if (value.labels && value.mark !== mark) {
    labels.clear();
    for (const [id, label] of Object.entries(value.labels)) labels.set(id, label);
    choose(names()[0] ?? '');
  }
  mark = value.mark;
  list.replaceChildren(...value.tiles.map(({id, src, caption}) => make('li', {class: 'tile', 'data-id': id},
    make('button', {type: 'button', class: 'picture', 'aria-pressed': 'false', onclick: () => click(id)},
      make('img', {loading: 'lazy', src, alt: ''}), make('span', {class: 'badge', hidden: true}),
      make('span', {class: 'caption'}, caption)))));
  more.hidden = !value.more;
  show();
});
