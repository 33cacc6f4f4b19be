// Matrices side by side as SVG, with their words and scales.
import { escape } from "heed/save/document.js";
import { CELL, cells, round, scale, svg, TITLE, TITLE_CHARACTER, VECTOR, width, wordsOf } from "heed/save/svg.js";

/** @typedef {import("heed/data/attention.js").Attention} Attention */
/** @typedef {import("heed/data/display.js").Shown} Shown */
/** @typedef {import("heed/data/state.js").Settings} Settings */

const LINE = 18; // height of a further line of a title
const GAP = 24; // between two matrices

/** @typedef {{attention: Attention, shown: Shown, settings: Settings, title: string, named?: import("heed/save/svg.js").Named}} Panel  a matrix; `named` if it is not of attention */
/** @typedef {{cell: number, every: number, left: number, top: number}} Room  size of a cell; which words are written; room for them */

/** Heat maps side by side, with cells of one size, and each with its scale. @param {Panel[]} panels */
export function heatMaps(panels) {
  const most = Math.max(...panels.map(({ shown }) => Math.max(shown.m, shown.n)));
  const cell = most <= VECTOR ? CELL : Math.max(1, Math.min(CELL, 1600 / most));
  const every = most <= VECTOR ? 1 : Math.ceil(CELL / cell);
  const [left, top] = /** @type {const} */ (["rows", "columns"]).map((axis) =>
    Math.max(...panels.map(({ attention, shown }) => width(wordsOf(attention, shown, axis), every))),
  );
  const breadth = Math.max(left + most * cell + 4, left + 300);
  const titles = panels.map(({ title }) => wrapped(title, Math.floor(breadth / TITLE_CHARACTER)));
  const title = TITLE + LINE * (Math.max(...titles.map((lines) => lines.length)) - 1);
  let [x, bottom] = [0, 0];
  const parts = panels.map((panel, i) => {
    const named = `<text y="20" font-weight="600" font-size="14">${tspans(titles[i])}</text>`;
    const part = `<g transform="translate(${round(x)} 0)">${named}<g transform="translate(0 ${title})">${heatMap(panel, { cell, every, left, top })}</g></g>`;
    x += breadth + (panels.length > 1 ? GAP : 0);
    bottom = Math.max(bottom, title + top + panel.shown.m * cell + 58);
    return part;
  });
  return svg(x, bottom, parts);
}

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

/** @param {Panel} panel @param {Room} room */
function heatMap({ attention, shown, settings, named }, { cell, every, left, top }) {
  const { m, n } = shown;
  const parts = [cells(shown, settings, left, top, cell, cell)];
  parts.push(
    `<rect x="${left}" y="${top}" width="${round(n * cell)}" height="${round(m * cell)}" fill="none" stroke="#888" stroke-width=".5"/>`,
  );
  wordsOf(attention, shown, "rows").forEach(
    (word, i) =>
      i % every === 0 &&
      parts.push(
        `<text x="${left - 4}" y="${round(top + (i + 0.5) * cell + 4)}" text-anchor="end">${escape(word)}</text>`,
      ),
  );
  wordsOf(attention, shown, "columns").forEach((word, j) => {
    if (j % every) return;
    const x = round(left + (j + 0.5) * cell + 4);
    parts.push(`<text transform="translate(${x} ${top - 4}) rotate(-90)">${escape(word)}</text>`);
  });
  parts.push(scale(shown, settings, left, top + m * cell + 8, undefined, named));
  return parts.join("\n");
}
