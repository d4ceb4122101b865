// <facet-list>: the values of each metadata key with their counts among the shown images; a click filters.
import {count, keyed, later, make, textButton} from './dom.js';
import {isFound, nameOf, passing, predictedBy, restFilter, short} from './filters.js';
import {cssColor} from './palette.js';

const SHOWN = 12;
const MOST = 500;
const BARS = 24;

class FacetList extends HTMLElement {
  /** @param {import('./explorer.js').Explorer} explorer */
  constructor(explorer) {
    super();
    this.explorer = explorer;
    this.note = make('p.note');
    this.list = make('div.facets');
    this.replaceChildren(make('h2.hidden', 'Filters'), this.note, this.list, this._json());
    const redraw = later(() => this._draw());
    for (const event of ['rows', 'view', 'selection', 'color']) explorer.addEventListener(event, redraw);
    redraw();
  }

  _draw() {
    const {explorer} = this,
      {rows, selected} = explorer;
    const facets = rows.keys.flatMap(key => {
      const column = rows.column(key),
        passes = passing(rows, explorer.filters, key);
      const counted = selected.size
        ? [...selected]
        : explorer.matches
          ? explorer.view
          : rows.ids
              .map((_, row) => row)
              .filter(row => passes[row] && (explorer.passed?.has(row) ?? true) && (explorer.area?.has(row) ?? true));
      // else none of the images has it
      return explorer.filters.has(key) || counted.some(row => column.codes[row]) ? [{key, column, counted}] : [];
    });
    this.note.textContent = selected.size
      ? `Counts of ${count(selected.size, 'selected image')}.`
      : explorer.matches
        ? 'Counts of the matches.'
        : rows.complete
          ? ''
          : `Counts of the ${rows.ids.length.toLocaleString('en')} images loaded so far.`;
    const groups = [
      {title: '', facets: facets.filter(one => !isFound(one.key))},
      {title: 'Found by this program', facets: facets.filter(one => isFound(one.key))},
    ];
    keyed(
      this.list,
      groups.filter(one => one.facets.length),
      one => one.title,
      (group, before) => {
        const section =
          before ??
          make('section', {'aria-label': group.title || 'Of the collection'}, [
            group.title ? make('h3', group.title) : '',
            make('div.facets'),
          ]);
        keyed(
          section.lastChild,
          group.facets,
          one => one.key,
          ({key, column, counted}, facet) => {
            // more items may change that
            if (facet?.numeric !== column.numeric) facet = new Facet(explorer, key, column.numeric).element;
            facet.draw(column, counted);
            return facet;
          },
        );
        return section;
      },
    );
  }

  _json() {
    const problem = make('p', {role: 'alert'});
    const text = make('textarea', {
      rows: 4,
      spellcheck: 'false',
      'aria-label': 'Filter as JSON',
      placeholder: '{"must": [{"key": "label", "match": "cat"}]}',
    });
    const apply = async () => {
      problem.textContent = '';
      try {
        await this.explorer.filterBy(text.value.trim() ? JSON.parse(text.value) : null);
      } catch (error) {
        problem.textContent = /** @type {Error} */ (error).message;
      }
    };
    return make('details.json', [
      make('summary', 'Filter as JSON'),
      text,
      textButton('Apply', apply, 'button'),
      problem,
    ]);
  }
}

/** The values of one key, which can be folded. */
class Facet {
  /** @param {import('./explorer.js').Explorer} explorer @param {string} key @param {boolean} numeric */
  constructor(explorer, key, numeric) {
    this.explorer = explorer;
    this.key = key;
    this.all = false; // whether all values are shown
    this.search = make('input', {
      type: 'search',
      placeholder: 'Search',
      'aria-label': `Search the values of ${nameOf(key)}`,
      oninput: () => this._fill(),
    });
    this.list = make('ul');
    this.more = textButton('', () => {
      this.all = !this.all;
      this._fill();
    });
    this.bars = make('div.histogram', {'aria-hidden': 'true'});
    this.bounds = ['from', 'to'].map(end =>
      make('input', {
        type: 'number',
        step: 'any',
        'aria-label': `${nameOf(key)}, ${end}`,
        onchange: () => this._setRange(),
      }),
    );
    const stored = `folded ${key}`;
    const fold = () => {
      // at the click, and not in ontoggle, which comes later and is lost when the page is left at once
      if (this.element.open) localStorage.setItem(stored, '');
      else localStorage.removeItem(stored);
    };
    this.element = make('details.facet-values', {'data-facet': key, open: localStorage.getItem(stored) === null}, [
      make('summary', {title: key, onclick: fold}, nameOf(key)),
      ...(numeric
        ? [this.bars, make('div.range', this.bounds[0], make('span', 'to'), this.bounds[1])]
        : [this.search, this.list, this.more]),
    ]);
    this.element.numeric = numeric;
    this.element.draw = numeric ? this._histogram.bind(this) : this._values.bind(this);
    /** @type {{value: any, number: number, text: string, color?: string}[]} */
    this.values = [];
    /** @type {[number, number]} */
    this.ends = [0, 0];
  }

  /** Count the values. @param {import('./rows.js').Column} column @param {number[]} counted rows */
  _values(column, counted) {
    const {
        explorer: {rows, colored},
        key,
      } = this,
      counts = new Array(column.values.length).fill(0),
      other = predictedBy(key);
    let none = 0;
    for (const row of counted) {
      if (!column.codes[row]) none++;
      for (const code of column.codes[row] ?? []) counts[code]++;
    }
    this.values = column.values.map((value, code) => ({
      value,
      number: counts[code],
      text: rows.text(value),
      color: key === colored ? cssColor(column.colors[code]) : undefined,
    }));
    this.values.sort((a, b) => b.number - a.number);
    if (none) this.values.unshift({value: null, number: none, text: 'none'});
    if (other) {
      const {ids} = restFilter(rows, new Map([[key, {differs: other}]])).must[0],
        all = new Set(counted);
      this.values.unshift({
        value: undefined,
        number: ids.filter((/** @type {string} */ id) => all.has(rows.rowOf.get(id) ?? -1)).length,
        text: `differs from ${other}`,
      });
    }
    this._fill();
  }

  /** Show the values. */
  _fill() {
    const {explorer, key, all, search} = this,
      condition = explorer.filters.get(key),
      wanted = search.value.toLowerCase();
    const chosen = new Set(condition && 'in' in condition ? condition.in : condition ? [undefined] : []);
    const toggle = (/** @type {any} */ value) => {
      if (value === undefined)
        return explorer.filter(key, chosen.has(value) ? null : {differs: predictedBy(key) ?? ''});
      chosen.delete(undefined);
      if (!chosen.delete(value)) chosen.add(value);
      explorer.filter(key, {in: [...chosen]});
    };
    const existing = this.values.filter(one => one.number > 0 || chosen.has(one.value));
    const found = existing
      .filter(one => one.text.toLowerCase().includes(wanted))
      .sort((a, b) => Number(chosen.has(b.value)) - Number(chosen.has(a.value)));
    const most = Math.max(1, ...existing.map(one => one.number));
    search.hidden = existing.length <= SHOWN;
    keyed(
      this.list,
      found.slice(0, all ? MOST : SHOWN),
      one => `${typeof one.value} ${one.value}`,
      ({value, number, text, color}) => {
        const bar = make('span.bar'),
          swatch = color ? make('span.swatch') : '';
        bar.style.width = `${(100 * number) / most}%`;
        if (swatch) swatch.style.background = color;
        return make('li', [
          make(
            'button',
            {
              class: value === null || value === undefined ? 'facet special' : 'facet',
              'aria-pressed': String(chosen.has(value)),
              onclick: () => toggle(value),
            },
            [bar, swatch, make('span.value', text), make('span.count', number.toLocaleString('en'))],
          ),
        ]);
      },
    );
    this.more.hidden = found.length <= SHOWN;
    this.more.textContent = all ? 'Show fewer' : `Show all ${found.length}`;
  }

  /** @param {import('./rows.js').Column} column @param {number[]} counted rows */
  _histogram(column, counted) {
    const [low, high] = (this.ends = endsOf(column.numbers)),
      bins = new Array(BARS).fill(0);
    for (const row of counted) {
      const value = column.numbers[row];
      if (!Number.isNaN(value)) bins[Math.min(BARS - 1, Math.floor(((value - low) / (high - low)) * BARS))]++;
    }
    const most = Math.max(1, ...bins),
      condition = this.explorer.filters.get(this.key);
    const [from, to] = condition && 'range' in condition ? condition.range : [low, high];
    this.bars.replaceChildren(
      ...bins.map((number, bin) => {
        const start = low + ((high - low) * bin) / BARS,
          middle = start + (high - low) / BARS / 2;
        const bar = make('span', {
          class: middle < from || middle > to ? 'out' : '',
          title: `${short(start)} and more: ${number.toLocaleString('en')}`,
        });
        bar.style.height = `${number ? Math.max(4, (100 * number) / most) : 0}%`;
        return bar;
      }),
    );
    this.bounds.forEach((bound, i) => {
      if (bound !== document.activeElement) bound.value = Number([from, to][i].toPrecision(6));
    });
  }

  _setRange() {
    const [low, high] = this.ends,
      [from, to] = this.bounds.map(bound => bound.value);
    const range = /** @type {[number, number]} */ ([from === '' ? low : Number(from), to === '' ? high : Number(to)]);
    this.explorer.filter(this.key, range[0] <= low && range[1] >= high ? null : {range});
  }
}

/** The least and the greatest number. @param {Iterable<number>} numbers NaN is left out @returns {[number, number]} */
export function endsOf(numbers) {
  let low = Infinity,
    high = -Infinity;
  for (const value of numbers) if (!Number.isNaN(value)) [low, high] = [Math.min(low, value), Math.max(high, value)];
  return [low, high];
}

customElements.define('facet-list', FacetList);
export {FacetList};
