// The page Collections: create, fill, check and delete collections; the jobs of the server.
import {ApiError, path, rest} from './api.js';
import {button, count, make, openDialog, say, sayError} from './dom.js';

const AT_ONCE = 16; // images in one request; two requests run at a time
const IMAGE = /\.(jpe?g|png|webp|gif|bmp|tiff?|avif|heic|heif)$/i;
const POLL_MS = 1500;

/**
 * @param {HTMLElement} main
 * @param {{canWrite: boolean, changed: () => Promise<void>, collections: any[]}} session
 */
export async function showCollections(main, session) {
  document.title = 'Collections · nnclr_hub';
  const list = make('div', {class: 'cards'}), jobs = make('div', {class: 'jobs'});
  const state = {left: false};
  const draw = async () => {
    await session.changed();
    list.replaceChildren(...session.collections.map(one => card(one, session, draw)));
    if (!session.collections.length) list.replaceChildren(make('p', {class: 'empty'}, 'There is no collection yet.'));
  };
  main.replaceChildren(make('div', {class: 'page'},
    make('header', {}, make('h1', {}, 'Collections'), session.canWrite ? button('add', 'New collection', () => create(draw), {class: 'strong'})
      : make('p', {class: 'note'}, 'You can look at everything here. Changes need a server that is not read-only, and a key with the write scope.')),
    list, make('h2', {}, 'Jobs'), jobs));
  await draw();
  const poll = async () => {
    if (state.left) return;
    await drawJobs(jobs, session.canWrite).catch(sayError);
    setTimeout(poll, POLL_MS);
  };
  poll();
  return {go: () => {}, leave: () => { state.left = true; }};
}

/** @param {any} info @param {{canWrite: boolean}} session @param {() => Promise<void>} redraw */
function card(info, session, redraw) {
  const job = (/** @type {() => Promise<any>} */ start, /** @type {string} */ done) => async () => {
    try {
      await start();
      say(done);
    } catch (error) {
      sayError(error);
    }
  };
  const progress = make('div', {class: 'upload', hidden: true});
  const files = make('input', {type: 'file', multiple: true, accept: 'image/*', hidden: true, onchange: () => upload(info.name, [...files.files], progress).then(redraw)});
  const folder = make('input', {type: 'file', webkitdirectory: true, hidden: true, onchange: () => upload(info.name, [...folder.files], progress).then(redraw)});
  const own = path(info.name);
  return make('article', {class: 'card', 'aria-label': info.name},
    make('h2', {}, make('a', {href: `#/explore/${encodeURIComponent(info.name)}`}, info.name)),
    make('p', {}, `${count(info.count, 'image')}, ${info.dim} numbers each, ${info.metric}; encoder ${info.model || 'unknown'}; index ${info.index_in_use}`),
    info.state === 'ready' ? null : make('p', {role: 'alert'}, info.state),
    session.canWrite ? make('div', {class: 'tools'}, files, folder,
      button('upload', 'Add images', () => files.click()), button('upload', 'Add a folder', () => folder.click()),
      button('check', 'Verify', job(() => rest('POST', 'jobs', {json: {kind: 'verify', collection: info.name}, noted: true}), 'The verification runs as a job.')),
      button('similar', 'Find duplicates', job(() => rest('POST', `${own}/duplicates`, {json: {}, noted: true}), 'The search for duplicates runs as a job.')),
      button('remove', 'Delete', () => drop(info, redraw))) : null,
    progress);
}

/** @param {() => Promise<void>} redraw */
function create(redraw) {
  const problem = make('p', {role: 'alert'});
  const name = make('input', {name: 'name', required: true, maxlength: 128, 'aria-label': 'Name', placeholder: 'photos'});
  const form = make('form', {class: 'stack', onsubmit: async (/** @type {SubmitEvent} */ event) => {
    event.preventDefault();
    try {
      await rest('PUT', path(name.value), {json: {}, noted: true});
      dialog.close();
      await redraw();
    } catch (error) {
      problem.textContent = /** @type {Error} */ (error).message;
    }
  }}, make('label', {}, 'Name', name), problem, make('button', {class: 'button strong'}, 'Create'));
  const dialog = openDialog('New collection', form);
}

/** @param {any} info @param {() => Promise<void>} redraw */
function drop(info, redraw) {
  const name = make('input', {'aria-label': 'Name of the collection', oninput: () => { go.disabled = name.value !== info.name; }});
  const go = make('button', {type: 'button', class: 'button danger', disabled: true, onclick: async () => {
    try {
      await rest('DELETE', path(info.name), {noted: true});
      dialog.close();
      await redraw();
    } catch (error) {
      sayError(error);
    }
  }}, `Delete ${count(info.count, 'image')}`);
  const dialog = openDialog(`Delete ${info.name}`, make('p', {}, `This cannot be undone. Type ${info.name} to delete the collection.`), name, go);
}

/**
 * Add images in requests of some images, two at a time; those that fail are named.
 * @param {string} collection @param {File[]} chosen @param {HTMLElement} shown
 */
async function upload(collection, chosen, shown) {
  const files = chosen.filter(file => IMAGE.test(file.name));
  const leftOut = chosen.length - files.length;
  const bar = make('progress', {max: files.length, value: 0, 'aria-label': `Adding images to ${collection}`}), text = make('p', {role: 'status'});
  const broken = make('ul', {class: 'broken'});
  let stopped = false, done = 0, added = 0;
  const started = performance.now();
  shown.replaceChildren(bar, text, make('button', {type: 'button', class: 'plain', onclick: () => { stopped = true; }}, 'Stop'), broken);
  shown.hidden = false;
  const groups = Array.from({length: Math.ceil(files.length / AT_ONCE)}, (_, i) => files.slice(i * AT_ONCE, (i + 1) * AT_ONCE));
  const work = async () => {
    for (let group = groups.shift(); group && !stopped; group = groups.shift()) {
      const form = new FormData();
      for (const file of group) form.append('files', file, file.name);
      form.append('items', JSON.stringify(group.map(file => ({metadata: metadataOf(file)}))));
      let results;
      try {
        ({results} = await rest('POST', path(collection, 'items'), {form}));
      } catch (error) {
        if (!(error instanceof ApiError)) throw error;
        results = error.body.items ?? group.map((_, index) => ({index, error: {detail: /** @type {Error} */ (error).message}}));
      }
      for (const result of results) {
        const problem = result.error?.detail ?? (result.id ? null : result.detail);
        if (problem) broken.append(make('li', {}, `${group[result.index].name}: ${problem}`));
        else added++;
      }
      done += group.length;
      bar.value = done;
      const rate = done / ((performance.now() - started) / 1000);
      text.textContent = `${done} of ${count(files.length, 'image')}, ${rate.toFixed(1)} images/s, ${Math.ceil((files.length - done) / rate)} s left`;
    }
  };
  await Promise.all([work(), work()]).catch(sayError);
  bar.remove();
  text.textContent = `${count(added, 'image')} added${broken.children.length ? `, ${broken.children.length} could not be read` : ''}`
    + `${leftOut ? `, ${count(leftOut, 'other file')} left out` : ''}${stopped ? '; stopped' : ''}.`;
  say(text.textContent ?? '');
}

/** @param {File} file @returns {Record<string, string>} its name, path, and its folder as label */
function metadataOf(file) {
  const parts = (file.webkitRelativePath || file.name).split('/');
  if (parts.length < 2) return {name: file.name};
  const inner = parts.slice(1);
  return {name: file.name, path: inner.join('/'), ...(inner.length > 1 ? {label: inner[inner.length - 2]} : {})};
}

/** @param {HTMLElement} shown @param {boolean} canWrite */
async function drawJobs(shown, canWrite) {
  const {jobs} = await rest('GET', 'jobs', {query: {limit: 20}});
  const cancel = (/** @type {string} */ id) => rest('DELETE', `jobs/${id}`).catch(sayError);
  const key = JSON.stringify(jobs);
  if (shown.dataset.key === key) return;
  shown.dataset.key = key;
  if (!jobs.length) return shown.replaceChildren(make('p', {class: 'empty'}, 'No job has run yet.'));
  shown.replaceChildren(make('ul', {}, ...jobs.map((/** @type {any} */ job) => make('li', {class: job.state},
    make('strong', {}, job.kind), make('span', {}, job.params.collection ?? ''), make('span', {}, job.state),
    job.total ? make('progress', {max: job.total, value: job.done, 'aria-label': `Progress of ${job.kind}`}) : null,
    job.error ? make('span', {class: 'problem'}, job.error.detail ?? String(job.error)) : null,
    canWrite && ['queued', 'running'].includes(job.state) ? button('close', `Cancel ${job.kind}`, () => cancel(job.id), {quiet: true}) : null))));
}
