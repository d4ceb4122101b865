// A zip archive of files that are compressed already: local headers, a central directory, no compression.

const TABLE = Uint32Array.from({length: 256}, (_, byte) => {
  let value = byte;
  for (let bit = 0; bit < 8; bit++) value = value & 1 ? (value >>> 1) ^ 0xedb88320 : value >>> 1;
  return value;
});

/** @param {Uint8Array} data */
function crc32(data) {
  let crc = 0xffffffff;
  for (const byte of data) crc = TABLE[(crc ^ byte) & 255] ^ (crc >>> 8);
  return (crc ^ 0xffffffff) >>> 0;
}

/**
 * @param {{name: string, data: Uint8Array}[]} files with different names; together less than 4 GB
 * @returns {Blob}
 */
export function zipOf(files) {
  const parts = [],
    directory = [];
  let offset = 0,
    size = 0;
  for (const {name, data} of files) {
    const path = new TextEncoder().encode(name);
    // version 2.0, names in UTF-8, stored, no time, checksum, sizes, length of the name, no extra field
    const fields = record([
      [2, 20],
      [2, 0x0800],
      [2, 0],
      [4, 0x00210000],
      [4, crc32(data)],
      [4, data.length],
      [4, data.length],
      [2, path.length],
      [2, 0],
    ]);
    const local = [record([[4, 0x04034b50]]), fields, path, data];
    parts.push(...local);
    const entry = [
      record([
        [4, 0x02014b50],
        [2, 20],
      ]),
      fields,
      record([
        [2, 0],
        [2, 0],
        [2, 0],
        [4, 0],
        [4, offset],
      ]),
      path,
    ];
    directory.push(...entry);
    size += entry.reduce((sum, one) => sum + one.length, 0);
    offset += local.reduce((sum, one) => sum + one.length, 0);
  }
  const end = record([
    [4, 0x06054b50],
    [2, 0],
    [2, 0],
    [2, files.length],
    [2, files.length],
    [4, size],
    [4, offset],
    [2, 0],
  ]);
  return new Blob(/** @type {BlobPart[]} */ ([...parts, ...directory, end]), {type: 'application/zip'});
}

/** Numbers as little-endian bytes. @param {[number, number][]} fields width in bytes and value */
function record(fields) {
  const bytes = new Uint8Array(fields.reduce((sum, [width]) => sum + width, 0));
  let place = 0;
  for (const [width, value] of fields)
    for (let byte = 0; byte < width; byte++) bytes[place++] = (value >>> (8 * byte)) & 255;
  return bytes;
}
