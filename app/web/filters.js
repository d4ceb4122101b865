// Filters on metadata: which rows pass, and the same as `where` of REST. And the names of keys for people.

/**
 * @typedef {{in: any[]} | {range: [number, number]} | {differs: string}} Condition null in `in`: without a value;
 *   differs: has another value than this key
 */
/** @typedef {Map<string, Condition>} Filters */

const NAMES = /** @type {Record<string, string>} */ ({
  cluster: 'Cluster',
  outlier: 'Oddness',
  odd: 'Outlier',
  duplicates: 'Copies of',
  leak: 'Leak between splits',
  suspect: 'Suspect label',
  proposed: 'Proposed label',
  predicted: 'Held-out prediction',
  problems: 'Image problem',
  next: 'Label next',
  reviewed: 'Reviewed label',
});

/** Name of a metadata key for people. @param {string} key */
export function nameOf(key) {
  const [, kind, field] = /^(predicted|confidence)_(.+)$/.exec(key) ?? [];
  if (kind) return kind === 'predicted' ? `Predicted ${field}` : `Confidence in ${field}`;
  const found = key.startsWith('inspection.') ? key.slice(11) : '';
  return key === 'size' ? 'File size, bytes' : Object.hasOwn(NAMES, found) ? NAMES[found] : key;
}

/** Whether this program has found the values of a key, and not a person. @param {string} key */
export function isFound(key) {
  return key.startsWith('inspection.') || /^(predicted|confidence)_/.test(key);
}

/** The key whose values a key predicts; undefined for other keys. @param {string} key */
export function predictedBy(key) {
  return /^predicted_(.+)$/.exec(key)?.[1];
}

/**
 * Whether each row passes.
 * @param {import('./rows.js').Rows} rows
 * @param {Filters} filters
 * @param {string | null} [except] a key whose own filter is left out, for the counts of its facet
 * @returns {Uint8Array}
 */
export function passing(rows, filters, except = null) {
  const passes = new Uint8Array(rows.ids.length).fill(1);
  for (const row of rows.deleted) passes[row] = 0;
  for (const [key, condition] of filters) {
    if (key === except) continue;
    const pass = testOf(rows, key, condition);
    for (let row = 0; row < passes.length; row++) if (!pass(row)) passes[row] = 0;
  }
  return passes;
}

/**
 * @param {import('./rows.js').Rows} rows
 * @param {string} key
 * @param {Condition} condition
 * @returns {(row: number) => boolean}
 */
function testOf(rows, key, condition) {
  const {values, codes, numbers} = rows.column(key);
  if ('range' in condition) return row => numbers[row] >= condition.range[0] && numbers[row] <= condition.range[1];
  if ('in' in condition) {
    const wanted = new Set(condition.in.map(value => values.indexOf(value))),
      none = condition.in.includes(null);
    return row => codes[row]?.some(code => wanted.has(code)) ?? none;
  }
  const other = rows.column(condition.differs);
  const text = (/** @type {import('./rows.js').Column} */ column, /** @type {number[]} */ own) =>
    own
      .map(code => String(column.values[code]))
      .sort()
      .join();
  return row => {
    const own = codes[row],
      others = other.codes[row];
    return own !== null && others !== null && text(rows.column(key), own) !== text(other, others);
  };
}

/**
 * @param {import('./rows.js').Rows} rows
 * @param {Filters} filters
 * @param {any} [extra] a further filter in the form of REST
 * @returns {any} null without a filter
 */
export function restFilter(rows, filters, extra = null) {
  const must = [...filters].map(([key, condition]) => {
    if ('range' in condition) return {key, range: {gte: condition.range[0], lte: condition.range[1]}};
    // REST does not compare two keys
    if ('differs' in condition) return {ids: rows.ids.filter((_, row) => testOf(rows, key, condition)(row))};
    const values = condition.in.filter(value => value !== null);
    return values.length === condition.in.length
      ? {key, in: values}
      : {
          should: [
            {key, in: values},
            {key, exists: false},
          ],
        };
  });
  if (must.length === 0) return extra;
  return {...extra, must: [...(extra?.must ?? []), ...must]};
}

/** Text of a condition for a chip. @param {string} key @param {Condition} condition */
export function textOf(key, condition) {
  if ('range' in condition) return `${nameOf(key)}: ${short(condition.range[0])} to ${short(condition.range[1])}`;
  if ('differs' in condition) return `${nameOf(key)} differs from ${condition.differs}`;
  const [first, ...others] = condition.in;
  return `${nameOf(key)}: ${first ?? 'none'}${others.length ? ` or ${others.length} more` : ''}`;
}

/** @param {number} number */
export function short(number) {
  return Number(number.toPrecision(4)).toLocaleString('en');
}
