// Prepended to the script of each widget. Gradio runs it as a function body with element, trigger, props and watch;
// widget.py adds settings.
const root = element.firstElementChild;

/** Create an element with attributes and listeners. Children are elements or text; text is never parsed as HTML. */
function make(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === false || value === null || value === undefined) continue;
    if (name.startsWith('on')) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value === true ? '' : value);
  }
  made.append(...children.filter(child => child !== null && child !== undefined));
  return made;
}

/** Call the function with the current value, and with each new one. */
function onValue(draw) {
  watch('value', () => draw(props.value));
  draw(props.value);
}

/** Create an icon from a path in a 24 x 24 square. */
function icon(path) {
  const namespace = 'http://www.w3.org/2000/svg';
  const svg = document.createElementNS(namespace, 'svg');
  const line = document.createElementNS(namespace, 'path');
  for (const [name, value] of Object.entries({viewBox: '0 0 24 24', 'aria-hidden': 'true', class: 'icon'})) {
    svg.setAttribute(name, value);
  }
  line.setAttribute('d', path);
  svg.append(line);
  return svg;
}

/** GET a REST path as JSON; return null for 404. Throw an error whose message is `offline` if the server does not respond. */
async function rest(path, offline) {
  let response;
  try {
    response = await fetch(`/api/v1/${path}`, {headers: {Accept: 'application/json'}});
    if (response.ok) return await response.json();
  } catch {
    throw new Error(offline);
  }
  if (response.status === 404) return null;
  if (response.status === 401) throw new Error('Your session has expired. Reload the page and log in.');
  if (response.status !== 429) throw new Error(offline);
  const seconds = Number(response.headers.get('Retry-After')) || 0;
  throw Object.assign(new Error('The rate limit is reached. This page retries automatically.'), {wait: 1000 * seconds});
}

/** Show a message, or hide its element if the message is empty. */
function setMessage(target, message) {
  if (target.textContent !== message) target.textContent = message;
  target.hidden = !message;
}
