// Which encoder suits a collection: a comparison of those that the server serves, and the change to another one.
import {models, path, rest} from './api.js';
import {button, count, make, say} from './dom.js';
import {fieldOf} from './explorer.js';
import {jobBar} from './jobs.js';

const MOST = 7; // encoders in a comparison
const FLOOR = 'pixels'; // small copies of the images themselves: an encoder that is not better has learned nothing here

/**
 * A card with the newest comparison, and buttons for another.
 * @param {string} name of the collection
 * @param {boolean} canWrite
 */
export function encoderCard(name, canWrite) {
  const body = make('div.stack'),
    bar = jobBar('Comparing');
  const draw = async () => {
    const [served, info, result] = await Promise.all([models(), rest('GET', path(name)), newest(name)]);
    const about = `This collection uses ${info.model || 'an unknown encoder'}; the server serves ${served.join(', ')}.`;
    body.replaceChildren(...(result ? table(name, result, info.model, served, canWrite) : [make('p.note', [about])]));
  };
  const compare = button('similar', 'Compare encoders', async () => {
    compare.disabled = true;
    try {
      const [served, {model}, field] = await Promise.all([models(), rest('GET', path(name)), fieldOf(name)]);
      // that of the collection first: the others are compared with it
      const chosen = [...new Set([...served.filter(one => one === model), ...served])].slice(0, MOST);
      const json = {models: [...chosen, FLOOR], field};
      await bar.follow((await rest('POST', path(name, 'comparisons'), {json, noted: true})).id);
      await draw();
    } finally {
      compare.disabled = false;
    }
  });
  draw();
  return make('section.card', {'aria-label': 'Encoders'}, [
    make('div.head', make('h2', 'Encoders'), canWrite ? compare : ''),
    make('p', [
      'How well each encoder of the server separates the labels of this collection, ' +
        'next to small copies of the images as a floor.',
    ]),
    bar.element,
    body,
  ]);
}

/** Result of the newest comparison that the server still has. @param {string} name */
async function newest(name) {
  const {jobs} = await rest('GET', 'jobs', {query: {kind: 'comparison', state: 'done', limit: 100}});
  const job = jobs.find((/** @type {import('./api.js').Job} */ one) => one.params.collection === name);
  return job && (await rest('GET', `jobs/${job.id}`)).result;
}

/**
 * In percent, with its 95% interval and the chance of it without a difference.
 * @param {{mean: number, low: number, high: number, p: number}} difference
 */
export function differenceOf({mean, low, high, p}) {
  const [own, from, to] = [mean, low, high].map(one => `${one >= 0 ? '+' : ''}${(100 * one).toFixed(1)}`);
  return `${own} (${from} to ${to}), p ${p < 0.001 ? '< .001' : p.toFixed(3).replace(/^0/, '')}`;
}

/**
 * @param {string} name
 * @param {any} result
 * @param {string} current encoder of the collection
 * @param {string[]} served
 * @param {boolean} canWrite
 */
function table(name, {scores, labels, images, conclusion, field}, current, served, canWrite) {
  const percent = (/** @type {number[] | null} */ score) => {
    if (!score) return '';
    const [mean, low, high] = score.map(one => 100 * one);
    return make('span', [
      make('meter', {min: 0, max: 100, value: mean, 'aria-hidden': 'true'}),
      ` ${mean.toFixed(1)}% (${low.toFixed(0)} to ${high.toFixed(0)})`,
    ]);
  };
  const use = (/** @type {string} */ model) => async () => {
    await rest('POST', path(name, 'reembed'), {json: {model}, noted: true});
    say(
      `The images are embedded by ${model} in a job, see Collections. This collection can be searched in the meantime.`,
    );
  };
  const rows = scores.map((/** @type {any} */ one) =>
    make('tr', [
      make('th', {scope: 'row'}, one.source),
      make('td', percent(one.linear)),
      make('td', percent(one.knn)),
      make('td', one.against_first ? differenceOf(one.against_first) : ''),
      make('td', one.rankme.toFixed(0)),
      make('td', [
        one.source === current
          ? 'in use'
          : canWrite && served.includes(one.source)
            ? make('button.button', {'aria-label': `Use ${one.source}`, onclick: use(one.source)}, 'Use')
            : '',
      ]),
    ]),
  );
  const heads = ['encoder', 'linear probe', 'k-NN', 'points above the first', 'RankMe', ''];
  return [
    make('p.note', [
      `${count(images, 'image')}, ${labels ? `${count(labels, 'label')} of ${field}` : 'without labels'}. ` +
        conclusion,
    ]),
    make('div.wide', {tabindex: 0, role: 'region', 'aria-label': 'Scores of the encoders'}, [
      make('table', [
        make(
          'thead',
          make(
            'tr',
            heads.map(text => (text ? make('th', {scope: 'col'}, text) : make('td'))),
          ),
        ),
        make('tbody', rows),
      ]),
    ]),
  ];
}
