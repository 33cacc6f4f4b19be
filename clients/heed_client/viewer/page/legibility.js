// Controls for the output, the head or the sum of heads that is drawn, and, behind the button Display, for its colours.
// Only controls that have an effect on the open view are shown.
import { html } from "vendor/preact.js";
import { drawnHeads } from "heed/data/display.js";
import { DEFAULTS } from "heed/data/state.js";
import { PALETTES } from "heed/data/palettes.js";
import { Choice, HeadChoice, Switch, titlesOf } from "heed/views/controls.js";
import { sortsOf } from "heed/views/model_view.js";

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
const RANGES_OF_TEXT = { row: "each row", matrix: "this matrix" }; // which has no weights of the other heads

/** How heads and layers can be combined. @param {ViewProps["attention"]} attention @param {string} kind */
export function combinationsOf({ layers, isSelf }, kind) {
  const known = Object.entries(COMBINATIONS).filter(
    ([name]) =>
      (name !== "rollout" || (layers > 1 && isSelf && kind === "weights")) &&
      (!name.startsWith("layers") || layers > 1),
  );
  return Object.fromEntries(known);
}

/** What Head and the matrices can show. @param {ViewProps["attention"]} attention @param {ViewProps["settings"]} settings */
function shownOf(attention, settings) {
  const count = drawnHeads(attention, settings).length;
  return { ...combinationsOf(attention, settings.kind), ...(count > 1 && { none: `${count} heads` }) };
}

const DISPLAY = /** @type {const} */ ([
  "scale",
  "range",
  "palette",
  "threshold",
  "hideSpecial",
  "hideFirst",
  "hidePadding",
  "renormalise",
]);
const LOOKS = /** @type {const} */ (["scale", "range", "palette", "threshold", "hidden", "renormalise"]);
/** The controls of the views on which not all have an effect. @type {Record<string, readonly string[]>} */
const CONTROLS = {
  model: ["sort", ...LOOKS],
  head: ["head", "combine", ...LOOKS.filter((name) => name !== "palette")], // heads have colours of their own
  // The largest colour of a picture is that of the largest drawn weight.
  picture: ["head", "combine", ...LOOKS.filter((name) => !["range", "threshold"].includes(name))],
  ablate: LOOKS, // its grid chooses the head
  patch: [],
  lens: ["palette"],
  compare: ["combine", ...LOOKS], // each side has its head
  neurons: ["head"],
  steps: ["head"],
};

/** Whether a control has an effect on a view. @param {string} view @param {string} name */
const has = (view, name) => (CONTROLS[view] ?? ["head", "combine", ...LOOKS]).includes(name);

/** The number of controls behind the button whose value is not the default. @param {ViewProps["settings"]} settings */
export const changedLooks = (settings) =>
  DISPLAY.filter((name) => settings[name] !== DEFAULTS[name] && (settings.view !== "lens" || name === "palette"))
    .length + Number(settings.view === "model" && settings.sort !== DEFAULTS.sort);

/** Controls for the output, the layer and the head, or the sum of them. @param {ViewProps & {kinds: string[]}} props */
export function Shown({ attention, settings, set, kinds }) {
  const titles = titlesOf(kinds);
  const [hasHead, hasSum] = ["head", "combine"].map((name) => has(settings.view, name));
  if (!hasHead && !hasSum && kinds.length < 2) return null;
  return html`<div class="tools" role="group" aria-label="what is drawn">
    ${kinds.length > 1 && html`<${Choice} label="look at" value=${settings.kind} options=${titles} onChange=${(/** @type {string} */ kind) => set({ kind })} />`}
    ${hasHead && html`<${HeadChoice} attention=${attention} settings=${settings} set=${set} />`}
    ${
      hasSum &&
      html`<${Choice} label="show" value=${settings.combine} options=${shownOf(attention, settings)}
        onChange=${(/** @type {any} */ value) => set({ combine: value })} />`
    }
  </div>`;
}

/** The controls behind the button Display. @param {ViewProps & {picture?: import("heed/views/picture_view.js").Seen | null}} props */
export function Display({ attention, settings, set, picture = null }) {
  const labels = [...attention.rows, ...attention.columns];
  const { view } = settings;
  const takes = (/** @type {string} */ name) => has(settings.view, name);
  const isAllPicture = view === "generate" && settings.kind === "cross_weights" && picture !== null; // with a scale of its own
  /** @param {"hideSpecial" | "hideFirst" | "hidePadding" | "renormalise"} name @param {string} label */
  const toggle = (name, label) =>
    html`<${Switch} label=${label} checked=${settings[name]} onChange=${(/** @type {boolean} */ on) => set({ [name]: on })} />`;
  return html`<div class="tools display" role="group" aria-label="drawing options">
    ${
      takes("sort") &&
      html`<${Choice} label="sort by" value=${settings.sort} options=${sortsOf(attention, settings)}
      onChange=${(/** @type {string} */ sort) => set({ sort })} />`
    }
    ${takes("scale") && html`<${Choice} label="scale" value=${settings.scale} options=${SCALES} onChange=${(/** @type {any} */ value) => set({ scale: value })} />`}
    ${takes("range") && !isAllPicture && html`<${Choice} label="colour range" value=${settings.range} options=${view === "generate" ? RANGES_OF_TEXT : RANGES} onChange=${(/** @type {any} */ value) => set({ range: value })} />`}
    ${
      takes("palette") &&
      html`<${Choice} label="palette" value=${settings.palette} options=${Object.fromEntries(PALETTES.map((name) => [name, name]))}
      onChange=${(/** @type {string} */ value) => set({ palette: value })} />`
    }
    ${
      takes("threshold") &&
      html`<label>threshold <input type="number" min="0" max="1" step="0.01" value=${settings.threshold}
      onChange=${(/** @type {any} */ event) => set({ threshold: Math.max(0, Number(event.currentTarget.value) || 0) })} /></label>`
    }
    ${takes("hidden") && labels.some(({ special }) => special) && toggle("hideSpecial", "hide special tokens")}
    ${takes("hidden") && toggle("hideFirst", "hide first token")}
    ${takes("hidden") && labels.some(({ padding }) => padding) && toggle("hidePadding", "hide padding")}
    ${takes("renormalise") && settings.kind !== "scores" && toggle("renormalise", "renormalise")}
  </div>`;
}
