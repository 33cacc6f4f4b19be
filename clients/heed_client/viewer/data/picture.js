// The weights of a picture's patches.
import { LEAST_SHARE, largest, levelOf, scaleEnd, strength } from "heed/data/display.js";

/** @typedef {import("heed/data/display.js").Shown} Shown */
/** @typedef {import("heed/data/state.js").Settings} Settings */
/** @typedef {import("heed/views/picture_view.js").Patches} Patches */
/** @typedef {Pick<import("heed/data/attention.js").Attention, "rows" | "columns">} Sides  the queries and the keys */
/**
 * @typedef {object} Weights  of each position
 * @property {Float32Array} values @property {Float32Array} levels  NaN in both = masked
 * @property {Uint8Array} hidden  1 = it is hidden
 * @property {number} high  value of the strongest colour: the largest of a patch, in this picture or in all of a text @property {boolean} isDiverging
 */

const GROWTH = 0.7; // below 1: low weights are seen on a picture, too

const COARSE = 48; // px of the longer side of a picture whose pixels are drawn as squares

/** Whether the pixels of a picture are drawn as squares, at any size. @param {{width: number, height: number}} size */
export const isCoarse = ({ width, height }) => Math.max(width, height) < COARSE;

/** The opacity of a level's colour over a picture. @param {Pick<Shown, "isDiverging">} shown @param {number} level */
export const cover = (shown, level) => strength(shown, level) ** GROWTH;

/** The place of a patch in words. @param {number} patch  from 0, row by row @param {number} columns */
export const patchName = (patch, columns) => `row ${Math.floor(patch / columns)}, column ${patch % columns}`;

/** A short name of a patch for small spaces; other words are unchanged. @param {string} text */
export const briefly = (text) => text.replace(/^row (\d+), column (\d+)$/, "$1,$2");

/** Whether a label is the name of a patch. @param {string} text */
export const isPatchName = (text) => briefly(text) !== text;

/** A word in quotation marks, the name of a patch without them. @param {string} text */
export const inQuotes = (text) => (isPatchName(text) ? text : `“${text}”`);

/** The place of the first query in the text: in a generated text it is the last token of the prompt, which predicts the
 *  first new one. @param {Sides} sides @param {Pick<Settings, "view" | "kind">} settings */
export const firstQuery = ({ rows, columns }, { view, kind }) =>
  view === "generate" && kind === "weights" ? columns.length - rows.length + 1 : 0;

/** A word in quotation marks, with its place in the text if it is repeated.
 *  @param {Sides} sides @param {Pick<Settings, "view" | "kind">} settings @param {"rows" | "columns"} axis @param {number} index */
export function nameIn(sides, settings, axis, index) {
  const first = axis === "rows" ? firstQuery(sides, settings) : 0;
  const place = first + index;
  const { text } = sides[axis][index];
  const labels = [...sides.columns.slice(0, first), ...sides[axis]];
  const isRepeated = labels.some((label, other) => other !== place && label.text === text);
  return `${inQuotes(text)}${isRepeated ? ` (${place})` : ""}`;
}

/** The places of a picture's patches in a prompt; null if they are not in it.
 *  @param {import("heed/data/attention.js").Label[]} prompt @param {Patches} patches @returns {{start: number, end: number} | null} */
export const patchesIn = (prompt, { special, rows, columns }) =>
  prompt[special]?.text === patchName(0, columns) ? { start: special, end: special + rows * columns } : null;

/** A matrix in which the patches are one column, at the place of the first: the sum of their weights, with which the scale may end.
 *  @param {Shown} shown @param {{start: number, end: number}} patches @param {Settings} settings @returns {Shown} */
export function joinPatches(shown, { start, end }, settings) {
  const { m, n } = shown;
  const isPatch = shown.columns.map((place) => place >= start && place < end);
  const first = isPatch.indexOf(true);
  const kept = [...shown.columns.keys()].filter((j) => !isPatch[j] || j === first);
  const columns = kept.map((j) => shown.columns[j]);
  const [values, levels] = [new Float32Array(m * kept.length), new Float32Array(m * kept.length)];
  const rows = Array.from({ length: m }, (_, i) => shown.values.subarray(i * n, (i + 1) * n));
  const sums = rows.map((row) => row.reduce((sum, value, j) => sum + (isPatch[j] ? value : 0), 0));
  const high = Math.max(shown.high, ...sums.map(Math.abs)); // NaN if each row has its own
  rows.forEach((row, i) => {
    const top = Number.isNaN(high) ? Math.max(largest(row, shown.isDiverging), Math.abs(sums[i])) : high;
    kept.forEach((j, at) => {
      const isMasked = Number.isNaN(shown.levels[i * n + j]);
      const value = j === first && !isMasked ? sums[i] : row[j];
      values[i * kept.length + at] = value;
      levels[i * kept.length + at] = isMasked ? NaN : levelOf(value, top, shown.isDiverging, settings);
    });
  });
  return { ...shown, n: kept.length, columns, values, levels, low: shown.isDiverging ? -high : 0, high };
}

/** The weights from a query to each key, or to a key from each query.
 *  @param {Shown} shown @param {number} count  positions @param {Patches} patches @param {"from" | "to"} direction @param {number} place
 *  @param {Settings} settings @param {number} [high]  of the strongest colour; else the largest value of a patch @returns {Weights} */
export function weightsOf(
  { n, rows, columns, values, levels, isDiverging },
  count,
  patches,
  direction,
  place,
  settings,
  high = undefined,
) {
  const [own, others] = direction === "from" ? [rows, columns] : [columns, rows];
  const index = own.indexOf(place);
  const all = new Float32Array(count).fill(NaN);
  if (index >= 0)
    others.forEach((other, i) => {
      const cell = direction === "from" ? index * n + i : i * n + index;
      all[other] = Number.isNaN(levels[cell]) ? NaN : values[cell];
    });
  const shown = new Set(index < 0 ? [] : others);
  const hidden = Uint8Array.from(all, (_, position) => Number(!shown.has(position)));
  return coloured(all, hidden, patches, isDiverging, settings, high);
}

/** Weights with the colours of patches, none if all are very small; a token whose weight is larger than that of every patch
 *  has the strongest.
 *  @param {Float32Array} values @param {Uint8Array} hidden @param {Patches} patches
 *  @param {boolean} isDiverging @param {Settings} settings @param {number} [high]  of the strongest colour @returns {Weights} */
export function coloured(
  values,
  hidden,
  { special, rows, columns },
  isDiverging,
  { scale, kind },
  high = largest(values.slice(special, special + rows * columns), isDiverging),
) {
  const { top, threshold } = scaleEnd(kind, high, Math.min(LEAST_SHARE, 0.5 / (rows * columns))); // of many patches, all are small
  const levels = values.map((value, position) =>
    hidden[position] ? 0 : levelOf(value, top, isDiverging, { scale, threshold }),
  );
  return { values, levels, hidden, high: top, isDiverging };
}

/** The largest weight from any query to a patch, for one scale of their pictures. @param {Shown} shown @param {Patches} patches */
export function largestOfPatches({ n, columns, values, isDiverging }, { special, rows, columns: breadth }) {
  const isPatch = columns.map((place) => place >= special && place < special + rows * breadth);
  return largest(
    values.filter((_, cell) => isPatch[cell % n]),
    isDiverging,
  );
}

/** The generated word with the largest weight on a patch, which is looked at first. @param {Shown} shown @param {Patches} patches */
export function openingWord({ n, rows, columns, values }, { special, rows: lines, columns: breadth }) {
  let best = -1;
  values.forEach((value, cell) => {
    const place = columns[cell % n] - special;
    if (place >= 0 && place < lines * breadth && !(value <= values[best])) best = cell;
  });
  return best < 0 ? rows[rows.length - 1] : rows[Math.floor(best / n)];
}

/** A sign before the weight of a token that is larger than that of every patch. @param {Weights} weights @param {number} position */
export const beyond = ({ values, hidden, high }, position) =>
  !hidden[position] && Number.isFinite(values[position]) && Math.abs(values[position]) > high ? "▲ " : "";

/** The visible patch with the largest weight; null = no patch is visible.
 *  @param {Weights} weights @param {Patches} patches */
export function strongest({ values, hidden }, { special, rows, columns }) {
  /** @type {number | null} */
  let best = null;
  for (let position = special; position < special + rows * columns; position++)
    if (!hidden[position] && Number.isFinite(values[position]) && !(best !== null && values[best] >= values[position]))
      best = position;
  return best;
}

const ALMOST = 1 - 1e-5; // of the weights on patches, if another token has the rest

/** The share of the weights on patches; 1 only if no other token has a weight. @param {Weights} weights @param {Patches} patches */
export function shareOfPatches({ values, hidden }, { special, rows, columns }) {
  const end = special + rows * columns;
  const share = values
    .subarray(special, end)
    .reduce((sum, value, patch) => sum + (hidden[special + patch] || !Number.isFinite(value) ? 0 : value), 0);
  const hasOthers = values.some((value, position) => value > 0 && (position < special || position >= end));
  return hasOthers ? Math.min(share, ALMOST) : share;
}

/** The patch that an arrow key leads to; from a special token the first one; null for other keys.
 *  @param {number} place @param {string} key @param {Patches} patches */
export function moved(place, key, { special, rows, columns }) {
  const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[key];
  if (!step) return null;
  if (place < special || place >= special + rows * columns) return special;
  const [row, column] = [Math.floor((place - special) / columns) + step[0], ((place - special) % columns) + step[1]];
  return row < 0 || column < 0 || row >= rows || column >= columns ? place : special + row * columns + column;
}
