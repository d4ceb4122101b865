// JobList: see outputs.py. Every two seconds it polls the running jobs and a few of the waiting ones, in turn.
const POLL_MS = 2000, RETRY_MS = 4000, MAX_POLLED = 4, MAX_ERRORS = 100, MAX_SHOWN = 100, MAX_HIDDEN = 1000;
const HIDDEN = 'nnclr_hub_hidden'; // key in localStorage
const cards = new Map(); // id -> {job, element, polled: time}
let timer = null, known = [];
const OFFLINE = 'The server does not respond. Jobs that it has started continue when it is back, and this page updates automatically.';
const offline = make('p', {role: 'alert', class: 'jobs-offline', hidden: true});
const list = make('ul', {class: 'jobs-list'});
root.className = 'jobs';
root.append(offline, list);

const counted = (n, one, more) => `${n.toLocaleString('en')} ${n === 1 ? one : more}`;
const hasEnded = job => ['done', 'failed', 'cancelled', 'gone'].includes(job.state);

/** Return the ids to poll now: running jobs, then those that were polled least recently. */
function next() {
  const order = id => { const {job, polled} = cards.get(id); return job.state === 'running' ? -1 : polled; };
  return known.filter(id => !hasEnded(cards.get(id).job)).sort((a, b) => order(a) - order(b)).slice(0, MAX_POLLED);
}

async function poll() {
  timer = null;
  const open = next(), ended = [];
  if (!open.length) return;
  let wait = POLL_MS, problem = '';
  try {
    for (const id of open) {
      const job = await rest(`jobs/${id}`, OFFLINE) ?? {id, state: 'gone'};
      if (!cards.has(id)) continue; // hidden during the request
      Object.assign(cards.get(id), {job, polled: Date.now()});
      if (hasEnded(job)) ended.push(id);
    }
  } catch (error) {
    problem = error.message;
    wait = Math.max(RETRY_MS, error.wait ?? 0);
  }
  setMessage(offline, problem);
  draw();
  if (ended.length) trigger('ended', {ids: ended});
  clearTimeout(timer);
  timer = setTimeout(poll, wait);
}

function timeLeft(job) {
  if (job.eta_s === null || job.done === 0) return '';
  return job.eta_s < 90 ? `, about ${Math.max(1, Math.round(job.eta_s))} s left` : `, about ${Math.round(job.eta_s / 60)} min left`;
}

function statusOf(job) {
  const to = job.params?.collection ?? '';
  if (job.state === 'waiting') return 'Loading ...';
  if (job.state === 'queued') return `Queued: add images to ${to}.`;
  if (job.cancelling && job.state === 'running') return 'Stopping ...';
  if (job.state === 'running') return `Adding to ${to}: ${job.done.toLocaleString('en')} of ${counted(job.total, 'image', 'images')}${timeLeft(job)}`;
  if (job.state === 'cancelled') return `Stopped. Images that were already added to ${to} stay there.`;
  if (job.state === 'gone') return 'The server no longer knows this job.';
  if (job.state === 'failed') return `Adding to ${to} failed: ${job.error.detail}`;
  const {added, replaced, unchanged, errors_count: broken} = job.result;
  const existing = replaced + (unchanged ?? 0);
  return `Added ${counted(added, 'image', 'images')} to ${to}.`
    + (existing ? ` ${counted(existing, 'image', 'images')} already existed.` : '')
    + (broken ? ` ${counted(broken, 'file', 'files')} could not be read:` : '');
}

function errorsOf(job) {
  const errors = job.result?.errors ?? [];
  if (!errors.length) return null;
  const rows = errors.slice(0, MAX_ERRORS).map(({name, detail}) => make('li', {}, make('b', {}, name), ` ${detail}`));
  const more = job.result.errors_count - rows.length;
  if (more > 0) rows.push(make('li', {}, `and ${more.toLocaleString('en')} more`));
  return make('ul', {class: 'jobs-errors', tabindex: 0, 'aria-label': 'Files that could not be read'}, ...rows);
}

function cardOf(id) {
  const {job} = cards.get(id), ended = hasEnded(job);
  const button = (text, act) => make('button', {type: 'button', class: 'plain-button', onclick: act}, text);
  const share = job.total ? {value: job.done / job.total} : {};
  return make('li', {class: `job ${job.state}`, 'data-id': id},
    make('p', ended ? {role: 'status'} : {}, statusOf(job)),
    job.state === 'running' ? make('progress', {max: 1, ...share, 'aria-label': 'Adding images'}) : null,
    errorsOf(job),
    make('div', {class: 'job-buttons'},
      ended || job.cancelling ? null : button('Stop', () => { cards.get(id).polled = 0; trigger('cancel', {id}); }),
      job.state === 'done' && job.result.added ? button('Search these', () => trigger('search', {collection: job.result.collection})) : null,
      ended ? button('Hide', () => hide(id)) : null));
}

function draw() {
  const focused = root.contains(document.activeElement) ? document.activeElement.closest('.job')?.dataset.id : null;
  for (const id of known) {
    const card = cards.get(id), text = JSON.stringify(card.job);
    if (card.drawn === text) continue;
    const element = cardOf(id);
    card.element ? card.element.replaceWith(element) : list.append(element);
    Object.assign(card, {element, drawn: text});
    if (focused === id) element.querySelector('button')?.focus();
  }
}

function hidden() {
  try {
    const ids = JSON.parse(localStorage.getItem(HIDDEN));
    return Array.isArray(ids) ? ids : [];
  } catch { // not valid, or the browser has no storage
    return [];
  }
}

function hide(id) {
  try {
    localStorage.setItem(HIDDEN, JSON.stringify([...hidden(), id].slice(-MAX_HIDDEN)));
  } catch { /* the browser has no storage: the job appears again after a reload */ }
  show(known.filter(one => one !== id));
}

function show(ids) {
  known = ids;
  for (const [id, card] of cards) {
    if (known.includes(id)) continue;
    card.element?.remove();
    cards.delete(id);
  }
  for (const id of known) if (!cards.has(id)) cards.set(id, {job: {id, state: 'waiting'}, polled: 0});
  draw();
  if (timer === null && known.length) timer = setTimeout(poll, 0);
}

onValue(ids => {
  const hiddenIds = new Set(hidden());
  show([...new Set(ids)].filter(id => !hiddenIds.has(id)).slice(-MAX_SHOWN));
});
