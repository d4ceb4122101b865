// The press decides what a click means, and the first press what a double click means.
//
// A click often moves what is below the pointer: a search rearranges the images, an accepted label leaves its list. The
// second click must not act on what came there.
const WINDOW_MS = 500;
const NEAR = 8; // pixels

/** The first press, and what a second one does. @type {{event: MouseEvent, target: Element, second: (() => void) | null} | null} */
let first = null;
let isSecond = false;

addEventListener('mousedown', event => {
  isSecond = first !== null && (event.detail > 1 || (event.timeStamp - first.event.timeStamp < WINDOW_MS && isNear(event)));
  if (!isSecond || !first) {
    first = {event, target: /** @type {Element} */ (event.target), second: null};
  } else if (first.second) {
    const {second} = first;
    stop(event);
    first.second = null;
    first.target = document.documentElement; // the click of this press has done its work
    second();
  }
}, true);

addEventListener('click', event => {
  // without detail, it is a key or a program
  if (isSecond && first && event.detail && owner(/** @type {Element} */ (event.target)) !== owner(first.target)) stop(event);
}, true);

addEventListener('keydown', () => { first = null; isSecond = false; }, true); // what a key did comes between two presses

/** Set what a second press does, while the first click is handled. @param {() => void} action */
export function onSecondPress(action) {
  if (first && !isSecond) first.second = action;
}

/** The element that a click was meant for, which may have moved before the release. @param {MouseEvent} event */
export function pressed(event) {
  return first && !isSecond && event.detail && isNear(event) ? first.target : /** @type {Element} */ (event.target);
}

/** Whether an event is where the first press was. @param {MouseEvent} event */
function isNear({clientX, clientY}) {
  return first !== null && Math.hypot(clientX - first.event.clientX, clientY - first.event.clientY) < NEAR;
}

/** The element that a click acts on. @param {Element} target */
function owner(target) {
  return target.closest('button, a, label, summary, [role=option]') ?? target;
}

/** @param {Event} event */
function stop(event) {
  event.stopImmediatePropagation();
  event.preventDefault();
}
