// A new collection from some images of another one.
import {imageUrl, path, rest} from './api.js';
import {count, make, openDialog, say} from './dom.js';

const AT_ONCE = 16; // images in one request

/** Create a collection; unlike REST, refuse a name that exists. @param {string} name as a person typed it @param {string} model @param {string} vectors what searches compare */
export async function createCollection(name, model, vectors) {
  const wanted = name.trim().normalize();
  if (/[/\\]/.test(wanted)) throw new Error('A name must not contain a slash.'); // servers take it for a part of the address
  const {collections} = await rest('GET', 'collections'), {aliases} = await rest('GET', 'aliases');
  if ([...collections.map((/** @type {any} */ one) => one.name), ...aliases.map((/** @type {any} */ one) => one.alias)].includes(wanted)) {
    throw new Error(`${wanted} exists already; choose another name.`);
  }
  await rest('PUT', path(wanted), {json: {model, vectors}, noted: true});
}

/** Ask for a name, and add the images of these rows to a new collection. @param {import('./explorer.js').Explorer} explorer @param {number[]} rows */
export function copyToNew(explorer, rows) {
  const problem = make('p', {role: 'alert'}), progress = make('progress', {max: rows.length, value: 0, hidden: true, 'aria-label': 'Adding the images'});
  const input = make('input', {required: true, maxlength: 128});
  const go = make('button', {class: 'button strong'}, 'Create');
  let created = ''; // by an attempt that failed later
  const dialog = openDialog(`New collection of ${count(rows.length, 'image')}`, make('form', {class: 'stack', onsubmit: async (/** @type {SubmitEvent} */ event) => {
    event.preventDefault();
    const name = input.value.trim().normalize();
    go.disabled = true;
    progress.hidden = false;
    try {
      if (created !== name) await createCollection(name, explorer.info.model, explorer.info.vectors);
      created = name;
      const {left, small} = await copy(explorer, rows, name, done => { progress.value = done; });
      dialog.close();
      const open = () => { location.hash = `#/explore/${encodeURIComponent(name)}`; };
      say(`${count(rows.length - left, 'image')} added to ${name}${left ? `; ${left} have no image` : ''}${small ? `; ${small} from thumbnails, since their originals are not kept` : ''}.`, {action: 'Open', run: open, seconds: 12});
    } catch (error) {
      problem.textContent = /** @type {Error} */ (error).message;
      go.disabled = false;
      progress.hidden = true;
    }
  }}, make('label', {}, 'Name', input), make('p', {class: 'note'}, 'The images are embedded again, with the same encoder. The collection that they come from stays as it is.'), problem, progress, go));
}

/**
 * @param {import('./explorer.js').Explorer} explorer @param {number[]} rows @param {string} name @param {(done: number) => void} report
 * @returns {Promise<{left: number, small: number}>} how many items have no image, and how many only a thumbnail
 */
async function copy(explorer, rows, name, report) {
  let left = 0, small = 0;
  for (let start = 0; start < rows.length; start += AT_ONCE) {
    const form = new FormData(), items = [];
    for (const row of rows.slice(start, start + AT_ONCE)) {
      const id = explorer.rows.ids[row], answer = await fetch(imageUrl(explorer.name, id, 'original'));
      if (!answer.ok) {
        left++;
        continue;
      }
      if (answer.headers.get('X-Image') === 'thumbnail') small++;
      const {root: _, mtime: __, size: ___, pixel_sha256: ____, file_sha256: _____, ...metadata} = explorer.rows.metadata[row]; // of the file on the server
      form.append('files', await answer.blob(), explorer.rows.title(row).split('/').at(-1));
      items.push({id, metadata});
    }
    form.append('items', JSON.stringify(items));
    if (items.length) await rest('POST', path(name, 'items'), {form});
    report(start + AT_ONCE);
  }
  return {left, small};
}
