// Queries at the left and keys at the right, as words; only those in sight are in the document.
import { html, useEffect, useLayoutEffect, useRef, useState } from "vendor/preact.js";
import { prepare, themeColours, useFrame, useSize, useTheme } from "heed/views/draw/canvas.js";
import { minus, percent, strength } from "heed/data/display.js";
import { drawLines, STRIP } from "heed/views/draw/lines.js";

/** @typedef {import("heed/data/attention.js").Label} Label */
/** @typedef {import("heed/views/draw/lines.js").Bundle} Bundle */
/** @typedef {import("heed/views/draw/lines.js").Word} Word */

const ROW = 24; // px of a word, at least
const OF_WIDTH = 52; // a row is 1 / OF_WIDTH of the width of the window, if all rows fit
const TALLEST = 0.72; // of the window's height
const BESIDE = 0.4; // of the width of the words that the weights of several heads have
const MARGIN = 4; // words beyond those in sight that are in the document

/**
 * @param {{bundles: Bundle[], attention: import("heed/data/attention.js").Attention, held: Word | null,
 *   named?: {row?: number, column?: number} | null, hold: (word: Word | null, isClicked?: boolean) => void, isDrawn: (query: number, key: number) => boolean, hasAll: boolean}} props  `bundles` of one size;
 *   `named`: the words of the headline, or the pinned ones; `hasAll`: while no word is selected, all lines are drawn
 */
export function WordLists({ bundles, attention, held, named, hold, isDrawn, hasAll }) {
  const { m, n, rows, columns, error } = bundles[0].shown;
  const box = useRef(/** @type {HTMLElement | null} */ (null));
  const canvas = useRef(/** @type {HTMLCanvasElement | null} */ (null));
  const middle = useRef(/** @type {HTMLElement | null} */ (null));
  const side = useRef(/** @type {HTMLElement | null} */ (null));
  const note = useRef(/** @type {HTMLElement | null} */ (null)); // on the numbers
  const size = useSize(middle);
  const [first, setFirst] = useState(0);
  /** The word that Tab reaches; it stays in the document out of sight, too. */
  const [current, setCurrent] = useState(held ?? /** @type {Word} */ ({ side: "query", index: 0 }));
  const hover = useRef(/** @type {Word | null} */ (null));
  const theme = useTheme();
  const mark = useRef({ theme: -1, colour: "" }); // of heads that are combined
  const isFocusing = useRef(false);
  const length = Math.max(m, n);
  const row = Math.max(ROW, Math.floor(Math.min(innerWidth / OF_WIDTH, (innerHeight * TALLEST) / length)));
  const height = Math.min(Math.round(innerHeight * TALLEST), length * row);
  const end = first + Math.ceil(height / row) + MARGIN;

  const element = (/** @type {Word} */ { side, index }) =>
    /** @type {HTMLElement | null} */ (box.current?.querySelector(`[data-side="${side}"][data-index="${index}"]`));
  const paint = useFrame(() => {
    if (!canvas.current || !box.current || size.width === 0) return;
    const found = held ?? hover.current;
    const word = found && found.index < (found.side === "query" ? m : n) ? found : null;
    if (note.current) note.current.style.visibility = word ? "" : "hidden";
    const context = prepare(canvas.current, size.width, height);
    if (mark.current.theme !== theme) mark.current = { theme, colour: themeColours(canvas.current).mark };
    const drawn = bundles.map(({ shown, colour }) => ({ shown, colour: colour || mark.current.colour }));
    const top = box.current.scrollTop;
    const edge = side.current?.offsetWidth ?? 0;
    context.save();
    context.translate(edge, 0);
    drawLines(context, drawn, { word, top, row, width: size.width - 2 * edge, height, isDrawn, hasAll });
    context.restore();
    for (const option of /** @type {NodeListOf<HTMLElement>} */ (box.current.querySelectorAll("[data-side]"))) {
      const [side, index] = [option.dataset.side, Number(option.dataset.index)];
      option.classList.toggle("active", word?.side === side && word?.index === index);
      const isOther = word !== null && word.side !== side;
      const cell = !isOther ? -1 : side === "key" ? word.index * n + index : index * n + word.index;
      const isIn = isOther && (side === "key" ? isDrawn(word.index, index) : isDrawn(index, word.index));
      const isKey = side === "key";
      if (isIn) drawStrips(context, drawn, cell, isKey ? size.width - edge : 0, index * row - top, edge, row, isKey);
      const weight = /** @type {HTMLElement} */ (option.lastElementChild);
      const text = isIn ? average(bundles, cell) : "";
      if (weight.textContent === text) continue;
      if (weight.firstChild) weight.firstChild.nodeValue = text;
      else weight.textContent = text;
    }
  });
  useEffect(paint);
  useLayoutEffect(() => {
    // On paper the canvas is as wide as the lists: words begin where the lines do.
    box.current?.style.setProperty("--printed-side", `${(100 * (side.current?.offsetWidth ?? 0)) / size.width}%`);
  }, [size.width]);
  useLayoutEffect(() => {
    if (!isFocusing.current) return;
    isFocusing.current = false;
    element(current)?.focus({ preventScroll: true });
  });
  useLayoutEffect(() => {
    if (!held) return;
    reveal(held.index);
    setCurrent(held);
  }, [held?.side, held?.index, length]);

  const scroll = () => {
    setFirst(Math.max(0, Math.floor(/** @type {HTMLElement} */ (box.current).scrollTop / row) - MARGIN));
    paint();
  };
  /** Scroll so far that a word is in sight. @param {number} index */
  const reveal = (index) => {
    const list = /** @type {HTMLElement} */ (box.current);
    if (index * row < list.scrollTop) list.scrollTop = index * row;
    else if ((index + 1) * row > list.scrollTop + height) list.scrollTop = (index + 1) * row - height;
    setFirst(Math.max(0, Math.floor(list.scrollTop / row) - MARGIN));
  };
  const wordOf = (/** @type {Event} */ event) => {
    const option = /** @type {HTMLElement} */ (event.target).closest?.("[data-side]");
    if (!(option instanceof HTMLElement)) return null;
    return /** @type {Word} */ ({ side: option.dataset.side, index: Number(option.dataset.index) });
  };
  const point = (/** @type {Event} */ event) => {
    hover.current = wordOf(event);
    paint();
  };
  const click = (/** @type {Event} */ event) => {
    const word = wordOf(event);
    if (!word) return;
    setCurrent(word);
    hold(word.side === held?.side && word.index === held.index ? null : word, true);
  };
  const press = (/** @type {KeyboardEvent} */ event) => {
    const word = wordOf(event);
    if (!word || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Enter" || event.key === " ") click(event);
    else if (event.key === "Escape") hold(null);
    else {
      const next = moved(word, event.key, m, n);
      if (!next) return;
      isFocusing.current = true;
      hover.current = next;
      reveal(next.index);
      setCurrent(next);
      if (held) hold(next);
    }
    event.preventDefault();
  };
  const column = (/** @type {"query" | "key"} */ which) => {
    const [labels, places] = which === "query" ? [attention.rows, rows] : [attention.columns, columns];
    const indices = Array.from({ length: Math.max(0, Math.min(end, places.length) - first) }, (_, i) => first + i);
    const tab = Math.min(current.index, places.length - 1);
    if (current.side === which && !indices.includes(tab)) indices.push(tab);
    return html`<div role="listbox" ref=${which === "query" ? side : null} aria-label=${which === "query" ? "queries" : "keys"} class=${which === "query" ? "queries" : "keys"}>
      ${indices.map(
        (
          index,
        ) => html`<${Option} key=${index} side=${which} index=${index} row=${row} label=${labels[places[index]]} count=${places.length}
        isCurrent=${current.side === which && tab === index} isHeld=${held?.side === which && held.index === index} isNamed=${places[index] === (which === "query" ? named?.row : named?.column)}
        description=${current.side === which && tab === index ? describe(bundles, which, index, attention) : ""} />`,
      )}
    </div>`;
  };
  return html`<div class="columns-head"><span aria-hidden="true">queries</span>
    ${(bundles.length > 1 || error > 0) && html`<small class="note" ref=${note}>${bundles.length > 1 ? `The numbers are means of the ${bundles.length} heads. ` : ""}${error > 0 ? `Weights are exact to ± ${error.toPrecision(1)}.` : ""}</small>`}<span aria-hidden="true">keys</span></div>
    <div class=${`word-lists ${bundles.length > 1 ? "several" : ""}`} ref=${box} style=${{ height: `${height}px` }} onScroll=${scroll} onPointerOver=${point} onPointerLeave=${point}
      onFocusIn=${point} onFocusOut=${point} onClick=${click} onKeyDown=${press}>
      <div class="inner" style=${{ height: `${length * row}px` }}>
        <div class="lines" ref=${middle} style=${{ height: `${height}px` }}><canvas ref=${canvas} aria-hidden="true"></canvas></div>
        ${column("query")}
        ${column("key")}
      </div>
    </div>`;
}

/** @param {{side: string, index: number, row: number, label: Label, count: number, isCurrent: boolean, isHeld: boolean, isNamed: boolean, description: string}} props */
function Option({ side, index, row, label, count, isCurrent, isHeld, isNamed, description }) {
  const kind = `${label.padding ? "padding" : label.special ? "special" : ""} ${isNamed ? "named" : ""}`;
  return html`<div role="option" data-side=${side} data-index=${index} class=${kind} title=${label.text} tabindex=${isCurrent ? 0 : -1}
    aria-selected=${isHeld} aria-setsize=${count} aria-posinset=${index + 1} aria-description=${description || undefined}
    style=${{ top: `${index * row}px`, height: `${row}px` }}><span>${label.text}</span><small></small></div>`;
}

/** The word to which a key moves from a word; null for other keys. @param {Word} word @param {string} key @param {number} m @param {number} n
 *  @returns {Word | null} */
function moved({ side, index }, key, m, n) {
  const count = side === "query" ? m : n;
  if (key === "ArrowUp") return { side, index: Math.max(0, index - 1) };
  if (key === "ArrowDown") return { side, index: Math.min(count - 1, index + 1) };
  if (key === "Home") return { side, index: 0 };
  if (key === "End") return { side, index: count - 1 };
  if (key === "ArrowLeft") return { side: "query", index: Math.min(m - 1, index) };
  if (key === "ArrowRight") return { side: "key", index: Math.min(n - 1, index) };
  return null;
}

/** Draw the weight in a head's colour behind a word, or those of several heads beside it, at the edge of the window.
 *  @param {CanvasRenderingContext2D} context @param {Bundle[]} bundles @param {number} cell @param {number} x @param {number} y
 *  @param {number} width @param {number} height @param {boolean} isKey  at the right edge */
function drawStrips(context, bundles, cell, x, y, width, height, isKey) {
  const [isOne, all] = [bundles.length === 1, bundles.length === 1 ? width : BESIDE * width];
  const [start, breadth, gap] = [x + (isKey ? width - all : 0), all / bundles.length, isOne ? 0 : 1];
  bundles.forEach(({ shown, colour }, i) => {
    context.globalAlpha = (isOne ? STRIP : 1) * strength(shown, shown.levels[cell]);
    context.fillStyle = colour;
    context.fillRect(start + i * breadth, y + gap, breadth - gap, height - 2 * gap);
  });
}

/** Whether a cell is masked in all heads: its weights are 0, its scores −∞. @param {Pick<Bundle, "shown">[]} bundles @param {number} cell */
const isMasked = (bundles, cell) => bundles.every(({ shown }) => Number.isNaN(shown.levels[cell]));

/** The mean weight or score of the heads. @param {Pick<Bundle, "shown">[]} bundles @param {number} cell */
export function average(bundles, cell) {
  const value = bundles.reduce((sum, { shown }) => sum + shown.values[cell], 0) / bundles.length;
  if (!Number.isFinite(value) || isMasked(bundles, cell)) return "masked";
  return bundles[0].shown.isDiverging ? minus(value.toFixed(3)) : percent(value);
}

/** A word's three largest weights, for screen readers. @param {Bundle[]} bundles @param {"query" | "key"} side @param {number} index
 *  @param {import("heed/data/attention.js").Attention} attention */
function describe(bundles, side, index, attention) {
  const { m, n, rows, columns } = bundles[0].shown;
  const [labels, places] = side === "query" ? [attention.columns, columns] : [attention.rows, rows];
  const cells = Array.from({ length: side === "query" ? n : m }, (_, other) =>
    side === "query" ? index * n + other : other * n + index,
  );
  const value = (/** @type {number} */ cell) => bundles.reduce((sum, { shown }) => sum + shown.values[cell], 0);
  const others = cells
    .map((cell, other) => ({ cell, other, value: value(cell) }))
    .filter(({ cell }) => !isMasked(bundles, cell))
    .sort((one, another) => another.value - one.value);
  const largest = others
    .slice(0, 3)
    .map(({ cell, other }) => `${labels[places[other]].text} ${average(bundles, cell)}`);
  return `${side === "query" ? "looks at" : "is looked at by"} ${largest.join(", ")}`;
}
