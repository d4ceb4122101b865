// <selection-bar>: what can be done with the selected images.
import {imageUrl} from './api.js';
import {copyOrMove} from './copying.js';
import {csvOf} from './csv.js';
import {deleteRows} from './deletion.js';
import {button, count, make, textButton} from './dom.js';
import {zipOf} from './zip.js';

class SelectionBar extends HTMLElement {
  /**
   * @param {import('./explorer.js').Explorer} explorer
   * @param {{collections: import('./api.js').Collection[], changed: () => Promise<any>}} session
   * @param {import('./labels.js').Labels | null} labels null: the caller may not write
   */
  constructor(explorer, session, labels) {
    super();
    this.explorer = explorer;
    this.number = make('strong', {role: 'status'});
    this.replaceChildren(
      this.number,
      button('similar', 'Find similar', () =>
        this._do(rows => explorer.search({positive: rows.map(row => ({id: explorer.rows.ids[row]})), negative: []})),
      ),
      button('less', 'Less like these', () => this._do(rows => explorer.refine(rows, 'negative'))),
      labels ? button('tag', 'Label', () => this._do(rows => labels.ask(rows))) : '',
      button('table', 'Table (CSV)', () =>
        this._do(rows => save(new Blob([csvOf(explorer.rows, rows)], {type: 'text/csv'}), `${explorer.name}.csv`)),
      ),
      button('download', 'Images (zip)', () => this._do(rows => this._zip(rows))),
      labels ? button('forward', 'Copy or move', () => this._do(rows => copyOrMove(explorer, session, rows))) : '',
      labels ? button('remove', 'Delete', () => this._do(rows => deleteRows(explorer, rows))) : '',
      textButton('Select all', () => explorer.select(explorer.view)),
      textButton('Select none', () => explorer.select([])),
    );
    const draw = () => {
      this.hidden = explorer.selected.size === 0;
      const text = `${count(explorer.selected.size, 'image')} selected`;
      if (this.number.textContent !== text) this.number.textContent = text;
    };
    explorer.addEventListener('selection', draw);
    draw();
  }

  /** @param {(rows: number[]) => any} act */
  _do(act) {
    return act([...this.explorer.selected]);
  }

  /** @param {number[]} rows */
  async _zip(rows) {
    const {explorer} = this;
    const files = [],
      used = new Set();
    for (const [place, row] of rows.entries()) {
      if (place % 20 === 0) this.number.textContent = `${place} of ${rows.length} images read`;
      const answer = await fetch(imageUrl(explorer.name, explorer.rows.ids[row], 'original'));
      if (!answer.ok) continue; // items that were added by their vectors have no image
      const metadata = explorer.rows.metadata[row],
        title = explorer.rows.title(row).split('/').at(-1) ?? '';
      const folder = metadata.label === undefined ? '' : `${String(metadata.label).replace(/[/\\]/g, '_')}/`;
      let name =
        folder +
        (/\.\w+$/.test(title) ? title : `${title}.${answer.headers.get('Content-Type')?.split('/')[1] ?? 'jpg'}`);
      if (used.has(name)) name = `${folder}${explorer.rows.ids[row]}-${title}`;
      used.add(name);
      files.push({name, data: new Uint8Array(await answer.arrayBuffer())});
    }
    explorer.emit('selection');
    save(zipOf(files), `${explorer.name}.zip`);
  }
}

/** @param {Blob} blob @param {string} name */
function save(blob, name) {
  const link = make('a', {href: URL.createObjectURL(blob), download: name});
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

customElements.define('selection-bar', SelectionBar);
export {SelectionBar};
