// The visible part of a matrix: which tokens are visible, and the colour level of each weight.
import { maskOf } from "heed/data/matrix.js";

/** @typedef {import("heed/data/matrix.js").Matrix} Matrix */
/** @typedef {import("heed/data/attention.js").Attention} Attention */
/** @typedef {import("heed/data/attention.js").Label} Label */
/** @typedef {import("heed/data/state.js").Settings} Settings */
/**
 * @typedef {object} Shown
 * @property {number} m @property {number} n  visible queries and keys
 * @property {number[]} rows  place of each visible query among all @property {number[]} columns  of each visible key
 * @property {Float32Array} values  [m * n] the weights, renormalised if the settings ask for it
 * @property {Float32Array} levels  [m * n] from 0 to 1; NaN = masked, below the threshold is 0
 * @property {number} low @property {number} high  values of the levels 0 and 1; of each row if the range is that of rows
 * @property {boolean} isDiverging  values on both sides of 0, which is at level 0.5
 * @property {number} error  largest error of a value
 */

export const LOOKS = { from: "looks at", to: "is looked at by" };
export const LOOKS_MOST = { from: "looks most at", to: "is looked at most by" };

const DECADES = 4; // of the logarithmic scale
const FINE = 0.002; // a share below it needs more digits than others
const MOST_DECIMALS = 4; // of the numbers of a scale
const TINY = 1e-9; // a number below is 0 in a cell
export const DOT = "·"; // in a cell, for a number that rounds to 0

/** Places of the tokens that are visible. @param {Label[]} labels @param {Settings} settings */
export function visible(labels, settings) {
  const places = labels.flatMap((label, place) => {
    const isHidden =
      (settings.hideFirst && place === 0) ||
      (settings.hideSpecial && label.special && !label.padding) ||
      (settings.hidePadding && label.padding);
    return isHidden ? [] : [place];
  });
  return places.length ? places : labels.map((_, place) => place);
}

/** Labels of at most `count` cells: a cell is special if one of its tokens is, and padding if all are.
 *  @param {Label[]} labels @param {number} count @returns {Label[]} */
export function poolLabels(labels, count) {
  if (labels.length === count) return labels;
  return Array.from({ length: count }, (_, i) => {
    const cell = labels.slice(Math.floor((i * labels.length) / count), Math.floor(((i + 1) * labels.length) / count));
    return {
      text: `${cell[0].text}…${cell[cell.length - 1].text}`,
      part: cell[0].part,
      special: cell.some(({ special }) => special),
      padding: cell.every(({ padding }) => padding),
    };
  });
}

/**
 * @param {Matrix} matrix @param {Label[]} rows @param {Label[]} columns @param {Settings} settings
 * @param {number} [globalMax]  largest value of all heads, for the global range
 * @returns {Shown}
 */
export function show(matrix, rows, columns, settings, globalMax) {
  // The first token that was generated is not the first one of the text.
  const ofRows = settings.view === "generate" ? { ...settings, hideFirst: false } : settings;
  const [places, keys] = [visible(rows, ofRows), visible(columns, settings)];
  const [m, n] = [places.length, keys.length];
  const values = new Float32Array(m * n);
  places.forEach((row, i) => keys.forEach((column, j) => (values[i * n + j] = matrix.values[row * matrix.n + column])));
  const isDiverging = settings.kind === "scores" || isDifference(settings.kind);
  const isMasked = isDiverging ? () => false : maskOf(matrix); // masked scores are -Infinity
  const factor = settings.renormalise && !isDiverging ? renormalise(values, n) : 1;
  const levels = new Float32Array(m * n);
  let high = settings.range === "global" && globalMax !== undefined ? globalMax : largest(values, isDiverging);
  for (let i = 0; i < m; i++) {
    const top = settings.range === "row" ? largest(values.subarray(i * n, (i + 1) * n), isDiverging) : high;
    for (let index = i * n; index < (i + 1) * n; index++) {
      const value = values[index];
      levels[index] = isMasked(places[i], keys[index - i * n]) ? NaN : levelOf(value, top, isDiverging, settings);
    }
  }
  if (settings.range === "row") high = NaN;
  return {
    m,
    n,
    rows: places,
    columns: keys,
    values,
    levels,
    low: isDiverging ? -high : 0,
    high,
    isDiverging,
    error: matrix.error * factor,
  };
}

/** The weights from a query, or if it is null to a key; null if that is hidden. The strongest colour is that of `top`:
 *  to a key the largest of these weights, which may be much smaller than that of the matrix.
 *  @param {Shown} shown @param {number | null} query @param {number | null} key */
export function lineOf({ m, n, rows, columns, values, high, isDiverging }, query, key) {
  const isFrom = query !== null;
  const index = isFrom ? rows.indexOf(query) : columns.indexOf(key ?? -1);
  if (index < 0) return null;
  const own = isFrom
    ? values.subarray(index * n, (index + 1) * n)
    : Float32Array.from({ length: m }, (_, i) => values[i * n + index]);
  const top = isFrom && Number.isFinite(high) ? high : largest(own, isDiverging);
  return { isFrom, places: isFrom ? columns : rows, values: own, top };
}

/** The largest weight of a line, and its place; null if there is none.
 *  @param {ReturnType<typeof lineOf>} line @param {(place: number) => boolean} [isWanted] */
export function mostOf(line, isWanted = () => true) {
  const known = line?.places.flatMap((place, i) => (isWanted(place) ? [{ place, value: line.values[i] }] : [])) ?? [];
  const most = known.reduce((most, one) => (one.value > most.value ? one : most), { place: -1, value: -Infinity });
  return Number.isFinite(most.value) ? most : null;
}

/** The level of a value's colour, from 0 to 1; NaN = masked. @param {number} value @param {number} top  value of the level 1
 *  @param {boolean} isDiverging @param {Pick<Settings, "scale" | "threshold">} settings */
export function levelOf(value, top, isDiverging, { scale, threshold }) {
  if (value === -Infinity || value !== value) return NaN;
  const level = Math.abs(value) < threshold ? 0 : scaled((isDiverging ? Math.abs(value) : value) / top, scale);
  return isDiverging ? 0.5 + (Math.sign(value) * level) / 2 : level;
}

/** How much the visible queries look at each visible key on average, as one row; null for scores and differences.
 *  @param {Shown} shown @param {Settings["scale"]} scale @returns {Shown | null} */
export function received({ m, n, rows, columns, values, isDiverging, error }, scale) {
  if (isDiverging) return null;
  const means = new Float32Array(n);
  for (let i = 0; i < m; i++)
    for (let j = 0; j < n; j++) {
      const value = values[i * n + j];
      if (Number.isFinite(value)) means[j] += value / m;
    }
  const high = largest(means, false);
  const levels = means.map((mean) => scaled(mean / high, scale));
  return { m: 1, n, rows: rows.slice(0, 1), columns, values: means, levels, low: 0, high, isDiverging, error };
}

/** The visible part of a head's small picture. @param {Matrix} matrix @param {Attention} attention
 *  @param {Settings} settings @param {number} [globalMax] */
export function showSmall(matrix, { rows, columns }, settings, globalMax) {
  return show(matrix, poolLabels(rows, matrix.m), poolLabels(columns, matrix.n), settings, globalMax);
}

/** The heads that are drawn, the selected one among them; several only in Head, none if heads or layers are combined.
 *  @param {Attention} attention @param {Settings} settings */
export function drawnHeads(attention, { view, combine, heads, head }) {
  if (combine !== "none") return [];
  const known = view === "head" ? heads.filter((one) => one < attention.heads) : [];
  return known.includes(head) ? known : [head];
}

/** @param {number} share  of the largest value, 0 to 1 @param {Settings["scale"]} scale */
export function scaled(share, scale) {
  if (!(share > 0)) return 0;
  const level = scale === "sqrt" ? Math.sqrt(share) : scale === "log" ? 1 + Math.log10(share) / DECADES : share;
  return Math.min(1, Math.max(0, level));
}

/**
 * Numbers of a scale with the levels of their colours: its ends and middle, and powers of ten if it is logarithmic.
 * If each row has its own scale, they are shares of the row's largest weight.
 * @param {Pick<Shown, "high" | "isDiverging">} shown @param {Settings["scale"]} scale
 * @param {boolean} [isShare]  whether numbers are per cent, or of differences in percentage points
 * @returns {{level: number, text: string}[]} from the lowest to the highest
 */
export function ticks({ high, isDiverging }, scale, isShare = false) {
  const top = Number.isNaN(high) ? 1 : high;
  let values = [top, scale === "sqrt" ? top / 4 : top / 2];
  const digits = scale === "log" || isDiverging ? Infinity : Math.max(...values.map(decimals));
  const isFine = scale === "log" || top < FINE;
  const text = (/** @type {number} */ value) => {
    if (Number.isNaN(high)) return `${Number((100 * value).toPrecision(3))}\u00a0%`;
    if (isShare) {
      const share = isFine ? `${Number((100 * value).toPrecision(2))}\u00a0%` : percent(value);
      return isDiverging ? withoutUnit(share) : share;
    }
    return digits <= MOST_DECIMALS ? value.toFixed(digits) : brief(value);
  };
  if (scale === "log") {
    const first = Math.ceil(Math.log10(top) - 1e-9) - 1;
    values = [top, ...Array.from({ length: DECADES }, (_, i) => 10 ** (first - i))].filter(
      (value) => value === top || (value < 0.2 * top && value > 6 * top * 10 ** -DECADES),
    );
  }
  const marks = values.map((value) => ({ level: scaled(value / top, scale), text: text(value) })).reverse();
  if (!isDiverging) return [{ level: 0, text: scale === "log" ? `≤ ${text(top * 10 ** -DECADES)}` : "0" }, ...marks];
  const sides = scale === "log" ? marks.filter((_, i) => (marks.length - 1 - i) % 2 === 0) : marks.slice(-1);
  const mirrored = sides.map(({ level, text }) => ({ level: 0.5 - level / 2, text: `−${text}` })).reverse();
  const right = sides.map(({ level, text }) => ({ level: 0.5 + level / 2, text }));
  const unit = isShare && scale !== "log" ? "\u00a0points" : ""; // a logarithmic scale has no room for it
  return [...mirrored, { level: 0.5, text: `0${unit}` }, ...right];
}

/** How many decimals a number of three digits has. @param {number} value */
const decimals = (value) => String(Number(value.toPrecision(3))).split(".")[1]?.length ?? 0;

/** @param {number} value */
const brief = (value) => minus(value < 1e-3 ? value.toExponential(0) : String(Number(value.toPrecision(3))));

/** @param {Float32Array} values @param {boolean} isDiverging */
export function largest(values, isDiverging) {
  let top = 0;
  for (const value of values) if (Number.isFinite(value)) top = Math.max(top, isDiverging ? Math.abs(value) : value);
  return top || 1;
}

/**
 * Divide rows by their sums. Returns the factor by which an error may grow: the weight and the sum both have errors.
 * @param {Float32Array} values @param {number} n
 */
function renormalise(values, n) {
  let factor = 1;
  for (let start = 0; start < values.length; start += n) {
    const row = values.subarray(start, start + n);
    const sum = row.reduce((total, value) => total + Math.max(0, value), 0);
    if (!(sum > 0)) continue;
    row.forEach((value, j) => (row[j] = value / sum));
    factor = Math.max(factor, (1 + n * largest(row, false)) / sum);
  }
  return factor;
}

/** A matrix with its visible weights renormalised, if the settings ask for it; for differences.
 *  @param {Matrix} matrix @param {Label[]} rows @param {Label[]} columns @param {Settings} settings @returns {Matrix} */
export function renormalised(matrix, rows, columns, settings) {
  if (!settings.renormalise || settings.kind === "scores") return matrix;
  const [places, keys] = [visible(rows, settings), visible(columns, settings)];
  const shown = show(matrix, rows, columns, settings);
  const values = matrix.values.slice();
  places.forEach((row, i) =>
    keys.forEach((column, j) => (values[row * matrix.n + column] = shown.values[i * shown.n + j])),
  );
  return { ...matrix, values, error: shown.error };
}

const FADED = 0.1; // levels below it fade into the page

/** The opacity of a word's colour: the lowest levels are those of the page. @param {number} level  NaN = none */
export const faded = (level) => (level === level ? Math.min(1, level / FADED) : 0);

/** The strength of a level: for values with two signs, the distance from 0. @param {Pick<Shown, "isDiverging">} shown @param {number} level */
export const strength = ({ isDiverging }, level) => (isDiverging ? 2 * Math.abs(level - 0.5) : level) || 0;

/** A number as text, with up to four significant digits. @param {number} value */
export function significant(value) {
  if (!Number.isFinite(value)) return format(value);
  const size = Math.abs(value);
  const text = size > 0 && size < 1e-4 ? value.toExponential(2) : String(Number(value.toPrecision(4)));
  return minus(text);
}

/** A number with a typographic minus sign. @param {string} text */
export const minus = (text) => text.replaceAll("-", "−");

/** A number in a cell, with at most four digits; 0 only for exactly 0, a dot for a number that rounds to 0.
 *  @param {number} value @param {number} top  the largest absolute number of all cells
 *  @param {boolean} [isShare]  whether it is written in per cent, as `percent` has it
 *  @param {number} [room]  characters: 3 only of a share, without decimals; with 6, numbers below 1 have three decimals */
export function short(value, top, isShare = false, room = 5) {
  const size = Math.abs(value);
  if (size < TINY) return "0";
  const isFine = room >= 6;
  if (isShare) {
    const share = percent(size);
    const isAlmostAll = size < WHOLE && (share.startsWith(">") || (room <= 3 && size >= 0.995));
    const text = room <= 3 ? (100 * size).toFixed(0) : top < 0.01 ? (100 * size).toFixed(3) : withoutUnit(share);
    if (Number(text) === 0 || text.startsWith("<")) return DOT;
    return `${value < 0 ? "−" : ""}${!isAlmostAll ? text : isFine ? ">\u200999.9" : ">99"}`;
  }
  const digits = size >= 100 ? 0 : size >= 10 ? 1 : top < (isFine ? 1 : 0.1) ? 3 : 2;
  const fixed = value.toFixed(digits);
  const text = top < 0.01 ? value.toExponential(0) : room >= 5 ? fixed : fixed.replace(/^(-?)0(?=\.\d{3})/, "$1");
  return Number(text) === 0 ? DOT : minus(text);
}

export const LEAST_SHARE = 0.0005; // that is not written as “< 0.1 %”

/** The end of a scale of colours, and the least number that has one: none of weights that are all written as “< 0.1 %”.
 *  @param {string} kind  the output @param {number} high  the largest number @param {number} [least] */
export function scaleEnd(kind, high, least = LEAST_SHARE) {
  const isPale = isOfWeights(kind) && !isDifference(kind) && high < least;
  return isPale ? { top: least, threshold: least } : { top: high, threshold: 0 };
}

/** The same for words, whose threshold may be larger, with the scale. @param {Settings} settings @param {number} high */
export function scaleOfWords({ kind, scale, threshold }, high) {
  const end = scaleEnd(kind, high);
  return { top: end.top, scale, threshold: Math.max(threshold, end.threshold) };
}

const WHOLE = 1 - 1e-6; // a sum of weights above it is 1, but for its rounding

/** A share as text, which no line break divides: 0 % and 100 % only of nothing and of all. @param {number} share
 *  @param {boolean} [isFine]  with a decimal, whatever its size */
export function percent(share, isFine = false) {
  if (share > 0 && share < LEAST_SHARE) return "<\u00a00.1\u00a0%";
  if (share >= 0.9995 && share < WHOLE) return ">\u00a099.9\u00a0%";
  return `${(100 * share).toFixed(isFine || share < 0.0995 || (share >= 0.995 && share < WHOLE) ? 1 : 0)}\u00a0%`;
}

/** The number of a percentage. @param {string} text */
export const withoutUnit = (text) => text.replace(/^>\u00a0|\u00a0%$/g, "");

/** A difference of shares as text, in percentage points. @param {number} change @param {string} [plus]  sign of what is above 0
 *  @param {boolean} [isFine]  with a decimal, whatever its size */
export function points(change, plus = "+", isFine = false) {
  const sign = Math.abs(change) < LEAST_SHARE ? "" : change > 0 ? plus : "−";
  return `${sign}${withoutUnit(percent(Math.abs(change), isFine))}\u00a0points`;
}

/** Whether an output has weights, or differences of weights, which are written in per cent. @param {string} kind */
export const isOfWeights = (kind) => kind.endsWith("weights");

/** Whether numbers are differences of those of an output. @param {string} kind */
export const isDifference = (kind) => kind.startsWith("difference");

/** A number of an output: a weight as a percentage, a difference of weights in percentage points.
 *  @param {string} kind  the output @param {number} value @param {number} [error] */
export function valueText(kind, value, error = 0) {
  if (!isOfWeights(kind) || !Number.isFinite(value)) return format(value, error);
  return isDifference(kind) ? points(value) : percent(value);
}

/** A weight as text, with as many digits as are certain. @param {number} value @param {number} [error] */
export function format(value, error = 0) {
  if (value === -Infinity || value !== value) return "masked";
  if (value === Infinity) return "masked in the first";
  if (error > 0) return minus(`${value.toFixed(3)} (± ${error.toPrecision(1)})`);
  return minus(value !== 0 && Math.abs(value) < 1e-4 ? value.toExponential(2) : value.toFixed(4));
}
