// <image-grid>: all images of the view in square tiles, of which only those near the screen are in the page.
//
// A click opens an image next to the grid, a double click on the whole screen; the corner of a tile, Ctrl, or a long
// touch selects. One tab stop: see KEYS.
import {deleteRows} from './deletion.js';
import {CHANCE, iconButton, keyed, make, similarity} from './dom.js';
import {nameOf} from './filters.js';
import {GAP, layOut, lineAt} from './layout.js';

const MARGIN = 600; // pixels above and below the screen in which images are loaded, too
const BELOW = 'No better than chance from here';

/** What the keys of the grid do, for people. */
export const KEYS = [
  ['Arrows, Home, End', 'go to another image'],
  ['Enter', 'open it next to the grid'],
  ['V', 'open it on the whole screen'],
  ['S', 'find similar images'],
  ['+ and −', 'more or less like this'],
  ['Space', 'select'],
  ['Shift + arrows', 'select several'],
  ['Ctrl + A', 'select all'],
  ['1 to 9', 'label, and go to the next'],
  ['L', 'choose a label'],
  ['Delete', 'delete'],
  ['Ctrl + Z', 'undo'],
  ['Ctrl + Shift + Z', 'do again'],
  ['Escape', 'close, select none, or end the search'],
  ['/', 'search by an image'],
  ['?', 'show this list'],
];

class ImageGrid extends HTMLElement {
  /**
   * @param {import('./explorer.js').Explorer} explorer
   * @param {import('./viewer.js').ItemViewer} viewer
   * @param {import('./labels.js').Labels | null} labels null: the caller may not write
   */
  constructor(explorer, viewer, labels) {
    super();
    this.labels = labels;
    this.explorer = explorer;
    this.viewer = viewer;
    this.size = Number(localStorage.getItem('size')) || 150;
    this.side = this.size;
    /** @type {import('./layout.js').Line[]} */
    this.lines = [];
    this.anchor = 0;
    this.tiles = make('div', {role: 'presentation'});
    this.headings = make('div', {'aria-hidden': 'true'});
    this.sheet = make(
      'div.sheet',
      {
        role: 'listbox',
        tabindex: 0,
        'aria-label': 'Images',
        'aria-multiselectable': 'true',
        onclick: event => this._click(event),
        ondblclick: () => {
          if (explorer.focus !== null && !explorer.selected.size) viewer.open(explorer.focus, true);
        },
        onkeydown: event => this._key(event),
        oncontextmenu: event => this._hold(event),
        onpointerover: event => this._onRow(/** @type {Element} */ (event.target), row => this._showActions(row)),
        onfocus: () => {
          if (explorer.focus === null && explorer.view.length) explorer.setFocus(explorer.view[0]);
        },
      },
      [this.headings, this.tiles],
    );
    this.actions = make('div.actions', {role: 'toolbar', 'aria-label': 'Actions on an image', hidden: true}, [
      iconButton('similar', 'Find similar images', () => explorer.similarTo(this.acted)),
      iconButton('add', 'More like this', () => explorer.refine([this.acted], 'positive')),
      iconButton('less', 'Less like this', () => explorer.refine([this.acted], 'negative')),
    ]);
    for (const one of this.actions.children) one.tabIndex = -1; // the keys of the grid do the same
    this.acted = 0;
    /** Where the pointer is. @type {[number, number] | null} */
    this.pointer = null;
    /** @type {number[]} */
    this.shown = [];
    this.empty = make('p.empty', {hidden: true});
    this.scroller = make(
      'div.scroller',
      {
        onscroll: () => this._draw(),
        onpointermove: event => {
          this.pointer = [event.clientX, event.clientY];
        },
        onpointerleave: () => {
          this.actions.hidden = true;
          this.pointer = null;
        },
      },
      [this.sheet, this.actions, this.empty],
    );
    this.replaceChildren(this.scroller);
    explorer.addEventListener('view', () => this.relayout());
    explorer.addEventListener('rows', () => this._draw()); // of new labels
    explorer.addEventListener('selection', () => this._mark());
    explorer.addEventListener('focus', () => {
      this._mark();
      this._reveal();
    });
    explorer.addEventListener('query', () => this.classList.toggle('waiting', explorer.searching));
    new ResizeObserver(() => this.relayout(true)).observe(this.scroller);
  }

  /** @param {number} size about the width of a tile in pixels */
  resize(size) {
    this.size = size;
    localStorage.setItem('size', String(size));
    this.relayout(true);
  }

  /** Lay out again. @param {boolean} [stay] keep the first visible image where it is */
  relayout(stay = false) {
    const {explorer, scroller} = this;
    if (!scroller.clientWidth) return;
    const before = scroller.scrollTop ? this.lines[lineAt(this.lines, scroller.scrollTop)] : undefined;
    const offset = before ? scroller.scrollTop - before.top : 0;
    const above = before ? this.shown.slice(0, before.start + 1).filter(row => !explorer.rows.deleted.has(row)) : [];
    const view = (this.shown = explorer.view),
      {matches, group} = explorer;
    const isBelow = (/** @type {number} */ place) => (matches?.get(view[place])?.percentile ?? 1) < CHANCE;
    const heading = group
      ? (/** @type {number} */ place) => `${nameOf(group)}: ${explorer.rows.text(explorer.groupOf(view[place]))}`
      : matches && explorer.order === 'stored'
        ? (/** @type {number} */ place) => (isBelow(place) ? BELOW : '')
        : () => '';
    ({side: this.side, lines: this.lines} = layOut(view.length, scroller.clientWidth - 2 * GAP, this.size, heading));
    const last = this.lines.at(-1);
    this.sheet.style.height = `${last ? last.top + last.height : 0}px`;
    // what is above stays there if it did not change, such as after a label, a deletion or more matches
    const isStill =
      above.length > 0 && (stay || !explorer.rows.complete || above.every((row, place) => row === view[place]));
    const line = isStill ? this.lines.find(one => one.end >= above.length && one.heading === undefined) : undefined;
    scroller.scrollTop = line ? line.top + offset : 0;
    if (!explorer.searching) this.classList.remove('waiting'); // else this layout is of the matches before
    this.empty.hidden = view.length > 0 || !explorer.rows.complete;
    this.empty.textContent = explorer.whyEmpty + (explorer.count || !this.labels ? '' : ' Drop images here.');
    this._draw();
  }

  _draw() {
    const {explorer, scroller, lines} = this;
    this.actions.hidden = true;
    const top = scroller.scrollTop,
      bottom = top + scroller.clientHeight;
    const near = lines.slice(lineAt(lines, top - MARGIN)).filter(line => line.top < bottom + MARGIN);
    keyed(
      this.headings,
      near.filter(line => line.heading),
      line => line.heading,
      (line, before) => {
        const heading =
          before ?? make('div', {class: line.heading === BELOW ? 'heading chance' : 'heading'}, line.heading);
        heading.style.top = `${line.top}px`;
        return heading;
      },
    );
    const placed = near.flatMap(line =>
      explorer.view.slice(line.start, line.end).map((row, i) => ({row, line, place: line.start + i})),
    );
    keyed(
      this.tiles,
      placed,
      one => one.row,
      ({row, line, place}, before) => {
        const tile = before ?? this._tile(row);
        Object.assign(tile.style, {
          left: `${GAP + (place - line.start) * (this.side + GAP)}px`,
          top: `${line.top}px`,
          width: `${this.side}px`,
          height: `${this.side}px`,
        });
        tile.ariaPosInSet = place + 1;
        tile.ariaSetSize = explorer.view.length;
        this._describe(tile, row);
        return tile;
      },
    );
    for (const tile of this.tiles.children)
      if (!tile.firstChild.src) explorer.rows.thumbnails.show(tile.firstChild, Number(tile.dataset.row));
    this._mark();
    // what is under the pointer now, without a move of it
    const under = this.pointer && document.elementsFromPoint(...this.pointer).find(one => one.matches('.tile'));
    if (under) this._onRow(under, row => this._showActions(row));
    if (explorer.hasMore && bottom > scroller.scrollHeight - MARGIN) explorer.more();
  }

  /** @param {number} row @returns {HTMLElement} */
  _tile(row) {
    const tile = make(
      'div.tile',
      {
        role: 'option',
        id: `row-${row}`,
        'data-row': row,
        'data-id': this.explorer.rows.ids[row],
        'aria-selected': 'false',
      },
      [
        make('img', {alt: '', decoding: 'async', onerror: () => tile.classList.add('broken')}),
        make('span.box', {'aria-hidden': 'true'}),
        make('span.score', {'aria-hidden': 'true'}),
        make('span.tag', {'aria-hidden': 'true'}),
      ],
    );
    return tile;
  }

  /** Show the label of a tile, and how similar it is. @param {any} tile @param {number} row */
  _describe(tile, row) {
    const {
        explorer: {matches, rows, field},
      } = this,
      [, , score, tag] = tile.children;
    const match = matches?.get(row),
      how = match && similarity(match.percentile),
      label = rows.metadata[row][field] ?? '';
    tile.ariaLabel = [rows.title(row), label, how?.words ?? match?.score.toFixed(3)]
      .filter(one => one !== undefined && one !== '')
      .join(', ');
    score.textContent = how ? '●●●○○○'.slice(3 - how.steps, 6 - how.steps) : (match?.score.toFixed(3) ?? '');
    score.title = how?.words ?? '';
    tag.textContent = label;
  }

  /** Show what is selected and focused. */
  _mark() {
    const {explorer} = this,
      asked = new Set(explorer.query.positive.map(one => one.id));
    for (const tile of this.tiles.children) {
      const row = Number(tile.dataset.row);
      tile.ariaSelected = String(explorer.selected.has(row));
      tile.classList.toggle('focused', row === explorer.focus);
      tile.classList.toggle('asked', asked.has(tile.dataset.id));
    }
    this.classList.toggle('selecting', explorer.selected.size > 0);
    const id = `row-${explorer.focus}`;
    if (this.tiles.querySelector(`#${id}`)) this.sheet.setAttribute('aria-activedescendant', id);
    else this.sheet.removeAttribute('aria-activedescendant');
  }

  /** Bring the focused image to the screen. */
  _reveal() {
    const {explorer, scroller} = this,
      place = explorer.focus === null ? -1 : explorer.view.indexOf(explorer.focus);
    const line = this.lines.find(one => one.start <= place && place < one.end);
    if (!line) return;
    if (line.top < scroller.scrollTop) scroller.scrollTop = line.top;
    else if (line.top + line.height > scroller.scrollTop + scroller.clientHeight)
      scroller.scrollTop = line.top + line.height - scroller.clientHeight;
  }

  /** @param {number} row */
  _showActions(row) {
    const tile = /** @type {HTMLElement | null} */ (this.tiles.querySelector(`#row-${row}`));
    if (!tile || matchMedia('(hover: none)').matches) return;
    this.acted = row;
    this.actions.hidden = false;
    this.actions.style.top = `${tile.offsetTop + tile.offsetHeight - this.actions.offsetHeight}px`;
    this.actions.style.left = `${Math.max(GAP, tile.offsetLeft + tile.offsetWidth - this.actions.offsetWidth)}px`;
  }

  /** @param {Element} target @param {(row: number) => void} act */
  _onRow(target, act) {
    const tile = target.closest('.tile');
    if (tile instanceof HTMLElement) act(Number(tile.dataset.row));
  }

  /** @param {MouseEvent} event */
  _click(event) {
    const {explorer} = this,
      target = /** @type {Element} */ (event.target);
    if (event.detail > 1) return; // the second one of a double click, below which another image may have come
    this._onRow(target, row => {
      if (event.shiftKey) this._selectTo(row);
      else if (target.matches('.box') || event.ctrlKey || event.metaKey || explorer.selected.size > 0)
        this._toggle(row);
      else this.viewer.open(row);
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
    return explorer.focus !== null && explorer.view.includes(explorer.focus)
      ? [explorer.focus]
      : explorer.view.slice(0, 1);
  }

  /** @param {KeyboardEvent} event */
  _key(event) {
    const {explorer, viewer, labels, chosen} = this;
    if (event.altKey || (event.key !== 'a' && (event.ctrlKey || event.metaKey)) || !explorer.view.length) return;
    const place = Math.max(0, explorer.focus === null ? 0 : explorer.view.indexOf(explorer.focus)),
      row = explorer.view[place];
    const move = (/** @type {number} */ to) => () => this._move(place, to, event.shiftKey);
    const screen = Math.max(1, Math.floor(this.scroller.clientHeight / (this.side + GAP)) - 1);
    /** @type {Record<string, () => void>} */
    const keys = {
      ArrowRight: move(place + 1),
      ArrowLeft: move(place - 1),
      ArrowDown: move(this._across(place, 1)),
      ArrowUp: move(this._across(place, -1)),
      Home: move(0),
      End: move(explorer.view.length - 1),
      PageDown: move(this._across(place, screen)),
      PageUp: move(this._across(place, -screen)),
      Enter: () => viewer.open(row),
      v: () => viewer.open(row, true),
      s: () => explorer.similarTo(row),
      ' ': () => this._toggle(row),
      '+': () => explorer.refine([row], 'positive'),
      '-': () => explorer.refine([row], 'negative'),
      a: () => {
        if (event.ctrlKey || event.metaKey) explorer.select(explorer.view);
      },
      Escape: () =>
        viewer.isOpen
          ? viewer.close()
          : explorer.selected.size
            ? explorer.select([])
            : explorer.search({positive: [], negative: []}),
    };
    if (labels) Object.assign(keys, {l: () => labels.ask(chosen), Delete: () => deleteRows(explorer, chosen)});
    const isLabel = labels?.press(event.key, chosen);
    if (isLabel && labels?.advances && !explorer.selected.size) this._move(place, place + 1, false);
    if (!isLabel && !keys[event.key]) return;
    event.preventDefault();
    if (!isLabel) keys[event.key]();
  }

  /** @param {number} from @param {number} to place in the view @param {boolean} select all on the way, too */
  _move(from, to, select) {
    const {explorer} = this;
    to = Math.min(explorer.view.length - 1, Math.max(0, to));
    if (select) explorer.select(explorer.view.slice(Math.min(from, to), Math.max(from, to) + 1), true);
    explorer.setFocus(explorer.view[to]);
  }

  /** Place of the image that is some lines further, in the same column. @param {number} place @param {number} by */
  _across(place, by) {
    const lines = this.lines.filter(one => one.heading === undefined);
    const own = lines.findIndex(one => one.start <= place && place < one.end);
    const line = lines[Math.min(lines.length - 1, Math.max(0, own + by))];
    return Math.min(line.end - 1, line.start + place - lines[own].start);
  }
}

customElements.define('image-grid', ImageGrid);
export {ImageGrid};
