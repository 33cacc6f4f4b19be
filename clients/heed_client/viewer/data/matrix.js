// Matrices of weights: one head's [m, n] in a flat array, and computations with them.

/**
 * @typedef {object} Matrix
 * @property {number} m  queries
 * @property {number} n  keys
 * @property {Float32Array} values  [m * n], row by row
 * @property {number} error  largest error of a value: half a step of uint8, 0 if it is exact
 * @property {boolean} [isOfCausal]  whether no head of the answer has a weight above the diagonal, if that is known
 */

/**
 * The matrix of a head from the numbers of an answer: floats, or levels of `unit` each with an error of at most half.
 * @param {Float32Array | Uint8Array} numbers  [m * n] @param {number} m @param {number} n @param {number} unit
 * @returns {Matrix}
 */
export function toMatrix(numbers, m, n, unit) {
  if (numbers instanceof Float32Array) return { m, n, values: numbers, error: 0 };
  return { m, n, values: Float32Array.from(numbers, (level) => level * unit), error: unit / 2 };
}

/**
 * Which cells are masked: zeros on diagonals without any weight, as a causal mask or a window leaves them, and keys
 * without any weight. A softmax is above 0 everywhere else. 8-bit weights may be rounded to 0, so only a causal mask of
 * all heads is known.
 * @param {Matrix} matrix @returns {(row: number, column: number) => boolean}
 */
export function maskOf({ m, n, values, error, isOfCausal = true }) {
  let [first, last] = [n, -m]; // diagonals that have weights, column - row
  const used = new Uint8Array(n);
  for (let i = 0; i < m; i++)
    for (let j = 0; j < n; j++) {
      if (values[i * n + j] === 0) continue;
      if (j - i < first) first = j - i;
      if (j - i > last) last = j - i;
      used[j] = 1;
    }
  if (first > last || (error > 0 && (last > n - m || !isOfCausal))) return () => false;
  const [least, most] = [error > 0 ? -m : first, last];
  return (row, column) => column - row > most || column - row < least || (error === 0 && !used[column]);
}

/** Whether no query has a weight on a later key. @param {Matrix} matrix */
export const isCausal = ({ m, n, values }) =>
  values.every((value, at) => value === 0 || (at % n) - Math.floor(at / n) <= n - m);

/** Names of the numbers that describe a head: those of the server's `head_statistics`, and the share of one key. */
export const STATISTICS = ["entropy", "distance", "first", "diagonal", "previous", "held"];

/**
 * The mean or the maximum of matrices of one size.
 * @param {Matrix[]} matrices @param {"mean" | "max"} by @returns {Matrix}
 */
export function join(matrices, by) {
  const { m, n } = matrices[0];
  const values = new Float32Array(m * n);
  for (let i = 0; i < values.length; i++) {
    let result = by === "max" ? -Infinity : 0;
    for (const { values: one } of matrices) result = by === "max" ? Math.max(result, one[i]) : result + one[i];
    values[i] = by === "max" ? result : result / matrices.length;
  }
  return { m, n, values, error: Math.max(...matrices.map(({ error }) => error)) };
}

/**
 * Attention rollout (Abnar and Zuidema, 2020, https://arxiv.org/abs/2005.00928): in each layer half the heads' mean and
 * half the identity, each row divided by its sum; the product over the layers.
 * @param {Matrix[]} layers  the mean over heads of each layer, first layer first @returns {Matrix}
 */
export function rollout(layers) {
  const { m, n } = layers[0];
  let result = new Float32Array(m * n).map((_, i) => Number(i % (n + 1) === 0));
  for (const { values } of layers) {
    const next = new Float32Array(m * n);
    for (let i = 0; i < m; i++) {
      let sum = 1;
      for (let k = 0; k < n; k++) sum += values[i * n + k];
      for (let k = 0; k < n; k++) {
        const share = (values[i * n + k] + Number(i === k)) / sum;
        if (share !== 0) for (let j = 0; j < n; j++) next[i * n + j] += share * result[k * n + j];
      }
    }
    result = next;
  }
  return { m, n, values: result, error: Math.max(...layers.map(({ error }) => error)) };
}

/**
 * Means over the queries that have any weight, of weights divided by their sum: entropy in nats, distance in tokens, and
 * the shares of the first key, of the query's own, of the one before and of `held`. Query i is at key i + n - m.
 * @param {Matrix} matrix @param {number[]} queries  places of those that count @param {number[]} keys
 * @param {number | null} held  place of a key @returns {number[]}
 */
export function statistics({ m, n, values }, queries, keys, held) {
  const sums = [0, 0, 0, 0, 0, 0];
  const counts = new Set(keys);
  let [rows, rowsWithPrevious] = [0, 0];
  for (const i of queries) {
    const own = i + n - m;
    let [total, entropy, distance] = [0, 0, 0];
    for (const j of keys) total += values[i * n + j];
    if (!(total > 0)) continue;
    for (const j of keys) {
      const share = values[i * n + j] / total;
      if (share > 0) entropy -= share * Math.log(share);
      distance += share * Math.abs(own - j);
    }
    rows++;
    sums[0] += entropy;
    sums[1] += distance;
    sums[2] += values[i * n + keys[0]] / total;
    if (counts.has(own)) sums[3] += values[i * n + own] / total;
    if (held !== null && counts.has(held)) sums[5] += values[i * n + held] / total;
    if (counts.has(own - 1)) {
      rowsWithPrevious++;
      sums[4] += values[i * n + own - 1] / total;
    }
  }
  return sums.map((sum, index) => sum / Math.max(1, index === 4 ? rowsWithPrevious : rows));
}

/** The cell of a place if `count` places are pooled to `cells` cells, as the server pools.
 *  @param {number} place @param {number} count  of places @param {number} cells */
export const cellOf = (place, count, cells) => Math.floor(((place + 1) * cells - 1) / count);

/**
 * The maximum of each cell of at most k x k, as the server pools: cell i has the places from floor(i m / k).
 * @param {Float32Array | Uint8Array} numbers  [m * n], from the answer @param {number} m @param {number} n
 * @param {number} unit  what 1 stands for @param {number} k @returns {Matrix}
 */
export function pool(numbers, m, n, unit, k) {
  if (m <= k && n <= k) return toMatrix(numbers, m, n, unit);
  const [rows, columns] = [Math.min(m, k), Math.min(n, k)];
  const pooled =
    numbers instanceof Uint8Array ? new Uint8Array(rows * columns) : new Float32Array(rows * columns).fill(-Infinity);
  const columnOf = Uint32Array.from({ length: n }, (_, j) => cellOf(j, n, columns));
  for (let i = 0; i < m; i++) {
    const base = cellOf(i, m, rows) * columns;
    for (let j = 0; j < n; j++) {
      const [value, cell] = [numbers[i * n + j], base + columnOf[j]];
      if (value > pooled[cell]) pooled[cell] = value;
    }
  }
  return toMatrix(pooled, rows, columns, unit);
}

/** The change of the weights; cells that are masked in both are masked.
 *  @param {Matrix} after @param {Matrix} before @returns {Matrix} */
export function difference(after, before) {
  const values = after.values.map((value, i) =>
    value === before.values[i] ? (value === -Infinity ? value : 0) : value - before.values[i],
  );
  return { m: after.m, n: after.n, values, error: after.error + before.error };
}

/** A change with -Infinity where both matrices are masked. @param {Matrix} change
 *  @param {(row: number, column: number) => boolean} isMasked  in both @returns {Matrix} */
export const maskedChange = (change, isMasked) => ({
  ...change,
  values: change.values.map((value, at) => (isMasked(Math.floor(at / change.n), at % change.n) ? -Infinity : value)),
});

/** The largest absolute number that is finite. @param {Float32Array} values */
export const largestChange = (values) =>
  values.reduce((top, value) => (Number.isFinite(value) ? Math.max(top, Math.abs(value)) : top), 0);
