// Justified rows: lines of whole images that all have the width of the grid.

export const GAP = 4;
export const HEADING = 34;

/**
 * @typedef {object} Line images `start` to `end` (exclusive) of the list, or a heading
 * @property {number} top
 * @property {number} height
 * @property {number} start
 * @property {number} end
 * @property {string} [heading]
 */

/**
 * Lay out images in lines.
 * @param {number} length number of images
 * @param {(place: number) => number} aspectOf width over height of an image
 * @param {number} width of the grid
 * @param {number} target height of a line; lines that are full get near it
 * @param {(place: number) => string} [headingOf] images with different headings are on different lines
 * @returns {Line[]}
 */
export function layOut(length, aspectOf, width, target, headingOf) {
  /** @type {Line[]} */
  const lines = [];
  let top = 0, start = 0, aspects = 0;
  const close = (/** @type {number} */ end, /** @type {boolean} */ full) => {
    const free = width - GAP * (end - start - 1);
    const height = full ? free / aspects : Math.min(target, free / aspects);
    lines.push({top, height, start, end});
    top += height + GAP;
    start = end;
    aspects = 0;
  };
  for (let place = 0; place < length; place++) {
    if (headingOf && (place === 0 || headingOf(place) !== headingOf(place - 1))) {
      if (place > start) close(place, false);
      lines.push({top, height: HEADING, start: place, end: place, heading: headingOf(place)});
      top += HEADING;
    }
    aspects += aspectOf(place);
    if (aspects * target + GAP * (place - start) >= width) close(place + 1, true);
  }
  if (start < length) close(length, false);
  return lines;
}

/** Index of the last line that begins at or above a height. @param {Line[]} lines @param {number} y */
export function lineAt(lines, y) {
  let low = 0, high = lines.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (lines[middle].top <= y) low = middle + 1;
    else high = middle;
  }
  return Math.max(0, low - 1);
}
