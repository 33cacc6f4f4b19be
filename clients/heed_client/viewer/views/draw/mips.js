// A heat map that is drawn at any size: levels halved again and again, and pictures of the parts that are in sight.
import { picture } from "heed/data/palettes.js";

const TILE = 256; // cells, each way

/**
 * Half as many cells each way; each has the highest level of its four, or with two signs the one farthest from the middle.
 * A cell is masked (NaN) only if all four are.
 * @param {Grid} grid @param {boolean} isDiverging
 * @returns {Grid}
 *
 * @typedef {{m: number, n: number, levels: Float32Array}} Grid  levels [m * n]
 */
export function halve({ m, n, levels }, isDiverging) {
  const [rows, columns] = [Math.ceil(m / 2), Math.ceil(n / 2)];
  const result = new Float32Array(rows * columns);
  for (let i = 0; i < rows; i++) {
    const top = 2 * i * n;
    const bottom = Math.min(2 * i + 1, m - 1) * n;
    for (let j = 0; j < columns; j++) {
      const [left, right] = [2 * j, Math.min(2 * j + 1, n - 1)];
      const [a, b, c, d] = [levels[top + left], levels[top + right], levels[bottom + left], levels[bottom + right]];
      result[i * columns + j] = isDiverging
        ? further(further(a, b), further(c, d))
        : higher(higher(a, b), higher(c, d));
    }
  }
  return { m: rows, n: columns, levels: result };
}

/** @param {number} a @param {number} b */
const higher = (a, b) => (a >= b || b !== b ? a : b);

/** @param {number} a @param {number} b */
const further = (a, b) => (Math.abs(a - 0.5) >= Math.abs(b - 0.5) || b !== b ? a : b);

/** The nearest edge of the device's pixels, so that there are no seams between tiles. @param {number} place */
const snap = (place) => Math.round(place * devicePixelRatio) / devicePixelRatio;

export class Mips {
  /** @param {Grid} grid @param {boolean} isDiverging @param {Uint32Array} table  256 colours */
  constructor(grid, isDiverging, table) {
    /** @type {Grid[]} */
    this._grids = [grid];
    this._isDiverging = isDiverging;
    this._table = table;
    /** @type {Map<string, HTMLCanvasElement>} */
    this._tiles = new Map();
  }

  /**
   * Draw the cells from (x, y) on into a rectangle of a canvas.
   * @param {CanvasRenderingContext2D} context
   * @param {{left: number, top: number, width: number, height: number}} plot  in CSS pixels
   * @param {{x: number, y: number, w: number, h: number}} port  first column and row, and the size of a cell in CSS pixels
   */
  draw(context, plot, { x, y, w, h }) {
    const pixel = 1 / devicePixelRatio;
    let level = 0;
    while (Math.min(w, h) * 2 ** level < pixel && this._grid(level).m * this._grid(level).n > 1) level++;
    const size = TILE * 2 ** level; // cells of the matrix
    const { m, n } = this._grids[0];
    context.imageSmoothingEnabled = false;
    const [right, bottom] = [Math.min(n, x + plot.width / w), Math.min(m, y + plot.height / h)];
    for (let i = Math.floor(y / size); i * size < bottom; i++)
      for (let j = Math.floor(x / size); j * size < right; j++) {
        const tile = this._tile(level, i, j);
        const left = snap(plot.left + (j * size - x) * w);
        const top = snap(plot.top + (i * size - y) * h);
        const end = snap(plot.left + (j * size + tile.width * 2 ** level - x) * w);
        const base = snap(plot.top + (i * size + tile.height * 2 ** level - y) * h);
        context.drawImage(tile, left, top, end - left, base - top);
      }
  }

  /** @param {number} level @returns {Grid} */
  _grid(level) {
    return (this._grids[level] ??= halve(this._grid(level - 1), this._isDiverging));
  }

  /** @param {number} level @param {number} i @param {number} j */
  _tile(level, i, j) {
    const key = `${level} ${i} ${j}`;
    let tile = this._tiles.get(key);
    if (!tile) {
      const { m, n, levels } = this._grid(level);
      const [rows, columns] = [Math.min(TILE, m - i * TILE), Math.min(TILE, n - j * TILE)];
      const part = new Float32Array(rows * columns);
      for (let row = 0; row < rows; row++) {
        const start = (i * TILE + row) * n + j * TILE;
        part.set(levels.subarray(start, start + columns), row * columns);
      }
      tile = document.createElement("canvas");
      [tile.width, tile.height] = [columns, rows];
      tile.getContext("2d")?.putImageData(picture(part, rows, columns, this._table), 0, 0);
      this._tiles.set(key, tile);
    }
    return tile;
  }
}
