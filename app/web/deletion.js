// Deletion of items: it cannot be undone, so it asks first, and what it says was deleted is deleted on the server.
import {path, rest} from './api.js';
import {ask, count, make, progressBar, say, textButton} from './dom.js';
import {announce, missing} from './edits.js';

const AT_ONCE = 5000; // items in one request
const FEW = 10; // up to so many, Enter deletes

/**
 * Ask, and delete items.
 * @param {string} collection @param {string[]} ids @param {number} [all] items of the collection
 * @returns {Promise<boolean>} whether they were deleted
 */
export function deleteItems(collection, ids, all) {
  return new Promise(resolve => {
    let done = 0,
      existed = 0;
    const images = count(ids.length, 'image'),
      progress = progressBar('Deleting', ids.length);
    const text = make('p', [
      `${ids.length === all ? `These are all images of ${collection}. ` : ''}` +
        `${ids.length === 1 ? 'It' : 'They'} cannot be restored.`,
    ]);
    const {dialog, go} = ask(`Delete ${images}?`, `Delete ${images}`, [text, progress], async () => {
      progress.hidden = false;
      while (done < ids.length) {
        const some = ids.slice(done, done + AT_ONCE);
        const json = {ids: some};
        existed += (await rest('POST', path(collection, 'delete'), {json, noted: done === 0})).deleted;
        announce('deleted', {collection, ids: some});
        progress.value = done += some.length;
      }
      say(`${count(existed, 'image')} deleted.${missing(ids.length - existed)}`);
    });
    const keep = textButton('Keep', () => dialog.close(), 'button');
    go.after(keep);
    go.className = 'button danger';
    dialog.addEventListener('cancel', event => go.disabled && event.preventDefault()); // Escape while it deletes
    dialog.addEventListener('close', () => resolve(done > 0));
    (ids.length > FEW ? keep : go).focus();
  });
}

/**
 * Ask, and delete rows of the screen Explore.
 * @param {import('./explorer.js').Explorer} explorer
 * @param {number[]} rows
 */
export function deleteRows(explorer, rows) {
  return deleteItems(
    explorer.name,
    rows.map(row => explorer.rows.ids[row]),
    explorer.count,
  );
}
