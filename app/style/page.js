// Paste an image anywhere except in a text field to search by it.
document.addEventListener('paste', event => {
  if (event.target.closest?.('input, textarea')) return;
  const file = [...event.clipboardData.files].find(one => one.type.startsWith('image/'));
  const input = document.querySelector('#query input[type=file]');
  if (!file || !input) return;
  const transfer = new DataTransfer();
  transfer.items.add(file);
  input.files = transfer.files;
  input.dispatchEvent(new Event('change', {bubbles: true}));
});
// Without https, browsers offer neither the camera nor the clipboard, except on localhost: hide those buttons.
if (!window.isSecureContext) document.documentElement.classList.add('insecure');
