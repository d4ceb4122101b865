// Runs: see outputs.py.
const STATES = {'running': 'running', 'stopped': 'stopped', 'done': 'done'};
let chosen = null, framed = '', drawnList = '';
const empty = make('div', {class: 'runs-empty'});
const OFFLINE = 'The server does not respond. This page retries automatically.';
const offline = make('p', {role: 'alert', class: 'jobs-offline', hidden: true});
const list = make('ul', {class: 'runs-list'});
const title = make('h2', {}), open = make('a', {target: '_blank', rel: 'noopener'}, 'Open in a new tab');
const note = make('p', {role: 'status'});
const place = make('div', {class: 'report-place'});
const report = make('section', {class: 'report', hidden: true, 'aria-label': 'Report'}, make('header', {}, title, open), note, place);
root.className = 'runs';
root.append(offline, empty, list, report);

const path = name => `/api/v1/runs/${name.split('/').map(encodeURIComponent).join('/')}/report`;

function paragraph(...parts) { return make('p', {}, ...parts); }
function explain(configured) {
  const code = text => make('code', {}, text);
  empty.hidden = false;
  empty.replaceChildren(...(configured
    ? [paragraph('There is no run yet. Train an encoder on a folder of your images, without labels:'),
      make('pre', {tabindex: 0}, 'nnclr pretrain auto --data PHOTOS --out RUNS/photos'),
      paragraph('RUNS is the folder that this server got as ', code('--runs'), '. The run appears here within seconds, and its report with the first checkpoint.')]
    : [paragraph('This server has no folder of runs. Restart it with one to follow training here:'),
      make('pre', {tabindex: 0}, 'nnclr serve --runs RUNS     # or nnclr demo --runs RUNS'),
      paragraph('RUNS is a folder of runs, such as one that ', code('nnclr pretrain auto --data PHOTOS --out RUNS/photos'), ' writes to.')]));
}

function ago(time) {
  const s = Math.max(0, Date.now() / 1000 - time);
  return s < 90 ? `${Math.round(s)} s ago` : s < 5400 ? `${Math.round(s / 60)} min ago` : s < 129600 ? `${Math.round(s / 3600)} h ago` : `${Math.round(s / 86400)} days ago`;
}

function rowOf(run) {
  const share = run.steps ? run.step / run.steps : 0;
  const metrics = Object.entries(run.figures).map(([name, value]) => `${name} ${value.toPrecision(3)}`).join(', ');
  const facts = [run.recipe, run.steps ? `step ${run.step.toLocaleString('en')} of ${run.steps.toLocaleString('en')}` : '', metrics,
    run.state === 'done' ? '' : `updated ${ago(run.changed)}`].filter(Boolean).join(' \u00b7 ');
  return make('li', {}, make('button', {type: 'button', class: 'run', 'data-name': run.name,
    'aria-pressed': String(run.name === chosen), onclick: () => { chosen = run.name; poll(); }},
  make('span', {class: 'run-name'}, run.name), make('span', {class: `run-state ${run.state}`}, STATES[run.state]),
  make('span', {class: 'run-share', style: `--share: ${100 * share}%`}), make('span', {class: 'run-facts'}, facts)));
}

function draw(runs) {
  empty.hidden = runs.length > 0;
  if (!runs.length) explain(settings.configured);
  if (!runs.some(run => run.name === chosen)) chosen = (runs.find(run => run.report !== null) ?? runs[0])?.name ?? null;
  const focused = document.activeElement?.closest?.('.run')?.dataset.name, text = JSON.stringify([chosen, runs.map(run => [run, ago(run.changed)])]);
  if (text !== drawnList) {
    list.replaceChildren(...runs.map(rowOf));
    drawnList = text;
    if (focused) list.querySelector(`[data-name="${CSS.escape(focused)}"]`)?.focus();
  }
  const run = runs.find(one => one.name === chosen);
  report.hidden = !run;
  if (run) frame(run);
}

/** Create a new frame for each version of the report: reloading a frame would add a history entry. */
function frame(run) {
  title.textContent = run.name;
  open.href = path(run.name);
  open.hidden = run.report === null;
  note.textContent = run.report === null ? 'There is no report yet. It is written with the first checkpoint.'
    : run.state === 'running' ? 'The report is updated with each checkpoint.'
      : run.state === 'stopped' ? 'This run has not reported for minutes. If it was stopped, continue it with nnclr pretrain --resume.' : '';
  const state = run.report === null ? '' : `${run.name} ${run.report}`;
  if (state === framed) return;
  framed = state;
  place.replaceChildren(...(state ? [make('iframe', {sandbox: '', title: `Report of ${run.name}`, src: path(run.name)})] : []));
}

async function poll() {
  if (!root.isConnected || !root.getClientRects().length || document.hidden) return; // another tab is visible
  try {
    draw((await rest('runs', OFFLINE))?.runs ?? []);
    setMessage(offline, '');
  } catch (error) {
    setMessage(offline, error.message);
  }
}

new IntersectionObserver(poll).observe(root);
setInterval(poll, settings.poll_ms);
onValue(poll);
