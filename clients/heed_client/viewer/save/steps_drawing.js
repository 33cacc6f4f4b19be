// The tensors of a head as SVG, in the order in which they are computed, each with its formula.
import { palette, picture } from "heed/data/palettes.js";
import { largestChange } from "heed/data/matrix.js";
import { cells, framesAround, numbersIn, VECTOR, WITH_NUMBER } from "heed/save/cells.js";
import { escape } from "heed/save/document.js";
import { beginsLine, heightOf } from "heed/server/head_tensors.js";
import { heading, round, svg, TITLE, TITLE_CHARACTER, width } from "heed/save/svg.js";

/** @typedef {import("heed/server/head_tensors.js").Stage} Stage */

const EDGE = 8;
const HEIGHT = 144; // px of a tensor
const NARROWEST = 64;
const WIDEST = 6 * WITH_NUMBER;
const LINE = 16; // px of a row that has numbers
const NAMES = 44; // height of a title and a formula
const GAP = 36; // with the sign
const SIGN = 11; // px of a character of a longer sign

/** @param {Stage[]} stages @param {{query: number | null, key: number | null}} pair  whose rows are framed
 *  @param {string} title */
export function stepsSvg(stages, pair, title) {
  const table = palette("auto", true, false);
  let [x, y, widest] = [EDGE, TITLE, 0];
  const parts = stages.map((stage) => {
    const high = HEIGHT * heightOf(stage, stages);
    const wide = Math.min(WIDEST, Math.max(NARROWEST, (high * stage.columns) / stage.rows));
    const breadth = Math.max(
      wide,
      width([`${stage.title} ${sizeOf(stage)}`, inText(stage.formula).replace(/<[^>]*>/g, "")], 1),
    );
    if (beginsLine(stage)) [x, y] = [EDGE, y + NAMES + HEIGHT + GAP]; // below the inputs, as on the page
    const gap = x === EDGE && !stage.sign ? 0 : Math.max(GAP, GAP - SIGN + SIGN * stage.sign.length);
    const left = x + gap;
    x = left + breadth;
    widest = Math.max(widest, x + EDGE);
    const grid = { left, top: y + NAMES + (HEIGHT - high) / 2, width: wide / stage.columns, height: high / stage.rows };
    const sign = `<text x="${left - gap / 2}" y="${y + NAMES + HEIGHT / 2 + 6}" text-anchor="middle" font-size="18" fill="#555">${stage.sign}</text>`;
    return (stage.sign && sign) + tensor(stage, pair, table, grid, y);
  });
  const note = "Orange is positive, violet negative, and stronger is larger in its tensor; the strongest weight is 1.";
  const below = y + NAMES + HEIGHT;
  const all = Math.max(widest, TITLE_CHARACTER * title.length + 16, width([note], 1));
  return svg(all, below + 36, [heading(title), ...parts, `<text x="${EDGE}" y="${below + 24}">${note}</text>`]);
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

const SIGNS = { "\\top": "⊤", "\\,": " ", "\\sqrt": "√", "\\mathrm": "" };

/** A formula of LaTeX as text of SVG: raised, lowered and upright parts, and roots without a line above.
 *  @param {string} formula */
export function inText(formula) {
  const [raised, lowered] = [-5, 3]; // px
  const plain = formula.replace(/\\(top|,|sqrt|mathrm)/g, (sign) => SIGNS[/** @type {keyof typeof SIGNS} */ (sign)]);
  const parts = plain.match(/[_^](?:\{[^}]*\}|.)|[^_^]+/gu) ?? [];
  return parts
    .map((part) => {
      const text = escape(part.replace(/^[_^]/, "").replace(/[{}]/g, ""));
      if (!/^[_^]/.test(part)) return text;
      const by = part[0] === "^" ? raised : lowered;
      return `<tspan dy="${by}" font-size="10">${text}</tspan><tspan dy="${-by}">\u200b</tspan>`;
    })
    .join("");
}
