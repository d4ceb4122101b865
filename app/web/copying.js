// New collections, and copies of images in other ones.
import {path, rest} from './api.js';
import {ask, count, make, progressBar, say} from './dom.js';
import {announce, missing, refresh} from './edits.js';

const AT_ONCE = 500; // images in one request

/**
 * Create a collection; unlike REST, refuse a name that exists.
 * @param {string} name as a person typed it
 * @param {string} model
 * @param {string} vectors what searches compare
 * @returns {Promise<string>} its name
 */
export async function createCollection(name, model, vectors) {
  const wanted = name.trim().normalize();
  // servers take it for a part of the address
  if (/[/\\]/.test(wanted)) throw new Error('A name must not contain a slash.');
  const {collections} = await rest('GET', 'collections'),
    {aliases} = await rest('GET', 'aliases');
  if (
    [
      ...collections.map((/** @type {import('./api.js').Collection} */ one) => one.name),
      ...aliases.map((/** @type {import('./api.js').Alias} */ one) => one.alias),
    ].includes(wanted)
  ) {
    throw new Error(`${wanted} exists already; choose another name.`);
  }
  await rest('PUT', path(wanted), {json: {model, vectors}, noted: true});
  return wanted;
}

/**
 * A choice of the collections to which those of a collection can be copied.
 * @param {import('./api.js').Collection} info
 * @param {import('./api.js').Collection[]} collections
 */
export function targets(info, collections) {
  return collections
    .filter(one => one.name !== info.name && one.fingerprint === info.fingerprint)
    .map(one => make('option', {value: one.name}, one.name));
}

/**
 * Ask where to, and copy or move the images of these rows.
 * @param {import('./explorer.js').Explorer} explorer
 * @param {{collections: import('./api.js').Collection[], changed: () => Promise<any>}} session
 * @param {number[]} rows
 */
export function copyOrMove(explorer, session, rows) {
  const {info} = explorer,
    ids = rows.map(row => explorer.rows.ids[row]);
  const progress = progressBar('Copying the images', ids.length);
  const name = make('input', {maxlength: 128, required: true}),
    move = make('input', {type: 'checkbox'});
  const to = make(
    'select',
    {
      onchange: () => {
        name.parentElement.hidden = to.value !== '';
        name.required = to.value === '';
      },
    },
    [make('option', {value: ''}, 'A new collection'), ...targets(info, session.collections)],
  );
  let created = ''; // by an attempt that failed later
  ask(
    `Copy or move ${count(ids.length, 'image')}`,
    'Copy',
    [
      make('label', 'To', to),
      make('label', 'Name', name),
      make('label.row', move, 'Move: remove them from this collection'),
      progress,
    ],
    async () => {
      progress.hidden = false;
      if (!to.value && created !== name.value) created = await createCollection(name.value, info.model, info.vectors);
      const target = to.value || created;
      const copied = await copy(info.name, ids, target, move.checked, progress);
      await session.changed();
      announce('counts');
      const note = missing(ids.length - copied);
      say(`${count(copied, 'image')} ${move.checked ? 'moved' : 'copied'} to ${target}.${note}`, {
        action: 'Open',
        run: () => {
          location.hash = `#/explore/${encodeURIComponent(target)}`;
        },
        seconds: 12,
      });
    },
  );
}

/**
 * Copy items in as many requests as it takes.
 * @param {string} from
 * @param {string[]} ids
 * @param {string} to
 * @param {boolean} move
 * @param {HTMLProgressElement} progress advances by the number of items
 * @returns {Promise<number>} how many existed
 */
export async function copy(from, ids, to, move, progress) {
  let copied = 0;
  for (let start = 0; start < ids.length; start += AT_ONCE) {
    const some = ids.slice(start, start + AT_ONCE);
    const json = {to, ids: some, move};
    const {copied: existed} = await rest('POST', path(from, 'copy'), {json, noted: start === 0});
    copied += existed;
    if (move) announce('deleted', {collection: from, ids: some});
    else if (existed < some.length) await refresh(from, some);
    progress.value += some.length;
  }
  return copied;
}
