// Viewer: see outputs.py.
const title = make('h2', {}), images = make('div', {class: 'images'}), note = make('p', {class: 'note'});
const facts = make('dl', {class: 'facts'});
const dialog = make('dialog', {class: 'viewer', 'aria-label': 'Image', onclick: event => {
  if (event.target === dialog) dialog.close(); // a click outside of the dialog
}}, make('div', {class: 'inside'}, make('header', {}, title,
  make('button', {type: 'button', class: 'plain-button', onclick: () => dialog.close()}, 'Close')), images, note, facts));
root.append(dialog);

onValue(value => {
  if (!value) return;
  title.textContent = value.title;
  note.textContent = value.note;
  images.replaceChildren(...value.images.map(({src, caption, href}) => {
    const image = make('img', {src, alt: caption});
    const shown = href ? make('a', {href, target: '_blank', rel: 'noopener'}, image) : image;
    return make('figure', {}, shown, make('figcaption', {}, caption));
  }));
  facts.replaceChildren(...value.facts.flatMap(([name, fact]) => [make('dt', {}, name), make('dd', {}, fact)]));
  if (!dialog.open) dialog.showModal();
});
