// <image-grid>: all images of the view in justified rows, of which only those near the screen are in the page.
//
// One tab stop: arrows move, Enter finds similar images, Space selects, V opens the viewer, + and - refine the search,
// L and 1 to 9 label, Delete deletes. A double click opens the image under its first press.
import {deleteRows} from './deletion.js';
import {button, make, nearer, percent, sayError} from './dom.js';
import {onSecondPress, pressed} from './double_click.js';
import {GAP, layOut, lineAt} from './layout.js';

const MARGIN = 600; // pixels above and below the screen in which images are loaded, too

class ImageGrid extends HTMLElement {
  /**
   * @param {import('./explorer.js').Explorer} explorer
   * @param {(row: number) => void} open shows a row in the viewer
   * @param {import('./labels.js').Labels | null} labels null: the caller may not write
   */
  constructor(explorer, open, labels) {
    super();
    this.labels = labels;
    this.explorer = explorer;
    this.open = open;
    this.size = Number(localStorage.getItem('size')) || 150;
    /** Width over height by row, where it is known. @type {Map<number, number>} */
    this.aspects = new Map();
    /** @type {import('./layout.js').Line[]} */
    this.lines = [];
    /** @type {Map<number, HTMLElement>} */
    this.tiles = new Map();
    this.anchor = 0;
    this.sheet = make('div', {class: 'sheet', role: 'listbox', tabindex: 0, 'aria-label': 'Images', 'aria-multiselectable': 'true',
      onclick: (/** @type {MouseEvent} */ event) => this._click(event),
      onkeydown: (/** @type {KeyboardEvent} */ event) => this._key(event), oncontextmenu: (/** @type {MouseEvent} */ event) => this._hold(event),
      onpointerover: (/** @type {PointerEvent} */ event) => this._onRow(/** @type {Element} */ (event.target), row => this._showActions(row)),
      onfocus: () => { if (explorer.focus === null && explorer.view.length) explorer.setFocus(explorer.view[0]); }});
    this.actions = make('div', {class: 'actions', role: 'toolbar', 'aria-label': 'Actions on an image', hidden: true},
      button('similar', 'Find similar images', () => explorer.similarTo(this.acted), {quiet: true}),
      button('add', 'More like this', () => explorer.refine([this.acted], 'positive'), {quiet: true}),
      button('less', 'Less like this', () => explorer.refine([this.acted], 'negative'), {quiet: true}),
      button('view', 'Open in the viewer', () => open(this.acted), {quiet: true}));
    for (const one of this.actions.children) one.tabIndex = -1; // the keys of the grid do the same
    this.acted = 0;
    /** Where the pointer is. @type {[number, number] | null} */
    this.pointer = null;
    /** @type {number[]} */
    this.shown = [];
    this.relaying = false;
    this.empty = make('p', {class: 'empty', hidden: true});
    this.scroller = make('div', {class: 'scroller', onscroll: () => this._draw(),
      onpointermove: (/** @type {PointerEvent} */ event) => { this.pointer = [event.clientX, event.clientY]; },
      onpointerleave: () => { this.actions.hidden = true; this.pointer = null; }},
      this.sheet, this.actions, this.empty);
    this.replaceChildren(this.scroller);
    const redraw = () => this.relayout();
    explorer.addEventListener('view', redraw);
    explorer.addEventListener('selection', () => this._mark());
    explorer.addEventListener('focus', () => this._mark(true));
    explorer.addEventListener('query', () => this.classList.toggle('waiting', explorer.searching));
    new ResizeObserver(() => this.relayout(true)).observe(this.scroller);
  }

  /** @param {number} size height of the lines in pixels */
  resize(size) {
    this.size = size;
    localStorage.setItem('size', String(size));
    this.relayout(true);
  }

  /** Lay out again. @param {boolean} [stay] keep the first visible image where it is */
  relayout(stay = false) {
    const {explorer, scroller} = this;
    if (!scroller.clientWidth) return;
    const before = this.lines[lineAt(this.lines, scroller.scrollTop)];
    const offset = before ? scroller.scrollTop - before.top : 0;
    const changed = this.shown !== explorer.view;
    if (changed) for (const tile of this.tiles.values()) tile.dataset.old = '';
    const view = this.shown = explorer.view;
    const heading = explorer.group ? (/** @type {number} */ place) => explorer.groupOf(view[place]) : undefined;
    this.lines = layOut(view.length, place => this.aspects.get(view[place]) ?? 1, scroller.clientWidth - 2 * GAP, this.size, heading);
    const last = this.lines.at(-1);
    this.sheet.style.height = `${last ? last.top + last.height : 0}px`;
    if (before && (stay || !explorer.rows.complete)) {
      const line = this.lines.find(one => one.end > before.start);
      if (line) scroller.scrollTop = line.top + offset;
    } else if (changed) {
      scroller.scrollTop = 0;
    }
    if (!explorer.searching) this.classList.remove('waiting'); // else this layout is of the matches before
    this.empty.hidden = view.length > 0 || !explorer.rows.complete;
    this.empty.textContent = explorer.rows.ids.length ? 'No image passes the filters.' : 'This collection is empty: add images under Collections.';
    this._draw();
  }

  _draw() {
    const {explorer, scroller, lines, tiles} = this;
    this.actions.hidden = true;
    const top = scroller.scrollTop, bottom = top + scroller.clientHeight;
    const first = lineAt(lines, top - MARGIN);
    /** @type {Set<number>} */
    const near = new Set();
    for (const heading of this.sheet.querySelectorAll('.heading')) heading.remove();
    for (let i = first; i < lines.length && lines[i].top < bottom + MARGIN; i++) {
      const line = lines[i];
      if (line.heading !== undefined) {
        const heading = make('div', {class: 'heading', 'aria-hidden': 'true'}, `${explorer.group}: ${explorer.rows.text(line.heading)}`);
        heading.style.top = `${line.top}px`;
        this.sheet.append(heading);
      }
      let left = GAP;
      for (let place = line.start; place < line.end; place++) {
        const row = explorer.view[place];
        near.add(row);
        const tile = tiles.get(row) ?? this._tile(row);
        const width = line.height * (this.aspects.get(row) ?? 1);
        Object.assign(tile.style, {left: `${left}px`, top: `${line.top}px`, width: `${width}px`, height: `${line.height}px`});
        tile.setAttribute('aria-posinset', String(place + 1));
        tile.setAttribute('aria-setsize', String(explorer.view.length));
        this._score(tile, row);
        left += width + GAP;
      }
    }
    for (const [row, tile] of tiles) {
      if (near.has(row)) continue;
      tile.remove();
      tiles.delete(row);
    }
    this._mark();
    // what is under the pointer now, without a move of it
    const under = this.pointer && document.elementsFromPoint(...this.pointer).find(one => one.matches('.tile'));
    if (under) this._onRow(under, row => this._showActions(row));
    if (explorer.hasMore && bottom > scroller.scrollHeight - MARGIN) explorer.more();
  }

  /** @param {number} row @returns {HTMLElement} */
  _tile(row) {
    const {explorer} = this;
    const image = make('img', {alt: '', decoding: 'async',
      onload: () => this._learn(row, image), onerror: () => tile.classList.add('broken')});
    const tile = make('div', {role: 'option', id: `row-${row}`, class: 'tile', 'data-row': row, 'data-id': explorer.rows.ids[row], 'aria-selected': 'false'},
      image, make('span', {class: 'box', 'aria-hidden': 'true'}));
    this.sheet.append(tile);
    explorer.rows.thumbnails.show(image, row);
    this.tiles.set(row, tile);
    return tile;
  }

  /** @param {HTMLElement} tile @param {number} row */
  _score(tile, row) {
    const match = this.explorer.matches?.get(row), title = this.explorer.rows.title(row);
    const score = match?.score.toFixed(3), share = percent(match?.percentile), meaning = nearer(match?.percentile);
    tile.setAttribute('aria-label', score ? `${title}, ${score} ${share && `${share} of random pairs are less similar`}`.trim() : title);
    tile.querySelector('.score')?.remove();
    if (match) tile.append(make('span', {class: 'score', 'aria-hidden': 'true', title: meaning || null}, `${score} `, share && make('small', {}, share)));
  }

  /** @param {number} row @param {HTMLImageElement} image */
  _learn(row, image) {
    const aspect = Math.min(4, Math.max(0.25, image.naturalWidth / image.naturalHeight));
    if (Math.abs((this.aspects.get(row) ?? 1) - aspect) < 0.01) return;
    this.aspects.set(row, aspect);
    if (this.relaying) return;
    this.relaying = true;
    requestAnimationFrame(() => { this.relaying = false; this.relayout(true); });
  }

  /** Show what is selected and focused. @param {boolean} [scroll] bring the focused image to the screen */
  _mark(scroll = false) {
    const {explorer, tiles, scroller} = this;
    for (const [row, tile] of tiles) {
      tile.setAttribute('aria-selected', String(explorer.selected.has(row)));
      tile.classList.toggle('focused', row === explorer.focus);
      const sign = explorer.query.positive.some(one => one.id === explorer.rows.ids[row]);
      tile.classList.toggle('asked', sign);
    }
    this.classList.toggle('selecting', explorer.selected.size > 0);
    if (explorer.focus !== null && tiles.has(explorer.focus)) this.sheet.setAttribute('aria-activedescendant', `row-${explorer.focus}`);
    else this.sheet.removeAttribute('aria-activedescendant');
    if (!scroll || explorer.focus === null) return;
    const place = explorer.view.indexOf(explorer.focus);
    const line = this.lines.find(one => one.start <= place && place < one.end);
    if (!line) return;
    if (line.top < scroller.scrollTop) scroller.scrollTop = line.top;
    else if (line.top + line.height > scroller.scrollTop + scroller.clientHeight) scroller.scrollTop = line.top + line.height - scroller.clientHeight;
  }

  /** @param {number} row */
  _showActions(row) {
    const tile = this.tiles.get(row);
    if (!tile || matchMedia('(hover: none)').matches) return;
    this.acted = row;
    this.actions.hidden = false;
    this.actions.style.top = `${tile.offsetTop + tile.offsetHeight - this.actions.offsetHeight}px`;
    this.actions.style.left = `${Math.max(GAP, tile.offsetLeft + (tile.offsetWidth - this.actions.offsetWidth) / 2)}px`;
  }

  /** @param {Element} target @param {(row: number) => void} act */
  _onRow(target, act) {
    const tile = target.closest('.tile');
    if (tile instanceof HTMLElement) act(Number(tile.dataset.row));
  }

  /** @param {MouseEvent} event */
  _click(event) {
    const {explorer} = this, target = pressed(event);
    this._onRow(target, row => {
      const box = target.classList.contains('box');
      if (event.shiftKey) this._selectTo(row);
      else if (box || event.ctrlKey || event.metaKey || explorer.selected.size > 0) this._toggle(row);
      else {
        onSecondPress(() => this.open(row));
        explorer.setFocus(row);
        explorer.similarTo(row);
      }
    });
  }

  /** A long touch selects. @param {MouseEvent} event */
  _hold(event) {
    if (!matchMedia('(hover: none)').matches) return;
    event.preventDefault();
    this._onRow(/** @type {Element} */ (event.target), row => this._toggle(row));
  }

  /** @param {number} row */
  _toggle(row) {
    this.anchor = this.explorer.view.indexOf(row);
    this.explorer.toggle(row);
  }

  /** Select from the last selected image to this one. @param {number} row */
  _selectTo(row) {
    const place = this.explorer.view.indexOf(row);
    const [low, high] = [Math.min(place, this.anchor), Math.max(place, this.anchor)];
    this.explorer.select(this.explorer.view.slice(low, high + 1), true);
  }

  /** Rows that keys label and delete: the selected ones, else the focused one. @returns {number[]} */
  get chosen() {
    const {explorer} = this;
    if (explorer.selected.size) return [...explorer.selected];
    return explorer.focus !== null && explorer.view.includes(explorer.focus) ? [explorer.focus] : explorer.view.slice(0, 1);
  }

  /** @param {KeyboardEvent} event */
  _key(event) {
    const {explorer} = this;
    if (event.altKey || (event.key !== 'a' && (event.ctrlKey || event.metaKey)) || !explorer.view.length) return;
    const place = Math.max(0, explorer.focus === null ? 0 : explorer.view.indexOf(explorer.focus));
    const row = explorer.view[place];
    /** @type {Record<string, () => void>} */
    const keys = {
      ArrowRight: () => this._move(place, place + 1, event.shiftKey),
      ArrowLeft: () => this._move(place, place - 1, event.shiftKey),
      ArrowDown: () => this._move(place, this._across(place, 1), event.shiftKey),
      ArrowUp: () => this._move(place, this._across(place, -1), event.shiftKey),
      Home: () => this._move(place, 0, event.shiftKey),
      End: () => this._move(place, explorer.view.length - 1, event.shiftKey),
      PageDown: () => this._move(place, this._across(place, this._linesOnScreen()), event.shiftKey),
      PageUp: () => this._move(place, this._across(place, -this._linesOnScreen()), event.shiftKey),
      Enter: () => explorer.similarTo(row),
      ' ': () => this._toggle(row),
      v: () => this.open(row),
      '+': () => explorer.refine([row], 'positive'),
      '-': () => explorer.refine([row], 'negative'),
      a: () => { if (event.ctrlKey || event.metaKey) explorer.select(explorer.view); },
      Escape: () => (explorer.selected.size ? explorer.select([]) : explorer.search({positive: [], negative: []})),
    };
    const {labels, chosen} = this;
    if (labels) Object.assign(keys, {l: () => labels.ask(chosen), Delete: () => deleteRows(explorer, chosen).catch(sayError)});
    if (labels?.press(event.key, chosen)) return event.preventDefault();
    const act = keys[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  }

  /** @param {number} from @param {number} to place in the view @param {boolean} select all on the way, too */
  _move(from, to, select) {
    const {explorer} = this;
    to = Math.min(explorer.view.length - 1, Math.max(0, to));
    if (select) explorer.select(explorer.view.slice(Math.min(from, to), Math.max(from, to) + 1), true);
    explorer.setFocus(explorer.view[to]);
  }

  /** Place of the image that is some lines further, nearest to the same x. @param {number} place @param {number} by */
  _across(place, by) {
    const lines = this.lines.filter(one => one.heading === undefined);
    const own = lines.findIndex(one => one.start <= place && place < one.end);
    const line = lines[Math.min(lines.length - 1, Math.max(0, own + by))];
    const share = (place - lines[own].start + 0.5) / (lines[own].end - lines[own].start);
    return line.start + Math.min(line.end - line.start - 1, Math.floor(share * (line.end - line.start)));
  }

  _linesOnScreen() {
    return Math.max(1, Math.floor(this.scroller.clientHeight / (this.size + GAP)) - 1);
  }
}

customElements.define('image-grid', ImageGrid);
export {ImageGrid};
