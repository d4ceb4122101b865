// Every write of metadata in this app, and how it is undone.
//
// A write sends the values that it replaces. If another tab or program has changed them, the server refuses it, and the
// write is repeated with the true values, so that its undo restores those. Undo and redo leave such images as they
// are.
//
// Events of `edits`: `metadata` and `deleted` report what was written, from whichever page; `history` says that there
// is more or less to undo; `counts` that the number of items of a collection is known again.
import {ApiError, path, rest} from './api.js';
import {count, say, sayError} from './dom.js';
import {flat} from './rows.js';

/**
 * @typedef {Map<string, Record<string, any>>} Values by the id of an item and a metadata key such as camera.model;
 *   null: it has none
 */
/** @typedef {{collection: string, text: string, before: Values, after: Values}} Edit */

const AT_ONCE = 5000; // items in one request
const ATTEMPTS = 20; // the server names 1,000 conflicts in one answer
const KEPT = 100;

export const edits = new EventTarget();
/** What can be undone, the newest last. @type {Edit[]} */
const history = [];
/** What can be done again, the last undone last. @type {Edit[]} */
const undone = [];
let turn = Promise.resolve();
let closeMessage = () => {};

/** @param {string} name @param {Record<string, any>} [detail] */
export function announce(name, detail) {
  edits.dispatchEvent(new CustomEvent(name, {detail}));
}

/**
 * Write values, with undo and a message.
 * @param {string} collection @param {string} text of the message @param {Values} values
 * @param {(id: string) => Record<string, any> | undefined} shown the metadata of an item as the page shows it, with
 *   paths as keys
 * @param {(done: number) => void} [progress]
 */
export function write(collection, text, values, shown, progress) {
  return inTurn(async () => {
    const before = new Map([...values].map(([id, own]) => [id, pick(shown(id) ?? {}, Object.keys(own))]));
    /** @type {Edit} */
    const edit = {collection, text, before: new Map(), after: new Map()};
    try {
      const others = await send(collection, values, before, true, edit.after, progress);
      closeMessage();
      const note = others.size ? ` ${replaced(others)}` : '';
      closeMessage = say(`${text}.${note}`, {action: 'Undo', seconds: 10, run: () => undo(edit)});
    } finally {
      for (const id of edit.after.keys()) edit.before.set(id, before.get(id) ?? {});
      if (edit.after.size) {
        history.push(edit);
        undone.length = 0;
      }
      history.splice(0, history.length - KEPT);
      announce('history');
    }
  });
}

/** The text of the newest edit that can be undone. */
export function undoable() {
  return history.at(-1)?.text;
}

/** Undo an edit; without one, the newest. @param {Edit} [edit] */
export function undo(edit) {
  return inTurn(() => revert(edit, history, undone)).catch(sayError);
}

/** Do again what was undone last. */
export function redo() {
  return inTurn(() => revert(undefined, undone, history)).catch(sayError);
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
    const others = await send(own.collection, values, new Map(expected), false, done);
    from.splice(place, 1);
    const [[, later] = []] = others;
    const note = later
      ? ` ${count(others.size, 'image')} changed since, such as to ${textOf(later)}, and stayed so.`
      : '';
    const what = isUndo ? (done.size ? 'Undone' : 'Not undone') : done.size ? 'Done again' : 'Not done again';
    closeMessage = say(`${what}: ${own.text}.${note}`, {seconds: later ? 12 : 6});
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
 * @returns {Promise<Values>} what others have written
 */
async function send(collection, values, before, overwrite, done, progress = () => {}) {
  /** @type {Values} */
  const others = new Map(),
    ids = [...values.keys()];
  const chosen = (/** @type {string[]} */ some, /** @type {Values} */ from) =>
    Object.fromEntries(some.map(id => [id, from.get(id) ?? {}]));
  try {
    for (let start = 0; start < ids.length; start += AT_ONCE) {
      let some = ids.slice(start, start + AT_ONCE);
      for (let attempt = 0; some.length; attempt++) {
        try {
          const json = {each: chosen(some, values), by_path: true};
          // the call is shown without its condition, which no longer holds after it
          await rest('PATCH', path(collection, 'items'), {
            json: {...json, expected: chosen(some, before)},
            noted: start + attempt === 0 && json,
          });
          for (const id of some) done.set(id, values.get(id) ?? {});
          progress(done.size);
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
  return others;
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
  return Object.fromEntries(keys.map(key => [key, metadata[key] ?? null]));
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
