// Works: see works.py. Every two seconds it asks for what runs, and for a few of those that wait, in turn.
const LOOK_MS = 2000, SLOW_MS = 4000, MOST_ASKED = 4, MOST_ERRORS = 100, MOST_SHOWN = 100, MOST_HIDDEN = 1000;
const HIDDEN = 'nnclr_hub_hidden'; // place in what the browser keeps
const cards = new Map(); // id -> {job, element, asked: when}
let timer = null, known = [];
const AWAY = 'The server does not answer. Nothing is lost: what it had begun goes on when it is back, and this page with it.';
const away = make('p', {role: 'alert', class: 'works-away', hidden: true});
const list = make('ul', {class: 'works-list'});
root.className = 'works';
root.append(away, list);

const counted = (n, one, more) => `${n.toLocaleString('en')} ${n === 1 ? one : more}`;
const hasEnded = job => ['done', 'failed', 'cancelled', 'gone'].includes(job.state);

/** Those to ask for now: what is new or runs, then those that were asked for the longest ago. */
function next() {
  const place = id => { const {job, asked} = cards.get(id); return job.state === 'running' ? -1 : asked; };
  return known.filter(id => !hasEnded(cards.get(id).job)).sort((a, b) => place(a) - place(b)).slice(0, MOST_ASKED);
}

async function look() {
  timer = null;
  const open = next(), ended = [];
  if (!open.length) return;
  let wait = LOOK_MS, trouble = '';
  try {
    for (const id of open) {
      const job = await rest(`jobs/${id}`, AWAY) ?? {id, state: 'gone'};
      if (!cards.has(id)) continue; // forgotten meanwhile
      Object.assign(cards.get(id), {job, asked: Date.now()});
      if (hasEnded(job)) ended.push(id);
    }
  } catch (error) {
    trouble = error.message;
    wait = Math.max(SLOW_MS, error.wait ?? 0);
  }
  tell(away, trouble);
  draw();
  if (ended.length) trigger('ended', {ids: ended});
  clearTimeout(timer);
  timer = setTimeout(look, wait);
}

function left(job) {
  if (job.eta_s === null || job.done === 0) return '';
  return job.eta_s < 90 ? `, about ${Math.max(1, Math.round(job.eta_s))} s left` : `, about ${Math.round(job.eta_s / 60)} min left`;
}

function words(job) {
  const to = job.params?.collection ?? '';
  if (job.state === 'waiting') return 'Looking it up ...';
  if (job.state === 'queued') return `Waits to add pictures to ${to}.`;
  if (job.cancelling && job.state === 'running') return 'Stopping ...';
  if (job.state === 'running') return `Adding to ${to}: ${job.done.toLocaleString('en')} of ${counted(job.total, 'picture', 'pictures')}${left(job)}`;
  if (job.state === 'cancelled') return `Stopped. What had been added to ${to} before stays there.`;
  if (job.state === 'gone') return 'The server knows nothing of this job any more.';
  if (job.state === 'failed') return `Nothing more was added to ${to}: ${job.error.detail}`;
  const {added, replaced, unchanged, errors_count: broken} = job.result;
  const same = replaced + (unchanged ?? 0);
  return `Added ${counted(added, 'picture', 'pictures')} to ${to}.`
    + (same ? ` ${counted(same, 'was', 'were')} there already.` : '')
    + (broken ? ` ${counted(broken, 'file', 'files')} could not be read:` : '');
}

function errorsOf(job) {
  const errors = job.result?.errors ?? [];
  if (!errors.length) return null;
  const rows = errors.slice(0, MOST_ERRORS).map(({name, detail}) => make('li', {}, make('b', {}, name), ` ${detail}`));
  const more = job.result.errors_count - rows.length;
  if (more > 0) rows.push(make('li', {}, `and ${more.toLocaleString('en')} more`));
  return make('ul', {class: 'works-errors', tabindex: 0, 'aria-label': 'Files that could not be read'}, ...rows);
}

function cardOf(id) {
  const {job} = cards.get(id), ended = hasEnded(job);
  const button = (text, act) => make('button', {type: 'button', class: 'plain-button', onclick: act}, text);
  const share = job.total ? {value: job.done / job.total} : {};
  return make('li', {class: `work ${job.state}`, 'data-id': id},
    make('p', ended ? {role: 'status'} : {}, words(job)),
    job.state === 'running' ? make('progress', {max: 1, ...share, 'aria-label': 'Adding pictures'}) : null,
    errorsOf(job),
    make('div', {class: 'work-buttons'},
      ended || job.cancelling ? null : button('Stop', () => { cards.get(id).asked = 0; trigger('cancel', {id}); }),
      job.state === 'done' && job.result.added ? button('Search these', () => trigger('search', {collection: job.result.collection})) : null,
      ended ? button('Hide', () => hide(id)) : null));
}

function draw() {
  const focused = root.contains(document.activeElement) ? document.activeElement.closest('.work')?.dataset.id : null;
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
  } catch { // nothing that can be read, or a browser that keeps nothing
    return [];
  }
}

function hide(id) {
  try {
    localStorage.setItem(HIDDEN, JSON.stringify([...hidden(), id].slice(-MOST_HIDDEN)));
  } catch { /* a browser that keeps nothing: the next list has it again, that of a reload or of another job */ }
  show(known.filter(one => one !== id));
}

function show(ids) {
  known = ids;
  for (const [id, card] of cards) {
    if (known.includes(id)) continue;
    card.element?.remove();
    cards.delete(id);
  }
  for (const id of known) if (!cards.has(id)) cards.set(id, {job: {id, state: 'waiting'}, asked: 0});
  draw();
  if (timer === null && known.length) timer = setTimeout(look, 0);
}

drawn(ids => {
  const gone = new Set(hidden());
  show([...new Set(ids)].filter(id => !gone.has(id)).slice(-MOST_SHOWN));
});
