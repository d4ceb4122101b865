// The pages Training (runs and their reports) and API (the last calls as curl and Python).
import {ROOT, calls, rest} from './api.js';
import {curlOf, pythonOf} from './call_text.js';
import {make, percent, repeat, say, textButton} from './dom.js';

const POLL_MS = 3000;

/** @param {HTMLElement} main */
export async function showTraining(main) {
  document.title = 'Training · nnclr_hub';
  const frame = make('iframe', {title: 'Report of the run', sandbox: '', hidden: true}),
    list = make('div.jobs');
  let drawn = '';
  const report = (/** @type {import('./api.js').Schemas['RunResponse']} */ run) => {
    frame.hidden = false;
    frame.src = new URL(`api/v1/runs/${run.name.split('/').map(encodeURIComponent).join('/')}/report`, ROOT).href;
  };
  const draw = async () => {
    const {runs} = await rest('GET', 'runs');
    const state = JSON.stringify(runs);
    if (state === drawn) return;
    drawn = state;
    list.replaceChildren(
      runs.length
        ? make(
            'ul',
            runs.map((/** @type {import('./api.js').Schemas['RunResponse']} */ run) => runLine(run, report)),
          )
        : make('p.empty', [
            'No run to show. Train with ',
            make('code', 'nnclr pretrain auto --data PHOTOS --out runs/first'),
            ', and start this server with ',
            make('code', '--runs runs'),
            '.',
          ]),
    );
  };
  main.replaceChildren(make('div.page', make('header', make('h1', 'Training')), list, frame));
  await draw();
  return {go: () => {}, leave: repeat(POLL_MS, draw)};
}

/**
 * @param {import('./api.js').Schemas['RunResponse']} run
 * @param {(run: import('./api.js').Schemas['RunResponse']) => void} report
 */
function runLine(run, report) {
  return make('li', {class: run.state}, [
    make('strong', run.name),
    make('span', run.recipe),
    make('span', run.state),
    run.steps ? make('progress', {max: run.steps, value: run.step, 'aria-label': `Progress of ${run.name}`}) : null,
    make('span', [
      Object.entries(run.figures)
        .map(([key, value]) => figureOf(key, Number(value)))
        .sort()
        .join(', '),
    ]),
    run.report ? textButton('Report', () => report(run), 'button') : null,
  ]);
}

/** A metric for people: 20-NN on pets 38.6%, loss 0.139. @param {string} key @param {number} value */
function figureOf(key, value) {
  const [kind, set] = key.split('/');
  return set ? `${kind.replace(/^knn(\d+)$/, '$1-NN')} on ${set} ${percent(value)}` : `${key} ${value.toPrecision(3)}`;
}

/** @param {HTMLElement} main @param {{keyed: boolean}} session */
export async function showCalls(main, {keyed}) {
  document.title = 'API · nnclr_hub';
  const copy = async (/** @type {HTMLElement} */ shown) => {
    getSelection()?.selectAllChildren(shown);
    if (!navigator.clipboard)
      return say('The text is selected: press Ctrl+C. Browsers copy for pages at https or localhost only.');
    await navigator.clipboard.writeText(shown.textContent ?? '');
    say('Copied.');
  };
  const block = (/** @type {string} */ title, /** @type {string} */ text) => {
    const shown = make('pre', {tabindex: 0, 'aria-label': title}, text);
    return make('div.code', [shown, textButton(`Copy ${title}`, () => copy(shown), 'button')]);
  };
  main.replaceChildren(
    make('div.page', [
      make('header', make('h1', 'API')),
      make('p', [
        'Everything that this page does is a call of the REST API. ',
        make('a', {href: new URL('docs', ROOT).href}, 'All routes'),
      ]),
      calls.length
        ? make('h2', 'Your last actions')
        : make('p.empty', 'What you do on the other pages appears here as commands to copy.'),
      ...calls.map(call =>
        make('article.card', [
          make('h3', `${call.method} ${call.path.split('?')[0]}`),
          block('curl', curlOf(call, location.origin, keyed)),
          block('Python', pythonOf(call, location.origin, keyed)),
        ]),
      ),
    ]),
  );
  return {go: () => {}, leave: () => {}};
}
