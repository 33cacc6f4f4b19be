// Lines between queries at the left and keys at the right, as strong as the weights; weak ones are below strong ones.

import { strength } from "heed/data/display.js";
import { isDark } from "heed/data/palettes.js";

/** @typedef {import("heed/data/display.js").Shown} Shown */
/** @typedef {{side: "query" | "key", index: number}} Word  one of the visible queries or keys */
/**
 * @typedef {object} Bundle  the lines of a head
 * @property {Shown} shown
 * @property {string} colour
 */
/**
 * @typedef {object} Sight  the visible part of the lines
 * @property {Word | null} word  only the lines of this word; null = of all words in sight
 * @property {number} top  px that are scrolled @property {number} row  px of a word
 * @property {number} width @property {number} height  px of the canvas
 * @property {(query: number, key: number) => boolean} isDrawn  by the texts that the two visible tokens belong to
 * @property {boolean} hasAll  without a selected word: all lines are drawn, not only the strongest of each query in sight
 */

export const STRONGEST = 3; // lines of a query that are drawn while no word is selected
const BUCKETS = 12; // of levels; the lines of a bucket are one path
export const FAINTEST = 0.02; // level that is drawn
const MOST = 3000; // lines in a frame, the strongest first
const FAR = 64; // lines of a word to words out of sight, the strongest
const THICKEST = 4; // px
const PALEST = { light: 0.25, dark: 0.45 }; // opacity of the lines of few heads
const FEW = 3; // heads
export const STRIP = 0.6; // opacity of the strongest strip behind a word

/** The opacity of a line. @param {number} level @param {number} heads  that are drawn @param {boolean} isDark */
export const opacityOf = (level, heads, isDark) =>
  heads > FEW ? level : Math.max(isDark ? PALEST.dark : PALEST.light, level);

/** @param {CanvasRenderingContext2D} context @param {Bundle[]} bundles @param {Sight} sight */
export function drawLines(context, bundles, sight) {
  const { row, top, width } = sight;
  const perHead = Math.max(200, Math.floor(MOST / bundles.length));
  const most = largestOf(bundles, sight);
  const heads = bundles.map(({ shown, colour }) => {
    const buckets = collect(shown, sight, most);
    let first = BUCKETS;
    for (let count = 0; first > 0 && count + buckets[first - 1].length / 2 <= perHead;)
      count += buckets[--first].length / 2;
    if (first === BUCKETS) buckets[--first].length = 2 * perHead;
    return { colour, buckets, first };
  });
  for (let bucket = 0; bucket < BUCKETS; bucket++)
    for (const { colour, buckets, first } of heads) {
      const ends = buckets[bucket];
      if (bucket < first || ends.length === 0) continue;
      const level = (bucket + 0.5) / BUCKETS;
      context.strokeStyle = colour;
      context.globalAlpha = opacityOf(level, heads.length, isDark());
      context.lineWidth = 0.5 + (THICKEST - 0.5) * level;
      context.beginPath();
      for (let at = 0; at < ends.length; at += 2) {
        const [start, end] = [(ends[at] + 0.5) * row - top, (ends[at + 1] + 0.5) * row - top];
        context.moveTo(0, start);
        context.bezierCurveTo(width * 0.4, start, width * 0.6, end, width, end);
      }
      context.stroke();
    }
  context.globalAlpha = 1;
}

/** The level of the strongest line of the selected word, in all heads; of all words 1.
 *  @param {Bundle[]} bundles @param {Pick<Sight, "word" | "isDrawn">} sight */
export function largestOf(bundles, { word, isDrawn }) {
  if (!word) return 1;
  let most = 0;
  for (const { shown } of bundles)
    for (let other = 0; other < (word.side === "query" ? shown.n : shown.m); other++) {
      const [i, j] = word.side === "query" ? [word.index, other] : [other, word.index];
      if (isDrawn(i, j)) most = Math.max(most, strength(shown, shown.levels[i * shown.n + j]));
    }
  return most || 1;
}

/** Queries and keys of the lines by level, in turns. @param {Shown} shown @param {Sight} sight
 *  @param {number} most  the strongest level @returns {number[][]} */
function collect(shown, { word, top, row, height, isDrawn, hasAll }, most) {
  const { m, n, levels } = shown;
  /** @type {number[][]} */
  const buckets = Array.from({ length: BUCKETS }, () => []);
  const add = (/** @type {number} */ i, /** @type {number} */ j) => {
    const level = strength(shown, levels[i * n + j]) / most;
    if (level >= FAINTEST && isDrawn(i, j)) buckets[Math.min(BUCKETS - 1, Math.floor(level * BUCKETS))].push(i, j);
  };
  const [first, end] = [Math.max(0, Math.floor(top / row)), Math.ceil((top + height) / row)];
  if (word) {
    const isQuery = word.side === "query";
    const count = isQuery ? n : m;
    const [start, step] = isQuery ? [word.index * n, 1] : [word.index, n];
    const least = strongestFar(shown, start, step, count, first, end);
    for (let other = 0; other < count; other++)
      if ((other >= first && other < end) || strength(shown, levels[start + other * step]) >= least)
        add(isQuery ? word.index : other, isQuery ? other : word.index);
  } else if (!hasAll)
    for (let i = first; i < Math.min(m, end); i++) {
      const least = strongestOf(shown, i, isDrawn);
      for (let j = 0; j < n; j++) if (strength(shown, levels[i * n + j]) >= least) add(i, j);
    }
  else
    for (let i = 0; i < m; i++) {
      const isInSight = i >= first && i < end;
      for (let j = isInSight ? 0 : first; j < (isInSight ? n : Math.min(n, end)); j++) add(i, j);
    }
  return buckets;
}

/** The level of the weakest of the ``STRONGEST`` lines of a query. @param {Shown} shown @param {number} query
 *  @param {Sight["isDrawn"]} isDrawn */
export function strongestOf(shown, query, isDrawn) {
  const strongest = new Float32Array(STRONGEST); // from the weakest
  for (let key = 0; key < shown.n; key++) {
    const level = strength(shown, shown.levels[query * shown.n + key]);
    if (!(level > strongest[0]) || !isDrawn(query, key)) continue;
    strongest[0] = level;
    strongest.sort();
  }
  return strongest[0];
}

/** The level of the weakest of the ``FAR`` strongest lines of a word to words out of sight; 0 if there are fewer.
 *  @param {Shown} shown @param {number} start  the word's first cell @param {number} step  between two of its cells
 *  @param {number} count @param {number} first @param {number} end  of the words in sight */
function strongestFar(shown, start, step, count, first, end) {
  const far = new Float32Array(count);
  let length = 0;
  for (let other = 0; other < count; other++) {
    if (other === first) other = Math.min(end, count);
    if (other < count) far[length++] = strength(shown, shown.levels[start + other * step]);
  }
  return length > FAR ? far.subarray(0, length).sort()[length - FAR] : 0;
}
