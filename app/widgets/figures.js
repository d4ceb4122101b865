// Figures: see outputs.py.
let opacity = 0.6;
const list = make('div', {class: 'figures'});
const slider = make('input', {type: 'range', min: 0, max: 1, step: 0.05, value: opacity, oninput: event => {
  opacity = Number(event.target.value);
  fade();
}});
const control = make('label', {class: 'opacity', hidden: true}, 'Opacity of the map', slider);
root.append(control, list);

function fade() {
  for (const overlay of list.querySelectorAll('.overlay')) overlay.style.opacity = opacity;
}

onValue(figures => {
  control.hidden = figures.length === 0;
  list.replaceChildren(...figures.map(({src, overlay, caption}) => make('figure', {},
    make('div', {class: 'layers'}, make('img', {src, alt: caption}), make('img', {src: overlay, alt: '', class: 'overlay'})),
    make('figcaption', {}, caption))));
  fade();
});
