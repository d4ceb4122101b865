// How good a score is: the share of random pairs of the collection that are less similar.
import {path, rest} from './api.js';

const SAMPLE = 200, QUERIES = 24; // items, and those whose scores with all others are read: 4,776 pairs
const NOTHING = 0.95; // a best match below this share of random pairs is not similar

export class Similarity {
  /** @param {any} info of the collection */
  constructor(info) {
    this.info = info;
    /** Scores of random pairs, ascending. @type {Promise<Float64Array> | null} */
    this._random = null;
  }

  /** Share of random pairs that score less; NaN for a collection with fewer than 10 items. @param {number} score */
  async percentile(score) {
    const random = await (this._random ??= this._sample());
    let low = 0, high = random.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (random[middle] < score) low = middle + 1;
      else high = middle;
    }
    return random.length ? low / random.length : NaN;
  }

  /** A sentence on the best score of a search. @param {number} score */
  async describe(score) {
    const share = await this.percentile(score);
    if (Number.isNaN(share)) return '';
    if (share < NOTHING) return 'Nothing similar: random pairs of images are as near as the best match.';
    return `The best is nearer than ${(100 * Math.min(share, 0.9999)).toFixed(share > 0.999 ? 2 : 1)}% of random pairs.`;
  }

  /** Scores as searches return them: the collection may compare other vectors than it stores. */
  async _sample() {
    const {items} = await rest('GET', path(this.info.name, 'items'), {query: {limit: SAMPLE}});
    const ids = items.map((/** @type {any} */ item) => item.id);
    if (ids.length < 10) return new Float64Array();
    const queries = ids.slice(0, QUERIES).map((/** @type {string} */ id) => ({id, k: ids.length, where: {must: [{ids}]}, exact: true}));
    const {results} = await rest('POST', path(this.info.name, 'search', 'batch'), {json: {queries}});
    return Float64Array.from(results.flatMap((/** @type {any} */ one) => (one.matches ?? []).map((/** @type {any} */ match) => match.score))).sort();
  }
}
