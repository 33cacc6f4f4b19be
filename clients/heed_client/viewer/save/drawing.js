// Pictures for papers: the views as SVG, and that as PNG.
import { escape } from "heed/save/document.js";
import { css, headColour, palette } from "heed/data/palettes.js";

/** @typedef {import("heed/data/attention.js").Attention} Attention */
/** @typedef {import("heed/data/display.js").Shown} Shown */
/** @typedef {import("heed/data/state.js").Settings} Settings */

const FONT = 12;
const CELL = 16;
const VECTOR = 128; // rows and columns up to which cells are rectangles, and every word is written
const LINES = 20_000; // of the head view

/** The head's matrix, or in the head view its lines. @param {Attention} attention @param {Shown} shown @param {Settings} settings */
export function toSvg(attention, shown, settings) {
  return settings.view === "head" ? lines(attention, shown, settings) : heatMap(attention, shown, settings);
}

/** @param {Attention} attention @param {Shown} shown @param {Settings} settings */
function heatMap(attention, shown, settings) {
  const { m, n, levels } = shown;
  const isVector = m <= VECTOR && n <= VECTOR;
  const cell = isVector ? CELL : Math.max(1, Math.min(CELL, 1600 / Math.max(m, n)));
  const every = isVector ? 1 : Math.ceil(CELL / cell);
  const rows = shown.rows.map((place) => attention.rows[place].text);
  const columns = shown.columns.map((place) => attention.columns[place].text);
  const [left, top] = [width(rows, every), width(columns, every)];
  const table = palette(settings.palette, shown.isDiverging);
  const parts = [];
  for (let i = 0; i < m; i++)
    for (let j = 0; j < n; j++) {
      const level = levels[i * n + j];
      if (level !== level || (!isVector && level === 0)) continue;
      parts.push(
        `<rect x="${round(left + j * cell)}" y="${round(top + i * cell)}" width="${round(cell)}" height="${round(cell)}" fill="${css(table, level)}"/>`,
      );
    }
  const [right, bottom] = [left + n * cell, top + m * cell];
  parts.push(
    `<rect x="${left}" y="${top}" width="${round(n * cell)}" height="${round(m * cell)}" fill="none" stroke="#888" stroke-width=".5"/>`,
  );
  rows.forEach(
    (word, i) =>
      i % every === 0 &&
      parts.push(
        `<text x="${left - 4}" y="${round(top + (i + 0.5) * cell + 4)}" text-anchor="end">${escape(word)}</text>`,
      ),
  );
  columns.forEach((word, j) => {
    if (j % every) return;
    const x = round(left + (j + 0.5) * cell + 4);
    parts.push(`<text transform="translate(${x} ${top - 4}) rotate(-90)">${escape(word)}</text>`);
  });
  return svg(right + 4, bottom + 4, parts);
}

/** @param {Attention} attention @param {Shown} shown @param {Settings} settings */
function lines(attention, shown, settings) {
  const { m, n, levels } = shown;
  const rows = shown.rows.map((place) => attention.rows[place].text);
  const columns = shown.columns.map((place) => attention.columns[place].text);
  const [left, right] = [width(rows, 1), width(columns, 1)];
  const [step, gap] = [CELL + 2, 160];
  const colour = headColour(settings.head);
  const only = settings.query === null ? null : shown.rows.indexOf(settings.query);
  const strongest = Array.from(levels.keys())
    .filter((index) => levels[index] > 0.01 && (only === null || Math.floor(index / n) === only))
    .sort((one, other) => levels[other] - levels[one])
    .slice(0, LINES);
  const parts = strongest.map((index) => {
    const [from, to] = [Math.floor(index / n), index % n];
    return (
      `<line x1="${left}" y1="${(from + 0.5) * step}" x2="${left + gap}" y2="${(to + 0.5) * step}" stroke="${colour}" ` +
      `stroke-opacity="${round(levels[index])}" stroke-width="${round(0.5 + 2 * levels[index])}"/>`
    );
  });
  rows.forEach((word, i) =>
    parts.push(`<text x="${left - 4}" y="${(i + 0.5) * step + 4}" text-anchor="end">${escape(word)}</text>`),
  );
  columns.forEach((word, j) =>
    parts.push(`<text x="${left + gap + 4}" y="${(j + 0.5) * step + 4}">${escape(word)}</text>`),
  );
  return svg(left + gap + right, Math.max(m, n) * step, parts);
}

/** @param {number} width @param {number} height @param {string[]} parts */
const svg = (width, height, parts) =>
  `<svg xmlns="http://www.w3.org/2000/svg" width="${Math.ceil(width)}" height="${Math.ceil(height)}" ` +
  `font-family="system-ui, sans-serif" font-size="${FONT}"><rect width="100%" height="100%" fill="#fff"/>${parts.join("\n")}</svg>\n`;

/** Room for the longest word that is written. @param {string[]} words @param {number} every */
const width = (words, every) =>
  10 + 0.62 * FONT * words.reduce((most, word, i) => (i % every ? most : Math.max(most, word.length)), 1);

/** @param {number} number */
const round = (number) => Number(number.toFixed(2));

/** An SVG in pixels. @param {string} text @param {number} scale  pixels of one of its units @returns {Promise<Blob>} */
export async function toPng(text, scale = 2) {
  const url = URL.createObjectURL(new Blob([text], { type: "image/svg+xml" }));
  try {
    const image = new Image();
    image.src = url;
    await image.decode();
    const canvas = document.createElement("canvas");
    [canvas.width, canvas.height] = [image.naturalWidth * scale, image.naturalHeight * scale];
    canvas.getContext("2d")?.drawImage(image, 0, 0, canvas.width, canvas.height);
    const png = await new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
    if (!(png instanceof Blob)) throw new Error("the picture is too large for this browser");
    return png;
  } finally {
    URL.revokeObjectURL(url);
  }
}
