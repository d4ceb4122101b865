// <facet-list>: the values of each metadata key with their counts among the shown images; a click filters.
import {count, later, make} from './dom.js';
import {passing, short} from './filters.js';
import {PALETTE} from './palette.js';

const SHOWN = 12;
const BARS = 24;

class FacetList extends HTMLElement {
  /** @param {import('./explorer.js').Explorer} explorer */
  constructor(explorer) {
    super();
    this.explorer = explorer;
    /** Keys whose values are all shown. @type {Set<string>} */
    this.opened = new Set();
    this.list = make('div', {class: 'facets'});
    this.replaceChildren(make('h2', {class: 'hidden'}, 'Filters'), this.list, this._json());
    const redraw = later(() => this._draw());
    for (const event of ['rows', 'view', 'selection', 'color']) explorer.addEventListener(event, redraw);
    redraw();
  }

  _draw() {
    const {explorer} = this;
    const focused = /** @type {HTMLElement | null} */ (document.activeElement)?.dataset?.facet;
    const sections = explorer.rows.keys.flatMap(key => {
      const column = explorer.rows.column(key);
      const passes = passing(explorer.rows, explorer.filters, key);
      const counted = explorer.selected.size ? [...explorer.selected]
        : explorer.matches ? explorer.view
        : explorer.rows.ids.map((_, row) => row).filter(row => passes[row] && (explorer.passed?.has(row) ?? true) && (explorer.area?.has(row) ?? true));
      if (!explorer.filters.has(key) && !counted.some(row => column.codes[row])) return []; // none of the images has it
      return [make('section', {'aria-label': key}, make('h3', {}, key),
        column.numeric && column.values.length > SHOWN ? this._histogram(column, counted) : this._values(column, counted))];
    });
    const note = explorer.selected.size ? `Counts of ${count(explorer.selected.size, 'selected image')}.` : explorer.matches ? 'Counts of the matches.'
      : explorer.rows.complete ? '' : `Counts of the ${explorer.rows.ids.length.toLocaleString('en')} images loaded so far.`;
    this.list.replaceChildren(make('p', {class: 'note', hidden: !note}, note), ...sections);
    if (focused) this.list.querySelector(`[data-facet="${CSS.escape(focused)}"]`)?.focus();
  }

  /** @param {import('./rows.js').Column} column @param {number[]} counted */
  _values(column, counted) {
    const {explorer} = this;
    const counts = new Array(column.values.length).fill(0);
    for (const row of counted) for (const code of column.codes[row] ?? []) counts[code]++;
    const condition = explorer.filters.get(column.key);
    const chosen = new Set(condition && 'in' in condition ? condition.in : []);
    const shown = column.values.map((value, code) => ({value, code, number: counts[code]}))
      .filter(one => one.number > 0 || chosen.has(one.value));
    shown.sort((a, b) => Number(chosen.has(b.value)) - Number(chosen.has(a.value)) || b.number - a.number);
    const most = Math.max(1, ...shown.map(one => one.number));
    const open = this.opened.has(column.key);
    const list = make('ul', {}, ...shown.slice(0, open ? 500 : SHOWN).map(({value, code, number}) => {
      const toggle = () => {
        chosen.delete(value) || chosen.add(value);
        explorer.filter(column.key, {in: [...chosen]});
      };
      const bar = make('span', {class: 'bar'});
      bar.style.width = `${(100 * number) / most}%`;
      const swatch = column.key === explorer.colored ? make('span', {class: 'swatch'}) : null;
      if (swatch) swatch.style.background = `rgb(${PALETTE[column.colors[code] % PALETTE.length]})`;
      return make('li', {}, make('button', {type: 'button', class: 'facet', 'aria-pressed': String(chosen.has(value)), onclick: toggle,
        'data-facet': `${column.key} ${value}`}, bar, swatch, make('span', {class: 'value'}, explorer.rows.text(value)), make('span', {class: 'count'}, number.toLocaleString('en'))));
    }));
    if (shown.length <= SHOWN) return list;
    const toggle = () => { this.opened.delete(column.key) || this.opened.add(column.key); this._draw(); };
    return make('div', {}, list, make('button', {type: 'button', class: 'plain', onclick: toggle, 'data-facet': `${column.key} all`},
      open ? 'Show fewer' : `Show all ${shown.length}`));
  }

  /** @param {import('./rows.js').Column} column @param {number[]} counted */
  _histogram(column, counted) {
    const {explorer} = this;
    let low = Infinity, high = -Infinity;
    for (const value of column.numbers) if (!Number.isNaN(value)) { low = Math.min(low, value); high = Math.max(high, value); }
    const bins = new Array(BARS).fill(0);
    for (const row of counted) {
      const value = column.numbers[row];
      if (!Number.isNaN(value)) bins[Math.min(BARS - 1, Math.floor(((value - low) / (high - low)) * BARS))]++;
    }
    const most = Math.max(1, ...bins);
    const condition = explorer.filters.get(column.key);
    const [from, to] = condition && 'range' in condition ? condition.range : [low, high];
    const bars = make('div', {class: 'histogram', 'aria-hidden': 'true'}, ...bins.map((number, bin) => {
      const bar = make('span', {title: `${short(low + ((high - low) * bin) / BARS)} and more: ${number.toLocaleString('en')}`});
      bar.style.height = `${number ? Math.max(4, (100 * number) / most) : 0}%`;
      const middle = low + ((high - low) * (bin + 0.5)) / BARS;
      bar.classList.toggle('out', middle < from || middle > to);
      return bar;
    }));
    const bound = (/** @type {string} */ label, /** @type {number} */ value) => make('input', {type: 'number', step: 'any', value: Number(value.toPrecision(6)),
      'aria-label': `${column.key}, ${label}`, 'data-facet': `${column.key} ${label}`, onchange: () => {
        const [a, b] = [...inputs.querySelectorAll('input')].map(input => input.value);
        const range = /** @type {[number, number]} */ ([a === '' ? low : Number(a), b === '' ? high : Number(b)]);
        explorer.filter(column.key, range[0] <= low && range[1] >= high ? null : {range});
      }});
    const inputs = make('div', {class: 'range'}, bound('from', from), make('span', {}, 'to'), bound('to', to));
    return make('div', {}, bars, inputs);
  }

  _json() {
    const problem = make('p', {role: 'alert'});
    const text = make('textarea', {rows: 4, spellcheck: 'false', 'aria-label': 'Filter as JSON', placeholder: '{"must": [{"key": "label", "match": "cat"}]}'});
    const apply = async () => {
      problem.textContent = '';
      try {
        await this.explorer.filterBy(text.value.trim() ? JSON.parse(text.value) : null);
      } catch (error) {
        problem.textContent = /** @type {Error} */ (error).message;
      }
    };
    return make('details', {class: 'json'}, make('summary', {}, 'Filter as JSON'), text,
      make('button', {type: 'button', class: 'button', onclick: apply}, 'Apply'), problem);
  }
}

customElements.define('facet-list', FacetList);
export {FacetList};
