// The dialog Probe: fit a linear classifier on the labels of a collection, see how good it is, apply it to all images.
import {rest} from './api.js';
import {count, make, openDialog, say, sayError} from './dom.js';
import {setEach} from './labels.js';

const AT_ONCE = 5000; // items in one prediction
const POLL_MS = 500;
const Z = 1.96; // of a 95% interval

/** @param {import('./explorer.js').Explorer} explorer @param {string} field the metadata key with the labels */
export function showProbe(explorer, field) {
  const name = `${explorer.name}-${field}`.replace(/[^\w.-]/g, '-');
  const shown = make('div', {class: 'stack'});
  const fit = make('button', {type: 'button', class: 'button strong', onclick: () => run(async () => {
    shown.replaceChildren(make('p', {role: 'status'}, 'Fitting ...'));
    const job = await rest('POST', 'probes', {json: {name, collection: explorer.name, field, balanced: true, replace: true}, noted: true});
    await ended(job.id);
    shown.replaceChildren(await report(explorer, name, field, dialog));
  })}, 'Fit');
  const run = async (/** @type {() => Promise<void>} */ act) => {
    fit.disabled = true;
    try {
      await act();
    } catch (error) {
      shown.replaceChildren();
      sayError(error);
    } finally {
      fit.disabled = false;
    }
  };
  const labeled = explorer.rows.column(field).codes.filter(codes => codes !== null).length;
  const dialog = openDialog('Probe', make('div', {class: 'stack probe'},
    make('p', {}, `Learn the ${explorer.rows.column(field).values.length} labels in ${field} of ${count(labeled, 'image')}, and measure on a part that is held out.`),
    make('div', {class: 'tools'}, fit), shown));
  rest('GET', 'probes').then(async ({probes}) => {
    if (probes.some((/** @type {any} */ one) => one.name === name)) shown.replaceChildren(await report(explorer, name, field, dialog));
  }).catch(sayError);
}

/** Wait for the end of a job. @param {string} id */
async function ended(id) {
  for (;;) {
    const job = await rest('GET', `jobs/${id}`);
    if (job.state === 'failed' || job.state === 'cancelled') throw new Error(job.error?.detail ?? `The job was ${job.state}.`);
    if (job.result) return job.result;
    await new Promise(done => setTimeout(done, POLL_MS));
  }
}

/** @param {import('./explorer.js').Explorer} explorer @param {string} name @param {string} field @param {HTMLDialogElement} dialog */
async function report(explorer, name, field, dialog) {
  const probe = await rest('GET', `probes/${name}`);
  const [low, high] = interval(probe.scores.top1, probe.held_out);
  const open = (/** @type {any} */ label) => { dialog.close(); explorer.filter(field, {in: [label]}); };
  const progress = make('progress', {max: explorer.rows.ids.length, value: 0, hidden: true, 'aria-label': 'Predicting'});
  const apply = make('button', {type: 'button', class: 'button strong', onclick: async () => {
    apply.disabled = true;
    progress.hidden = false;
    try {
      await predictAll(explorer, name, field, done => { progress.value = done; });
      dialog.close();
      say(`All images have the keys predicted_${field} and confidence_${field} now.`);
    } catch (error) {
      sayError(error);
    }
    apply.disabled = false;
  }}, 'Apply to the whole collection');
  return make('div', {class: 'stack'},
    make('p', {class: 'verdict'}, `Right on ${(100 * probe.scores.top1).toFixed(0)} % of ${count(probe.held_out, 'held-out image')}; with 95 % certainty between ${low} % and ${high} %.`),
    make('table', {}, make('thead', {}, make('tr', {}, ...['label', 'fitted on', 'held out', 'right'].map(text => make('th', {}, text)))),
      make('tbody', {}, ...probe.per_class.map((/** @type {any} */ one) => make('tr', {}, make('td', {}, make('button', {type: 'button', class: 'plain', onclick: () => open(one.label)}, String(one.label))),
        make('td', {}, String(one.rows)), make('td', {}, String(one.held_out)), make('td', {}, one.score === null ? '' : `${Math.round(one.score * one.held_out)} of ${one.held_out}`))))),
    make('div', {class: 'tools'}, apply, progress));
}

/** The 95 % interval of a share, by Wilson's score, in percent. @param {number} share @param {number} number @returns {[number, number]} */
export function interval(share, number) {
  if (!number) return [0, 100];
  const middle = share + Z ** 2 / (2 * number), half = Z * Math.sqrt((share * (1 - share) + Z ** 2 / (4 * number)) / number), scale = 1 + Z ** 2 / number;
  return [Math.floor((100 * (middle - half)) / scale), Math.ceil((100 * (middle + half)) / scale)];
}

/** Write each image's prediction and confidence. @param {import('./explorer.js').Explorer} explorer @param {string} name @param {string} field @param {(done: number) => void} progress */
async function predictAll(explorer, name, field, progress) {
  const rows = explorer.rows.ids.map((_, row) => row).filter(row => !explorer.rows.deleted.has(row));
  const labels = [], confidences = [];
  for (let start = 0; start < rows.length; start += AT_ONCE) {
    const ids = rows.slice(start, start + AT_ONCE).map(row => explorer.rows.ids[row]);
    const {results} = await rest('POST', `probes/${name}/predict`, {json: {collection: explorer.name, ids, top: 1}, noted: start === 0});
    for (const one of results) {
      labels.push(one.label ?? 'none of these');
      confidences.push(Math.round(10 * (one.top?.[0]?.probability ?? 0)) / 10); // few values, so that few requests write them
    }
    progress(labels.length);
  }
  await setEach(explorer, `predicted_${field}`, rows, labels);
  await setEach(explorer, `confidence_${field}`, rows, confidences);
}

