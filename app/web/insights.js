// The page Insights: what the newest inspection of a collection found. Each finding opens its images in Explore.
import {imageUrl, lookup, path, rest} from './api.js';
import {collectionChoice} from './collection_choice.js';
import {deleteItems} from './deletion.js';
import {button, count, make, sayError} from './dom.js';
import {edits, follow, write} from './edits.js';
import {encoderCard} from './encoders.js';
import {changesSince, duplicates, inspect, newest, predictions, running} from './findings.js';
import {jobBar} from './jobs.js';
import {typed} from './labels.js';
import {changed, flat} from './rows.js';

const SHOWN = 24; // images or groups of a finding; Explore shows all
const CLASSES = 14; // rows and columns of the matrix

/** @typedef {import('./findings.js').Inspection} Inspection */
/** @typedef {{labels: Int32Array, predicted: Int32Array}} Predictions */
/**
 * @typedef {{name: string, inspection: Inspection, items: Map<string, any>, predictions: Predictions,
 *   canWrite: boolean, redraw: () => void}} Shown
 */

/**
 * @param {HTMLElement} main @param {string} name of the collection
 * @param {{canWrite: boolean, collections: import('./api.js').Collection[]}} session
 */
export async function showInsights(main, name, session) {
  document.title = `Insights · ${name} · nnclr_hub`;
  const body = make('div.insights'),
    run = make('div.tools');
  const closing = new AbortController();
  /** @type {Shown | null} */
  let shown = null;
  for (const event of ['metadata', 'items', 'deleted']) {
    edits.addEventListener(
      event,
      written => {
        const {collection, values, items, ids} = /** @type {CustomEvent} */ (written).detail;
        if (collection !== name || !shown) return;
        for (const [id, own] of values ?? [])
          if (shown.items.has(id)) shown.items.set(id, changed(shown.items.get(id), own));
        for (const [id, metadata] of items ?? []) if (shown.items.has(id)) shown.items.set(id, flat(metadata));
        for (const id of ids ?? []) shown.items.delete(id);
        shown.redraw();
      },
      {signal: closing.signal},
    );
  }
  // after what is above it, so that it does not move
  const encoders = make('div.insights', {hidden: true}, encoderCard(name, session.canWrite));
  main.replaceChildren(
    make('div.page', [
      make('header', make('h1', 'Insights'), make('div.tools', collectionChoice('insights', name, session))),
      run,
      body,
      encoders,
    ]),
  );
  const load = async () => {
    const inspection = await newest(name);
    run.replaceChildren(
      ...(await runner(name, inspection, session.canWrite, load, session.canWrite ? await running(name) : undefined)),
    );
    if (!inspection)
      return body.replaceChildren(
        make(
          'p.empty',
          'Nothing was inspected yet. An inspection finds duplicates, odd images, wrong labels and more.',
        ),
      );
    const [items, predicted] = await Promise.all([metadataOf(name, inspection), predictions(name, inspection)]);
    /** @type {Shown} */
    const now = (shown = {
      name,
      inspection,
      items,
      predictions: predicted,
      canWrite: session.canWrite,
      redraw: () => redraw(body, now),
    });
    now.redraw();
  };
  follow(name, (await rest('GET', path(name))).durable_seq, closing.signal, load);
  await load().finally(() => {
    encoders.hidden = false;
  });
  return {go: () => {}, leave: () => closing.abort()};
}

/**
 * The state of the inspection, and the button for another.
 * @param {string} name
 * @param {Inspection | null} inspection
 * @param {boolean} canWrite
 * @param {() => Promise<void>} reload
 * @param {string} [job] that runs already
 */
async function runner(name, inspection, canWrite, reload, job) {
  const bar = jobBar('Inspecting');
  const go = async () => {
    start.disabled = true;
    try {
      await inspect(name, bar);
      if (bar.element.isConnected) await reload(); // else another page is shown
    } catch (error) {
      sayError(error);
      start.disabled = false;
    }
  };
  const start = button(
    inspection?.current ? 'similar' : 'similar.strong',
    inspection ? 'Inspect again' : 'Inspect',
    go,
  );
  if (job) go();
  const when =
    inspection && new Date(1000 * inspection.made).toLocaleString('en', {dateStyle: 'medium', timeStyle: 'short'});
  const state = inspection
    ? `${count(inspection.items, 'image')} inspected on ${when}. ` + (await changesSince(name, inspection))
    : '';
  return [make('p.note', {role: 'status'}, state), canWrite ? start : '', bar.element];
}

/**
 * The metadata of the items that the page shows and that still exist.
 * @param {string} name
 * @param {Inspection} inspection
 */
async function metadataOf(name, {findings}) {
  const flagged = (/** @type {any[]} */ list) =>
    list
      .filter(one => one.flagged)
      .slice(0, 20 * SHOWN)
      .map(one => one.item);
  const ids = [
    ...new Set([
      ...flagged(findings.outliers),
      ...flagged(findings.suspect_labels),
      ...[...duplicates(findings), ...findings.leaks].flatMap(one => one.items),
      ...findings.clusters.map((/** @type {any} */ one) => one.medoid),
      ...[...findings.label_next, ...findings.image_problems].map(one => one.item),
    ]),
  ];
  return new Map([...(await lookup(name, ids))].map(([id, metadata]) => [id, flat(metadata)]));
}

/** Draw again; the focus stays at its place among the suspect labels. @param {HTMLElement} body @param {Shown} shown */
function redraw(body, shown) {
  const place = [...body.querySelectorAll('.review li')].findIndex(row => row.contains(document.activeElement));
  body.replaceChildren(...sections(shown));
  const left = body.querySelectorAll('.review li');
  if (place >= 0 && left.length)
    /** @type {HTMLElement} */ (left[Math.min(place, left.length - 1)].querySelector('a')).focus();
}

/** @param {Shown} shown */
function sections(shown) {
  const {
    inspection: {findings},
    items,
  } = shown;
  const existing = (/** @type {any[]} */ list) => list.filter(one => items.has(one.item));
  const outliers = existing(findings.outliers.filter((/** @type {any} */ one) => one.flagged));
  const cut = shown.inspection.truncated;
  const parts = [facts(shown, outliers.length), cut ? make('p.note', cut) : ''];
  parts.push(copies(shown), leaks(shown), suspects(shown));
  parts.push(
    card(
      'Outliers',
      'Images unlike their nearest neighbors: foreign, broken, or rare and valuable.',
      {hidden: !outliers.length, open: link(shown, 'outliers', outliers.length)},
      sheet(
        shown,
        outliers.map(one => [one.item, one.score.toFixed(3)]),
        'outliers',
      ),
    ),
  );
  parts.push(problems(shown, existing(findings.image_problems)));
  const next = existing(findings.label_next);
  parts.push(
    card(
      'Label next',
      'Images that represent those without a label: few labels cover the collection.',
      {hidden: !next.length, open: link(shown, 'next', next.length)},
      sheet(
        shown,
        next.map(one => [one.item, `${one.rank}`]),
        'next',
      ),
    ),
  );
  parts.push(
    card(
      'Class overlap',
      'Labels that a probe takes for each other, on images that it has not seen. A cell opens its images.',
      {hidden: !findings.class_overlap.length || !findings.classes},
      matrix(shown),
    ),
  );
  const clusters = findings.clusters.map((/** @type {any} */ one) => ({item: one.medoid, ...one}));
  parts.push(
    card(
      'Clusters',
      'The most central image of each group of similar images.',
      {},
      sheet(
        shown,
        existing(clusters).map(one => [one.item, `${(100 * one.share).toFixed(0)}%`, `cluster/${one.cluster}`]),
        '',
      ),
    ),
  );
  const left = Object.entries(findings.left_out);
  parts.push(
    card('Left out', left.map(([suffix, number]) => `${number} ${suffix}`).join(', '), {hidden: !left.length}),
  );
  return parts;
}

/**
 * @param {string} title
 * @param {string} note
 * @param {{hidden?: boolean, open?: Node}} options
 * @param {...any} content
 */
function card(title, note, {hidden, open}, ...content) {
  return make('section.card', {'aria-label': title, hidden}, [
    make('div.head', make('h2', title), open),
    make('p', note),
    ...content,
  ]);
}

/** @param {Shown} shown @param {string} finding @param {string} [id] */
const addressOf = ({name}, finding, id) =>
  `#/explore/${encodeURIComponent(name)}?` +
  new URLSearchParams({...(finding ? {finding} : {}), ...(id ? {open: id} : {})});

/** @param {Shown} shown @param {string} finding @param {number} number */
const link = (shown, finding, number) =>
  make('a.button', {href: addressOf(shown, finding)}, `Open ${count(number, 'image')}`);

/** @param {Shown} shown @param {string} id */
const titleOf = ({items}, id) => String(items.get(id)?.path ?? items.get(id)?.name ?? id);

/**
 * An image that opens in the viewer, or its finding.
 * @param {Shown} shown
 * @param {string} id
 * @param {string} caption
 * @param {string} finding
 * @param {string} [opens] a finding to open instead of the image
 */
function figure(shown, id, caption, finding, opens) {
  const title = titleOf(shown, id);
  return make('figure', {title}, [
    make(
      'a',
      {href: opens ? addressOf(shown, opens) : addressOf(shown, finding, id), 'aria-label': `${title}, ${caption}`},
      [make('img', {src: imageUrl(shown.name, id, 'thumbnail'), alt: '', loading: 'lazy'})],
    ),
    make('figcaption', caption),
  ]);
}

/**
 * @param {Shown} shown
 * @param {[string, string, string?][]} images ids with captions, and what a click opens
 * @param {string} finding
 */
const sheet = (shown, images, finding) =>
  make(
    'div.images',
    images.slice(0, SHOWN).map(([id, caption, opens]) => figure(shown, id, caption, finding, opens)),
  );

/** @param {Shown} shown @param {number} outliers */
function facts(shown, outliers) {
  const {
    inspection: {findings},
    items,
  } = shown;
  const flagged = findings.suspect_labels.filter((/** @type {any} */ one) => one.flagged && items.has(one.item)).length;
  const {accuracy} = findings,
    percent = (/** @type {number} */ share) => (100 * share).toFixed(0),
    problems = findings.image_problems.filter((/** @type {any} */ one) => items.has(one.item)).length;
  /** @type {[number, string, string?][]} */
  const numbers = [
    [present(shown, duplicates(findings)).length, 'group of copies', 'groups of copies'],
    [present(shown, findings.leaks).length, 'leak'],
    [flagged, 'suspect label'],
    [outliers, 'outlier'],
    [problems, 'image problem'],
    [findings.clusters.length, 'cluster'],
  ];
  const texts = numbers.map(one => count(...one));
  if (accuracy)
    texts.push(
      `${percent(accuracy.low)}–${percent(accuracy.high)}% accuracy of a linear probe, ` +
        `on ${count(accuracy.labels, 'held-out image')}`,
    );
  return make(
    'dl.facts',
    texts.map(text => {
      const [value, ...words] = text.split(' ');
      return make('div', make('dt', words.join(' ')), make('dd', value));
    }),
  );
}

// ---- duplicates and leaks

/** The copy to keep: the largest file, of equal ones the first. @param {Shown} shown @param {string[]} ids */
function bestOf({items}, ids) {
  return ids.reduce((best, id) => ((items.get(id).size ?? 0) > (items.get(best).size ?? 0) ? id : best));
}

/** @param {Shown} shown */
function copies(shown) {
  const groups = present(shown, duplicates(shown.inspection.findings));
  const surplus = [...new Set(groups.flatMap(one => one.items.filter(id => id !== bestOf(shown, one.items))))];
  const remove = (/** @type {string[]} */ ids) => deleteItems(shown.name, ids);
  const rows = groups.slice(0, SHOWN).map(({place, score, exact, items}) => {
    const best = bestOf(shown, items),
      others = items.filter(id => id !== best);
    return make('li', [
      make(
        'div.images',
        items.map(id => figure(shown, id, id === best ? 'best' : '', `duplicates/${place}`)),
      ),
      make('div.tools', [
        make('span.note', exact ? 'equal pixels' : `score ${score.toFixed(3)}`),
        shown.canWrite ? button('remove', `Keep the best, delete ${others.length}`, () => remove(others)) : '',
      ]),
    ]);
  });
  return card(
    'Duplicates',
    'Copies of one image: equal, resized, cropped, mirrored or compressed. The largest file is the best.',
    {hidden: !groups.length, open: link(shown, 'duplicates', new Set(groups.flatMap(one => one.items)).size)},
    make('ul.groups', rows),
    shown.canWrite
      ? make('div.tools', [
          button(
            'remove.danger',
            `Keep the best of ${count(groups.length, 'group')}, delete ${count(surplus.length, 'image')}`,
            () => remove(surplus),
          ),
        ])
      : '',
  );
}

/**
 * Groups of at least two images that still exist, with their place in the finding.
 * @param {Shown} shown
 * @param {any[]} groups
 * @returns {{place: number, score: number, exact: boolean, items: string[], parts: string[]}[]}
 */
function present({items}, groups) {
  return groups
    .map((one, place) => {
      const kept = one.items.map((/** @type {string} */ id) => items.has(id));
      const still = (/** @type {any[] | undefined} */ list) => list?.filter((_, i) => kept[i]);
      return {...one, place, items: still(one.items), parts: still(one.parts)};
    })
    .filter(one => one.items.length > 1);
}

/** @param {Shown} shown */
function leaks(shown) {
  const all = present(shown, shown.inspection.findings.leaks);
  const rows = all.slice(0, SHOWN).map(({place, items, parts}) =>
    make('li', [
      make(
        'div.images',
        items.map((/** @type {string} */ id, /** @type {number} */ i) => figure(shown, id, parts[i], `leaks/${place}`)),
      ),
    ]),
  );
  return card(
    'Leaks',
    'The same image in different splits: scores on the test images are not held out.',
    {hidden: !all.length, open: link(shown, 'leaks', new Set(all.flatMap(one => one.items)).size)},
    make('ul.groups', rows),
  );
}

/** @param {Shown} shown @param {any[]} found */
function problems(shown, found) {
  const kinds = [...new Set(found.flatMap(one => one.problems))];
  const rows = kinds.map(kind => {
    const own = found.filter(one => one.problems.includes(kind));
    return make('li', [
      make('div.head', [
        make('h3', `${kind.replace('_', ' ')}: ${own.length}`),
        link(shown, `problems/${kind}`, own.length),
      ]),
      sheet(
        shown,
        own
          .slice(0, SHOWN / 2)
          .map(one => [
            one.item,
            kind === 'blurred'
              ? one.sharpness.toFixed(0)
              : kind === 'odd_aspect'
                ? `${one.width} × ${one.height}`
                : one.brightness.toFixed(0),
          ]),
        `problems/${kind}`,
      ),
    ]);
  });
  return card(
    'Image problems',
    'Blurred, dark, bright, empty, tiny or very long images.',
    {hidden: !found.length},
    make('ul.stack', rows),
  );
}

// ---- labels

/** @param {Shown} shown */
function suspects(shown) {
  const {
      inspection: {findings},
      items,
      canWrite,
    } = shown,
    field = findings.field ?? 'label';
  const open = findings.suspect_labels.filter(
    (/** @type {any} */ one) =>
      one.flagged &&
      items.has(one.item) &&
      String(items.get(one.item)[field]) === one.label &&
      items.get(one.item)['inspection.reviewed'] !== one.label,
  );
  const list = make(
    'ul.images.review',
    {
      onkeydown: event => {
        const row = /** @type {HTMLElement} */ (event.target).closest('li');
        const act =
          row &&
          /** @type {Record<string, HTMLElement | null>} */ ({
            a: row.querySelector('.accept'),
            r: row.querySelector('.reject'),
          })[event.key];
        const to =
          row &&
          /** @type {Record<string, Element | null>} */ ({
            ArrowRight: row.nextElementSibling,
            ArrowLeft: row.previousElementSibling,
          })[event.key];
        if (act) event.repeat || act.click();
        else if (to) /** @type {HTMLElement} */ (to.querySelector('a')).focus();
        else return;
        event.preventDefault();
      },
    },
    open.slice(0, SHOWN).map((/** @type {any} */ one) => {
      // the second click of a double click is meant for no image: it comes to the next one
      const decide = (/** @type {boolean} */ accepted) => (/** @type {MouseEvent} */ event) => {
        if (event.detail < 2) review(shown, field, one, accepted);
      };
      const {firstChild: image, lastChild: caption} = figure(
        shown,
        one.item,
        `${one.label} → ${one.proposed}`,
        'suspects',
      );
      return make('li', {'data-id': one.item, title: titleOf(shown, one.item)}, [
        image,
        caption,
        canWrite
          ? make('div.tools', [
              make(
                'button.button.accept',
                {'aria-label': `Accept ${one.proposed} instead of ${one.label}`, onclick: decide(true)},
                'Accept',
              ),
              make(
                'button.button.reject',
                {'aria-label': `Reject ${one.proposed}, keep ${one.label}`, onclick: decide(false)},
                'Reject',
              ),
            ])
          : '',
      ]);
    }),
  );
  const keys = canWrite
    ? make('p.note', [
        'Keys: ',
        make('kbd', 'A'),
        ' accepts the proposed label, ',
        make('kbd', 'R'),
        ' rejects it, arrows move.',
      ])
    : '';
  return card(
    'Suspect labels',
    'Labels that are more probably wrong than right: given label → proposed label.',
    {hidden: !open.length, open: link(shown, 'suspects', open.length)},
    list,
    keys,
  );
}

/**
 * Write a decision on a suspect label, with undo.
 * @param {Shown} shown
 * @param {string} field
 * @param {any} suspect
 * @param {boolean} accepted
 */
function review({name, items}, field, {item, label, proposed}, accepted) {
  const values = accepted
    ? {[field]: typed(proposed, [items.get(item)[field]]), 'inspection.reviewed': proposed}
    : {'inspection.reviewed': label};
  const text = accepted ? `${field} is ${proposed} now` : `${field} stays ${label}`;
  write(name, text, new Map([[item, values]]), id => items.get(id));
}

/** The classes with the most mistakes: rows are labels, columns predictions. @param {Shown} shown */
function matrix(shown) {
  const {
    inspection: {findings},
    predictions: {labels, predicted},
  } = shown;
  /** @type {string[]} */
  const classes = findings.classes;
  /** @type {number[][]} */
  const counts = classes.map(() => new Array(classes.length).fill(0));
  labels.forEach((label, i) => {
    if (label >= 0 && predicted[i] >= 0) counts[label][predicted[i]]++;
  });
  const mistaken = findings.class_overlap
    .flatMap((/** @type {any} */ one) => one.classes)
    .map((/** @type {string} */ one) => classes.indexOf(one))
    .filter((/** @type {number} */ one) => one >= 0);
  /** @type {number[]} */
  const chosen = [...new Set(mistaken)].slice(0, CLASSES).sort((a, b) => a - b);
  const rows = chosen.map(given => {
    const total = counts[given].reduce((sum, one) => sum + one, 0);
    return make('tr', [
      make('th', {scope: 'row'}, classes[given]),
      ...chosen.map(taken => {
        const number = counts[given][taken];
        const cell = make('td', {class: given === taken ? 'own' : ''}, [
          number
            ? make(
                'a',
                {
                  href: addressOf(shown, `overlap/${given}/${taken}`),
                  'aria-label': `${count(number, 'image')} of ${classes[given]}, predicted as ${classes[taken]}`,
                },
                [String(number)],
              )
            : '',
        ]);
        cell.style.setProperty('--share', String(total ? number / total : 0));
        return cell;
      }),
    ]);
  });
  const hidden = classes.length - chosen.length;
  return make('div.matrix', {tabindex: 0, role: 'region', 'aria-label': 'Labels and predictions'}, [
    make('table', [
      make('caption', [
        'Rows: the label. Columns: the prediction.' +
          (hidden ? ` ${count(hidden, 'class', 'classes')} with fewer mistakes are left out.` : ''),
      ]),
      make('thead', [
        make(
          'tr',
          make('td'),
          chosen.map(one => make('th', {scope: 'col'}, make('span', classes[one]))),
        ),
      ]),
      make('tbody', rows),
    ]),
  ]);
}
