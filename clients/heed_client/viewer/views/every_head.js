// One token in every head of a layer, a row for each head; without one, how much attention each token gets.
import { html } from "vendor/preact.js";
import { complete, plainLabels, POOL } from "heed/data/attention.js";
import { largest, received, show } from "heed/data/display.js";
import { nameIn } from "heed/data/picture.js";
import { MatrixView } from "heed/views/matrix_view.js";
import { usePromise } from "heed/views/hooks.js";

/** @typedef {import("heed/views/hooks.js").ViewProps} ViewProps */
/** @typedef {import("heed/data/state.js").Settings} Settings */
/** @typedef {import("heed/data/attention.js").Attention} Attention */
/** @typedef {import("heed/data/display.js").Shown} Shown */

const ROW = 24; // px of a head, at least
const OF_WIDTH = 52; // a row is 1 / OF_WIDTH of the width of the window
const AROUND = 74; // px of the words above the cells, and below them

/** The matrix of a layer's heads and how it is drawn; null until it is known.
 *  @param {Attention} attention @param {Settings} settings @param {Shown} shown  which tokens are visible */
export function useHeads(attention, settings, shown) {
  const { layer, direction } = settings;
  const { place, others } = sidesOf(settings, shown);
  const wanted = { attention, layer, direction, place, others };
  const { value, error } = usePromise(
    async () => ({ ...wanted, all: await everyHead(attention, settings, shown) }),
    Object.values(wanted),
  );
  const isOwn = value?.attention === attention && value.layer === layer && value.direction === direction;
  const all = isOwn && value.place === place && value.others === others ? value.all : null;
  return { all, map: all && mapOf(all, attention, settings, shown), error };
}

/** @param {ViewProps & {shown: Shown}} props  `shown` says which tokens are visible */
export const EveryHead = (props) =>
  html`<${HeadRows} ...${props} ...${useHeads(props.attention, props.settings, props.shown)} />`;

/** @param {ViewProps & {shown: Shown, legend?: unknown, link?: import("heed/views/matrix_view.js").Link} & ReturnType<typeof useHeads>} props
 *    with what `useHeads` returns */
export function HeadRows({ attention, settings, set, shown, all, map, error, legend, link }) {
  const { place, isSide, others } = sidesOf(settings, shown);
  if (error) return html`<p role="alert">${error.message}</p>`;
  if (!map) return null;
  const { looks, top, title, word } = map;
  const lowest = attention.heads * Math.max(ROW, innerWidth / OF_WIDTH);
  const hold = (/** @type {Partial<Settings>} */ { query: row, key: column }) => {
    const other = column === null || column === undefined ? null : others[column];
    const chosen =
      row === null || row === undefined ? {} : { head: row, heads: [], combine: /** @type {const} */ ("none") };
    set({ ...chosen, ...(place === null ? {} : isSide ? { query: other } : { key: other }) });
  };
  const tell = (
    /** @type {import("heed/views/draw/heat_map.js").Cell} */ { row, column },
    /** @type {string} */ number,
  ) => {
    const other = nameIn(attention, settings, isSide ? "rows" : "columns", others[column]);
    if (place === null) return `head ${row}: all tokens → ${other} ${number} on average`;
    return `head ${row}: ${isSide ? `${other} → ${word}` : `${word} → ${other}`} ${number}`;
  };
  return html`<section class="every-head" aria-label="every head">
    <h2>${title}</h2>
    <${MatrixView} attention=${all} settings=${looks} set=${hold} top=${top} legend=${legend} hasBars=${false} height=${lowest + AROUND} lowest=${lowest} axes=${map.axes} tell=${tell} link=${link} /></section>`;
}

/** The pinned token, whether it is a key, and the tokens of the columns. @param {Settings} settings @param {Shown} shown */
function sidesOf({ direction, query, key }, shown) {
  const place = direction === "from" ? query : key;
  const isSide = place !== null && direction === "to"; // the others are queries
  return { place, isSide, others: isSide ? shown.rows : shown.columns };
}

/** The matrix with a row for each head; null if the layer has one, or if the weights are too many.
 *  @param {Attention} attention @param {Settings} settings @param {Shown} shown @returns {Promise<Attention | null>} */
export async function everyHead(attention, settings, shown) {
  const { layer, direction } = settings;
  const { heads, axis } = attention;
  const { place, isSide, others } = sidesOf(settings, shown);
  // For a long text, all matrices of the layer would have to be loaded, except for a single query and means by the server.
  const isShort = attention.m <= POOL;
  const isOfServer = !isShort && attention.received !== null && shown.m === attention.m && !settings.renormalise;
  const isKnown = place === null ? (isShort || isOfServer) && !shown.isDiverging : direction === "from" || isShort;
  if (heads < 2 || !isKnown) return null;
  const weights =
    place === null
      ? await (isOfServer ? receivedOf(attention, layer) : averagesOf(attention, layer, settings, shown))
      : await inEveryHead(attention, layer, place, direction);
  const visible = weights.flatMap((row) => others.map((other) => row[other]));
  const labels = (isSide ? attention.rows : attention.columns).filter((_, other) => others.includes(other));
  const names = plainLabels(Array.from({ length: heads }, (_, i) => `head ${i}`));
  return complete(Float32Array.from(visible), 1, 1, 1, names, labels, axis);
}

/** How the matrix is drawn, and its title. @param {Attention} all @param {Attention} attention @param {Settings} settings
 *  @param {Shown} shown */
export function mapOf(all, attention, settings, shown) {
  const { layer, head, query, key } = settings;
  const { place, isSide, others } = sidesOf(settings, shown);
  const pinned = isSide ? query : key;
  const looks = /** @type {Settings} */ ({
    ...settings,
    layer: 0,
    head: 0,
    combine: "none",
    parameters: {},
    hideSpecial: false,
    hideFirst: false,
    hidePadding: false,
    renormalise: settings.renormalise && !isSide,
    range: settings.range === "row" ? "row" : "global",
    query: settings.combine === "none" ? head : null,
    key: pinned === null || !others.includes(pinned) ? null : others.indexOf(pinned),
  });
  const top = largest(all.small(0, 0).values, shown.isDiverging);
  const word = place === null ? "" : nameIn(attention, settings, isSide ? "columns" : "rows", place);
  const what =
    place === null
      ? "How much attention each token gets, on average,"
      : isSide
        ? `What looks at ${word}`
        : `What ${word} looks at`;
  const title = `${what} in every head${attention.layers > 1 ? ` of ${attention.axis} ${layer}` : ""}`;
  return { looks, top, title, word, axes: /** @type {[string, string]} */ (["heads", isSide ? "queries" : "keys"]) };
}

/** The weights from a query, or to a key, in each head of a layer.
 *  @param {ViewProps["attention"]} attention @param {number} layer @param {number} place @param {Settings["direction"]} direction */
export const inEveryHead = (attention, layer, place, direction) =>
  (direction === "from" ? rowsOf : columnsOf)(attention, layer, place);

/** The weights from a query in each layer, as means of its heads. @param {ViewProps["attention"]} attention @param {number} query */
export async function inEveryLayer(attention, query) {
  const { layers, heads, n } = attention;
  const all = await Promise.all(Array.from({ length: layers }, (_, layer) => rowsOf(attention, layer, query)));
  return all.map((rows) =>
    Float32Array.from({ length: n }, (_, j) => rows.reduce((sum, row) => sum + row[j] / heads, 0)),
  );
}

/** The weights from a query in each head. @param {ViewProps["attention"]} attention @param {number} layer @param {number} query */
async function rowsOf(attention, layer, query) {
  const { numbers, unit } = await attention.row(query);
  const { heads, n } = attention;
  return Array.from({ length: heads }, (_, head) => {
    const start = (layer * heads + head) * n;
    return Float32Array.from(numbers.subarray(start, start + n), (number) => number * unit);
  });
}

/** The weights to a key in each head. @param {ViewProps["attention"]} attention @param {number} layer @param {number} key */
async function columnsOf(attention, layer, key) {
  const { heads, m, n } = attention;
  const all = await Promise.all(Array.from({ length: heads }, (_, head) => attention.matrix(layer, head)));
  return all.map(({ values }) => Float32Array.from({ length: m }, (_, i) => values[i * n + key]));
}

/** The mean weight from all queries to each key, in each head, from the server. @param {ViewProps["attention"]} attention @param {number} layer */
async function receivedOf({ heads, n, received }, layer) {
  const all = (await received?.()) ?? new Float32Array();
  return Array.from({ length: heads }, (_, head) =>
    all.subarray((layer * heads + head) * n, (layer * heads + head + 1) * n),
  );
}

/** The mean weight from all visible queries to each key, in each head. @param {ViewProps["attention"]} attention
 *  @param {number} layer @param {Settings} settings @param {import("heed/data/display.js").Shown} shown */
async function averagesOf(attention, layer, settings, shown) {
  const { heads, n } = attention;
  const all = await Promise.all(Array.from({ length: heads }, (_, head) => attention.matrix(layer, head)));
  return all.map((matrix) => {
    const one = show(matrix, attention.rows, attention.columns, settings);
    const averages = received(one, settings.scale)?.values ?? new Float32Array(n);
    return Float32Array.from({ length: n }, (_, j) => averages[shown.columns.indexOf(j)] ?? 0);
  });
}
