// Tables as CSV.

/** @param {import('./rows.js').Rows} rows @param {number[]} chosen */
export function csvOf(rows, chosen) {
  const keys = [...new Set(chosen.flatMap(row => Object.keys(rows.metadata[row])))];
  const cell = (/** @type {any} */ value) => {
    const text = value === undefined || value === null ? '' : typeof value === 'object' ? JSON.stringify(value) : String(value);
    const safe = typeof value === 'string' && /^[=+\-@\t\r]/.test(text) ? `'${text}` : text; // a spreadsheet would run a formula
    return /[",\n\r]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
  };
  const lines = chosen.map(row => [rows.ids[row], ...keys.map(key => rows.metadata[row][key])].map(cell).join(','));
  return `${['id', ...keys].map(cell).join(',')}\n${lines.join('\n')}\n`;
}

/** Read a table with a first line of names. @param {string} text @returns {Record<string, string>[]} */
export function readCsv(text) {
  const rows = [['']];
  let quoted = false;
  for (let i = text.startsWith('\ufeff') ? 1 : 0; i < text.length; i++) {
    const row = rows[rows.length - 1], sign = text[i];
    if (sign === '"' && quoted && text[i + 1] === '"') row[row.length - 1] += text[++i];
    else if (sign === '"') quoted = !quoted;
    else if (quoted) row[row.length - 1] += sign;
    else if (sign === ',') row.push('');
    else if (sign === '\n') rows.push(['']);
    else if (sign !== '\r') row[row.length - 1] += sign;
  }
  const [names = [], ...lines] = rows.filter(row => row.length > 1 || row[0]);
  return lines.map(line => Object.fromEntries(names.map((name, i) => [name.trim(), line[i] ?? ''])));
}
