// The attention of one run: small pictures of all heads at once, single heads when they are shown.
import { isCausal, join, pool, rollout, statistics, toMatrix } from "heed/data/matrix.js";

/** @typedef {import("heed/data/matrix.js").Matrix} Matrix */
/** @typedef {import("heed/data/state.js").Settings} Settings */

/**
 * @typedef {object} Label  of a query or a key
 * @property {string} text
 * @property {boolean} special  begins, separates or ends texts
 * @property {boolean} padding
 * @property {number} part  0 or 1 in a pair
 * @property {boolean} [joined]  continues the word before it
 */
/** @typedef {{queries: number[], keys: number[], held: number | null}} Counted  places of tokens that are visible; a key */
/** @typedef {{numbers: Float32Array | Uint8Array, unit: number}} Whole  [layers, heads, m, n]; 1 stands for `unit` */
/**
 * @typedef {object} Parts
 * @property {number} layers @property {number} heads @property {number} m @property {number} n
 * @property {Label[]} rows  queries @property {Label[]} columns  keys
 * @property {(layer: number, head: number) => Matrix} small  one head, pooled to at most POOL x POOL cells
 * @property {((layer: number, head: number, counted: Counted) => number[]) | null} statistics  of one head, as
 *   STATISTICS names them
 * @property {(() => Promise<Float32Array>) | null} received  [layers, heads, n] mean weight of each key, and then the
 *   statistics are of all tokens; null = it is among the statistics, which are of the counted tokens
 * @property {(layer: number, head: number) => Promise<Matrix>} load  one head
 * @property {((settings: Settings) => Promise<Matrix>) | null} combine  computed by the server; null = computed here
 * @property {((query: number) => Promise<Whole>) | null} [row]  [layers, heads, n] of one query; null = as the heads are
 * @property {((settings: Settings) => Matrix | null) | null} [peek]  the selected matrix, if it is here; null = load
 * @property {() => Promise<Whole>} all
 * @property {import("heed/data/arrival.js").Arrival | null} arrival  of the small pictures; null = all have arrived
 * @property {string} axis  name of the axis `layers`: layer, or row of a batch
 */

export const POOL = 64; // cells of a small picture, each way
const QUICK = 1 << 16; // weights of a head
const CACHED = 48; // matrices

export class Attention {
  /** @param {Parts} parts */
  constructor(parts) {
    this.layers = parts.layers;
    this.heads = parts.heads;
    this.m = parts.m;
    this.n = parts.n;
    this.rows = parts.rows;
    this.columns = parts.columns;
    /** The part that has arrived; null = all. */
    this.arrival = parts.arrival;
    this._small = memoize(parts.small, this.heads);
    // The scale of the small pictures is unknown until the end.
    parts.arrival?.whole.then(() => (this._small = memoize(parts.small, this.heads))).catch(() => {});
    /** The numbers that describe a head, as STATISTICS names them; null = unknown. */
    this.statistics = parts.statistics;
    this.received = parts.received;
    this.axis = parts.axis;
    /** All weights. */
    this.all = parts.all;
    this._load = parts.load;
    this._row = parts.row ?? null;
    this._combine = parts.combine;
    this._peek = parts.peek ?? null;
    /** @type {boolean | undefined} */
    this._isOfCausal = undefined;
    /** @type {Map<string, Promise<Matrix>>} */
    this._cache = new Map();
    /** @type {WeakMap<Promise<Matrix>, Matrix>} */
    this._loaded = new WeakMap();
  }

  /** One head, pooled to at most POOL x POOL cells by maximum; one of the first `ready`.
   *  @param {number} layer @param {number} head */
  small(layer, head) {
    return this._marked(this._small(layer, head));
  }

  /** A matrix with what the others say of it: in one head alone all weights above the diagonal may be rounded to 0.
   *  @param {Matrix} matrix */
  _marked(matrix) {
    if (matrix.error === 0 || !this.isWhole) return matrix;
    const { layers, heads } = this;
    this._isOfCausal ??= Array.from({ length: layers * heads }, (_, i) => i).every((i) =>
      isCausal(this._small(Math.floor(i / heads), i % heads)),
    );
    matrix.isOfCausal = this._isOfCausal;
    return matrix;
  }

  /** Number of heads whose small pictures have arrived: the first ones. */
  get ready() {
    return Math.min(this.arrival?.ready ?? Infinity, this.layers * this.heads);
  }

  get isWhole() {
    return this.arrival?.isWhole ?? true;
  }

  /** Whether the cells of the small pictures are single weights. */
  get isSmall() {
    return this.m <= POOL && this.n <= POOL;
  }

  /** Whether one head is small enough to be loaded for a look at it. */
  get isQuick() {
    return this.m * this.n <= QUICK;
  }

  /** Whether queries and keys are the same tokens. */
  get isSelf() {
    return this.rows === this.columns;
  }

  /** One head. @param {number} layer @param {number} head @returns {Promise<Matrix>} */
  matrix(layer, head) {
    return this._cached(`${layer}.${head}`, async () => this._marked(await this._load(layer, head)));
  }

  /** The weights of one query in all heads: [layers, heads, n]. @param {number} query @returns {Promise<Whole>} */
  async row(query) {
    if (this._row) return this._row(query);
    const { numbers, unit } = await this.all();
    const { layers, heads, m, n } = this;
    const rows = new Float32Array(layers * heads * n);
    for (let i = 0; i < layers * heads; i++)
      rows.set(numbers.subarray((i * m + query) * n, (i * m + query + 1) * n), i * n);
    return { numbers: rows, unit };
  }

  /** The matrix that the settings select: one head, or heads or layers combined. @param {Settings} settings @returns {Promise<Matrix>} */
  selected(settings) {
    const { layer, head, combine } = settings;
    const combined = this._combine;
    if (combine === "none") return this.matrix(layer, head);
    return this._cached(`${combine} ${layer}.${head}`, () => (combined ? combined(settings) : this._join(settings)));
  }

  /** The matrix that the settings select, if it has arrived. @param {Settings} settings @returns {Matrix | null} */
  peek(settings) {
    const { layer, head, combine } = settings;
    const known = this._cache.get(combine === "none" ? `${layer}.${head}` : `${combine} ${layer}.${head}`);
    return (known && this._loaded.get(known)) ?? this._peek?.(settings) ?? null;
  }

  /** @param {Settings} settings @returns {Promise<Matrix>} */
  async _join({ combine, layer, head }) {
    const all = (/** @type {number} */ count) => [...Array(count).keys()];
    if (combine === "rollout") {
      const layers = all(this.layers).map((l) => Promise.all(all(this.heads).map((h) => this._load(l, h))));
      return rollout((await Promise.all(layers)).map((heads) => join(heads, "mean")));
    }
    const places = combine.startsWith("layers")
      ? all(this.layers).map((l) => [l, head])
      : all(this.heads).map((h) => [layer, h]);
    return join(await Promise.all(places.map(([l, h]) => this._load(l, h))), combine.endsWith("max") ? "max" : "mean");
  }

  /** @param {string} key @param {() => Promise<Matrix>} make */
  _cached(key, make) {
    let found = this._cache.get(key);
    this._cache.delete(key);
    if (!found) {
      found = make();
      const promise = found;
      promise.then(
        (matrix) => this._loaded.set(promise, matrix),
        () => this._cache.delete(key),
      );
    }
    this._cache.set(key, found); // the most recently used is removed last
    const [oldest] = this._cache.keys();
    if (this._cache.size > Math.max(2, Math.min(CACHED, Math.floor(5e7 / (this.m * this.n)))))
      this._cache.delete(oldest);
    return found;
  }
}

/**
 * Attention whose weights have all arrived, or arrive during the run.
 * @param {Float32Array | Uint8Array} weights  [layers, heads, m, n]
 * @param {number} unit  what 1 in `weights` stands for
 * @param {number} layers @param {number} heads @param {Label[]} rows @param {Label[]} columns @param {string} axis
 * @param {import("heed/data/arrival.js").Arrival | null} [arrival]  of the weights; null = all have arrived
 */
export function complete(weights, unit, layers, heads, rows, columns, axis, arrival = null) {
  const [m, n] = [rows.length, columns.length];
  const part = (/** @type {number} */ layer, /** @type {number} */ head) =>
    weights.subarray((layer * heads + head) * m * n, (layer * heads + head + 1) * m * n);
  const one = (/** @type {number} */ layer, /** @type {number} */ head) => toMatrix(part(layer, head), m, n, unit);
  return new Attention({
    layers,
    heads,
    m,
    n,
    rows,
    columns,
    axis,
    arrival,
    all: async () => {
      await arrival?.whole;
      return { numbers: weights, unit };
    },
    small: (layer, head) => pool(part(layer, head), m, n, unit, POOL),
    statistics: (layer, head, { queries, keys, held }) => statistics(one(layer, head), queries, keys, held),
    received: null,
    load: async (layer, head) => {
      await arrival?.whole;
      return one(layer, head);
    },
    combine: null,
  });
}

/** @param {string[]} words @param {Set<string>} [specials]  texts of special tokens @returns {Label[]} */
export const plainLabels = (words, specials = new Set()) =>
  words.map((text) => ({ text, special: specials.has(text), padding: false, part: 0 }));

/**
 * @template T
 * @param {(layer: number, head: number) => T} compute @param {number} heads
 * @returns {(layer: number, head: number) => T}
 */
function memoize(compute, heads) {
  /** @type {T[]} */
  const known = [];
  return (layer, head) => (known[layer * heads + head] ??= compute(layer, head));
}
