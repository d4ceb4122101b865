// Download: see outputs.py.
onValue(file => {
  if (!file) return;
  const url = URL.createObjectURL(new Blob([file.text], {type: `${file.kind};charset=utf-8`}));
  make('a', {href: url, download: file.name}).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
});
