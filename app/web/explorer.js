// The state of the screen Explore. Grid, map, facets and viewer show it, and change it by its methods only.
//
// Events: `rows` (items were loaded or changed), `view` (other rows, or another order), `selection`, `query`, `focus`,
// `color` (the map is colored by another key).
import {pages, path, rest} from './api.js';
import {edits, follow} from './edits.js';
import {passing, restFilter} from './filters.js';
import {Rows} from './rows.js';

/**
 * @typedef {object} Example what a search is for; exactly one of id and vector
 * @property {string} [id] of an item
 * @property {string} [vector] base64 of little-endian float32
 * @property {string} [name] of an own image
 * @property {Blob} [image] an own image, until the page is loaded again
 * @property {string} [preview] address of a small copy of an own image
 */
/** @typedef {{positive: Example[], negative: Example[]}} Query */
/** @typedef {import('./api.js').Match} Match */

const FIRST_MATCHES = 60; // twice what most screens show, because every match costs the server time
const MORE_MATCHES = 200;
export const MAX_MATCHES = 1000;
const MAX_IDS = 100_000; // of a filter
const NONE = 'none'; // group of the images without a value

/** The metadata key of the labels of a collection. @param {string} name @returns {Promise<string>} */
export async function fieldOf(name) {
  return (await rest('GET', path(name, 'label-keys'))).field;
}

export class Explorer extends EventTarget {
  /** @param {import('./api.js').Collection} info @param {string} field the metadata key of the labels */
  constructor(info, field) {
    super();
    this.info = info;
    this.name = info.name;
    this.rows = new Rows(info.name);
    /** The metadata key of the labels. */
    this.field = field;
    /** @type {import('./filters.js').Filters} */
    this.filters = new Map();
    /** A filter as JSON of REST. @type {any} */
    this.where = null;
    /** Rows that pass `where`; null without it. @type {Set<number> | null} */
    this.passed = null;
    /** Rows that a lasso on the map or a finding holds; null without one. @type {Set<number> | null} */
    this.area = null;
    /**
     * The finding of `area`, as in addresses, and its name; null for a lasso.
     * @type {{key: string, title: string} | null}
     */
    this.finding = null;
    this.order = 'stored';
    this.group = '';
    /** The key whose values have the colors of the map; '' without one. */
    this.colored = '';
    /** @type {Query} */
    this.query = {positive: [], negative: []};
    /** Matches by row, best first; null without a search. @type {Map<number, Match> | null} */
    this.matches = null;
    this.hasMore = false;
    this.searching = false;
    /** Rows that are shown, in order. @type {number[]} */
    this.view = [];
    /** @type {Set<number>} */
    this.selected = new Set();
    /** The row under the keyboard. @type {number | null} */
    this.focus = null;
    this._closing = new AbortController();
    /** @type {AbortController | null} */
    this._search = null;
    for (const [event, show] of /** @type {const} */ ([
      ['metadata', this._written],
      ['items', this._read],
      ['deleted', this._deleted],
    ])) {
      edits.addEventListener(
        event,
        written => {
          const {detail} = /** @type {CustomEvent} */ (written);
          if (detail.collection === this.name) show.call(this, detail);
        },
        {signal: this.closing},
      );
    }
    follow(this.name, info.durable_seq, this.closing, () => this.load());
  }

  /** Aborted when the screen is left. */
  get closing() {
    return this._closing.signal;
  }

  /** Load the items; resolves when all are there. */
  async load() {
    await this.rows.load(this.closing, () => {
      if (!this.matches) this._arrange();
      this.emit('rows');
    });
  }

  close() {
    this._closing.abort();
    this._search?.abort();
    this.rows.thumbnails.close();
  }

  /** @param {string} name */
  emit(name) {
    this.dispatchEvent(new Event(name));
  }

  // ---- what is shown

  /** @param {string} key @param {import('./filters.js').Condition | null} condition null removes it */
  filter(key, condition) {
    if (condition === null || ('in' in condition && condition.in.length === 0)) this.filters.delete(key);
    else this.filters.set(key, condition);
    return this._refilter();
  }

  async clearFilters() {
    this.filters.clear();
    this.where = this.passed = this.area = this.finding = null;
    await this._refilter();
  }

  /**
   * End the search, and show the images with these values of their metadata only.
   * @param {Record<string, any>} values
   */
  async showValues(values) {
    this.filters = new Map(Object.entries(values).map(([key, value]) => [key, {in: [value]}]));
    this.where = this.passed = this.area = this.finding = null;
    await this.search({positive: [], negative: []});
  }

  /** Set a filter in the form of REST; null removes it. @param {any} where */
  async filterBy(where) {
    const passed = where && new Set();
    if (where)
      for await (const {items} of pages(path(this.name, 'items'), {where, limit: 5000}, {noted: true}))
        for (const {id, metadata} of items) passed.add(this.rows.add(id, metadata));
    this.passed = passed;
    this.where = where;
    await this._refilter();
  }

  /**
   * Show the rows inside an area of the map, or those of a finding; null shows all.
   * @param {Set<number> | null} rows
   * @param {{key: string, title: string} | null} [finding]
   */
  within(rows, finding = null) {
    this.area = rows;
    this.finding = finding;
    return this._refilter();
  }

  /** The area as a filter of REST, which names at most 100,000 items: those inside, or else those outside. */
  get _areaFilter() {
    const {area, rows} = this,
      ids = (/** @type {number[]} */ chosen) => ({ids: chosen.map(row => rows.ids[row])});
    if (!area) return null;
    return area.size <= MAX_IDS
      ? {must: [ids([...area])]}
      : {must_not: [ids([...rows.ids.keys()].filter(row => !area.has(row)))]};
  }

  /** @param {string} order 'stored', 'similarity', or a key of the metadata, with '-' in front for descending */
  sort(order) {
    this.order = order;
    this._arrange();
  }

  /** Show the items of each value of a key together; '' ends that. @param {string} key */
  groupBy(key) {
    this.group = key;
    this._arrange();
  }

  /** @param {string} key */
  colorBy(key) {
    this.colored = key;
    this.emit('color');
  }

  async _refilter() {
    if (this.isSearching) await this.search(this.query);
    else this._arrange();
  }

  /** Value by which a row is grouped. @param {number} row */
  groupOf(row) {
    const value = this.rows.metadata[row][this.group];
    return value === undefined || value === null ? NONE : String(value);
  }

  _arrange() {
    const passes = passing(this.rows, this.filters);
    const shown = (/** @type {number} */ row) =>
      passes[row] === 1 && (this.passed?.has(row) ?? true) && (this.area?.has(row) ?? true);
    let view;
    if (this.matches) {
      // the server has filtered the matches; a deleted item is the exception
      view = [...this.matches.keys()].filter(row => !this.rows.deleted.has(row));
    } else {
      view = this.rows.ids.map((_, row) => row).filter(shown);
    }
    const key = this.order.replace(/^-/, '');
    if (key !== 'stored' && key !== 'similarity') {
      const sign = this.order.startsWith('-') ? -1 : 1;
      view.sort((a, b) => sign * compare(this.rows.metadata[a][key], this.rows.metadata[b][key]) || a - b);
    }
    if (this.group) {
      /** @type {Map<string, any>} */
      const first = new Map([[NONE, Number.MAX_SAFE_INTEGER]]); // images without a value are last
      for (const row of view) if (!first.has(this.groupOf(row))) first.set(this.groupOf(row), first.size);
      view.sort((a, b) => first.get(this.groupOf(a)) - first.get(this.groupOf(b)));
    }
    this.view = view;
    this.emit('view');
  }

  /** Number of items of the collection. */
  get count() {
    const {rows, info} = this;
    return rows.complete ? rows.ids.length - rows.deleted.size : info.count;
  }

  /** Why nothing is shown. */
  get whyEmpty() {
    if (!this.count) return 'This collection is empty.';
    return this.filters.size || this.where || this.area ? 'No image passes the filters.' : 'There is no other image.';
  }

  // ---- search

  get isSearching() {
    return this.query.positive.length > 0;
  }

  /**
   * Search by examples; an empty query shows the whole collection again.
   * @param {Query} query
   */
  async search(query) {
    this._search?.abort();
    this.query = query;
    if (!this.isSearching) {
      this.matches = null;
      this.hasMore = this.searching = false;
      this.emit('query');
      this._arrange();
      return;
    }
    const own = (this._search = new AbortController());
    this.searching = true;
    try {
      const finding = this._find(0, own.signal);
      this.emit('query'); // after the request, so that what is drawn now costs no time
      this.matches = new Map(await finding);
      this.searching = false;
      this._arrange();
    } catch (error) {
      if (own.signal.aborted) return; // another search has begun
      this.searching = false;
      this.emit('query');
      throw error;
    }
  }

  /** Add the next matches. */
  async more() {
    if (!this.hasMore || this.searching || !this.matches || !this._search) return;
    this.searching = true;
    try {
      for (const [row, match] of await this._find(this.matches.size, this._search.signal)) this.matches.set(row, match);
    } finally {
      this.searching = false;
    }
    this._arrange();
  }

  /** @param {number} offset @param {AbortSignal} signal @returns {Promise<[number, Match][]>} matches by row */
  async _find(offset, signal) {
    const k = Math.min(offset ? MORE_MATCHES : FIRST_MATCHES, MAX_MATCHES - offset);
    const examples = (/** @type {Example[]} */ list) =>
      list.map(({id, vector}) => (id === undefined ? {vector} : {id}));
    const json = {
      positive: examples(this.query.positive),
      negative: examples(this.query.negative),
      k,
      offset,
      where: restFilter(this.rows, this.filters, merged(this.where, this._areaFilter)),
      with_percentile: true,
    };
    const {matches} = await rest('POST', path(this.name, 'search'), {json, signal, noted: offset === 0});
    this.hasMore = matches.length === k && offset + k < MAX_MATCHES;
    return matches.map((/** @type {import('./api.js').Match} */ one) => [this.rows.add(one.id, one.metadata), one]);
  }

  /** Search for what is like an item. @param {number} row */
  similarTo(row) {
    return this.search({positive: [{id: this.rows.ids[row]}], negative: []});
  }

  /** Add items to the query. @param {Iterable<number>} rows @param {'positive' | 'negative'} sign */
  async refine(rows, sign) {
    const query = {positive: [...this.query.positive], negative: [...this.query.negative]};
    for (const row of rows) {
      const id = this.rows.ids[row];
      query.positive = query.positive.filter(one => one.id !== id);
      query.negative = query.negative.filter(one => one.id !== id);
      query[sign].push({id});
    }
    await this.search(query);
  }

  /**
   * Search by an own image.
   * @param {Blob} image
   * @param {string} name
   * @param {string} [preview]
   * @param {boolean} [isFile] whether the caller has it as a file
   */
  async searchImage(image, name, preview, isFile = true) {
    const form = new FormData();
    form.append('files', image, name);
    form.append('model', this.info.model);
    const answer = await rest('POST', 'embed', {form, query: {encoding_format: 'base64'}, noted: isFile});
    const example = {vector: answer.data[0].embedding, name, preview, image};
    await this.search({positive: [example], negative: []});
  }

  // ---- selection

  /** @param {Iterable<number>} rows @param {boolean} [keep] whether the others stay selected */
  select(rows, keep = false) {
    this.selected = new Set([...(keep ? this.selected : []), ...rows]);
    this.emit('selection');
  }

  /** @param {number} row */
  toggle(row) {
    if (!this.selected.delete(row)) this.selected.add(row);
    this.emit('selection');
  }

  /** @param {number | null} row */
  setFocus(row) {
    this.focus = row;
    this.emit('focus');
  }

  // ---- changes

  /** @param {{values: import('./edits.js').Values}} written */
  _written({values}) {
    this.rows.set(values);
    this._arrange();
    this.emit('rows');
  }

  /** @param {{items: Map<string, Record<string, any>>}} read */
  _read({items}) {
    this.rows.take([...items].map(([id, metadata]) => ({id, metadata})));
    this._arrange();
    this.emit('rows');
  }

  /** @param {{ids: string[]}} written */
  _deleted({ids}) {
    const place = this.focus === null ? -1 : this.view.indexOf(this.focus);
    this.rows.remove(ids);
    this.selected = new Set([...this.selected].filter(row => !this.rows.deleted.has(row)));
    this._arrange();
    if (this.focus !== null && this.rows.deleted.has(this.focus))
      this.setFocus(this.view[Math.min(Math.max(0, place), this.view.length - 1)] ?? null);
    this.emit('selection');
    this.emit('rows');
  }
}

/** Both filters of REST. @param {any} one @param {any} other null for none @returns {any} */
function merged(one, other) {
  return one && other ? {must: [one, other]} : (one ?? other);
}

/** Compare values of any type; missing ones are last. @param {any} a @param {any} b */
function compare(a, b) {
  if (a === undefined || a === null || b === undefined || b === null)
    return Number(a === undefined || a === null) - Number(b === undefined || b === null);
  return typeof a === 'number' && typeof b === 'number'
    ? a - b
    : String(a).localeCompare(String(b), 'en', {numeric: true});
}
