// The dialog Probe: fit a linear classifier on the labels of a collection, see how good it is and what it confuses, try
// it on an own image, and apply it to all images.
import {ROOT, rest} from './api.js';
import {count, make, openDialog, progressBar, say, sayError, textButton} from './dom.js';
import {write} from './edits.js';
import {jobBar} from './jobs.js';
import {typed} from './labels.js';

const AT_ONCE = 5000; // items in one prediction
const Z = 1.96; // of a 95% interval
const SURE = 0.9; // probability from which a prediction may become a label
const CONFUSIONS = 3; // are named for each class

/** @param {import('./explorer.js').Explorer} explorer @param {string} field the metadata key with the labels */
export function showProbe(explorer, field) {
  const keys = explorer.rows.keys.filter(key => !explorer.rows.column(key).numeric);
  const choice = make(
    'select',
    {onchange: () => show()},
    keys.map(key => make('option', {value: key, selected: key === field}, key)),
  );
  const about = make('p'),
    shown = make('div.stack');
  const fit = make('button.button.strong', 'Fit');
  const dialog = openDialog(
    'Probe',
    make('div.stack.probe', make('div.tools', make('label', 'Labels', choice), fit), about, shown),
  );
  const show = () => {
    const key = choice.value;
    if (!key) return void (about.textContent = 'Label some images first: select them and press L.');
    const probe = new Probe(explorer, key, dialog);
    const labeled = explorer.rows.column(key).codes.filter(codes => codes !== null).length;
    about.textContent =
      `Learns the ${explorer.rows.column(key).values.length} values of ${key} ` +
      `from ${count(labeled, 'image')}, and measures on a part that is held out.`;
    shown.replaceChildren();
    probe.known().then(known => {
      if (known && choice.value === key) shown.replaceChildren(probe.report(known));
    });
    fit.onclick = async () => {
      fit.disabled = true;
      const bar = jobBar('Fitting');
      shown.replaceChildren(bar.element);
      try {
        shown.replaceChildren(probe.report(await probe.fit(bar)));
      } finally {
        bar.element.remove();
        fit.disabled = false;
      }
    };
  };
  fit.disabled = !choice.value;
  show();
}

class Probe {
  /** @param {import('./explorer.js').Explorer} explorer @param {string} field @param {HTMLDialogElement} dialog */
  constructor(explorer, field, dialog) {
    this.explorer = explorer;
    this.field = field;
    this.dialog = dialog;
    this.name = nameOf(`${explorer.name}-${field}`);
  }

  /** The description of the probe, or undefined if it was not fitted yet. */
  async known() {
    return (await rest('GET', 'probes')).probes.find(
      (/** @type {import('./api.js').Probe} */ one) => one.name === this.name,
    );
  }

  /** @param {ReturnType<typeof jobBar>} bar */
  async fit(bar) {
    const json = {name: this.name, collection: this.explorer.name, field: this.field, balanced: true, replace: true};
    await bar.follow((await rest('POST', 'probes', {json, noted: true})).id);
    return rest('GET', `probes/${this.name}`);
  }

  /** @param {import('./api.js').Probe} probe */
  report(probe) {
    const {explorer, field} = this;
    const top1 = probe.scores.top1,
      [low, high] = interval(top1, probe.held_out);
    const progress = progressBar('Predicting', explorer.rows.ids.length);
    const button = (
      /** @type {string} */ text,
      /** @type {string} */ classes,
      /** @type {() => Promise<any>} */ act,
    ) => {
      const made = textButton(
        text,
        async () => {
          made.disabled = true;
          if (await act()) this.dialog.close();
          made.disabled = false;
        },
        classes,
      );
      return made;
    };
    const apply = button('Apply to the whole collection', 'button.strong', () => this._apply(progress)),
      accept = button('Label those that are sure', 'button', () => this._accept(progress));
    accept.title = `Images without a label get the prediction where its probability is at least ${100 * SURE}%`;
    const answer = make('p', {role: 'status'});
    const curve = probe.few_shot.map(one => `${one.labels} per class ${(100 * mean(one.top1)).toFixed(0)}%`);
    const file = make('input', {type: 'file', hidden: true, onchange: () => this._try(file.files[0], answer)});
    const worst = probe.per_class
      .map((one, code) => ({one, code}))
      .sort((a, b) => (a.one.score ?? 2) - (b.one.score ?? 2));
    const rows = worst.map(({one, code}) => {
      const meter =
        one.score === null
          ? ''
          : make('meter', {min: 0, max: 1, value: one.score, 'aria-label': `${one.label}: share that is right`});
      const right =
        one.score === null
          ? 'none held out'
          : probe.several
            ? `average precision ${one.score.toFixed(2)}`
            : ` ${Math.round(one.score * one.held_out)} of ${one.held_out}`;
      return make('tr', [
        make('td', [textButton(String(one.label), () => this._open({[field]: this._value(one.label)}))]),
        make('td', String(one.rows)),
        make('td', meter, right),
        make('td', this._confusions(probe, code, progress)),
      ]);
    });
    return make('div.stack', [
      top1 === undefined
        ? ''
        : make('p', [
            `Right on ${(100 * top1).toFixed(0)}% of ${count(probe.held_out, 'held-out image')}; ` +
              `with 95% certainty between ${low}% and ${high}%.`,
          ]),
      probe.few_shot.length ? make('p.note', `With fewer labels: ${curve.join(', ')}.`) : '',
      make('div.tools', [
        apply,
        probe.several ? '' : accept,
        file,
        textButton('Try an image', () => file.click(), 'button'),
        make('a.button', {href: new URL(`api/v1/probes/${this.name}/export`, ROOT).href, download: ''}, 'Download'),
        progress,
      ]),
      answer,
      make('table', {tabindex: 0}, [
        make('thead', [
          make(
            'tr',
            ['label', 'fitted on', 'right', probe.confusion ? 'mistaken for' : 'mistaken for (in the collection)'].map(
              text => make('th', {scope: 'col'}, text),
            ),
          ),
        ]),
        make('tbody', rows),
      ]),
    ]);
  }

  /**
   * Buttons for the most frequent mistakes of a class, which open its images.
   * @param {import('./api.js').Probe} probe
   * @param {number} code
   * @param {HTMLProgressElement} progress
   */
  _confusions(probe, code, progress) {
    const counts = probe.confusion?.[code] ?? this._mistakes(probe, code);
    const most = counts
      .map((/** @type {number} */ number, /** @type {number} */ other) => ({number, other}))
      .filter(
        (/** @type {{number: number, other: number}} */ one) =>
          one.number > 0 && one.other !== code && one.other < probe.classes.length,
      );
    most.sort((/** @type {any} */ a, /** @type {any} */ b) => b.number - a.number);
    const open = async (/** @type {number} */ other) => {
      const predicted = `predicted_${this.field}`;
      if (!this.explorer.rows.keys.includes(predicted) && !(await this._apply(progress))) return;
      this._open({[this.field]: this._value(probe.classes[code]), [predicted]: this._value(probe.classes[other])});
    };
    return most
      .slice(0, CONFUSIONS)
      .map((/** @type {any} */ {number, other}) =>
        make(
          'button.plain',
          {title: 'Show all images of the collection that are mistaken so', onclick: () => open(other)},
          [`${probe.classes[other]} (${number})`],
        ),
      );
  }

  /** A class as the items have it; the probe has true as a text. @param {any} label */
  _value(label) {
    return typed(String(label), this.explorer.rows.column(this.field).values);
  }

  /**
   * How many images of a class are predicted as each class; none before the probe is applied.
   * @param {import('./api.js').Probe} probe
   * @param {number} code
   */
  _mistakes(probe, code) {
    const counts = new Array(probe.classes.length).fill(0),
      classes = probe.classes.map(String);
    for (const {[this.field]: label, [`predicted_${this.field}`]: predicted} of this.explorer.rows.metadata) {
      const other = String(label) === classes[code] ? classes.indexOf(String(predicted)) : -1;
      if (other >= 0) counts[other]++;
    }
    return counts;
  }

  /** Show the images with these values. @param {Record<string, any>} values */
  _open(values) {
    this.dialog.close();
    this.explorer.showValues(values);
  }

  /** @param {File | undefined} file @param {HTMLElement} answer */
  async _try(file, answer) {
    if (!file) return;
    const form = new FormData();
    form.append('files', file, file.name);
    answer.textContent = 'Predicting ...';
    try {
      const {
        results: [one],
      } = await rest('POST', `probes/${this.name}/predict`, {form, noted: true});
      const label = one.label ?? one.labels?.join(', ') ?? 'none of these';
      const shares = (one.top ?? []).map(
        (/** @type {any} */ each) => `${each.label} ${(100 * each.probability).toFixed(0)}%`,
      );
      answer.textContent = `${file.name}: ${label}. ${shares.join(', ')}`;
    } catch (error) {
      answer.textContent = '';
      sayError(error);
    }
  }

  /**
   * Give the images without a label their prediction, where the probe is sure.
   * @param {HTMLProgressElement} progress
   * @returns {Promise<boolean>} whether it succeeded
   */
  async _accept(progress) {
    const {
      explorer: {name, rows},
      field,
    } = this;
    const classified = await this._apply(progress);
    if (!classified) return false;
    const sure = rows.ids.filter((id, row) => {
      const own = rows.metadata[row];
      const isFree = !rows.deleted.has(row) && (own[field] ?? null) === null;
      return isFree && classified.has(id) && own[`confidence_${field}`] >= SURE;
    });
    const values = new Map(sure.map(id => [id, {[field]: rows.of(id)?.[`predicted_${field}`]}]));
    if (sure.length) await write(name, 'labeled by the probe', values, id => rows.of(id));
    else say('No image without a label has a prediction that is sure.');
    return true;
  }

  /**
   * Write each image's prediction and confidence.
   * @param {HTMLProgressElement} progress
   * @returns {Promise<Set<string> | null>} ids of the images that have a class; null if it failed
   */
  async _apply(progress) {
    const {explorer, field} = this;
    const rows = explorer.rows.ids.map((_, row) => row).filter(row => !explorer.rows.deleted.has(row));
    const predicted = `predicted_${field}`,
      confidence = `confidence_${field}`,
      values = new Map(),
      classified = new Set();
    progress.hidden = false;
    try {
      for (let start = 0; start < rows.length; start += AT_ONCE) {
        const ids = rows.slice(start, start + AT_ONCE).map(row => explorer.rows.ids[row]);
        const {results} = await rest('POST', `probes/${this.name}/predict`, {
          json: {collection: explorer.name, ids, top: 1},
          noted: start === 0,
        });
        for (const [place, one] of results.entries()) {
          const isOne = one.label !== null && one.label !== undefined;
          const classes = (isOne ? [one.label] : (one.labels ?? [])).map((/** @type {any} */ label) =>
            this._value(label),
          );
          if (classes.length) classified.add(ids[place]);
          values.set(ids[place], {
            [predicted]: isOne ? classes[0] : classes.length ? classes : 'none of these',
            [confidence]: Math.round(1000 * (one.top?.[0]?.probability ?? 0)) / 1000,
          });
        }
        progress.value = values.size;
      }
      await write(explorer.name, `${predicted} and ${confidence}`, values, id => explorer.rows.of(id));
      return classified;
    } catch (error) {
      sayError(error);
      return null;
    } finally {
      progress.hidden = true;
    }
  }
}

/** A name of a probe, which is ASCII, for any text. @param {string} text */
function nameOf(text) {
  const name = text.replace(/[^\w.-]/g, '-');
  const rest = [...text].filter(letter => letter > '~'); // different texts have different names
  return rest.length ? `${name}-${rest.map(letter => letter.codePointAt(0)?.toString(36)).join('')}`.slice(-128) : name;
}

/**
 * The 95% interval of a share, by Wilson's score, in percent.
 * @param {number} share
 * @param {number} number
 * @returns {[number, number]}
 */
export function interval(share, number) {
  if (!number) return [0, 100];
  const middle = share + Z ** 2 / (2 * number),
    half = Z * Math.sqrt((share * (1 - share) + Z ** 2 / (4 * number)) / number),
    scale = 1 + Z ** 2 / number;
  return [Math.floor((100 * (middle - half)) / scale), Math.ceil((100 * (middle + half)) / scale)];
}

/** @param {number[]} numbers */
function mean(numbers) {
  return numbers.reduce((sum, one) => sum + one, 0) / numbers.length;
}
