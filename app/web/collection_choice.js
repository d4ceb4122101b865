// The choice of a collection on the pages that show one.
import {make} from './dom.js';
import {edits} from './edits.js';

/**
 * @param {string} page
 * @param {string} name of the collection that is shown
 * @param {{collections: import('./api.js').Collection[]}} session
 */
export function collectionChoice(page, name, session) {
  const choice = make('select', {
    'aria-label': 'Collection',
    onchange: () => {
      location.hash = `#/${page}/${encodeURIComponent(choice.value)}`;
    },
  });
  const fill = () =>
    choice.replaceChildren(
      ...session.collections.map(one =>
        make('option', {value: one.name, selected: one.name === name}, [
          `${one.name} (${one.count.toLocaleString('en')})`,
        ]),
      ),
    );
  const refill = () => (choice.isConnected ? fill() : edits.removeEventListener('counts', refill));
  edits.addEventListener('counts', refill);
  fill();
  return choice;
}
