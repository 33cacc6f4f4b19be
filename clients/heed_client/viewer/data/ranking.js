// All heads by the weight of a pair of words, or by the largest weight from or to one word.
import { visible } from "heed/data/display.js";
import { cellOf } from "heed/data/matrix.js";

/** @typedef {import("heed/data/attention.js").Attention} Attention */
/** @typedef {import("heed/data/state.js").Settings} Settings */
/**
 * @typedef {object} Ranked
 * @property {number} layer @property {number} head @property {number} weight
 * @property {number | null} other  the word at the other end of the largest weight; null if both words are held,
 *   or if it is unknown
 */

/** Which words are left out where one word is held. @param {Pick<Attention, "isSelf">} attention */
export const leftOut = ({ isSelf }) =>
  isSelf ? "ignoring special tokens and the word itself" : "ignoring special tokens";

/**
 * The heads, the largest weight first; for one word, its largest weight, without itself, special and hidden words.
 * For inputs above the size of the small pictures the rows of a query come from the server, and weights to a key are the
 * largest of its cell in the pictures.
 * @param {Attention} attention @param {Settings} settings
 * @param {boolean} [hasSmall]  whether there are small pictures @returns {Promise<Ranked[]>}
 */
export async function rank(attention, settings, hasSmall = true) {
  const { layers, heads, m, n, isSelf } = attention;
  const { query, key } = settings;
  if (query === null && key === null) return [];
  const isSmall = hasSmall && attention.isSmall;
  const rows = query === null || isSmall ? null : await attention.row(query);
  const [queries, keys] = [visible(attention.rows, settings), visible(attention.columns, settings)];
  const weightOf = (/** @type {number} */ layer, /** @type {number} */ head) => {
    if (rows) {
      const start = (layer * heads + head) * n;
      return (/** @type {number} */ _, /** @type {number} */ j) => rows.numbers[start + j] * rows.unit;
    }
    const small = attention.small(layer, head);
    return (/** @type {number} */ i, /** @type {number} */ j) =>
      small.values[cellOf(i, m, small.m) * small.n + cellOf(j, n, small.n)];
  };
  const ranked = Array.from({ length: layers * heads }, (_, at) => {
    const [layer, head] = [Math.floor(at / heads), at % heads];
    const weight = weightOf(layer, head);
    if (query !== null && key !== null) return { layer, head, weight: weight(query, key), other: null };
    const places = query === null ? queries : keys;
    /** @type {Ranked} */
    let best = { layer, head, weight: -Infinity, other: null };
    const labels = query === null ? attention.rows : attention.columns;
    for (const place of places) {
      if (labels[place].special) continue; // most heads look at those most
      const value = query === null ? weight(place, Number(key)) : weight(query, place);
      if (value > best.weight && !(isSelf && place === (query ?? key))) best = { ...best, weight: value, other: place };
    }
    return rows || isSmall ? best : { ...best, other: null };
  });
  return ranked.filter(({ weight }) => Number.isFinite(weight)).sort((one, other) => other.weight - one.weight);
}
