// How weights are drawn: which head or which sum of heads, scale, range, palette, hidden tokens, threshold. Only what has
// an effect on the open view is shown.
import { html } from "vendor/preact.js";
import { DEFAULTS } from "heed/data/state.js";
import { PALETTES } from "heed/data/palettes.js";
import { Choice, numbers, Popup, Switch } from "heed/views/controls.js";

/** @typedef {import("heed/views/hooks.js").ViewProps} ViewProps */

const COMBINATIONS = {
  none: "one head",
  mean: "mean of heads",
  max: "max. of heads",
  "layers-mean": "mean of layers",
  "layers-max": "max. of layers",
  rollout: "rollout",
};
const SCALES = { linear: "linear", sqrt: "square root", log: "logarithmic" };
const RANGES = { row: "each row", matrix: "this matrix", global: "all heads" };

/** How heads and layers can be combined. @param {ViewProps["attention"]} attention @param {string} kind */
export function combinationsOf({ layers, isSelf }, kind) {
  const known = Object.entries(COMBINATIONS).filter(
    ([name]) =>
      (name !== "rollout" || (layers > 1 && isSelf && kind === "weights")) &&
      (!name.startsWith("layers") || layers > 1),
  );
  return Object.fromEntries(known);
}

const MORE = /** @type {const} */ (["palette", "threshold", "hideSpecial", "hideFirst", "hidePadding", "renormalise"]);
const LOOKS = /** @type {const} */ (["scale", "range", "palette", "threshold", "hidden", "renormalise"]);
/** Of views that not all controls have an effect on: those that have. @type {Record<string, readonly string[]>} */
const CONTROLS = {
  model: LOOKS,
  head: ["head", "combine", ...LOOKS.filter((name) => name !== "palette")], // heads have colours of their own
  ablate: ["head", "scale", "palette", "threshold", "hidden"],
  steps: ["head"],
};

/** @param {ViewProps} props */
export function Legibility({ attention, settings, set }) {
  const { layers, heads, rows, columns } = attention;
  const labels = [...rows, ...columns];
  const has = (/** @type {string} */ name) => (CONTROLS[settings.view] ?? ["head", "combine", ...LOOKS]).includes(name);
  /** @param {"hideSpecial" | "hideFirst" | "hidePadding" | "renormalise"} name @param {string} label */
  const toggle = (name, label) =>
    html`<${Switch} label=${label} checked=${settings[name]} onChange=${(/** @type {boolean} */ on) => set({ [name]: on })} />`;
  const more = [
    has("palette") &&
      html`<${Choice} label="palette" value=${settings.palette} options=${Object.fromEntries(PALETTES.map((name) => [name, name]))}
      onChange=${(/** @type {string} */ value) => set({ palette: value })} />`,
    has("threshold") &&
      html`<label>threshold <input type="number" min="0" max="1" step="0.01" value=${settings.threshold}
      onChange=${(/** @type {any} */ event) => set({ threshold: Math.max(0, Number(event.currentTarget.value) || 0) })} /></label>`,
    has("hidden") && labels.some(({ special }) => special) && toggle("hideSpecial", "hide special tokens"),
    has("hidden") && toggle("hideFirst", "hide first token"),
    has("hidden") && labels.some(({ padding }) => padding) && toggle("hidePadding", "hide padding"),
    has("renormalise") && settings.kind !== "scores" && toggle("renormalise", "renormalise"),
  ].filter(Boolean);
  const changed = MORE.filter((name) => settings[name] !== DEFAULTS[name]).length;
  return html`<div class="tools" role="group" aria-label="how it is drawn">
    ${
      has("head") &&
      html`
      ${
        layers > 1 &&
        html`<${Choice} label=${attention.axis} value=${settings.layer} options=${numbers(layers)}
        onChange=${(/** @type {string} */ value) => set({ layer: Number(value) })} />`
      }
      <${Choice} label="head" value=${settings.head} options=${numbers(heads)}
        onChange=${(/** @type {string} */ value) => set({ head: Number(value), heads: [] })} />`
    }
    ${
      has("combine") &&
      html`<${Choice} label="show" value=${settings.combine} options=${combinationsOf(attention, settings.kind)}
        onChange=${(/** @type {any} */ value) => set({ combine: value })} />`
    }
    ${has("scale") && html`<${Choice} label="scale" value=${settings.scale} options=${SCALES} onChange=${(/** @type {any} */ value) => set({ scale: value })} />`}
    ${has("range") && html`<${Choice} label="full colour" value=${settings.range} options=${RANGES} onChange=${(/** @type {any} */ value) => set({ range: value })} />`}
    ${
      more.length > 0 &&
      html`<${Popup} name="more" title=${`more${changed > 0 ? ` (${changed} changed)` : ""}`}>${more}<//>`
    }
  </div>`;
}
