// Drawing: see drawing.py. Shapes are stored in pixels of the upright image and drawn in percent, so they fit any size.
const kinds = settings.draws;
const TAP = 4; // CSS pixels; a shorter movement is a click
let size = [1, 1], start = null, drawingByTouch = false, shape = {box: null, point: null};
const image = make('img', {alt: settings.alt, draggable: 'false'});
const boxMark = make('div', {class: 'box-mark', hidden: true});
const pointMark = make('div', {class: 'point-mark', hidden: true});
const stage = make('div', {class: 'stage'}, image, boxMark, pointMark);
const touchSwitch = make('button', {type: 'button', class: 'draw-switch', 'aria-pressed': 'false',
  onclick: () => setTouch(!drawingByTouch)}, 'Draw with a finger');
const clear = make('button', {type: 'button', hidden: true, onclick: () => finish({box: null, point: null})},
  kinds.includes('box') ? 'Whole image' : 'Remove point');
const fields = Object.fromEntries(kinds.map(kind => [kind, (kind === 'box' ? ['x0', 'y0', 'x1', 'y1'] : ['x', 'y']).map(
  name => make('input', {type: 'number', step: 'any', min: 0, name, onchange: () => fromFields(kind)}))]));
const numbers = make('details', {class: 'numbers'}, make('summary', {}, 'Enter coordinates'),
  ...kinds.map(kind => make('fieldset', {class: 'fields'}, make('legend', {}, kind === 'box' ? 'Box' : 'Point'),
    ...fields[kind].map(field => make('label', {}, field.name, field)))));
const HINTS = {'box': 'Drag a box to search by a part of the image.', 'point': 'Click a point.',
  'box point': 'Click a point or drag a box.'};
const hint = make('p', {class: 'hint'}, HINTS[[...kinds].sort().join(' ')]);
const hasTouch = window.matchMedia('(any-pointer: coarse)').matches;
const tools = make('div', {class: 'drawing-tools'}, hasTouch && kinds.includes('box') ? touchSwitch : null, hint, clear);
root.className = 'drawing';
root.append(stage, tools, numbers);

function setTouch(on) {
  drawingByTouch = on;
  touchSwitch.setAttribute('aria-pressed', String(on));
  stage.style.touchAction = on ? 'none' : 'auto'; // a finger draws, otherwise it scrolls
}

function toPixels(event) {
  const rect = image.getBoundingClientRect();
  const within = (offset, length) => Math.min(Math.max(offset / length, 0), 1);
  return [within(event.clientX - rect.left, rect.width) * size[0],
    within(event.clientY - rect.top, rect.height) * size[1]];
}

function boxOf([x0, y0], [x1, y1]) {
  return [Math.min(x0, x1), Math.min(y0, y1), Math.max(x0, x1), Math.max(y0, y1)];
}

function showShape() {
  const percent = (value, axis) => `${100 * value / size[axis]}%`;
  boxMark.hidden = !shape.box;
  pointMark.hidden = !shape.point;
  clear.hidden = !shape.box && !shape.point;
  hint.hidden = !clear.hidden;
  if (shape.box) {
    const [x0, y0, x1, y1] = shape.box;
    Object.assign(boxMark.style, {left: percent(x0, 0), top: percent(y0, 1),
      width: percent(x1 - x0, 0), height: percent(y1 - y0, 1)});
  }
  if (shape.point) Object.assign(pointMark.style, {left: percent(shape.point[0], 0), top: percent(shape.point[1], 1)});
  for (const kind of kinds) {
    fields[kind].forEach((field, i) => { field.value = shape[kind] ? Math.round(shape[kind][i] * 10) / 10 : ''; });
  }
}

function finish(next) {
  const previous = shape;
  shape = next;
  showShape();
  if (next.point) trigger('point', {point: next.point});
  else if (next.box || previous.box || kinds.includes('box')) trigger('box', {box: next.box});
  else trigger('point', {point: null});
}

function fromFields(kind) {
  const values = fields[kind].map(field => field.value === '' ? NaN : Number(field.value));
  if (!values.some(Number.isNaN)) finish({box: null, point: null, [kind]: values});
}

stage.addEventListener('pointerdown', event => {
  if (event.button !== 0 || !props.value) return;
  start = {pixels: toPixels(event), x: event.clientX, y: event.clientY, id: event.pointerId};
  if (event.pointerType !== 'touch' || drawingByTouch) stage.setPointerCapture(event.pointerId);
});
stage.addEventListener('pointermove', event => {
  if (!start || event.pointerId !== start.id || !kinds.includes('box')) return;
  if (event.pointerType === 'touch' && !drawingByTouch) return;
  if (Math.hypot(event.clientX - start.x, event.clientY - start.y) < TAP) return;
  shape = {box: boxOf(start.pixels, toPixels(event)), point: null};
  showShape();
});
stage.addEventListener('pointerup', event => {
  if (!start || event.pointerId !== start.id) return;
  const moved = Math.hypot(event.clientX - start.x, event.clientY - start.y) >= TAP;
  const pixels = toPixels(event), from = start.pixels, finger = event.pointerType === 'touch' && !drawingByTouch;
  start = null;
  if (moved && kinds.includes('box') && !finger) finish({box: boxOf(from, pixels), point: null});
  else if (!moved && kinds.includes('point')) finish({box: null, point: pixels.map((value, i) => Math.min(value, size[i] - 0.01))});
});
stage.addEventListener('pointercancel', () => { start = null; });

onValue(value => {
  stage.hidden = tools.hidden = numbers.hidden = !value;
  if (!value) { image.removeAttribute('src'); return; }
  size = [value.width, value.height];
  image.src = value.src;
  shape = {box: value.box, point: value.point};
  showShape();
});
