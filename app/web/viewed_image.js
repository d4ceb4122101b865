// <viewed-image>: an image with a map over it. Wheel, pinch, + and - zoom, a drag moves, a swipe goes to the next
// image. When it asks for a point or a box, a pointer chooses it, or the arrow keys and Enter.
import {make} from './dom.js';

const MOST = 12; // times the size that fits
const STEP = 0.02; // of the image, per press of an arrow key
const LEAST = 8; // pixels of the image per side of a box
const SWIPE = 60; // pixels on the screen

/** @typedef {{point: [number, number]} | {box: [number, number, number, number]}} Choice in pixels of the image */

class ViewedImage extends HTMLElement {
  constructor() {
    super();
    this.image = make('img', {alt: '', draggable: 'false', onload: () => this._fit()});
    this.overlay = make('img.attention', {alt: '', draggable: 'false', hidden: true});
    this.rectangle = make('div.rectangle', {hidden: true});
    this.cross = make('div.cross', {hidden: true});
    this.frame = make(
      'div.frame',
      {
        onkeydown: event => this._key(event),
        onwheel: event => this._wheel(event),
        onpointerdown: event => this._down(event),
        onpointermove: event => this._move(event),
        onpointerup: event => this._up(event),
        onpointercancel: event => this._up(event),
      },
      [this.image, this.overlay, this.rectangle, this.cross],
    );
    this.classList.add('stage');
    this.replaceChildren(this.frame);
    /** What may be chosen. @type {'box' | 'any' | null} */
    this.asks = null;
    /** Positions of the pressed pointers on the screen. @type {Map<number, [number, number]>} */
    this.pointers = new Map();
    /** Where the press began, in shares of the image and on the screen. */
    this.start = [0, 0];
    this.pressed = [0, 0];
    /** The keyboard's position in shares of the image, and the first corner of its box. */
    this.cursor = [0.5, 0.5];
    /** @type {number[] | null} */
    this.corner = null;
    /** Zoom, and shift in pixels of the screen. */
    this.scale = 1;
    this.shift = [0, 0];
  }

  /** @param {string} src @param {string} alt */
  show(src, alt) {
    this._reset();
    this.ask(null);
    this.cover(null);
    this.image.src = src;
    this.image.alt = alt;
  }

  /** Show a map over the image; null shows none. @param {string | null} src */
  cover(src) {
    this.overlay.hidden = src === null;
    if (src !== null) this.overlay.src = src;
  }

  /** Ask for a box, or for a point or a box. @param {'box' | 'any' | null} what */
  ask(what) {
    this.asks = what;
    this.corner = null;
    this.rectangle.hidden = this.cross.hidden = true;
    this.classList.toggle('pointing', what !== null);
    for (const [name, value] of [
      ['tabindex', '0'],
      ['role', 'application'],
      ['aria-label', 'Arrow keys move the cross, Enter chooses'],
    ]) {
      if (what) this.frame.setAttribute(name, value);
      else this.frame.removeAttribute(name);
    }
  }

  _reset() {
    this.scale = 1;
    this.shift = [0, 0];
    this.frame.style.transform = '';
  }

  /** Small images are enlarged up to four times. */
  _fit() {
    const {naturalWidth: width, naturalHeight: height} = this.image;
    this.image.style.width = `min(100cqw, 100cqh * ${width / height}, ${4 * width}px)`;
  }

  // ---- zoom

  /** @param {number} factor @param {number} [x] on the screen; the middle if left out @param {number} [y] */
  zoom(factor, x, y) {
    const {left, top, width, height} = this.frame.getBoundingClientRect();
    const scale = Math.min(MOST, Math.max(1, this.scale * factor)),
      by = scale / this.scale - 1;
    this.scale = scale;
    this._shift(-((x ?? left + width / 2) - left) * by, -((y ?? top + height / 2) - top) * by);
  }

  /** @param {number} dx @param {number} dy */
  _shift(dx, dy) {
    this.shift = this.scale === 1 ? [0, 0] : [this.shift[0] + dx, this.shift[1] + dy];
    this.frame.style.transform =
      this.scale === 1 ? '' : `translate(${this.shift[0]}px, ${this.shift[1]}px) scale(${this.scale})`;
  }

  /** @param {WheelEvent} event */
  _wheel(event) {
    event.preventDefault();
    this.zoom(Math.exp(-event.deltaY / 400), event.clientX, event.clientY);
  }

  // ---- pointers

  /** Position in shares of the image. @param {PointerEvent} event */
  _share(event) {
    const {left, top, width, height} = this.image.getBoundingClientRect();
    return [(event.clientX - left) / width, (event.clientY - top) / height].map(one => Math.min(1, Math.max(0, one)));
  }

  /** @param {PointerEvent} event */
  _down(event) {
    if (event.button) return;
    if (event.pointerType === 'mouse') event.preventDefault(); // no selection of text
    this.frame.setPointerCapture(event.pointerId);
    this.pointers.set(event.pointerId, [event.clientX, event.clientY]);
    this.start = this._share(event);
    this.pressed = [event.clientX, event.clientY];
  }

  /** @param {PointerEvent} event */
  _move(event) {
    const before = this.pointers.get(event.pointerId);
    if (!before) return;
    const other = [...this.pointers].find(([id]) => id !== event.pointerId)?.[1];
    this.pointers.set(event.pointerId, [event.clientX, event.clientY]);
    if (other) {
      const far = (/** @type {number[]} */ from) => Math.hypot(from[0] - other[0], from[1] - other[1]) || 1;
      this.pressed = [NaN, NaN]; // a pinch is neither a click nor a swipe
      this.zoom(
        far([event.clientX, event.clientY]) / far(before),
        (event.clientX + other[0]) / 2,
        (event.clientY + other[1]) / 2,
      );
    } else if (this.asks) {
      this._draw(this.start, this._share(event));
    } else {
      this._shift(event.clientX - before[0], event.clientY - before[1]);
    }
  }

  /** @param {PointerEvent} event */
  _up(event) {
    if (!this.pointers.delete(event.pointerId) || this.pointers.size || event.type === 'pointercancel') return;
    const dx = event.clientX - this.pressed[0],
      dy = event.clientY - this.pressed[1];
    if (this.asks) this._choose(this.start, this._share(event));
    else if (this.scale === 1 && Math.abs(dx) > SWIPE && Math.abs(dx) > 2 * Math.abs(dy))
      this.dispatchEvent(new CustomEvent('swipe', {detail: dx < 0 ? 1 : -1}));
  }

  /** Draw the rectangle between two corners. @param {number[]} a @param {number[]} b in shares of the image */
  _draw(a, b) {
    this.rectangle.hidden = false;
    Object.assign(this.rectangle.style, {
      left: `${100 * Math.min(a[0], b[0])}%`,
      top: `${100 * Math.min(a[1], b[1])}%`,
      width: `${100 * Math.abs(a[0] - b[0])}%`,
      height: `${100 * Math.abs(a[1] - b[1])}%`,
    });
  }

  /** @param {number[]} a @param {number[]} b corners in shares of the image; equal ones are a point */
  _choose(a, b) {
    const size = [this.image.naturalWidth, this.image.naturalHeight];
    const low = [0, 1].map(i => Math.min(a[i], b[i]) * size[i]),
      high = [0, 1].map(i => Math.max(a[i], b[i]) * size[i]);
    const isBox = high[0] - low[0] >= LEAST && high[1] - low[1] >= LEAST;
    if (!isBox) this.rectangle.hidden = true;
    if (!isBox && this.asks === 'box') return;
    const choice = isBox
      ? {box: [...low, ...high]}
      : {point: b.map((share, i) => Math.min(share * size[i], size[i] - 1))};
    this.dispatchEvent(new CustomEvent('choice', {detail: choice}));
  }

  // ---- keyboard

  /** @param {KeyboardEvent} event */
  _key(event) {
    const moves = /** @type {Record<string, [number, number]>} */ ({
      ArrowLeft: [-1, 0],
      ArrowRight: [1, 0],
      ArrowUp: [0, -1],
      ArrowDown: [0, 1],
    });
    if (!this.asks || !(event.key in moves || event.key === 'Enter')) return;
    event.preventDefault();
    event.stopPropagation();
    if (event.key !== 'Enter') {
      const step = event.shiftKey ? 5 * STEP : STEP;
      this.cursor = this.cursor.map((share, i) => Math.min(1, Math.max(0, share + step * moves[event.key][i])));
    } else if (this.asks === 'any') {
      this._choose(this.cursor, this.cursor);
    } else if (this.corner) {
      this._choose(this.corner, this.cursor);
      this.corner = null;
      return;
    } else {
      this.corner = this.cursor;
    }
    this.cross.hidden = false;
    Object.assign(this.cross.style, {left: `${100 * this.cursor[0]}%`, top: `${100 * this.cursor[1]}%`});
    if (this.corner) this._draw(this.corner, this.cursor);
  }
}

customElements.define('viewed-image', ViewedImage);
export {ViewedImage};
