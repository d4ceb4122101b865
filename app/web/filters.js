// Filters on metadata: which rows pass, and the same as `where` of REST.

/** @typedef {{in: any[]} | {range: [number, number]}} Condition */
/** @typedef {Map<string, Condition>} Filters */

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
    const {values, codes, numbers} = rows.column(key);
    if ('in' in condition) {
      const wanted = new Set(condition.in.map(value => values.indexOf(value)));
      for (let row = 0; row < passes.length; row++) if (!codes[row]?.some(code => wanted.has(code))) passes[row] = 0;
    } else {
      const [low, high] = condition.range;
      for (let row = 0; row < passes.length; row++) if (!(numbers[row] >= low && numbers[row] <= high)) passes[row] = 0;
    }
  }
  return passes;
}

/**
 * @param {Filters} filters
 * @param {any} [extra] a further filter in the form of REST
 * @returns {any} null without a filter
 */
export function restFilter(filters, extra = null) {
  const must = [...filters].map(([key, condition]) =>
    'in' in condition ? {key, in: condition.in} : {key, range: {gte: condition.range[0], lte: condition.range[1]}});
  if (must.length === 0) return extra;
  return {...extra, must: [...(extra?.must ?? []), ...must]};
}

/** Text of a condition for a chip. @param {string} key @param {Condition} condition */
export function textOf(key, condition) {
  if ('range' in condition) return `${key}: ${short(condition.range[0])} to ${short(condition.range[1])}`;
  const [first, ...others] = condition.in;
  return `${key}: ${first}${others.length ? ` or ${others.length} more` : ''}`;
}

/** @param {number} number */
export function short(number) {
  return Number(number.toPrecision(4)).toLocaleString('en');
}
