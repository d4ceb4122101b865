// Deletion of items: it cannot be undone, so it asks first, and what it says was deleted is deleted on the server.
import {path, rest} from './api.js';
import {count, make, openDialog, say, sayError} from './dom.js';
import {announce} from './edits.js';

const AT_ONCE = 5000; // items in one request
const FEW = 10; // up to so many, Enter deletes

/**
 * Ask, and delete items.
 * @param {string} collection @param {string[]} ids @param {number} [all] items of the collection
 * @returns {Promise<boolean>} whether they were deleted
 */
export function deleteItems(collection, ids, all) {
  return new Promise(resolve => {
    let done = 0;
    const images = count(ids.length, 'image');
    const progress = make('progress', {max: ids.length, value: 0, hidden: true, 'aria-label': 'Deleting'});
    const start = make(
      'button.button.danger',
      {
        type: 'button',
        onclick: async () => {
          start.disabled = keep.disabled = true;
          progress.hidden = false;
          try {
            while (done < ids.length) {
              const some = ids.slice(done, done + AT_ONCE);
              await rest('POST', path(collection, 'delete'), {json: {ids: some}, noted: done === 0});
              announce('deleted', {collection, ids: some});
              progress.value = done += some.length;
            }
            say(`${images} deleted.`);
          } catch (error) {
            sayError(error);
          }
          dialog.close();
        },
      },
      [`Delete ${images}`],
    );
    const keep = make('button.button', {type: 'button', onclick: () => dialog.close()}, 'Keep');
    const dialog = openDialog(
      `Delete ${images}?`,
      make('div.stack', [
        make('p', [
          `${ids.length === all ? `These are all images of ${collection}. ` : ''}` +
            `${ids.length === 1 ? 'It' : 'They'} cannot be restored.`,
        ]),
        make('div.tools', start, keep, progress),
      ]),
    );
    dialog.addEventListener('cancel', event => start.disabled && event.preventDefault()); // Escape while it deletes
    dialog.addEventListener('close', () => resolve(done > 0));
    (ids.length > FEW ? keep : start).focus();
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
    explorer.rows.ids.length - explorer.rows.deleted.size,
  );
}
