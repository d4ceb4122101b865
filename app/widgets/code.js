// Code: see code.py. The blocks scroll inside themselves, also by keys.
root.className = 'codes';

function copyOf(text) {
  const button = make('button', {type: 'button', class: 'plain-button', onclick: async () => {
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = 'Copied';
    } catch { // no clipboard off https
      getSelection().selectAllChildren(button.closest('section').querySelector('pre'));
      button.textContent = 'Selected: press Ctrl+C';
    }
    setTimeout(() => { button.textContent = 'Copy'; }, 3000);
  }}, 'Copy');
  return button;
}

drawn(blocks => root.replaceChildren(...(blocks || []).map(({title, text}) => make('section', {},
  make('header', {}, make('h3', {}, title), copyOf(text)),
  make('pre', {tabindex: 0, role: 'region', 'aria-label': title}, text)))));
