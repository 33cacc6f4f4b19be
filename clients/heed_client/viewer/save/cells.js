// The cells of a saved matrix, their numbers, and frames around those that are pinned.
import { isOfWeights, short } from "heed/data/display.js";
import { largestChange } from "heed/data/matrix.js";
import { css, textOn } from "heed/data/palettes.js";
import { MARK, round } from "heed/save/svg.js";

/** @typedef {{m: number, n: number, levels: Float32Array}} Levels  [m * n], from 0 to 1; NaN = masked */
/** @typedef {{left: number, top: number, width: number, height: number}} Grid  where it begins, and the size of a cell */

export const VECTOR = 128; // rows and columns up to which all cells are rectangles
export const WITH_NUMBER = 36; // size of a cell that has its number in it

/** @param {Levels} levels @param {Uint32Array} table  of colours @param {Grid} grid */
export function cells({ m, n, levels }, table, { left, top, width, height }) {
  const parts = [];
  for (let i = 0; i < m; i++)
    for (let j = 0; j < n; j++) {
      const level = levels[i * n + j];
      if (level !== level || (m > VECTOR && level === 0)) continue;
      const [x, y] = [round(left + j * width), round(top + i * height)];
      parts.push(
        `<rect x="${x}" y="${y}" width="${round(width)}" height="${round(height)}" fill="${css(table, level)}"/>`,
      );
    }
  return parts.join("\n");
}

/** The numbers in the cells, but of masked ones. @param {Levels & {values: Float32Array}} shown @param {Uint32Array} table
 *  @param {Grid} grid @param {string} [kind]  the output */
export function numbersIn({ m, n, values, levels }, table, { left, top, width, height }, kind = "") {
  const most = largestChange(values);
  return Array.from({ length: m * n }, (_, at) => {
    if (Number.isNaN(levels[at])) return "";
    const [x, y] = [round(left + ((at % n) + 0.5) * width), round(top + (Math.floor(at / n) + 0.5) * height + 3.5)];
    return `<text x="${x}" y="${y}" text-anchor="middle" font-size="10" fill="${textOn(table, levels[at])}">${short(values[at], most, isOfWeights(kind))}</text>`;
  }).filter(Boolean);
}

/** Frames around a row, a column and the cell of both. @param {{m: number, n: number}} size @param {number} row  -1 = none
 *  @param {number} column @param {Grid} grid */
export function framesAround({ m, n }, row, column, { left, top, width, height }) {
  const frame = (
    /** @type {number[]} */ [x, y, width, height],
    /** @type {string} */ colour,
    /** @type {number} */ line,
  ) =>
    `<rect x="${x}" y="${y}" width="${width}" height="${height}" fill="none" stroke="${colour}" stroke-width="${line}"/>`;
  const around = (/** @type {number[]} */ box, colour = "#222", line = 1) =>
    frame(box.map(round), "#fff", line + 2) + frame(box.map(round), colour, line);
  const [x, y] = [left + column * width, top + row * height];
  return [
    row < 0 ? "" : around([left, y, n * width, height]),
    column < 0 ? "" : around([x, top, width, m * height]),
    row < 0 || column < 0 ? "" : around([x, y, width, height], MARK, 3),
  ].filter(Boolean);
}
