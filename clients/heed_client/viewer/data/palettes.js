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

const paper = matchMedia("print");
let isAtPrinter = false;

/** Whether the page is drawn for paper. */
export const isPrinting = () => isAtPrinter || paper.matches;

/** @param {() => void} redraw  for paper, and for the screen again, before the browser goes on */
export function onPrint(redraw) {
  const print = (/** @type {boolean} */ isOn) => () => {
    isAtPrinter = isOn;
    document.documentElement.style.colorScheme = isOn ? "light" : ""; // not by @media print, which begins later
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

/** @type {Map<string, Uint32Array>} */
const tables = new Map();

/**
 * 256 colours as the little-endian words of a canvas, red in the lowest byte. `auto` is dark on light or light on dark.
 * @param {string} name @param {boolean} [isDiverging]
 */
export function palette(name, isDiverging = false) {
  const chosen = isDiverging ? "puor" : Object.hasOwn(SEQUENTIAL, name) ? name : isDark() ? "inferno" : "blues";
  let table = tables.get(chosen);
  if (!table) {
    const interpolate = isDiverging ? interpolatePuOr : SEQUENTIAL[chosen];
    table = Uint32Array.from({ length: 256 }, (_, i) => {
      const { r, g, b } = rgb(interpolate(i / 255));
      return ((255 << 24) | (Math.round(b) << 16) | (Math.round(g) << 8) | Math.round(r)) >>> 0;
    });
    tables.set(chosen, table);
  }
  return table;
}

/** The colour of a level from 0 to 1, as CSS writes it. @param {Uint32Array} table @param {number} level */
export function css(table, level) {
  const word = table[Math.round(255 * Math.min(1, Math.max(0, level || 0)))];
  return `rgb(${word & 255} ${(word >> 8) & 255} ${(word >> 16) & 255})`;
}

/** Black or white, whichever is easier to read on a colour. @param {Uint32Array} table @param {number} level */
export function textOn(table, level) {
  const word = table[Math.round(255 * Math.min(1, Math.max(0, level || 0)))];
  const [red, green, blue] = [word & 255, (word >> 8) & 255, (word >> 16) & 255].map((part) => {
    const share = part / 255;
    return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.18 ? "#000" : "#fff";
}

/** A colour for each of the heads: of the rainbow Turbo, whose two halves colour-blind people tell apart as bluish and
 *  yellowish, and each half by its lightness. Darker, so that yellow is seen on white. @param {number} head @param {number} heads */
export const headColour = (head, heads) =>
  rgb(interpolateTurbo((head + 0.5) / heads))
    .darker(0.5)
    .formatHex();

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
