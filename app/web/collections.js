// The page Collections: create, fill, look after and delete collections; the jobs of the server.
import {ROOT, imageUrl, models, path, rest} from './api.js';
import {create, drop, manage, newFromFolder, serverFolder} from './collection_dialogs.js';
import {createCollection} from './copying.js';
import {button, count, make, repeat, say, sayError} from './dom.js';
import {onDrop} from './drops.js';
import {startInspection} from './findings.js';
import {jobList, timeOf} from './jobs.js';
import {IMPORTED, addFiles, cutOff, importFile, shown} from './uploads.js';

const POLL_MS = 1500;
const SAMPLE = 4; // images of a collection on its card
/**
 * What a card shows of the content: ids of these images, and the time of the last change, if the server keeps it; by
 * collection, with the number of its last change.
 * @type {Map<string, {seq: number, read: Promise<[string[], number | null]>}>}
 */
const samples = new Map();

/**
 * @param {HTMLElement} main
 * @param {{canWrite: boolean, changed: () => Promise<any>, collections: import('./api.js').Collection[], originals:
 *   {most: number, used: number}}} session
 */
export async function showCollections(main, session) {
  document.title = 'Collections · nnclr_hub';
  const list = make('div.cards'),
    jobs = jobList(session.canWrite);
  let left = false;
  const draw = async () => {
    const [, {aliases}] = await Promise.all([session.changed(), rest('GET', 'aliases')]);
    if (left) return;
    for (const name of samples.keys()) if (!session.collections.some(one => one.name === name)) samples.delete(name);
    list.replaceChildren(
      ...session.collections.map(one =>
        card(
          one,
          aliases.filter((/** @type {import('./api.js').Alias} */ alias) => alias.collection === one.name),
          session,
          draw,
        ),
      ),
    );
    const text = session.collections.length
      ? 'Drop on a collection to add to it, elsewhere to make a new one'
      : 'Drop to make a collection';
    if (session.canWrite) onDrop({text, take: drop});
    if (!session.collections.length)
      list.replaceChildren(session.canWrite ? firstVisit(fill, draw) : make('p.empty', 'There is no collection yet.'));
  };
  /**
   * Make a collection of dropped or chosen files, show it, and let the server compute its map.
   * @param {File[]} files
   */
  const fill = async files => {
    const name = nameOf(
        files,
        session.collections.map(one => one.name),
      ),
      [first] = await models();
    await createCollection(name, first, 'auto');
    await draw();
    const made = () => session.collections.find(one => one.name === name),
      info = made();
    if (info) await addFiles(info, files);
    await draw();
    if ((made()?.count ?? 0) < 2) return;
    // the screen that opens looks for this job
    await startInspection(name).catch(sayError);
    if (!left) location.hash = `#/explore/${encodeURIComponent(name)}`;
  };
  const drop = (/** @type {File[]} */ files, /** @type {Element} */ target) => {
    const own = target.closest('article')?.getAttribute('aria-label'),
      info = session.collections.find(one => one.name === own);
    info ? addFiles(info, files) : fill(files);
  };
  const backup = () => rest('POST', 'store/backups', {noted: true}).then(() => say('The backup runs as a job.'));
  await Promise.all([draw(), jobs.draw().catch(sayError)]); // all is there when the page appears, so nothing moves
  const {most, used} = session.originals;
  main.replaceChildren(
    make('div.page', [
      make('header', [
        make('h1', 'Collections'),
        session.canWrite
          ? make('div.tools', [
              button('download', 'Back up the store', backup),
              button('add.strong', 'New collection', () => create(draw)),
            ])
          : make('p.note', [
              'You can look at everything here. ' +
                'Changes need a server that is not read-only, and a key with the write scope.',
            ]),
      ]),
      session.canWrite
        ? make('p.note', [
            most
              ? 'The original files of uploaded images are kept: ' +
                `${(used / 1e6).toFixed(0)} of ${(most / 1e6).toFixed(0)} MB are used.`
              : 'Of uploaded images, only a small copy is kept. ' +
                'To keep the original files, start the server with --originals 10GB.',
          ])
        : null,
      list,
      make('h2', 'Jobs'),
      jobs.element,
    ]),
  );
  addEventListener('uploads', draw);
  const stop = repeat(POLL_MS, jobs.draw);
  return {
    go: () => {},
    leave: () => {
      left = true;
      stop();
      onDrop(null);
      removeEventListener('uploads', draw);
    },
  };
}

/** A hidden input. @param {Record<string, any>} options @param {(files: File[]) => any} take */
function fileInput(options, take) {
  const onchange = () => {
    const files = [...input.files];
    input.value = ''; // so that the same files can be chosen again
    if (files.length) take(files);
  };
  const input = make('input', {type: 'file', hidden: true, onchange, ...options});
  return input;
}

/** What an empty store shows. @param {(files: File[]) => Promise<void>} fill @param {() => Promise<void>} draw */
function firstVisit(fill, draw) {
  const files = fileInput({multiple: true}, fill),
    folder = fileInput({webkitdirectory: true}, fill);
  const sample = button('map', 'Sample gallery', async () => {
    sample.disabled = true;
    sample.lastChild.textContent = 'Drawing the images ...';
    const answer = await fetch(new URL('app/sample.zip', ROOT));
    await fill([new File([await answer.blob()], 'sample.zip')]);
  });
  return make('div.zone.stack', [
    make('h2', 'Drop images, a folder or a zip anywhere here'),
    make(
      'p',
      'They become a collection that you can search, with a map of what looks alike. Nothing leaves this server.',
    ),
    files,
    folder,
    make('div.tools', [
      button('upload.strong', 'Choose images', () => files.click()),
      button('upload.strong', 'Choose a folder', () => folder.click()),
    ]),
    make('div.tools', [
      sample,
      button('facets', 'A folder of this computer', () => newFromFolder()),
      button('add', 'Empty collection', () => create(draw)),
    ]),
  ]);
}

/**
 * A name for a collection of files: that of their folder or archive, with a number if it exists.
 * @param {File[]} files
 * @param {string[]} others
 */
function nameOf([first], others) {
  const folder = first.webkitRelativePath.split('/')[0],
    base =
      folder ||
      (IMPORTED.split(',').some(one => first.name.endsWith(one)) ? first.name.replace(/\.[^.]*$/, '') : 'images');
  const names = [base, ...others.map((_, i) => `${base} ${i + 2}`)];
  return names.find(one => !others.includes(one)) ?? base;
}

/**
 * The first images of a collection and the time of its last change, which arrive later.
 * @param {import('./api.js').Collection} info
 */
function content({name, count: number, state, durable_seq: seq}) {
  const shown = make('div.sample', {hidden: !number}),
    when = make('time');
  if (state !== 'ready') return ['', ''];
  const places = Array.from({length: Math.min(SAMPLE, number)}, () => make('img', {alt: '', loading: 'lazy'}));
  shown.append(...places);
  if (samples.get(name)?.seq !== seq) {
    const first = rest('GET', path(name, 'items'), {query: {limit: SAMPLE}}),
      last = rest('GET', path(name, 'changes'), {query: {since: Math.max(0, seq - 1), limit: 1}}).catch(() => null);
    const read = Promise.all([first, last]).then(([{items}, log]) => {
      return /** @type {[string[], number | null]} */ ([
        items.map((/** @type {{id: string}} */ one) => one.id),
        log?.changes.at(-1)?.at ?? null,
      ]);
    });
    samples.set(name, {seq, read});
  }
  samples.get(name)?.read.then(
    ([ids, at]) => {
      for (const [place, id] of ids.entries()) if (places[place]) places[place].src = imageUrl(name, id, 'thumbnail');
      if (at !== null) when.textContent = `, changed ${timeOf(at)}`;
    },
    () => {
      samples.delete(name);
      shown.remove();
    },
  );
  return [shown, when];
}

/**
 * @param {import('./api.js').Collection} info
 * @param {import('./api.js').Alias[]} aliases
 * @param {{canWrite: boolean, collections: import('./api.js').Collection[]}} session
 * @param {() => Promise<void>} redraw
 */
function card(info, aliases, session, redraw) {
  const files = fileInput({multiple: true}, all => addFiles(info, all)),
    folder = fileInput({webkitdirectory: true}, all => addFiles(info, all)),
    file = fileInput({accept: IMPORTED}, ([first]) => importFile(info.name, first));
  const address = `#/explore/${encodeURIComponent(info.name)}`,
    [images, when] = content(info);
  return make('article.card', {'aria-label': info.name}, [
    make(
      'h2',
      make('a', {href: address}, info.name),
      aliases.map(one => make('span.chip.alias', one.alias)),
    ),
    make('p', [
      count(info.count, 'image'),
      info.bytes ? ` (${(info.bytes / 1e6).toLocaleString('en', {maximumFractionDigits: 1})} MB)` : '',
      `, encoder ${info.model || 'unknown'}`,
      when,
    ]),
    images,
    info.state === 'ready' ? null : make('p', {role: 'alert'}, info.state),
    session.canWrite
      ? make('div.tools', [
          files,
          folder,
          file,
          button('upload', 'Add images', () => files.click()),
          button('upload', 'Add a folder', () => folder.click()),
          button('upload', 'Add a zip or table', () => file.click()),
          button('upload', 'Add a folder of the server', () => serverFolder(info)),
          button('facets', 'Manage', () => manage(info, aliases, session.collections, redraw)),
          button('remove', 'Delete', () => drop(info, redraw)),
        ])
      : null,
    shown.get(info.name),
    ...(session.canWrite ? cutOff(info.name, one => (one.key ? file : one.folder ? folder : files).click()) : []),
  ]);
}
