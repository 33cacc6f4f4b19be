// What saved drawings have in common: titles, the scale of colours, and how they become a picture.
import { escape } from "heed/save/document.js";
import { isDifference, isOfWeights, LOOKS, ticks } from "heed/data/display.js";
import { css, PALE, palette } from "heed/data/palettes.js";

/** @typedef {import("heed/data/attention.js").Attention} Attention */
/** @typedef {import("heed/data/display.js").Shown} Shown */
/** @typedef {import("heed/data/state.js").Settings} Settings */

export const FONT = 12;
export const CELL = 16;
export const TITLE = 32; // height of a title
export const TITLE_CHARACTER = 0.62 * 14; // width of its characters, on average
export const MARK = "#1d4e89"; // of what is selected
export const PAGE = 720; // width of the words of a text
export const NAME_LINE = 15; // height of a further line of a scale's name
const LONGEST = 80; // characters of a text in a title
const SCALE = 256; // width of the colours of the scale

/** An output as a title has it. @param {string} kind */
export const said = (kind) => kind.replaceAll("_", " ");

/** The end of a title: whose weights are drawn. @param {string} word @param {boolean} isFrom */
export const ofWord = (word, isFrom) => `: what “${word}” ${isFrom ? LOOKS.from : LOOKS.to}`;

/** A text in a title. @param {string} text */
export const inTitle = (text) => (text.length > LONGEST ? `${text.slice(0, LONGEST - 1)}…` : text);

/** Of what a colour is a share. @param {Settings} settings */
export const ofLargest = ({ range }) => (range === "row" ? "of the row’s largest" : "of the head’s largest");

/** @param {string} text @param {string} [more]  SVG behind it, with colours of its own */
export const heading = (text, more = "") =>
  `<text x="8" y="20" font-weight="600" font-size="14">${escape(text)}${more}</text>`;

/** @typedef {{marks: {level: number, text: string}[], name: string}} Named  the numbers of a scale, and what they are, in lines */
/** The colours with their numbers, and what they stand for. @param {Shown} shown @param {Settings} settings
 *  @param {number} x @param {number} y @param {string} [of]  of what a colour is a share, where that differs
 *  @param {Partial<Named>} [named]  of a matrix that is not of attention */
export function scale(shown, settings, x, y, of = Number.isNaN(shown.high) ? ofLargest(settings) : "", named) {
  const table = palette(settings.palette, shown.isDiverging, false);
  const own = { marks: ticks(shown, settings.scale, isOfWeights(settings.kind)), name: scaleName(shown, settings, of) };
  return colourScale(table, { ...own, ...named }, x, y);
}

/** Any colours with their numbers. @param {Uint32Array} table @param {Named} named @param {number} x @param {number} y
 *  @param {(level: number) => number} [opacity]  of a colour over a picture; without it, none is transparent */
export function colourScale(table, { marks, name }, x, y, opacity) {
  const breadth = SCALE / 64 + (opacity ? 0 : 0.2); // no seams, and no stripes of transparent colours
  const parts = Array.from({ length: 64 }, (_, i) => {
    const clear = opacity ? ` fill-opacity="${round(opacity(i / 63))}"` : "";
    return `<rect x="${round(x + (SCALE / 64) * i)}" y="${y}" width="${breadth}" height="8" fill="${css(table, i / 63)}"${clear}/>`;
  });
  if (opacity) parts.unshift(`<rect x="${round(x)}" y="${y}" width="${SCALE}" height="8" fill="${PALE}"/>`);
  for (const { level, text } of marks)
    parts.push(
      `<text x="${round(x + SCALE * level)}" y="${y + 18}" text-anchor="middle" font-size="11">${escape(text)}</text>`,
    );
  const [first, ...rest] = name.split("\n").map(escape);
  const more = rest.map((line) => ` <tspan x="${round(x)}" dy="${NAME_LINE}">${line}</tspan>`).join("");
  parts.push(`<text x="${round(x)}" y="${y + 34}">${first}${more}</text>`);
  return parts.join("\n");
}

/** What is written below the colours. @param {Shown} shown @param {Settings} settings @param {string} [of]  of what a colour is a share */
export function scaleName(shown, settings, of = Number.isNaN(shown.high) ? ofLargest(settings) : "") {
  const isInOne = isDifference(settings.kind) && shown.values.some(Number.isNaN);
  const white = isInOne ? "white: masked or in one text only" : "white: masked";
  const points = isDifference(settings.kind) && isOfWeights(settings.kind) ? " in percentage points" : "";
  const names = [`${said(settings.kind)}${points}${of && ` in per cent ${of}`}`, `${settings.scale} scale`];
  return [...names, ...(shown.levels.some(Number.isNaN) ? [white] : [])].join(", ");
}

/** What is drawn of a matrix where one row, or else one column, is. @param {Shown} shown @param {number} row  -1 = none
 *  @param {number} column @returns {Shown} */
export const ofLine = (shown, row, column) => ({
  ...shown,
  levels: shown.levels.filter((_, at) => (row >= 0 ? Math.floor(at / shown.n) === row : at % shown.n === column)),
});

/** @param {Pick<Attention, "rows" | "columns">} attention @param {Shown} shown @param {"rows" | "columns"} axis */
export const wordsOf = (attention, shown, axis) => shown[axis].map((place) => attention[axis][place].text);

/** @param {number} width @param {number} height @param {string[]} parts */
export const svg = (width, height, parts) =>
  `<svg xmlns="http://www.w3.org/2000/svg" width="${Math.ceil(width)}" height="${Math.ceil(height)}" ` +
  `font-family="system-ui, sans-serif" font-size="${FONT}"><rect width="100%" height="100%" fill="#fff"/>${parts.join("\n")}</svg>\n`;

/** Width and height of an SVG. @param {string} text  "" has none */
export const sizeOf = (text) => (text.match(/(?<=(width|height)=")\d+/g) ?? ["0", "0"]).map(Number);

/** Widths of words as they are here, without room around them. @param {string[]} words @param {number} [weight]  of the font */
export function widths(words, weight = 400) {
  const context = /** @type {OffscreenCanvasRenderingContext2D} */ (new OffscreenCanvas(1, 1).getContext("2d"));
  context.font = `${weight} ${FONT}px system-ui, sans-serif`;
  return words.map((word) => context.measureText(word).width);
}

/** Room for the longest word that is written: as wide as it is here, or in a mean font. @param {string[]} words @param {number} every */
export function width(words, every) {
  const written = words.filter((_, i) => i % every === 0);
  return 10 + Math.ceil(Math.max(...widths(written), ...written.map((word) => 0.62 * FONT * word.length)));
}

/** @param {number} number */
export const round = (number) => Number(number.toFixed(2));

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
