// The screen Explore: facets, grid and map of one collection, with the query above them. The address keeps its state.
import {path, rest} from './api.js';
import {collectionChoice} from './collection_choice.js';
import {button, count, icon, make, openDialog, say} from './dom.js';
import {onDrop} from './drops.js';
import {Explorer} from './explorer.js';
import {FacetList} from './facets.js';
import {nameOf} from './filters.js';
import {itemsOf, newest} from './findings.js';
import {ImageGrid, KEYS} from './grid.js';
import {LabelKeys, Labels} from './labels.js';
import {ItemMap} from './map.js';
import {showProbe} from './probe_panel.js';
import {QueryBar} from './query_bar.js';
import {SelectionBar} from './selection_bar.js';
import {ItemViewer} from './viewer.js';

const PREVIEWS = 'previews'; // small copies of own query images, by their vectors, for reloads

/**
 * Show a collection.
 * @param {HTMLElement} main
 * @param {string} name of the collection
 * @param {URLSearchParams} address
 * @param {{canWrite: boolean, collections: import('./api.js').Collection[], changed: () => Promise<any>}} session
 * @returns {Promise<{leave: () => void, go: (address: URLSearchParams) => void}>}
 */
export async function showExplore(main, name, address, session) {
  const [info, keys] = await Promise.all([rest('GET', path(name)), rest('GET', path(name, 'label-keys'))]);
  document.title = `${name} · nnclr_hub`;
  const explorer = new Explorer(info, keys.field);
  const bar = new QueryBar(explorer),
    facets = new FacetList(explorer);
  const labels = session.canWrite ? new Labels(explorer, keys.labels) : null,
    viewer = new ItemViewer(explorer, bar, labels);
  bar.show = example => viewer.openExample(example);
  const selection = new SelectionBar(explorer, session, labels),
    grid = new ImageGrid(explorer, viewer, labels);
  const map = new ItemMap(explorer, session.canWrite),
    view = new ViewMenu(explorer, grid, labels !== null);
  const filters = button('facets.narrow-only', 'Filters', () => {
    filters.setAttribute('aria-expanded', String(screen.classList.toggle('with-facets')));
  });
  filters.setAttribute('aria-expanded', 'false');
  const mapToggle = button('map', 'Map', () => {
    const open = screen.classList.toggle('with-map');
    if (open && viewer.isOpen) viewer.close(); // it covers the map
    screen.classList.toggle('with-side', open || viewer.isOpen);
    mapToggle.setAttribute('aria-pressed', String(open));
    localStorage.setItem('map', open ? 'open' : 'closed');
  });
  const screen = make('div.explore', [
    make('h1.hidden', name),
    make('div.bar', [
      collectionChoice('explore', name, session),
      bar,
      make('div.arrange', [
        filters,
        mapToggle,
        ...view.element,
        labels ? button('check', 'Probe', () => showProbe(explorer, labels.field)) : null,
      ]),
    ]),
    selection,
    facets,
    make('section.center', {'aria-label': 'Images'}, grid, labels ? new LabelKeys(labels, () => grid.chosen) : ''),
    map,
    viewer,
  ]);
  main.replaceChildren(screen);
  if (localStorage.getItem('map') !== 'closed' && innerWidth > 820) mapToggle.click();

  // ---- the address

  let going = false,
    left = false; // left: the address is that of another page
  const write = () => {
    if (going || left) return;
    const now = addressOf(explorer, viewer);
    if (location.hash === now) return;
    // to another image in the viewer: Back closes it
    const isStep = [now, location.hash].every(one => /[?&]open=/.test(one));
    history[isStep ? 'replaceState' : 'pushState'](null, '', now);
  };
  explorer.addEventListener('query', write);
  explorer.addEventListener('view', write);
  viewer.addEventListener('change', write);
  /** @param {URLSearchParams} to */
  const go = async to => {
    going = true;
    try {
      await read(explorer, to);
      view.fill();
      const id = to.get('open');
      if (id === null) viewer.isOpen && viewer.close();
      else await openItem(explorer, viewer, id);
    } finally {
      going = false;
    }
  };

  // ---- images from anywhere

  const paste = (/** @type {ClipboardEvent} */ event) => {
    if (bar.take(event.clipboardData, false)) event.preventDefault();
  };
  const add = async (/** @type {File[]} */ files) => {
    const {addFiles} = await import('./uploads.js');
    await addFiles(info, files);
    await Promise.all([explorer.load(), session.changed()]);
  };
  const drop = (/** @type {File[]} */ files) => {
    if (viewer.isFull) viewer.close();
    const [file] = files;
    if (session.canWrite && !explorer.count) return add(files); // an empty collection finds nothing
    if (files.length === 1 && !file.webkitRelativePath && !/\.(zip|tar|parquet)$/i.test(file.name))
      return bar.searchFile(file);
    if (!session.canWrite) return say('Drop one image to search with it.', {error: true});
    const start = button('upload.strong', `Add to ${name}`, () => {
      dialog.close();
      add(files);
    });
    const dialog = openDialog(
      `Add ${count(files.length, 'file')}?`,
      make('div.stack', make('p', 'To search, drop one image.'), make('div.tools', start)),
    );
    start.focus();
  };
  const shortcut = (/** @type {KeyboardEvent} */ event) => {
    if (
      event.ctrlKey ||
      event.metaKey ||
      event.altKey ||
      document.querySelector('dialog:modal') ||
      /** @type {Element} */ (event.target).matches('input, select, textarea')
    )
      return;
    if (event.key === '/') bar.file.click();
    else if (event.key === '?')
      openDialog(
        'Keys',
        make(
          'dl.keys',
          KEYS.flatMap(([key, text]) => [make('dt', make('kbd', key)), make('dd', text)]),
        ),
      );
    else return;
    event.preventDefault();
  };
  document.addEventListener('keydown', shortcut);
  onDrop({
    get text() {
      return session.canWrite && !explorer.count
        ? `Drop images to add them to ${name}`
        : `Drop an image to search with it, or several to add them to ${name}`;
    },
    take: drop,
  });
  document.addEventListener('paste', paste);

  explorer.load().then(() => {
    view.fill();
    map.load();
    return go(address);
  });
  if (address.size) go(address);
  return {
    go,
    leave: () => {
      left = true;
      if (viewer.isOpen) viewer.close();
      explorer.close();
      document.removeEventListener('paste', paste);
      document.removeEventListener('keydown', shortcut);
      onDrop(null);
    },
  };
}

/** A menu with the order, the groups and the size of the images. */
class ViewMenu {
  /** @param {Explorer} explorer @param {ImageGrid} grid @param {boolean} canWrite */
  constructor(explorer, grid, canWrite) {
    this.explorer = explorer;
    this.order = make('select', {onchange: () => explorer.sort(this.order.value)});
    this.group = make('select', {onchange: () => explorer.groupBy(this.group.value)});
    const size = make('input', {
      type: 'range',
      min: 60,
      max: 320,
      value: grid.size,
      oninput: () => grid.resize(Number(size.value)),
    });
    /** @param {string} text @param {string} name of what is stored @param {(on: boolean) => void} [act] */
    const option = (text, name, act = () => {}) => {
      const box = make('input', {
        type: 'checkbox',
        checked: localStorage.getItem(name) !== 'no',
        onchange: () => {
          localStorage.setItem(name, box.checked ? 'yes' : 'no');
          act(box.checked);
        },
      });
      act(box.checked);
      return make('label.row', box, text);
    };
    this.element = [
      make('button.button', {type: 'button', 'aria-label': 'View', popovertarget: 'view-menu'}, [
        icon('settings'),
        make('span', 'View'),
      ]),
      make('div.menu.stack', {id: 'view-menu', popover: true}, [
        make('label', 'Order', this.order),
        make('label', 'Group by', this.group),
        make('label', 'Size of the images', size),
        option('Labels on the images', 'tags', on => grid.classList.toggle('no-tags', !on)),
        canWrite ? option('A label key goes to the next image', 'advance') : '',
      ]),
    ];
    this.fill();
  }

  /** Offer the keys that the items have. */
  fill() {
    const {explorer, order, group} = this,
      {rows} = explorer;
    const dated = rows.metadata.some(one => one.mtime !== undefined)
      ? [
          ['-mtime', 'newest file'],
          ['mtime', 'oldest file'],
        ]
      : [];
    const options = (/** @type {string[][]} */ all) => all.map(([value, text]) => make('option', {value}, text));
    order.replaceChildren(
      ...options([
        ['stored', 'default'],
        ['path', 'name'],
        ...dated,
        ...rows.keys.flatMap(key => [
          [key, nameOf(key)],
          [`-${key}`, `${nameOf(key)}, descending`],
        ]),
      ]),
    );
    group.replaceChildren(
      ...options([
        ['', 'no groups'],
        ...rows.keys.filter(key => !rows.column(key).numeric).map(key => [key, nameOf(key)]),
      ]),
    );
    [order.value, group.value] = [explorer.order, explorer.group];
  }
}

/** The address of what is shown. @param {Explorer} explorer @param {import('./viewer.js').ItemViewer} viewer */
function addressOf(explorer, viewer) {
  const address = new URLSearchParams();
  for (const [name, sign] of /** @type {const} */ ([
    ['like', 'positive'],
    ['unlike', 'negative'],
  ])) {
    for (const {id, vector, preview} of explorer.query[sign]) {
      address.append(name, id === undefined ? `:${vector}` : id);
      if (vector && preview) keepPreview(vector, preview);
    }
  }
  if (explorer.filters.size) address.set('filter', JSON.stringify([...explorer.filters]));
  if (explorer.where) address.set('where', JSON.stringify(explorer.where));
  if (explorer.order !== 'stored') address.set('order', explorer.order);
  if (explorer.group) address.set('group', explorer.group);
  if (explorer.finding) address.set('finding', explorer.finding.key);
  if (viewer.row !== null) address.set('open', explorer.rows.ids[viewer.row]);
  const text = address.toString();
  return `#/explore/${encodeURIComponent(explorer.name)}${text ? `?${text}` : ''}`;
}

/** Show what an address says. @param {Explorer} explorer @param {URLSearchParams} address */
async function read(explorer, address) {
  const example = (/** @type {string} */ text) => {
    if (!text.startsWith(':')) return {id: text};
    const vector = text.slice(1);
    return {vector, name: 'your image', preview: previews()[vector]};
  };
  explorer.filters = parsed(address, 'filter', value => new Map(value ?? []));
  explorer.order = address.get('order') ?? 'stored';
  explorer.group = address.get('group') ?? '';
  const key = address.get('finding');
  const finding = key === null ? null : await findingOf(explorer, key);
  if (finding || explorer.finding) [explorer.area, explorer.finding] = [finding?.rows ?? null, finding];
  const where = parsed(address, 'where', value => value);
  const query = {positive: address.getAll('like').map(example), negative: address.getAll('unlike').map(example)};
  if (JSON.stringify(where) !== JSON.stringify(explorer.where)) await explorer.filterBy(where);
  await explorer.search(query);
}

/**
 * What an address says as JSON; a damaged link is reported.
 * @template T
 * @param {URLSearchParams} address
 * @param {string} name
 * @param {(value: any) => T} as
 * @returns {T}
 */
function parsed(address, name, as) {
  try {
    return as(JSON.parse(address.get(name) ?? 'null'));
  } catch {
    say(`The ${name} of this link cannot be read, so it is left out.`, {error: true});
    return as(null);
  }
}

/**
 * The rows of a finding of the newest inspection; null if it has none of that name, which is reported.
 * @param {Explorer} explorer
 * @param {string} key
 */
async function findingOf(explorer, key) {
  const inspection = await newest(explorer.name);
  const found = inspection && (await itemsOf(explorer.name, inspection, key));
  if (!found) {
    say('The inspection has no such finding, so the link shows all images.', {error: true});
    return null;
  }
  return {key, title: found.title, rows: new Set(found.ids.flatMap(id => explorer.rows.rowOf.get(id) ?? []))};
}

/** @param {Explorer} explorer @param {import('./viewer.js').ItemViewer} viewer @param {string} id */
async function openItem(explorer, viewer, id) {
  let row = explorer.rows.rowOf.get(id);
  if (row === undefined) row = explorer.rows.add(id, (await rest('GET', path(explorer.name, 'items', id))).metadata);
  viewer.open(row);
}

/** @returns {Record<string, string>} */
function previews() {
  return JSON.parse(sessionStorage.getItem(PREVIEWS) ?? '{}');
}

/** @param {string} vector @param {string} preview */
function keepPreview(vector, preview) {
  const kept = Object.entries(previews()).slice(-20);
  sessionStorage.setItem(PREVIEWS, JSON.stringify({...Object.fromEntries(kept), [vector]: preview}));
}
