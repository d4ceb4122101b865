// Unit tests of the modules of the web app that need no page: `node --test tests/app`.
import assert from 'node:assert/strict';
import test from 'node:test';

const WEB = '../../app/web';
let hides;
// what a module of the page reads when it is loaded
globalThis.document = {
  baseURI: 'http://localhost/',
  getElementById: () => ({children: [], append() {}}),
  addEventListener(name, action) {
    if (name === 'visibilitychange') hides ??= action;
  },
  createElement: () => ({setAttribute() {}, append() {}, style: {}}),
};
globalThis.addEventListener = () => {};
globalThis.localStorage = {getItem: () => null, setItem() {}};
globalThis.sessionStorage = globalThis.localStorage;
globalThis.HTMLElement = class {};
globalThis.matchMedia = () => ({});
globalThis.customElements = {define() {}};
globalThis.BroadcastChannel = class {
  // a real one keeps node alive
  addEventListener() {}
  postMessage() {}
};

const {layOut, lineAt, HEADING, GAP} = await import(`${WEB}/layout.js`);
const {csvOf} = await import(`${WEB}/csv.js`);
const {zipOf} = await import(`${WEB}/zip.js`);
const {curlOf, pythonOf} = await import(`${WEB}/call_text.js`);
const {COLORED, cssColor} = await import(`${WEB}/palette.js`);
const {Scatter} = await import(`${WEB}/scatter.js`);
const {Rows, flat, changed} = await import(`${WEB}/rows.js`);
const {follow} = await import(`${WEB}/edits.js`);
const {nameOf, passing, restFilter, textOf} = await import(`${WEB}/filters.js`);
const {percent, similarity} = await import(`${WEB}/dom.js`);
const {as, typed, typesOf} = await import(`${WEB}/labels.js`);
const {rest} = await import(`${WEB}/api.js`);
const {interval} = await import(`${WEB}/probe_panel.js`);
const {differenceOf} = await import(`${WEB}/encoders.js`);

function rowsOf(...all) {
  const rows = new Rows('photos');
  all.forEach((metadata, i) => rows.add(`id${i}`, metadata));
  rows.complete = true;
  return rows;
}

const passed = (rows, filters) => [...passing(rows, new Map(Object.entries(filters)))].join('');

test('tiles fill the width in equal columns, and headings begin a line', () => {
  const {side, lines} = layOut(7, 316, 100, place => (place < 4 ? '' : 'below'));
  assert.equal(side, (316 - 2 * GAP) / 3);
  assert.deepEqual(
    lines.map(one => [one.start, one.end, one.heading]),
    [
      [0, 3, undefined],
      [3, 4, undefined],
      [4, 4, 'below'],
      [4, 7, undefined],
    ],
  );
  assert.equal(lines[3].top - lines[2].top, HEADING);
  for (const line of lines.slice(1)) assert.equal(lines[lineAt(lines, line.top)], line);
  assert.equal(lineAt(lines, -5), 0);
});

test('nested metadata are keys with points; a key that is written so comes first', () => {
  assert.deepEqual(
    {...flat({cam: {model: 'X', lens: {f: 2}}, 'cam.model': 'Y', a: [1]})},
    {'cam.model': 'Y', 'cam.lens.f': 2, a: [1]},
  );
  assert.deepEqual({...changed({a: 1, b: 2}, {b: null, c: 3})}, {a: 1, c: 3});
});

test('keys that every object inherits are keys like others', () => {
  for (const key of ['constructor', 'hasOwnProperty', '__proto__', 'toString']) {
    const rows = rowsOf({}, JSON.parse(`{"${key}": "q"}`));
    assert.equal(nameOf(`inspection.${key}`), `inspection.${key}`);
    assert.deepEqual(rows.column(key).values, ['q']);
    assert.equal(rows.of('id0')[key], undefined);
    rows.set(new Map([['id0', {[key]: 'q'}]]));
    assert.equal(rows.of('id0')[key], 'q');
    rows.set(new Map([['id0', {[key]: null}]]));
    assert.deepEqual(Object.keys(rows.of('id0')), []);
  }
});

test('values are sorted by frequency, numbers are numeric, and a color stays', () => {
  const rows = rowsOf({label: 'cat', w: 0.5}, {label: 'dog', w: 1.5}, {label: 'dog'}, {});
  assert.deepEqual(rows.column('label').values, ['dog', 'cat']);
  assert.equal(rows.column('w').numeric, true);
  const before = rows.column('label').colors[0];
  rows.set(
    new Map([
      ['id1', {label: 'cat'}],
      ['id2', {label: 'cat'}],
    ]),
  );
  const {values, colors} = rows.column('label');
  assert.equal(values[0], 'cat');
  assert.equal(colors[values.indexOf('dog')] ?? before, before);
  assert.notEqual(colors[0], before);
});

test('filters pass values, ranges, images without a value, and wrong predictions, as REST does', () => {
  const rows = rowsOf(
    {label: 'cat', predicted_label: 'cat', w: 0.1},
    {label: 'dog', predicted_label: 'cat', w: 0.6},
    {predicted_label: 'dog', w: 0.9},
    {label: 3, predicted_label: '3'},
  );
  assert.equal(passed(rows, {label: {in: ['cat', 3]}}), '1001');
  assert.equal(passed(rows, {label: {in: [null, 'dog']}}), '0110');
  assert.equal(passed(rows, {w: {range: [0.5, 0.9]}}), '0110');
  assert.equal(passed(rows, {predicted_label: {differs: 'label'}}), '0100');
  const where = filters => restFilter(rows, new Map(Object.entries(filters)));
  assert.deepEqual(where({label: {in: ['cat']}}), {must: [{key: 'label', in: ['cat']}]});
  assert.deepEqual(where({label: {in: [null, 'dog']}}), {
    must: [
      {
        should: [
          {key: 'label', in: ['dog']},
          {key: 'label', exists: false},
        ],
      },
    ],
  });
  assert.deepEqual(where({predicted_label: {differs: 'label'}}), {must: [{ids: ['id1']}]});
  assert.equal(where({}), null);
  rows.deleted.add(0);
  assert.equal(passed(rows, {}), '0111');
});

test('keys and conditions have names for people', () => {
  assert.deepEqual(['label', 'inspection.cluster', 'predicted_x', 'confidence_x', 'inspection.odd_one'].map(nameOf), [
    'label',
    'Cluster',
    'Predicted x',
    'Confidence in x',
    'inspection.odd_one',
  ]);
  assert.equal(textOf('label', {in: [null, 'a']}), 'label: none or 1 more');
});

test('similarity has three steps, and none below chance', () => {
  assert.deepEqual(
    [0.9995, 0.995, 0.96, 0.94].map(share => similarity(share).steps),
    [3, 2, 1, 0],
  );
  assert.equal(similarity(null), null);
  assert.deepEqual([0.482, 0.99951, null].map(percent), ['48.2%', '>99.9%', '']);
});

test('a text gets the type of the existing values', () => {
  assert.deepEqual(
    [typed('3', [3, 4]), typed('5', [3, 4]), typed('5', ['a']), typed('true', [false]), typed('x', [])],
    [3, 5, '5', true, 'x'],
  );
});

test('letters that look the same are the same label', () => {
  const [composed, decomposed] = ['\u00e9', 'e\u0301'];
  assert.equal(typed(composed, [decomposed]), decomposed);
  assert.equal(typed(decomposed, [composed]), composed);
  assert.equal(typed(decomposed, []), composed);
});

test('a column of a table has the types that fit all of its cells, the best first', () => {
  assert.deepEqual(typesOf(['7', '1.5'], []), ['number', 'text']);
  assert.deepEqual(typesOf(['07', '1.5'], []), ['text', 'number']);
  assert.deepEqual(typesOf(['7', '1.5'], ['8']), ['text', 'number']);
  assert.deepEqual(typesOf(['true', 'false'], []), ['true or false', 'text']);
  assert.deepEqual(typesOf(['7', 'x'], []), ['text']);
  assert.deepEqual(typesOf([], []), ['text']);
  assert.deepEqual(
    [as('number', '07'), as('text', 7), as('true or false', 'true'), as('number', ['1', '2'])],
    [7, '7', true, [1, 2]],
  );
});

test('a table quotes, and does not run formulas', () => {
  const rows = rowsOf({label: 'a,"b"', n: -1, f: '=1+1'});
  assert.equal(csvOf(rows, [0]), 'id,label,n,f\nid0,"a,""b""",-1,\'=1+1\n');
});

test('a zip has the checksums and offsets of its files', async () => {
  const data = new TextEncoder().encode('123456789');
  const bytes = new DataView(
    await zipOf([
      {name: 'ä.txt', data},
      {name: 'b', data},
    ]).arrayBuffer(),
  );
  assert.equal(bytes.getUint32(14, true), 0xcbf43926); // CRC-32 of 123456789
  const end = bytes.byteLength - 22;
  assert.deepEqual([bytes.getUint32(end, true), bytes.getUint16(end + 10, true)], [0x06054b50, 2]);
  assert.equal(bytes.getUint32(bytes.getUint32(end + 16, true), true), 0x02014b50);
});

test('a call is the same in curl and in Python', () => {
  const call = {method: 'POST', path: '/api/v1/x?y=1', body: {label: "it's", n: null, ok: true}};
  assert.equal(
    curlOf(call, 'http://h', true).split('\\\n')[0],
    'curl -sS -H "Authorization: Bearer $NNCLR_API_KEY" -X POST \'http://h/api/v1/x?y=1\' ',
  );
  assert.match(pythonOf(call, 'http://h', false), /json=\{"label": "it's", "n": None, "ok": True\}/);
});

test('the first values have different colors, the others one', () => {
  assert.ok(COLORED >= 19);
  assert.equal(new Set(Array.from({length: COLORED}, (_, i) => cssColor(i))).size, COLORED);
  assert.equal(cssColor(COLORED), cssColor(COLORED + 5));
});

test('a lasso holds the points inside it, and a click finds the nearest', () => {
  const plot = Object.assign(Object.create(Scatter.prototype), {
    places: Float32Array.from([0, 0, 1, 1, 3, 0]),
    zoom: 10,
    center: [0, 0],
    canvas: {clientWidth: 100, clientHeight: 100},
  });
  assert.deepEqual(plot.pixel(1), [60, 40]);
  assert.deepEqual(
    plot.inside([
      [45, 35],
      [65, 35],
      [65, 55],
      [45, 55],
    ]),
    [0, 1],
  );
  assert.equal(plot.nearest(62, 41, 5), 1);
  assert.equal(plot.nearest(70, 41, 5), -1);
});

test('an interval of a share holds it', () => {
  assert.deepEqual(interval(0.5, 100), [40, 60]);
  assert.deepEqual(interval(1, 0), [0, 100]);
});

test('a request that the server refuses for now is repeated a few times', async t => {
  let sent = 0;
  t.mock.method(globalThis, 'setTimeout', done => queueMicrotask(done));
  t.mock.method(globalThis, 'fetch', async url => {
    if (url.pathname.endsWith('/readyz')) return new Response();
    assert.ok(++sent < 100);
    return Response.json({code: 'not_ready', detail: 'A worker failed.'}, {status: 503});
  });
  await assert.rejects(rest('GET', 'collections'), {code: 'not_ready', message: 'A worker failed.'});
  assert.equal(sent, 6);
});

test('a difference is read with its interval and its chance', () => {
  const [own, from, to] = [0, -0.175, 0.175];
  assert.equal(differenceOf({mean: own, low: from, high: to, p: 1}), '+0.0 (-17.5 to +17.5), p 1.000');
  assert.equal(differenceOf({mean: 0.1, low: 0.05, high: 0.15, p: 0.0421}), '+10.0 (+5.0 to +15.0), p .042');
  assert.equal(differenceOf({mean: 0.1, low: 0.05, high: 0.15, p: 0.0001}), '+10.0 (+5.0 to +15.0), p < .001');
});

test('what is deleted or found while the items load stays so', async t => {
  const rows = new Rows('photos');
  const item = id => ({id, metadata: {}});
  const pages = [
    () => ({items: [item('a'), item('b'), item('d')], cursor: 'next'}),
    () => {
      rows.remove(['b', 'c', 'd']); // while this page is under way
      rows.take([item('d')]); // it was created again
      rows.add('0', {}); // a search found it; the load has passed it
      rows.add('b', {}); // by a search that began before
      return {items: [item('c'), item('e')], cursor: null};
    },
    () => ({items: [item('c')], cursor: null}),
  ];
  t.mock.method(globalThis, 'fetch', async () => Response.json(pages.shift()()));
  const shown = () => rows.ids.filter((_, row) => !rows.deleted.has(row)).sort();
  await rows.load(undefined, () => {});
  assert.deepEqual(shown(), ['0', 'a', 'd', 'e']);
  await rows.load(undefined, () => {});
  assert.deepEqual(shown(), ['c']);
});

test('a page reads everything again if its collection was replaced', async t => {
  let [log, last, reloads, focus] = ['first', 5, 0, null];
  t.mock.method(globalThis, 'addEventListener', (_, action) => (focus = action));
  t.mock.method(globalThis, 'fetch', async url => {
    const asked = url.searchParams;
    if (!url.pathname.endsWith('/changes')) return Response.json({durable_seq: last});
    if ((asked.get('log') ?? log) !== log || asked.get('since') > last)
      return Response.json({code: 'changes_unavailable'}, {status: 410});
    return Response.json({changes: [], next: last, last, log});
  });
  const comes = async () => (await focus(), reloads);
  follow('photos', 5, undefined, async () => void reloads++);
  assert.equal(await comes(), 0);
  for (const [place, seq] of [7, 3, 9].entries()) {
    [log, last] = [`log ${place}`, seq];
    assert.deepEqual([await comes(), await comes()], [place + 1, place + 1]);
  }
  follow('photos', 50, undefined, async () => void reloads++); // replaced before its log was known
  await new Promise(done => setTimeout(done));
  last = 60;
  assert.deepEqual([await comes(), await comes()], [4, 4]);
});

test('a reload says how many changes were too long to keep', async t => {
  t.mock.timers.enable({apis: ['setTimeout']});
  let hide, stored;
  const said = [];
  t.mock.method(document, 'addEventListener', (_, action) => (hide = action));
  const note = (...parts) => said.push(...parts.filter(one => typeof one === 'string'));
  const made = () => {
    const element = new Proxy(() => element, {get: (_, key) => (key === 'append' ? note : element), set: () => true});
    return element; // which has every property
  };
  t.mock.method(document, 'createElement', made);
  Object.assign(document, {querySelectorAll: () => [], createElementNS: made, body: {append() {}}});
  t.mock.method(sessionStorage, 'getItem', () => stored);
  t.mock.method(sessionStorage, 'setItem', (_, text) => (stored = text));
  sessionStorage.removeItem = () => {};
  const edit = size => ({collection: 'c', text: `${size}`, before: [['a', {k: 'x'.repeat(size)}]], after: []});
  stored = JSON.stringify([[edit(7), edit(600_000), edit(600_001), edit(8)], [], 0]);
  const {undoable} = await import(`${WEB}/edits.js?before`);
  assert.deepEqual([undoable().length, said], [4, []]);
  hide();
  const after = await import(`${WEB}/edits.js?after`);
  assert.deepEqual(
    after.undoable().map(one => one.text),
    ['8', '600001'],
  );
  assert.match(said.join(), /2 older changes cannot be undone/);
});

test('a full storage does not keep what older lists could undo', t => {
  t.mock.method(sessionStorage, 'setItem', () => {
    throw new Error('QuotaExceededError');
  });
  const removed = [];
  sessionStorage.removeItem = key => removed.push(key);
  hides();
  assert.deepEqual(removed, ['edits']);
});
