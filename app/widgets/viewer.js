// Viewer: see viewer.py.
const title = make('h2', {}), pictures = make('div', {class: 'pictures'}), note = make('p', {class: 'note'});
const facts = make('dl', {class: 'facts'});
const dialog = make('dialog', {class: 'viewer', 'aria-label': 'Picture', onclick: event => {
  if (event.target === dialog) dialog.close(); // the space around it
}}, make('div', {class: 'inside'}, make('header', {}, title,
  make('button', {type: 'button', class: 'plain-button', onclick: () => dialog.close()}, 'Close')), pictures, note, facts));
root.append(dialog);

drawn(value => {
  if (!value) return;
  title.textContent = value.title;
  note.textContent = value.note;
  pictures.replaceChildren(...value.pictures.map(({src, caption, href}) => {
    const image = make('img', {src, alt: caption});
    const shown = href ? make('a', {href, target: '_blank', rel: 'noopener'}, image) : image;
    return make('figure', {}, shown, make('figcaption', {}, caption));
  }));
  facts.replaceChildren(...value.facts.flatMap(([name, fact]) => [make('dt', {}, name), make('dd', {}, fact)]));
  if (!dialog.open) dialog.showModal();
});
