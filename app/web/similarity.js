// How good a score is: the share of random pairs of the collection that are less similar.
import {path, rest} from './api.js';

const SAMPLE = 300; // items, which make 44,850 pairs
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
    return `The best match is nearer than ${(100 * Math.min(share, 0.9999)).toFixed(share > 0.999 ? 2 : 1)} % of random pairs.`;
  }

  async _sample() {
    const {items} = await rest('GET', path(this.info.name, 'items'), {query: {limit: SAMPLE, with_vector: true}});
    const vectors = items.map((/** @type {any} */ item) => item.vector);
    if (vectors.length < 10) return new Float64Array();
    const scores = new Float64Array(vectors.length * (vectors.length - 1) / 2);
    let pair = 0;
    for (let i = 0; i < vectors.length; i++) for (let j = 0; j < i; j++) scores[pair++] = this._score(vectors[i], vectors[j]);
    return scores.sort();
  }

  /** @param {number[]} a @param {number[]} b */
  _score(a, b) {
    let dot = 0, square = 0;
    for (let i = 0; i < a.length; i++) {
      dot += a[i] * b[i];
      square += (a[i] - b[i]) ** 2;
    }
    return this.info.metric === 'l2' ? -Math.sqrt(square) : dot; // the vectors of a cosine collection have length 1
  }
}
