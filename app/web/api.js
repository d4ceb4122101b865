// The REST client: the only way in which this page reads and writes.
//
// A request that fails because the server is away waits until it is back and is sent again: a repeated write has the
// effect of one. A request that the server refuses for now is repeated a few times. An ended session asks for the key,
// then repeats the request.
import {ask, make} from './dom.js';

export const ROOT = new URL('.', document.baseURI);
const KEPT = 30;
const LOOKED_UP = 1000; // items in one request
const POLL_MS = 500; // between two looks at a job
const REPEATS = 5; // of a request that a busy or failing server refuses
const LOST = 8; // connections that break in a row while the server answers otherwise

/** An error that the server answered. `code` is stable; the message is for people. */
export class ApiError extends Error {
  /** @param {number} status @param {string} code @param {string} detail @param {any} body */
  constructor(status, code, detail, body = {}) {
    super(detail);
    this.status = status;
    this.code = code;
    this.body = body;
  }
}

// answers, as docs/openapi.json describes them; `make check` writes the types from it
/** @typedef {import('../openapi').components['schemas']} Schemas */
/** @typedef {Schemas['CollectionResponse']} Collection */
/** @typedef {Schemas['AliasResponse']} Alias */
/** @typedef {Schemas['JobResponse']} Job */
/** @typedef {Schemas['ProbeResponse']} Probe */
/** @typedef {Schemas['MatchResponse']} Match */

/**
 * @typedef {object} Call
 * @property {string} method
 * @property {string} path
 * @property {any} [body] JSON, or with files the texts of a form
 * @property {[string, string][]} [files] fields of a form with the names of their files
 * @property {[string, string][]} [downloads] files that exist on the server only, and the paths to download them from
 */
/** The last calls of a person's actions, the newest first. @type {Call[]} */
export const calls = [];

/**
 * @typedef {object} Options
 * @property {Record<string, any>} [query] left out: null and undefined
 * @property {any} [json] the body
 * @property {FormData} [form] the body
 * @property {Blob} [body] the body
 * @property {Record<string, string>} [headers] more headers
 * @property {AbortSignal} [signal]
 * @property {any} [noted] whether the call is shown among the last calls; or the JSON to show instead
 * @property {[string, string][]} [downloads] see Call
 * @property {'json' | 'blob' | 'buffer'} [as]
 */

/**
 * Send a request, and return its answer.
 * @param {string} method
 * @param {string} path below /api/v1/
 * @param {Options} [options]
 * @returns {Promise<any>} null for an answer without content
 */
export async function rest(method, path, options = {}) {
  const {query = {}, json, form, body, signal, noted = false, downloads, as = 'json'} = options;
  const url = new URL(`api/v1/${path}`, ROOT);
  for (const [name, value] of Object.entries(query)) {
    if (value !== null && value !== undefined)
      url.searchParams.set(name, typeof value === 'object' ? JSON.stringify(value) : value);
  }
  /** @type {Record<string, string>} */
  const headers = {Accept: as === 'json' ? 'application/json' : '*/*'};
  if (json !== undefined) headers['Content-Type'] = 'application/json';
  Object.assign(headers, options.headers);
  if (noted) note(method, url, noted === true ? json : noted, form, downloads);
  const init = {method, headers, signal, body: form ?? body ?? (json === undefined ? undefined : JSON.stringify(json))};
  for (let attempt = 0, lost = 0; ; attempt++) {
    let response;
    try {
      response = await fetch(url, init);
    } catch (error) {
      signal?.throwIfAborted();
      await checkUnchanged(form, body);
      if (++lost > LOST)
        throw new Error(
          `The connection broke ${lost} times during one request (${method} ${path.split('/').at(-1)}); ` +
            'try again later.',
        );
      await serverIsBack(signal);
      continue;
    }
    if (response.status === 401) {
      await signIn();
    } else if (response.status === 429 && attempt < REPEATS) {
      const seconds = Number(response.headers.get('Retry-After')) || 1;
      const end = notify(`The server is busy. This page tries again in ${seconds} s.`);
      await sleep(1000 * seconds);
      end();
    } else if (!response.ok) {
      const error = await errorOf(response);
      // an image that ends its decoder would do so each time
      if (error.code !== 'not_ready' || attempt >= REPEATS) throw error;
      await serverIsBack(signal);
    } else if (response.status === 204) {
      return null;
    } else {
      return as === 'json' ? response.json() : as === 'blob' ? response.blob() : response.arrayBuffer();
    }
  }
}

/**
 * The pages of a list.
 * @param {string} path @param {Record<string, any>} query @param {Options} [options]
 * @returns {AsyncGenerator<any>}
 */
export async function* pages(path, query, options) {
  for (let cursor = null; ;) {
    const page = await rest('GET', path, {...options, noted: options?.noted && !cursor, query: {...query, cursor}});
    yield page;
    cursor = page.cursor;
    if (cursor === null) return;
  }
}

/**
 * Wait for the end of a job, and return its result.
 * @param {string} id @param {(job: Job) => void} [onProgress] @returns {Promise<Record<string, any>>}
 */
export async function finished(id, onProgress = () => {}) {
  for (;;) {
    /** @type {Job} */
    const job = await rest('GET', `jobs/${id}`);
    onProgress(job);
    if (job.state === 'failed' || job.state === 'cancelled')
      throw new Error(job.error?.detail ?? `The job was ${job.state}.`);
    if (job.result) return job.result;
    await sleep(POLL_MS);
  }
}

/** The encoders that the server serves, the default one first. @returns {Promise<string[]>} */
export async function models() {
  return (await rest('GET', '../../v1/models')).data.map((/** @type {{id: string}} */ one) => one.id);
}

/** Path of a collection's resource. @param {string} name @param {...string} parts */
export function path(name, ...parts) {
  return ['collections', name, ...parts].map(encodeURIComponent).join('/');
}

/** Address of an item's image. @param {string} name @param {string} id @param {'thumbnail' | 'original'} size */
export function imageUrl(name, id, size) {
  return new URL(`api/v1/${path(name, 'items', id, size)}`, ROOT).href;
}

/** @param {Response} response */
async function errorOf(response) {
  const body = await response.json().catch(() => ({}));
  return new ApiError(
    response.status,
    body.code ?? 'unknown',
    body.detail ?? `The server answered ${response.status}.`,
    body,
  );
}

/**
 * Read items by their ids.
 * @param {string} name of the collection @param {string[]} ids
 * @returns {Promise<Map<string, Record<string, any>>>} the metadata of those that exist
 */
export async function lookup(name, ids) {
  const found = new Map();
  for (let start = 0; start < ids.length; start += LOOKED_UP) {
    const json = {ids: ids.slice(start, start + LOOKED_UP), with_vector: false};
    for (const {id, metadata} of (await rest('POST', path(name, 'lookup'), {json})).items) found.set(id, metadata);
  }
  return found;
}

// ---- a lost server

/** Why requests wait, the newest last. @type {string[]} */
const reasons = [];

/** Show why a request waits. @param {string} text @returns {() => void} ends that */
function notify(text) {
  const notice = /** @type {HTMLElement} */ (document.getElementById('connection'));
  const draw = () => {
    notice.hidden = !reasons.length;
    notice.textContent = reasons.at(-1) ?? '';
  };
  reasons.push(text);
  draw();
  return () => {
    reasons.splice(reasons.indexOf(text), 1);
    draw();
  };
}

/** @type {Promise<void> | null} */
let waiting = null;

/** Wait until the server answers; an aborted signal ends only this wait. @param {AbortSignal} [signal] */
async function serverIsBack(signal) {
  waiting ??= (async () => {
    const end = notify('The server does not answer yet. This page continues as soon as it does.');
    try {
      for (let seconds = 1; ; seconds = Math.min(seconds * 1.5, 8)) {
        await sleep(1000 * seconds);
        const ready = await fetch(new URL('readyz', ROOT), {cache: 'no-store'}).catch(() => null);
        if (ready?.ok) return;
      }
    } finally {
      end();
      waiting = null;
    }
  })();
  const aborted = new Promise((_, fail) => signal?.addEventListener('abort', () => fail(signal.reason), {once: true}));
  await Promise.race([waiting, aborted]);
}

/**
 * Throw if a file of a request was changed or removed on the disk: a browser reports that like a lost connection.
 * @param {FormData | undefined} form
 * @param {Blob | undefined} body
 */
async function checkUnchanged(form, body) {
  for (const file of [...(form?.values() ?? []), body]) {
    if (!(file instanceof Blob)) continue;
    await file
      .slice(0, 1)
      .arrayBuffer()
      .catch(() => {
        throw new Error(
          `${file instanceof File ? file.name : 'The file'} was changed or removed while it was sent; choose it again.`,
        );
      });
  }
}

// ---- an ended session

/** @type {Promise<void> | null} */
let signingIn = null;

function signIn() {
  signingIn ??= new Promise(resolve => {
    const field = make('input', {
      type: 'password',
      name: 'key',
      autocomplete: 'current-password',
      required: true,
      'aria-label': 'Key',
    });
    const text = make('p', 'This server needs a key. What you were doing continues afterwards.');
    const {dialog} = ask('Log in', 'Log in', [text, field], async () => {
      const body = new URLSearchParams({key: field.value}),
        response = await fetch(new URL('login', ROOT), {method: 'POST', body, redirect: 'manual'}).catch(() => null);
      if (response?.type !== 'opaqueredirect')
        throw new Error(response ? 'The server does not know this key.' : 'The server does not answer.');
      signingIn = null;
      resolve();
    });
    dialog.dataset.stays = '';
    dialog.querySelector('.head button')?.remove(); // without a key, nothing can continue
    dialog.addEventListener('cancel', event => event.preventDefault());
    field.focus();
  });
  return signingIn;
}

// ---- the last calls

/**
 * @param {string} method
 * @param {URL} url
 * @param {any} json
 * @param {FormData | undefined} form
 * @param {[string, string][]} [downloads]
 */
function note(method, url, json, form, downloads) {
  const files = form
    ? [...form].flatMap(([name, value]) =>
        value instanceof File ? [/** @type {[string, string]} */ ([name, value.name])] : [],
      )
    : undefined;
  const texts = form ? Object.fromEntries([...form].filter(([, value]) => typeof value === 'string')) : undefined;
  calls.unshift({method, path: url.pathname + url.search, body: json ?? texts, files, downloads});
  calls.length = Math.min(calls.length, KEPT);
}

const sleep = (/** @type {number} */ ms) => new Promise(done => setTimeout(done, ms));

/** A key that no other request has; crypto.randomUUID exists on secure pages only. */
export function newKey() {
  return [...crypto.getRandomValues(new Uint8Array(16))].map(byte => byte.toString(16).padStart(2, '0')).join('');
}
