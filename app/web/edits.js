// Every write of metadata in this app, and how it is undone.
//
// A write sends the values that it replaces. If another tab or program has changed them, the server refuses it, and the
// write is repeated with the true values, so that its undo restores those. Undo and redo leave such images as they
// are. What can be undone survives a reload.
//
// Events of `edits`, from whichever page: `metadata` has written values, `items` has items that were read again, and
// `deleted` has ids that do not exist any more. `history` says that there is more or less to undo; `counts` that the
// number of items of a collection is known again.
import {ApiError, lookup, path, rest} from './api.js';
import {count, keepPage, say, sayError} from './dom.js';
import {flat, titleOf} from './rows.js';

/**
 * @typedef {Map<string, Record<string, any>>} Values by the id of an item and a metadata key such as camera.model;
 *   null: it has none
 */
/** @typedef {{collection: string, text: string, before: Values, after: Values}} Edit */

const AT_ONCE = 5000; // items in one request
const ATTEMPTS = 20; // the server names 1,000 conflicts in one answer
const KEPT = 100;
const STORED = 'edits';
const MOST_STORED = 1_000_000; // characters of each list; a browser stores some megabytes
const MANY = 5000; // changes by others, above which all items are read again

export const edits = new EventTarget();
const stored = JSON.parse(sessionStorage.getItem(STORED) ?? '[[], [], 0]'); // at last, how many changes are left out
/** What can be undone, and what can be done again, the newest last. @type {Edit[][]} */
const [history, undone] = stored
  .slice(0, 2)
  .map((/** @type {any[]} */ list) =>
    list.map(one => ({...one, before: new Map(one.before), after: new Map(one.after)})),
  );
if (stored[2])
  say(`After this reload, ${count(stored[2], 'older change')} cannot be undone: the list was too long.`, {seconds: 12});
document.addEventListener('visibilitychange', () => {
  const asLists = (/** @type {string} */ _, /** @type {any} */ value) => (value instanceof Map ? [...value] : value);
  let left = 0;
  const lists = [history, undone].map(list => {
    let size = 0;
    const texts = list.toReversed().map(edit => JSON.stringify(edit, asLists));
    const fitting = texts.filter(text => (size += text.length) < MOST_STORED).toReversed();
    left += list === history ? texts.length - fitting.length : 0;
    return `[${fitting}]`;
  });
  sessionStorage.removeItem(STORED); // a reload must not offer older lists
  for (const text of [`[${lists},${left}]`, `[[],[],${history.length}]`])
    try {
      return sessionStorage.setItem(STORED, text);
    } catch {} // it is full
});
let turn = Promise.resolve();
let closeMessage = () => {};

/** @param {string} name @param {Record<string, any>} [detail] */
export function announce(name, detail) {
  edits.dispatchEvent(new CustomEvent(name, {detail}));
}

/**
 * Write values, with undo and a message that names the image or the number of images.
 * @param {string} collection @param {string} what is written, for the message @param {Values} values
 * @param {(id: string) => Record<string, any> | undefined} shown the metadata of an item as the page shows it, with
 *   paths as keys
 * @param {(done: number) => void} [progress]
 */
export function write(collection, what, values, shown, progress) {
  const title = (/** @type {string} */ id) => titleOf(id, shown(id) ?? {});
  const own = inTurn(async () => {
    const before = new Map([...values].map(([id, own]) => [id, pick(shown(id) ?? {}, Object.keys(own))]));
    /** @type {Edit} */
    const edit = {collection, text: '', before: new Map(), after: new Map()};
    const {after} = edit;
    try {
      const {others, gone} = await send(collection, values, before, true, after, progress);
      closeMessage();
      const notes = (others.size ? ` ${replaced(others)}` : '') + missing(gone.length, gone[0] && title(gone[0]));
      closeMessage = after.size
        ? say(`${(edit.text = named(after, title, what))}.${notes}`, {
            action: 'Undo',
            seconds: 10,
            run: () => undo(edit),
          })
        : say(`Nothing was written.${notes}`, {error: true});
    } finally {
      edit.text ||= named(after, title, what);
      for (const id of after.keys()) edit.before.set(id, before.get(id) ?? {});
      if (after.size) {
        history.push(edit);
        undone.length = 0;
      }
      history.splice(0, history.length - KEPT);
      announce('history');
    }
  });
  return keepPage(own);
}

/** What can be undone, the newest first. */
export function undoable() {
  return history.toReversed();
}

/** Undo an edit; without one, the newest. @param {Edit} [edit] */
export function undo(edit) {
  return keepPage(inTurn(() => revert(edit, history, undone))).catch(sayError);
}

/** Do again what was undone last. */
export function redo() {
  return keepPage(inTurn(() => revert(undefined, undone, history))).catch(sayError);
}

/**
 * Give the images of an edit the values of its other side, unless they changed since, and move it to another list.
 * @param {Edit | undefined} edit by default the last one of `from`
 * @param {Edit[]} from the list with the edit
 * @param {Edit[]} to
 */
async function revert(edit, from, to) {
  const own = edit ?? from.at(-1),
    place = own ? from.indexOf(own) : -1,
    isUndo = from === history;
  closeMessage();
  if (!own || place < 0) return void (closeMessage = say(`There is nothing to ${isUndo ? 'undo' : 'do again'}.`));
  const [values, expected] = isUndo ? [own.before, own.after] : [own.after, own.before];
  const done = new Map();
  try {
    const {others, gone} = await send(own.collection, values, new Map(expected), false, done);
    from.splice(place, 1);
    const [[, later] = []] = others;
    const changed = count(others.size, 'image was', 'images were') + ' changed to other values',
      left = `${others.size === 1 ? 'was' : 'were'} not ${isUndo ? 'undone' : 'done again'}`;
    const note = later ? ` ${changed}, such as ${textOf(later)}, and ${left}.` : '';
    const what = isUndo ? (done.size ? 'Undone' : 'Not undone') : done.size ? 'Done again' : 'Not done again';
    closeMessage = say(`${what}: ${own.text}.${note}${missing(gone.length, gone[0])}`, {
      seconds: note || gone.length ? 12 : 6,
    });
  } catch (error) {
    // a deleted collection must not keep what is older from being undone
    if (error instanceof ApiError && error.code === 'collection_not_found') from.splice(place, 1);
    throw error;
  } finally {
    const moved = (/** @type {Values} */ all) => new Map([...all].filter(([id]) => done.has(id)));
    if (done.size) to.push({...own, before: moved(own.before), after: moved(own.after)});
    for (const id of done.keys()) values.delete(id); // what failed can be done later
    announce('history');
  }
}

/**
 * Send values in as many requests as it takes.
 * @param {string} collection @param {Values} values
 * @param {Values} before what they replace; corrected by what the server has
 * @param {boolean} overwrite whether items that others have changed get the values, too
 * @param {Values} done gets what was written
 * @param {(done: number) => void} [progress]
 * @returns {Promise<{others: Values, gone: string[]}>} what others have written, and the ids that do not exist
 */
async function send(collection, values, before, overwrite, done, progress = () => {}) {
  /** @type {Values} */
  const others = new Map(),
    ids = [...values.keys()],
    gone = [];
  const chosen = (/** @type {string[]} */ some, /** @type {Values} */ from) =>
    Object.fromEntries(some.map(id => [id, from.get(id) ?? {}]));
  try {
    for (let start = 0; start < ids.length; start += AT_ONCE) {
      let some = ids.slice(start, start + AT_ONCE);
      for (let attempt = 0; some.length; attempt++) {
        try {
          const json = {each: chosen(some, values), by_path: true};
          // the call is shown without its condition, which no longer holds after it
          const {updated} = await rest('PATCH', path(collection, 'items'), {
            json: {...json, expected: chosen(some, before)},
            noted: start + attempt === 0 && json,
          });
          for (const id of some) done.set(id, values.get(id) ?? {});
          const lost = updated < some.length ? await refresh(collection, some) : [];
          for (const id of lost) done.delete(id);
          gone.push(...lost);
          progress(done.size + gone.length);
          break;
        } catch (error) {
          if (!(error instanceof ApiError) || error.code !== 'metadata_conflict' || attempt === ATTEMPTS) throw error;
          for (const {id, metadata} of error.body.errors) {
            others.set(id, pick(flat(metadata), Object.keys(values.get(id) ?? {})));
            before.set(id, others.get(id) ?? {});
          }
          if (!overwrite) some = some.filter(id => !others.has(id));
        }
      }
    }
  } finally {
    if (done.size + others.size) announce('metadata', {collection, values: new Map([...others, ...done])});
  }
  return {others, gone};
}

/**
 * Read items again, and show them on every page.
 * @param {string} collection @param {string[]} ids
 * @returns {Promise<string[]>} ids that do not exist
 */
export async function refresh(collection, ids) {
  const items = await lookup(collection, ids),
    gone = ids.filter(id => !items.has(id));
  if (items.size) announce('items', {collection, items});
  if (gone.length) announce('deleted', {collection, ids: gone});
  return gone;
}

/**
 * Show what others have written whenever the page gets the focus.
 * @param {string} collection @param {number} seq of the last change that is shown
 * @param {AbortSignal} signal ends it
 * @param {() => Promise<void>} reload reads everything again
 */
export function follow(collection, seq, signal, reload) {
  const changes = (/** @type {Record<string, any>} */ query) =>
    rest('GET', path(collection, 'changes'), {query, signal});
  const logAfter = (/** @type {number} */ since) =>
    changes({since, limit: 1}).then(
      page => page.log,
      () => null,
    );
  /** A collection that is created again or restored has another. @type {Promise<string | null>} */
  let log = logAfter(seq);
  const read = async () => {
    const known = await log;
    const page = await changes({since: seq, limit: MANY, log: known}).catch(error => {
      if (error.code !== 'changes_unavailable') throw error;
      return null;
    });
    const last = page?.last ?? (await rest('GET', path(collection), {signal})).durable_seq;
    const now = page?.log ?? (await logAfter(last));
    if (!page || known === null || page.next < last) await reload();
    else if (page.changes.length)
      await refresh(collection, [...new Set(page.changes.map((/** @type {{id: string}} */ one) => one.id))]);
    [seq, log] = [last, Promise.resolve(now)];
  };
  const onFocus = () =>
    inTurn(read).catch(error => {
      if (error.code !== 'invalid_request') sayError(error); // Milvus keeps no log
    });
  addEventListener('focus', onFocus, {signal});
}

/**
 * Do one edit after another, so that each knows what the one before has written.
 * @param {() => Promise<void>} action
 * @returns {Promise<void>}
 */
function inTurn(action) {
  const own = turn.then(action);
  turn = own.catch(() => {});
  return own.then(); // `own` counts as handled above, and its error would not be shown
}

/** @param {Record<string, any>} metadata @param {string[]} keys */
function pick(metadata, keys) {
  return Object.fromEntries(keys.map(key => [key, Object.hasOwn(metadata, key) ? metadata[key] : null]));
}

/** @param {Values} done @param {(id: string) => string} title @param {string} what */
function named(done, title, what) {
  return `${done.size === 1 ? title([...done.keys()][0]) : count(done.size, 'image')}: ${what}`;
}

/** What a message says on items that others have deleted. @param {number} number @param {string} [first] its name */
export function missing(number, first) {
  const such = first === undefined ? '' : `, such as ${first}`;
  return number ? ` ${count(number, 'image was', 'images were')} deleted before${such}.` : '';
}

/** @param {Values} others */
function replaced(others) {
  const [[, first]] = others;
  return `${count(others.size, 'image')} had another value that this page did not show yet, such as ${textOf(first)}.`;
}

/** @param {Record<string, any>} values */
function textOf(values) {
  const [[key, value]] = Object.entries(values);
  return value === null ? `no ${key}` : `${key} ${typeof value === 'object' ? JSON.stringify(value) : value}`;
}
