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
