// What a comparison shows, for the view and for pictures of it: two sides with one scale, and their difference.
import { Attention } from "heed/data/attention.js";
import { largest, renormalised } from "heed/data/display.js";
import { difference } from "heed/data/matrix.js";
import { drawn, globalMax } from "heed/views/hooks.js";

/** @typedef {import("heed/data/state.js").Settings} Settings */
/** @typedef {{attention: Attention, settings: Settings}} One  a side */
/** @typedef {{title: string, attention: Attention, settings: Settings, shown: import("heed/data/display.js").Shown}} Panel */

export const DIFFERENCE = "Second less first";

/** What the second matrix has more (or less, if negative) than the first, as attention with one head.
 *  @param {One} one @param {One} other */
export function between({ attention, settings }, { attention: second, settings: others }) {
  const load = async () => {
    const [before, after] = await Promise.all([attention.selected(settings), second.selected(others)]);
    const one = renormalised(before, attention.rows, attention.columns, settings);
    const other = renormalised(after, second.rows, second.columns, others);
    return difference(other, one);
  };
  const { m, n, rows, columns, axis } = attention;
  const small = () => ({ m: 0, n: 0, values: new Float32Array(), error: 0 });
  const all = async () => ({ numbers: (await load()).values, unit: 1 });
  return new Attention({
    layers: 1,
    heads: 1,
    m,
    n,
    rows,
    columns,
    axis,
    small,
    arrival: null,
    all,
    statistics: null,
    received: null,
    load,
    combine: null,
  });
}

/**
 * The largest value of both sides, for one scale of both; null if they have none in common.
 * @param {One} one @param {One} other @returns {Promise<number | null>}
 */
export async function topOf(one, other) {
  const isScores = one.settings.kind === "scores";
  if (one.settings.range === "row" || isScores !== (other.settings.kind === "scores")) return null;
  await Promise.all([one.attention.arrival?.whole, other.attention.arrival?.whole]);
  const top = async (/** @type {One} */ { attention, settings }) =>
    globalMax(attention, settings) ??
    largest(drawn(await attention.selected(settings), attention, settings).values, isScores);
  return Math.max(...(await Promise.all([top(one), top(other)])));
}

/** With the scale of both sides. @param {Settings} settings @param {number | null} top @returns {Settings} */
export const shared = (settings, top) => (top === null ? settings : { ...settings, range: "global" });

/** Of the difference. @param {Settings} settings @returns {Settings} */
export const ofDifference = (settings) => ({
  ...settings,
  layer: 0,
  head: 0,
  combine: "none",
  kind: "difference",
  range: "matrix",
});

/** @param {One} side @param {"First" | "Second"} name */
export const titleOf = ({ attention: { layers, axis }, settings: { layer, head } }, name) =>
  `${name}: ${layers > 1 ? `${axis} ${layer}, ` : ""}head ${head}`;

/** All that a comparison shows, side by side. @param {One} one @param {One | null} other @returns {Promise<Panel[]>} */
export async function panelsOf(one, other) {
  const top = other && (await topOf(one, other));
  const panel = async (/** @type {One} */ { attention, settings }, /** @type {string} */ title) => {
    const shown = drawn(
      await attention.selected(settings),
      attention,
      settings,
      settings.range === "global" ? (top ?? undefined) : undefined,
    );
    return { title, attention, settings, shown };
  };
  const side = (/** @type {One} */ { attention, settings }, /** @type {"First" | "Second"} */ name) =>
    panel({ attention, settings: shared(settings, top) }, titleOf({ attention, settings }, name));
  if (!other) return [await side(one, "First")];
  const fits = other.attention.m === one.attention.m && other.attention.n === one.attention.n;
  const sides = [side(one, "First"), side(other, "Second")];
  if (fits) sides.push(panel({ attention: between(one, other), settings: ofDifference(one.settings) }, DIFFERENCE));
  return Promise.all(sides);
}
