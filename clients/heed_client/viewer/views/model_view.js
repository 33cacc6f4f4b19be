// All heads at once: layers x heads as small pictures, which can be sorted by statistics of the heads.
import { html, useEffect, useMemo, useRef } from "vendor/preact.js";
import { poolLabels, showSmall, valueText, visible } from "heed/data/display.js";
import { nameIn } from "heed/data/picture.js";
import { heldWeight, largestPair } from "heed/data/ranking.js";
import { POOL } from "heed/data/attention.js";
import { cellOf, STATISTICS } from "heed/data/matrix.js";
import { paintSmall, useTheme } from "heed/views/draw/canvas.js";
import { placeOf } from "heed/views/comparison.js";
import { arrowKeys, hint } from "heed/views/controls.js";
import { drawn, globalMax, useArrived, usePromise, useReady, useShown } from "heed/views/hooks.js";
import { HeatMap } from "heed/views/matrix_view.js";

/** @typedef {import("heed/views/hooks.js").ViewProps} ViewProps */
/** @typedef {import("heed/views/pair_finder.js").Head} Head */

const SORTS = {
  layer: "layer and head",
  entropy: "entropy, in nats",
  distance: "mean distance",
  first: "share on the first token",
  diagonal: "share on the diagonal",
  previous: "share on the previous token",
  held: "share on the pinned token",
};

const BELOW = 64; // px below the large head: the last note
const FEW = 6; // layers whose pictures all fit a window's height

const TOPS = {
  row: "the largest of each query",
  matrix: "the largest of the head",
  global: "the largest of all heads",
};

/** The numbers that heads have, and the held token, by which they can be sorted.
 *  @param {ViewProps["attention"]} attention @param {ViewProps["settings"]} settings */
function sortable({ statistics, isSelf }, { kind, key, query }) {
  return { statistics: kind.endsWith("weights") ? statistics : null, held: key ?? (isSelf ? query : null) }; // no shares of scores
}

/** The orders in which heads can be sorted.
 *  @param {ViewProps["attention"]} attention @param {ViewProps["settings"]} settings
 *  @returns {Record<string, string>} */
export function sortsOf(attention, settings) {
  const { statistics, held } = sortable(attention, settings);
  const { layer, entropy, first, held: _, ...others } = SORTS;
  return {
    layer,
    ...(statistics && { entropy, first, ...(attention.isSelf && others) }),
    ...(statistics &&
      held !== null && { held: `share on ${nameIn(attention, settings, "columns", held)}, which is pinned` }),
  };
}

/** @param {ViewProps & {pointed: Head | null, setPointed: (head: Head) => void}} props  `pointed` is the head that is shown large */
export function ModelView({ attention, settings, set, pointed, setPointed }) {
  const { layers, heads } = attention;
  const ready = useReady(attention);
  const { isWhole } = attention;
  const { statistics, held } = sortable(attention, settings);
  const { hideSpecial, hideFirst, hidePadding } = settings;
  const isKnown = statistics !== null && isWhole && (settings.sort !== "held" || held !== null);
  const which = isKnown ? STATISTICS.indexOf(settings.sort) : -1;
  const asked = settings.sort === "held" && which >= 0 ? attention.received : null; // of the server
  const received = usePromise(
    async () => ({ attention, shares: asked && (await asked()) }),
    [attention, asked !== null],
  );
  const shares = received.value?.attention === attention ? received.value.shares : null;
  const queries = useMemo(() => visible(attention.rows, settings), [attention, hideSpecial, hideFirst, hidePadding]);
  const keys = useMemo(() => visible(attention.columns, settings), [attention, hideSpecial, hideFirst, hidePadding]);
  const isOfAll = attention.received !== null && (queries.length < attention.m || keys.length < attention.n);
  const places = useMemo(() => {
    const number = (/** @type {number} */ layer, /** @type {number} */ head) => {
      if (which < 0 || !statistics) return null;
      if (!asked) return statistics(layer, head, { queries, keys, held })[which];
      return shares && shares[(layer * heads + head) * attention.n + Number(held)];
    };
    const all = Array.from({ length: layers * heads }, (_, i) => {
      const [layer, head] = [Math.floor(i / heads), i % heads];
      return { layer, head, number: number(layer, head) };
    });
    return which < 0 ? all : all.sort((one, other) => Number(other.number) - Number(one.number));
  }, [attention, which, queries, keys, which >= 0 && held, shares]);
  const top = useMemo(() => globalMax(attention, settings), [attention, settings.range, ready, isWhole]);
  useEffect(() => {
    if (isWhole) performance.mark("heed-model-view-drawn");
  }, [attention, isWhole]);
  const isGrid = which < 0;
  const example = [layers - 1, layers === heads ? heads - 2 : heads - 1]; // two numbers that differ
  const isMasked = useMemo(
    () => ready > 0 && showSmall(attention.small(0, 0), attention, settings).levels.some(Number.isNaN),
    [attention, ready > 0, isWhole, hideSpecial, hideFirst, hidePadding],
  );
  const point = (/** @type {Event} */ event) => {
    const { dataset } = /** @type {HTMLElement} */ (event.target).closest("button") ?? {};
    if (!dataset?.head) return;
    const [layer, head] = dataset.head.split(".").map(Number);
    if (layer !== pointed?.layer || head !== pointed?.head) setPointed({ layer, head });
  };
  const large = attention.isQuick && pointed && pointed.layer < layers && pointed.head < heads ? pointed : settings;
  const isLargeHere = attention.isQuick && large.layer * heads + large.head < ready;
  return html`<p class="note meaning">Each square is a head: queries from top to bottom, keys from left to right, stronger colours for larger
      weights, up to ${TOPS[settings.range]}.${isMasked && " Hatched: masked."} ${isLargeHere && html`<span class="of-large-head">${hint("Point at one to see it large.", "")} </span>`}${hint("Click", "Tap")} one to open it.${layers > 1 && heads > 1 && ` ${example[0]}.${example[1]} is ${attention.axis} ${example[0]}, head ${example[1]}.`}</p>
    ${!isGrid && isOfAll && html`<p class="note">includes hidden tokens: for long inputs the server computes these numbers over all tokens</p>`}
    ${received.error && html`<p role="alert">${received.error.message}</p>`}
    <div class="heads-beside"><div class=${`thumbnails ${isGrid ? "of-layers" : ""}`} role="group" aria-label="heads" onKeyDown=${arrowKeys} onPointerOver=${point} onFocusIn=${point} style=${{ "--heads": heads, "--rows": layers <= FEW ? layers : 1 }}>
      ${places.map(
        ({
          layer,
          head,
          number,
        }) => html`<${Thumbnail} key=${`${layer}.${head}`} attention=${attention} settings=${settings}
        layer=${layer} head=${head} top=${top} isHere=${layer * heads + head < ready} isWhole=${isWhole} isOff=${settings.ablated.some(([l, h]) => l === layer && h === head)} isCurrent=${layer === large.layer && head === large.head} isLarge=${isLargeHere}
        number=${number}
        open=${() => {
          set({ view: "head", layer, head, heads: [], combine: "none" });
          document.getElementById("tab-head")?.focus();
        }} />`,
      )}
    </div>${isLargeHere && html`<${LargeHead} attention=${attention} settings=${{ ...settings, layer: large.layer, head: large.head }} set=${set} top=${top} />`}</div>`;
}

/** One head with its words; while it is loaded, the one before. @param {ViewProps & {top?: number}} props */
export function LargeHead({ attention, settings: wanted, set, top }) {
  const selected = { ...wanted, combine: /** @type {const} */ ("none") };
  const arrived = useArrived(attention, selected);
  const settings = attention.isSmall ? selected : arrived;
  const loaded = useShown(attention, settings, top);
  const matrix = attention.isSmall ? attention.small(settings.layer, settings.head) : loaded.matrix;
  return (
    matrix && html`<${Large} attention=${attention} settings=${settings} set=${set} matrix=${matrix} top=${top} />`
  );
}

/** @param {ViewProps & {matrix: import("heed/data/matrix.js").Matrix, top?: number}} props */
function Large({ attention, settings, set, matrix, top }) {
  const shown = drawn(matrix, attention, settings, top);
  const largest = largestPair(shown, attention);
  const pair = pairOf(attention, settings, matrix, largest);
  const text =
    pair &&
    html`: ${nameIn(attention, settings, "rows", pair.row)} → ${nameIn(attention, settings, "columns", pair.column)} ${valueText(settings.kind, pair.value)}`;
  return html`<section class="large-head" aria-label="large head"><h2>${placeOf(attention, settings)}${text}</h2>
    <${HeatMap} attention=${attention} settings=${settings} set=${set} shown=${shown} below=${BELOW} named=${largest} /></section>`;
}

/** The pinned pair, or the largest of the pinned word, or of all words. @param {ViewProps["attention"]} attention
 *  @param {ViewProps["settings"]} settings @param {import("heed/data/matrix.js").Matrix} matrix
 *  @param {ReturnType<typeof largestPair>} largest */
function pairOf(attention, settings, { n, values }, largest) {
  const { query, key } = settings;
  if (query === null && key === null) return largest;
  const { weight, other } = heldWeight(attention, settings, (i, j) => values[i * n + j]);
  const [row, column] = [query ?? other, key ?? other];
  return row === null || column === null || !Number.isFinite(weight) ? null : { row, column, value: weight };
}

/** @param {ViewProps & {layer: number, head: number, top?: number, number: number | null, isHere: boolean, isWhole: boolean, isOff: boolean, isCurrent: boolean, isLarge: boolean, open: () => void}} props
 *    `isCurrent`: it is framed, and Tab reaches it; `isLarge`: the current one is also shown large */
function Thumbnail({
  attention,
  settings,
  layer,
  head,
  top,
  number,
  isHere,
  isWhole,
  isOff,
  isCurrent,
  isLarge,
  open,
}) {
  const canvas = useRef(/** @type {HTMLCanvasElement | null} */ (null));
  const theme = useTheme();
  const {
    scale,
    range,
    threshold,
    kind,
    palette: colours,
    hideSpecial,
    hideFirst,
    hidePadding,
    renormalise,
  } = settings;
  useEffect(() => {
    const element = /** @type {HTMLCanvasElement} */ (canvas.current);
    if (isHere) paintSmall(element, attention.small(layer, head), attention, settings, top);
    else element.width = element.height = 1; // not the last answer's picture
  }, [
    attention,
    isHere,
    isWhole, // before the end neither the scale of 8-bit weights nor their mask is known
    layer,
    head,
    theme,
    scale,
    range,
    threshold,
    kind,
    colours,
    top,
    hideSpecial,
    hideFirst,
    hidePadding,
    renormalise,
  ]);
  const name = attention.layers > 1 ? `${layer}.${head}` : `${head}`;
  const label = attention.layers > 1 ? `${attention.axis} ${layer}, head ${head}` : `head ${head}`;
  const caption = number === null ? name : `${name} ${number.toFixed(2)}`;
  return html`<button data-head=${`${layer}.${head}`} tabindex=${isCurrent ? 0 : -1} aria-current=${isCurrent} aria-busy=${!isHere} class=${`thumbnail ${isOff ? "off" : ""} ${isCurrent && isLarge ? "large" : ""}`} onClick=${open}
    aria-label=${`${caption}: ${label}${number === null ? "" : `, ${number.toFixed(3)}`}${isOff ? ", switched off" : ""}`}>
    <span class="cells-of"><canvas ref=${canvas} aria-hidden="true"></canvas><${Outline} attention=${attention} settings=${settings} /></span><span>${name}${number === null ? "" : html`: <b>${number.toFixed(2)}</b>`}</span>
  </button>`;
}

/** A frame around the cell of the held words, or around the row or column of one. @param {Omit<ViewProps, "set">} props */
function Outline(props) {
  const frame = outlineOf(props);
  if (!frame) return null;
  return html`<i class="outline" style=${Object.fromEntries(Object.entries(frame).map(([side, share]) => [side, `${share}%`]))}></i>`;
}

/** The place and size of the frame, in per cent of the picture; null if no word is held, or a hidden one.
 *  @param {Omit<ViewProps, "set">} props */
export function outlineOf({ attention, settings }) {
  const { query, key } = settings;
  if (query === null && key === null) return null;
  const [top, height] = place(attention.rows, query, settings);
  const [left, width] = place(attention.columns, key, settings);
  return height === null || width === null ? null : { top, height, left, width };
}

/** The place of a token in a small picture and the size of its cell, in per cent; the whole picture if none is held.
 *  @param {import("heed/data/attention.js").Label[]} labels @param {number | null} held
 *  @param {import("heed/data/state.js").Settings} settings @returns {[number, number | null]} */
function place(labels, held, settings) {
  if (held === null) return [0, 100];
  const cells = Math.min(POOL, labels.length);
  const shown = visible(poolLabels(labels, cells), settings);
  const index = shown.indexOf(cellOf(held, labels.length, cells));
  return index < 0 ? [0, null] : [(100 * index) / shown.length, 100 / shown.length];
}
