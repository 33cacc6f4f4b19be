// Matrices side by side as SVG, with their words, numbers and scales, and what is pinned.
import { DOT } from "heed/data/display.js";
import { palette } from "heed/data/palettes.js";
import { briefly } from "heed/data/picture.js";
import { cells, framesAround, numbersIn, VECTOR, WITH_NUMBER } from "heed/save/cells.js";
import { escape } from "heed/save/document.js";
import {
  CELL,
  heading,
  NAME_LINE,
  round,
  scale,
  scaleName,
  svg,
  TITLE,
  TITLE_CHARACTER,
  width,
  widths,
  wordsOf,
} from "heed/save/svg.js";

/** @typedef {import("heed/data/attention.js").Attention} Attention */
/** @typedef {import("heed/data/display.js").Shown} Shown */
/** @typedef {import("heed/data/state.js").Settings} Settings */

const LINE = 18; // height of a further line of a title
const GAP = 24; // between two matrices
const CHARACTER = 6.6; // px of a character of a scale's name
const WIDEST = 1600; // all cells with numbers, side by side

/** @typedef {{attention: Pick<Attention, "rows" | "columns">, shown: Shown, settings: Settings, title: string, axes?: [rows: string, columns: string],
 *    named?: import("heed/save/svg.js").Named}} Panel  a matrix; `axes` and `named` if it is not of attention */
/** @typedef {{cell: number, every: number, left: number, top: number, isLevel: boolean}} Room  size of a cell; which words
 *    are written; room for them; whether those of columns are level */

/** Heat maps side by side, with cells of one size, and each with its scale.
 *  @param {Panel[]} panels @param {string} [title]  of all of them */
export function heatMaps(panels, title = "") {
  const room = roomFor(panels);
  const { left, top, cell } = room;
  const most = Math.max(...panels.map(({ shown }) => shown.n));
  const wide = Math.max(most * cell + 4, 300); // a longer name of a scale has several lines
  const names = panels.map(({ shown, settings, named }) =>
    wrapped(named?.name ?? scaleName(shown, settings), Math.floor(wide / CHARACTER)),
  );
  const more = NAME_LINE * (Math.max(...names.map((lines) => lines.length)) - 1);
  const breadth = left + wide;
  const titles = panels.map((panel) => wrapped(panel.title, Math.floor(breadth / TITLE_CHARACTER)));
  const above = title ? LINE + 4 : 0;
  const hasTitles = panels.some((panel) => panel.title);
  const start = above + (hasTitles ? TITLE + LINE * (Math.max(...titles.map((lines) => lines.length)) - 1) : 0);
  let [x, bottom] = [0, 0];
  const parts = panels.map((panel, i) => {
    const named = `<text y="${above + 20}" font-weight="600" font-size="14">${tspans(titles[i])}</text>`;
    const part = `<g transform="translate(${round(x)} 0)">${named}<g transform="translate(0 ${start})">${heatMap(panel, room, names[i])}</g></g>`;
    x += breadth + (panels.length > 1 ? GAP : 0);
    bottom = Math.max(bottom, start + top + panel.shown.m * cell + 60 + more);
    return part;
  });
  return svg(Math.max(x, title.length * TITLE_CHARACTER + 16), bottom, [...(title ? [heading(title)] : []), ...parts]);
}

/** Cells are as large as their numbers if all have room. @param {Panel[]} panels @returns {Room} */
function roomFor(panels) {
  const most = Math.max(...panels.map(({ shown }) => Math.max(shown.m, shown.n)));
  const hasNumbers = panels.length * most * WITH_NUMBER <= WIDEST;
  const size = hasNumbers ? WITH_NUMBER : CELL;
  const cell = most <= VECTOR ? size : Math.max(1, Math.min(CELL, 1600 / most));
  const every = most <= VECTOR ? 1 : Math.ceil(CELL / cell);
  const words = (/** @type {"rows" | "columns"} */ axis) =>
    Math.max(...panels.map(({ attention, shown }) => width(wordsOf(attention, shown, axis).map(briefly), every)));
  const named = width(
    panels.flatMap((panel) => namesOf(panel)),
    1,
  );
  const columns = panels.flatMap(({ attention, shown }) => wordsOf(attention, shown, "columns").map(briefly));
  const isLevel = every === 1 && widths(columns).every((breadth) => breadth <= cell - 4);
  const top = Math.max(isLevel ? 0 : words("columns"), 2 * LINE);
  return { cell, every, left: Math.max(words("rows"), named), top, isLevel };
}

/** What rows and columns are. @param {Panel} panel */
const namesOf = ({ axes: [rows, columns] = ["queries", "keys"] }) => [`${columns} →`, `${rows} ↓`];

/** A title in lines. @param {string} text @param {number} most  characters of a line */
function wrapped(text, most) {
  /** @type {string[]} */
  const lines = [];
  for (const word of text.split(" ")) {
    const last = lines[lines.length - 1];
    if (last !== undefined && last.length + word.length < most) lines[lines.length - 1] = `${last} ${word}`;
    else lines.push(word);
  }
  return lines;
}

/** @param {string[]} lines */
const tspans = (lines) => {
  const spaced = lines.map((line, i) => (i < lines.length - 1 ? `${line} ` : line));
  return spaced.map((line, i) => `<tspan x="8" dy="${i ? LINE : 0}">${escape(line)}</tspan>`).join("");
};

/** @param {Panel} panel @param {Room} room @param {string[]} name  of the scale, in lines */
function heatMap(panel, room, name) {
  const { shown, settings, named } = panel;
  const { cell, left, top } = room;
  const table = palette(settings.palette, shown.isDiverging, false);
  const grid = { left, top, width: cell, height: cell };
  const numbers = cell === WITH_NUMBER ? numbersIn(shown, table, grid, settings.kind) : [];
  const hasDots = numbers.some((text) => text.includes(`>${DOT}<`));
  const below = top + shown.m * cell;
  const place = (/** @type {number[]} */ places, /** @type {number | null} */ pinned) =>
    pinned === null ? -1 : places.indexOf(pinned);
  return [
    cells(shown, table, grid),
    `<rect x="${left}" y="${top}" width="${round(shown.n * cell)}" height="${round(shown.m * cell)}" fill="none" stroke="#888" stroke-width=".5"/>`,
    ...wordsAround(panel, room),
    ...numbers,
    ...framesAround(shown, place(shown.rows, settings.query), place(shown.columns, settings.key), grid),
    hasDots ? `<text x="${left}" y="${below + 56 + NAME_LINE * (name.length - 1)}">${DOT} rounds to 0</text>` : "",
    scale(shown, settings, left, below + 8, undefined, { ...named, name: name.join("\n") }),
  ].join("\n");
}

/** The words of rows and columns, and in the corner what they are. @param {Panel} panel @param {Room} room */
function wordsAround(panel, { cell, every, left, top, isLevel }) {
  const words = (/** @type {"rows" | "columns"} */ axis) =>
    wordsOf(panel.attention, panel.shown, axis).map((word) => escape(briefly(word)));
  const middle = (/** @type {number} */ start, /** @type {number} */ place) => round(start + (place + 0.5) * cell + 4);
  const written = (/** @type {unknown} */ _, /** @type {number} */ place) => place % every === 0;
  return [
    ...words("rows")
      .map((word, i) => `<text x="${left - 4}" y="${middle(top, i)}" text-anchor="end">${word}</text>`)
      .filter(written),
    ...words("columns")
      .map((word, j) =>
        isLevel
          ? `<text x="${middle(left, j) - 4}" y="${top - 4}" text-anchor="middle">${word}</text>`
          : `<text transform="translate(${middle(left, j)} ${top - 4}) rotate(-90)">${word}</text>`,
      )
      .filter(written),
    ...namesOf(panel).map(
      (name, i) => `<text x="${left - 6}" y="${top - 20 + 15 * i}" text-anchor="end" fill="#555">${name}</text>`,
    ),
  ];
}
