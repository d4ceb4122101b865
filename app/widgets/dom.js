// A function body of Gradio's: element, trigger, props and watch are there, and our settings. What every script of ours has before it.
const root = element.firstElementChild;

/** An element with attributes and listeners; children are elements or text, and text is never markup. */
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

/** Calls the function with the value now, and with every new one. */
function drawn(draw) {
  watch('value', () => draw(props.value));
  draw(props.value);
}

/** A picture from one of our icons, which are paths in a square of 24. */
function icon(path) {
  const space = 'http://www.w3.org/2000/svg';
  const svg = document.createElementNS(space, 'svg');
  const line = document.createElementNS(space, 'path');
  for (const [name, value] of Object.entries({viewBox: '0 0 24 24', 'aria-hidden': 'true', class: 'icon'})) {
    svg.setAttribute(name, value);
  }
  line.setAttribute('d', path);
  svg.append(line);
  return svg;
}

/** What REST answers at a path, null where it has no such thing; else an error in a sentence, which is `away` where the server does not answer. */
async function rest(path, away) {
  let answer;
  try {
    answer = await fetch(`/api/v1/${path}`, {headers: {Accept: 'application/json'}});
    if (answer.ok) return await answer.json();
  } catch {
    throw new Error(away);
  }
  if (answer.status === 404) return null;
  if (answer.status === 401) throw new Error('Your login has ended: reload the page and log in.');
  if (answer.status !== 429) throw new Error(away);
  const seconds = Number(answer.headers.get('Retry-After')) || 0;
  throw Object.assign(new Error('You have asked more of this server than it allows in a minute: this goes on by itself.'), {wait: 1000 * seconds});
}

/** Shows a sentence in its place, or that there is none. */
function tell(place, words) {
  if (place.textContent !== words) place.textContent = words;
  place.hidden = !words;
}
