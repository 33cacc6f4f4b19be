// Colours behind the chips of a text, in a canvas below them: when they change, no chip is laid out or painted again.
import { isPrinting } from "heed/data/palettes.js";
import { prepare } from "heed/views/draw/canvas.js";

/** @typedef {{fill: string, isFlipped: boolean}} Colour  of a level; flipped: text in the theme's colour cannot be read on it */
/** @typedef {(index: number) => number} LevelOf  level of a chip from 0 to 1; NaN = none */

const BORDER = 1; // px of a chip, which is drawn over the colour
const RING = 2; // px around a chip

export class ChipColours {
  /** @param {HTMLElement} box  with a canvas, and above it the text with its chips */
  constructor(box) {
    this._canvas = /** @type {HTMLCanvasElement} */ (box.querySelector("canvas"));
    this._text = /** @type {HTMLElement} */ (box.querySelector(".token-text"));
    this.chips = /** @type {HTMLElement[]} */ ([...this._text.querySelectorAll(".chip")]);
    this._isFlipped = new Uint8Array(this.chips.length); // as their class says
    this._isPrinted = false; // chips have backgrounds
    this._places = new Float32Array(4 * this.chips.length); // left, top, right and bottom in the text
  }

  /** Measure the places of the chips in the text: once after each layout. */
  measure() {
    const { scrollLeft, scrollTop } = this._text;
    const frame = this._text.getBoundingClientRect();
    const [left, top] = [snap(frame.left) - scrollLeft, snap(frame.top) - scrollTop];
    this.chips.forEach((chip, index) => {
      const box = chip.getBoundingClientRect();
      const edges = [snap(box.left) - left, snap(box.top) - top, snap(box.right) - left, snap(box.bottom) - top];
      this._places.set(edges, 4 * index);
    });
  }

  /** Draw the colours as backgrounds of all chips, which are at other places on paper. @param {LevelOf} levelOf @param {Colour[]} colours */
  _print(levelOf, colours) {
    this.chips.forEach((chip, index) => {
      const level = levelOf(index);
      chip.style.backgroundColor = level === level ? colours[Math.round(255 * level)].fill : "";
    });
  }

  /** Colour the chips in sight, and draw a ring around some. @param {LevelOf} levelOf @param {Colour[]} colours  256 of them
   *  @param {number[]} active  with a ring @param {string} mark  colour of the ring */
  draw(levelOf, colours, active, mark) {
    if (isPrinting() || this._isPrinted) {
      this._isPrinted = isPrinting();
      this._print(this._isPrinted ? levelOf : () => NaN, colours);
    }
    const { clientWidth, clientHeight, scrollTop } = this._text;
    const context = prepare(this._canvas, clientWidth, clientHeight);
    const places = this._places;
    for (let index = 0; index < this.chips.length; index++) {
      const level = levelOf(index);
      const colour = level === level ? colours[Math.round(255 * level)] : null;
      const isFlipped = Number(colour?.isFlipped ?? 0);
      if (isFlipped !== this._isFlipped[index]) {
        this._isFlipped[index] = isFlipped;
        this.chips[index].classList.toggle("flipped", isFlipped === 1);
      }
      const [top, bottom] = [places[4 * index + 1] - scrollTop, places[4 * index + 3] - scrollTop];
      if (!colour || bottom < 0 || top > clientHeight) continue;
      const [left, right] = [places[4 * index], places[4 * index + 2]];
      context.fillStyle = colour.fill;
      context.fillRect(left + BORDER, top + BORDER, right - left - 2 * BORDER, bottom - top - 2 * BORDER);
    }
    context.strokeStyle = mark;
    context.lineWidth = RING;
    context.beginPath();
    for (const index of active) {
      const [left, top, right, bottom] = places.subarray(4 * index, 4 * index + 4);
      context.roundRect(left - RING / 2, top - scrollTop - RING / 2, right - left + RING, bottom - top + RING, 5);
    }
    context.stroke();
  }
}

/** The nearest edge of the device's pixels, as the browser places a border. @param {number} place */
const snap = (place) => Math.round(place * devicePixelRatio) / devicePixelRatio;
