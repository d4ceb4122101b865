// Ctrl+V anywhere but in a text field is a picture for the query.
document.addEventListener('paste', event => {
  if (event.target.closest?.('input, textarea')) return;
  const file = [...event.clipboardData.files].find(one => one.type.startsWith('image/'));
  const input = document.querySelector('#query input[type=file]');
  if (!file || !input) return;
  const carrier = new DataTransfer();
  carrier.items.add(file);
  input.files = carrier.files;
  input.dispatchEvent(new Event('change', {bubbles: true}));
});
// Off https and this machine, browsers give pages neither the camera nor the clipboard: hide what would only fail.
if (!window.isSecureContext) document.documentElement.classList.add('insecure');
