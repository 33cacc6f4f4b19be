// The visible part of a matrix, and the places of its cells.

/** @typedef {{x: number, y: number, zoom: number}} Port  first column and row in sight, in cells; zoom 1 = the whole matrix */
/**
 * @typedef {object} Plot  the rectangle of the cells in the canvas, in CSS pixels
 * @property {number} left @property {number} top @property {number} width @property {number} height
 * @property {number} w @property {number} h  size of a cell at zoom 1
 * @property {number} m @property {number} n  queries and keys
 */

export const WIDEST = 192; // px of a cell at zoom 1
const TALLEST = 112;
const LOWEST = 128; // px of a map of few rows
export const LARGEST = 96; // px of a cell at the highest zoom

/**
 * The rectangle of m x n cells that fills a width, with square cells unless the height is too small for them.
 * @param {number} m @param {number} n @param {number} left @param {number} top @param {number} width @param {number} height
 * @param {number} [lowest]  px
 * @returns {Plot}
 */
export function fit(m, n, left, top, width, height, lowest = LOWEST) {
  const w = Math.min(WIDEST, width / n);
  const h = Math.min(height / m, TALLEST, Math.max(w, lowest / m));
  return { left, top, width: w * n, height: h * m, w, h, m, n };
}

/** The port within the matrix, at a zoom that exists. @param {Port} port @param {Plot} plot @returns {Port} */
export function clamp({ x, y, zoom }, { width, height, w, h, m, n }) {
  const bounded = Math.min(Math.max(1, LARGEST / w), Math.max(1, zoom));
  const within = (/** @type {number} */ place, /** @type {number} */ count, /** @type {number} */ sight) =>
    Math.max(0, Math.min(count - sight, place));
  return {
    x: within(x, n, width / (w * bounded)),
    y: within(y, m, height / (h * bounded)),
    zoom: bounded,
  };
}

/** Zoom by a factor about a point of the canvas. @param {Port} port @param {Plot} plot @param {number} factor
 *  @param {number} px @param {number} py @returns {Port} */
export function zoomAt(port, plot, factor, px, py) {
  const { zoom } = clamp({ ...port, zoom: port.zoom * factor }, plot);
  const [column, row] = [
    port.x + (px - plot.left) / (plot.w * port.zoom),
    port.y + (py - plot.top) / (plot.h * port.zoom),
  ];
  const x = column - (px - plot.left) / (plot.w * zoom);
  const y = row - (py - plot.top) / (plot.h * zoom);
  return clamp({ x, y, zoom }, plot);
}

/** Move by CSS pixels. @param {Port} port @param {Plot} plot @param {number} dx @param {number} dy */
export const panBy = (port, plot, dx, dy) =>
  clamp({ ...port, x: port.x - dx / (plot.w * port.zoom), y: port.y - dy / (plot.h * port.zoom) }, plot);

/** The port moved so far that a cell is in sight. @param {Port} port @param {Plot} plot @param {number} row @param {number} column */
export function reveal(port, plot, row, column) {
  const [columns, rows] = [plot.width / (plot.w * port.zoom), plot.height / (plot.h * port.zoom)];
  const x = Math.min(column, Math.max(port.x, column + 1 - columns));
  const y = Math.min(row, Math.max(port.y, row + 1 - rows));
  return clamp({ ...port, x, y }, plot);
}

/** The cell at a point of the canvas; null beside the map. @param {Port} port @param {Plot} plot
 *  @param {number} px @param {number} py @returns {{row: number, column: number} | null} */
export function cellAt(port, plot, px, py) {
  const [dx, dy] = [px - plot.left, py - plot.top];
  if (dx < 0 || dy < 0 || dx >= plot.width || dy >= plot.height) return null;
  const column = Math.min(plot.n - 1, Math.floor(port.x + dx / (plot.w * port.zoom)));
  const row = Math.min(plot.m - 1, Math.floor(port.y + dy / (plot.h * port.zoom)));
  return { row, column };
}
