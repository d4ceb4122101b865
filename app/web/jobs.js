// The list of the server's jobs.
import {rest} from './api.js';
import {button, make, sayError} from './dom.js';

/** The list of the last jobs; a click on one shows its result. @param {boolean} canWrite */
export function jobList(canWrite) {
  const element = make('div', {class: 'jobs'});
  let drawn = '';
  const open = new Set();
  return {element, draw: async () => {
    const {jobs} = await rest('GET', 'jobs', {query: {limit: 20}});
    const state = JSON.stringify(jobs);
    if (state === drawn) return;
    drawn = state;
    element.replaceChildren(jobs.length ? make('ul', {}, ...jobs.map((/** @type {any} */ job) => jobLine(job, canWrite, open))) : make('p', {class: 'empty'}, 'No job has run yet.'));
  }};
}

/** @param {any} job @param {boolean} canWrite @param {Set<string>} open ids of the jobs whose results are shown */
function jobLine(job, canWrite, open) {
  const cancel = () => rest('DELETE', `jobs/${job.id}`).catch(sayError);
  const running = ['queued', 'running'].includes(job.state), left = job.eta_s ? `, ${Math.ceil(job.eta_s)} s left` : '';
  const result = make('div', {class: 'result'});
  const show = async () => {
    open.add(job.id);
    const full = await rest('GET', `jobs/${job.id}`);
    result.replaceChildren(make('dl', {}, ...Object.entries(full.result ?? full.params).flatMap(([key, value]) => [make('dt', {}, key), make('dd', {}, textOf(value))])));
  };
  const toggle = make('button', {type: 'button', class: 'plain', 'aria-expanded': 'false', onclick: () => {
    const shown = toggle.getAttribute('aria-expanded') === 'true';
    toggle.setAttribute('aria-expanded', String(!shown));
    if (!shown) return void show().catch(sayError);
    open.delete(job.id);
    result.replaceChildren();
  }}, 'Details');
  if (open.has(job.id)) toggle.click();
  return make('li', {class: job.state}, make('strong', {}, job.kind), make('span', {}, [job.params.collection, job.params.file].filter(Boolean).join(', ')), make('span', {}, job.state + left),
    running && job.total ? make('progress', {max: job.total, value: job.done, 'aria-label': `Progress of ${job.kind}`}) : null,
    make('time', {datetime: new Date(1000 * job.created).toISOString(), class: 'note'}, new Date(1000 * job.created).toLocaleString()),
    job.error ? make('span', {class: 'problem'}, job.error.detail ?? String(job.error)) : null, running ? null : toggle,
    canWrite && running ? button('close', `Cancel ${job.kind}`, cancel, {quiet: true}) : null, result);
}

/** @param {any} value */
function textOf(value) {
  const text = typeof value === 'object' && value !== null ? JSON.stringify(value) : String(value);
  return text.length > 400 ? `${text.slice(0, 400)} ...` : text;
}
