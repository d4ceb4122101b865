// <item-viewer>: one image on the whole screen, with its metadata, its neighbors, what the encoder looks at, and a box
// to search for a part. Arrow keys go to the next image of the view.
import {imageUrl, path, rest} from './api.js';
import {button, make, sayError} from './dom.js';

const NEIGHBORS = 8;

class ItemViewer extends HTMLElement {
  /**
   * @param {import('./explorer.js').Explorer} explorer
   * @param {import('./query_bar.js').QueryBar} bar takes the part of an image that is searched for
   */
  constructor(explorer, bar) {
    super();
    this.explorer = explorer;
    this.bar = bar;
    /** @type {number | null} */
    this.row = null;
    this.scale = 1;
    this.image = make('img', {alt: '', draggable: 'false'});
    this.map = make('img', {alt: '', class: 'attention', hidden: true});
    this.rectangle = make('div', {class: 'rectangle', hidden: true});
    this.frame = make('div', {class: 'frame', onpointerdown: (/** @type {PointerEvent} */ event) => this._press(event)},
      this.image, this.map, this.rectangle);
    this.stage = make('div', {class: 'stage', onwheel: (/** @type {WheelEvent} */ event) => this._wheel(event)}, this.frame);
    this.heading = make('h2', {});
    this.side = make('aside', {'aria-label': 'About the image'});
    this.hint = make('p', {class: 'note'});
    /** What a press on the image does. @type {'box' | 'attention' | null} */
    this.mode = null;
    this.boxButton = button('crop', 'Search for a part', () => this._setMode('box'));
    this.attentionButton = button('view', 'Where it looks', () => this._setMode('attention'));
    this.dialog = make('dialog', {class: 'viewer', 'aria-label': 'Image', onkeydown: (/** @type {KeyboardEvent} */ event) => this._key(event), onclose: () => this._closed()},
      make('div', {class: 'head'}, this.heading,
        button('back', 'Previous image', () => this._step(-1), {quiet: true}), button('forward', 'Next image', () => this._step(1), {quiet: true}),
        button('close', 'Close', () => this.dialog.close(), {quiet: true})),
      make('div', {class: 'columns'}, make('div', {class: 'left'}, this.stage,
        make('div', {class: 'tools'}, button('similar', 'Find similar images', () => this._findSimilar()),
          this.boxButton, this.attentionButton, this.hint)), this.side));
    this.replaceChildren(this.dialog);
  }

  /** @param {number} row */
  open(row) {
    const {explorer} = this;
    this.row = row;
    const id = explorer.rows.ids[row], title = explorer.rows.title(row);
    this.scale = 1;
    this.frame.style.transform = '';
    this.map.hidden = this.rectangle.hidden = true;
    this._setMode(null);
    this.image.src = imageUrl(explorer.name, id, 'original');
    this.image.alt = title;
    this.heading.textContent = title;
    this._describe(row);
    if (!this.dialog.open) this.dialog.showModal();
    explorer.setFocus(row);
    this.dispatchEvent(new Event('change'));
  }

  get isOpen() {
    return this.dialog.open;
  }

  _closed() {
    this.row = null;
    this.image.removeAttribute('src');
    this.dispatchEvent(new Event('change'));
  }

  /** @param {number} by */
  _step(by) {
    const {explorer} = this;
    if (this.row === null) return;
    const place = explorer.view.indexOf(this.row) + by;
    if (place >= 0 && place < explorer.view.length) this.open(explorer.view[place]);
  }

  /** @param {KeyboardEvent} event */
  _key(event) {
    if (event.target instanceof HTMLInputElement || event.ctrlKey || event.metaKey || event.altKey) return;
    const steps = /** @type {Record<string, number>} */ ({ArrowLeft: -1, ArrowRight: 1});
    if (!(event.key in steps)) return;
    event.preventDefault();
    this._step(steps[event.key]);
  }

  /** @param {number} row */
  async _describe(row) {
    const {explorer} = this;
    const id = explorer.rows.ids[row];
    const entries = Object.entries({id, ...explorer.rows.metadata[row]});
    const filterBy = (/** @type {string} */ key, /** @type {any} */ value) => { this.dialog.close(); explorer.filter(key, {in: [value]}); };
    const facets = new Set(explorer.rows.keys);
    const table = make('dl', {}, ...entries.flatMap(([key, value]) => [make('dt', {}, key),
      make('dd', {}, facets.has(key) && typeof value === 'string'
        ? make('button', {type: 'button', class: 'plain', title: `Show images with this ${key}`, onclick: () => filterBy(key, value)}, value)
        : typeof value === 'object' ? JSON.stringify(value) : String(value))]));
    const list = make('ul', {class: 'neighbors'});
    this.side.replaceChildren(make('h3', {}, 'Metadata'), table, make('h3', {}, 'Nearest images'), list);
    try {
      const {matches} = await rest('POST', path(explorer.name, 'search'), {json: {id, k: NEIGHBORS}});
      if (this.row !== row) return;
      list.replaceChildren(...matches.map((/** @type {any} */ match) => {
        const found = explorer.rows.add(match.id, match.metadata), title = explorer.rows.title(found);
        return make('li', {}, make('button', {type: 'button', 'aria-label': `${title}, ${match.score.toFixed(3)}`, title, onclick: () => this.open(found)},
          make('img', {src: imageUrl(explorer.name, match.id, 'thumbnail'), alt: ''}), make('span', {}, match.score.toFixed(3))));
      }));
    } catch (error) {
      sayError(error);
    }
  }

  _findSimilar() {
    const {row} = this;
    this.dialog.close();
    if (row !== null) this.explorer.similarTo(row).catch(sayError);
  }

  // ---- zoom, box and attention

  /** @param {WheelEvent} event */
  _wheel(event) {
    event.preventDefault();
    const {left, top, width, height} = this.frame.getBoundingClientRect();
    this.frame.style.transformOrigin = `${(100 * (event.clientX - left)) / width}% ${(100 * (event.clientY - top)) / height}%`;
    this.scale = Math.min(12, Math.max(1, this.scale * Math.exp(-event.deltaY / 400)));
    this.frame.style.transform = this.scale === 1 ? '' : `scale(${this.scale})`;
  }

  /** @param {'box' | 'attention' | null} mode */
  _setMode(mode) {
    this.mode = this.mode === mode ? null : mode;
    this.boxButton.setAttribute('aria-pressed', String(this.mode === 'box'));
    this.attentionButton.setAttribute('aria-pressed', String(this.mode === 'attention'));
    this.stage.classList.toggle('pointing', this.mode !== null);
    this.hint.textContent = this.mode === 'box' ? 'Draw a box on the image.' : '';
    this.map.hidden = true;
    if (this.mode === 'attention') {
      this.hint.textContent = 'Bright where the encoder looks. Click on a point to see what belongs to it.';
      this._attend();
    }
  }

  /** Position on the image in its own pixels. @param {PointerEvent} event @returns {[number, number]} */
  _point(event) {
    const {left, top, width, height} = this.image.getBoundingClientRect();
    const share = (/** @type {number} */ value) => Math.min(1, Math.max(0, value));
    return [share((event.clientX - left) / width) * this.image.naturalWidth, share((event.clientY - top) / height) * this.image.naturalHeight];
  }

  /** @param {PointerEvent} event */
  _press(event) {
    if (this.mode === 'attention') return this._attend(this._point(event));
    if (this.mode !== 'box') return;
    event.preventDefault();
    const start = this._point(event);
    /** @param {PointerEvent} to */
    const box = to => {
      const end = this._point(to);
      return [Math.min(start[0], end[0]), Math.min(start[1], end[1]), Math.max(start[0], end[0]), Math.max(start[1], end[1])];
    };
    const move = (/** @type {PointerEvent} */ to) => {
      const [x0, y0, x1, y1] = box(to), width = this.image.naturalWidth / 100, height = this.image.naturalHeight / 100;
      this.rectangle.hidden = false;
      Object.assign(this.rectangle.style, {left: `${x0 / width}%`, top: `${y0 / height}%`, width: `${(x1 - x0) / width}%`, height: `${(y1 - y0) / height}%`});
    };
    const end = (/** @type {PointerEvent} */ to) => {
      this.frame.removeEventListener('pointermove', move);
      const [x0, y0, x1, y1] = box(to);
      if (x1 - x0 >= 8 && y1 - y0 >= 8) this._searchPart(x0, y0, x1 - x0, y1 - y0);
      else this.rectangle.hidden = true;
    };
    this.frame.setPointerCapture(event.pointerId);
    this.frame.addEventListener('pointermove', move);
    this.frame.addEventListener('pointerup', end, {once: true});
  }

  /** @param {number} x @param {number} y @param {number} width @param {number} height in pixels of the image */
  async _searchPart(x, y, width, height) {
    const canvas = make('canvas', {width: Math.round(width), height: Math.round(height)});
    canvas.getContext('2d').drawImage(this.image, x, y, width, height, 0, 0, canvas.width, canvas.height);
    const part = await new Promise(done => canvas.toBlob(done, 'image/png'));
    const name = `part of ${this.heading.textContent}`;
    this.dialog.close();
    this.bar.searchFile(part, name);
  }

  /** @param {[number, number]} [point] in pixels of the image; without one, the map of the whole image is shown */
  async _attend(point) {
    const {explorer, row} = this;
    this.stage.classList.add('waiting');
    try {
      const image = await (await fetch(this.image.src)).blob();
      const form = new FormData();
      form.append('image', image, 'image');
      form.append('query', JSON.stringify({collection: explorer.name, with_png: true, opacity: 1, ...(point ? {point} : {})}));
      const {maps} = await rest('POST', 'attention', {form, noted: true});
      if (this.row !== row || this.mode !== 'attention') return;
      this.map.src = `data:image/png;base64,${maps[0].png}`;
      this.map.hidden = false;
    } catch (error) {
      sayError(error);
    } finally {
      this.stage.classList.remove('waiting');
    }
  }
}

customElements.define('item-viewer', ItemViewer);
export {ItemViewer};
