// The pages of the app, chosen by the address: #/explore/NAME, #/insights/NAME, #/collections, #/training, #/api.
import {ROOT, rest} from './api.js';
import {iconButton, make, sayError, textButton} from './dom.js';
import './drops.js';
import {announce, edits, redo, undo, undoable} from './edits.js';

const TABS = {explore: 'Explore', insights: 'Insights', collections: 'Collections', training: 'Training', api: 'API'};
const LISTED = 10; // changes that can be undone
const OF_COLLECTIONS = ['explore', 'insights'];
const main = /** @type {HTMLElement} */ (document.getElementById('main'));

const session = {
  canWrite: false,
  /** Whether the server needs a key. */
  keyed: false,
  /** Bytes of original files: of the quota, and used. */
  originals: {most: 0, used: 0},
  /** @type {import('./api.js').Collection[]} */
  collections: [],
  /** Ask the server again. @returns {Promise<import('./api.js').Schemas['SessionResponse']>} */
  async changed() {
    const [own, {collections}] = await Promise.all([rest('GET', 'session'), rest('GET', 'collections')]);
    this.collections = collections;
    this.originals = {most: own.originals_bytes, used: own.originals_used};
    return own;
  },
};
/** @type {{page: string, name: string, go: (address: URLSearchParams) => void, leave: () => void} | null} */
let shown = null;
/** Counts the pages that were opened, so that one that opens slowly does not replace a later one. */
let turn = 0;
/** The address of the page that is being opened; one click may cause two events. */
let opening = '';

async function route() {
  const [, page = '', name = ''] = location.hash.split('?')[0].split('/').map(decodeURIComponent);
  const address = new URLSearchParams(location.hash.split('?')[1] ?? '');
  if (!(page in TABS)) return location.replace(home('explore'));
  if (OF_COLLECTIONS.includes(page) && !name) return location.replace(home(page));
  if (shown?.page === page && shown.name === name) return shown.go(address);
  if (opening === location.hash) return;
  opening = location.hash;
  shown?.leave();
  shown = null;
  const own = ++turn,
    place = make('div.place');
  main.replaceChildren(place);
  drawTabs(page);
  try {
    const opened = await open(place, page, name, address);
    if (own !== turn) return opened.leave();
    shown = {page, name, ...opened};
  } catch (error) {
    if (own !== turn) return;
    const text = error instanceof Error ? error.message : String(error);
    const others = OF_COLLECTIONS.includes(page) ? make('a', {href: '#/collections'}, 'Show the collections') : '';
    place.replaceChildren(make('p.empty', {role: 'alert'}, text, ' ', others));
  } finally {
    if (own === turn) opening = '';
  }
}

/** @param {HTMLElement} main @param {string} page @param {string} name @param {URLSearchParams} address */
async function open(main, page, name, address) {
  if (page === 'explore') return (await import('./explore.js')).showExplore(main, name, address, session);
  if (page === 'insights') return (await import('./insights.js')).showInsights(main, name, session);
  if (page === 'collections') return (await import('./collections.js')).showCollections(main, session);
  const pages = await import('./pages.js');
  return page === 'training' ? pages.showTraining(main) : pages.showCalls(main, session);
}

/** The collection that was shown last, else the largest; without any, the page that makes one. @param {string} page */
function home(page) {
  const last = localStorage.getItem('collection');
  const sorted = [...session.collections].sort((a, b) => b.count - a.count);
  const best = sorted.find(one => one.name === last) ?? sorted[0];
  return best ? `#/${page}/${encodeURIComponent(best.name)}` : '#/collections';
}

/** @param {string} page */
function drawTabs(page) {
  const name = location.hash.split('?')[0].split('/')[2];
  if (OF_COLLECTIONS.includes(page) && name) localStorage.setItem('collection', decodeURIComponent(name));
  document
    .getElementById('tabs')
    ?.replaceChildren(
      ...Object.entries(TABS).map(([key, text]) =>
        make(
          'a',
          {href: OF_COLLECTIONS.includes(key) ? home(key) : `#/${key}`, 'aria-current': key === page ? 'page' : null},
          [text],
        ),
      ),
    );
}

async function start() {
  const own = await session.changed();
  [session.canWrite, session.keyed] = [own.can_write, own.key !== null];
  const leave = async () => {
    await fetch(new URL('logout', ROOT), {method: 'POST', redirect: 'manual'});
    location.reload();
  };
  document
    .getElementById('state')
    ?.append(
      own.read_only ? 'read-only' : '',
      own.key ? ` ${own.key}` : '',
      own.key ? textButton('Log out', leave) : '',
    );
  addEventListener('hashchange', route);
  addEventListener('popstate', () => {
    if (shown?.page === 'explore') route();
  });
  await route();
}

// ---- undo

const undoButton = iconButton('undo', 'Undo', () => undo());
const changes = make('div.menu.stack', {id: 'changes', popover: true}),
  changesButton = iconButton('clock', 'Last changes', () => {});
changesButton.setAttribute('popovertarget', changes.id);
const drawUndo = () => {
  const last = undoable().slice(0, LISTED);
  undoButton.hidden = changesButton.hidden = !last.length;
  undoButton.title = `Undo ${last[0]?.text} (Ctrl+Z)`;
  changes.replaceChildren(
    make('p.note', 'Undo one change:'),
    ...last.map(edit =>
      textButton(`${edit.collection}: ${edit.text}`, () => {
        changes.hidePopover();
        undo(edit);
      }),
    ),
  );
};
edits.addEventListener('history', drawUndo);
for (const event of ['items', 'deleted'])
  edits.addEventListener(event, () => session.changed().then(() => announce('counts')));
document.getElementById('state')?.before(undoButton, changesButton, changes);
drawUndo();
addEventListener('keydown', event => {
  const typing = /** @type {Element} */ (event.target).closest(
    'textarea, input:not([type=range], [type=checkbox], [type=file], [type=radio])',
  );
  if (event.key.toLowerCase() !== 'z' || !(event.ctrlKey || event.metaKey) || event.altKey || typing) return;
  event.preventDefault();
  if (event.shiftKey) redo();
  else undo();
});

document.querySelector('.skip')?.addEventListener('click', event => {
  event.preventDefault();
  /** @type {HTMLElement} */ (document.querySelector('.sheet') ?? main).focus();
});
addEventListener('unhandledrejection', event => {
  // of an action that handles no error itself
  event.preventDefault();
  sayError(event.reason);
});
start();
