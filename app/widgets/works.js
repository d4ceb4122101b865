// Works: see works.py. One request a second while something runs, however many jobs there are.
const LOOK_MS = 1000, SLOW_MS = 3000, MOST_ERRORS = 100;
const cards = new Map(); // id -> {job, element}
let timer = null, known = [];
const away = make('p', {role: 'alert', class: 'works-away', hidden: true},
  'The server does not answer. Nothing is lost: what it had begun goes on when it is back, and this page with it.');
const list = make('ul', {class: 'works-list'});
root.className = 'works';
root.append(away, list);

const counted = (n, one, more) => `${n.toLocaleString('en')} ${n === 1 ? one : more}`;
const hasEnded = job => ['done', 'failed', 'cancelled', 'gone'].includes(job.state);

async function ask(path) {
  const answer = await fetch(`/api/v1/${path}`, {headers: {Accept: 'application/json'}});
  if (answer.status === 404) return null;
  if (!answer.ok) throw new Error(String(answer.status));
  return answer.json();
}

async function look() {
  timer = null;
  const open = known.filter(id => !hasEnded(cards.get(id).job));
  if (!open.length) return;
  let wait = LOOK_MS;
  try {
    const found = new Map((await ask('jobs?limit=1000')).jobs.map(job => [job.id, job]));
    const ended = [];
    for (const id of open) {
      let job = found.get(id) ?? {id, state: 'gone'};
      if (job.state === 'done') job = await ask(`jobs/${id}`) ?? {id, state: 'gone'}; // a list is without results
      if (!cards.has(id)) continue; // forgotten meanwhile
      cards.get(id).job = job;
      if (hasEnded(job)) ended.push(id);
    }
    away.hidden = true;
    draw();
    if (ended.length) trigger('ended', {ids: ended});
  } catch {
    away.hidden = false;
    wait = SLOW_MS;
  }
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

function search(collection) {
  location.hash = new URLSearchParams({collection}).toString();
  location.reload(); // the tab Search knows the collections of when it was opened
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
      ended || job.cancelling ? null : button('Stop', () => trigger('cancel', {id})),
      job.state === 'done' && job.result.added ? button('Search these', () => search(job.result.collection)) : null,
      ended ? button('Hide', () => trigger('forget', {ids: [id]})) : null));
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

drawn(ids => {
  known = [...new Set(ids)];
  for (const [id, card] of cards) {
    if (known.includes(id)) continue;
    card.element?.remove();
    cards.delete(id);
  }
  for (const id of known) if (!cards.has(id)) cards.set(id, {job: {id, state: 'waiting'}});
  draw();
  if (timer === null && known.length) timer = setTimeout(look, 0);
});
