// What a comparison shows, for the view and for pictures of it: two sides with one scale, and their difference.
import { Attention } from "heed/data/attention.js";
import { largest, renormalised } from "heed/data/display.js";
import { difference } from "heed/data/matrix.js";
import { drawn, globalMax } from "heed/views/hooks.js";

/** @typedef {import("heed/data/state.js").Settings} Settings */
/** @typedef {{attention: Attention, settings: Settings}} One  a side */
/** @typedef {{title: string, attention: Attention, settings: Settings, shown: import("heed/data/display.js").Shown}} Panel */

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

/** Which head or which sum of heads. @param {Attention} attention @param {Settings} settings */
export function placeOf({ layers, axis }, { layer, head, combine }) {
  const isOfLayers = combine === "rollout" || combine.startsWith("layers");
  const said = [
    layers > 1 && !isOfLayers && `${axis} ${layer}`,
    combine === "mean" || combine === "max" ? `${combine} of heads` : combine === "rollout" ? combine : `head ${head}`,
    combine.startsWith("layers") && `${combine.slice(7)} of layers`,
  ];
  return said.filter(Boolean).join(", ");
}

const LONGEST = 24; // characters of a text in a name

/** The names of two sides: what is different between them, and which head or which sum of heads.
 *  @param {One} one @param {One} other @returns {[first: string, second: string]} */
export function namesOf(one, other) {
  const differs = (/** @type {keyof Settings} */ key) =>
    JSON.stringify(one.settings[key]) !== JSON.stringify(other.settings[key]);
  const quoted = (/** @type {string} */ text) =>
    text && `“${text.length > LONGEST ? `${text.slice(0, LONGEST).trimEnd()}…` : text}”`;
  const name = (/** @type {One} */ { attention, settings }) => {
    const { model, text, pair, parameters } = settings;
    const options = Object.entries(parameters).map(([name, value]) => `${name} = ${JSON.stringify(value)}`);
    const said = [
      differs("model") && model,
      differs("text") && quoted(text),
      differs("pair") && quoted(pair),
      differs("parameters") && (options.join(", ") || "no options"),
      differs("kind") && settings.kind.replaceAll("_", " "),
      placeOf(attention, settings),
    ];
    return said.filter(Boolean).join(", ");
  };
  return [name(one), name(other)];
}

/** What the difference is. @param {[first: string, second: string]} names */
export const differenceOf = ([first, second]) => `${second} minus ${first}`;

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
  const names = namesOf(one, other ?? one);
  const side = (/** @type {One} */ { attention, settings }, /** @type {string} */ title) =>
    panel({ attention, settings: shared(settings, top) }, title);
  const first = side(one, `First: ${names[0]}`);
  if (!other) return [await first];
  const fits = other.attention.m === one.attention.m && other.attention.n === one.attention.n;
  const sides = [first, side(other, `Second: ${names[1]}`)];
  if (fits)
    sides.push(panel({ attention: between(one, other), settings: ofDifference(one.settings) }, differenceOf(names)));
  return Promise.all(sides);
}
