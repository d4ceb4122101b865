// Code: see outputs.py. Each block scrolls separately, also with the keyboard.
root.className = 'codes';

function copyButton(text) {
  const button = make('button', {type: 'button', class: 'plain-button', onclick: async () => {
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = 'Copied';
    } catch { // browsers offer no clipboard without https
      getSelection().selectAllChildren(button.closest('section').querySelector('pre'));
      button.textContent = 'Selected: press Ctrl+C';
    }
    setTimeout(() => { button.textContent = 'Copy'; }, 3000);
  }}, 'Copy');
  return button;
}

onValue(blocks => root.replaceChildren(...(blocks || []).map(({title, text}) => make('section', {},
  make('header', {}, make('h3', {}, title), copyButton(text)),
  make('pre', {tabindex: 0, role: 'region', 'aria-label': title}, text)))));
