// The items of a collection as a table in the browser: ids, metadata, and columns of their values.
//
// Grid, map and facets work on row numbers. A row number stays that of its item until the collection is opened again.
import {imageUrl, path, rest} from './api.js';
import {Thumbnails} from './thumbnails.js';

export const MAX_ROWS = 200_000; // above this, a page would need more memory than a phone has
const FIRST = 200; // fills a screen; the others follow in larger pages
const PAGE = 5000;
const MANY = 0.5; // a key whose values are mostly different, such as a path, is not a facet
const CATEGORIES = 40; // whole numbers with fewer different values are categories, such as clusters
// of files and of this program
const HIDDEN = new Set(['root', 'mtime', 'name', 'path', 'pixel_sha256', 'file_sha256', 'inspection.seq']);

/**
 * @typedef {object} Column values of one metadata key
 * @property {string} key
 * @property {boolean} numeric
 * @property {any[]} values the different values, the most frequent first; codes refer to them
 * @property {(number[] | null)[]} codes of each row: the codes of its value, or of the values of its list
 * @property {Float64Array} numbers of each row if numeric; NaN without a value
 * @property {number[]} colors of each value: its place in the palette, which it keeps when other values become more
 *   frequent
 */

export class Rows {
  constructor(/** @type {string} */ name) {
    this.name = name;
    /** @type {string[]} */
    this.ids = [];
    /** @type {Record<string, any>[]} */
    this.metadata = [];
    /** @type {Map<string, number>} */
    this.rowOf = new Map();
    /** @type {Set<number>} */
    this.deleted = new Set();
    this.complete = false;
    /**
     * Of each load that runs: the ids that exist, and those deleted since its last request.
     * @type {Set<{seen: Set<string>, gone: Set<string>}>}
     */
    this._loads = new Set();
    this.thumbnails = new Thumbnails(this);
    /** @type {Map<string, Column>} */
    this._columns = new Map();
    /** Colors of values by key. @type {Map<string, Map<any, number>>} */
    this._colors = new Map();
  }

  /** @param {string} id @param {Record<string, any>} metadata @returns {number} its row */
  add(id, metadata) {
    let row = this.rowOf.get(id);
    if (row === undefined) {
      row = this.ids.length;
      this.rowOf.set(id, row);
      this.ids.push(id);
    }
    const before = this.metadata[row]?.pixel_sha256;
    this.metadata[row] = flat(metadata);
    if (!this.deleted.has(row)) for (const {seen} of this._loads) seen.add(id);
    if (before !== undefined && before !== this.metadata[row].pixel_sha256) this.thumbnails.forget([row]);
    return row;
  }

  /** Take items as the server has them now. @param {Iterable<{id: string, metadata: Record<string, any>}>} items */
  take(items) {
    for (const {id, metadata} of items) {
      this.deleted.delete(this.rowOf.get(id) ?? -1);
      for (const {gone} of this._loads) gone.delete(id);
      this.add(id, metadata);
    }
    this._columns.clear();
  }

  /** Note that items are deleted, also those that are not loaded yet. @param {Iterable<string>} ids */
  remove(ids) {
    for (const id of ids) {
      const row = this.rowOf.get(id);
      if (row !== undefined) this.deleted.add(row);
      for (const {seen, gone} of this._loads) {
        seen.delete(id);
        gone.add(id);
      }
    }
  }

  /**
   * Load all items, page by page.
   * @param {AbortSignal} signal
   * @param {() => void} onPage called after each page
   */
  async load(signal, onPage) {
    let cursor = null;
    const load = {seen: new Set(), gone: new Set()},
      {seen, gone} = load;
    this._loads.add(load);
    try {
      do {
        gone.clear();
        const query = {limit: cursor ? PAGE : FIRST, cursor};
        const page = await rest('GET', path(this.name, 'items'), {query, signal});
        this.take(page.items.filter((/** @type {{id: string}} */ one) => !gone.has(one.id)));
        cursor = page.cursor;
        this.complete = cursor === null;
        if (this.complete) this.deleted = new Set([...this.ids.keys()].filter(row => !seen.has(this.ids[row])));
        onPage();
      } while (cursor !== null && this.ids.length < MAX_ROWS);
    } finally {
      this._loads.delete(load);
    }
  }

  /** The metadata of an item. @param {string} id @returns {Record<string, any> | undefined} */
  of(id) {
    return this.metadata[this.rowOf.get(id) ?? -1];
  }

  /**
   * Note written values of metadata keys.
   * @param {Map<string, Record<string, any>>} values by id; null removes a key
   */
  set(values) {
    for (const [id, own] of values) {
      const row = this.rowOf.get(id);
      if (row !== undefined) this.metadata[row] = changed(this.metadata[row], own);
    }
    this._columns.clear();
  }

  /** Address of an item's thumbnail, which a browser keeps while the image stays the same. @param {number} row */
  thumbnail(row) {
    const version = this.metadata[row].pixel_sha256;
    return (
      imageUrl(this.name, this.ids[row], 'thumbnail') +
      (typeof version === 'string' ? `?version=${encodeURIComponent(version.slice(0, 16))}` : '')
    );
  }

  /** Name of an item for people. @param {number} row */
  title(row) {
    return titleOf(this.ids[row], this.metadata[row]);
  }

  /** Text of a value; the id of an item is shown as its name. @param {any} value */
  text(value) {
    const row = this.rowOf.get(value);
    return row === undefined ? String(value) : this.title(row);
  }

  /** Keys that are worth a facet. */
  get keys() {
    const seen = new Set();
    for (const metadata of this.metadata) for (const key in metadata) if (!HIDDEN.has(key)) seen.add(key);
    const own = (/** @type {string} */ key) => (key.startsWith('inspection.') ? 1 : 0); // after those of the collection
    return [...seen]
      .sort((a, b) => own(a) - own(b) || (a < b ? -1 : 1))
      .filter(key => {
        const {numeric, values} = this.column(key);
        return numeric ? values.length > 1 : values.length <= Math.max(30, MANY * this.ids.length);
      });
  }

  /** @param {string} key @returns {Column} */
  column(key) {
    let column = this._columns.get(key);
    if (!column) {
      this._columns.set(key, (column = columnOf(key, this.metadata)));
      const colors = this._colors.get(key) ?? new Map();
      for (const value of column.values) if (!colors.has(value)) colors.set(value, colors.size);
      column.colors = column.values.map(value => /** @type {number} */ (colors.get(value)));
      if (this.complete) this._colors.set(key, colors);
    }
    return column;
  }
}

/** Name of an item for people. @param {string} id @param {Record<string, any>} metadata */
export function titleOf(id, metadata) {
  return String(metadata.path ?? metadata.name ?? id);
}

/**
 * Metadata with paths as keys instead of objects: {camera: {model: 'X'}} is {'camera.model': 'X'}; as in filters, a key
 * that is written so comes first.
 * @param {Record<string, any>} metadata
 * @param {string} [prefix]
 * @returns {Record<string, any>}
 */
export function flat(metadata, prefix = '') {
  const inner = Object.entries(metadata).flatMap(([key, value]) =>
    isObject(value) ? Object.entries(flat(value, `${prefix}${key}.`)) : [[prefix + key, value]],
  );
  return plain([
    ...inner,
    ...(prefix ? [] : Object.entries(metadata).filter(([key, value]) => key.includes('.') && !isObject(value))),
  ]);
}

/** An object without inherited keys: an item has no value of `constructor`. @param {any[][]} entries */
function plain(entries) {
  return Object.assign(Object.create(null), Object.fromEntries(entries));
}

/** @param {any} value */
function isObject(value) {
  return value !== null && typeof value === 'object' && !Array.isArray(value);
}

/**
 * Metadata after written values; null removes a key.
 * @param {Record<string, any>} metadata
 * @param {Record<string, any>} values
 * @returns {Record<string, any>}
 */
export function changed(metadata, values) {
  const own = new Set(Object.keys(values));
  return plain(Object.entries({...metadata, ...values}).filter(([key, value]) => !own.has(key) || value !== null));
}

/** @param {string} key @param {Record<string, any>[]} metadata @returns {Column} */
function columnOf(key, metadata) {
  const numbers = new Float64Array(metadata.length).fill(NaN);
  /** @type {Map<any, number>} */
  const found = new Map();
  /** @type {number[]} */
  const counts = [];
  let numeric = true;
  const codes = metadata.map((one, row) => {
    const value = one[key];
    if (value === undefined || value === null) return null;
    if (typeof value === 'number') numbers[row] = value;
    else numeric = false;
    return (Array.isArray(value) ? value : [value]).map(part => {
      const shown = typeof part === 'object' ? JSON.stringify(part) : part;
      let code = found.get(shown);
      if (code === undefined) {
        found.set(shown, (code = found.size));
        counts.push(0);
      }
      counts[code]++;
      return code;
    });
  });
  const values = [...found.keys()];
  const order = values
    .map((_, code) => code)
    .sort((a, b) => counts[b] - counts[a] || String(values[a]).localeCompare(String(values[b])));
  const rank = new Map(order.map((code, place) => [code, place]));
  return {
    key,
    numeric: numeric && values.length > 0 && !(values.length < CATEGORIES && values.every(Number.isInteger)),
    values: order.map(code => values[code]),
    codes: codes.map(own => own && own.map(code => /** @type {number} */ (rank.get(code)))),
    numbers,
    colors: [],
  };
}
