// Palettes that colour-blind people can read, as tables of 256 colours.
import {
  interpolateBlues,
  interpolateCividis,
  interpolateGreys,
  interpolateInferno,
  interpolatePuOr,
  interpolateTurbo,
  interpolateViridis,
  rgb,
} from "vendor/d3.js";

/** @type {Record<string, (level: number) => string>} */
const SEQUENTIAL = {
  viridis: interpolateViridis,
  cividis: interpolateCividis,
  inferno: interpolateInferno,
  blues: interpolateBlues,
  greys: interpolateGreys,
};
export const PALETTES = ["auto", ...Object.keys(SEQUENTIAL)];

export const PALE = "#cfd8dc"; // in legends, the picture below transparent colours

/** What the colours of positive and negative numbers mean. @param {string} [where]  the numbers that share a scale */
export const signedNote = (where = "") =>
  `Each cell is one number: orange is positive, violet is negative. The stronger the colour, the larger the absolute value${where && ` ${where}`}.`;

const BACK_DARK = "#11141a"; // of style.css
const CONTRAST = 5.2; // of a head's colour; a line of two thirds of its opacity has 3, as WCAG 2 requires of graphics

const paper = matchMedia("print");
let isAtPrinter = false;

/** Whether the page is drawn for paper. */
export const isPrinting = () => isAtPrinter || paper.matches;

/** @param {() => void} redraw  for paper, and then for the screen, before the browser continues */
export function onPrint(redraw) {
  const print = (/** @type {boolean} */ isOn) => () => {
    isAtPrinter = isOn;
    document.documentElement.style.colorScheme = isOn ? "light" : ""; // @media print would apply too late
    redraw();
  };
  addEventListener("beforeprint", print(true));
  addEventListener("afterprint", print(false));
  paper.addEventListener("change", redraw);
}

export const isDark = () => {
  if (isPrinting()) return false; // paper is white
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
};

/** A colour between two others. @param {string} from @param {string} to @param {number} share  of `to` */
function mixed(from, to, share) {
  const [first, last] = [rgb(from), rgb(to)];
  const mix = (/** @type {"r" | "g" | "b"} */ part) => first[part] + share * (last[part] - first[part]);
  return rgb(mix("r"), mix("g"), mix("b")).formatHex();
}

/** Violet and orange, like PuOr, with a dark middle, where most cells are. @param {number} level */
const darkDiverging = (level) => mixed(BACK_DARK, level < 0.5 ? "#b9a5ff" : "#ffb454", Math.abs(2 * level - 1) ** 0.8);

/** Pink to purple: over a picture, which rarely has these colours. @param {number} level */
const magenta = (level) =>
  level < 0.5 ? mixed("#ff9be0", "#e60f9e", 2 * level) : mixed("#e60f9e", "#6b0058", 2 * level - 1);

/** @type {Record<string, (level: number) => string>} */
const DIVERGING = { puor: interpolatePuOr, dark: darkDiverging };

/** @type {Map<string, Uint32Array>} */
const tables = new Map();

/**
 * 256 colours as the little-endian words of a canvas, red in the lowest byte. `auto` is dark on light or light on dark.
 * @param {string} name @param {boolean} [isDiverging] @param {boolean} [isOnDark]  else on white, as what is saved
 */
export function palette(name, isDiverging = false, isOnDark = isDark()) {
  const [sequential, diverging] = isOnDark ? ["inferno", "dark"] : ["blues", "puor"];
  const isChosen = Object.hasOwn(SEQUENTIAL, name);
  if (isDiverging) return tableOf(diverging, DIVERGING[diverging]);
  return isChosen ? tableOf(name, SEQUENTIAL[name]) : tableOf(sequential, SEQUENTIAL[sequential]);
}

/** The same for patches of a picture, which is seen below low levels.
 *  @param {string} name @param {boolean} [isDiverging] @param {boolean} [isOnDark] */
export const picturePalette = (name, isDiverging = false, isOnDark = isDark()) =>
  isDiverging || Object.hasOwn(SEQUENTIAL, name) ? palette(name, isDiverging, isOnDark) : tableOf("magenta", magenta);

/** @param {string} name @param {(level: number) => string} interpolate */
function tableOf(name, interpolate) {
  let table = tables.get(name);
  if (!table) {
    table = Uint32Array.from({ length: 256 }, (_, i) => {
      const { r, g, b } = rgb(interpolate(i / 255));
      return ((255 << 24) | (Math.round(b) << 16) | (Math.round(g) << 8) | Math.round(r)) >>> 0;
    });
    tables.set(name, table);
  }
  return table;
}

/** The colour of a level from 0 to 1, as CSS writes it. @param {Uint32Array} table @param {number} level @param {number} [opacity] */
export function css(table, level, opacity = 1) {
  const word = table[Math.round(255 * Math.min(1, Math.max(0, level || 0)))];
  const colour = `${word & 255} ${(word >> 8) & 255} ${(word >> 16) & 255}`;
  return opacity < 1 ? `rgb(${colour} / ${opacity})` : `rgb(${colour})`;
}

/** Black or white, whichever is easier to read on a colour over the page. @param {Uint32Array} table @param {number} level
 *  @param {number} [opacity] @param {boolean} [isOnDark]  else on white, as what is saved */
export function textOn(table, level, opacity = 1, isOnDark = isDark()) {
  const word = table[Math.round(255 * Math.min(1, Math.max(0, level || 0)))];
  const back = rgb(isOnDark ? BACK_DARK : "#fff");
  const over = (/** @type {number} */ part, /** @type {number} */ below) => below + opacity * ((part & 255) - below);
  return luminance(over(word, back.r), over(word >> 8, back.g), over(word >> 16, back.b)) > 0.18 ? "#000" : "#fff";
}

/** Relative luminance, as WCAG 2 defines it. @param {number} r @param {number} g @param {number} b */
function luminance(r, g, b) {
  const [red, green, blue] = [r, g, b].map((part) => {
    const share = part / 255;
    return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}

/** A colour for each head, from the rainbow Turbo: colour-blind people can tell its halves apart as bluish and
 *  yellowish, and the colours of a half by their lightness. On white, colours are darkened so that yellow is visible;
 *  on a dark page those of too low a contrast get as bright as their hue allows, and then a share of white.
 *  @param {number} head @param {number} heads @param {boolean} [isOnDark]  else on white */
export function headColour(head, heads, isOnDark = isDark()) {
  const colour = rgb(interpolateTurbo((head + 0.5) / heads));
  if (!isOnDark) return colour.darker(0.5).formatHex();
  const back = rgb(BACK_DARK);
  const isClear = (/** @type {{r: number, g: number, b: number}} */ { r, g, b }) =>
    (luminance(r, g, b) + 0.05) / (luminance(back.r, back.g, back.b) + 0.05) >= CONTRAST;
  if (isClear(colour)) return colour.formatHex();
  const brightest = colour.brighter(Math.log(255 / Math.max(colour.r, colour.g, colour.b)) / Math.log(1 / 0.7));
  for (let share = 0; ; share += 0.05) {
    const [r, g, b] = [brightest.r, brightest.g, brightest.b].map((part) => part + share * (255 - part));
    if (isClear({ r, g, b })) return rgb(r, g, b).formatHex();
  }
}

/**
 * A picture of levels, one pixel each; masked ones are transparent.
 * @param {Float32Array} levels @param {number} m @param {number} n @param {Uint32Array} table
 */
export function picture(levels, m, n, table) {
  const image = new ImageData(n, m);
  const words = new Uint32Array(image.data.buffer);
  for (let i = 0; i < levels.length; i++) {
    const level = levels[i];
    words[i] = level === level ? table[Math.round(level * 255)] : 0;
  }
  return image;
}
