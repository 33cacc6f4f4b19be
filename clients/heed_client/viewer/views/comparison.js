// The parts of a comparison, for the view and for pictures of it: two sides with one scale, and their difference.
import { counterparts, textsOf } from "heed/data/alignment.js";
import { Attention } from "heed/data/attention.js";
import { drawnHeads, isOfWeights, largest, renormalised } from "heed/data/display.js";
import { difference, maskedChange, maskOf } from "heed/data/matrix.js";
import { LEAST } from "heed/server/ablation.js";
import { drawn, globalMax } from "heed/views/hooks.js";

/** @typedef {import("heed/data/attention.js").Label} Label */
/** @typedef {import("heed/data/state.js").Settings} Settings */
/** @typedef {{attention: Attention, settings: Settings}} One  a side */
/** @typedef {{title: string, attention: Attention, settings: Settings, shown: import("heed/data/display.js").Shown}} Panel */

/** @typedef {{rows: number[], columns: number[], isWhole: boolean, isSame: boolean}} Pairs  for each query and key of the first, the place of
 *    its counterpart in the second, -1 = none; whether all of them have one, and whether both have as many at the same places */

/** Which words of two sides are compared with each other. @param {Attention} one @param {Attention} other @returns {Pairs} */
export function pairsOf(one, other) {
  const pairs = (/** @type {"rows" | "columns"} */ axis) => counterparts(textsOf(one[axis]), textsOf(other[axis]));
  const rows = pairs("rows");
  const columns = one.isSelf && other.isSelf ? rows : pairs("columns");
  const isEqual = (/** @type {number[]} */ places, /** @type {number} */ count) =>
    places.length === count && places.every((place, i) => place === i);
  return {
    rows,
    columns,
    isWhole: [...rows, ...columns].every((place) => place >= 0),
    isSame: isEqual(rows, other.m) && isEqual(columns, other.n),
  };
}

/** The second matrix minus the first, as attention with one head. NaN = one of the words has no counterpart.
 *  @param {One} one @param {One} other @param {Pairs} pairs */
export function between({ attention, settings }, { attention: second, settings: others }, pairs) {
  const load = async () => {
    const [before, after] = await Promise.all([attention.selected(settings), second.selected(others)]);
    const one = renormalised(before, attention.rows, attention.columns, settings);
    const other = renormalised(after, second.rows, second.columns, others);
    const values = Float32Array.from({ length: m * n }, (_, at) => {
      const [row, column] = [pairs.rows[Math.floor(at / n)], pairs.columns[at % n]];
      return row < 0 || column < 0 ? NaN : other.values[row * other.n + column];
    });
    const change = difference({ ...one, values, error: other.error }, one);
    const isRounding = isOfWeights(settings.kind) && !change.values.some((value) => Math.abs(value) > LEAST);
    if (isRounding) change.values = change.values.map((value) => (Number.isFinite(value) ? 0 : value));
    const [isMasked, isMaskedInOther] = [maskOf(before), maskOf(after)];
    return maskedChange(change, (i, j) => isMasked(i, j) && isMaskedInOther(pairs.rows[i], pairs.columns[j]));
  };
  const { m, n, axis } = attention;
  const rows = bothLabels(attention.rows, second.rows, pairs.rows);
  const columns =
    attention.isSelf && second.isSelf ? rows : bothLabels(attention.columns, second.columns, pairs.columns);
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

/** The labels of the first, with both words if another word replaces one.
 *  @param {Label[]} labels @param {Label[]} others
 *  @param {number[]} places */
const bothLabels = (labels, others, places) =>
  labels.map((label, i) => {
    const other = others[places[i]]?.text ?? label.text;
    return other === label.text ? label : { ...label, text: `${label.text} / ${other}` };
  });

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

/** The settings with the scale of both sides.
 *  @param {Settings} settings @param {number | null} top @returns {Settings} */
export const shared = (settings, top) => (top === null ? settings : { ...settings, range: "global" });

/** The settings of the difference. @param {Settings} settings @returns {Settings} */
export const ofDifference = (settings) => ({
  ...settings,
  layer: 0,
  head: 0,
  combine: "none",
  kind: isOfWeights(settings.kind) ? "difference_of_weights" : "difference",
  range: "matrix",
});

/** @type {Partial<Record<Settings["combine"], string>>} */
const OF_ALL_HEADS = { mean: "mean of heads", max: "max of heads", rollout: "rollout" };

/** The name of the head, or of the mean or sum of heads. @param {Attention} attention @param {Settings} settings */
export function placeOf(attention, settings) {
  const { layers, axis } = attention;
  const { layer, head, combine } = settings;
  const count = drawnHeads(attention, settings).length;
  const isOfLayers = combine === "rollout" || combine.startsWith("layers");
  const said = [
    layers > 1 && !isOfLayers && `${axis} ${layer}`,
    OF_ALL_HEADS[combine] ?? (count > 1 ? `mean of ${count} heads` : `head ${head}`),
    combine.startsWith("layers") && `${combine.slice(7)} of layers`,
  ];
  return said.filter(Boolean).join(", ");
}

const NAMED = 4; // heads that are switched off; of more their number is said
const LONGEST = 28; // characters of a text in a name

/** A text in a name: if it is long, from the word before the first difference from the other text.
 *  @param {string} text @param {string} other */
function excerpt(text, other) {
  if (text.length <= LONGEST) return text;
  let start = 0;
  while (start < text.length && text[start] === other[start]) start++;
  const word = text.lastIndexOf(" ", start - 1);
  const before = text.lastIndexOf(" ", word - 1) + 1;
  const from = start < LONGEST / 2 ? 0 : start - before <= LONGEST / 2 ? before : start - LONGEST / 2;
  if (from + LONGEST >= text.length) return `${from > 0 ? "…" : ""}${text.slice(from)}`;
  const end = text.lastIndexOf(" ", from + LONGEST);
  return `${from > 0 ? "…" : ""}${text.slice(from, end > start ? end : from + LONGEST)}…`;
}

/** The names of two sides: their differences, and the head or the sum of heads.
 *  @param {One} one @param {One} other @returns {[first: string, second: string]} */
export function namesOf(one, other) {
  const differs = (/** @type {keyof Settings} */ key) =>
    JSON.stringify(one.settings[key]) !== JSON.stringify(other.settings[key]);
  const name = (/** @type {One} */ { attention, settings }, /** @type {Settings} */ others) => {
    const { model, parameters } = settings;
    const options = Object.entries(parameters).map(([name, value]) => `${name} = ${JSON.stringify(value)}`);
    const quoted = (/** @type {"text" | "pair"} */ key) =>
      differs(key) && settings[key] && `“${excerpt(settings[key], others[key])}”`;
    const said = [
      differs("model") && model,
      quoted("text"),
      quoted("pair"),
      differs("parameters") && (options.join(", ") || "no options"),
      differs("kind") && settings.kind.replaceAll("_", " "),
      placeOf(attention, settings),
    ];
    return said.filter(Boolean).join(", ");
  };
  return [name(one, other.settings), name(other, one.settings)];
}

/** The name of the difference; a head that both have is named once. @param {[first: string, second: string]} names
 *  @param {One} one @param {One} other */
export function differenceOf([first, second], one, other) {
  const place = `, ${placeOf(one.attention, one.settings)}`;
  const isSame = place === `, ${placeOf(other.attention, other.settings)}` && first.endsWith(place);
  if (isSame) return `Difference: ${second.slice(0, -place.length)} minus ${first}`;
  const heads = namesInSentence([first, second], one, other);
  const layer = heads ? first.slice(0, first.lastIndexOf(", ")) : "";
  const isOneLayer = heads && layer && heads[1] !== second;
  return isOneLayer
    ? `Difference: ${heads[1]} minus ${first.slice(layer.length + 2)} (${layer})`
    : `Difference: ${second} minus ${first}`;
}

/** The names of two heads in one sentence, in which a common layer is named once; null if other things differ.
 *  @param {[first: string, second: string]} names @param {One} one @param {One} other @returns {[first: string, second: string] | null} */
function namesInSentence([first, second], one, other) {
  const [place, others] = [one, other].map(({ attention, settings }) => placeOf(attention, settings));
  if (first !== place || second !== others) return null;
  const layer = place.slice(0, place.lastIndexOf(", ") + 1);
  return [first, layer && second.startsWith(layer) ? second.slice(layer.length + 1) : second];
}

/** The heads that are switched off, or how many are. @param {Attention} attention @param {Settings} settings */
export const headsOff = (attention, settings) => {
  const { ablated } = settings;
  if (ablated.length > NAMED) return `${ablated.length} heads off`;
  if (ablated.length > 1) {
    const names = ablated.map(([layer, head]) => (attention.layers > 1 ? `${layer}.${head}` : head));
    return `heads ${names.slice(0, -1).join(", ")} and ${names[names.length - 1]} off`;
  }
  const [[layer, head]] = ablated;
  return `${placeOf(attention, { ...settings, layer, head, combine: "none" })} off`;
};

/** Titles where heads are switched off. @param {Attention} attention @param {Settings} settings
 *  @returns {[before: string, after: string, change: string]} */
export const ablatedTitles = (attention, settings) => [
  "before: all heads on",
  `after: ${settings.ablated.length > 1 ? `${settings.ablated.length} heads off` : headsOff(attention, settings)}`,
  "change: after minus before",
];

/** All maps of a comparison, side by side. @param {One} one @param {One | null} other
 *  @param {[first: string, second: string, difference: string] | null} [titles] @returns {Promise<Panel[]>} */
export async function panelsOf(one, other, titles = null) {
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
  const first = side(one, titles?.[0] ?? `First: ${names[0]}`);
  if (!other) return [await first];
  const pairs = pairsOf(one.attention, other.attention);
  const sides = [first, side(other, titles?.[1] ?? `Second: ${names[1]}`)];
  sides.push(
    panel(
      { attention: between(one, other, pairs), settings: ofDifference(one.settings) },
      titles?.[2] ?? differenceOf(names, one, other),
    ),
  );
  return Promise.all(sides);
}
