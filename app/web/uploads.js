// Uploads to collections: images in small requests, and archives or tables in parts, which the server imports as a job.
// They continue while other pages of the app are shown.
import {ApiError, finished, path, rest} from './api.js';
import {count, make, say, sayError} from './dom.js';

const AT_ONCE = 16; // images in one request; two requests run at a time
const PART = 8_000_000; // bytes of a file in one request
const NAMED = 200; // files that failed
const IMAGE = /\.(jpe?g|png|webp|gif|bmp|tiff?|avif|heic|heif)$/i;
const KINDS = /** @type {Record<string, string>} */ ({zip: 'application/zip', tar: 'application/x-tar', ndjson: 'application/x-ndjson', jsonl: 'application/x-ndjson',
  parquet: 'application/vnd.apache.parquet', arrow: 'application/vnd.apache.arrow.stream'});
/** Names of files that can be imported. */
export const IMPORTED = Object.keys(KINDS).map(suffix => `.${suffix}`).join(',');

/** What the running and ended uploads show, by collection. @type {Map<string, HTMLElement>} */
export const shown = new Map();
let running = 0;
addEventListener('beforeunload', event => { if (running) event.preventDefault(); });

/** Show an upload's progress, and do it. @param {string} collection @param {string} label @param {(view: View) => Promise<string>} act returns a sentence on the result */
async function begin(collection, label, act) {
  const view = new View(label);
  shown.set(collection, view.element);
  running++;
  dispatchEvent(new Event('uploads'));
  try {
    view.end(await act(view));
  } catch (error) {
    view.end('An error stopped the upload.');
    sayError(error);
  }
  running--;
  dispatchEvent(new Event('uploads'));
}

class View {
  /** @param {string} label */
  constructor(label) {
    this.stopped = false;
    this.begun = performance.now();
    this.bar = make('progress', {max: 1, value: 0, 'aria-label': label});
    this.text = make('p', {role: 'status'}, 'Starting ...');
    this.stop = make('button', {type: 'button', class: 'plain', onclick: () => { this.stopped = true; }}, 'Stop');
    this.broken = make('ul', {class: 'broken'});
    this.failed = 0;
    this.element = make('div', {class: 'upload'}, this.bar, this.text, this.stop, this.broken);
  }

  /** @param {number} done @param {number} total @param {string} text */
  advance(done, total, text) {
    const rate = done / ((performance.now() - this.begun) / 1000);
    this.bar.value = total ? done / total : 0;
    this.text.textContent = `${text}${done && rate ? `, ${Math.ceil((total - done) / rate)} s left` : ''}`;
  }

  /** @param {string} name @param {string} problem */
  refuse(name, problem) {
    this.failed++;
    if (this.failed <= NAMED) this.broken.append(make('li', {}, `${name}: ${problem}`));
  }

  /** @param {string} text */
  end(text) {
    this.bar.remove();
    this.stop.remove();
    this.text.textContent = text;
    say(text);
  }
}

/** Add images; those that fail are named. @param {string} collection @param {File[]} chosen */
export function uploadImages(collection, chosen) {
  const files = chosen.filter(file => IMAGE.test(file.name)), leftOut = chosen.length - files.length;
  return begin(collection, `Adding images to ${collection}`, async view => {
    const groups = Array.from({length: Math.ceil(files.length / AT_ONCE)}, (_, i) => files.slice(i * AT_ONCE, (i + 1) * AT_ONCE));
    let done = 0, added = 0;
    const work = async () => {
      for (let group = groups.shift(); group && !view.stopped; group = groups.shift()) {
        for (const result of await sent(collection, group)) {
          const problem = result.error?.detail ?? (result.id ? null : result.detail);
          if (problem) view.refuse(group[result.index].name, problem);
          else added++;
        }
        done += group.length;
        view.advance(done, files.length, `${done} of ${count(files.length, 'image')}`);
      }
    };
    await Promise.all([work(), work()]);
    return `${count(added, 'image')} added${view.failed ? `, ${view.failed} could not be read` : ''}`
      + `${leftOut ? `, ${count(leftOut, 'other file')} left out` : ''}${view.stopped ? '; stopped' : ''}.`;
  });
}

/** @param {string} collection @param {File[]} group @returns {Promise<any[]>} an id or an error for each */
async function sent(collection, group) {
  const form = new FormData();
  for (const file of group) form.append('files', file, file.name);
  form.append('items', JSON.stringify(group.map(file => ({metadata: metadataOf(file)}))));
  try {
    return (await rest('POST', path(collection, 'items'), {form})).results;
  } catch (error) {
    if (!(error instanceof ApiError) || error.status === 507) throw error;
    return error.body.items ?? group.map((_, index) => ({index, error: {detail: /** @type {Error} */ (error).message}}));
  }
}

/** Import an archive of images or a table of vectors. @param {string} collection @param {File} file */
export function importFile(collection, file) {
  return begin(collection, `Importing ${file.name} to ${collection}`, async view => {
    const kind = KINDS[file.name.split('.').at(-1)?.toLowerCase() ?? ''];
    if (!kind) throw new Error(`${file.name} cannot be imported; choose a file that ends in one of ${IMPORTED}.`);
    const key = [...crypto.getRandomValues(new Uint8Array(16))].map(byte => byte.toString(16).padStart(2, '0')).join('');
    let job = null;
    for (let start = 0; !job; start += PART) {
      if (view.stopped) return 'The upload was stopped.';
      const end = Math.min(file.size, start + PART), whole = end === file.size;
      const headers = {'Content-Type': kind, 'Idempotency-Key': key, 'Upload-Offset': String(start), 'Upload-Complete': whole ? '?1' : '?0'};
      ({job} = await rest('POST', path(collection, 'imports'), {body: file.slice(start, end), headers}));
      view.advance(end, file.size, `${(end / 1e6).toFixed(0)} of ${(file.size / 1e6).toFixed(0)} MB sent`);
    }
    view.stop.remove(); // the job can be cancelled in the list of jobs
    view.begun = performance.now();
    const result = await finished(job.id, ({done, total}) => { if (total) view.advance(done, total, `${done} of ${total} imported`); });
    for (const one of result.errors ?? []) view.refuse(one.name, one.detail);
    const more = (result.errors_count ?? 0) - (result.errors ?? []).length;
    return `${result.added} added, ${result.replaced} replaced${result.errors_count ? `, ${result.errors_count} refused` : ''}${more > 0 ? ` (${more} not listed)` : ''}.`;
  });
}

/** @param {File} file @returns {Record<string, string>} its name, path, and its folder as label */
function metadataOf(file) {
  const parts = (file.webkitRelativePath || file.name).split('/');
  if (parts.length < 2) return {name: file.name};
  const inner = parts.slice(1);
  return {name: file.name, path: inner.join('/'), ...(inner.length > 1 ? {label: inner[inner.length - 2]} : {})};
}
