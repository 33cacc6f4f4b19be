// One matrix as a heat map that can be zoomed to its single cells.
import { html, useEffect, useLayoutEffect, useMemo, useRef, useState } from "vendor/preact.js";
import { DOT, isOfWeights, valueText, visible } from "heed/data/display.js";
import { briefly, nameIn } from "heed/data/picture.js";
import { palette } from "heed/data/palettes.js";
import { largestPair } from "heed/data/ranking.js";
import { rootSize, themeColours, useFrame, useSize, useTheme, Words } from "heed/views/draw/canvas.js";
import { AROUND, draw, drawPointer, layout, LINE } from "heed/views/draw/heat_map.js";
import { Legend } from "heed/views/draw/legend.js";
import { Mips } from "heed/views/draw/mips.js";
import { cellAt, clamp, panBy, reveal, zoomAt } from "heed/views/draw/port.js";
import { useShown } from "heed/views/hooks.js";

/** @typedef {import("heed/views/hooks.js").ViewProps} ViewProps */
/** @typedef {import("heed/views/draw/heat_map.js").Cell} Cell */

const TALLEST = 0.75; // of the window's height
const MANY = 80; // rows; of more not each has its word
const [THIN, HIGH] = [6, 640]; // px of a row of more, and of all of them
const LOWEST = 0.4;
const BELOW = 118; // px of the selection and the note below a map
const APART = 8; // px between a tip and its cell
const CLICK = 4; // px: a pointer that moves less has clicked
const STEP = 1.5; // of a key or a button that zooms

/** @type {import("heed/data/attention.js").Attention[]} */
const ALONE = [];
/** @type {[rows: string, columns: string]} */
const ATTENTION = ["queries", "keys"];

/**
 * @typedef {object} Told  descriptions of a map that is not of weights
 * @property {string} [label]  its content, for screen readers
 * @property {(cell: Cell, number: string) => string} [tell]  the text for a cell
 * @property {string} [whole]  the name of the whole map
 * @property {unknown} [legend]
 */
/**
 * @typedef {object} Link  of a map and words elsewhere that are its columns
 * @property {(column: number | null) => void} mark  mark a column in the map, which sets this
 * @property {(column: number | null) => void} onPoint  is called with the column that is pointed at
 */
/** @typedef {{row: number, column: number}} Pair  the places of a query and a key */
/** @typedef {(port: import("heed/views/draw/port.js").Port | null, pair: Pair | null) => void} Follow  shows the same part of equal words,
 *    and the cell that is pointed at; its places are those of the first map's words */
/** @typedef {Told & {link?: Link, top?: number, beside?: import("heed/data/attention.js").Attention[], masked?: string, hatched?: string, height?: number, below?: number, lowest?: number, axes?: [rows: string, columns: string],
 *    linked?: Set<Follow> | null, isSame?: boolean, counterparts?: import("heed/views/comparison.js").Pairs | null, hasZoom?: boolean, hasLegend?: boolean, wordsBeside?: number, times?: number, hasBars?: boolean, cell?: number, named?: Pair | null, base?: number}} Shared
 *    `top` of the global range, other maps whose cells begin at the same place, the name of hatched cells, also in the legend,
 *    the height in px, or the least height of a map that ends so many px above the window's end, the minimum height of the cells, the names of the axes,
 *    maps that point together, whether they have the same words and zoom together, the counterparts of the first one's words if this one has
 *    others, whether it has their buttons, and a legend of its own, the px of the words of its queries, 0 = none,
 *    and how many times as wide as in the other maps its cells are, whether it has bars of a row and a column, the px of the width of a cell, the pair in the headline, and a number that is written as a dot */

/** A matrix whose largest weight is in the headline. @param {ViewProps} props */
export function WholeMatrix({ attention, settings, set }) {
  const { shown } = useShown(attention, settings);
  return html`<${MatrixView} attention=${attention} settings=${settings} set=${set} named=${shown && largestPair(shown, attention)} />`;
}

/** @param {ViewProps & Shared} props */
export function MatrixView(props) {
  const { shown, error } = useShown(props.attention, props.settings, props.top);
  if (error) return html`<p role="alert">${error.message}</p>`;
  return shown ? html`<${HeatMap} ...${props} shown=${shown} />` : html`<p class="note">…</p>`;
}

/** @param {Omit<ViewProps, "attention"> & Shared & {shown: import("heed/data/display.js").Shown,
 *   attention: Pick<ViewProps["attention"], "rows" | "columns">}} props */
export function HeatMap({
  attention,
  settings,
  set,
  shown,
  beside = ALONE,
  masked = "masked",
  hatched = masked,
  height: own = 0,
  below = 0,
  lowest = undefined,
  axes = ATTENTION,
  label = `weights of ${shown.m} ${axes[0]}, from top to bottom, and ${shown.n} ${axes[1]}, from left to right`,
  tell = undefined,
  whole = "whole matrix",
  legend = undefined,
  link = undefined,
  linked = null,
  isSame = false,
  counterparts = null,
  hasZoom = true,
  hasLegend = true,
  wordsBeside = undefined,
  times = 1,
  hasBars = true,
  cell = 0,
  named = null,
  base = 0,
}) {
  const frame = useRef(/** @type {HTMLElement | null} */ (null));
  const canvas = useRef(/** @type {HTMLCanvasElement | null} */ (null));
  const pointer = useRef(/** @type {HTMLCanvasElement | null} */ (null));
  const tip = useRef(/** @type {HTMLElement | null} */ (null));
  const dots = useRef(/** @type {HTMLElement | null} */ (null));
  const isShare = !legend && isOfWeights(settings.kind);
  const { width, screen } = useSize(frame);
  const [topEdge, setTopEdge] = useState(0); // px from that of the page
  const theme = useTheme();
  const table = useMemo(
    () => palette(settings.palette, shown.isDiverging),
    [settings.palette, shown.isDiverging, theme],
  );
  const names = useMemo(() => {
    const of = (/** @type {"rows" | "columns"} */ axis) =>
      shown[axis].map((place) => briefly(attention[axis][place].text));
    return { rows: of("rows"), columns: of("columns") };
  }, [shown]);
  const mips = useMemo(() => new Mips(shown, shown.isDiverging, table), [shown, table]);
  const plot = useMemo(() => {
    const of = (/** @type {import("heed/data/attention.js").Label[]} */ labels) =>
      labels.map(({ text }) => briefly(text));
    const [left, above] = [beside.flatMap((one) => of(one.rows)), beside.flatMap((one) => of(one.columns))];
    const isAlone = beside.length === 0; // then it ends where the window does
    const rest = innerHeight - topEdge - ((below || BELOW) * rootSize()) / 16;
    const low = own || innerHeight * (isAlone ? LOWEST : TALLEST);
    const isWhole = isAlone && !below && !own; // the page may be longer than the window
    const cells = shown.m <= MANY ? LINE * shown.m : Math.min(THIN * shown.m, HIGH);
    const lines = isWhole ? cells + AROUND : 0;
    const height = isAlone && (below || !own) ? Math.max(low, rest, lines) : low;
    const most = (/** @type {"rows" | "columns"} */ axis) =>
      Math.max(shown[axis].length, ...beside.map((one) => visible(one[axis], settings).length));
    const counts = { m: most("rows"), n: most("columns") };
    const all = { rows: [...names.rows, ...left], columns: [...names.columns, ...above] };
    const size = { width: Math.max(1, width), height };
    return layout(shown, all, size, lowest, { most: counts, wordsBeside, times, hasBars, cell });
  }, [names, width, screen, beside, own, below, lowest, wordsBeside, times, hasBars, cell, theme, topEdge]); // with the theme the font may change
  useLayoutEffect(() => {
    const box = beside.length === 0 ? frame.current?.getBoundingClientRect() : null;
    if (box) setTopEdge(Math.round(box.top + scrollY));
  }, [names, width, screen, below ? {} : null]); // in Model always: there a longer headline makes the map lower
  const words = useMemo(() => new Words(), [plot]);
  /** The state that follows the pointer without rendering the page again. */
  const { current: live } = useRef({
    port: { x: 0, y: 0, zoom: 1 },
    hover: /** @type {Cell | null} */ (null),
    linked: /** @type {number | null} */ (null),
    moved: 0,
    pointers: /** @type {Map<number, {x: number, y: number}>} */ (new Map()),
    colours: /** @type {ReturnType<typeof themeColours> | null} */ (null),
  });
  const held = {
    row: within(settings.query === null ? -1 : shown.rows.indexOf(settings.query)),
    column: within(settings.key === null ? -1 : shown.columns.indexOf(settings.key)),
  };
  const cellOf = (/** @type {Pair | null} */ pair) => {
    const [row, column] = pair ? [shown.rows.indexOf(pair.row), shown.columns.indexOf(pair.column)] : [-1, -1];
    return row < 0 || column < 0 ? null : { row, column };
  };

  const scene = () => ({
    shown,
    isShare,
    isOnOneScale: linked !== null,
    axes,
    plot,
    port: live.port,
    mips,
    table,
    rows: names.rows,
    columns: names.columns,
    words,
    colours: (live.colours ??= themeColours(/** @type {HTMLElement} */ (canvas.current))),
    hover: live.hover,
    linked: live.linked !== null && live.linked < shown.n ? live.linked : null,
    held,
    named: cellOf(named),
    base,
  });
  const paint = useFrame(() => {
    if (!canvas.current || width === 0) return;
    const hasDots = draw(canvas.current, width, scene());
    dots.current?.toggleAttribute("hidden", !hasDots);
    canvas.current.style.touchAction = live.port.zoom > 1 ? "none" : "pan-y";
    follow();
  });
  const follow = () => {
    if (!pointer.current || width === 0) return;
    drawPointer(pointer.current, width, scene());
    placeTip();
  };
  const point = useFrame(follow);
  /** The tip is above the row of the cell, beside its column, on the side that has more room: the rows below, which one points at next,
   *  stay in sight. Its size is not measured, which would cost a layout. */
  const placeTip = () => {
    const element = /** @type {HTMLElement} */ (tip.current);
    const [w, h] = [plot.w * live.port.zoom, plot.h * live.port.zoom];
    const isHeld = live.hover?.row === held.row && live.hover?.column === held.column; // the headline and the selection have its number
    const cell = isHeld ? null : live.hover;
    const [x, y] = cell ? [(cell.column - live.port.x) * w, (cell.row - live.port.y) * h] : [-w, -h];
    element.hidden = !cell || x + w <= 0 || y + h <= 0 || x >= plot.width || y >= plot.height;
    if (!cell || element.hidden) return;
    const { row, column } = cell;
    const [value, level] = [shown.values, shown.levels].map((numbers) => numbers[row * shown.n + column]);
    const error = isShare && shown.error > 0 ? ` (± ${(100 * shown.error).toPrecision(1)})` : "";
    const text = Number.isNaN(level) && !(value > 0) ? masked : valueText(settings.kind, value, shown.error) + error;
    const [query, key] = [shown.rows[row], shown.columns[column]];
    element.textContent =
      tell?.(cell, text) ??
      `${nameIn(attention, settings, "rows", query)} → ${nameIn(attention, settings, "columns", key)} ${text}`;
    const left = plot.left + x;
    const across =
      x < plot.width / 2 ? `min(${left + w + APART}px, ${width}px - 100%)` : `max(0px, ${left - APART}px - 100%)`;
    element.style.transform = `translate(${across}, calc(${plot.top + Math.max(0, y) - APART}px - 100%))`;
  };

  useLayoutEffect(() => {
    live.colours = null;
  }, [theme]);
  useLayoutEffect(() => {
    live.port = { x: 0, y: 0, zoom: 1 };
    live.hover = null;
  }, [shown.m, shown.n]);
  useLayoutEffect(() => {
    live.port = clamp(live.port, plot);
  }, [plot]);
  useEffect(paint);
  useLayoutEffect(() => {
    if (!link) return;
    link.mark = (column) => {
      if (column === live.linked) return;
      live.linked = column;
      point();
    };
    return () => {
      link.mark = () => {};
    };
  }, [link]);
  const lead = useRef(() => {}); // the other maps
  const follower = useRef(/** @type {Follow} */ (() => {}));
  follower.current = (next, pair) => {
    const { x, y, zoom } = live.port;
    if (next) live.port = clamp(next, plot);
    live.hover = cellOf(pair && ofFirst(pair, counterparts));
    (live.port.x === x && live.port.y === y && live.port.zoom === zoom ? point : paint)();
  };
  useEffect(() => {
    const own = /** @type {Follow} */ ((...at) => follower.current(...at));
    lead.current = () => {
      const { hover: cell, port } = live;
      const pair = cell && inFirst({ row: shown.rows[cell.row], column: shown.columns[cell.column] }, counterparts);
      linked?.forEach((other) => other !== own && other(isSame ? port : null, pair));
    };
    linked?.add(own);
    return () => void linked?.delete(own);
  }, [linked, isSame, counterparts, shown]);

  const change = (/** @type {typeof live.port} */ port) => {
    live.port = port;
    paint();
    lead.current();
  };
  const place = (/** @type {PointerEvent | WheelEvent} */ event) => {
    const box = /** @type {HTMLElement} */ (canvas.current).getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  };
  const middle = () => ({ x: plot.left + plot.width / 2, y: plot.top + plot.height / 2 });
  const zoom = (/** @type {number} */ factor, at = middle()) => change(zoomAt(live.port, plot, factor, at.x, at.y));
  const reset = () => change({ x: 0, y: 0, zoom: 1 });
  const hold = (/** @type {Cell | null} */ cell) => {
    if (!cell || (cell.row === held.row && cell.column === held.column)) return set({ query: null, key: null });
    change(reveal(live.port, plot, cell.row, cell.column));
    set({ query: shown.rows[cell.row], key: shown.columns[cell.column] });
  };
  const wheel = (/** @type {WheelEvent} */ event) => {
    if (event.deltaY > 0 && live.port.zoom === 1) return; // the page scrolls
    event.preventDefault();
    zoom(Math.exp((-Math.sign(event.deltaY) * Math.min(120, Math.abs(event.deltaY))) / 300), place(event));
  };
  const down = (/** @type {PointerEvent} */ event) => {
    if (event.button !== 0) return;
    canvas.current?.setPointerCapture(event.pointerId);
    if (live.pointers.size === 0) live.moved = 0;
    live.pointers.set(event.pointerId, place(event));
  };
  const move = (/** @type {PointerEvent} */ event) => {
    const now = place(event);
    const before = live.pointers.get(event.pointerId);
    if (before) {
      const other = [...live.pointers].find(([id]) => id !== event.pointerId)?.[1];
      live.moved += Math.hypot(now.x - before.x, now.y - before.y);
      if (other) {
        const factor =
          Math.hypot(now.x - other.x, now.y - other.y) /
          Math.max(1, Math.hypot(before.x - other.x, before.y - other.y));
        live.port = zoomAt(live.port, plot, factor, (now.x + other.x) / 2, (now.y + other.y) / 2);
        live.port = panBy(live.port, plot, (now.x - before.x) / 2, (now.y - before.y) / 2);
        live.moved = Infinity;
      } else if (live.moved > CLICK) live.port = panBy(live.port, plot, now.x - before.x, now.y - before.y);
      live.pointers.set(event.pointerId, now);
    }
    live.hover = cellAt(live.port, plot, now.x, now.y);
    link?.onPoint(live.hover?.column ?? null);
    (before ? paint : point)();
    lead.current();
  };
  const up = (/** @type {PointerEvent} */ event) => {
    if (!live.pointers.delete(event.pointerId) || event.type === "pointercancel" || live.moved > CLICK) return;
    const at = place(event);
    const cell = cellAt(live.port, plot, at.x, at.y);
    if (cell) hold(cell);
  };
  const leave = () => {
    live.hover = null;
    link?.onPoint(null);
    point();
    lead.current();
  };
  const press = (/** @type {KeyboardEvent} */ event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    /** @type {Record<string, [number, number]>} */
    const steps = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
    const step = steps[event.key];
    if (step) {
      const [row, column] =
        held.row === null && held.column === null
          ? [Math.floor(live.port.y), Math.floor(live.port.x)]
          : [(held.row ?? 0) + step[0], (held.column ?? 0) + step[1]];
      const cell = { row: Math.max(0, Math.min(shown.m - 1, row)), column: Math.max(0, Math.min(shown.n - 1, column)) };
      if (cell.row !== held.row || cell.column !== held.column) hold(cell);
    } else if (event.key === "+" || event.key === "=") zoom(STEP);
    else if (event.key === "-") zoom(1 / STEP);
    else if (event.key === "0") reset();
    else if (event.key === "Escape") hold(null);
    else return;
    event.preventDefault();
  };
  return html`<div class="heat-map-tools">
      ${!hasLegend ? html`<span class="note same-scale">same scale</span>` : (legend ?? html`<${Legend} shown=${shown} table=${table} scale=${settings.scale} masked=${hatched} isShare=${isShare} />`)}
      <span class="note" ref=${dots} hidden>${DOT} ${base ? "as unchanged" : "rounds to 0"}</span>
      ${
        hasZoom &&
        html`<span role="group" aria-label="zoom">
        <button aria-label="zoom out" onClick=${() => zoom(1 / STEP)}>−</button>
        <button aria-label="zoom in" onClick=${() => zoom(STEP)}>+</button>
        <button onClick=${reset}>${whole}</button>
      </span>`
      }
    </div>
    <div class=${`heat-map ${plot.bar ? "with-bars" : ""}`} ref=${frame}>
      <canvas ref=${canvas} tabindex="0" role="application" aria-roledescription="heat map"
        aria-label=${`${label}; arrow keys pin a cell, + and - zoom, 0 shows the ${whole}, Escape unpins it`}
        onWheel=${wheel} onPointerDown=${down} onPointerMove=${move} onPointerUp=${up} onPointerCancel=${up}
        onPointerLeave=${leave} onKeyDown=${press}></canvas>
      <canvas class="pointer" ref=${pointer} aria-hidden="true"></canvas>
      <div class="tip" ref=${tip} hidden></div>
    </div>`;
}

/** @param {number} index  -1 = none */
const within = (index) => (index < 0 ? null : index);

/** The places in the first map of a pair of words of another. @param {Pair} pair @param {import("heed/views/comparison.js").Pairs | null} counterparts */
const inFirst = ({ row, column }, counterparts) =>
  counterparts
    ? { row: counterparts.rows.indexOf(row), column: counterparts.columns.indexOf(column) }
    : { row, column };

/** The places of a pair of the first map's words in another. @param {Pair} pair @param {import("heed/views/comparison.js").Pairs | null} counterparts */
const ofFirst = ({ row, column }, counterparts) =>
  counterparts ? { row: counterparts.rows[row], column: counterparts.columns[column] } : { row, column };
