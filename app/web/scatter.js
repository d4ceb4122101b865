// A scatter plot of many points in WebGL 2: one draw call, with the view as a scale and a shift.

const VERTEX = `#version 300 es
in vec2 place; in vec4 color;
uniform vec2 scale, shift; uniform float size;
out vec4 shade;
void main() {
  gl_Position = vec4(place * scale + shift, 0, 1);
  gl_PointSize = color.a > 0.99 ? size * 1.5 : size;
  shade = color;
}`;
const FRAGMENT = `#version 300 es
precision mediump float;
in vec4 shade; out vec4 pixel;
void main() {
  if (length(gl_PointCoord - 0.5) > 0.5) discard;
  pixel = vec4(shade.rgb * shade.a, shade.a);
}`;

const MARGIN = 36; // pixels around all points, for half of a thumbnail

export class Scatter {
  /** @param {HTMLCanvasElement} canvas */
  constructor(canvas) {
    this.canvas = canvas;
    /** Pixels per unit, those that show all points, and the point of the plot in the middle of the canvas. */
    this.zoom = this.whole = 1;
    this.center = [0, 0];
    /** @type {Float32Array<ArrayBuffer>} */
    this.places = new Float32Array();
    const gl = canvas.getContext('webgl2', {antialias: false, premultipliedAlpha: true, preserveDrawingBuffer: true});
    if (!gl) throw new Error('The map needs WebGL 2, which this browser does not offer.');
    this.gl = gl;
    const program = /** @type {WebGLProgram} */ (gl.createProgram());
    for (const [type, source] of /** @type {[number, string][]} */ ([
      [gl.VERTEX_SHADER, VERTEX],
      [gl.FRAGMENT_SHADER, FRAGMENT],
    ])) {
      const shader = /** @type {WebGLShader} */ (gl.createShader(type));
      gl.shaderSource(shader, source);
      gl.compileShader(shader);
      gl.attachShader(program, shader);
    }
    gl.bindAttribLocation(program, 0, 'place');
    gl.bindAttribLocation(program, 1, 'color');
    gl.linkProgram(program);
    gl.useProgram(program);
    gl.enable(gl.BLEND);
    gl.blendFunc(gl.ONE, gl.ONE_MINUS_SRC_ALPHA);
    this.uniforms = ['scale', 'shift', 'size'].map(name => gl.getUniformLocation(program, name));
    this.buffers = [gl.createBuffer(), gl.createBuffer()];
    gl.bindBuffer(gl.ARRAY_BUFFER, this.buffers[0]);
    gl.enableVertexAttribArray(0);
    gl.vertexAttribPointer(0, 2, gl.FLOAT, false, 0, 0);
    gl.bindBuffer(gl.ARRAY_BUFFER, this.buffers[1]);
    gl.enableVertexAttribArray(1);
    gl.vertexAttribPointer(1, 4, gl.UNSIGNED_BYTE, true, 0, 0);
  }

  /** Set the points, x and y in turn, and show all of them. @param {Float32Array<ArrayBuffer>} places */
  setPlaces(places) {
    this.places = places;
    this.gl.bindBuffer(this.gl.ARRAY_BUFFER, this.buffers[0]);
    this.gl.bufferData(this.gl.ARRAY_BUFFER, places, this.gl.STATIC_DRAW);
    this.fit();
  }

  /** @param {Uint8Array} colors red, green, blue and alpha of each point */
  setColors(colors) {
    this.gl.bindBuffer(this.gl.ARRAY_BUFFER, this.buffers[1]);
    this.gl.bufferData(this.gl.ARRAY_BUFFER, colors, this.gl.DYNAMIC_DRAW);
  }

  /** Show all points. */
  fit() {
    const low = [Infinity, Infinity],
      high = [-Infinity, -Infinity];
    for (let i = 0; i < this.places.length; i++) {
      low[i % 2] = Math.min(low[i % 2], this.places[i]);
      high[i % 2] = Math.max(high[i % 2], this.places[i]);
    }
    if (!this.places.length) return;
    this.center = [(low[0] + high[0]) / 2, (low[1] + high[1]) / 2];
    const [width, height] = [this.canvas.clientWidth, this.canvas.clientHeight].map(one =>
      Math.max(1, one - 2 * MARGIN),
    );
    this.zoom = this.whole = Math.min(width / (high[0] - low[0] || 1), height / (high[1] - low[1] || 1));
  }

  draw() {
    const {gl, canvas} = this,
      ratio = devicePixelRatio;
    const width = Math.round(canvas.clientWidth * ratio),
      height = Math.round(canvas.clientHeight * ratio);
    if (canvas.width !== width || canvas.height !== height) [canvas.width, canvas.height] = [width, height];
    gl.viewport(0, 0, width, height);
    gl.clearColor(0, 0, 0, 0);
    gl.clear(gl.COLOR_BUFFER_BIT);
    const scale = [(2 * this.zoom) / canvas.clientWidth, (2 * this.zoom) / canvas.clientHeight];
    gl.uniform2f(this.uniforms[0], scale[0], scale[1]);
    gl.uniform2f(this.uniforms[1], -this.center[0] * scale[0], -this.center[1] * scale[1]);
    gl.uniform1f(this.uniforms[2], ratio * this.radius * 2);
    gl.drawArrays(gl.POINTS, 0, this.places.length / 2);
  }

  /** Radius of a point in pixels: smaller where there are many, larger when zoomed in. */
  get radius() {
    return Math.min(7, Math.max(1.5, 150 / Math.sqrt(this.places.length + 1), this.zoom / 220));
  }

  /** Pixels of point i, from the left and the top. @param {number} i @returns {[number, number]} */
  pixel(i) {
    return this.pixelOf(this.places[2 * i], this.places[2 * i + 1]);
  }

  /** Pixels of a place. @param {number} x @param {number} y @returns {[number, number]} */
  pixelOf(x, y) {
    const {clientWidth, clientHeight} = this.canvas;
    return [clientWidth / 2 + (x - this.center[0]) * this.zoom, clientHeight / 2 - (y - this.center[1]) * this.zoom];
  }

  /** Move by pixels. @param {number} dx @param {number} dy */
  pan(dx, dy) {
    this.center = [this.center[0] - dx / this.zoom, this.center[1] + dy / this.zoom];
  }

  /** Zoom around a pixel. @param {number} factor @param {number} x @param {number} y */
  zoomAt(factor, x, y) {
    const {clientWidth, clientHeight} = this.canvas;
    this.pan(clientWidth / 2 - x, clientHeight / 2 - y);
    const most = Math.max(20, Math.sqrt(this.places.length / 2)); // few points are left on the screen then
    this.zoom = Math.min(most * this.whole, Math.max(this.whole / 2, this.zoom * factor));
    this.pan(x - clientWidth / 2, y - clientHeight / 2);
  }

  /** Place of a pixel. @param {number} x @param {number} y @returns {[number, number]} */
  _placeOf(x, y) {
    const {clientWidth, clientHeight} = this.canvas;
    return [this.center[0] + (x - clientWidth / 2) / this.zoom, this.center[1] - (y - clientHeight / 2) / this.zoom];
  }

  // Both searches compare places and not pixels: a conversion of each point would take ten times as long.

  /**
   * The point nearest to a pixel, at most `reach` pixels away; -1 if there is none.
   * @param {number} x
   * @param {number} y
   * @param {number} reach in pixels
   */
  nearest(x, y, reach) {
    const {places} = this,
      [cx, cy] = this._placeOf(x, y);
    let best = -1,
      least = (reach / this.zoom) ** 2;
    for (let i = 0; i < places.length; i += 2) {
      const far = (places[i] - cx) ** 2 + (places[i + 1] - cy) ** 2;
      if (far < least) [best, least] = [i / 2, far];
    }
    return best;
  }

  /** Points inside a polygon of pixels. @param {[number, number][]} polygon @returns {number[]} */
  inside(polygon) {
    const {places} = this,
      found = [],
      corners = polygon.map(([x, y]) => this._placeOf(x, y));
    const xs = Float64Array.from(corners, one => one[0]),
      ys = Float64Array.from(corners, one => one[1]);
    const [left, right, low, high] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
    for (let i = 0; i < places.length; i += 2) {
      const x = places[i],
        y = places[i + 1];
      if (x < left || x > right || y < low || y > high) continue;
      let odd = false;
      for (let a = 0, b = xs.length - 1; a < xs.length; b = a++) {
        if (ys[a] > y !== ys[b] > y && x < ((xs[b] - xs[a]) * (y - ys[a])) / (ys[b] - ys[a]) + xs[a]) odd = !odd;
      }
      if (odd) found.push(i / 2);
    }
    return found;
  }
}
