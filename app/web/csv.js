// Tables as CSV.

/** @param {import('./rows.js').Rows} rows @param {number[]} chosen */
export function csvOf(rows, chosen) {
  const keys = [...new Set(chosen.flatMap(row => Object.keys(rows.metadata[row])))];
  const cell = (/** @type {any} */ value) => {
    const text =
      value === undefined || value === null ? '' : typeof value === 'object' ? JSON.stringify(value) : String(value);
    // a spreadsheet would run a formula
    const safe = typeof value === 'string' && /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;
    return /[",\n\r]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
  };
  const lines = chosen.map(row => [rows.ids[row], ...keys.map(key => rows.metadata[row][key])].map(cell).join(','));
  return `${['id', ...keys].map(cell).join(',')}\n${lines.join('\n')}\n`;
}
