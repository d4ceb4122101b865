// The dialogs of the page Collections.
import {models, pages, path, rest} from './api.js';
import {copy, createCollection, targets} from './copying.js';
import {ask, button, count, iconButton, make, openDialog, progressBar, say} from './dom.js';
import {startInspection} from './findings.js';
import {jobBar} from './jobs.js';

/** A choice of the encoders that the server serves. @param {string} [except] @returns {Promise<HTMLSelectElement>} */
async function encoders(except) {
  const others = (await models()).filter(one => one !== except);
  return make(
    'select',
    {'aria-label': 'Encoder'},
    others.map(one => make('option', {value: one}, one)),
  );
}

/** @param {() => Promise<void>} redraw */
export async function create(redraw) {
  const name = make('input', {
      name: 'name',
      required: true,
      maxlength: 128,
      placeholder: 'photos',
      'aria-label': 'Name',
    }),
    encoder = await encoders(),
    whiten = make('input', {type: 'checkbox', checked: true});
  ask(
    'New collection',
    'Create',
    [
      make('label', 'Name', name),
      make('label', 'Encoder', encoder),
      make('label.row', whiten, 'Compare half-whitened vectors: better neighbors from 256 images on'),
    ],
    async () => {
      await createCollection(name.value, encoder.value, whiten.checked ? 'auto' : 'raw');
      await redraw();
    },
  );
}

/** @param {import('./api.js').Collection} info @param {() => Promise<void>} redraw */
export function drop(info, redraw) {
  const name = make('input', {
    'aria-label': 'Name of the collection',
    oninput: () => {
      go.disabled = name.value !== info.name;
    },
  });
  const {go} = ask(
    `Delete ${info.name}`,
    `Delete ${count(info.count, 'image')}`,
    [make('p', `This cannot be undone. Type ${info.name} to delete the collection.`), name],
    async () => {
      await rest('DELETE', path(info.name), {noted: true});
      await redraw();
    },
  );
  go.className = 'button danger';
  go.disabled = true;
}

/**
 * Fields for a folder of the server, and what adds it to a collection.
 * @returns {Promise<{fields: Node[], action: string, add: (collection: string) => Promise<any>, name: () => string}>}
 */
async function folderFields() {
  const {source_folders: names} = await rest('GET', 'session');
  const source = make(
    'select',
    names.map((/** @type {string} */ one) => make('option', {value: one}, one)),
  );
  const folder = make('input', {maxlength: 4096, placeholder: 'holidays/2024'}),
    prune = make('input', {type: 'checkbox'});
  const help = make(
    'p.note',
    'The server reads no folder yet. Start it with NNCLR_SOURCE_FOLDERS=\'["/home/me/photos"]\'.',
  );
  return {
    action: names.length ? 'Add' : '',
    name: () => folder.value.split('/').filter(Boolean).at(-1) ?? source.value,
    add: collection =>
      rest('POST', path(collection, 'index'), {
        json: {folder: folder.value, source: source.value || null, prune: prune.checked},
        noted: true,
      }),
    fields: names.length
      ? [
          make('p.note', 'Files that were added before and have not changed are skipped.'),
          make('label', 'Source folder', source),
          make('label', 'Folder in the source folder; empty: all of it', folder),
          make('label.row', prune, 'Delete items whose files no longer exist'),
        ]
      : [help],
  };
}

/** @param {import('./api.js').Collection} info */
export async function serverFolder(info) {
  const {fields, action, add} = await folderFields();
  ask(`Add a folder of the server to ${info.name}`, action, fields, async () => {
    await add(info.name);
    say('The folder is added by a job.');
  });
}

/** Make a collection of a folder that the server reads, with a map. */
export async function newFromFolder() {
  const {fields, action, add, name} = await folderFields(),
    [first] = await models(),
    bar = jobBar('Adding the folder');
  ask('A folder of this computer', action, [...fields, bar.element], async () => {
    const collection = await createCollection(name(), first, 'auto');
    await bar.follow((await add(collection)).id);
    await startInspection(collection);
    location.hash = `#/explore/${encodeURIComponent(collection)}`;
  });
}

/**
 * Name, aliases, another encoder, and maintenance.
 * @param {import('./api.js').Collection} info
 * @param {import('./api.js').Alias[]} aliases
 * @param {import('./api.js').Collection[]} collections
 * @param {() => Promise<void>} redraw
 */
export async function manage(info, aliases, collections, redraw) {
  const own = path(info.name),
    encoder = await encoders(info.model);
  /** @param {() => Promise<any>} act @param {string} done */
  const attempt = (act, done) => async () => {
    await act();
    say(done);
  };
  const job = (/** @type {'verify' | 'compact'} */ kind) =>
    attempt(() => rest('POST', `${own}/${kind}`, {noted: true}), 'It runs as a job.');
  const alias = make('input', {maxlength: 128, placeholder: 'current', 'aria-label': 'New alias'});
  const change = (/** @type {() => Promise<any>} */ act) => async () => {
    await act();
    dialog.close();
    await redraw();
  };
  const name = make('input', {maxlength: 128, value: info.name, 'aria-label': 'Name'});
  const into = make('select', {'aria-label': 'Merge into'}, targets(info, collections)),
    progress = progressBar('Merging', info.count);
  /** Move all items, then delete what is empty. */
  const merge = async () => {
    progress.hidden = false;
    for await (const {items} of pages(`${own}/items`, {limit: 5000})) {
      const ids = items.map((/** @type {any} */ one) => one.id);
      await copy(info.name, ids, into.value, false, progress);
    }
    await rest('DELETE', own, {noted: true});
    say(`${info.name} is now part of ${into.value}.`);
  };
  const dialog = openDialog(
    `Manage ${info.name}`,
    make('div.stack', [
      make('h3', 'Name'),
      make('div.tools', [
        name,
        button(
          'check',
          'Rename',
          change(() => rest('PATCH', own, {json: {name: name.value.trim().normalize()}, noted: true})),
        ),
      ]),
      ...(into.options.length
        ? [
            make('h3', 'Merge'),
            make('p.note', [
              'Another collection of the same encoder gets the images, and this one is deleted. ' +
                'Images with the same ids are replaced there.',
            ]),
            make('div.tools', into, button('forward', 'Merge into it', change(merge)), progress),
          ]
        : []),
      make('h3', 'Aliases'),
      make('p.note', 'Programs that use an alias follow it when it points to another collection.'),
      make('div.tools', [
        ...aliases.map(one =>
          make('span.chip', [
            one.alias,
            iconButton(
              'close',
              `Delete the alias ${one.alias}`,
              change(() => rest('DELETE', `aliases/${encodeURIComponent(one.alias)}`, {noted: true})),
            ),
          ]),
        ),
        alias,
        button(
          'add',
          'Point this alias here',
          change(() =>
            rest('PUT', `aliases/${encodeURIComponent(alias.value)}`, {json: {collection: info.name}, noted: true}),
          ),
        ),
      ]),
      make('h3', 'Encoder'),
      make('p.note', [
        `The vectors are of ${info.model || 'an unknown encoder'}. Another encoder builds a copy ` +
          'from the image files, and then replaces this collection. It can be searched while that runs.',
      ]),
      encoder.options.length
        ? make('div.tools', [
            encoder,
            button(
              'similar',
              'Embed again',
              attempt(
                () => rest('POST', `${own}/reembed`, {json: {model: encoder.value}, noted: true}),
                'The images are embedded again by a job.',
              ),
            ),
            button(
              'close',
              'Delete an unfinished copy',
              attempt(() => rest('DELETE', `${own}/reembed`, {noted: true}), 'There is no unfinished copy any more.'),
            ),
          ])
        : make('p', 'This server serves no other encoder.'),
      make('h3', 'Maintenance'),
      make('p.note', [
        `${info.dim} numbers each, ${info.metric}, ${info.precision}` +
          `${info.vectors === 'raw' ? '' : `, ${info.vectors}`}; index ${info.index_in_use}.`,
      ]),
      make('div.tools', [
        button('check', 'Verify every vector', job('verify')),
        button('facets', 'Compact', job('compact')),
      ]),
    ]),
  );
}
