"use strict";
// Run the examples of the page: send each form and show the response.

const MAX_SHOWN = 20000; // characters of a response that are shown

function selectedPhoto() {
  return document.getElementById("photo").files[0];
}

async function asBase64(file) {
  const bytes = new Uint8Array(await file.arrayBuffer());
  let text = "";
  for (let i = 0; i < bytes.length; i += 32768) {
    text += String.fromCharCode(...bytes.subarray(i, i + 32768));
  }
  return btoa(text);
}

async function requestOf(form) {
  const headers = {};
  const key = document.getElementById("key").value;
  if (key) headers["Authorization"] = `Bearer ${key}`;
  if (form.dataset.accept) headers["Accept"] = form.dataset.accept;
  const request = { method: form.dataset.method, headers };
  const files = form.dataset.files.split(",").filter(Boolean);
  const json = form.querySelector("textarea");
  const needsPhoto = files.length > 0 || (json !== null && json.value.includes("BASE64_OF_PHOTO"));
  if (needsPhoto && !selectedPhoto()) throw new Error("Choose an image at the top of the page first.");
  if (json !== null) {
    headers["Content-Type"] = "application/json";
    request.body = needsPhoto ? json.value.replaceAll("BASE64_OF_PHOTO", await asBase64(selectedPhoto())) : json.value;
  } else if (files.length > 0) {
    request.body = new FormData();
    for (const name of files) request.body.append(name, selectedPhoto());
    for (const field of form.querySelectorAll("input[name]")) request.body.append(field.name, field.value);
  }
  return request;
}

async function show(response, output) {
  const kind = response.headers.get("Content-Type") || "";
  const head = `${response.status}  ${kind}\n${response.headers.get("Server-Timing")}\n` +
    `X-Request-ID: ${response.headers.get("X-Request-ID")}\n\n`;
  if (kind.startsWith("image/")) {
    const image = document.createElement("img");
    image.src = URL.createObjectURL(await response.blob());
    output.replaceChildren(head, image);
    return;
  }
  if (!kind.includes("json") && !kind.startsWith("text/")) {
    output.textContent = `${head}${(await response.arrayBuffer()).byteLength} bytes`;
    return;
  }
  let text = await response.text();
  if (kind.includes("json")) text = JSON.stringify(JSON.parse(text), null, 1);
  output.textContent = head + (text.length > MAX_SHOWN ? `${text.slice(0, MAX_SHOWN)} ...` : text);
}

async function run(event) {
  event.preventDefault();
  const form = event.currentTarget;
  const output = form.querySelector("output");
  output.textContent = "...";
  try {
    const path = form.querySelector(".path").value;
    await show(await fetch(path.replace(/^\/*/, "./"), await requestOf(form)), output);
  } catch (error) {
    output.textContent = error.message;
  }
}

function openNamed() {
  const named = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (named instanceof HTMLDetailsElement) named.open = true;
}

// Behind a reverse proxy, only the browser knows the address of the server, with a prefix of the path.
const address = new URL(".", location.href).href.replace(/\/$/, "");
for (const command of document.querySelectorAll("pre")) {
  command.textContent = command.textContent.replaceAll(document.body.dataset.base, address);
}
for (const form of document.querySelectorAll("form.run")) form.addEventListener("submit", run);
document.getElementById("settings").addEventListener("submit", (event) => event.preventDefault());
window.addEventListener("hashchange", openNamed);
openNamed();
