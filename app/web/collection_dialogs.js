// The dialogs of the page Collections.
import {path, rest} from './api.js';
import {createCollection} from './copying.js';
import {button, count, make, openDialog, say, sayError} from './dom.js';

/**
 * A form in a dialog that stays open, with the reason, if its action fails.
 * @param {string} title @param {string} action text of its button @param {(string | Node)[]} content @param {() => Promise<void>} act
 */
function ask(title, action, content, act) {
  const problem = make('p', {role: 'alert'}), go = make('button', {class: 'button strong'}, action);
  const dialog = openDialog(title, make('form', {class: 'stack', onsubmit: async (/** @type {SubmitEvent} */ event) => {
    event.preventDefault();
    go.disabled = true;
    problem.textContent = '';
    try {
      await act();
      dialog.close();
    } catch (error) {
      problem.textContent = /** @type {Error} */ (error).message;
    }
    go.disabled = false;
  }}, ...content, problem, go));
  return {dialog, go};
}

/** A choice of the encoders that the server serves. @param {string} [except] @returns {Promise<HTMLSelectElement>} */
async function encoders(except) {
  const answer = await rest('GET', '../../v1/models');
  return make('select', {'aria-label': 'Encoder'}, ...answer.data.filter((/** @type {any} */ one) => one.id !== except).map((/** @type {any} */ one) => make('option', {value: one.id}, one.id)));
}

/** @param {() => Promise<void>} redraw */
export async function create(redraw) {
  const name = make('input', {name: 'name', required: true, maxlength: 128, placeholder: 'photos', 'aria-label': 'Name'}), encoder = await encoders(), whiten = make('input', {type: 'checkbox', checked: true});
  ask('New collection', 'Create', [make('label', {}, 'Name', name), make('label', {}, 'Encoder', encoder), make('label', {class: 'row'}, whiten, 'Compare half-whitened vectors: better neighbors from 256 images on')], async () => {
    await createCollection(name.value, encoder.value, whiten.checked ? 'auto' : 'raw');
    await redraw();
  });
}

/** @param {any} info @param {() => Promise<void>} redraw */
export function drop(info, redraw) {
  const name = make('input', {'aria-label': 'Name of the collection', oninput: () => { go.disabled = name.value !== info.name; }});
  const {go} = ask(`Delete ${info.name}`, `Delete ${count(info.count, 'image')}`, [make('p', {}, `This cannot be undone. Type ${info.name} to delete the collection.`), name], async () => {
    await rest('DELETE', path(info.name), {noted: true});
    await redraw();
  });
  go.className = 'button danger';
  go.disabled = true;
}

/** @param {any} info */
export function serverFolder(info) {
  const folder = make('input', {maxlength: 4096, placeholder: 'holidays/2024'}), source = make('input', {placeholder: 'only if the server has several'});
  const prune = make('input', {type: 'checkbox'});
  ask(`Add a folder of the server to ${info.name}`, 'Add', [
    make('p', {class: 'note'}, 'The folder must be in NNCLR_SOURCE_FOLDERS, and the server must listen on this machine only. Files that were added before and have not changed are skipped.'),
    make('label', {}, 'Folder in the source folder; empty: all of it', folder), make('label', {}, 'Name of the source folder', source),
    make('label', {class: 'row'}, prune, 'Delete items whose files no longer exist')], async () => {
    await rest('POST', path(info.name, 'index'), {json: {folder: folder.value, source: source.value || null, prune: prune.checked}, noted: true});
    say('The folder is added by a job.');
  });
}

/** Aliases, another encoder, and maintenance. @param {any} info @param {any[]} aliases @param {() => Promise<void>} redraw */
export async function manage(info, aliases, redraw) {
  const own = path(info.name), encoder = await encoders(info.model);
  /** @param {() => Promise<any>} act @param {string} done */
  const attempt = (act, done) => async () => {
    try {
      await act();
      say(done);
    } catch (error) {
      sayError(error);
    }
  };
  const job = (/** @type {'verify' | 'compact'} */ kind) => attempt(() => rest('POST', 'jobs', {json: {kind, collection: info.name}, noted: true}), 'It runs as a job.');
  const alias = make('input', {maxlength: 128, placeholder: 'current', 'aria-label': 'New alias'});
  const change = (/** @type {() => Promise<any>} */ act) => async () => {
    try {
      await act();
      dialog.close();
      await redraw();
    } catch (error) {
      sayError(error);
    }
  };
  const dialog = openDialog(`Manage ${info.name}`, make('div', {class: 'stack'},
    make('h3', {}, 'Aliases'), make('p', {class: 'note'}, 'Programs that use an alias follow it when it points to another collection.'),
    make('div', {class: 'tools'}, ...aliases.map(one => make('span', {class: 'chip'}, one.alias, button('close', `Delete the alias ${one.alias}`, change(() => rest('DELETE', `aliases/${encodeURIComponent(one.alias)}`, {noted: true})), {quiet: true}))),
      alias, button('add', 'Point this alias here', change(() => rest('PUT', `aliases/${encodeURIComponent(alias.value)}`, {json: {collection: info.name}, noted: true})))),
    make('h3', {}, 'Encoder'), make('p', {class: 'note'}, `The vectors are of ${info.model || 'an unknown encoder'}. Another encoder builds a copy from the image files, and then replaces this collection. It can be searched in the meantime.`),
    encoder.options.length ? make('div', {class: 'tools'}, encoder, button('similar', 'Embed again', attempt(() => rest('POST', `${own}/reembed`, {json: {model: encoder.value}, noted: true}), 'The images are embedded again by a job.')),
      button('close', 'Delete an unfinished copy', attempt(() => rest('DELETE', `${own}/reembed`, {noted: true}), 'There is no unfinished copy any more.')))
      : make('p', {}, 'This server serves no other encoder.'),
    make('h3', {}, 'Maintenance'), make('div', {class: 'tools'}, button('check', 'Verify every vector', job('verify')), button('facets', 'Compact', job('compact')),
      button('download', 'Write the index to disk', attempt(() => rest('POST', `${own}/snapshot`, {noted: true}), 'The next start is fast.')),
      button('similar', 'Find identical images', attempt(() => rest('POST', `${own}/duplicates`, {json: {}, noted: true}), 'The search runs as a job.')))));
}
