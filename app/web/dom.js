// Elements, icons and messages.

/**
 * What an element gets; `on...` adds a listener, and null and false are left out.
 * @typedef {{[name: string]: any, onclick?: (event: MouseEvent) => any, onkeydown?: (event: KeyboardEvent) => any,
 *   onpointerover?: (event: PointerEvent) => any, onpointerdown?: (event: PointerEvent) => any,
 *   onpointermove?: (event: PointerEvent) => any, onpointerup?: (event: PointerEvent) => any,
 *   onpointercancel?: (event: PointerEvent) => any,
 *   onwheel?: (event: WheelEvent) => any, onfocusout?: (event: FocusEvent) => any,
 *   onsubmit?: (event: SubmitEvent) => any, oncontextmenu?: (event: MouseEvent) => any,
 *   ondblclick?: (event: MouseEvent) => any, ondrop?: (event: DragEvent) => any,
 *   ondragover?: (event: DragEvent) => any}} Attributes
 */
/** @typedef {Node | string | null | undefined | false} Child */

/**
 * Create an element. Text is never parsed as HTML. A button with an action does not submit its form.
 * @param {string} name a tag, and classes: 'div.tools'
 * @param {Attributes | Child | Child[]} [attributes] may be left out
 * @param {...(Child | Child[])} children
 * @returns {any}
 */
export function make(name, attributes, ...children) {
  const [tag, ...classes] = name.split('.'),
    made = document.createElement(tag);
  if (attributes?.constructor !== Object) children.unshift(/** @type {Child} */ (attributes));
  else {
    if (tag === 'button' && 'onclick' in Object(attributes)) made.setAttribute('type', 'button');
    for (const [name, value] of Object.entries(attributes)) {
      if (value === false || value === null || value === undefined) continue;
      if (name.startsWith('on')) made.addEventListener(name.slice(2), value);
      else made.setAttribute(name, value === true ? '' : String(value));
    }
  }
  if (classes.length) made.classList.add(...classes);
  for (const child of children.flat()) if (child !== null && child !== undefined && child !== false) made.append(child);
  return made;
}

const FOCUSABLE = 'a, button, input, select, textarea, summary, [tabindex]';

/**
 * Make the children of an element those of a list. The focus stays on its item; where that was removed, on the next
 * one.
 * @template T
 * @param {Element} list @param {T[]} items @param {(item: T) => any} keyOf different for each item
 * @param {(item: T, before: any) => any} draw returns an element for an item: a new one, or the one of its key before
 */
export function keyed(list, items, keyOf, draw) {
  const before = /** @type {any[]} */ ([...list.children]),
    own = new Map(before.map(child => [child.dataset.key, child]));
  const inside = (/** @type {Element} */ child) => [child, ...child.querySelectorAll(FOCUSABLE)];
  const place = before.findIndex(child => child.contains(document.activeElement));
  const focused = place < 0 ? -1 : inside(before[place]).indexOf(/** @type {Element} */ (document.activeElement));
  const after = items.map(item => {
    const key = String(keyOf(item)),
      drawn = draw(item, own.get(key) ?? null);
    drawn.dataset.key = key;
    return drawn;
  });
  if (after.length === before.length && after.every((child, i) => child === before[i])) return;
  // what stays is not taken out: a click whose press is on it would be lost
  const kept = new Set(after);
  for (const child of before) if (!kept.has(child)) child.remove();
  after.forEach((child, i) => {
    if (list.children[i] !== child) list.insertBefore(child, list.children[i] ?? null);
  });
  if (focused < 0) return;
  const next =
    after.find(child => child.dataset.key === before[place].dataset.key) ?? after[Math.min(place, after.length - 1)];
  if (next) /** @type {any} */ (inside(next)[focused] ?? next).focus();
}

const SHOWN = 0.999; // the highest percentile that differs reliably from others
export const CHANCE = 0.95; // a match below this share of random pairs is not similar
/** @type {[number, string][]} */
const STEPS = [
  [SHOWN, 'very similar'],
  [0.99, 'similar'],
  [CHANCE, 'a little similar'],
];
const PATHS = {
  add: 'M12 5v14M5 12h14',
  back: 'M15 5l-7 7 7 7',
  camera: 'M4 8h4l2-3h4l2 3h4v11H4zM12 10a3.5 3.5 0 1 0 0 7 3.5 3.5 0 0 0 0-7',
  check: 'M5 13l4 4L19 7',
  close: 'M6 6l12 12M18 6L6 18',
  clock: 'M12 3a9 9 0 1 0 0 18 9 9 0 0 0 0-18M12 7v5l3 2',
  crop: 'M6 2v16h16M2 6h16v16',
  download: 'M12 4v11M7 11l5 5 5-5M5 20h14',
  eye: 'M2 12c5-8 15-8 20 0-5 8-15 8-20 0M12 9a3 3 0 1 0 0 6 3 3 0 0 0 0-6',
  facets: 'M4 6h16M7 12h10M10 18h4',
  forward: 'M9 5l7 7-7 7',
  lasso: 'M8 17c-6-3-5-11 4-12s12 6 7 10-9 3-9 1 3-2 3 1-2 4-5 3',
  less: 'M5 12h14',
  link: 'M10 14a4 4 0 0 0 6 0l3-3a4 4 0 0 0-6-6l-1 1M14 10a4 4 0 0 0-6 0l-3 3a4 4 0 0 0 6 6l1-1',
  map: 'M7 8a1 1 0 1 0 0-.1M16 6a1 1 0 1 0 0-.1M12 14a1 1 0 1 0 0-.1M18 17a1 1 0 1 0 0-.1M6 18a1 1 0 1 0 0-.1',
  remove: 'M5 7h14M10 7V4h4v3M7 7l1 13h8l1-13',
  settings: 'M4 7h9M19 7h1M4 17h1M11 17h9M13 4v6M19 4v6M13 4h6M13 10h6M5 14v6M11 14v6M5 14h6M5 20h6',
  similar: 'M10 4a6 6 0 1 0 0 12 6 6 0 0 0 0-12M15 15l5 5',
  table: 'M4 5h16v14H4zM4 10h16M4 14.5h16M10 5v14',
  tag: 'M4 4h8l8 8-8 8-8-8zM8 8h.1',
  undo: 'M8 5l-4 4 4 4M4 9h10a5 5 0 0 1 0 10h-4',
  upload: 'M12 16V5M7 9l5-5 5 5M5 20h14',
  view: 'M4 9V4h5M20 9V4h-5M4 15v5h5M20 15v5h-5',
};

/**
 * Create an icon of 24 x 24 units.
 * @param {keyof typeof PATHS} name
 */
export function icon(name) {
  const svg = document.createElementNS('http://www.w3.org/2000/svg', 'svg');
  const path = document.createElementNS(svg.namespaceURI, 'path');
  svg.setAttribute('viewBox', '0 0 24 24');
  svg.setAttribute('class', 'icon');
  svg.setAttribute('aria-hidden', 'true');
  path.setAttribute('d', PATHS[name]);
  svg.append(path);
  return svg;
}

/** @typedef {keyof typeof PATHS | `${keyof typeof PATHS}.${string}`} Icon an icon, and classes of its button */

/**
 * Create a button with an icon and a text.
 * @param {Icon} name @param {string} text @param {(event: MouseEvent) => void} onclick
 */
export function button(name, text, onclick) {
  const [shown, ...classes] = name.split('.');
  // the text may be hidden on a narrow screen
  return make(['button.button', ...classes].join('.'), {onclick, 'aria-label': text}, [
    icon(/** @type {keyof typeof PATHS} */ (shown)),
    make('span', text),
  ]);
}

/**
 * Create a button with an icon, whose text is a tooltip.
 * @param {Icon} name @param {string} text @param {(event: MouseEvent) => void} onclick
 */
export function iconButton(name, text, onclick) {
  const made = button(name, text, onclick);
  made.lastChild.remove();
  made.classList.add('quiet');
  made.title = text;
  return made;
}

/**
 * Create a button without an icon, by default one that looks like a link.
 * @param {string} text @param {(event: MouseEvent) => void} onclick @param {string} [classes]
 */
export function textButton(text, onclick, classes = 'plain') {
  return make(`button.${classes}`, {onclick}, text);
}

/** Create a bar that is hidden until something begins. @param {string} label @param {number} max */
export function progressBar(label, max) {
  return make('progress', {max, value: 0, hidden: true, 'aria-label': label});
}

const messages = /** @type {HTMLElement} */ (document.getElementById('messages'));
document.addEventListener('close', () => document.body.append(messages), true); // before the dialog is removed

/**
 * Show a message for some seconds, with an action if there is one.
 * @param {string} text
 * @param {{action?: string, run?: () => void, seconds?: number, error?: boolean}} [options]
 * @returns {() => void} removes the message
 */
export function say(text, {action, run, seconds = 6, error = false} = {}) {
  const message = make('p', {class: error ? 'message error' : 'message', role: error ? 'alert' : null}, text);
  const remove = () => message.remove();
  // a repeated one is shown once
  for (const one of messages.children) if (one.firstChild?.textContent === text) one.remove();
  if (action && run)
    message.append(
      textButton(action, () => {
        remove();
        run();
      }),
    );
  message.append(iconButton('close', 'Close the message', remove));
  messages.append(message);
  // what is outside of a dialog cannot be clicked
  ([...document.querySelectorAll('dialog:modal')].at(-1) ?? document.body).append(messages);
  setTimeout(remove, 1000 * seconds);
  return remove;
}

/**
 * Make a function that draws soon, but after the next frame, so that what matters more is seen first; many calls draw
 * once.
 * @param {() => void} draw
 */
export function later(draw) {
  let due = false;
  return () => {
    if (due) return;
    due = true;
    requestAnimationFrame(() =>
      setTimeout(() => {
        due = false;
        draw();
      }),
    );
  };
}

/**
 * Do something again and again; errors are shown.
 * @param {number} ms between two times @param {() => Promise<any>} act
 * @returns {() => void} ends that
 */
export function repeat(ms, act) {
  let timer = 0;
  const next = () => {
    timer = setTimeout(
      () =>
        act()
          .catch(sayError)
          .finally(() => timer && next()),
      ms,
    );
  };
  next();
  return () => {
    clearTimeout(timer);
    timer = 0;
  };
}

/** @param {unknown} error */
export function sayError(error) {
  if (error instanceof Error && error.name === 'AbortError') return;
  say(error instanceof Error ? error.message : String(error), {error: true, seconds: 12});
}

/**
 * Format a number of things: count(2, 'image') is '2 images'.
 * @param {number} number
 * @param {string} one
 * @param {string} [many]
 */
export function count(number, one, many = `${one}s`) {
  return `${number.toLocaleString('en')} ${number === 1 ? one : many}`;
}

/**
 * Format the share of random pairs that score lower: 48.2%, >99.9%, or '' if it is unknown.
 * @param {number | null | undefined} share
 */
export function percent(share) {
  if (share === null || share === undefined) return '';
  return share > SHOWN ? `>${100 * SHOWN}%` : `${(100 * share).toFixed(1)}%`;
}

/** How similar that is: 3 to 0 steps, and words; null if it is unknown. @param {number | null | undefined} share */
export function similarity(share) {
  if (share === null || share === undefined) return null;
  const place = STEPS.findIndex(([low]) => share >= low);
  return place < 0 ? {steps: 0, words: 'no better than chance'} : {steps: 3 - place, words: STEPS[place][1]};
}

/** The same as words of a sentence; '' if it is unknown. @param {number | null | undefined} share */
export function nearer(share) {
  const text = percent(share).replace('>', '');
  return text && `nearer than ${text} of random pairs`;
}

/**
 * Open a modal dialog, and remove it when it is closed.
 * @param {string} title
 * @param {...(Node | string | null)} children
 * @returns {HTMLDialogElement}
 */
export function openDialog(title, ...children) {
  const dialog = make('dialog', {'aria-label': title, onclose: () => dialog.remove()}, [
    make(
      'div.head',
      make('h2', title),
      iconButton('close', 'Close', () => dialog.close()),
    ),
    ...children,
  ]);
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}

/**
 * A form in a dialog that stays open, with the reason, if its action fails.
 * @param {string} title
 * @param {string} action text of its button; '' for a text that offers none
 * @param {(string | Node)[]} content
 * @param {() => Promise<void>} act
 */
export function ask(title, action, content, act) {
  const problem = make('p', {role: 'alert'}),
    go = make('button.button.strong', {hidden: !action}, action);
  const dialog = openDialog(
    title,
    make(
      'form.stack',
      {
        onsubmit: async (/** @type {SubmitEvent} */ event) => {
          event.preventDefault();
          go.disabled = true;
          problem.textContent = '';
          try {
            await keepPage(act());
            dialog.close();
          } catch (error) {
            problem.textContent = /** @type {Error} */ (error).message;
          }
          go.disabled = false;
        },
      },
      [...content, problem, go],
    ),
  );
  return {dialog, go};
}

// another address is another screen, so Back closes what was opened over the last one
addEventListener('popstate', () => {
  for (const dialog of document.querySelectorAll('dialog[open]:not(.viewer, [data-stays])'))
    /** @type {HTMLDialogElement} */ (dialog).close();
});

// ---- work that a reload would cut off

let unfinishedWork = 0;
addEventListener('beforeunload', event => {
  if (unfinishedWork) event.preventDefault();
});

/** Let the browser ask before it leaves the page while work runs. @template T @param {Promise<T>} work */
export function keepPage(work) {
  unfinishedWork++;
  return work.finally(() => unfinishedWork--);
}
