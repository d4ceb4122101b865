// Colors of values: the map and the facets show the same color for the same value.

const COLORS = ['#4e79a7', '#f28e2b', '#e15759', '#76b7b2', '#59a14f', '#edc948', '#b07aa1', '#ff9da7', '#9c755f', '#86bc4c', '#d37295', '#499894',
  '#b6992d', '#79706e', '#d4a6c8', '#1f77b4', '#8c564b', '#17becf', '#bcbd22', '#7f3c8d'];

/** Red, green and blue by the code of a value, modulo the length. */
export const PALETTE = COLORS.map(text => [1, 3, 5].map(at => parseInt(text.slice(at, at + 2), 16)));
