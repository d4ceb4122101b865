// The thumbnails of a collection, many in one request; the last ones stay in memory.
//
// What is wanted last is loaded first, and what is no longer on the screen is not loaded: in a fast scroll, only the
// images where it ends.
import {path, rest} from './api.js';

const AT_ONCE = 48; // in one request
const RUNNING = 2; // requests at a time
const KEPT = 3000; // of about 6 kB each

export class Thumbnails {
  /** @param {import('./rows.js').Rows} rows */
  constructor(rows) {
    this.rows = rows;
    /** Address by row, the last used last; '' for items without a thumbnail. @type {Map<number, string>} */
    this._kept = new Map();
    /** Images that wait, by row. @type {Map<number, HTMLImageElement[]>} */
    this._waiting = new Map();
    this._running = 0;
    this._due = false;
    this._closing = new AbortController();
  }

  /**
   * Show the thumbnail of a row in an image, now or when it is loaded.
   * @param {HTMLImageElement} image
   * @param {number} row
   */
  show(image, row) {
    const kept = this._kept.get(row);
    if (kept !== undefined) {
      this._kept.delete(row);
      this._kept.set(row, kept);
      return set(image, kept);
    }
    const images = this._waiting.get(row) ?? [];
    this._waiting.delete(row);
    this._waiting.set(row, images.includes(image) ? images : [...images, image]);
    if (this._due) return;
    this._due = true;
    queueMicrotask(() => {
      this._due = false;
      this._load();
    });
  }

  /** Load those of rows whose images changed again. @param {Iterable<number>} rows */
  forget(rows) {
    for (const row of rows) {
      URL.revokeObjectURL(this._kept.get(row) ?? '');
      this._kept.delete(row);
    }
  }

  close() {
    this._closing.abort();
    this.forget([...this._kept.keys()]);
    this._waiting.clear();
  }

  async _load() {
    while (this._running < RUNNING && this._waiting.size) {
      /** @type {[number, HTMLImageElement[]][]} */
      const wanted = [];
      for (const [row, images] of [...this._waiting].reverse()) {
        const shown = images.filter(image => image.isConnected);
        if (shown.length && wanted.length === AT_ONCE) continue; // waits for the next request
        this._waiting.delete(row);
        if (shown.length) wanted.push([row, shown]);
      }
      if (wanted.length) this._request(wanted.reverse());
    }
  }

  /** @param {[number, HTMLImageElement[]][]} wanted */
  async _request(wanted) {
    this._running++;
    try {
      const json = {ids: wanted.map(([row]) => this.rows.ids[row])};
      const answer = new DataView(
        await rest('POST', path(this.rows.name, 'thumbnails'), {json, signal: this._closing.signal, as: 'buffer'}),
      );
      let start = 0;
      for (const [row, images] of wanted) {
        const end = start + 4 + answer.getUint32(start, true);
        const address =
          end > start + 4
            ? URL.createObjectURL(new Blob([answer.buffer.slice(start + 4, end)], {type: 'image/jpeg'}))
            : '';
        this._kept.set(row, address);
        for (const image of images) set(image, address);
        start = end;
      }
      while (this._kept.size > KEPT) this.forget([/** @type {number} */ (this._kept.keys().next().value)]);
    } catch {
      // a deleted collection; other errors wait
      for (const [, images] of wanted) for (const image of images) set(image, '');
    } finally {
      this._running--;
      this._load();
    }
  }
}

/** @param {HTMLImageElement} image @param {string} address '' for none */
function set(image, address) {
  if (address) image.src = address;
  else image.dispatchEvent(new Event('error'));
}
