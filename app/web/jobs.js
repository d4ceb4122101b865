// The jobs of the server: a bar for one that runs, and the list of the last ones.
import {finished, rest} from './api.js';
import {count, iconButton, keyed, make} from './dom.js';

/** What a job does now. @param {import('./api.js').Job} job */
function phaseOf(job) {
  if (job.state === 'queued') return 'Waiting for other jobs';
  const left = job.eta_s ? `, ${Math.ceil(job.eta_s)} s left` : '';
  return (
    job.progress.phase ??
    (job.total ? `${job.done.toLocaleString('en')} of ${job.total.toLocaleString('en')}${left}` : 'Starting')
  );
}

/** A bar that only grows, with the phase of a job and a button that cancels it. @param {string} label */
export function jobBar(label) {
  const bar = make('progress', {max: 1, 'aria-label': label}),
    text = make('span.note', {role: 'status'});
  let job = '';
  const element = make('span.job-bar', {hidden: true}, [
    bar,
    text,
    iconButton('close', 'Cancel', () => rest('DELETE', `jobs/${job}`)),
  ]);
  /** Show a job until it ends, and return its result. @param {string} id */
  const follow = async id => {
    job = id;
    bar.removeAttribute('value');
    element.hidden = false;
    try {
      return await finished(id, now => {
        if (now.total) bar.value = Math.max(bar.value, now.done / now.total);
        text.textContent = phaseOf(now);
      });
    } finally {
      element.hidden = true;
    }
  };
  return {element, follow};
}

/** The list of the last jobs; a click on one shows its result. @param {boolean} canWrite */
export function jobList(canWrite) {
  const list = make('ul'),
    empty = make('p.empty', 'No job has run yet.');
  return {
    element: make('div.jobs', empty, list),
    draw: async () => {
      const {jobs} = await rest('GET', 'jobs', {query: {limit: 20}});
      empty.hidden = jobs.length > 0;
      keyed(
        list,
        jobs,
        job => job.id,
        (job, before) => {
          const line = before ?? jobLine(job, canWrite);
          line.draw(job);
          return line;
        },
      );
    },
  };
}

/** @param {import('./api.js').Job} job @param {boolean} canWrite */
function jobLine({id, kind, params, created}, canWrite) {
  const state = make('span'),
    bar = make('progress', {max: 1, 'aria-label': `Progress of ${kind}`}),
    problem = make('span.problem'),
    result = make('div.result');
  const toggle = make(
    'button.plain',
    {
      'aria-expanded': 'false',
      onclick: async () => {
        const shown = toggle.getAttribute('aria-expanded') === 'true';
        toggle.setAttribute('aria-expanded', String(!shown));
        result.replaceChildren(...(shown ? [] : resultOf(await rest('GET', `jobs/${id}`))));
      },
    },
    'Details',
  );
  const cancel = canWrite ? iconButton('close', `Cancel ${kind}`, () => rest('DELETE', `jobs/${id}`)) : '';
  const line = make('li', [
    make('strong', kind.replace('_', ' ')),
    make('span', [params.collection, params.file].filter(Boolean).join(', ')),
    state,
    bar,
    make('time.note', {datetime: new Date(1000 * created).toISOString()}, timeOf(created)),
    problem,
    toggle,
    cancel,
    result,
  ]);
  line.draw = (/** @type {import('./api.js').Job} */ job) => {
    const isRunning = ['queued', 'running'].includes(job.state);
    line.className = job.state;
    state.textContent = isRunning ? phaseOf(job) : job.state;
    bar.hidden = !isRunning || !job.total;
    if (job.total) bar.value = Math.max(bar.value, job.done / job.total);
    problem.textContent = job.error ? (job.error.detail ?? String(job.error)) : '';
    toggle.hidden = isRunning;
    if (cancel) cancel.hidden = !isRunning;
  };
  return line;
}

/** A sentence on the result, the rest as a list, and a link to the collection. @param {import('./api.js').Job} job */
function resultOf({kind, params, result, truncated}) {
  const {
    collection,
    added,
    replaced,
    unchanged,
    removed,
    errors_count: refused,
    items,
    seq: _,
    fields_seq: __,
    ...rest
  } = /** @type {Record<string, any>} */ (result ?? params);
  const parts = [
    [added, 'added'],
    [replaced, 'replaced'],
    [unchanged, 'unchanged'],
    [removed, 'removed'],
    [refused, 'refused'],
  ]
    .filter(([number]) => number !== undefined)
    .map(([number, what]) => `${number} ${what}`);
  const text = parts.length
    ? `${parts.join(', ')}.`
    : items !== undefined && typeof items === 'number'
      ? `${count(items, 'image')}.`
      : '';
  const entries = Object.entries(rest).filter(
    ([, value]) => value !== null && JSON.stringify(value) !== '[]' && JSON.stringify(value) !== '{}',
  );
  return [
    make('p', [
      text,
      ' ',
      collection
        ? make('a', {href: `#/${kind === 'inspection' ? 'insights' : 'explore'}/${encodeURIComponent(collection)}`}, [
            `Open ${collection}`,
          ])
        : '',
    ]),
    truncated ? make('p.note', truncated) : '',
    make(
      'dl',
      entries.flatMap(([key, value]) => [make('dt', key.replaceAll('_', ' ')), make('dd', textOf(key, value))]),
    ),
  ];
}

/** @param {string} key @param {any} value */
function textOf(key, value) {
  if (['made', 'created', 'started', 'ended'].includes(key)) return timeOf(value);
  if (key === 'errors') return value.map((/** @type {any} */ one) => `${one.name}: ${one.detail}`).join('\n');
  const text = typeof value === 'object' ? JSON.stringify(value) : String(value);
  return text.length > 400 ? `${text.slice(0, 400)} ...` : text;
}

/** @param {number} seconds since 1970 */
export function timeOf(seconds) {
  return new Date(1000 * seconds).toLocaleString('en', {dateStyle: 'medium', timeStyle: 'short'});
}
