// <item-viewer>: one image, with its metadata, its neighbors, what the encoder looks at, and a box to search for a
// part. It is next to the grid, where it follows the focus, or on the whole screen, where arrow keys go to the next
// image of the view.
import {imageUrl, path, rest} from './api.js';
import {button, iconButton, make, nearer, percent} from './dom.js';
import {deleteRows} from './deletion.js';
import {nameOf} from './filters.js';
import {LabelKeys} from './labels.js';
import {ViewedImage} from './viewed_image.js';

const NEIGHBORS = 8;
const COMPARED = 4; // neighbors on which a point is looked for
const narrow = matchMedia('(max-width: 820px)'); // a screen without space next to the grid
const SIDE = 512; // pixels of the images that the encoder gets for a map
const HINTS = {
  box: 'Draw a box on the image, or press Tab and use the arrow keys and Enter.',
  attention:
    'Bright where the encoder looks; darker towards the edges, where objects rarely are. ' +
    'Click a point or draw a box to see what is similar to it, here and in the nearest images.',
  why: 'Bright where this image is similar to your query.',
};

class ItemViewer extends HTMLElement {
  /**
   * @param {import('./explorer.js').Explorer} explorer
   * @param {import('./query_bar.js').QueryBar} bar takes the part of an image that is searched for
   * @param {import('./labels.js').Labels | null} labels null: the caller may not write
   */
  constructor(explorer, bar, labels) {
    super();
    this.explorer = explorer;
    this.bar = bar;
    this.labels = labels;
    /** The item that is shown. @type {number | null} */
    this.row = null;
    /** The own image that is shown instead. @type {import('./explorer.js').Example | null} */
    this.example = null;
    /** Address of the own image. @type {string | undefined} */
    this.url = undefined;
    /** Counts the images, so that a late answer is not shown on the next one. */
    this.turn = 0;
    this.onKey = (/** @type {KeyboardEvent} */ event) => this._key(event);
    this.viewed = new ViewedImage();
    this.viewed.addEventListener('swipe', event => this._step(/** @type {CustomEvent} */ (event).detail));
    this.viewed.addEventListener('choice', event => this._chosen(/** @type {CustomEvent} */ (event).detail));
    this.heading = make('h2', {tabindex: -1, autofocus: true}); // not the first button, whose outline would look chosen
    this.expand = iconButton('view', 'Whole screen', () => this._setFull(!this.isFull));
    this.side = make('aside', {'aria-label': 'About the image'});
    this.hint = make('p.note', {role: 'status'});
    this.head = make('select', {'aria-label': 'Attention head', hidden: true, onchange: () => this._attend({})});
    /** @type {keyof typeof HINTS | null} */
    this.mode = null;
    this.modes = {
      box: button('crop', 'Search for a part', () => this._setMode('box')),
      attention: button('eye', 'Where it looks', () => this._setMode('attention')),
      why: button('link', 'Why was it found?', () => this._setMode('why')),
    };
    this.steps = [
      iconButton('back', 'Previous image', () => this._step(-1)),
      iconButton('forward', 'Next image', () => this._step(1)),
    ];
    const onRow = (/** @type {(row: number) => void} */ act) => () => {
      if (this.row !== null) act(this.row);
    };
    this.changes = labels
      ? [
          button(
            'tag',
            'Label',
            onRow(row => labels.ask([row])),
          ),
          button(
            'remove',
            'Delete',
            onRow(row => this._delete(row)),
          ),
        ]
      : [];
    this.dialog = make('dialog.viewer', {'aria-label': 'Image', onclose: () => this._closed()}, [
      make('div.head', [
        this.heading,
        this.expand,
        iconButton('less', 'Zoom out', () => this.viewed.zoom(1 / 1.5)),
        iconButton('add', 'Zoom in', () => this.viewed.zoom(1.5)),
        ...this.steps,
        iconButton('close', 'Close', () => this.close()),
      ]),
      make('div.columns', [
        make('div.left', [
          this.viewed,
          make('div.tools', [
            button('similar', 'Find similar images', () => this._findSimilar()),
            ...Object.values(this.modes),
            ...this.changes,
            this.head,
            this.hint,
          ]),
          labels ? new LabelKeys(labels, () => (this.row === null ? [] : [this.row])) : '',
        ]),
        this.side,
      ]),
    ]);
    // The panel may open below the pointer: the second click of a double click on a tile is then on the panel.
    this.isNew = false;
    this.dialog.addEventListener(
      'click',
      (/** @type {MouseEvent} */ event) => {
        if (this.isNew && event.detail === 2) {
          event.stopPropagation();
          this._setFull(true);
        }
        this.isNew = false;
      },
      true,
    );
    this.replaceChildren(this.dialog);
    explorer.addEventListener('rows', () => {
      if (this.row !== null) this._drawMetadata(this.row);
    });
    narrow.addEventListener('change', () => this.isOpen && this._setFull(this.isFull), {signal: explorer.closing});
    explorer.addEventListener('focus', () => {
      if (this.row !== null && explorer.focus !== null && explorer.focus !== this.row) this.open(explorer.focus);
    });
  }

  /**
   * Show an item.
   * @param {number} row
   * @param {boolean} [full] on the whole screen; else as it is, or next to the grid
   */
  open(row, full = this.isFull) {
    const {explorer} = this;
    if (row === this.row) return this._setFull(full);
    this.row = row;
    this.isNew = !this.dialog.open;
    this.example = null;
    this._show(imageUrl(explorer.name, explorer.rows.ids[row], 'original'), explorer.rows.title(row), {
      id: explorer.rows.ids[row],
    });
    this._drawMetadata(row);
    this._setFull(full);
    explorer.setFocus(row);
    this.dispatchEvent(new Event('change'));
  }

  /** Show an example of the query: an item, or an own image. @param {import('./explorer.js').Example} example */
  openExample(example) {
    const row = this.explorer.rows.rowOf.get(example.id ?? '');
    if (row !== undefined) return this.open(row);
    const src = example.image ? (this.url = URL.createObjectURL(example.image)) : example.preview;
    if (!src) return;
    this.row = null;
    this.example = example;
    this._show(src, example.name ?? 'your image', {vector: example.vector});
    this._setFull(true);
  }

  /** Show it on the whole screen, or next to the grid, for which a narrow screen has no space. @param {boolean} full */
  _setFull(full) {
    const {dialog} = this,
      modal = full || narrow.matches;
    if (dialog.open && this.isFull === modal) return;
    dialog.removeAttribute('open');
    if (modal) dialog.showModal();
    else dialog.open = true; // the focus stays in the grid
    this.expand.hidden = narrow.matches;
    this.expand.title = this.expand.ariaLabel = modal ? 'Next to the grid' : 'Whole screen';
    this.parentElement?.classList.add('with-side');
  }

  get isFull() {
    return this.dialog.matches(':modal');
  }

  close() {
    this.dialog.close();
  }

  /** @param {string} src @param {string} title @param {Record<string, any>} query whose neighbors are listed */
  _show(src, title, query) {
    const {explorer} = this;
    this.turn++;
    this._setMode(null);
    const match = this.row === null ? undefined : explorer.matches?.get(this.row);
    this.modes.why.hidden = !match;
    for (const one of [...this.steps, ...this.changes]) one.hidden = this.row === null;
    this.viewed.show(src, title);
    this.heading.textContent = this.heading.title = title;
    this.metadata = make('dl');
    this.neighbors = make('ul.neighbors');
    const note =
      match && make('p.note', [`Score ${match.score.toFixed(3)}`, nearer(match.percentile)].filter(Boolean).join(', '));
    this.side.replaceChildren(
      note ?? '',
      make('h3', 'Nearest images'),
      make('p.note', 'Their scores, and the share of random pairs that score lower.'),
      this.neighbors,
      ...(this.row === null ? [] : [make('h3', 'Metadata'), this.metadata]),
    );
    this._listNeighbors(query);
    document.addEventListener('keydown', this.onKey); // also if what had the focus was removed
  }

  get isOpen() {
    return this.dialog.open;
  }

  _closed() {
    this.row = this.example = null;
    if (!this.parentElement?.classList.contains('with-map')) this.parentElement?.classList.remove('with-side');
    document.removeEventListener('keydown', this.onKey);
    this.turn++;
    this.viewed.image.removeAttribute('src');
    if (this.url) URL.revokeObjectURL(this.url);
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
    const {target} = event;
    if (
      [...document.querySelectorAll('dialog[open]')].at(-1) !== this.dialog ||
      target instanceof HTMLInputElement ||
      event.ctrlKey ||
      event.metaKey ||
      event.altKey
    )
      return;
    // the grid and the map have other keys
    if (!this.isFull && !this.dialog.contains(/** @type {Node} */ (target))) return;
    /** @type {Record<string, () => void>} */
    const keys = {
      ArrowLeft: () => this._step(-1),
      ArrowRight: () => this._step(1),
      '+': () => this.viewed.zoom(1.5),
      '-': () => this.viewed.zoom(1 / 1.5),
      s: () => this._findSimilar(),
      ...(this.isFull ? {} : {Escape: () => this.close()}),
    };
    const {row, labels} = this;
    if (row !== null && labels) Object.assign(keys, {l: () => labels.ask([row]), Delete: () => this._delete(row)});
    if (row !== null && labels?.press(event.key, [row])) {
      if (labels.advances) this._step(1);
      return event.preventDefault();
    }
    if (!keys[event.key]) return;
    event.preventDefault();
    keys[event.key]();
  }

  /** @param {number} row */
  _drawMetadata(row) {
    const {explorer} = this;
    const filterBy = (/** @type {string} */ key, /** @type {any} */ value) => {
      this._leaveFull();
      explorer.filter(key, {in: [value]});
    };
    const facets = new Set(explorer.rows.keys);
    const {pixel_sha256: _, file_sha256: __, 'inspection.seq': ___, mtime, ...metadata} = explorer.rows.metadata[row];
    const entries = Object.entries({
      ...metadata,
      ...(mtime ? {date: new Date(1000 * mtime).toLocaleString()} : {}),
      id: explorer.rows.ids[row],
    });
    this.metadata?.replaceChildren(
      ...entries.flatMap(([key, value]) => [
        make('dt', {title: key}, nameOf(key)),
        make('dd', [
          facets.has(key) && typeof value === 'string'
            ? make('button.plain', {title: `Show images with this ${key}`, onclick: () => filterBy(key, value)}, [
                explorer.rows.text(value),
              ])
            : typeof value === 'object'
              ? JSON.stringify(value)
              : String(value),
        ]),
      ]),
    );
  }

  /** @param {Record<string, any>} query */
  async _listNeighbors(query) {
    const {explorer, turn, neighbors} = this;
    const {matches} = await rest('POST', path(explorer.name, 'search'), {
      json: {...query, k: NEIGHBORS, with_percentile: true},
    });
    if (this.turn !== turn) return;
    neighbors?.replaceChildren(
      ...matches.map((/** @type {import('./api.js').Match} */ match) => {
        const found = explorer.rows.add(match.id, match.metadata),
          title = explorer.rows.title(found);
        const scores = [match.score.toFixed(3), percent(match.percentile)].filter(Boolean);
        return make('li', [
          make('button', {'aria-label': `${title}, ${scores.join(' ')}`, title, onclick: () => this.open(found)}, [
            make('img', {src: explorer.rows.thumbnail(found), alt: ''}),
            ...scores.flatMap(text => [' ', make('span', text)]),
          ]),
        ]);
      }),
    );
  }

  /** Show the grid, for what a control of the viewer changes there. */
  _leaveFull() {
    if (this.row === null || narrow.matches) this.close();
    else this._setFull(false);
  }

  _findSimilar() {
    const {row, example, explorer} = this;
    this._leaveFull();
    if (row !== null) explorer.similarTo(row);
    else if (example) explorer.search({positive: [example], negative: []});
  }

  /** @param {number} row */
  async _delete(row) {
    const {explorer} = this,
      place = explorer.view.indexOf(row);
    if (!(await deleteRows(explorer, [row])) || this.row !== row) return;
    if (explorer.view.length) this.open(explorer.view[Math.min(Math.max(0, place), explorer.view.length - 1)]);
    else this.close();
  }

  // ---- part and attention

  /** @param {keyof typeof HINTS | null} mode */
  _setMode(mode) {
    this.mode = this.mode === mode ? null : mode;
    for (const [name, own] of Object.entries(this.modes)) own.setAttribute('aria-pressed', String(this.mode === name));
    this.hint.textContent = this.mode ? HINTS[this.mode] : '';
    this.head.hidden = true;
    this.head.value = '';
    this.viewed.cover(null);
    for (const image of /** @type {NodeListOf<HTMLImageElement>} */ (
      this.neighbors?.querySelectorAll('img[data-src]') ?? []
    ))
      image.src = image.dataset.src ?? '';
    this.viewed.ask(this.mode === 'box' ? 'box' : this.mode === 'attention' ? 'any' : null);
    if (this.mode === 'attention') this._attend({});
    if (this.mode === 'why') this._explain();
  }

  /** @param {import('./viewed_image.js').Choice} choice */
  _chosen(choice) {
    if (this.mode === 'attention') this._attend(choice);
    else if ('box' in choice) this._searchPart(...choice.box);
  }

  /** @param {number} x0 @param {number} y0 @param {number} x1 @param {number} y1 in pixels of the image */
  async _searchPart(x0, y0, x1, y1) {
    const part = await drawn(this.viewed.image, x0, y0, x1 - x0, y1 - y0),
      name = `part of ${this.heading.textContent}`;
    this._leaveFull();
    await this.bar.searchFile(part, name, false);
  }

  /**
   * Show what the encoder looks at: in the whole image, or what is similar to a point or a box, also in the neighbors.
   * @param {import('./viewed_image.js').Choice | {}} choice
   */
  async _attend(choice) {
    const {turn, viewed, neighbors} = this;
    const image = await this._blob(),
      downloads = this._download();
    const head = this.head.value && !Object.keys(choice).length ? {head: Number(this.head.value)} : {};
    const [map] = await this._maps(image, [], {...choice, ...head}, downloads, true);
    if (this.turn !== turn || this.mode !== 'attention') return;
    this.head.hidden = !this.head.options.length || Object.keys(choice).length > 0; // a point has no heads
    viewed.cover(map);
    const shown = /** @type {HTMLImageElement[]} */ ([...(neighbors?.querySelectorAll('img') ?? [])]).slice(
      0,
      COMPARED,
    );
    if (!Object.keys(choice).length || !shown.length) return;
    const others = await Promise.all(shown.map(async one => (await fetch(one.dataset.src ?? one.src)).blob()));
    const maps = await this._maps(image, others, choice, downloads, false);
    if (this.turn !== turn || this.mode !== 'attention') return;
    shown.forEach((one, i) => {
      one.dataset.src ??= one.src;
      one.src = maps[i];
    });
  }

  /** Show where the item is similar to the first example of the query. */
  async _explain() {
    const {explorer, turn, viewed} = this;
    const [example] = explorer.query.positive;
    const query =
      example.id !== undefined
        ? await (await fetch(imageUrl(explorer.name, example.id, 'original'))).blob()
        : (example.image ?? (example.preview ? await drawnFrom(example.preview) : null));
    if (!query) return void (this.hint.textContent = 'The image of this query is not known here.');
    const downloads = [...this._download(), ...(example.id === undefined ? [] : this._download(example.id))];
    const [map] = await this._maps(
      query,
      [await this._blob()],
      {},
      downloads,
      true,
      example.id === undefined ? example.name : `${example.id}.jpg`,
    );
    if (this.turn === turn && this.mode === 'why') viewed.cover(map);
  }

  /**
   * @param {Blob} image @param {Blob[]} targets @param {import('./viewed_image.js').Choice | {head?: number}} choice
   * @param {[string, string][]} downloads files of the noted call @param {boolean} noted @param {string} [name]
   * @returns {Promise<string[]>} addresses of the maps
   */
  async _maps(image, targets, choice, downloads, noted, name = downloads[0]?.[0] ?? this.example?.name ?? 'image') {
    this.viewed.classList.add('waiting');
    this.hint.textContent = 'Computing the map. The first one takes several seconds.';
    try {
      const form = new FormData();
      form.append('image', image, name);
      for (const target of targets) form.append('target', target, downloads[0]?.[0] ?? 'target');
      form.append(
        'query',
        JSON.stringify({
          collection: this.explorer.name,
          with_png: true,
          opacity: targets.length > 1 ? 0.7 : 1,
          ...(targets.length || Object.keys(choice).length ? {max_side: SIDE} : {}), // else the server's choice
          ...choice,
        }),
      );
      const {maps, heads} = await rest('POST', 'attention', {form, noted, downloads});
      if (heads && heads + 1 !== this.head.options.length) {
        this.head.replaceChildren(
          make('option', {value: ''}, 'All heads'),
          ...Array.from({length: heads}, (_, head) => make('option', {value: head}, `Head ${head + 1}`)),
        );
      }
      return maps.map((/** @type {any} */ map) => `data:image/png;base64,${map.png}`);
    } finally {
      this.viewed.classList.remove('waiting');
      this.hint.textContent = this.mode ? HINTS[this.mode] : '';
    }
  }

  /**
   * A file of the shown item, and the path from which a program downloads it.
   * @param {string} [id]
   * @returns {[string, string][]}
   */
  _download(id = this.row === null ? undefined : this.explorer.rows.ids[this.row]) {
    return id === undefined ? [] : [[`${id}.jpg`, new URL(imageUrl(this.explorer.name, id, 'original')).pathname]];
  }

  /** @returns {Promise<Blob>} the shown image */
  async _blob() {
    const {image} = this.viewed;
    if (this.row !== null) return (await fetch(image.src)).blob();
    return this.example?.image ?? drawn(image, 0, 0, image.naturalWidth, image.naturalHeight);
  }
}

/**
 * A part of an image as PNG.
 * @param {HTMLImageElement} image
 * @param {number} x
 * @param {number} y
 * @param {number} width
 * @param {number} height
 * @returns {Promise<Blob>}
 */
function drawn(image, x, y, width, height) {
  const canvas = make('canvas', {width: Math.round(width), height: Math.round(height)});
  canvas.getContext('2d').drawImage(image, x, y, width, height, 0, 0, canvas.width, canvas.height);
  return new Promise(done => canvas.toBlob(done, 'image/png'));
}

/** @param {string} src @returns {Promise<Blob>} */
async function drawnFrom(src) {
  const image = make('img', {src});
  await image.decode();
  return drawn(image, 0, 0, image.naturalWidth, image.naturalHeight);
}

customElements.define('item-viewer', ItemViewer);
export {ItemViewer};
