// ProbeReport: see probe_report.py. The curve is an SVG; its accessible label contains the numbers.
const SPACE = 'http://www.w3.org/2000/svg';
const W = 420, H = 220, LEFT = 44, RIGHT = 14, TOP = 14, BOTTOM = 40;
const percent = value => `${Math.round(100 * value)}%`;

function draw(tag, attributes, ...children) {
  const made = document.createElementNS(SPACE, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

function curveOf(points) {
  const x = i => points.length === 1 ? (LEFT + W - RIGHT) / 2 : LEFT + 8 + (W - RIGHT - LEFT - 16) * i / (points.length - 1);
  const y = value => TOP + (H - BOTTOM - TOP) * (1 - value);
  const lines = [0, 0.25, 0.5, 0.75, 1].flatMap(value => [
    draw('line', {x1: LEFT, x2: W - RIGHT, y1: y(value), y2: y(value), class: 'grid'}),
    draw('text', {x: LEFT - 8, y: y(value) + 4, 'text-anchor': 'end'}, percent(value))]);
  const marks = points.flatMap(({labels, mean, each}, i) => [
    draw('line', {x1: x(i), x2: x(i), y1: y(Math.min(...each)), y2: y(Math.max(...each)), class: 'spread'}),
    draw('circle', {cx: x(i), cy: y(mean), r: 4.5}),
    draw('text', {x: x(i), y: H - BOTTOM + 18, 'text-anchor': 'middle'}, String(labels))]);
  const words = points.map(({labels, mean}) => `${labels}: ${percent(mean)}`).join(', ');
  return draw('svg', {viewBox: `0 0 ${W} ${H}`, role: 'img', 'aria-label': `Accuracy by labels per class: ${words}`},
    ...lines, draw('polyline', {points: points.map(({mean}, i) => `${x(i)},${y(mean)}`).join(' ')}), ...marks,
    draw('text', {x: (LEFT + W - RIGHT) / 2, y: H - 4, 'text-anchor': 'middle'}, 'labeled images per class'));
}

function tableOf(names, rows) {
  const most = rows.map(row => Math.max(1, row.reduce((sum, n) => sum + n, 0)));
  const head = make('tr', {}, make('td', {}), ...names.map(name => make('th', {scope: 'col'}, make('span', {}, name))));
  return make('div', {class: 'confusion', tabindex: 0, role: 'region', 'aria-label': 'Confusion matrix'},
    make('table', {}, make('thead', {}, head), make('tbody', {}, ...rows.map((row, i) => make('tr', {},
      make('th', {scope: 'row'}, names[i]), ...row.map((n, j) => {
        const share = n / most[i];
        return make('td', {class: i === j ? 'good' : 'bad', style: `--share: ${Math.round(100 * share)}%`,
          title: `${n} of class ${names[i]} predicted as ${names[j]}`, 'data-high': share > 0.5}, n ? String(n) : '');
      }))))));
}

function classesOf(classes) {
  return make('ul', {class: 'classes'}, ...classes.map(({label, rows, score}) => make('li', {},
    make('span', {class: 'name'}, label), make('span', {class: 'gauge'},
      make('span', {style: `width: ${score === null ? 0 : 100 * score}%`})),
    make('span', {class: 'value'}, score === null ? 'not measured' : percent(score)),
    make('span', {class: 'rows'}, `${rows} ${rows === 1 ? 'image' : 'images'}`))));
}

const part = (title, note, ...inside) => make('section', {}, make('h3', {}, title), make('p', {class: 'note'}, note), ...inside);

onValue(value => {
  root.className = 'probe-report';
  root.hidden = !value;
  if (!value) return;
  const head = make('header', {}, make('div', {class: 'score'},
    make('strong', {}, value.score === null ? '–' : percent(value.score)),
    make('span', {}, value.score === null ? 'not measured' : value.measure)),
  make('div', {}, make('h2', {}, value.name), make('p', {}, value.summary.join(' '))),
  make('a', {class: 'plain-button', href: value.href, download: ''}, 'Download the probe'));
  const parts = [part('Accuracy per label', 'Share of the held-out images that were predicted correctly.', classesOf(value.classes))];
  if (value.confusion) parts.push(part('Confusion matrix', 'Rows are the true labels, columns the predictions.',
    tableOf(value.classes.map(one => one.label), value.confusion)));
  if (value.curve.length) parts.push(part('Accuracy with fewer labels',
    'The thin lines show the spread over several random samples. If the curve still rises, label more images.',
    make('div', {class: 'curve'}, curveOf(value.curve))));
  root.replaceChildren(head, make('div', {class: 'parts'}, ...parts));
});
