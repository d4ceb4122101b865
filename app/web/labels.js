// Labels of a metadata key, and the keys 1 to 9 that give them.
import {ApiError, path, rest} from './api.js';
import {button, count, keepPage, keyed, make, openDialog, sayError, textButton} from './dom.js';
import {write} from './edits.js';

const KEYS = 9;
const MAX_COLUMNS = 64; // of a table, in one request

/** Tells the other tabs of this browser that the labels of keys have changed. */
const channel = new BroadcastChannel('label keys');

export class Labels extends EventTarget {
  /**
   * Events: `keys`.
   * @param {import('./explorer.js').Explorer} explorer
   * @param {any[]} keys the labels of the keys, as the server has them
   */
  constructor(explorer, keys) {
    super();
    this.explorer = explorer;
    /** The label of each key from 1 to 9, or null. A label keeps its key, for everybody. @type {any[]} */
    this.keys = padded(keys);
    /** The same as the server has them. */
    this.saved = keys;
    this.saving = Promise.resolve();
    explorer.addEventListener('rows', () => this._assign());
    const reload = () => {
      this.saving = this.saving.then(() => this._load()).catch(() => {});
    };
    channel.addEventListener('message', reload, {signal: explorer.closing});
    addEventListener('focus', reload, {signal: explorer.closing});
  }

  /** The metadata key that is written. */
  get field() {
    return this.explorer.field;
  }

  /** Whether the focus goes to the next image after a key. */
  get advances() {
    return localStorage.getItem('advance') !== 'no';
  }

  /** Labels that exist, the most frequent first. @returns {any[]} */
  get known() {
    return this.explorer.rows.column(this.field).values;
  }

  /** Read the labels of the keys again: somebody else may have changed them. */
  async _load() {
    const {field} = this,
      {labels} = await rest('GET', path(this.explorer.name, 'label-keys'), {query: {field}});
    if (field !== this.field) return;
    this.saved = labels;
    this.keys = padded(labels);
    this.dispatchEvent(new Event('keys'));
  }

  /** Change the labels of the keys, for everybody. @param {any[]} keys */
  setKeys(keys) {
    const {
      field,
      explorer: {name},
    } = this;
    this.keys = keys;
    this.dispatchEvent(new Event('keys'));
    const saved = this.saving
      .then(async () => {
        if (field !== this.field) return;
        try {
          await rest('PUT', path(name, 'label-keys'), {json: {field, labels: keys, expected: this.saved}});
          this.saved = keys;
          channel.postMessage(name);
        } catch (error) {
          const code = error instanceof ApiError ? error.code : '';
          // a server of several keeps no records: the keys hold until the page is left
          if (code === 'read_only') return;
          if (code !== 'metadata_conflict') throw error;
          await this._load();
          this._assign();
        }
      })
      .catch(sayError);
    this.saving = keepPage(saved);
  }

  /** Give labels without a key the free keys, and then those of labels that no image has. */
  _assign() {
    if (!this.explorer.rows.complete) return;
    const {known} = this,
      keys = [...this.keys],
      before = JSON.stringify(keys);
    for (const label of known.slice(0, KEYS)) {
      if (keys.includes(label)) continue;
      const empty = keys.indexOf(null),
        free = empty < 0 ? keys.findIndex(one => !known.includes(one)) : empty;
      if (free < 0) break;
      keys[free] = label;
    }
    if (JSON.stringify(keys) !== before) this.setKeys(keys);
  }

  /** @param {string} field */
  async _setField(field) {
    this.explorer.field = field;
    await this.saving;
    await this._load();
    this.setKeys(this.keys); // also without another label: the field is kept
    this.explorer.emit('rows'); // the tiles show other labels
  }

  /**
   * The label that a text means: an existing one that reads so, else one of the type that all have.
   * @param {string} text
   */
  parse(text) {
    return typed(text, this.known);
  }

  /**
   * Give items a label; null removes it. Shows a message with undo.
   * @param {number[]} rows @param {any} label
   */
  give(rows, label) {
    const {
        explorer: {rows: all, name},
        field,
      } = this,
      values = new Map(rows.map(row => [all.ids[row], {[field]: label}]));
    return write(name, label === null ? `${field} removed` : `${field} ${label}`, values, id => all.of(id));
  }

  /** Ask for a label of items. @param {number[]} rows */
  ask(rows) {
    const names = make(
      'datalist',
      {id: 'known-labels'},
      this.known.slice(0, 200).map(label => make('option', {value: label})),
    );
    const input = make('input', {list: 'known-labels', 'aria-label': 'Label', placeholder: 'label', maxlength: 200});
    const field = make('input', {
      value: this.field,
      maxlength: 100,
      onchange: async () => {
        await this._setField(field.value.trim() || 'label');
        drawKeys();
        preview();
      },
    });
    const table = make('input', {type: 'file', accept: '.csv,.tsv,.txt,text/csv', onchange: () => preview()});
    const columns = ['id or path', 'label or labels'].map(placeholder =>
      make('input', {placeholder, onchange: () => preview()}),
    );
    const found = make('div.stack', {role: 'status'});
    const preview = async () => {
      if (!table.files[0]) return;
      found.textContent = 'Reading ...';
      const own = found.firstChild,
        {
          text,
          columns: others,
          give,
        } = await this.readTable(table.files[0], columns[0].value.trim(), columns[1].value.trim()).catch(error => ({
          text: error.message,
          columns: [],
          give: null,
        }));
      if (found.firstChild !== own) return; // the file or a column has changed since
      const choices = others.map(({name, types}) => ({
        name,
        box: make('input', {type: 'checkbox', checked: true}),
        type: make(
          'select',
          {'aria-label': `Type of ${name}`},
          types.map((/** @type {string} */ type) => make('option', type)),
        ),
      }));
      const chosen = () => new Map(choices.filter(one => one.box.checked).map(one => [one.name, one.type.value]));
      found.replaceChildren(
        make('p', text),
        ...choices.map(({name, box, type}) => make('div.tools', make('label.row', box, `Write ${name} as`), type)),
        give ? textButton('Write the labels', () => (dialog.close(), give(chosen())), 'button.strong') : '',
      );
    };
    const give = (/** @type {any} */ label) => {
      dialog.close();
      this.give(rows, label);
    };
    const usual = make('div.tools'),
      own = make('div.key-inputs');
    const drawKeys = () => {
      usual.replaceChildren(
        ...this.keys.flatMap((label, place) =>
          label === null
            ? []
            : [make('button.button', {onclick: () => give(label)}, [make('kbd', String(place + 1)), String(label)])],
        ),
      );
      own.replaceChildren(
        ...this.keys.map((label, place) => {
          const text = make('input', {
            value: label ?? '',
            list: 'known-labels',
            maxlength: 200,
            onchange: () => {
              const chosen = text.value.trim() ? this.parse(text.value.trim()) : null;
              this.setKeys(this.keys.map((one, at) => (at === place ? chosen : one === chosen ? null : one)));
              drawKeys();
            },
          });
          return make('label.row', make('kbd', String(place + 1)), text);
        }),
      );
    };
    drawKeys();
    const dialog = openDialog(
      `Label ${count(rows.length, 'image')}`,
      make('div.stack', [
        make(
          'form.stack',
          {
            onsubmit: event => {
              event.preventDefault();
              if (input.value.trim()) give(this.parse(input.value.trim()));
            },
          },
          [
            names,
            make('div.tools', [
              input,
              make('button.button.strong', 'Label'),
              button('remove', 'Remove the label', () => give(null)),
            ]),
            usual,
          ],
        ),
        make('details', make('summary', 'Labels of the keys 1 to 9'), own),
        make('details', [
          make('summary', 'Another metadata key, or labels from a table'),
          make('div.stack', [
            make('label', 'Metadata key', field),
            make('label', 'Labels from a table (CSV)', table),
            make('label', 'Column of ids or paths', columns[0]),
            make('label', 'Column of labels', columns[1]),
            found,
          ]),
        ]),
      ]),
    );
    input.focus();
  }

  /**
   * Let the server find the images that a table names.
   * @param {File} file @param {string} pathColumn of ids or paths, or '' @param {string} labelColumn or ''
   * @returns {Promise<{text: string, columns: {name: string, types: string[]}[], give: ((types: Map<string, string>) =>
   *   void) | null}>} a description, the other columns with the types that fit, the best first, and what gives the
   *   labels, if there are any, with these columns
   */
  async readTable(file, pathColumn, labelColumn) {
    const {
      explorer: {rows: all, name},
      field,
    } = this;
    const query = {
      key: field,
      path_column: pathColumn || null,
      label_column: labelColumn || null,
      file_name: file.name,
      dry_run: true,
    };
    const read = (/** @type {any} */ more) =>
      rest('POST', path(name, 'labels'), {
        query: {...query, ...more},
        body: file,
        headers: {'Content-Type': 'text/csv'},
      });
    const {
      values: labels,
      unmatched_rows: lost,
      unmatched_items: others,
      first_unmatched: [first],
      other_columns: columns,
    } = await read({});
    const more = columns.length
      ? (await read({label_column: null, columns: columns.slice(0, MAX_COLUMNS)})).values
      : {};
    const left = lost ? `; ${count(lost, 'line')} of unknown images, such as ${first}` : '';
    const give = (/** @type {Map<string, string>} */ types) => {
      const values = new Map();
      for (const [id, own] of Object.entries(more)) {
        const chosen = Object.entries(own).filter(([column]) => types.has(column));
        const typed = chosen.map(([column, value]) => [column, as(types.get(column), value)]);
        if (typed.length) values.set(id, Object.fromEntries(typed));
      }
      for (const [id, own] of Object.entries(labels)) values.set(id, {...values.get(id), ...own});
      write(name, `labeled${left}`, values, id => all.of(id));
    };
    return {
      text:
        `${file.name} labels ${count(Object.keys(labels).length, 'image')}; ` +
        `${count(others, 'image')} not in it${left}.`,
      columns: columns.slice(0, MAX_COLUMNS).map((/** @type {string} */ name) => ({
        name,
        types: typesOf(
          Object.values(more).flatMap(own => own[name] ?? []),
          all.column(name).values,
        ),
      })),
      give: Object.keys(labels).length || Object.keys(more).length ? give : null,
    };
  }

  /**
   * Give the label of a key.
   * @param {string} key
   * @param {number[]} rows
   * @returns {boolean} whether the key has a label
   */
  press(key, rows) {
    const label = /^[1-9]$/.test(key) ? this.keys[Number(key) - 1] : null;
    if (label === null || !rows.length) return false;
    this.give(rows, label);
    return true;
  }
}

/** <label-keys>: which key gives which label, as buttons that do the same. */
class LabelKeys extends HTMLElement {
  /** @param {Labels} labels @param {() => number[]} rows that are labeled */
  constructor(labels, rows) {
    super();
    const {explorer} = labels;
    const note = make('span.note'),
      row = make('div.keys-row');
    this.append(note, row);
    const draw = () => {
      const {keys, field} = labels,
        chosen = rows();
      const entries = keys.map((label, place) => ({label, place})).filter(one => one.label !== null);
      keyed(
        row,
        entries,
        ({label, place}) => `${place} ${label}`,
        ({label, place}, before) => {
          const give = () => void (rows().length && labels.give(rows(), label));
          const key = before ?? make('button.button', {onclick: give}, [make('kbd', String(place + 1)), ` ${label}`]);
          key.ariaPressed = String(
            chosen.length > 0 && chosen.every(one => explorer.rows.metadata[one][field] === label),
          );
          return key;
        },
      );
      const one = explorer.selected.has(chosen[0]) ? 'selected image' : 'image';
      const whose = explorer.selected.size && chosen.length ? ` of ${count(chosen.length, one)}` : '';
      note.textContent = entries.length ? `${field}${whose}:` : 'L labels an image. Labels get the keys 1 to 9.';
    };
    this.role = 'group';
    this.ariaLabel = 'Labels of the keys';
    labels.addEventListener('keys', draw);
    for (const event of ['rows', 'selection', 'focus']) explorer.addEventListener(event, draw);
    draw();
  }
}

/** A label or null for each key. @param {any[]} keys @returns {any[]} */
function padded(keys) {
  return Array.from({length: KEYS}, (_, place) => keys[place] ?? null);
}

/** Types of values that fit all of a column, the best first. @param {any[]} values @param {any[]} known that exist */
export function typesOf(values, known) {
  const fits = (/** @type {(text: string) => boolean} */ test) => values.length > 0 && values.map(String).every(test);
  const types = ['text'];
  if (fits(text => ['true', 'false'].includes(text))) types.unshift('true or false');
  if (fits(text => text.trim() !== '' && Number.isFinite(Number(text)))) types.unshift('number');
  // such as a zip code
  const isText = known.some(one => typeof one === 'string') || values.some(one => /^0\d/.test(one));
  return isText ? types.toReversed() : types;
}

/** @param {string | undefined} type of `typesOf` @param {any} value one, or a list @returns {any} */
export function as(type, value) {
  if (Array.isArray(value)) return value.map(one => as(type, one));
  return type === 'number' ? Number(value) : type === 'text' ? String(value) : String(value) === 'true';
}

/**
 * @param {string} text
 * @param {any[]} values that exist
 * @returns {any} the value that reads so, else one of the type that all have
 */
export function typed(text, values) {
  text = text.normalize(); // composed and decomposed letters look the same
  const same = values.find(value => String(value).normalize() === text),
    all = (/** @type {string} */ type) => values.length > 0 && values.every(value => typeof value === type);
  if (same !== undefined) return same;
  if (all('number') && text.trim() !== '' && Number.isFinite(Number(text))) return Number(text);
  return all('boolean') && ['true', 'false'].includes(text) ? text === 'true' : text;
}

customElements.define('label-keys', LabelKeys);
export {LabelKeys};
