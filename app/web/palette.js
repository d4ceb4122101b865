// Colors of values: the map, its legend and the facets show the same color for the same value.

const COLORS = [
  '#4e79a7',
  '#f28e2b',
  '#e15759',
  '#76b7b2',
  '#59a14f',
  '#edc948',
  '#b07aa1',
  '#ff9da7',
  '#9c755f',
  '#86bc4c',
  '#d37295',
  '#499894',
  '#b6992d',
  '#79706e',
  '#d4a6c8',
  '#1f77b4',
  '#8c564b',
  '#17becf',
  '#bcbd22',
  '#7f3c8d',
];
export const PLAIN = [128, 132, 140];
const [LOW, HIGH] = [
  [59, 105, 178],
  [235, 116, 36],
];

/** How many values have different colors. */
export const COLORED = COLORS.length;

/**
 * Red, green and blue of a value; gray for the values after those with different colors.
 * @param {number} place of the value
 */
export function colorOf(place) {
  return place < COLORED ? [1, 3, 5].map(at => parseInt(COLORS[place].slice(at, at + 2), 16)) : PLAIN;
}

/** @param {number} place of the value */
export function cssColor(place) {
  return `rgb(${colorOf(place)})`;
}

/** A color of a number: from blue over gray to orange. @param {number} share */
export function shade(share) {
  return LOW.map((one, i) => one + (HIGH[i] - one) * share);
}
