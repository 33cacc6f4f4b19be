// How weights are drawn: which head or which sum of heads, scale, range, palette, hidden tokens, threshold.
import { html } from "vendor/preact.js";
import { PALETTES } from "heed/data/palettes.js";
import { Choice, numbers, Switch } from "heed/views/controls.js";

/** @typedef {import("heed/views/hooks.js").ViewProps} ViewProps */

const COMBINATIONS = {
  none: "one head",
  mean: "mean over heads",
  max: "maximum over heads",
  "layers-mean": "mean over layers",
  "layers-max": "maximum over layers",
  rollout: "rollout",
};
const SCALES = { linear: "linear", sqrt: "square root", log: "logarithm" };
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

/** @param {ViewProps} props */
export function Legibility({ attention, settings, set }) {
  const { layers, heads } = attention;
  const isOverview = settings.view === "model";
  return html`<div class="tools" role="group" aria-label="how it is drawn">
    ${
      !isOverview &&
      html`
      ${
        layers > 1 &&
        html`<${Choice} label=${attention.axis} value=${settings.layer} options=${numbers(layers)}
        onChange=${(/** @type {string} */ value) => set({ layer: Number(value) })} />`
      }
      <${Choice} label="head" value=${settings.head} options=${numbers(heads)}
        onChange=${(/** @type {string} */ value) => set({ head: Number(value), heads: [] })} />
      <${Choice} label="show" value=${settings.combine} options=${combinationsOf(attention, settings.kind)}
        onChange=${(/** @type {any} */ value) => set({ combine: value })} />`
    }
    <${Choice} label="scale" value=${settings.scale} options=${SCALES} onChange=${(/** @type {any} */ value) => set({ scale: value })} />
    <${Choice} label="full colour" value=${settings.range} options=${RANGES} onChange=${(/** @type {any} */ value) => set({ range: value })} />
    <${Choice} label="palette" value=${settings.palette} options=${Object.fromEntries(PALETTES.map((name) => [name, name]))}
      onChange=${(/** @type {string} */ value) => set({ palette: value })} />
    <label>threshold <input type="number" min="0" max="1" step="0.01" value=${settings.threshold}
      onChange=${(/** @type {any} */ event) => set({ threshold: Math.max(0, Number(event.currentTarget.value) || 0) })} /></label>
    <${Switch} label="hide special tokens" checked=${settings.hideSpecial} onChange=${(/** @type {boolean} */ hideSpecial) => set({ hideSpecial })} />
    <${Switch} label="hide first token" checked=${settings.hideFirst} onChange=${(/** @type {boolean} */ hideFirst) => set({ hideFirst })} />
    <${Switch} label="hide padding" checked=${settings.hidePadding} onChange=${(/** @type {boolean} */ hidePadding) => set({ hidePadding })} />
    <${Switch} label="renormalise" checked=${settings.renormalise} onChange=${(/** @type {boolean} */ renormalise) => set({ renormalise })} />
  </div>`;
}
