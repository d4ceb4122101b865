// Uploader: see uploader.py. A selection is split into groups; each is uploaded in several requests, then one 'submit' event.
let busy = false, stopped = false, resolveAdd = null, lastOutcome = '';
const files = make('input', {type: 'file', multiple: true, hidden: true, class: 'choose-files', onchange: choose,
  accept: ['image/*', settings.zip, ...settings.suffixes].join(',')});
const folder = make('input', {type: 'file', hidden: true, webkitdirectory: true, class: 'choose-folder', onchange: choose});
const chooser = make('div', {class: 'uploader-choose'},
  make('p', {}, 'Drop images, a folder or a zip here, or'),
  make('div', {class: 'uploader-buttons'},
    make('button', {type: 'button', class: 'plain-button', onclick: () => files.click()}, 'Choose images or a zip'),
    make('button', {type: 'button', class: 'plain-button', onclick: () => folder.click()}, 'Choose a folder')),
  make('p', {class: 'hint'}, settings.hint));
const bar = make('progress', {max: 1, value: 0, 'aria-label': 'Upload'});
const status = make('p', {role: 'status'});
const stop = make('button', {type: 'button', class: 'plain-button', onclick: () => { stopped = true; resolveAdd?.('stopped'); }}, 'Stop');
const sending = make('div', {class: 'uploader-sending', hidden: true}, bar, stop);
const problem = make('p', {role: 'alert', class: 'uploader-problem', hidden: true});
root.className = 'uploader';
root.append(files, folder, chooser, sending, status, problem);

const sized = bytes => bytes < 1e9 ? `${Math.ceil(bytes / 1e6).toLocaleString('en')} MB` : `${(bytes / 1e9).toFixed(1)} GB`;
const counted = (n, one, more) => `${n.toLocaleString('en')} ${n === 1 ? one : more}`;
const endsWith = (name, suffixes) => suffixes.some(suffix => name.toLowerCase().endsWith(suffix));

function choose(event) {
  const list = [...event.target.files].map(file => ({file, name: file.webkitRelativePath.split('/').slice(1).join('/') || file.name}));
  event.target.value = '';
  uploadAll(list);
}

/** Separate the files into zips and images; return a message about the skipped ones. */
function sortFiles(list) {
  const zips = [], images = [], large = [];
  let others = 0; // hidden files and other formats
  for (const one of list) {
    const zip = endsWith(one.name, [settings.zip]), hidden = one.name.split('/').some(part => part.startsWith('.'));
    if (hidden || (!zip && !endsWith(one.name, settings.suffixes))) others += 1;
    else if (one.file.size > (zip ? settings.max_zip : settings.max_bytes)) large.push(one);
    else (zip ? zips : images).push(one);
  }
  const messages = [];
  if (large.length) {
    const {name, file} = large[0];
    messages.push(`${counted(large.length, 'file is', 'files are')} too large, such as ${name} (${sized(file.size)}). The limit is `
      + `${sized(settings.max_bytes)} for an image and ${sized(settings.max_zip)} for a zip. Choose a smaller file, or the folder instead of the zip.`);
  }
  if (others) messages.push(`${counted(others, 'file is not an image and was', 'files are not images and were')} skipped.`);
  if (!zips.length && !images.length) messages.push('There are no images to upload. Choose JPEG, PNG or similar files, or a zip of them.');
  return {zips, images, messages};
}

function* groups(list, maxFiles, maxBytes) {
  let group = [], bytes = 0;
  for (const one of list) {
    if (group.length && (group.length === maxFiles || bytes + one.blob.size > maxBytes)) {
      yield group;
      group = [];
      bytes = 0;
    }
    group.push(one);
    bytes += one.blob.size;
  }
  if (group.length) yield group;
}

async function uploadAll(list) {
  const to = props.value?.to;
  if (busy || !list.length || !to) return;
  const {zips, images, messages} = sortFiles(list);
  setMessage(problem, messages.join(' '));
  const adds = [...groups(images.map(one => ({...one, blob: one.file})), settings.submit_files, settings.submit_bytes),
    ...zips.map(one => [{...one, blob: one.file}])];
  const total = adds.flat().length;
  if (!total) return;
  if (settings.whole && adds.length > 1) {
    setMessage(problem, `This upload is limited to ${settings.submit_files.toLocaleString('en')} images with ${sized(settings.submit_bytes)} or one zip, got `
      + `${counted(total, 'file', 'files')}. Add larger sets to a collection on the Collections tab.`);
    return;
  }
  begin();
  let sent = 0;
  try {
    for (const group of adds) {
      const parts = await uploadGroup(group, done => show(sent + done, total));
      if (stopped) break;
      const outcome = await submit({to, files: group.map((one, i) => ({name: one.name, parts: parts[i]}))});
      if (outcome === 'rejected') {
        status.textContent = '';
        setMessage(problem, `The server rejected ${counted(group.length, 'file', 'files')}. ${counted(sent, 'file was', 'files were')} accepted before, `
          + `and ${counted(total - sent - group.length, 'file was', 'files were')} not sent.`);
        end();
        return;
      }
      if (outcome === 'accepted') sent += group.length;
      show(sent, total);
      if (stopped) break;
    }
    status.textContent = stopped ? `Stopped: ${counted(sent, 'file was', 'files were')} uploaded.` : `Uploaded ${counted(sent, 'file', 'files')}.`;
  } catch (error) {
    status.textContent = '';
    setMessage(problem, `${error.message} ${counted(sent, 'file was', 'files were')} uploaded before. Choose the others again.`);
  }
  end();
}

/** Trigger 'submit'; wait until the handler accepts or rejects the files, or the user stops. */
async function submit(files) {
  trigger('submit', files);
  try {
    return await new Promise(resolve => { resolveAdd = resolve; });
  } finally {
    resolveAdd = null;
  }
}

/** Upload a group; return the server paths of the parts of each file. */
async function uploadGroup(group, done) {
  const paths = group.map(() => []), size = settings.request_bytes;
  const parts = group.flatMap((one, i) => Array.from({length: Math.max(1, Math.ceil(one.blob.size / size))},
    (_, part) => ({i, blob: one.blob.slice(part * size, (part + 1) * size)})));
  const all = parts.length;
  let count = 0;
  for (const request of groups(parts, settings.request_files, size)) {
    if (stopped) return paths;
    (await upload(request.map(part => part.blob))).forEach((path, at) => paths[request[at].i].push(path));
    count += request.length;
    done(group.length * count / all);
  }
  return paths;
}

async function upload(blobs) {
  const form = new FormData();
  const prefix = Array.from(crypto.getRandomValues(new Uint8Array(8)), byte => byte.toString(16).padStart(2, '0')).join('');
  blobs.forEach((blob, i) => form.append('files', blob, `${prefix}-${i}.part`)); // unique: Gradio stores equal files once
  let response;
  try {
    response = await fetch(new URL('gradio_api/upload', location.href.replace(/[?#].*/, '')), {method: 'POST', body: form});
  } catch {
    throw new Error('The server does not respond.');
  }
  if (response.ok) return response.json();
  if (response.status === 401) throw new Error('Your session has expired. Reload the page and log in.');
  const text = await response.text(); // plain text from our server, or HTML from a proxy
  throw new Error(/^[A-Z][^<{]{5,200}$/.test(text) ? text : `The upload failed with status ${response.status}.`);
}

function show(done, total) {
  bar.value = done / total;
  status.textContent = `Uploading: ${Math.floor(done).toLocaleString('en')} of ${counted(total, 'file', 'files')}; keep this page open until it is done.`;
}

const hold = event => event.preventDefault(); // the browser then asks before it closes the page

function begin() {
  busy = true;
  stopped = false;
  bar.value = 0;
  sending.hidden = false;
  chooser.hidden = true;
  window.addEventListener('beforeunload', hold);
}

function end() {
  busy = false;
  sending.hidden = true;
  chooser.hidden = false;
  window.removeEventListener('beforeunload', hold);
}

async function* walk(entry, path) {
  if (entry.isFile) {
    yield {file: await promised(entry, path, (resolve, reject) => entry.file(resolve, reject)), name: path + entry.name};
    return;
  }
  const reader = entry.createReader();
  for (;;) {
    const some = await promised(entry, path, (resolve, reject) => reader.readEntries(resolve, reject));
    if (!some.length) return;
    for (const one of some) yield* walk(one, `${path}${entry.name}/`);
  }
}

async function promised(entry, path, read) {
  try {
    return await new Promise(read);
  } catch {
    throw new Error(`${path}${entry.name} could not be read, so nothing was uploaded. Check that it still exists, and choose the files again.`);
  }
}

root.addEventListener('dragover', event => { event.preventDefault(); root.classList.add('over'); });
root.addEventListener('dragleave', () => root.classList.remove('over'));
root.addEventListener('drop', async event => {
  event.preventDefault();
  root.classList.remove('over');
  if (busy) {
    setMessage(problem, 'Another upload is running. Drop these files again when it is done.');
    return;
  }
  const entries = [...event.dataTransfer.items].map(item => item.webkitGetAsEntry?.()).filter(Boolean), list = [];
  const single = entries.length === 1 && entries[0].isDirectory; // a single folder's name is not a label
  try {
    for (const entry of entries) {
      for await (const one of walk(entry, '')) list.push(single ? {...one, name: one.name.split('/').slice(1).join('/')} : one);
    }
  } catch (error) {
    setMessage(problem, error.message);
    return;
  }
  uploadAll(list);
});

onValue(value => {
  const {accepted, rejected} = value ?? {}, outcome = JSON.stringify([accepted, rejected]); // times, set by uploader.py
  if (!(accepted || rejected) || outcome === lastOutcome) return;
  lastOutcome = outcome;
  resolveAdd?.(rejected > (accepted ?? 0) ? 'rejected' : 'accepted');
});
