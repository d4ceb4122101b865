// Deletion of items that can be undone for some seconds.
import {path, rest} from './api.js';
import {count, say, sayError} from './dom.js';

const UNDO_S = 8;
const AT_ONCE = 5000; // items in one request

/**
 * Delete items after some seconds in which it can be undone; a page that is closed before deletes nothing.
 * @param {string} name of the collection @param {string[]} ids
 * @param {(hidden: boolean) => void} hide shows the items as deleted, or again
 */
export function deleteSoon(name, ids, hide) {
  hide(true);
  const timer = setTimeout(async () => {
    try {
      for (let start = 0; start < ids.length; start += AT_ONCE) {
        await rest('POST', path(name, 'delete'), {json: {ids: ids.slice(start, start + AT_ONCE)}, noted: start === 0});
      }
    } catch (error) {
      hide(false);
      sayError(error);
    }
  }, 1000 * UNDO_S);
  say(`${count(ids.length, 'image')} deleted.`, {action: 'Undo', seconds: UNDO_S, run: () => { clearTimeout(timer); hide(false); }});
}

/** Delete rows of the screen Explore, see `deleteSoon`. @param {import('./explorer.js').Explorer} explorer @param {number[]} rows */
export function deleteRows(explorer, rows) {
  deleteSoon(explorer.name, rows.map(row => explorer.rows.ids[row]), hidden => explorer.hide(rows, hidden));
}
