// The page Collections: create, fill, look after and delete collections; the jobs of the server.
import {ROOT, imageUrl, path, rest} from './api.js';
import {create, drop, manage, newFromFolder, serverFolder} from './collection_dialogs.js';
import {createCollection} from './copying.js';
import {button, count, make, say, sayError} from './dom.js';
import {onDrop} from './drops.js';
import {jobList} from './jobs.js';
import {IMPORTED, addFiles, cutOff, importFile, shown} from './uploads.js';

const POLL_MS = 1500;
const SAMPLE = 4; // images of a collection on its card
/**
 * Ids of these images, by collection, and the state of the collection that has them.
 * @type {Map<string, {state: string, ids: Promise<string[]>}>}
 */
const samples = new Map();

/**
 * @param {HTMLElement} main
 * @param {{canWrite: boolean, changed: () => Promise<any>, collections: import('./api.js').Collection[], originals:
 *   {most: number, used: number}}} session
 */
export async function showCollections(main, session) {
  document.title = 'Collections · nnclr_hub';
  const list = make('div', {class: 'cards'}),
    jobs = jobList(session.canWrite);
  let left = false;
  const draw = async () => {
    const [, {aliases}] = await Promise.all([session.changed(), rest('GET', 'aliases')]);
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
    if (!session.collections.length)
      list.replaceChildren(
        session.canWrite ? firstVisit(fill, draw) : make('p', {class: 'empty'}, 'There is no collection yet.'),
      );
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
      {
        data: [first],
      } = await rest('GET', '../../v1/models');
    await createCollection(name, first.id, 'auto');
    await draw();
    const made = () => session.collections.find(one => one.name === name),
      info = made();
    if (info) await addFiles(info, files);
    await draw();
    if ((made()?.count ?? 0) < 2) return;
    rest('POST', path(name, 'inspections'), {json: {write_fields: true}, noted: true});
    if (!left) location.hash = `#/explore/${encodeURIComponent(name)}`;
  };
  const drop = (/** @type {File[]} */ files, /** @type {Element} */ target) => {
    const own = target.closest('article')?.getAttribute('aria-label'),
      info = session.collections.find(one => one.name === own);
    info ? addFiles(info, files) : fill(files);
  };
  if (session.canWrite) onDrop({text: 'Drop on a collection to add to it, elsewhere to make a new one', take: drop});
  const redraw = () => {
    draw();
  };
  const backup = () => rest('POST', 'store/backups', {noted: true}).then(() => say('The backup runs as a job.'));
  await Promise.all([draw(), jobs.draw().catch(sayError)]); // all is there when the page appears, so nothing moves
  const {most, used} = session.originals;
  main.replaceChildren(
    make(
      'div',
      {class: 'page'},
      make(
        'header',
        {},
        make('h1', {}, 'Collections'),
        session.canWrite
          ? make(
              'div',
              {class: 'tools'},
              button('download', 'Back up the store', backup),
              button('add', 'New collection', () => create(draw), {class: 'strong'}),
            )
          : make(
              'p',
              {class: 'note'},
              'You can look at everything here. ' +
                'Changes need a server that is not read-only, and a key with the write scope.',
            ),
      ),
      session.canWrite
        ? make(
            'p',
            {class: 'note'},
            most
              ? 'The original files of uploaded images are kept: ' +
                  `${(used / 1e6).toFixed(0)} of ${(most / 1e6).toFixed(0)} MB are used.`
              : 'Of uploaded images, only a small copy is kept. ' +
                  'To keep the original files, start the server with --originals 10GB.',
          )
        : null,
      list,
      make('h2', {}, 'Jobs'),
      jobs.element,
    ),
  );
  addEventListener('uploads', redraw);
  const poll = async () => {
    if (left) return;
    await jobs.draw().catch(sayError);
    setTimeout(poll, POLL_MS);
  };
  setTimeout(poll, POLL_MS);
  return {
    go: () => {},
    leave: () => {
      left = true;
      onDrop(null);
      removeEventListener('uploads', redraw);
    },
  };
}

/** What an empty store shows. @param {(files: File[]) => Promise<void>} fill @param {() => Promise<void>} draw */
function firstVisit(fill, draw) {
  const choose = (/** @type {any} */ options) => {
    const input = make('input', {
      type: 'file',
      hidden: true,
      ...options,
      onchange: () => {
        if (input.files.length) fill([...input.files]);
      },
    });
    return input;
  };
  const files = choose({multiple: true}),
    folder = choose({webkitdirectory: true});
  const sample = button('map', 'Sample gallery', async () => {
    sample.disabled = true;
    sample.lastChild.textContent = 'Drawing the images ...';
    const answer = await fetch(new URL('app/sample.zip', ROOT));
    await fill([new File([await answer.blob()], 'sample.zip')]);
  });
  return make(
    'div',
    {class: 'zone stack'},
    make('h2', {}, 'Drop images, a folder or a zip anywhere here'),
    make(
      'p',
      {},
      'They become a collection that you can search, with a map of what looks alike. Nothing leaves this server.',
    ),
    files,
    folder,
    make(
      'div',
      {class: 'tools'},
      button('upload', 'Choose images', () => files.click(), {class: 'strong'}),
      button('upload', 'Choose a folder', () => folder.click(), {class: 'strong'}),
    ),
    make(
      'div',
      {class: 'tools'},
      sample,
      button('facets', 'A folder of this computer', () => newFromFolder()),
      button('add', 'Empty collection', () => create(draw)),
    ),
  );
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
 * The first images of a collection, which arrive later.
 * @param {import('./api.js').Collection} info
 */
function sample({name, count: number, state, vectors_seq: changes}) {
  const shown = make('div', {class: 'sample', hidden: !number || state !== 'ready'});
  if (shown.hidden) return shown;
  const places = Array.from({length: Math.min(SAMPLE, number)}, () => make('img', {alt: '', loading: 'lazy'}));
  shown.append(...places);
  const now = `${number} images, ${changes} changes`;
  let known = samples.get(name);
  if (known?.state !== now) {
    const page = rest('GET', path(name, 'items'), {query: {limit: SAMPLE}});
    known = {state: now, ids: page.then(({items}) => items.map((/** @type {{id: string}} */ one) => one.id))};
    samples.set(name, known);
  }
  known.ids.then(
    ids => {
      for (const [place, id] of ids.entries()) if (places[place]) places[place].src = imageUrl(name, id, 'thumbnail');
    },
    () => {
      samples.delete(name);
      shown.remove();
    },
  );
  return shown;
}

/**
 * @param {import('./api.js').Collection} info
 * @param {import('./api.js').Alias[]} aliases
 * @param {{canWrite: boolean, collections: import('./api.js').Collection[]}} session
 * @param {() => Promise<void>} redraw
 */
function card(info, aliases, session, redraw) {
  const chosen = (/** @type {any} */ input, /** @type {(files: File[]) => any} */ act) => {
    const files = [...input.files];
    input.value = ''; // so that the same files can be chosen again
    if (files.length) act(files);
  };
  const files = make('input', {
    type: 'file',
    multiple: true,
    hidden: true,
    onchange: () => chosen(files, all => addFiles(info, all)),
  });
  const folder = make('input', {
    type: 'file',
    webkitdirectory: true,
    hidden: true,
    onchange: () => chosen(folder, all => addFiles(info, all)),
  });
  const file = make('input', {
    type: 'file',
    accept: IMPORTED,
    hidden: true,
    onchange: () => chosen(file, ([first]) => importFile(info.name, first)),
  });
  const address = `#/explore/${encodeURIComponent(info.name)}`;
  return make(
    'article',
    {class: 'card', 'aria-label': info.name},
    make(
      'h2',
      {},
      make('a', {href: address}, info.name),
      ...aliases.map(one => make('span', {class: 'chip alias'}, one.alias)),
    ),
    make('p', {}, `${count(info.count, 'image')}, encoder ${info.model || 'unknown'}`),
    sample(info),
    info.state === 'ready' ? null : make('p', {role: 'alert'}, info.state),
    session.canWrite
      ? make(
          'div',
          {class: 'tools'},
          files,
          folder,
          file,
          button('upload', 'Add images', () => files.click()),
          button('upload', 'Add a folder', () => folder.click()),
          button('upload', 'Add a zip or table', () => file.click()),
          button('upload', 'Add a folder of the server', () => serverFolder(info)),
          button('facets', 'Manage', () => manage(info, aliases, session.collections, redraw)),
          button('remove', 'Delete', () => drop(info, redraw)),
        )
      : null,
    shown.get(info.name),
    ...(session.canWrite ? cutOff(info.name, one => (one.key ? file : one.folder ? folder : files).click()) : []),
  );
}
