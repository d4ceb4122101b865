// A call of REST as a curl command and as a Python program, which run unchanged in the folder of the files.
//
// The key is not in the text: both read it from the environment, where a program should keep it.
const KEY = 'NNCLR_API_KEY';

/**
 * @param {import('./api.js').Call} call
 * @param {string} origin of the server
 * @param {boolean} keyed whether the server needs a key
 */
export function curlOf({method, path, body, files, downloads}, origin, keyed) {
  const key = keyed ? ` -H "Authorization: Bearer $${KEY}"` : '';
  const lines = (downloads ?? []).map(([name, from]) => `curl -sS${key} -o ${shell(name)} ${shell(origin + from)}`);
  const parts = [`curl -sS${key}`, ...(method === 'GET' ? [] : ['-X', method]), shell(origin + path)];
  if (files) {
    // curl reads a quoted name up to the quote, also with a semicolon or a comma in it
    for (const [name, file] of files) parts.push('\\\n  -F', shell(`${name}=@"${file.replace(/["\\]/g, '\\$&')}"`));
    for (const [name, text] of Object.entries(body ?? {})) parts.push('\\\n  --form-string', shell(`${name}=${text}`));
  } else if (body !== undefined) {
    parts.push('\\\n  -H', shell('Content-Type: application/json'), '\\\n  -d', shell(JSON.stringify(body)));
  }
  return [...lines, parts.join(' ')].join('\n');
}

/** @param {import('./api.js').Call} call @param {string} origin @param {boolean} keyed */
export function pythonOf({method, path, body, files, downloads}, origin, keyed) {
  const lines = [
    ...(keyed ? ['import os'] : []),
    ...(downloads?.length ? ['from pathlib import Path'] : []),
    ...(keyed || downloads?.length ? [''] : []),
    'import httpx',
    '',
  ];
  const headers = keyed ? `, headers={"Authorization": f"Bearer {os.environ['${KEY}']}"}` : '';
  lines.push(`client = httpx.Client(base_url=${python(origin)}, timeout=60${headers})`);
  for (const [name, from] of downloads ?? [])
    lines.push(`Path(${python(name)}).write_bytes(client.get(${python(from)}).content)`);
  const extra = files
    ? [
        `files=[${files.map(([name, file]) => `(${python(name)}, open(${python(file)}, "rb"))`).join(', ')}]`,
        `data=${python(body ?? {})}`,
      ]
    : body === undefined
      ? []
      : [`json=${python(body)}`];
  lines.push(
    `answer = client.request(${[python(method), python(path), ...extra].join(', ')})`,
    'answer.raise_for_status()',
    'print(answer.json() if answer.content else answer.status_code)',
  );
  return lines.join('\n');
}

/** @param {string} text */
function shell(text) {
  return `'${text.replaceAll("'", "'\\''")}'`;
}

/** A literal of Python. @param {any} value of JSON @returns {string} */
function python(value) {
  if (value === null) return 'None';
  if (typeof value === 'boolean') return value ? 'True' : 'False';
  if (Array.isArray(value)) return `[${value.map(python).join(', ')}]`;
  if (typeof value === 'object')
    return `{${Object.entries(value)
      .map(([key, one]) => `${python(key)}: ${python(one)}`)
      .join(', ')}}`;
  return JSON.stringify(value);
}
