// Draws a matrix with its words, bars and crosshair.
import { DOT, short } from "heed/data/display.js";
import { largestChange } from "heed/data/matrix.js";
import { css, textOn } from "heed/data/palettes.js";
import { fontOf, prepare } from "heed/views/draw/canvas.js";
import { fit, WIDEST } from "heed/views/draw/port.js";

/** @typedef {import("heed/data/attention.js").Label} Label */
/** @typedef {import("heed/data/display.js").Shown} Shown */
/** @typedef {import("heed/views/draw/port.js").Plot} Plot */
/** @typedef {import("heed/views/draw/port.js").Port} Port */
/** @typedef {Plot & {bar: number, font: number, isLevel: boolean, hasRowNames: boolean}} Layout  px of the longest bar, px of words, whether those of columns are level, and those of rows are drawn */
/** @typedef {{row: number, column: number}} Cell  among the visible ones */
/**
 * @typedef {object} Scene  what is drawn
 * @property {Shown} shown @property {boolean} isShare  whether numbers are per cent @property {Layout} plot @property {Port} port
 * @property {import("heed/views/draw/mips.js").Mips} mips @property {Uint32Array} table
 * @property {boolean} isOnOneScale  with other maps
 * @property {[rows: string, columns: string]} axes  names @property {string[]} rows  words of the visible queries @property {string[]} columns  of the visible keys
 * @property {import("heed/views/draw/canvas.js").Words} words
 * @property {ReturnType<typeof import("heed/views/draw/canvas.js").themeColours>} colours
 * @property {number} base  a number that is written as a dot
 * @property {Cell | null} hover @property {number | null} linked  a column that is pointed at elsewhere
 * @property {{row: number | null, column: number | null}} held @property {Cell | null} named  in the headline, while none is held
 */

const [SMALL, MEDIUM, LARGE] = [12, 14, 16]; // px of words
const NEAR = 1e-3; // of the largest number: two numbers that are written alike
const PALE = 0.45; // opacity of a number that is or rounds to 0
const FEW = 5; // rows
const SHARE = 0.3; // of a cell that large words and numbers have
export const BAR = 36; // px, the longest bar
const WITH_BARS = 480; // px of a map; in a narrower one their room is for numbers in the cells
const [LESS, MORE] = [0.15, 0.85]; // levels of the colours of bars of a difference
const GAP = 6; // px between words and cells
const AXES = 60; // px of the words of the queries, from which the names of the axes have room above them
const EDGE = 4; // px below the cells and their bars
export const LINE = 13; // px between the middles of two words
export const AROUND = 134; // px of the words and bars around the cells
const WORDS_ABOVE = 84; // px, the longest word
const WORDS_BESIDE = 124;
const ROOM = [Infinity, Infinity, Infinity, 17, 34, 44, 52]; // px of a cell with room for so many characters

/**
 * @typedef {object} Beside  the maps beside one, and what it leaves to them
 * @property {{m: number, n: number}} most  rows and columns of all, for rows of one height
 * @property {number} [wordsBeside]  px of the words of the queries, 0 = they are not drawn
 * @property {number} [times]  how many times as wide as in the others the cells are
 * @property {boolean} [hasBars]  of a row and a column
 * @property {number} [cell]  px of the width of a cell, if all maps have the same
 */

/** The places of the cells in a canvas.
 *  @param {Shown} shown @param {{rows: string[], columns: string[]}} words  that have room
 *  @param {{width: number, height: number}} size  the height at most, in CSS pixels @param {number | undefined} lowest  px of the cells
 *  @param {Beside} beside */
export function layout({ m, n }, { rows, columns }, { width, height }, lowest, beside) {
  const { most, wordsBeside, times = 1, cell = 0 } = beside;
  const hasBars = (beside.hasBars ?? true) && width >= WITH_BARS;
  const bar = hasBars ? BAR : 0;
  const of = (/** @type {number} */ font) => {
    const size = font / SMALL;
    const left = Math.round((wordsBeside ?? Math.min(width * 0.24, besideOf(rows, size))) + GAP);
    const breadth = cell * most.n || Math.max(1, width - left - rimOf(hasBars));
    const isLevel = haveRoom(columns, font, Math.min(WIDEST, breadth / most.n / times) - 2 * GAP);
    const above = isLevel
      ? left > AXES
        ? 2 * SMALL + 2 * GAP
        : font + GAP
      : Math.min(WORDS_ABOVE * size, 14 + 7 * size * longest(columns));
    const top = Math.round(above + GAP);
    const room = Math.max(1, height - top - bar - EDGE);
    const { w, h } = fit(most.m, most.n, left, top, breadth, room, lowest);
    return {
      ...{ left, top, width: n * w, height: m * h, w, h, m, n },
      bar,
      font,
      isLevel,
      hasRowNames: wordsBeside !== 0,
    };
  };
  const { w, h } = of(SMALL);
  const largest = m < FEW ? MEDIUM : LARGE; // tall cells of a few rows are beside maps of many
  return of(Math.round(Math.min(largest, Math.max(SMALL, SHARE * Math.min(w / times, h)))));
}

/** px beside the cells of a map, on the side without words. @param {boolean} hasBars */
const rimOf = (hasBars) => (hasBars ? BAR : 0) + GAP + 1;

/** px around the cells of a map without bars and without the words of the queries. */
export const WITHOUT_WORDS = GAP + rimOf(false);

/** px beside the cells for the words of the queries. @param {string[]} rows @param {number} [size]  of the font, 1 = small */
export const besideOf = (rows, size = 1) => Math.min(WORDS_BESIDE * size, 14 + 7 * size * longest(rows));

const measure = /** @type {CanvasRenderingContext2D} */ (document.createElement("canvas").getContext("2d"));

/** Whether all words are at most so wide. @param {string[]} words @param {number} font @param {number} width  px */
function haveRoom(words, font, width) {
  measure.font = fontOf(font);
  return words.every((word) => measure.measureText(word).width <= width);
}

/** @param {string[]} words */
const longest = (words) => words.reduce((most, word) => Math.max(most, word.length), 1);

/** The characters that a number may have in a cell; 0: it is not drawn. @param {number} w @param {number} h  px
 *  @param {boolean} isShare */
const roomIn = (w, h, isShare) => {
  const room = h > LINE + 1 ? ROOM.findLastIndex((least) => w > least) : 0;
  return isShare || room > 3 ? Math.max(0, room) : 0;
};

/** Draw the map without the parts that follow the pointer; whether a number in it is a dot. @param {HTMLCanvasElement} canvas @param {number} width @param {Scene} scene */
export function draw(canvas, width, scene) {
  const { plot, mips, held } = scene;
  const context = prepare(canvas, width, plot.top + plot.height + plot.bar + EDGE);
  const cells = cellsOf(scene);
  context.save();
  context.beginPath();
  context.rect(plot.left, plot.top, plot.width, plot.height);
  context.clip();
  context.fillStyle = hatching(context, scene.colours);
  context.fillRect(plot.left, plot.top, plot.width, plot.height);
  mips.draw(context, plot, cells);
  const room = roomIn(cells.w, cells.h, scene.isShare);
  const hasDots = room > 0 && drawValues(context, scene, cells, room);
  drawHeld(context, scene, cells);
  context.restore();
  context.strokeStyle = scene.colours.line;
  context.lineWidth = 1;
  context.strokeRect(plot.left - 0.5, plot.top - 0.5, plot.width + 1, plot.height + 1);
  drawWords(context, scene, cells);
  drawBars(context, scene, cells, held.row, held.column);
  return hasDots;
}

/**
 * Draw the parts that follow the pointer, in a canvas above the map, because drawing the map takes longer than a frame.
 * @param {HTMLCanvasElement} canvas @param {number} width @param {Scene} scene
 */
export function drawPointer(canvas, width, scene) {
  const { plot, hover, linked, held } = scene;
  const context = prepare(canvas, width, plot.top + plot.height + plot.bar + EDGE);
  const [row, column] = hover ? [hover.row, hover.column] : [null, linked];
  if (row === null && column === null) return;
  const cells = cellsOf(scene);
  context.save();
  context.beginPath();
  context.rect(plot.left, plot.top, plot.width, plot.height);
  context.clip();
  drawBands(context, scene, cells, row, column);
  context.restore();
  drawMarkedWords(context, scene, cells, row, column);
  drawBars(context, scene, cells, held.row === null ? row : null, held.column === null ? column : null);
}

/** @param {Scene} scene @returns {Cells} */
const cellsOf = ({ plot, port }) => ({ x: port.x, y: port.y, w: plot.w * port.zoom, h: plot.h * port.zoom });

/** @typedef {{x: number, y: number, w: number, h: number}} Cells  first column and row in sight; size of a cell in CSS pixels */

/** Indices in sight. @param {number} first @param {number} size  of a cell @param {number} length  of the plot @param {number} count */
function inSight(first, size, length, count) {
  return [Math.floor(first), Math.min(count, Math.ceil(first + length / size - 1e-9))];
}

/** Oblique lines, for masked cells. @param {CanvasRenderingContext2D} context @param {Scene["colours"]} colours */
function hatching(context, colours) {
  const tile = document.createElement("canvas");
  tile.width = tile.height = 8;
  const lines = /** @type {CanvasRenderingContext2D} */ (tile.getContext("2d"));
  lines.fillStyle = colours.back;
  lines.fillRect(0, 0, 8, 8);
  lines.strokeStyle = colours.line;
  lines.beginPath();
  for (const x of [-8, 0, 8]) {
    lines.moveTo(x, 8);
    lines.lineTo(x + 8, 0);
  }
  lines.stroke();
  return /** @type {CanvasPattern} */ (context.createPattern(tile, "repeat"));
}

/** The largest absolute number of a map. @type {WeakMap<Shown, number>} */
const tops = new WeakMap();

/** The numbers in the cells; whether one is a dot. @param {CanvasRenderingContext2D} context @param {Scene} scene @param {Cells} cells
 *  @param {number} room  characters */
function drawValues(context, { shown, isShare, base, plot, table }, { x, y, w, h }, room) {
  const [firstRow, lastRow] = inSight(y, h, plot.height, shown.m);
  const [firstColumn, lastColumn] = inSight(x, w, plot.width, shown.n);
  const least = w > 48 ? plot.font : w > 22 ? 10 : 9;
  context.font = fontOf(Math.max(least, Math.min(MEDIUM, Math.floor(SHARE * Math.min(w, h)))));
  context.textAlign = "center";
  context.textBaseline = "middle";
  const top = tops.get(shown) ?? largestChange(shown.values);
  tops.set(shown, top);
  let hasDots = false;
  for (let i = firstRow; i < lastRow; i++)
    for (let j = firstColumn; j < lastColumn; j++) {
      const [value, level] = [shown.values[i * shown.n + j], shown.levels[i * shown.n + j]];
      if (Number.isNaN(level)) continue;
      context.fillStyle = textOn(table, level);
      const text = base && Math.abs(value - base) < NEAR * top ? DOT : short(value, top, isShare, room);
      hasDots ||= text === DOT;
      context.globalAlpha = text === DOT || text === "0" ? PALE : 1;
      context.fillText(text, plot.left + (j + 0.5 - x) * w, plot.top + (i + 0.5 - y) * h);
    }
  context.globalAlpha = 1;
  return hasDots;
}

/** A frame around a row and one around a column. @param {CanvasRenderingContext2D} context @param {Scene} scene
 *  @param {Cells} cells @param {number | null} row @param {number | null} column */
function drawBands(context, { plot, colours }, { x, y, w, h }, row, column) {
  context.beginPath();
  if (row !== null) context.rect(plot.left - 4, plot.top + (row - y) * h, plot.width + 8, h);
  if (column !== null) context.rect(plot.left + (column - x) * w, plot.top - 4, w, plot.height + 8);
  context.globalAlpha = 0.6;
  context.strokeStyle = colours.back;
  context.lineWidth = 3;
  context.stroke();
  context.globalAlpha = 1;
  context.strokeStyle = colours.text;
  context.lineWidth = 1;
  context.stroke();
}

/** @param {CanvasRenderingContext2D} context @param {Scene} scene @param {Cells} cells */
function drawHeld(context, scene, cells) {
  const { plot, held, named, colours } = scene;
  const { x, y, w, h } = cells;
  if (held.row === null && held.column === null && !named) return;
  drawBands(context, scene, cells, held.row, held.column);
  const cell = held.row === null && held.column === null ? named : held;
  if (!cell || cell.row === null || cell.column === null) return;
  if (Number.isNaN(scene.shown.levels[cell.row * scene.shown.n + cell.column])) return; // masked: it has no number
  const [left, top] = [plot.left + (cell.column - x) * w, plot.top + (cell.row - y) * h];
  const grown = Math.max(0, 8 - Math.min(w, h)) / 2; // a small cell is marked by a ring around it
  for (const [width, colour] of /** @type {const} */ ([
    [5, colours.back],
    [3, colours.mark],
  ])) {
    context.lineWidth = width;
    context.strokeStyle = colour;
    context.strokeRect(left - grown, top - grown, w + 2 * grown, h + 2 * grown);
  }
}

/** @param {CanvasRenderingContext2D} context @param {Scene} scene @param {Cells} cells */
function drawWords(context, scene, cells) {
  const { plot, held } = scene;
  const { x, y, w, h } = cells;
  const [firstRow, lastRow] = inSight(y, h, plot.height, plot.m);
  const [firstColumn, lastColumn] = inSight(x, w, plot.width, plot.n);
  if (plot.hasRowNames)
    for (const index of every(firstRow, lastRow, h)) drawWord(context, scene, cells, "row", index, false);
  for (const index of every(firstColumn, lastColumn, w, LINE - 2))
    drawWord(context, scene, cells, "column", index, false); // smaller
  drawAxes(context, scene);
  drawMarkedWords(context, scene, cells, held.row, held.column);
}

/** The names of the axes in the corner, where there is room. @param {CanvasRenderingContext2D} context @param {Scene} scene */
function drawAxes(context, { plot, axes: [rows, columns], colours }) {
  const names = [`${columns} →`, `${rows} ↓`];
  context.font = fontOf(SMALL);
  const width = Math.max(...names.map((name) => context.measureText(name).width));
  if (plot.top < 2 * SMALL + 3 * GAP || plot.left - GAP < width) return;
  context.fillStyle = colours.quiet;
  context.textAlign = "right";
  context.textBaseline = "bottom";
  names.forEach((name, i) => context.fillText(name, plot.left - GAP, plot.top - GAP - (1 - i) * (SMALL + 3)));
}

/** @param {CanvasRenderingContext2D} context @param {Scene} scene @param {Cells} cells @param {number | null} row
 *  @param {number | null} column */
function drawMarkedWords(context, scene, cells, row, column) {
  if (row !== null && scene.plot.hasRowNames) drawWord(context, scene, cells, "row", row, true);
  if (column !== null) drawWord(context, scene, cells, "column", column, true);
}

/** One word, if its cell is in sight. @param {CanvasRenderingContext2D} context @param {Scene} scene @param {Cells} cells
 *  @param {"row" | "column"} axis @param {number} index @param {boolean} isMarked */
function drawWord(context, { plot, rows, columns, words, colours }, { x, y, w, h }, axis, index, isMarked) {
  const isRow = axis === "row";
  if (!(isRow ? isWithin(index, y, h, plot.height) : isWithin(index, x, w, plot.width))) return;
  const isLevel = !isRow && plot.isLevel;
  const font = !isRow && !isLevel && w < LINE ? SMALL - 1 : plot.font;
  context.font = fontOf(font);
  const room = isRow ? plot.left : isLevel ? w : plot.top;
  const text = words.fit(context, (isRow ? rows : columns)[index], room - GAP - 2);
  context.save();
  const height = Math.max(font / 2, Math.min(plot.height - font / 2, (index + 0.5 - y) * h)); // not over the axis' name
  if (isRow) context.translate(plot.left - GAP, plot.top + height);
  else moveAbove(context, plot, (index + 0.5 - x) * w);
  context.textAlign = isRow ? "right" : isLevel ? "center" : "left";
  context.textBaseline = "middle";
  if (isMarked) {
    const length = context.measureText(text).width;
    context.fillStyle = colours.mark;
    const padding = isRow ? Math.max(0, Math.min(2, (h - font) / 2)) : 2; // the words above and below stay readable
    context.fillRect(
      (isRow ? -length : isLevel ? -length / 2 : 0) - 3,
      -padding - font / 2,
      length + 6,
      font + 2 * padding,
    );
  }
  context.fillStyle = isMarked ? colours.back : colours.quiet;
  context.fillText(text, 0, 0);
  context.restore();
}

/** To the place of a word above the cells. @param {CanvasRenderingContext2D} context @param {Layout} plot @param {number} x  from the left edge of the cells */
function moveAbove(context, { left, top, font, isLevel }, x) {
  context.translate(left + x, top - GAP - (isLevel ? font / 2 : 0));
  if (!isLevel) context.rotate(-Math.PI / 2);
}

/** Whether the middle of a cell is in sight. @param {number} index @param {number} first @param {number} size @param {number} length */
const isWithin = (index, first, size, length) => index + 0.5 >= first && (index + 0.5 - first) * size <= length;

/** Every k-th index, so that words do not overlap. @param {number} first @param {number} end @param {number} size  px of a cell
 *  @param {number} [least]  px between two words */
function every(first, end, size, least = LINE - 1) {
  const step = Math.ceil(least / size);
  const indices = [];
  for (let index = Math.ceil(first / step) * step; index < end; index += step) indices.push(index);
  return indices;
}

/** The levels of a row below the cells and those of a column beside them, each with its word. The longest bar is of their largest; in
 *  maps on one scale a bar is as long as its colour is strong.
 *  @param {CanvasRenderingContext2D} context @param {Scene} scene @param {Cells} cells @param {number | null} row @param {number | null} column */
function drawBars(context, scene, { x, y, w, h }, row, column) {
  const { shown, plot, rows, columns, words, colours, table } = scene;
  const { m, n, levels } = shown;
  if (plot.bar === 0) return;
  const ofRow = (/** @type {number} */ j) => levels[Number(row) * n + j];
  const ofColumn = (/** @type {number} */ i) => levels[i * n + Number(column)];
  const shareOf = (/** @type {number} */ level) => (shown.isDiverging ? 2 * Math.abs(level - 0.5) : level) || 0; // of a masked cell 0
  let most = scene.isOnOneScale ? 1 : 0;
  for (let j = 0; row !== null && j < n; j++) most = Math.max(most, shareOf(ofRow(j)));
  for (let i = 0; column !== null && i < m; i++) most = Math.max(most, shareOf(ofColumn(i)));
  const fill = (
    /** @type {boolean} */ isBelow,
    /** @type {number} */ start,
    /** @type {number} */ size,
    /** @type {number} */ length,
    /** @type {(index: number) => number} */ levelOf,
  ) => {
    const [first, end] = inSight(start, size, length, isBelow ? n : m);
    const breadth = Math.max(1, size > 4 ? size - 1 : size);
    for (let index = first; index < end; index++) {
      const level = levelOf(index);
      const height = (BAR * shareOf(level)) / most;
      if (!(height >= 0.5)) continue;
      const place = Math.max(0, (index - start) * size);
      const visible = Math.min(breadth, length - place);
      context.fillStyle = shown.isDiverging ? css(table, level < 0.5 ? LESS : MORE) : colours.mark;
      if (isBelow) context.fillRect(plot.left + place, plot.top + plot.height + 2, visible, height);
      else context.fillRect(plot.left + plot.width + 2, plot.top + place, height, visible);
    }
    context.fillStyle = colours.line;
    if (isBelow) context.fillRect(plot.left, plot.top + plot.height + 1, plot.width, 1);
    else context.fillRect(plot.left + plot.width + 1, plot.top, 1, plot.height);
  };
  context.font = fontOf(plot.font);
  if (row !== null) {
    fill(true, x, w, plot.width, ofRow);
    context.fillStyle = colours.quiet;
    context.textAlign = "right";
    context.textBaseline = "top";
    const word = words.fit(context, rows[row], plot.left - GAP - 2);
    if (plot.hasRowNames) context.fillText(word, plot.left - GAP, plot.top + plot.height + GAP);
  }
  if (column !== null) {
    fill(false, y, h, plot.height, ofColumn);
    context.save();
    moveAbove(context, plot, plot.width + 2 + BAR / 2);
    context.fillStyle = colours.quiet;
    context.textAlign = plot.isLevel ? "center" : "left";
    context.textBaseline = "middle";
    context.fillText(words.fit(context, columns[column], plot.isLevel ? BAR : plot.top - GAP - 2), 0, 0);
    context.restore();
  }
}
