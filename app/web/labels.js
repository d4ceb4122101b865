// Labels of a metadata key, and the keys 1 to 9 that give them.
import {readCsv} from './csv.js';
import {button, count, make, openDialog, say, sayError} from './dom.js';
import {write} from './edits.js';

const KEYS = 9;

export class Labels extends EventTarget {
  /** Events: `keys`. @param {import('./explorer.js').Explorer} explorer */
  constructor(explorer) {
    super();
    this.explorer = explorer;
    /** The metadata key that is written. */
    this.field = localStorage.getItem(`field ${explorer.name}`) ?? 'label';
    /** The metadata key whose keys were assigned since the page was loaded. */
    this.assigned = '';
    explorer.addEventListener('rows', () => this._assign());
    addEventListener('storage', event => { if (event.key === this._stored) this.dispatchEvent(new Event('keys')); }, {signal: explorer.closing});
  }

  get _stored() {
    return `keys ${this.explorer.name} ${this.field}`;
  }

  /** Labels that exist, the most frequent first. @returns {any[]} */
  get known() {
    return this.explorer.rows.column(this.field).values;
  }

  /** The label of each key from 1 to 9, or null. A label keeps its key, in every tab. @returns {any[]} */
  get keys() {
    const kept = JSON.parse(localStorage.getItem(this._stored) ?? '[]');
    return Array.from({length: KEYS}, (_, place) => kept[place] ?? null);
  }

  /** @param {any[]} keys */
  set keys(keys) {
    localStorage.setItem(this._stored, JSON.stringify(keys));
    this.dispatchEvent(new Event('keys'));
  }

  /** Give labels without a key the free keys. Only when a page is opened, keys of labels that no image has become free. */
  _assign() {
    if (!this.explorer.rows.complete) return;
    const {known, keys} = this, before = JSON.stringify(keys);
    if (this.assigned !== this.field) for (const [place, label] of keys.entries()) if (!known.includes(label)) keys[place] = null;
    this.assigned = this.field;
    for (const label of known) {
      const free = keys.indexOf(null);
      if (free < 0) break;
      if (!keys.includes(label)) keys[free] = label;
    }
    if (JSON.stringify(keys) !== before) this.keys = keys;
  }

  /** @param {string} field */
  _setField(field) {
    this.field = field;
    localStorage.setItem(`field ${this.explorer.name}`, field);
    this._assign();
    this.dispatchEvent(new Event('keys'));
  }

  /** The label that a text means: an existing one that reads so, else one of the type that all have. @param {string} text */
  parse(text) {
    return typed(text, this.known);
  }

  /**
   * Give items a label; null removes it. Shows a message with undo.
   * @param {number[]} rows @param {any} label
   */
  give(rows, label) {
    const {explorer: {rows: all, name}, field} = this, who = rows.length === 1 ? all.title(rows[0]) : count(rows.length, 'image');
    const values = new Map(rows.map(row => [all.ids[row], {[field]: label}]));
    return write(name, label === null ? `${who}: ${field} removed` : `${who}: ${field} ${label}`, values, id => all.of(id));
  }

  /** Ask for a label of items. @param {number[]} rows */
  ask(rows) {
    const names = make('datalist', {id: 'known-labels'}, ...this.known.slice(0, 200).map(label => make('option', {value: label})));
    const input = make('input', {list: 'known-labels', 'aria-label': 'Label', placeholder: 'label', maxlength: 200});
    const field = make('input', {value: this.field, maxlength: 100, onchange: () => { this._setField(field.value.trim() || 'label'); drawKeys(); }});
    const table = make('input', {type: 'file', accept: '.csv,text/csv', onchange: async () => {
      dialog.close();
      await this.readTable(await table.files[0].text()).catch(sayError);
    }});
    const give = (/** @type {any} */ label) => {
      dialog.close();
      this.give(rows, label).catch(sayError);
    };
    const usual = make('div', {class: 'tools'}), own = make('div', {class: 'key-inputs'});
    const drawKeys = () => {
      usual.replaceChildren(...this.keys.flatMap((label, place) => (label === null ? [] : [make('button', {type: 'button', class: 'button', onclick: () => give(label)},
        make('kbd', {}, String(place + 1)), String(label))])));
      own.replaceChildren(...this.keys.map((label, place) => {
        const text = make('input', {value: label ?? '', list: 'known-labels', maxlength: 200, onchange: () => {
          const chosen = text.value.trim() ? this.parse(text.value.trim()) : null;
          this.keys = this.keys.map((one, at) => (at === place ? chosen : one === chosen ? null : one));
          drawKeys();
        }});
        return make('label', {class: 'row'}, make('kbd', {}, String(place + 1)), text);
      }));
    };
    drawKeys();
    const dialog = openDialog(`Label ${count(rows.length, 'image')}`, make('div', {class: 'stack'}, make('form', {class: 'stack', onsubmit: (/** @type {Event} */ event) => {
      event.preventDefault();
      if (input.value.trim()) give(this.parse(input.value.trim()));
    }}, names, make('div', {class: 'tools'}, input, make('button', {class: 'button strong'}, 'Label'), button('remove', 'Remove the label', () => give(null))), usual),
    make('details', {}, make('summary', {}, 'Labels of the keys 1 to 9'), own),
    make('details', {}, make('summary', {}, 'Another metadata key, or labels from a table'), make('div', {class: 'stack'}, make('label', {}, 'Metadata key', field),
      make('label', {}, 'A CSV file with the columns id (or path) and label', table)))));
    input.focus();
  }

  /** Give the labels of a table to the images that it names. @param {string} text */
  async readTable(text) {
    const {explorer: {rows: all, name}, field} = this, lines = readCsv(text);
    if (!lines.length || !('label' in lines[0]) || !('id' in lines[0] || 'path' in lines[0])) throw new Error('The table needs a first line with the names id (or path) and label.');
    const rowOfPath = new Map(all.metadata.map((one, row) => [one.path ?? one.name, row]));
    const found = lines.map(({id, path, label}) => ({row: all.rowOf.get(id) ?? rowOfPath.get(path), label: label.trim()}))
      .filter(one => one.row !== undefined && !all.deleted.has(one.row) && one.label);
    const values = new Map(found.map(one => [all.ids[/** @type {number} */ (one.row)], {[field]: this.parse(one.label)}]));
    const missing = lines.length - found.length, left = missing ? `; ${count(missing, 'line')} without a label or of an unknown image` : '';
    if (!values.size) return void say(`0 images labeled${left}.`);
    await write(name, `${count(values.size, 'image')} labeled${left}`, values, id => all.of(id));
  }

  /** Give the label of a key. @param {string} key @param {number[]} rows @returns {boolean} whether the key has a label */
  press(key, rows) {
    const label = /^[1-9]$/.test(key) ? this.keys[Number(key) - 1] : null;
    if (label === null || !rows.length) return false;
    this.give(rows, label).catch(sayError);
    return true;
  }
}

/** <label-keys>: which key gives which label, as buttons that do the same. */
class LabelKeys extends HTMLElement {
  /** @param {Labels} labels @param {() => number[]} rows that are labeled */
  constructor(labels, rows) {
    super();
    const {explorer} = labels;
    const draw = () => {
      const {keys, field} = labels, chosen = rows(), focused = [...this.children].indexOf(/** @type {any} */ (document.activeElement));
      const buttons = keys.flatMap((label, place) => (label === null ? [] : [make('button', {type: 'button', class: 'button',
        'aria-pressed': String(chosen.length > 0 && chosen.every(row => explorer.rows.metadata[row][field] === label)), onclick: () => {
          if (rows().length) labels.give(rows(), label).catch(sayError);
        }}, make('kbd', {}, String(place + 1)), ` ${label}`)]));
      const text = buttons.length ? `${field}${chosen.length > 1 ? ` of ${count(chosen.length, 'image')}` : ''}:` : 'L labels an image. Labels get the keys 1 to 9.';
      this.replaceChildren(make('span', {class: 'note'}, text), ...buttons);
      if (focused > 0) /** @type {HTMLElement} */ (this.children[focused])?.focus();
    };
    this.role = 'group';
    this.ariaLabel = 'Labels of the keys';
    labels.addEventListener('keys', draw);
    for (const event of ['rows', 'selection', 'focus']) explorer.addEventListener(event, draw);
    draw();
  }
}

/** @param {string} text @param {any[]} values that exist @returns {any} the value that reads so, else one of the type that all have */
export function typed(text, values) {
  const same = values.find(value => String(value) === text), all = (/** @type {string} */ type) => values.length > 0 && values.every(value => typeof value === type);
  if (same !== undefined) return same;
  if (all('number') && text.trim() !== '' && Number.isFinite(Number(text))) return Number(text);
  return all('boolean') && ['true', 'false'].includes(text) ? text === 'true' : text;
}

customElements.define('label-keys', LabelKeys);
export {LabelKeys};
