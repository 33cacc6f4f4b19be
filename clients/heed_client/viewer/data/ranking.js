// All heads by the weight of a pair of words, or by the largest weight from or to one word.
import { visible } from "heed/data/display.js";
import { cellOf } from "heed/data/matrix.js";
import { isPatchName } from "heed/data/picture.js";

/** @typedef {import("heed/data/attention.js").Attention} Attention */
/** @typedef {import("heed/data/state.js").Settings} Settings */
/**
 * @typedef {object} Ranked
 * @property {number} layer @property {number} head @property {number} weight
 * @property {number | null} other  the word at the other end of the largest weight; null if both words are held,
 *   or if it is unknown
 * @property {number} [row] @property {number} [column]  the words of its largest weight, while none is held
 */

/** Which words are left out where the page chooses one, in brackets; "" = none.
 *  @param {Pick<Attention, "isSelf" | "rows" | "columns">} attention @param {boolean} [isRanked]  whether heads are ranked */
export const leftOut = ({ isSelf, rows, columns }, isRanked = false) => {
  const hasOthers = [rows, columns].some((labels) => labels.some(isLeftOut));
  const said = [
    ...(hasOthers ? ["special tokens", "punctuation"] : []),
    ...(isSelf ? [isRanked ? "itself" : "the word itself"] : []),
  ];
  const last = isRanked && isSelf ? "; neighbours last" : "";
  return said.length ? ` (ignoring ${said.join(", ").replace(/, (?=[^,]*$)/, " and ")}${last})` : "";
};

/** Most heads look most at such tokens. @param {import("heed/data/attention.js").Label} label */
export const isLeftOut = ({ special, text }) => special || /^[\p{P}\p{S}]+$/u.test(text);

/** The places of the tokens that sentences name: those that are not left out, or all if there is no other.
 *  @param {import("heed/data/attention.js").Label[]} labels */
export function namedPlaces(labels) {
  const all = [...labels.keys()];
  const named = all.filter((place) => !isLeftOut(labels[place]));
  return named.length ? named : all;
}

/** @typedef {{row: number, column: number, value: number}} Pair */
/** The largest pairs that are known. @type {WeakMap<import("heed/data/display.js").Shown, Pair | null>} */
const pairs = new WeakMap();

/** The pair with the largest number, without tokens that are left out and pairs of a word with itself; null if there is none.
 *  @param {import("heed/data/display.js").Shown} shown @param {Attention} attention */
export function largestPair(shown, attention) {
  const known = pairs.get(shown);
  if (known !== undefined) return known;
  const found = findLargest(shown, attention);
  pairs.set(shown, found);
  return found;
}

/** @param {import("heed/data/display.js").Shown} shown @param {Attention} attention @returns {Pair | null} */
function findLargest({ n, rows, columns, values, levels }, attention) {
  let best = { row: -1, column: -1, value: -Infinity };
  rows.forEach((row, i) =>
    columns.forEach((column, j) => {
      const value = values[i * n + j];
      if (!(value > best.value) || Number.isNaN(levels[i * n + j]) || (attention.isSelf && row === column)) return;
      if (!isLeftOut(attention.rows[row]) && !isLeftOut(attention.columns[column])) best = { row, column, value };
    }),
  );
  return best.row < 0 ? null : best;
}

/** @typedef {(query: number, key: number) => number} WeightOf  the weight of a head */

/** The weight of a head between the held words; of one word its largest, without itself, hidden words and those that are left out, in Picture only of patches.
 *  @param {Attention} attention @param {Settings} settings @param {WeightOf} weightOf
 *  @returns {Pick<Ranked, "weight" | "other">} −∞ = there is none */
export function heldWeight({ rows, columns, isSelf }, settings, weightOf) {
  const { query, key, view } = settings;
  if (query !== null && key !== null) return { weight: weightOf(query, key), other: null };
  const labels = query === null ? rows : columns;
  let best = { weight: -Infinity, other: /** @type {number | null} */ (null) };
  for (const other of visible(labels, settings)) {
    if (isLeftOut(labels[other]) || (view === "picture" && !isPatchName(labels[other].text))) continue;
    const weight = query === null ? weightOf(other, Number(key)) : weightOf(query, other);
    if (weight > best.weight && !(isSelf && other === (query ?? key))) best = { weight, other };
  }
  return best;
}

/** A head by its largest pair; empty if it has none. @param {number} layer @param {number} head @param {Pair | null | undefined} pair
 *  @returns {Ranked[]} */
export const rankedPair = (layer, head, pair) =>
  pair ? [{ layer, head, weight: pair.value, other: null, row: pair.row, column: pair.column }] : [];

/** Whether a head's largest weight is between a word and the one before or after it, as that of many heads is for any word.
 *  @param {Attention} attention @param {Pick<Settings, "query" | "key" | "view">} settings @param {Ranked} ranked */
function isOfNeighbours({ isSelf, rows }, { query, key, view }, ranked) {
  const [row, column] = [ranked.row ?? query ?? ranked.other, ranked.column ?? key ?? ranked.other];
  if (!isSelf || view === "picture" || row === null || column === null || (query !== null && key !== null))
    return false;
  const between = rows.slice(Math.min(row, column) + 1, Math.max(row, column));
  return between.every(isLeftOut);
}

/** Heads by weight, the largest first; those of neighbours come last.
 *  @param {Attention} attention @param {Settings} settings @param {Ranked[]} heads */
export const inOrder = (attention, settings, heads) =>
  heads.sort((one, other) => {
    const [isLast, isOtherLast] = [one, other].map((head) => isOfNeighbours(attention, settings, head));
    return Number(isLast) - Number(isOtherLast) || other.weight - one.weight;
  });

/** The weights of a head's small picture. @param {Attention} attention @param {number} layer @param {number} head @returns {WeightOf} */
function smallWeights(attention, layer, head) {
  const { m, n } = attention;
  const small = attention.small(layer, head);
  return (i, j) => small.values[cellOf(i, m, small.m) * small.n + cellOf(j, n, small.n)];
}

/**
 * The heads by the weight of the held words.
 * For inputs above the size of the small pictures the rows of a query come from the server, and weights to a key are the
 * largest of its cell in the pictures.
 * @param {Attention} attention @param {Settings} settings
 * @param {boolean} [hasSmall]  whether there are small pictures @returns {Promise<Ranked[]>}
 */
export async function rank(attention, settings, hasSmall = true) {
  const { layers, heads, n } = attention;
  const { query, key } = settings;
  if (query === null && key === null) return [];
  const isSmall = hasSmall && attention.isSmall;
  const rows = query === null || isSmall ? null : await attention.row(query);
  const ranked = Array.from({ length: layers * heads }, (_, at) => {
    const [layer, head] = [Math.floor(at / heads), at % heads];
    const weightOf = rows
      ? (/** @type {number} */ _, /** @type {number} */ j) => rows.numbers[at * n + j] * rows.unit
      : smallWeights(attention, layer, head);
    const { weight, other } = heldWeight(attention, settings, weightOf);
    return { layer, head, weight, other: rows || isSmall ? other : null };
  });
  const known = ranked.filter(({ weight }) => Number.isFinite(weight));
  return inOrder(attention, settings, known);
}
