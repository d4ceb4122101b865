// Address: see address.py.
const told = make('span', {role: 'status', class: 'copied'});
const copy = make('button', {type: 'button', class: 'plain-button', onclick: copyLink}, 'Copy the link to this');
const back = make('button', {type: 'button', class: 'plain-button', hidden: true, onclick: () => history.back()}, 'Back');
root.className = 'address';
root.append(back, copy, told);

async function copyLink() {
  try {
    await navigator.clipboard.writeText(location.href);
    told.textContent = 'Copied.';
  } catch { // no clipboard off https
    told.textContent = 'The link is the address of this page, above.';
  }
  setTimeout(() => { told.textContent = ''; }, 3000);
}

let first = true; // what is shown next takes the place of the link that was opened, or gone back to
drawn(fragment => {
  const there = location.hash.replace(/^#/, '');
  if (fragment && fragment !== there) {
    const link = location.pathname + location.search + '#' + fragment;
    first ? history.replaceState(history.state ?? 0, '', link) : history.pushState((history.state ?? 0) + 1, '', link);
  }
  if (fragment) first = false;
  back.hidden = !history.state; // how many of our own entries lie behind
});
window.addEventListener('popstate', () => {
  back.hidden = !history.state;
  first = true;
  trigger('back', {fragment: location.hash});
});
