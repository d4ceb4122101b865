// <query-bar>: what is searched for, and every way to begin a search: file, paste, drop, camera.
import {imageUrl} from './api.js';
import {CHANCE, button, count, iconButton, make, nearer, openDialog, say, textButton} from './dom.js';
import {MAX_MATCHES} from './explorer.js';
import {textOf} from './filters.js';

const PREVIEW = 96; // pixels per side of the small copy that is kept for reloads

class QueryBar extends HTMLElement {
  /** @param {import('./explorer.js').Explorer} explorer */
  constructor(explorer) {
    super();
    this.explorer = explorer;
    /** Shows an example in the viewer. @type {(example: import('./explorer.js').Example) => void} */
    this.show = () => {};
    this.file = make('input', {
      type: 'file',
      hidden: true,
      onchange: () => {
        const [file] = this.file.files;
        if (file) this.searchFile(file);
        this.file.value = '';
      },
    });
    this.examples = make('div.examples');
    this.chips = make('div.chips');
    this.verdict = make('p.verdict', {role: 'status'});
    this.replaceChildren(
      this.file,
      make('div.start', [
        button('upload', 'Search by an image', () => this.file.click()),
        iconButton('camera', 'Take a photo', () => this._camera()),
      ]),
      make('div.answer', make('div.asked-for', this.examples, this.chips), this.verdict),
    );
    explorer.addEventListener('query', () => this._drawExamples());
    explorer.addEventListener('view', () => this._drawResult());
    this._drawExamples();
  }

  /**
   * @param {Blob} file
   * @param {string} [name]
   * @param {boolean} [isFile] whether it is a file on the disk of the caller
   */
  async searchFile(file, name = file instanceof File ? file.name : 'image', isFile = true) {
    const {explorer} = this;
    this.classList.add('waiting');
    try {
      await explorer.searchImage(file, name, await previewOf(file), isFile);
    } finally {
      this.classList.remove('waiting');
    }
  }

  /**
   * Take the images of a paste or a drop.
   * @param {DataTransfer | null} data
   * @param {boolean} [isFile]
   * @returns {boolean} whether there is one
   */
  take(data, isFile = true) {
    const file = [...(data?.files ?? [])].find(one => one.type.startsWith('image/')) ?? data?.files[0];
    if (file) this.searchFile(file, file.name, isFile);
    return file !== undefined;
  }

  _drawExamples() {
    const {explorer} = this;
    const {positive, negative} = explorer.query;
    /** @param {import('./explorer.js').Example} example @param {'positive' | 'negative'} sign */
    const chip = (example, sign) => {
      const src = example.id === undefined ? example.preview : imageUrl(explorer.name, example.id, 'thumbnail');
      const remove = () => {
        const query = {positive, negative, [sign]: explorer.query[sign].filter(one => one !== example)};
        explorer.search(query.positive.length ? query : {positive: [], negative: []});
      };
      const name =
        example.name ??
        (example.id === undefined
          ? 'your image'
          : explorer.rows.rowOf.has(example.id)
            ? explorer.rows.title(/** @type {number} */ (explorer.rows.rowOf.get(example.id)))
            : example.id);
      return make('span', {class: `example ${sign}`, title: name}, [
        make('button.plain', {'aria-label': `Show ${name}`, onclick: () => this.show(example)}, [
          src ? make('img', {src, alt: ''}) : 'your image',
        ]),
        make('span.sign', {'aria-hidden': 'true'}, sign === 'positive' ? '+' : '−'),
        iconButton('close', sign === 'positive' ? `Search without ${name}` : `Allow images like ${name}`, remove),
      ]);
    };
    this.examples.replaceChildren(
      ...positive.map(one => chip(one, 'positive')),
      ...negative.map(one => chip(one, 'negative')),
      explorer.isSearching
        ? button('close', 'End the search', () => explorer.search({positive: [], negative: []}))
        : '',
    );
    this._drawResult();
  }

  _drawResult() {
    const {explorer} = this;
    const chips = [...explorer.filters].map(([key, condition]) =>
      make('span.chip', [
        textOf(key, condition),
        iconButton('close', `Remove the filter on ${key}`, () => explorer.filter(key, null)),
      ]),
    );
    if (explorer.where)
      chips.push(
        make('span.chip', [
          'JSON filter',
          iconButton('close', 'Remove the JSON filter', () => explorer.filterBy(null)),
        ]),
      );
    if (explorer.area)
      chips.push(
        make('span.chip', [
          `${explorer.finding?.title ?? 'area of the map'}: ${count(explorer.area.size, 'image')}`,
          iconButton('close', `Remove the ${explorer.finding ? 'finding' : 'area of the map'}`, () =>
            explorer.within(null),
          ),
        ]),
      );
    if (chips.length > 1) chips.push(textButton('Remove all filters', () => explorer.clearFilters()));
    this.chips.replaceChildren(...chips);
    const matches = explorer.matches;
    if (!explorer.isSearching || !matches) {
      const all = explorer.count;
      this.verdict.textContent =
        explorer.view.length === all
          ? count(all, 'image')
          : `${explorer.view.length.toLocaleString('en')} of ${count(all, 'image')}`;
      return;
    }
    const [best] = matches.values();
    const text =
      best === undefined
        ? explorer.whyEmpty
        : explorer.hasMore
          ? `${matches.size}+ matches.`
          : matches.size === MAX_MATCHES
            ? `The nearest ${MAX_MATCHES.toLocaleString('en')}.`
            : `${count(matches.size, 'match', 'matches')}.`;
    this.verdict.textContent = `${text} ${sentenceOn(best?.percentile)}`.trim();
  }

  async _camera() {
    if (!navigator.mediaDevices) return say('The camera needs a secure address (https or localhost).', {error: true});
    let stream;
    try {
      stream = await navigator.mediaDevices.getUserMedia({video: {facingMode: 'environment'}});
    } catch {
      return say('The browser did not open the camera.', {error: true});
    }
    const video = make('video', {autoplay: true, playsinline: true, muted: true});
    video.srcObject = stream;
    const take = async () => {
      const canvas = make('canvas', {width: video.videoWidth, height: video.videoHeight});
      canvas.getContext('2d').drawImage(video, 0, 0);
      dialog.close();
      const photo = await new Promise(done => canvas.toBlob(done, 'image/jpeg', 0.92));
      this.searchFile(photo, 'photo.jpg', false);
    };
    const dialog = openDialog('Take a photo', video, button('camera.strong', 'Search by this photo', take));
    dialog.addEventListener('close', () => stream.getTracks().forEach(track => track.stop()));
  }
}

/** A sentence on the best match. @param {number | null | undefined} percentile */
function sentenceOn(percentile) {
  if (percentile === null || percentile === undefined) return '';
  return percentile < CHANCE
    ? 'Nothing similar: random pairs of images are as near as the best match.'
    : `The best is ${nearer(percentile)}.`;
}

/** A small copy as a data address; undefined if the browser cannot read the format. @param {Blob} file */
async function previewOf(file) {
  try {
    const image = await createImageBitmap(file);
    const scale = Math.min(1, PREVIEW / Math.max(image.width, image.height));
    const canvas = make('canvas', {width: Math.max(1, image.width * scale), height: Math.max(1, image.height * scale)});
    canvas.getContext('2d').drawImage(image, 0, 0, canvas.width, canvas.height);
    return canvas.toDataURL('image/jpeg', 0.7);
  } catch {
    return undefined;
  }
}

customElements.define('query-bar', QueryBar);
export {QueryBar};
