// Address: see outputs.py.
const status = make('span', {role: 'status', class: 'copied'});
const copy = make('button', {type: 'button', class: 'plain-button', onclick: copyLink}, 'Copy link');
const back = make('button', {type: 'button', class: 'plain-button', hidden: true, onclick: () => history.back()}, 'Back');
root.className = 'address';
root.append(back, copy, status);

async function copyLink() {
  try {
    await navigator.clipboard.writeText(location.href);
    status.textContent = 'Copied.';
  } catch { // browsers offer no clipboard without https
    status.textContent = 'Copy the address of this page.';
  }
  setTimeout(() => { status.textContent = ''; }, 3000);
}

let replaceEntry = true; // the next value replaces the history entry that was just opened
onValue(fragment => {
  const current = location.hash.replace(/^#/, '');
  if (fragment && fragment !== current) {
    const link = location.pathname + location.search + '#' + fragment;
    replaceEntry ? history.replaceState(history.state ?? 0, '', link) : history.pushState((history.state ?? 0) + 1, '', link);
  }
  if (fragment) replaceEntry = false;
  back.hidden = !history.state; // the number of earlier entries of this page
});
window.addEventListener('popstate', () => {
  back.hidden = !history.state;
  replaceEntry = true;
  trigger('back', {fragment: location.hash});
});
