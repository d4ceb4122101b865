// Lines of equal square tiles, which do not wait for the images to know their sizes.

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
 * @param {number} width of the grid
 * @param {number} target width of a tile; the tiles of a full line fill the width
 * @param {(place: number) => string} headingOf images with different headings are on different lines; '' has none
 * @returns {{side: number, lines: Line[]}} the width of a tile
 */
export function layOut(length, width, target, headingOf) {
  const columns = Math.max(1, Math.round((width + GAP) / (target + GAP))),
    side = (width + GAP) / columns - GAP;
  /** @type {Line[]} */
  const lines = [];
  let top = 0,
    heading = '';
  for (let start = 0, end; start < length; start = end) {
    const own = headingOf(start);
    if (own && own !== heading) {
      lines.push({top, height: HEADING, start, end: start, heading: own});
      top += HEADING;
    }
    heading = own;
    for (end = start + 1; end < length && end - start < columns && headingOf(end) === own;) end++;
    lines.push({top, height: side, start, end});
    top += side + GAP;
  }
  return {side, lines};
}

/** Index of the last line that begins at or above a height. @param {Line[]} lines @param {number} y */
export function lineAt(lines, y) {
  let low = 0,
    high = lines.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (lines[middle].top <= y) low = middle + 1;
    else high = middle;
  }
  return Math.max(0, low - 1);
}
