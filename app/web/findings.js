// The findings of an inspection, and which items each is about. Addresses refer to findings by short texts:
//
//   duplicates, duplicates/3, leaks, leaks/0, outliers, suspects, next, problems/blurred, cluster/2, overlap/3/5
import {path, rest} from './api.js';
import {count} from './dom.js';
import {fieldOf} from './explorer.js';

const MOST_CHANGES = 10_000; // that are counted

/**
 * @typedef {object} Inspection
 * @property {number} number
 * @property {number} made seconds since 1970
 * @property {number} items
 * @property {number} seq of the last change before it
 * @property {number | null} fields_seq of the change that wrote the findings into the metadata
 * @property {boolean} current whether the collection has not changed since
 * @property {string} truncated what is missing in findings that are too long for an answer; '' for nothing
 * @property {any} findings as in findings.json of `nnclr inspect`
 */

/** Inspections by address, with the arrays that were read. @type {Map<string, Promise<any>>} */
const read = new Map();

/** @param {string} address @param {'json' | 'buffer'} [as] */
function once(address, as = 'json') {
  let found = read.get(address);
  if (!found) read.set(address, (found = rest('GET', address, {as})));
  return found;
}

/**
 * The newest inspection of a collection; null without one.
 * @param {string} name
 * @returns {Promise<Inspection | null>}
 */
export async function newest(name) {
  const [number] = (await rest('GET', path(name, 'inspections'))).inspections;
  return number === undefined ? null : rest('GET', path(name, 'inspections', String(number)));
}

/**
 * The inspection of a collection that runs now, such as one that was started before a reload.
 * @param {string} name
 * @returns {Promise<string | undefined>} id of its job
 */
export async function running(name) {
  const {jobs} = await rest('GET', 'jobs', {query: {kind: 'inspection', limit: 20}});
  return jobs.find(
    (/** @type {import('./api.js').Job} */ job) =>
      job.params.collection === name && ['queued', 'running'].includes(job.state),
  )?.id;
}

/**
 * Let the server inspect a collection, and write the findings into the metadata.
 * @param {string} name
 * @returns {Promise<string>} id of the job
 */
export async function startInspection(name) {
  const json = {field: await fieldOf(name), write_fields: true};
  return (await rest('POST', path(name, 'inspections'), {json, noted: true})).id;
}

/**
 * Inspect a collection, unless that runs already, and show it.
 * @param {string} name
 * @param {ReturnType<import('./jobs.js').jobBar>} bar
 */
export async function inspect(name, bar) {
  return bar.follow((await running(name)) ?? (await startInspection(name)));
}

/**
 * The class of each inspected item, and the one that a probe predicts which has not seen it; -1 without a label.
 * @param {string} name @param {Inspection} inspection
 * @returns {Promise<{labels: Int32Array, predicted: Int32Array}>}
 */
export async function predictions(name, inspection) {
  const own = path(name, 'inspections', String(inspection.number));
  const [labels, predicted] = await Promise.all([once(`${own}/labels`, 'buffer'), once(`${own}/predicted`, 'buffer')]);
  return {labels: new Int32Array(labels), predicted: new Int32Array(predicted)};
}

/**
 * The items of a finding, and its name for people; null if the inspection does not have it.
 * @param {string} name of the collection @param {Inspection} inspection @param {string} finding
 * @returns {Promise<{title: string, ids: string[]} | null>}
 */
export async function itemsOf(name, inspection, finding) {
  const [kind, first, second] = finding.split('/'),
    {findings} = inspection;
  const flagged = (/** @type {any[]} */ list) => list.filter(one => one.flagged).map(one => one.item);
  const groups = (/** @type {string} */ title, /** @type {any[]} */ all) => {
    const chosen = first === undefined ? all : all.slice(Number(first), Number(first) + 1);
    return {
      title: first === undefined ? title : `${title}, group ${Number(first) + 1}`,
      ids: [...new Set(chosen.flatMap(one => one.items))],
    };
  };
  switch (kind) {
    case 'duplicates':
      return groups('duplicates', duplicates(findings));
    case 'leaks':
      return groups('leaks', findings.leaks);
    case 'outliers':
      return {title: 'outliers', ids: flagged(findings.outliers)};
    case 'suspects':
      return {title: 'suspect labels', ids: flagged(findings.suspect_labels)};
    case 'next':
      return {title: 'what to label next', ids: findings.label_next.map((/** @type {any} */ one) => one.item)};
    case 'problems':
      return {
        title: `${first} images`,
        ids: findings.image_problems
          .filter((/** @type {any} */ one) => one.problems.includes(first))
          .map((/** @type {any} */ one) => one.item),
      };
    case 'cluster':
      return {title: `cluster ${first}`, ids: findings.clusters[Number(first)]?.items ?? []};
    case 'overlap': {
      const [{ids}, {labels, predicted}] = await Promise.all([
        once(`${path(name, 'inspections', String(inspection.number))}/ids`),
        predictions(name, inspection),
      ]);
      const [given, taken] = [Number(first), Number(second)];
      return {
        title: `${findings.classes[given]}, taken for ${findings.classes[taken]}`,
        ids: ids.filter(
          (/** @type {string} */ _, /** @type {number} */ i) => labels[i] === given && predicted[i] === taken,
        ),
      };
    }
    default:
      return null;
  }
}

/**
 * A sentence on the items that were added or deleted since an inspection; '' if none did.
 * @param {string} name of the collection @param {Inspection} inspection
 */
export async function changesSince(name, {current, number, seq, fields_seq: fields}) {
  if (current) return '';
  const query = {since: fields ?? seq, limit: MOST_CHANGES};
  const [{changes, next, last}, {ids}] = await Promise.all([
    rest('GET', path(name, 'changes'), {query}),
    once(`${path(name, 'inspections', String(number))}/ids`),
  ]).catch(() => [{changes: [], next: 0, last: 1}, {ids: []}]); // without a log, or one that reaches back so far
  const before = new Set(ids),
    ops = [...new Map(changes.map((/** @type {{id: string, op: string}} */ one) => [one.id, one.op]))];
  const added = ops.filter(([id, op]) => op === 'upsert' && !before.has(id)).length,
    deleted = ops.filter(([id, op]) => op === 'delete' && before.has(id)).length;
  const parts = [
    added && `${count(added, 'image was', 'images were')} added`,
    deleted && `${count(deleted, 'image was', 'images were')} deleted`,
  ].filter(Boolean);
  return next === last && parts.length ? `Since then, ${parts.join(' and ')}.` : 'The collection has changed since.';
}

/**
 * Groups of copies: equal pixels first, then near duplicates.
 * @param {any} findings
 * @returns {{items: string[], score: number, exact: boolean}[]}
 */
export function duplicates(findings) {
  const marked = (/** @type {any[]} */ groups, /** @type {boolean} */ exact) => groups.map(one => ({...one, exact}));
  return [...marked(findings.exact_duplicates, true), ...marked(findings.near_duplicates, false)];
}
