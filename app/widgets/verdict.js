// Verdict: see verdict.py.
const percent = value => value > 0 && value < 0.01 ? 'below 1 %' : `${Math.round(100 * value)} %`;

drawn(value => {
  root.className = 'verdict';
  root.hidden = !value;
  if (!value) return;
  root.replaceChildren(make('p', {class: 'said', role: 'status'}, value.said), make('ul', {class: 'classes'},
    ...value.top.map(({label, probability}) => make('li', {}, make('span', {class: 'name'}, label),
      make('span', {class: 'gauge'}, make('span', {style: `width: ${100 * probability}%`})),
      make('span', {class: 'value'}, percent(probability))))));
});
