// The tensors of a head as SVG, in the order in which they are computed, each with its formula.
import { palette, picture } from "heed/data/palettes.js";
import { largestChange } from "heed/data/matrix.js";
import { cells, framesAround, numbersIn, VECTOR, WITH_NUMBER } from "heed/save/cells.js";
import { escape } from "heed/save/document.js";
import { beginsLine, COLOURS, heightOf, isTransposed } from "heed/server/head_tensors.js";
import { FONT, heading, round, svg, TITLE, TITLE_CHARACTER, width, widths } from "heed/save/svg.js";

/** @typedef {import("heed/server/head_tensors.js").Stage} Stage */

const EDGE = 8;
const HEIGHT = 144; // px of a tensor
const NARROWEST = 64;
const WIDEST = 6 * WITH_NUMBER;
const LINE = 16; // px of a row that has numbers
const NAMES = 44; // height of a title and a formula
const GAP = 36; // at least, with the sign
const AROUND = 14; // px beside a sign
const ARROW = 20; // px, at least
const [LARGE, SMALL] = [16, 11]; // px of the letters of a sign, and above its arrow

/** @param {Stage[]} stages @param {{query: number | null, key: number | null}} pair  whose rows are framed
 *  @param {string} title */
export function stepsSvg(stages, pair, title) {
  const table = palette("auto", true, false);
  let [x, y, widest] = [EDGE, TITLE, 0];
  const parts = stages.map((stage) => {
    const high = HEIGHT * heightOf(stage, stages);
    const wide = Math.min(WIDEST, Math.max(NARROWEST, (high * stage.columns) / stage.rows));
    const breadth = Math.max(wide, width([`${stage.title} ${sizeOf(stage)}`, plain(stage.formula)], 1));
    if (beginsLine(stage)) [x, y] = [EDGE, y + NAMES + HEIGHT + GAP]; // below the inputs, as on the page
    const sign = signOf(stage.sign);
    const left = x + (x === EDGE && !stage.sign ? 0 : Math.max(GAP, sign.width + 2 * AROUND));
    x = left + breadth;
    widest = Math.max(widest, x + EDGE);
    const grid = { left, top: y + NAMES, width: wide / stage.columns, height: high / stage.rows };
    return sign.at(left - AROUND, y + NAMES + high / 2) + tensor(stage, pair, table, grid, y);
  });
  const notes = COLOURS.split(/(?<=\.) /); // a line for each sentence
  const below = y + NAMES + HEIGHT;
  const all = Math.max(widest, TITLE_CHARACTER * title.length + 16, width(notes, 1));
  const texts = notes.map((note, i) => `<text x="${EDGE}" y="${below + 24 + i * LINE}">${note}</text>`);
  return svg(all, below + 20 + LINE * notes.length, [heading(title), ...parts, ...texts]);
}

/** A formula without markup. @param {string} formula */
const plain = (formula) => inText(formula).replace(/<[^>]*>/g, "");

/** A sign between two tensors, and its width: what is before the arrow, and the operation above the arrow, if it has one.
 *  @param {string} sign  in LaTeX */
function signOf(sign) {
  const [, before = sign, operation = ""] = /^(.*)\\xrightarrow\{(.*)\}$/.exec(sign) ?? [];
  const wide = (/** @type {string} */ formula, /** @type {number} */ size) =>
    (widths([plain(formula)])[0] * size) / FONT;
  const arrow = operation && Math.max(ARROW, wide(operation, SMALL) + 8);
  const text = (
    /** @type {string} */ formula,
    /** @type {number} */ x,
    /** @type {number} */ y,
    /** @type {string} */ more,
  ) => formula && `<text x="${round(x)}" y="${y}" font-family="serif" fill="#555" ${more}>${inText(formula)}</text>`;
  return {
    width: wide(before, LARGE) + Number(arrow),
    at: (/** @type {number} */ end, /** @type {number} */ y) =>
      text(before, end - Number(arrow) - (arrow ? 4 : 0), y + 5, `font-size="${LARGE}" text-anchor="end"`) +
      (arrow &&
        text(operation, end - arrow / 2, y - 8, `font-size="${SMALL}" text-anchor="middle"`) +
          `<path d="M${round(end - arrow)} ${y}H${round(end)}m-5-4l5 4l-5 4" fill="none" stroke="#555"/>`),
  };
}

/** @param {Stage} stage */
const sizeOf = ({ rows, columns }) => `${rows} × ${columns}`;

/** @param {Stage} stage @param {{query: number | null, key: number | null}} pair @param {Uint32Array} table
 *  @param {import("heed/save/cells.js").Grid} grid @param {number} y  of its title */
function tensor(stage, { query, key }, table, grid, y) {
  const { title, formula, rows: m, columns: n, numbers: values, isOfKeys, isOfPairs } = stage;
  const strongest = title === "weights" ? 1 : largestChange(values) || 1;
  const levels = values.map((value) => (Number.isFinite(value) ? 0.5 + value / strongest / 2 : NaN));
  const row = (isOfKeys ? key : query) ?? -1;
  const { left, top, width: cell, height } = grid;
  return [
    `<text x="${left}" y="${y + 14}" font-weight="600">${escape(title)} <tspan font-weight="400" fill="#555">${sizeOf(stage)}</tspan></text>`,
    `<text x="${left}" y="${y + 34}" font-family="serif" font-size="14">${inText(formula)}</text>`,
    m * n <= VECTOR ** 2 ? cells({ m, n, levels }, table, grid) : pixels({ m, n, levels }, table, grid),
    `<rect x="${left}" y="${top}" width="${round(n * cell)}" height="${round(m * height)}" fill="none" stroke="#888" stroke-width=".5"/>`,
    isTransposed(stage) ? `<text x="${round(left + n * cell + 3)}" y="${top + 9}" fill="#555">⊤</text>` : "",
    ...(cell >= WITH_NUMBER && height >= LINE ? numbersIn({ m, n, values, levels }, table, grid) : []),
    ...framesAround({ m, n }, row, isOfPairs ? (key ?? -1) : -1, grid),
  ].join("\n");
}

/** The cells as a picture with a pixel for each. @param {import("heed/save/cells.js").Levels} levels @param {Uint32Array} table
 *  @param {import("heed/save/cells.js").Grid} grid */
function pixels({ m, n, levels }, table, { left, top, width, height }) {
  const canvas = Object.assign(document.createElement("canvas"), { width: n, height: m });
  canvas.getContext("2d")?.putImageData(picture(levels, m, n, table), 0, 0);
  return `<image x="${left}" y="${top}" width="${round(n * width)}" height="${round(m * height)}" preserveAspectRatio="none" style="image-rendering: pixelated" href="${canvas.toDataURL()}"/>`;
}

/** @type {Record<string, string>} */
const SIGNS = { top: "⊤", ",": " ", sqrt: "√", mathrm: "", times: "×", div: "÷", sum: "∑" };

/** A formula of LaTeX as text of SVG: letters in italic, raised and lowered parts, and roots without a line above.
 *  @param {string} formula */
export function inText(formula) {
  const [raised, lowered] = [-5, 3]; // px
  const ordered = formula.replace(/(\^\w)(_\w)/g, "$2$1"); // W^Q_i: first the index
  const plain = ordered.replace(/\\([a-z]+|,)/g, (_, name) => SIGNS[name]);
  const parts = plain.match(/[_^](?:\{[^}]*\}|.)|[^_^]+/gu) ?? [];
  return parts
    .map((part) => {
      const letters = escape(part.replace(/^[_^]/, "").replace(/[{}]/g, ""));
      const text = letters.replace(/\b[A-Za-z]\b/g, '<tspan font-style="italic">$&</tspan>'); // not of a longer name
      if (!/^[_^]/.test(part)) return text;
      const by = part[0] === "^" ? raised : lowered;
      return `<tspan dy="${by}" font-size=".7em">${text}</tspan><tspan dy="${-by}">\u200b</tspan>`;
    })
    .join("");
}
