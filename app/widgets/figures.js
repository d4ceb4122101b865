// Figures: see figures.py.
let opacity = 0.6;
const list = make('div', {class: 'figures'});
const slider = make('input', {type: 'range', min: 0, max: 1, step: 0.05, value: opacity, oninput: event => {
  opacity = Number(event.target.value);
  fade();
}});
const control = make('label', {class: 'opacity', hidden: true}, 'Opacity of the map', slider);
root.append(control, list);

function fade() {
  for (const over of list.querySelectorAll('.over')) over.style.opacity = opacity;
}

drawn(figures => {
  control.hidden = figures.length === 0;
  list.replaceChildren(...figures.map(({src, over, caption}) => make('figure', {},
    make('div', {class: 'layers'}, make('img', {src, alt: caption}), make('img', {src: over, alt: '', class: 'over'})),
    make('figcaption', {}, caption))));
  fade();
});
