// <item-map>: the collection as points; what is near looks alike. A drag moves, a wheel or a pinch zooms, a lasso
// chooses.
import {pages, path, rest} from './api.js';
import {iconButton, keyed, later, make, sayError, textButton} from './dom.js';
import {endsOf} from './facets.js';
import {changesSince, inspect, running} from './findings.js';
import {nameOf, passing, short} from './filters.js';
import {jobBar} from './jobs.js';
import {COLORED, PLAIN, colorOf, cssColor, shade} from './palette.js';
import {Scatter} from './scatter.js';

const CLUSTER = 'inspection.cluster';
const ISLANDS = 30; // names on the map
const OTHERS = 'others'; // values that share the gray
const MOST_ADDED = 10_000; // items that are placed without a new inspection
const STEP = 40; // pixels, per press of an arrow key
const NEAR = 12; // pixels from a point to the pointer; the keyboard reaches everything
const THUMBNAILS = 40; // are shown when no more points than this are on the screen

class ItemMap extends HTMLElement {
  /** @param {import('./explorer.js').Explorer} explorer @param {boolean} canWrite */
  constructor(explorer, canWrite) {
    super();
    this.explorer = explorer;
    this.canWrite = canWrite;
    /** Row of each point, -1 for an item that was deleted since. */
    this.rows = new Int32Array();
    /** @type {Scatter | null} */
    this.scatter = null;
    this.due = false;
    this.lassoing = false;
    /** Whether the view was moved from that of the whole map. */
    this.moved = false;
    /** Where the pressed pointers are; two zoom. @type {Map<number, [number, number]>} */
    this.pointers = new Map();
    this.keys = '';
    this.canvas = make('canvas', {role: 'img', 'aria-label': 'Map of the images'});
    this.drawing = make('canvas.lasso', {'aria-hidden': 'true'});
    this.thumbnails = make('div.thumbnails', {'aria-hidden': 'true'});
    this.preview = make('img.preview', {alt: '', hidden: true});
    this.note = make('div.stack.note');
    this.legend = make('div.legend', {role: 'group', 'aria-label': 'Legend: click hides, double click shows only one'});
    this.names = make('div.islands', {'aria-hidden': 'true'});
    /** Values whose points are hidden. @type {Set<any>} */
    this.out = new Set();
    /** The middle of each cluster, the largest first. @type {{cluster: any, x: number, y: number, rows: number[]}[]} */
    this.islands = [];
    this.colorBy = make('select', {
      'aria-label': 'Color by',
      onchange: () => {
        localStorage.setItem(`color ${explorer.name}`, this.colorBy.value);
        this.out.clear();
        this._color();
        explorer.colorBy(this.colorBy.value);
      },
    });
    this.lasso = iconButton('lasso', 'Choose an area', () => {
      this.lassoing = !this.lassoing;
      this.lasso.setAttribute('aria-pressed', String(this.lassoing));
    });
    this.surface = make(
      'div.surface',
      {
        tabindex: 0,
        role: 'application',
        'aria-label': 'Map: arrow keys move it, + and - zoom, Enter searches for the image in the middle',
        onkeydown: event => this._key(event),
        onblur: () => {
          this.preview.hidden = true;
        },
        onpointerdown: event => this._press(event),
        onpointermove: event => this._hover(event),
        onpointerleave: () => {
          this.preview.hidden = true;
        },
        onwheel: event => this._wheel(event),
      },
      [this.canvas, this.thumbnails, this.names, this.drawing, this.preview],
    );
    this.tools = make('div.tools', {hidden: true}, [
      this.colorBy,
      this.lasso,
      iconButton('view', 'Show the whole map', () => {
        this.moved = false;
        this.scatter?.fit();
        this._draw();
      }),
    ]);
    this.append(this.tools, this.note, this.surface, this.legend);
    explorer.addEventListener('rows', () => this._fillKeys());
    const color = later(() => this._color());
    for (const event of ['view', 'selection', 'query', 'focus']) explorer.addEventListener(event, color);
    new ResizeObserver(() => {
      if (!this.moved) this.scatter?.fit();
      this._draw();
    }).observe(this.surface);
  }

  /** Load the newest inspection; without one, offer to make it. Call this when all items are loaded. */
  async load() {
    const {explorer} = this,
      all = path(explorer.name, 'inspections');
    const [number] = (await rest('GET', all)).inspections;
    const job = await running(explorer.name);
    if (number === undefined) {
      this.note.replaceChildren(
        this._start('A map puts images that look alike next to each other.', 'Make the map', job),
      );
      return;
    }
    const own = `${all}/${number}`;
    const about = await rest('GET', own);
    const [{ids}, places, added, since] = await Promise.all([
      rest('GET', `${own}/ids`),
      rest('GET', `${own}/coordinates`, {as: 'buffer'}),
      about.current ? [] : placements(own),
      changesSince(explorer.name, about),
    ]);
    this.rows = Int32Array.from([...ids, ...added.map(one => one.id)], id => explorer.rows.rowOf.get(id) ?? -1);
    this.tools.hidden = false;
    this.scatter ??= new Scatter(this.canvas);
    this.scatter.setPlaces(Float32Array.from([...new Float32Array(places), ...added.flatMap(one => [one.x, one.y])]));
    this.islands = this._findIslands();
    this._fillKeys();
    this.note.replaceChildren(since && this._start(since, 'Arrange again', job));
    this._color();
  }

  /** Offer the keys that the items have now. */
  _fillKeys() {
    const {explorer} = this,
      keys = explorer.rows.keys;
    if (!this.scatter || keys.join() === this.keys) return;
    this.keys = keys.join();
    const kept = localStorage.getItem(`color ${explorer.name}`) ?? explorer.field;
    this.colorBy.replaceChildren(
      make('option', {value: ''}, 'One color'),
      ...keys.map(key => make('option', {value: key}, `Color by ${nameOf(key)}`)),
    );
    this.colorBy.value = keys.includes(kept) ? kept : '';
    explorer.colorBy(this.colorBy.value);
  }

  /** @param {string} text @param {string} action @param {string} [job] that runs already */
  _start(text, action, job) {
    const bar = jobBar('Making the map');
    const go = async () => {
      start.hidden = true;
      try {
        await inspect(this.explorer.name, bar);
        if (!this.isConnected) return; // another page is shown
        await this.explorer.load(); // the findings are fields of the items
        await this.load();
      } catch (error) {
        sayError(error);
        start.hidden = false;
      }
    };
    const start = textButton(action, go, 'button');
    if (job && this.canWrite) go();
    return make('p', `${text} `, this.canWrite ? start : '', bar.element);
  }

  // ---- drawing

  _draw() {
    if (this.due || !this.scatter) return;
    this.due = true;
    requestAnimationFrame(() => {
      this.due = false;
      this.scatter?.draw();
      this._placeNames();
      this._showThumbnails();
    });
  }

  /** Color the points: those of the view, those outside of it, and the ones that stand out. */
  _color() {
    const {explorer, scatter} = this;
    if (!scatter) return;
    const key = this.colorBy.value,
      column = key ? explorer.rows.column(key) : null;
    const passes = passing(explorer.rows, explorer.filters);
    const asked = new Set(
      [...explorer.query.positive, ...explorer.query.negative].map(one => explorer.rows.rowOf.get(one.id ?? '')),
    );
    const [low, high] = column?.numeric ? endsOf(column.numbers) : [0, 1];
    const colors = new Uint8Array(4 * this.rows.length);
    this.rows.forEach((row, i) => {
      if (row < 0 || explorer.rows.deleted.has(row)) return;
      const code = column?.codes[row]?.[0],
        value = code === undefined ? null : column?.values[code];
      const color =
        code === undefined || !column
          ? PLAIN
          : column.numeric
            ? shade((column.numbers[row] - low) / (high - low || 1))
            : colorOf(column.colors[code]);
      const isOut =
        this.out.has(value) ||
        (code !== undefined && this.out.has(OTHERS) && /** @type {any} */ (column).colors[code] >= COLORED);
      const shown =
        !isOut &&
        (explorer.matches
          ? explorer.matches.has(row)
          : passes[row] && (explorer.passed?.has(row) ?? true) && (explorer.area?.has(row) ?? true));
      const loud = explorer.selected.has(row) || asked.has(row) || row === explorer.focus;
      colors.set([...color, loud ? 255 : shown ? 215 : 36], 4 * i);
    });
    this._drawLegend(column);
    scatter.setColors(colors);
    this._draw();
  }

  /**
   * A click hides or shows the points of a value, a double click shows only them, or all again.
   * @param {import('./rows.js').Column | null} column
   */
  _drawLegend(column) {
    if (column?.numeric) {
      const [low, high] = endsOf(column.numbers),
        scale = make('span.scale');
      scale.style.background = `linear-gradient(90deg, ${[0, 0.5, 1].map(share => `rgb(${shade(share)})`)})`;
      return this.legend.replaceChildren(short(low), scale, short(high));
    }
    const existing = new Set(this.rows.filter(row => row >= 0).map(row => column?.codes[row]?.[0] ?? -1));
    const codes = [...existing].filter(code => code >= 0).sort((a, b) => a - b),
      own = codes.filter(code => /** @type {any} */ (column).colors[code] < COLORED);
    const entries = own.map(code => ({
      value: column?.values[code],
      text: this.explorer.rows.text(column?.values[code]),
      color: cssColor(/** @type {any} */ (column).colors[code]),
    }));
    if (own.length < codes.length)
      entries.push({value: OTHERS, text: `${codes.length - own.length} others`, color: `rgb(${PLAIN})`});
    if (column && existing.has(-1)) entries.push({value: null, text: 'none', color: `rgb(${PLAIN})`});
    const all = entries.map(one => one.value);
    keyed(
      this.legend,
      entries,
      one => `${typeof one.value} ${one.value}`,
      ({value, text, color}, before) => {
        const entry =
          before ??
          make('button', {onclick: () => entry.show(this.out.has(value)), ondblclick: () => entry.only()}, [
            make('span.swatch'),
            text,
          ]);
        entry.firstChild.style.background = color;
        entry.ariaPressed = String(!this.out.has(value));
        entry.show = (/** @type {boolean} */ on) => {
          if (on) this.out.delete(value);
          else this.out.add(value);
          this._color();
        };
        entry.only = () => {
          const isAlone = this.out.size === all.length - 1 && !this.out.has(value);
          this.out = new Set(isAlone ? [] : all.filter(one => one !== value));
          this._color();
        };
        return entry;
      },
    );
  }

  /** The clusters of the inspection, each in the middle of its points. */
  _findIslands() {
    const {
        explorer: {rows},
        scatter,
      } = this,
      column = rows.column(CLUSTER);
    /** @type {Map<number, number[]>} */
    const points = new Map();
    this.rows.forEach((row, i) => {
      const code = column.codes[row]?.[0];
      if (code !== undefined) points.set(code, [...(points.get(code) ?? []), i]);
    });
    const middle = (/** @type {number[]} */ numbers) => numbers.sort((a, b) => a - b)[numbers.length >> 1];
    return [...points]
      .sort(([, a], [, b]) => b.length - a.length)
      .slice(0, ISLANDS)
      .map(([code, own]) => ({
        cluster: column.values[code],
        rows: own.map(i => this.rows[i]),
        x: middle(own.map(i => /** @type {Scatter} */ (scatter).places[2 * i])),
        y: middle(own.map(i => /** @type {Scatter} */ (scatter).places[2 * i + 1])),
      }));
  }

  /** Write the commonest label of each cluster on it, where there is space. */
  _placeNames() {
    const {explorer, scatter} = this,
      column = explorer.rows.column(explorer.field),
      {clientWidth, clientHeight} = this.canvas;
    /** @type {[number, number, number][]} */
    const taken = [];
    const names = this.islands.flatMap(({x, y, rows, cluster}) => {
      const counts = new Map();
      for (const row of rows) for (const code of column.codes[row] ?? []) counts.set(code, (counts.get(code) ?? 0) + 1);
      const common = [...counts]
        .sort(([, a], [, b]) => b - a)
        .filter(([, number]) => number > rows.length / 4)
        .slice(0, 2)
        .map(([code]) => column.values[code]);
      // a mixed one has no name
      const text = common.length ? common.join(', ') : counts.size ? '' : `cluster ${cluster}`;
      const [left, top] = /** @type {Scatter} */ (scatter).pixelOf(x, y),
        wide = 4 * text.length + 6;
      const isFree = taken.every(([a, b, other]) => Math.abs(left - a) > wide + other || Math.abs(top - b) > 18);
      if (!text || !isFree || left < wide || top < 10 || left > clientWidth - wide || top > clientHeight - 10)
        return [];
      taken.push([left, top, wide]);
      return [{text, left, top, cluster}];
    });
    keyed(
      this.names,
      names,
      one => one.cluster,
      ({text, left, top}, before) => {
        const name = before ?? make('span');
        name.textContent = text;
        Object.assign(name.style, {left: `${left}px`, top: `${top}px`});
        return name;
      },
    );
  }

  _showThumbnails() {
    const {scatter, explorer} = this;
    if (!scatter) return;
    const {clientWidth, clientHeight} = this.canvas;
    /** @type {[number, number, number][]} */
    const near = [];
    for (let i = 0; i < this.rows.length && near.length <= THUMBNAILS; i++) {
      const [x, y] = scatter.pixel(i);
      if (this.rows[i] >= 0 && x > 0 && y > 0 && x < clientWidth && y < clientHeight) near.push([this.rows[i], x, y]);
    }
    keyed(
      this.thumbnails,
      near.length > THUMBNAILS ? [] : near,
      ([row]) => row,
      ([, x, y], image) => {
        image ??= make('img', {alt: ''});
        Object.assign(image.style, {left: `${x}px`, top: `${y}px`});
        return image;
      },
    );
    for (const image of this.thumbnails.children)
      if (!image.src) explorer.rows.thumbnails.show(image, Number(image.dataset.key));
  }

  // ---- pointer

  /** @param {PointerEvent} event @returns {[number, number]} */
  _at(event) {
    const {left, top} = this.canvas.getBoundingClientRect();
    return [event.clientX - left, event.clientY - top];
  }

  /** @param {PointerEvent} event */
  _press(event) {
    const {scatter} = this;
    if (!scatter || event.button) return;
    const start = this._at(event),
      lasso = this.lassoing || event.shiftKey;
    /** @type {[number, number][]} */
    const polygon = [start];
    let last = start,
      moved = false;
    this.pointers.set(event.pointerId, start);
    const move = (/** @type {PointerEvent} */ to) => {
      if (to.pointerId !== event.pointerId) return;
      const now = this._at(to),
        other = [...this.pointers].find(([id]) => id !== event.pointerId)?.[1];
      this.pointers.set(event.pointerId, now);
      moved ||= other !== undefined || Math.hypot(now[0] - start[0], now[1] - start[1]) > 4;
      if (other) {
        const far = (/** @type {number[]} */ from) => Math.hypot(from[0] - other[0], from[1] - other[1]) || 1;
        this.moved = true;
        scatter.zoomAt(far(now) / far(last), (now[0] + other[0]) / 2, (now[1] + other[1]) / 2);
        this._draw();
      } else if (lasso) {
        polygon.push(now);
        this._drawLasso(polygon);
      } else {
        scatter.pan(now[0] - last[0], now[1] - last[1]);
        this.moved = true;
        this._draw();
      }
      last = now;
    };
    const end = (/** @type {PointerEvent} */ to) => {
      if (to.pointerId !== event.pointerId) return;
      for (const [name, listener] of listeners) this.surface.removeEventListener(name, listener);
      this.pointers.delete(event.pointerId);
      this._drawLasso([]);
      if (to.type === 'pointercancel') return;
      if (lasso && moved) this._choose(scatter.inside(polygon), event);
      else if (!moved) this._click(...this._at(to));
    };
    this.surface.setPointerCapture(event.pointerId);
    /** @type {[string, any][]} */
    const listeners = [
      ['pointermove', move],
      ['pointerup', end],
      ['pointercancel', end],
    ];
    for (const [name, listener] of listeners) this.surface.addEventListener(name, listener);
  }

  /**
   * Show the chosen area; Alt takes it away from the area, Ctrl adds it.
   * @param {number[]} points
   * @param {PointerEvent} event
   */
  _choose(points, event) {
    const chosen = points.map(point => this.rows[point]).filter(row => row >= 0),
      before = this.explorer.area ?? new Set();
    const taken = new Set(chosen);
    if (event.altKey) this.explorer.within(new Set([...before].filter(row => !taken.has(row))));
    else this.explorer.within(new Set([...(event.ctrlKey ? before : []), ...chosen]));
    this.lassoing = false;
    this.lasso.setAttribute('aria-pressed', 'false');
  }

  /** @param {number} x @param {number} y @param {number} [reach] in pixels */
  _click(x, y, reach = NEAR) {
    const point = this.scatter?.nearest(x, y, reach) ?? -1;
    if (point >= 0 && this.rows[point] >= 0) this.explorer.similarTo(this.rows[point]);
  }

  /** @param {KeyboardEvent} event */
  _key(event) {
    const {scatter, canvas} = this,
      [x, y] = [canvas.clientWidth / 2, canvas.clientHeight / 2];
    /** @type {Record<string, () => void>} */
    const keys = {
      ArrowLeft: () => scatter?.pan(STEP, 0),
      ArrowRight: () => scatter?.pan(-STEP, 0),
      ArrowUp: () => scatter?.pan(0, STEP),
      ArrowDown: () => scatter?.pan(0, -STEP),
      '+': () => scatter?.zoomAt(1.3, x, y),
      '-': () => scatter?.zoomAt(1 / 1.3, x, y),
      Enter: () => this._click(x, y, Infinity),
    };
    if (!scatter || !keys[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    keys[event.key]();
    this.moved = true;
    this._draw();
    this._show(x, y, Infinity);
  }

  /** @param {PointerEvent} event */
  _hover(event) {
    if (!event.buttons) this._show(...this._at(event));
  }

  /**
   * Show the image of the point nearest to a place.
   * @param {number} x
   * @param {number} y
   * @param {number} [reach] in pixels
   */
  _show(x, y, reach = NEAR) {
    if (!this.scatter) return;
    const point = this.scatter.nearest(x, y, reach),
      row = point < 0 ? -1 : this.rows[point];
    this.preview.hidden = row < 0;
    if (row < 0) return;
    this.preview.src = this.explorer.rows.thumbnail(row);
    Object.assign(this.preview.style, {
      left: `${Math.min(x + 14, this.canvas.clientWidth - 140)}px`,
      top: `${Math.max(0, Math.min(y + 14, this.canvas.clientHeight - 140))}px`,
    });
  }

  /** @param {WheelEvent} event */
  _wheel(event) {
    event.preventDefault();
    const {left, top} = this.canvas.getBoundingClientRect();
    this.moved = true;
    this.scatter?.zoomAt(Math.exp(-event.deltaY / 300), event.clientX - left, event.clientY - top);
    this._draw();
  }

  /** @param {[number, number][]} polygon */
  _drawLasso(polygon) {
    const {drawing} = this;
    [drawing.width, drawing.height] = [drawing.clientWidth, drawing.clientHeight];
    const pen = drawing.getContext('2d');
    pen.strokeStyle = getComputedStyle(this).color;
    pen.lineWidth = 2;
    pen.beginPath();
    for (const [x, y] of polygon) pen.lineTo(x, y);
    pen.closePath();
    pen.stroke();
  }
}

/**
 * The places of items that are newer than an inspection.
 * @param {string} inspection
 * @returns {Promise<{id: string, x: number, y: number}[]>}
 */
async function placements(inspection) {
  const all = [];
  for await (const {items} of pages(`${inspection}/placements`, {})) {
    all.push(...items);
    if (all.length >= MOST_ADDED) break;
  }
  return all;
}

customElements.define('item-map', ItemMap);
export {ItemMap};
