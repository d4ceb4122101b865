// Intake: see intake.py. A selection is cut into groups; each is uploaded in requests, then said with one 'give'.
let busy = false, stopped = false, answer = null, heard = '';
const files = make('input', {type: 'file', multiple: true, hidden: true, class: 'choose-files', onchange: chosen,
  accept: ['image/*', settings.zip, ...settings.suffixes].join(',')});
const folder = make('input', {type: 'file', hidden: true, webkitdirectory: true, class: 'choose-folder', onchange: chosen});
const choosing = make('div', {class: 'intake-choose'},
  make('p', {}, 'Drop pictures, a folder or a zip here, or'),
  make('div', {class: 'intake-buttons'},
    make('button', {type: 'button', class: 'plain-button', onclick: () => files.click()}, 'Choose pictures or a zip'),
    make('button', {type: 'button', class: 'plain-button', onclick: () => folder.click()}, 'Choose a folder')),
  make('p', {class: 'hint'}, settings.hint));
const bar = make('progress', {max: 1, value: 0, 'aria-label': 'Upload'});
const told = make('p', {role: 'status'});
const stop = make('button', {type: 'button', class: 'plain-button', onclick: () => { stopped = true; answer?.('stopped'); }}, 'Stop');
const sending = make('div', {class: 'intake-sending', hidden: true}, bar, stop);
const problem = make('p', {role: 'alert', class: 'intake-problem', hidden: true});
root.className = 'intake';
root.append(files, folder, choosing, sending, told, problem);

const sized = bytes => bytes < 1e9 ? `${Math.ceil(bytes / 1e6).toLocaleString('en')} MB` : `${(bytes / 1e9).toFixed(1)} GB`;
const counted = (n, one, more) => `${n.toLocaleString('en')} ${n === 1 ? one : more}`;
const endsWith = (name, suffixes) => suffixes.some(suffix => name.toLowerCase().endsWith(suffix));

function chosen(event) {
  const list = [...event.target.files].map(file => ({file, name: file.webkitRelativePath.split('/').slice(1).join('/') || file.name}));
  event.target.value = '';
  take(list);
}

/** What may go, and a sentence on what may not. */
function sortOut(list) {
  const zips = [], pictures = [], large = [];
  let others = 0;
  for (const one of list) {
    const zip = endsWith(one.name, [settings.zip]), hidden = one.name.split('/').some(part => part.startsWith('.'));
    if (hidden || (!zip && !endsWith(one.name, settings.suffixes))) others += 1;
    else if (one.file.size > (zip ? settings.most_zip : settings.most_bytes)) large.push(one);
    else (zip ? zips : pictures).push(one);
  }
  const said = [];
  if (large.length) {
    const {name, file} = large[0];
    said.push(`${counted(large.length, 'file is', 'files are')} too large, such as ${name} with ${sized(file.size)}: a picture has at most `
      + `${sized(settings.most_bytes)}, a zip ${sized(settings.most_zip)}. Make it smaller, or choose the folder in place of the zip.`);
  }
  if (others) said.push(`${counted(others, 'file that is no picture was', 'files that are no pictures were')} left out.`);
  if (!zips.length && !pictures.length) said.push('There was no picture to add: choose JPEG, PNG or others, or a zip of them.');
  return {zips, pictures, said};
}

function* groups(pictures, mostFiles, mostBytes) {
  let group = [], bytes = 0;
  for (const one of pictures) {
    if (group.length && (group.length === mostFiles || bytes + one.blob.size > mostBytes)) {
      yield group;
      group = [];
      bytes = 0;
    }
    group.push(one);
    bytes += one.blob.size;
  }
  if (group.length) yield group;
}

function say(words) {
  problem.textContent = words;
  problem.hidden = !words;
}

async function take(list) {
  const to = props.value?.to;
  if (busy || !list.length || !to) return;
  const {zips, pictures, said} = sortOut(list);
  say(said.join(' '));
  const adds = [...groups(pictures.map(one => ({...one, blob: one.file})), settings.add_files, settings.add_bytes),
    ...zips.map(one => [{...one, blob: one.file}])];
  const total = adds.flat().length;
  if (!total) return;
  if (settings.whole && adds.length > 1) {
    say(`These are ${counted(total, 'file', 'files')}, and they must come at once: choose at most ${settings.add_files.toLocaleString('en')} pictures of `
      + `${sized(settings.add_bytes)}, or one zip. More go into a collection, on the tab Collections.`);
    return;
  }
  begin();
  let sent = 0;
  try {
    for (const group of adds) {
      const parts = await uploadGroup(group, done => show(sent + done, total));
      if (stopped) break;
      const how = await give({to, files: group.map((one, i) => ({name: one.name, parts: parts[i]}))});
      if (how === 'refused') {
        told.textContent = '';
        say(`The server refused ${counted(group.length, 'file', 'files')}, and says why. ${counted(sent, 'file was', 'files were')} taken before, `
          + `and ${counted(total - sent - group.length, 'file was', 'files were')} not sent.`);
        end();
        return;
      }
      if (how === 'taken') sent += group.length;
      show(sent, total);
      if (stopped) break;
    }
    told.textContent = stopped ? `Stopped: ${counted(sent, 'file was', 'files were')} uploaded.` : `Uploaded ${counted(sent, 'file', 'files')}.`;
  } catch (error) {
    told.textContent = '';
    say(`${error.message} ${counted(sent, 'file was', 'files were')} uploaded before; choose the others again.`);
  }
  end();
}

/** Gives uploads to the handler, and waits for what it says: taken, refused; or stopped, if the person waits no longer. */
async function give(what) {
  trigger('give', what);
  try {
    return await new Promise(yes => { answer = yes; });
  } finally {
    answer = null;
  }
}

/** The parts of each file of a group, as paths at the server. */
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
  const mark = Array.from(crypto.getRandomValues(new Uint8Array(8)), byte => byte.toString(16).padStart(2, '0')).join('');
  blobs.forEach((blob, i) => form.append('files', blob, `${mark}-${i}.part`)); // equal files must not be one at the server
  let answer;
  try {
    answer = await fetch(new URL('gradio_api/upload', location.href.replace(/[?#].*/, '')), {method: 'POST', body: form});
  } catch {
    throw new Error('The server does not answer.');
  }
  if (answer.ok) return answer.json();
  if (answer.status === 401) throw new Error('Your login has ended: reload the page and log in.');
  const words = await answer.text();
  throw new Error(/^[A-Z][^<{]{5,200}$/.test(words) ? words : `The server took no upload (${answer.status}).`);
}

function show(done, total) {
  bar.value = done / total;
  told.textContent = `Uploading: ${Math.floor(done).toLocaleString('en')} of ${counted(total, 'file', 'files')}; stay on this page until that is done.`;
}

const hold = event => event.preventDefault(); // the browser asks before it leaves

function begin() {
  busy = true;
  stopped = false;
  bar.value = 0;
  sending.hidden = false;
  choosing.hidden = true;
  window.addEventListener('beforeunload', hold);
}

function end() {
  busy = false;
  sending.hidden = true;
  choosing.hidden = false;
  window.removeEventListener('beforeunload', hold);
}

async function* within(entry, path) {
  if (entry.isFile) {
    yield {file: await readable(entry, path, (yes, no) => entry.file(yes, no)), name: path + entry.name};
    return;
  }
  const reader = entry.createReader();
  for (;;) {
    const some = await readable(entry, path, (yes, no) => reader.readEntries(yes, no));
    if (!some.length) return;
    for (const one of some) yield* within(one, `${path}${entry.name}/`);
  }
}

async function readable(entry, path, ask) {
  try {
    return await new Promise(ask);
  } catch {
    throw new Error(`${path}${entry.name} cannot be read, so nothing of it was uploaded: see whether it is still there, and choose the files again.`);
  }
}

root.addEventListener('dragover', event => { event.preventDefault(); root.classList.add('over'); });
root.addEventListener('dragleave', () => root.classList.remove('over'));
root.addEventListener('drop', async event => {
  event.preventDefault();
  root.classList.remove('over');
  if (busy) {
    say('An upload is on its way: drop these again when it is done.');
    return;
  }
  const entries = [...event.dataTransfer.items].map(item => item.webkitGetAsEntry?.()).filter(Boolean), list = [];
  const alone = entries.length === 1 && entries[0].isDirectory; // then its name is no label
  try {
    for (const entry of entries) {
      for await (const one of within(entry, '')) list.push(alone ? {...one, name: one.name.split('/').slice(1).join('/')} : one);
    }
  } catch (error) {
    say(error.message);
    return;
  }
  take(list);
});

drawn(value => {
  const {taken, refused} = value ?? {}, last = JSON.stringify([taken, refused]);
  if (!(taken || refused) || last === heard) return;
  heard = last;
  answer?.(refused > (taken ?? 0) ? 'refused' : 'taken');
});
