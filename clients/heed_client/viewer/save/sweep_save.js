// A grid of patches as a table, as JSON and as SVG.
import { measurementOf, METRICS, number, pinnedIn, showGrid } from "heed/data/patch.js";
import { heatMaps } from "heed/save/heat_maps.js";
import { quoted } from "heed/save/quoted.js";
import { inTitle } from "heed/save/svg.js";

/** @typedef {import("heed/data/patch.js").Grid} Grid */
/** @typedef {import("heed/data/state.js").Settings} Settings */

/** @param {string} label */
const plain = (label) => label.replace(/^“(.*)”$/, "$1");

/** The numbers as CSV (RFC 4180); an empty field was not measured. @param {Grid} grid */
export function gridCsv({ labels, values }) {
  const head = ["", ...labels[1].map((label) => quoted(plain(label)))].join(",");
  const lines = values.map((row, i) => [quoted(plain(labels[0][i])), ...row.map((value) => value ?? "")].join(","));
  return [head, ...lines, ""].join("\r\n");
}

/** @param {Grid} grid @param {import("heed/page/sweep.js").CellRun | null} cell */
export function gridJson({ model, text, choices, axes, indices, labels, metric, unchanged, source, values }, cell) {
  const { at, action } = choices;
  const [rows, columns] = labels.map((names) => names.map(plain));
  return JSON.stringify({
    model,
    text,
    ...((action === "from" || action === "add") && { other_text: choices.source }),
    ...(action === "add" && { minus: choices.minus, scale: choices.scale }),
    at,
    action,
    fixed: choices.fixed,
    ...(choices.position !== null && { position: choices.position }),
    metric,
    unchanged,
    ...(source !== null && { source }),
    axes,
    [axes[0]]: indices[0],
    [axes[1]]: indices[1],
    labels: { [axes[0]]: rows, [axes[1]]: columns },
    values,
    ...(cell?.tokens && { cell: cell.cell, next_tokens: cell.tokens }),
  });
}

/** @param {Grid} grid @param {Settings} settings */
export function gridSvg(grid, settings) {
  const shown = showGrid(grid);
  const { choices, unchanged, source, labels, model, text } = grid;
  const words = (/** @type {string[]} */ names) => names.map((label) => ({ text: plain(label) }));
  const attention = /** @type {any} */ ({ rows: words(labels[0]), columns: words(labels[1]) });
  const ends = [`unchanged ${number(unchanged)}`, ...(source === null ? [] : [`other text ${number(source)}`])];
  const title = `${model}, “${inTitle(text)}”: ${measurementOf(grid).slice(0, -1)}`;
  const named = { marks: marksOf(shown), name: `${METRICS[choices.metric]}; ${ends.join(", ")}` };
  const pinned = pinnedIn(grid);
  const place = { query: pinned?.row ?? null, key: pinned?.column ?? null };
  const looks = /** @type {const} */ ({ palette: "auto", scale: "linear", kind: "grid" });
  return heatMaps([{ attention, shown, settings: { ...settings, ...looks, ...place }, title, axes: grid.axes, named }]);
}

/** The numbers below the colours. @param {ReturnType<typeof showGrid>} shown */
function marksOf({ low, high, unchanged, isDiverging }) {
  const at = (/** @type {number} */ value) => ({ level: (value - low) / (high - low), text: number(value) });
  return (isDiverging ? [low, unchanged, high] : [low, high]).map(at);
}
