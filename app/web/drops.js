// Files that are dropped anywhere on a page. The browser never opens one in place of the app, also where nothing takes
// it.

/** @typedef {{text: string, take: (files: File[], target: Element) => any}} Drop text: what a drop does */
/** @type {Drop | null} */
let shown = null;

/** Take the files that are dropped while a page is shown; null ends that. @param {Drop | null} drop */
export function onDrop(drop) {
  shown = drop;
  document.body.dataset.drop = '';
}

document.addEventListener('dragover', event => {
  event.preventDefault();
  document.body.dataset.drop = shown?.text ?? '';
  document.body.classList.toggle('dropping', shown !== null && Boolean(event.dataTransfer?.types.includes('Files')));
});
document.addEventListener('dragleave', event => {
  if (event.relatedTarget === null) document.body.classList.remove('dropping');
});
document.addEventListener('drop', async event => {
  event.preventDefault();
  document.body.classList.remove('dropping');
  const drop = shown,
    target = /** @type {Element} */ (event.target);
  // the browser clears the items after the event, but keeps their entries
  const entries = [...(event.dataTransfer?.items ?? [])].map(item => item.webkitGetAsEntry?.() ?? item.getAsFile());
  const files = (await Promise.all(entries.map(filesOf))).flat();
  if (files.length) await drop?.take(files, target);
});

/** The files of a dropped file or folder, with their paths in it. @param {any} entry @returns {Promise<File[]>} */
async function filesOf(entry) {
  if (!entry) return [];
  if (entry instanceof File) return [entry];
  if (entry.isFile) {
    const file = await new Promise((done, fail) => entry.file(done, fail));
    if (entry.fullPath.lastIndexOf('/') > 0)
      Object.defineProperty(file, 'webkitRelativePath', {value: entry.fullPath.slice(1)});
    return [file];
  }
  const reader = entry.createReader(),
    inner = [];
  for (;;) {
    // a browser lists 100 at a time
    const some = await new Promise((done, fail) => reader.readEntries(done, fail));
    if (!some.length) return (await Promise.all(inner.map(filesOf))).flat();
    inner.push(...some);
  }
}
