// The weights of the words of a causal text: rows as long as the text before each word, or all in one block.

/** @param {Float32Array[]} rows  of successive words, each for all matrices @param {number} n  keys of the last row
 *  @returns {Float32Array} [matrices, rows, keys], with 0 for later words */
export function fromRows(rows, n) {
  const matrices = rows[rows.length - 1].length / n;
  const block = new Float32Array(matrices * rows.length * n);
  rows.forEach((row, i) => {
    const width = row.length / matrices;
    for (let matrix = 0; matrix < matrices; matrix++)
      block.set(row.subarray(matrix * width, (matrix + 1) * width), (matrix * rows.length + i) * n);
  });
  return block;
}

/** @param {Float32Array} block  [matrices, rows, keys] @param {number} count  rows @param {number} n  keys
 *  @returns {Float32Array[]}  each row without later words */
export function toRows(block, count, n) {
  const matrices = block.length / (count * n);
  return Array.from({ length: count }, (_, i) => {
    const width = n - count + 1 + i;
    const row = new Float32Array(matrices * width);
    for (let matrix = 0; matrix < matrices; matrix++) {
      const start = (matrix * count + i) * n;
      row.set(block.subarray(start, start + width), matrix * width);
    }
    return row;
  });
}
