// Prediction: see outputs.py.
const percent = value => value > 0 && value < 0.01 ? '< 1%' : `${Math.round(100 * value)}%`;

onValue(value => {
  root.className = 'prediction';
  root.hidden = !value;
  if (!value) return;
  root.replaceChildren(make('p', {class: 'answer', role: 'status'}, value.answer), make('ul', {class: 'classes'},
    ...value.top.map(({label, probability}) => make('li', {}, make('span', {class: 'name'}, label),
      make('span', {class: 'gauge'}, make('span', {style: `width: ${100 * probability}%`})),
      make('span', {class: 'value'}, percent(probability))))));
});
