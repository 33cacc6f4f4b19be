// A picture in patches, coloured by their weights.
import { html } from "vendor/preact.js";
import { css } from "heed/data/palettes.js";
import { cover, isCoarse } from "heed/data/picture.js";
import { prepare, rootSize, themeColours } from "heed/views/draw/canvas.js";

/** @typedef {import("heed/views/picture_view.js").Patches} Patches */
/** @typedef {import("heed/views/picture_view.js").Seen} Seen */
/** @typedef {import("heed/data/picture.js").Weights} Weights */

const [LEAST, BESIDE] = [0.43, 640]; // a picture takes so much of the window's height, or all but so many px
const BESIDE_ALONE = 420; // px, if less is above and below it
const APART = 20; // px between two numbers of rows or columns, at least
const EDGE = 1.25; // rem left of a picture and above it, where the numbers are
export const FADED = 0.75; // of a picture's colours, from which those of the weights would not differ

/** px of the height of a picture, at most. @param {boolean} [isAlone]  whether no text is above it, and no pictures below */
export const tallest = (isAlone = false) =>
  Math.max(innerHeight * LEAST, innerHeight - (isAlone ? BESIDE_ALONE : BESIDE));

/** The factor with which a picture fits. @param {Seen["image"]} image @param {number} width  of its frame
 *  @param {number} [height]  px */
export const scaleOf = (image, width, height = tallest()) => Math.min(width / image.width, height / image.height);

/** px left of a picture and above it, where its rows and columns are numbered. */
export const edge = () => EDGE * rootSize();

/** The numbers of a picture's rows and columns, beside it. @param {{drawing: PatchDrawing}} props */
export function PatchNumbers({ drawing: { rows, columns, side } }) {
  const step = Math.ceil(APART / side);
  const numbers = (/** @type {number} */ count, /** @type {"left" | "top"} */ from) =>
    Array.from({ length: Math.ceil(count / step) }, (_, i) => {
      const middle = `calc(var(--edge) + ${(i * step + 0.5) * side}px)`;
      return html`<small class=${from === "left" ? "of-column" : "of-row"} style=${{ [from]: middle }}>${i * step}</small>`;
    });
  return html`<div class="patch-numbers" aria-hidden="true">${numbers(columns, "left")}${numbers(rows, "top")}</div>`;
}

/** A length in CSS pixels that ends with a pixel of the device. @param {number} length */
const snap = (length) => Math.round(length * devicePixelRatio) / devicePixelRatio;

export class PatchDrawing {
  /** @param {Patches} patches @param {number} scale  px of a pixel of the picture */
  constructor({ special, rows, columns, size }, scale) {
    this.special = special;
    this.end = special + rows * columns;
    this.columns = columns;
    this.rows = rows;
    this.side = size * scale; // px of a patch
    this._scale = scale;
  }

  /** @param {number} position */
  isPatch(position) {
    return position >= this.special && position < this.end;
  }

  /** Where a patch begins, in px. @param {number} position */
  place(position) {
    const [row, column] = [
      Math.floor((position - this.special) / this.columns),
      (position - this.special) % this.columns,
    ];
    return { x: column * this.side, y: row * this.side };
  }

  /** The patch of an event on a canvas; null beside the patches. @param {HTMLElement} canvas @param {PointerEvent | MouseEvent} event */
  at(canvas, event) {
    const box = canvas.getBoundingClientRect();
    const column = Math.floor((event.clientX - box.left) / this.side);
    const row = Math.floor((event.clientY - box.top) / this.side);
    const isInside = column >= 0 && row >= 0 && column < this.columns && row < this.rows;
    return isInside ? this.special + row * this.columns + column : null;
  }

  /**
   * Paint the picture in greyer colours, visible where the weights are low.
   * @param {HTMLCanvasElement} canvas @param {Seen} seen @param {Weights} weights
   * @param {Uint32Array} table @param {number} opacity  of the colours
   */
  paint(canvas, { image, sharp }, weights, table, opacity) {
    const [width, height] = [image.width * this._scale, image.height * this._scale];
    const context = prepare(canvas, width, height);
    context.imageSmoothingEnabled = !isCoarse(image);
    context.imageSmoothingQuality = "high";
    const strongest = Math.min(1, Math.max(0, opacity));
    const isLarge = width * devicePixelRatio > image.width;
    context.drawImage((isLarge && sharp) || image, 0, 0, width, height);
    context.globalCompositeOperation = "saturation";
    context.globalAlpha = FADED * strongest;
    context.fillStyle = "#888";
    context.fillRect(0, 0, width, height);
    context.globalCompositeOperation = "source-over";
    for (let position = this.special; position < this.end; position++) {
      const level = weights.levels[position];
      if (weights.hidden[position] || Number.isNaN(level)) continue;
      const { x, y } = this.place(position);
      const [left, top] = [snap(x), snap(y)]; // no seams between patches
      context.globalAlpha = strongest * cover(weights, level);
      context.fillStyle = css(table, level);
      context.fillRect(left, top, snap(x + this.side) - left, snap(y + this.side) - top);
    }
    context.globalAlpha = 1;
  }

  /** @param {HTMLCanvasElement} canvas @param {number} position @param {"mark" | "text"} colour @param {number} breadth */
  outline(canvas, position, colour, breadth) {
    const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
    const colours = themeColours(canvas);
    const { x, y } = this.place(position);
    for (const [style, line] of /** @type {[string, number][]} */ ([
      [colours.back, breadth + 2],
      [colours[colour], breadth],
    ])) {
      context.strokeStyle = style;
      context.lineWidth = line;
      context.strokeRect(x + breadth / 2 + 1, y + breadth / 2 + 1, this.side - breadth - 2, this.side - breadth - 2);
    }
  }
}
