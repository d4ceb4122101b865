// The pages Training (runs and their reports) and API (the last calls as curl and Python).
import {calls, rest} from './api.js';
import {make, say} from './dom.js';

/** @param {HTMLElement} main */
export async function showTraining(main) {
  document.title = 'Training · nnclr_hub';
  const {runs} = await rest('GET', 'runs');
  const frame = make('iframe', {title: 'Report of the run', sandbox: '', hidden: true});
  const report = (/** @type {any} */ run) => {
    frame.hidden = false;
    frame.src = new URL(`../api/v1/runs/${run.name.split('/').map(encodeURIComponent).join('/')}/report`, import.meta.url).href;
  };
  const rows = runs.map((/** @type {any} */ run) => make('li', {class: run.state}, make('strong', {}, run.name), make('span', {}, run.recipe), make('span', {}, run.state),
    run.steps ? make('progress', {max: run.steps, value: run.step, 'aria-label': `Progress of ${run.name}`}) : null,
    make('span', {}, Object.entries(run.figures).map(([key, value]) => `${key} ${Number(value).toPrecision(3)}`).join('  ')),
    run.report ? make('button', {type: 'button', class: 'button', onclick: () => report(run)}, 'Report') : null));
  main.replaceChildren(make('div', {class: 'page'}, make('header', {}, make('h1', {}, 'Training')),
    runs.length ? make('div', {class: 'jobs'}, make('ul', {}, ...rows))
      : make('p', {class: 'empty'}, 'No run to show. Train with `nnclr pretrain small_cpu --data PHOTOS --out runs/first`, and start this server with `--runs runs`.'), frame));
  return {go: () => {}, leave: () => {}};
}

/** @param {HTMLElement} main */
export async function showCalls(main) {
  document.title = 'API · nnclr_hub';
  const copy = async (/** @type {string} */ text) => {
    await navigator.clipboard.writeText(text);
    say('Copied.');
  };
  const block = (/** @type {string} */ title, /** @type {string} */ text) => make('div', {class: 'code'}, make('pre', {tabindex: 0, 'aria-label': title}, text),
    make('button', {type: 'button', class: 'button', onclick: () => copy(text)}, `Copy ${title}`));
  const documentation = new URL('../docs', import.meta.url).href;
  main.replaceChildren(make('div', {class: 'page'}, make('header', {}, make('h1', {}, 'API')),
    make('p', {}, 'Everything that this page does is a call of the REST API. ', make('a', {href: documentation}, 'All routes')),
    calls.length ? make('h2', {}, 'Your last actions') : make('p', {class: 'empty'}, 'What you do on the other pages appears here as commands to copy.'),
    ...calls.map(call => make('article', {class: 'card'}, make('h3', {}, `${call.method} ${call.path.split('?')[0]}`), block('curl', curlOf(call)), block('Python', pythonOf(call))))));
  return {go: () => {}, leave: () => {}};
}

/** @param {import('./api.js').Call} call */
function curlOf({method, path, body, files}) {
  const quoted = (/** @type {string} */ text) => `'${text.replaceAll("'", "'\\''")}'`;
  const parts = ['curl', ...(method === 'GET' ? [] : ['-X', method]), quoted(location.origin + path)];
  if (files) {
    for (const [name, file] of files) parts.push('\\\n  -F', quoted(`${name}=@${file}`));
    for (const [name, text] of Object.entries(body ?? {})) parts.push('\\\n  -F', quoted(`${name}=${text}`));
  } else if (body !== undefined) {
    parts.push('\\\n  -H', quoted('Content-Type: application/json'), '\\\n  -d', quoted(JSON.stringify(body)));
  }
  return parts.join(' ');
}

/** @param {import('./api.js').Call} call */
function pythonOf({method, path, body, files}) {
  const literal = (/** @type {any} */ value) => JSON.stringify(value, null, 1).replace(/\btrue\b/g, 'True').replace(/\bfalse\b/g, 'False').replace(/\bnull\b/g, 'None').replace(/\n\s*/g, ' ');
  const lines = ['import httpx', ''];
  const extra = files
    ? [`files=[${files.map(([name, file]) => `(${literal(name)}, open(${literal(file)}, "rb"))`).join(', ')}]`, `data=${literal(body ?? {})}`]
    : body === undefined ? [] : [`json=${literal(body)}`];
  lines.push(`answer = httpx.request(${[literal(method), literal(location.origin + path), ...extra].join(', ')})`, 'answer.raise_for_status()', ...(method === 'DELETE' ? [] : ['print(answer.json())']));
  return lines.join('\n');
}
