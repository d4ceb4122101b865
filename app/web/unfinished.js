// Uploads that have not ended. Notes of them survive a reload, after which the same files continue where they stopped.
//
// Browsers do not let a page keep files, so a person chooses them again. They are recognized by names, sizes and times.
import {path, rest} from './api.js';

const STORED = 'uploads';

/**
 * @typedef {object} Unfinished
 * @property {string} collection
 * @property {string} files identifies the files
 * @property {boolean} folder whether a folder was chosen
 * @property {string} label names the files
 * @property {string} [key] Idempotency-Key of an import; none for images
 * @property {number} done bytes or images that have arrived, of the first ones
 * @property {number} total
 * @property {number} least images that the collection had when these had arrived
 */

/** @returns {Unfinished[]} */
function all() {
  return JSON.parse(localStorage.getItem(STORED) ?? '[]');
}

/**
 * The upload of these files that has not ended, or a new one.
 * @param {string} collection
 * @param {File[]} files
 * @param {string} label
 * @param {number} total
 * @returns {Unfinished}
 */
export function unfinished(collection, files, label, total) {
  const id = idOf(files),
    folder = Boolean(files[0]?.webkitRelativePath);
  return (
    all().find(one => one.collection === collection && one.files === id) ?? {
      collection,
      files: id,
      folder,
      label,
      done: 0,
      total,
      least: 0,
    }
  );
}

/** Those of a collection. @param {string} collection */
export function unfinishedOf(collection) {
  return all().filter(one => one.collection === collection);
}

/** @param {Unfinished} upload */
export function remember(upload) {
  store([...others(upload), upload]);
}

/** @param {Unfinished} upload */
export function forget(upload) {
  store(others(upload));
}

/** Forget an upload, and delete what the server has of an import. @param {Unfinished} upload */
export async function discard(upload) {
  if (upload.key) await rest('DELETE', path(upload.collection, 'imports', upload.key));
  forget(upload);
}

/** @param {Unfinished} upload */
function others(upload) {
  return all().filter(one => one.collection !== upload.collection || one.files !== upload.files);
}

/** @param {Unfinished[]} uploads */
function store(uploads) {
  localStorage.setItem(STORED, JSON.stringify(uploads));
}

/** @param {File[]} files */
function idOf(files) {
  let hash = 0;
  for (const file of files) {
    for (const letter of `${file.webkitRelativePath || file.name} ${file.size} ${file.lastModified};`)
      hash = (31 * hash + /** @type {number} */ (letter.codePointAt(0))) | 0;
  }
  return `${files.length} ${files.reduce((sum, file) => sum + file.size, 0)} ${hash}`;
}
