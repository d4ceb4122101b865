// Labels that are written to the collection as they are given, with undo; and the keys 1 to 9 for the usual ones.
import {path, rest} from './api.js';
import {button, count, make, openDialog, say, sayError} from './dom.js';

const AT_ONCE = 5000; // items in one request
const KEYS = 9;

export class Labels {
  /** @param {import('./explorer.js').Explorer} explorer */
  constructor(explorer) {
    this.explorer = explorer;
    /** The metadata key that is written. */
    this.field = localStorage.getItem(`field ${explorer.name}`) ?? 'label';
  }

  /** Labels that exist, the most frequent first. @returns {string[]} */
  get known() {
    return this.explorer.rows.column(this.field).values.map(String);
  }

  /**
   * Give items a label; null removes it. Shows a message with undo.
   * @param {number[]} rows @param {string | null} label
   */
  async give(rows, label) {
    const {explorer, field} = this;
    const before = rows.map(row => explorer.rows.metadata[row][field] ?? null);
    await setEach(explorer, field, rows, rows.map(() => label));
    const text = label === null ? `${field} removed from ${count(rows.length, 'image')}` : `${count(rows.length, 'image')}: ${field} ${label}`;
    say(text, {action: 'Undo', seconds: 10, run: () => setEach(explorer, field, rows, before).catch(sayError)});
  }

  /** Ask for a label of items. @param {number[]} rows */
  ask(rows) {
    const names = make('datalist', {id: 'known-labels'}, ...this.known.slice(0, 200).map(label => make('option', {value: label})));
    const input = make('input', {list: 'known-labels', 'aria-label': 'Label', placeholder: 'label', maxlength: 200});
    const field = make('input', {value: this.field, 'aria-label': 'Metadata key', maxlength: 100, onchange: () => {
      this.field = field.value.trim() || 'label';
      localStorage.setItem(`field ${this.explorer.name}`, this.field);
    }});
    const give = (/** @type {string | null} */ label) => {
      dialog.close();
      this.give(rows, label).catch(sayError);
    };
    const usual = this.known.slice(0, KEYS).map((label, i) => make('button', {type: 'button', class: 'button', onclick: () => give(label)},
      make('kbd', {}, String(i + 1)), label));
    const dialog = openDialog(`Label ${count(rows.length, 'image')}`, make('form', {class: 'stack', onsubmit: (/** @type {Event} */ event) => {
      event.preventDefault();
      if (input.value.trim()) give(input.value.trim());
    }}, names, make('div', {class: 'tools'}, input, make('button', {class: 'button strong'}, 'Label'), button('remove', 'Remove the label', () => give(null))),
    make('div', {class: 'tools'}, ...usual), make('details', {}, make('summary', {}, 'Another metadata key'), field)));
    input.focus();
  }

  /** Give the label of a key. @param {string} key @param {number[]} rows @returns {boolean} whether the key has a label */
  press(key, rows) {
    const label = /^[1-9]$/.test(key) ? this.known[Number(key) - 1] : undefined;
    if (label === undefined || !rows.length) return false;
    this.give(rows, label).catch(sayError);
    return true;
  }
}

/**
 * Write values of a metadata key, one request for each value; a failure shows what was written until then.
 * @param {import('./explorer.js').Explorer} explorer @param {string} field @param {number[]} rows @param {any[]} values
 * @param {(done: number) => void} [progress]
 */
export async function setEach(explorer, field, rows, values, progress = () => {}) {
  /** @type {Map<any, number[]>} */
  const groups = new Map();
  rows.forEach((row, i) => groups.set(values[i], [...(groups.get(values[i]) ?? []), row]));
  let done = 0;
  try {
    for (const [value, own] of groups) {
      for (let start = 0; start < own.length; start += AT_ONCE) {
        const some = own.slice(start, start + AT_ONCE);
        const json = {ids: some.map(row => explorer.rows.ids[row]), metadata: {[field]: value}};
        await rest('PATCH', path(explorer.name, 'items'), {json, noted: done === 0});
        for (const row of some) explorer.rows.set(row, field, value);
        progress(done += some.length);
      }
    }
  } finally {
    explorer.changed();
  }
}
