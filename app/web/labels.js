// Labels that are written to the collection as they are given, with undo; and the keys 1 to 9 for the usual ones.
import {path, rest} from './api.js';
import {readCsv} from './csv.js';
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
    const field = make('input', {value: this.field, maxlength: 100, onchange: () => {
      this.field = field.value.trim() || 'label';
      localStorage.setItem(`field ${this.explorer.name}`, this.field);
    }});
    const table = make('input', {type: 'file', accept: '.csv,text/csv', onchange: async () => {
      dialog.close();
      await this.readTable(await table.files[0].text()).catch(sayError);
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
    make('div', {class: 'tools'}, ...usual), make('details', {}, make('summary', {}, 'Another metadata key, or labels from a table'), make('div', {class: 'stack'}, make('label', {}, 'Metadata key', field),
      make('label', {}, 'A CSV file with the columns id (or path) and label', table)))));
    input.focus();
  }

  /** Give the labels of a table to the images that it names. @param {string} text */
  async readTable(text) {
    const {explorer} = this, lines = readCsv(text), rowOfPath = new Map(explorer.rows.metadata.map((one, row) => [one.path ?? one.name, row]));
    if (!lines.length || !('label' in lines[0]) || !('id' in lines[0] || 'path' in lines[0])) throw new Error('The table needs a first line with the names id (or path) and label.');
    const found = lines.map(({id, path: own, label}) => ({row: explorer.rows.rowOf.get(id) ?? rowOfPath.get(own), label: label.trim()}))
      .filter(one => one.row !== undefined && one.label);
    await setEach(explorer, this.field, found.map(one => /** @type {number} */ (one.row)), found.map(one => one.label));
    const missing = lines.length - found.length;
    say(`${count(found.length, 'image')} labeled${missing ? `; ${count(missing, 'line')} without a label or of an unknown image` : ''}.`);
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
  /** @type {Map<string, number[]>} */
  const groups = new Map();
  rows.forEach((row, i) => {
    const key = JSON.stringify(values[i]), own = groups.get(key);
    if (own) own.push(row);
    else groups.set(key, [row]);
  });
  let done = 0;
  try {
    for (const [key, own] of groups) {
      const value = JSON.parse(key);
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
