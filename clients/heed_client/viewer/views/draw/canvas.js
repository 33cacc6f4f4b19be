// Functions for all drawn views: sharp canvases, one drawing per frame, the colours of the theme, words that fit.
import { showSmall, strength } from "heed/data/display.js";
import { cellOf } from "heed/data/matrix.js";
import { isPrinting, onPrint, palette, picture, picturePalette } from "heed/data/palettes.js";
import { options, useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState } from "vendor/preact.js";

/** @typedef {import("heed/data/attention.js").Attention} Attention */
/** @typedef {import("heed/data/display.js").Shown} Shown */
/** @typedef {import("heed/data/matrix.js").Matrix} Matrix */
/** @typedef {import("heed/data/state.js").Settings} Settings */

/** Counts the changes of the theme, by the page's choice or the system's: a dependency of code that reads colours. */
export function useTheme() {
  const [count, setCount] = useState(0);
  useEffect(() => {
    const change = () => setCount((before) => before + 1);
    const system = matchMedia("(prefers-color-scheme: dark)");
    addEventListener("heed-theme", change);
    system.addEventListener("change", change);
    return () => {
      removeEventListener("heed-theme", change);
      system.removeEventListener("change", change);
    };
  }, []);
  return count;
}

/** The colours over a picture, in the theme. @param {string} name  of the palette @param {boolean} isDiverging */
export function usePicturePalette(name, isDiverging) {
  const theme = useTheme();
  return useMemo(() => picturePalette(name, isDiverging), [name, isDiverging, theme]);
}

/** Render and draw at once in another theme: the browser prints the page as it is when `beforeprint` ends. */
onPrint(() => {
  const { debounceRendering, requestAnimationFrame } = options;
  /** @type {(() => void)[]} */
  const effects = [];
  options.debounceRendering = (render) => render();
  options.requestAnimationFrame = (run) => effects.push(run);
  dispatchEvent(new Event("heed-theme"));
  for (const run of effects) run();
  Object.assign(options, { debounceRendering, requestAnimationFrame });
});

/**
 * A function that draws in the next frame, once however often it is called; it always calls the newest `draw`.
 * @param {() => void} draw
 */
export function useFrame(draw) {
  const latest = useRef(draw);
  const request = useRef(0);
  latest.current = draw;
  useEffect(() => () => cancelAnimationFrame(request.current), []);
  return useCallback(() => {
    if (isPrinting()) return latest.current(); // paper does not wait for a frame
    request.current ||= requestAnimationFrame(() => {
      request.current = 0;
      latest.current();
    });
  }, []);
}

/** @param {ResizeObserver} observer @param {Element} element */
function observe(observer, element) {
  try {
    observer.observe(element, { box: "device-pixel-content-box" });
  } catch {
    observer.observe(element); // in Safari
  }
}

/**
 * The size of an element in CSS pixels, 0 x 0 before it exists, the window's height, and the device's pixel ratio.
 * @param {{current: Element | null}} ref
 */
export function useSize(ref) {
  const [size, setSize] = useState({ width: 0, height: 0, ratio: 1, screen: innerHeight });
  useLayoutEffect(() => {
    const element = /** @type {HTMLElement} */ (ref.current);
    const measure = () => {
      const { clientWidth: width, clientHeight: height } = element;
      const now = { width, height, ratio: devicePixelRatio, screen: innerHeight };
      setSize((before) => (JSON.stringify(before) === JSON.stringify(now) ? before : now));
    };
    const observer = new ResizeObserver(measure);
    observe(observer, element);
    addEventListener("resize", measure);
    measure();
    return () => {
      removeEventListener("resize", measure);
      observer.disconnect();
    };
  }, []);
  return size;
}

/** The px from the top of the page to that of a map; 0 before it exists, and where `isWanted` is false.
 *  @param {{current: Element | null}} ref  around the map @param {boolean} [isWanted] */
export function useTopEdge(ref, isWanted = true) {
  const [edge, setEdge] = useState(0);
  useLayoutEffect(() => {
    const map = isWanted ? ref.current?.querySelector(".heat-map") : null;
    if (map) setEdge(Math.round(map.getBoundingClientRect().top + scrollY));
  });
  return edge;
}

/**
 * The context of a cleared canvas of a size in CSS pixels, with the device's pixels.
 * @param {HTMLCanvasElement} canvas @param {number} width @param {number} height
 */
export function prepare(canvas, width, height) {
  const ratio = devicePixelRatio;
  const [w, h] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== w || canvas.height !== h) {
    [canvas.width, canvas.height] = [w, h];
    [canvas.style.width, canvas.style.height] = [`${width}px`, `${height}px`];
  }
  const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return context;
}

/** px of the page's font, which is larger in a wide window. */
export const rootSize = () => parseFloat(getComputedStyle(document.documentElement).fontSize);

/** The page's font, for a canvas. @param {number} px */
export const fontOf = (px) => `${px}px Inter, system-ui, sans-serif`;

/**
 * The theme's colours from style.css, because a canvas cannot read variables.
 * @param {HTMLElement} element  whose text has no colour of its own
 * @returns {{text: string, quiet: string, line: string, mark: string, back: string}}
 */
export function themeColours(element) {
  const colour = (/** @type {string} */ name) => {
    element.style.color = `var(--${name})`;
    return getComputedStyle(element).color;
  };
  const colours = {
    text: colour("text"),
    quiet: colour("quiet"),
    line: colour("line"),
    mark: colour("mark"),
    back: colour("back"),
  };
  element.style.color = "";
  return colours;
}

/** Cuts words of one font with an ellipsis so that they fit a width; each word is measured once. */
export class Words {
  constructor() {
    /** @type {Map<string, string>} */
    this._cut = new Map();
  }

  /** @param {CanvasRenderingContext2D} context  with the font @param {string} text @param {number} width */
  fit(context, text, width) {
    const key = `${width} ${text}`;
    let cut = this._cut.get(key);
    if (cut === undefined) {
      const characters = [...text];
      let length = characters.length;
      const fits = () => context.measureText(cut ?? "").width <= width;
      for (cut = text; length > 1 && !fits();) cut = `${characters.slice(0, --length).join("")}…`;
      this._cut.set(key, cut);
    }
    return cut;
  }
}

/** What is drawn, m x n pixels of it, and the size of the canvas in the device's pixels, 0 before it is known.
 *  @typedef {{shown: Shown, colours: Uint32Array, m: number, n: number, width: number, height: number}} Small */
/** @type {WeakMap<Element, Small>} */
const smallPictures = new WeakMap();

/** A head's small picture, a pixel for each weight; where it is smaller, a pixel shows the strongest of its weights.
 *  @param {HTMLCanvasElement} canvas @param {Matrix} matrix
 *  @param {Attention} attention @param {Settings} settings @param {number} [globalMax] */
export function paintSmall(canvas, matrix, attention, settings, globalMax) {
  const shown = showSmall(matrix, attention, settings, globalMax);
  const { width = 0, height = 0 } = smallPictures.get(canvas) ?? {};
  const isNew = !smallPictures.has(canvas);
  const [m, n] = [fitting(shown.m, height), fitting(shown.n, width)];
  const small = { shown, colours: palette(settings.palette, shown.isDiverging), m, n, width, height };
  smallPictures.set(canvas, small);
  drawSmall(canvas, small);
  if (isNew) observe(resized, canvas);
}

/** @param {HTMLCanvasElement} canvas @param {Small} small */
function drawSmall(canvas, { shown, colours, m, n }) {
  [canvas.width, canvas.height] = [n, m];
  canvas.getContext("2d")?.putImageData(picture(strongestOf(shown, m, n), m, n, colours), 0, 0);
}

const resized = new ResizeObserver((entries) => {
  for (const { target, contentRect, devicePixelContentBoxSize: exact } of entries) {
    const canvas = /** @type {HTMLCanvasElement} */ (target);
    const small = smallPictures.get(canvas);
    if (!small) continue;
    small.width = exact?.[0].inlineSize ?? Math.floor(contentRect.width * devicePixelRatio);
    small.height = exact?.[0].blockSize ?? Math.floor(contentRect.height * devicePixelRatio);
    const [m, n] = [fitting(small.shown.m, small.height), fitting(small.shown.n, small.width)];
    const isCleared = canvas.width !== small.n || canvas.height !== small.m;
    if (isCleared || (m === small.m && n === small.n)) continue;
    [small.m, small.n] = [m, n];
    drawSmall(canvas, small);
  }
});

/** How many cells are drawn. @param {number} count @param {number} pixels  of the canvas, 0 if it is not shown */
const fitting = (count, pixels) => (pixels > 0 ? Math.min(count, pixels) : count);

/** The strongest level of each of m x n parts; a part is masked if all of it is. @param {Shown} shown @param {number} m @param {number} n */
function strongestOf(shown, m, n) {
  if (m === shown.m && n === shown.n) return shown.levels;
  const pooled = new Float32Array(m * n).fill(NaN);
  shown.levels.forEach((level, at) => {
    const [row, column] = [Math.floor(at / shown.n), at % shown.n];
    const part = cellOf(row, shown.m, m) * n + cellOf(column, shown.n, n);
    if (Number.isNaN(pooled[part]) || strength(shown, level) > strength(shown, pooled[part])) pooled[part] = level;
  });
  return pooled;
}
