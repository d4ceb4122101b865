// Uploads to collections: images in small requests, and archives or tables in parts, which the server imports as a job.
// They continue while other pages of the app are shown. One that fails, is stopped, or is cut off by a reload can
// continue.
import {ApiError, finished, newKey, path, rest} from './api.js';
import {button, count, keepPage, make, say, textButton} from './dom.js';
import {fieldOf} from './explorer.js';
import {discard, forget, remember, unfinished, unfinishedOf} from './unfinished.js';

const AT_ONCE = 16; // images in one request; two requests run at a time
const PART = 8_000_000; // bytes of a file in one request
const UNREADABLE = new Set([413, 415, 422]); // statuses about the images of a request, not about the server
const NAMED = 200; // files that failed
const TABLE = 'labels.csv'; // of a folder, as for `nnclr index`
const KINDS = /** @type {Record<string, string>} */ ({
  zip: 'application/zip',
  tar: 'application/x-tar',
  ndjson: 'application/x-ndjson',
  jsonl: 'application/x-ndjson',
  parquet: 'application/vnd.apache.parquet',
  arrow: 'application/vnd.apache.arrow.stream',
});
/** Names of files that can be imported. */
export const IMPORTED = Object.keys(KINDS)
  .map(suffix => `.${suffix}`)
  .join(',');

/** @typedef {import('./unfinished.js').Unfinished} Unfinished */
/** What the running and ended uploads show, by collection. @type {Map<string, HTMLElement>} */
export const shown = new Map();
/** Collections and files of the uploads that run, or whose end is shown. @type {Map<string, string>} */
const seen = new Map();

/**
 * Show an upload's progress, and do it.
 * @param {Unfinished} upload
 * @param {(view: View) => Promise<string>} act returns a sentence on the result
 * @param {() => void} again continues it
 */
async function begin(upload, act, again) {
  const view = new View(`Adding ${upload.label} to ${upload.collection}`);
  shown.set(upload.collection, view.element);
  seen.set(upload.collection, upload.files);
  dispatchEvent(new Event('uploads'));
  try {
    view.end(await keepPage(act(view)));
    forget(upload);
  } catch (error) {
    const stopped = view.abort.signal.aborted;
    view.end(
      stopped ? 'The upload was stopped.' : `The upload failed: ${error instanceof Error ? error.message : error}`,
      !stopped,
    );
    if (!(error instanceof JobError)) view.element.append(choice(upload, 'Continue', again));
  }
  dispatchEvent(new Event('uploads'));
}

/** The job that imports a file has failed, so that there is nothing to continue. */
class JobError extends Error {}

/**
 * What has arrived of an upload, and buttons to continue or to end it.
 * @param {Unfinished} upload
 * @param {string} action
 * @param {() => void} go
 */
function choice(upload, action, go) {
  const end = async () => {
    await discard(upload);
    shown.delete(upload.collection);
    seen.delete(upload.collection);
    dispatchEvent(new Event('uploads'));
  };
  return make('div.stack', [
    make('p', `${upload.label}: ${arrived(upload)} arrived.`),
    make('div.tools', [
      button('upload', action, go),
      button('close', upload.key ? 'Delete what arrived' : 'Leave out the rest', end),
    ]),
  ]);
}

/**
 * The uploads to a collection that a reload has cut off.
 * @param {string} collection
 * @param {(upload: Unfinished) => void} choose lets a person choose the files again
 */
export function cutOff(collection, choose) {
  return unfinishedOf(collection)
    .filter(one => seen.get(collection) !== one.files)
    .map(one =>
      make('div.upload', [
        choice(one, one.key ? 'Choose this file again' : 'Choose these files again', () => choose(one)),
      ]),
    );
}

/** @param {Unfinished} upload */
function arrived({key, done, total}) {
  return key ? `${(done / 1e6).toFixed(0)} of ${(total / 1e6).toFixed(0)} MB` : `${done} of ${count(total, 'file')}`;
}

class View {
  /** @param {string} label */
  constructor(label) {
    this.abort = new AbortController();
    this.begun = performance.now();
    this.bar = make('progress', {max: 1, value: 0, 'aria-label': label});
    this.text = make('p', {role: 'status'}, 'Starting ...');
    this.stop = textButton('Stop', () => this.abort.abort());
    this.broken = make('ul.broken');
    this.failed = 0;
    this.element = make('div.upload', this.bar, this.text, this.stop, this.broken);
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
    if (this.failed <= NAMED) this.broken.append(make('li', `${name}: ${problem}`));
  }

  /** @param {string} text @param {boolean} [error] */
  end(text, error = false) {
    this.bar.remove();
    this.stop.remove();
    this.text.textContent = text;
    this.text.classList.toggle('problem', error);
    say(text, {error});
  }
}

/**
 * Add images; those that fail are named.
 * @param {import('./api.js').Collection} info of the collection
 * @param {File[]} chosen
 */
export async function uploadImages(info, chosen) {
  const suffixes = new Set((await rest('GET', 'session')).image_suffixes),
    isImage = (/** @type {File} */ file) => suffixes.has(suffixOf(file));
  const files = chosen.filter(isImage),
    others = chosen.filter(file => !isImage(file));
  const upload = unfinished(
    info.name,
    files,
    chosen[0].webkitRelativePath.split('/')[0] || count(files.length, 'image'),
    files.length,
  );
  return begin(
    upload,
    async view => {
      const held = upload.done ? (await rest('GET', path(info.name))).count : info.count;
      const skipped = held >= upload.least ? upload.done : 0; // fewer: they were deleted
      const groups = Array.from({length: Math.ceil((files.length - skipped) / AT_ONCE)}, (_, i) =>
        files.slice(skipped + i * AT_ONCE, skipped + (i + 1) * AT_ONCE),
      );
      const ended = groups.map(() => false);
      let next = 0,
        done = skipped,
        added = 0,
        failed = false;
      remember(upload);
      const work = async () => {
        while (next < groups.length && !failed) {
          view.abort.signal.throwIfAborted();
          const place = next++,
            group = groups[place];
          const results = await sent(info.name, group, view.abort.signal).catch(error => {
            failed = true;
            throw error;
          });
          for (const result of results) {
            const problem = result.error?.detail ?? (result.id ? null : result.detail);
            if (problem) view.refuse(group[result.index].name, problem);
            else added++;
          }
          ended[place] = true;
          done += group.length;
          const whole = ended.indexOf(false);
          Object.assign(upload, {done: whole < 0 ? files.length : skipped + AT_ONCE * whole, least: held + added});
          remember(upload);
          view.advance(done, files.length, `${done} of ${count(files.length, 'image')}`);
        }
      };
      for (const one of await Promise.allSettled([work(), work()])) if (one.status === 'rejected') throw one.reason;
      return (
        `${count(added, 'image')} added${skipped ? ` to the ${skipped} that had arrived` : ''}` +
        (view.failed ? `, ${view.failed} could not be read` : '') +
        `${
          others.length
            ? `, ${count(others.length, 'other file')} left out (${others
                .slice(0, 3)
                .map(file => file.name)
                .join(', ')}${others.length > 3 ? ', ...' : ''})`
            : ''
        }.`
      );
    },
    () => uploadImages(info, chosen),
  );
}

/**
 * @param {string} collection
 * @param {File[]} group
 * @param {AbortSignal} signal
 * @returns {Promise<any[]>} an id or an error for each
 */
async function sent(collection, group, signal) {
  const readable = await Promise.all(
    group.map(file =>
      file
        .slice(0, 1)
        .arrayBuffer()
        .then(
          () => true,
          () => false,
        ),
    ),
  );
  const places = group.map((_, index) => index).filter(index => readable[index]),
    files = places.map(index => group[index]);
  const lost = group.flatMap((_, index) =>
    readable[index] ? [] : [{index, error: {detail: 'The file was changed or removed; choose it again.'}}],
  );
  if (!files.length) return lost;
  const form = new FormData();
  for (const file of files) form.append('files', file, file.name);
  form.append('items', JSON.stringify(files.map(file => ({metadata: metadataOf(file)}))));
  const results = await rest('POST', path(collection, 'items'), {form, signal}).then(
    answer => answer.results,
    error => {
      if (!(error instanceof ApiError && (error.body.items || UNREADABLE.has(error.status)))) throw error;
      return error.body.items ?? files.map((_, index) => ({index, error: {detail: error.message}}));
    },
  );
  return [...lost, ...results.map((/** @type {any} */ one) => ({...one, index: places[one.index]}))];
}

/** Import an archive of images or a table of vectors. @param {string} collection @param {File} file */
export function importFile(collection, file) {
  const upload = unfinished(collection, [file], file.name, file.size);
  return begin(
    upload,
    async view => {
      const kind = KINDS[suffixOf(file).slice(1)];
      if (!kind) throw new JobError(`${file.name} cannot be imported; choose a file that ends in one of ${IMPORTED}.`);
      let start = 0,
        job = null;
      if (upload.key) ({received: start, job} = await rest('GET', path(collection, 'imports', upload.key)));
      upload.key ??= newKey();
      while (!job) {
        upload.done = start;
        remember(upload);
        const end = Math.min(file.size, start + PART),
          whole = end === file.size;
        const headers = {
          'Content-Type': kind,
          'Idempotency-Key': upload.key,
          'Upload-Offset': String(start),
          'Upload-Complete': whole ? '?1' : '?0',
          'Content-Disposition': `attachment; filename*=UTF-8''${encodeURIComponent(file.name).replaceAll("'", '%27')}`,
        };
        ({job} = await rest('POST', path(collection, 'imports'), {
          body: file.slice(start, end),
          headers,
          signal: view.abort.signal,
        }));
        start = end;
        view.advance(end, file.size, `${(end / 1e6).toFixed(0)} of ${(file.size / 1e6).toFixed(0)} MB sent`);
      }
      forget(upload); // the job continues without this page
      view.stop.remove(); // the job can be cancelled in the list of jobs
      view.begun = performance.now();
      const result = await finished(job.id, ({done, total}) => {
        if (total) view.advance(done, total, `${done} of ${total} imported`);
      }).catch(error => {
        throw new JobError(error.message);
      });
      for (const one of result.errors ?? []) view.refuse(one.name, one.detail);
      const more = (result.errors_count ?? 0) - (result.errors ?? []).length;
      const others = Object.entries(result.left_out ?? {}).map(
        ([suffix, number]) => `${number} ${suffix || 'without a suffix'}`,
      );
      return (
        `${file.name}: ${result.added} added, ${result.replaced} replaced` +
        (result.errors_count ? `, ${result.errors_count} refused` : '') +
        (more > 0 ? ` (${more} not listed)` : '') +
        `${others.length ? `, left out as no image: ${others.join(', ')}` : ''}.`
      );
    },
    () => importFile(collection, file),
  );
}

/**
 * Add images, archives and tables.
 * @param {import('./api.js').Collection} info of the collection
 * @param {File[]} files
 */
export async function addFiles(info, files) {
  const table = files.find(file => file.name.toLowerCase() === TABLE),
    images = files.filter(file => file !== table && !(suffixOf(file).slice(1) in KINDS));
  for (const file of files) if (file !== table && !images.includes(file)) await importFile(info.name, file);
  if (images.length) await uploadImages(info, images);
  if (table) await writeTable(info.name, table);
}

/**
 * Write the labels and the other columns of the table of a folder into the metadata of its images.
 * @param {string} collection
 * @param {File} file
 */
async function writeTable(collection, file) {
  const write = (/** @type {any} */ query) =>
    rest('POST', path(collection, 'labels'), {query, body: file, headers: {'Content-Type': 'text/csv'}});
  const {updated, unmatched_rows: lost, other_columns: columns} = await write({key: await fieldOf(collection)});
  if (columns.length) await write({columns});
  say(
    `${file.name}: ${count(updated, 'image')} labeled${columns.length ? `, with ${columns.join(', ')}` : ''}` +
      `${lost ? `; ${count(lost, 'line')} of unknown images` : ''}.`,
  );
}

/** @param {File} file */
function suffixOf(file) {
  return /\.[^.]*$/.exec(file.name)?.[0].toLowerCase() ?? '';
}

/** @param {File} file @returns {Record<string, string>} its name, path, and its folder as label */
function metadataOf(file) {
  const parts = (file.webkitRelativePath || file.name).split('/');
  if (parts.length < 2) return {name: file.name};
  const inner = parts.slice(1);
  return {
    name: file.name,
    path: inner.join('/'),
    ...(inner.length > 1 ? {label: inner[inner.length - 2].normalize()} : {}),
  };
}
