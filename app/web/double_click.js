// The second click of a double click means what the first one hit.
//
// A click often moves what is below the pointer: a search rearranges the images, an accepted label leaves its list. The
// second click must not act on what came there.
const WINDOW_MS = 500;
const NEAR = 8; // pixels

/** The first press, and what a second click does instead of its own action. @type {{x: number, y: number, time: number, target: EventTarget | null, second: (() => void) | null} | null} */
let first = null;
let isSecond = false;

addEventListener('mousedown', event => {
  isSecond = first !== null && (event.detail > 1 || (event.timeStamp - first.time < WINDOW_MS && Math.hypot(event.clientX - first.x, event.clientY - first.y) < NEAR));
  if (!isSecond) first = {x: event.clientX, y: event.clientY, time: event.timeStamp, target: owner(event), second: null};
}, true);

addEventListener('click', event => {
  if (!isSecond || !first || !event.detail) return; // without detail, it is a key or a program
  const {second, target} = first;
  if (!second && owner(event) === target) return;
  event.stopImmediatePropagation();
  event.preventDefault();
  first.second = null;
  first.target = null;
  second?.();
}, true);

/** Set what the second click does, while the first is handled. @param {() => void} action */
export function onSecondClick(action) {
  if (first && !isSecond) first.second = action;
}

/** The element that a click acts on. @param {Event} event */
function owner(event) {
  return /** @type {Element} */ (event.target).closest('button, a, label, summary, [role=option]') ?? event.target;
}
