// What the page shows, as one object that is kept in the URL.

/** @typedef {[layer: number, head: number]} Place  one head of one layer, both from 0 */

/**
 * @typedef {object} Settings
 * @property {string} model  name of the model; "" = the first one
 * @property {string} text
 * @property {string} pair  second text of a pair
 * @property {import("heed/server/request.js").Random | null} random  seed and sizes of random tensors; null = the example
 * @property {string[]} words  labels of the tokens of tensors; empty = those that came with the tensors, or places
 * @property {string} target  text for the decoder of a model with two stacks
 * @property {Record<string, unknown>} parameters  of the model, by name
 * @property {string} kind  output that is looked at: weights, scores, weights_by_norm, cross_weights, ...; difference in comparisons
 * @property {"" | "model" | "head" | "matrix" | "tokens" | "compare" | "ablate" | "steps" | "picture"} view
 *   "" = the first one
 * @property {number} layer
 * @property {number} head
 * @property {number[]} heads  heads of the layer whose lines are drawn
 * @property {number} batch  row of the batch
 * @property {number | null} query  selected query
 * @property {number | null} key  selected key
 * @property {"from" | "to"} direction  what a token looks at, or who looks at it
 * @property {"none" | "mean" | "max" | "layers-mean" | "layers-max" | "rollout"} combine  over heads, or over layers
 * @property {"linear" | "sqrt" | "log"} scale
 * @property {"row" | "matrix" | "global"} range  what the largest colour stands for
 * @property {string} palette
 * @property {number} threshold  smaller weights are not drawn
 * @property {boolean} hideSpecial
 * @property {boolean} hideFirst
 * @property {boolean} hidePadding
 * @property {boolean} renormalise  divide the visible weights of a row by their sum
 * @property {number} opacity  of the colours over a picture, 0 to 1
 * @property {string} sort  order of the heads in the model view
 * @property {Place[]} ablated  heads that are switched off
 * @property {Partial<Settings> | null} other  the settings of the second side of a comparison, where they differ
 */

/** @type {Readonly<Settings>} */
export const DEFAULTS = Object.freeze({
  model: "",
  text: "",
  pair: "",
  target: "",
  random: null,
  words: [],
  parameters: {},
  kind: "weights",
  view: "",
  layer: 0,
  head: 0,
  heads: [],
  batch: 0,
  query: null,
  key: null,
  direction: "from",
  combine: "none",
  scale: "linear",
  range: "matrix",
  palette: "auto",
  threshold: 0,
  hideSpecial: false,
  hideFirst: false,
  hidePadding: true,
  renormalise: false,
  opacity: 0.6,
  sort: "layer",
  ablated: [],
  other: null,
});

/**
 * The settings that differ from the defaults, as the fragment of a URL.
 * @param {Settings} settings
 */
export function toFragment(settings) {
  const parameters = new URLSearchParams();
  for (const [name, value] of Object.entries(settings)) {
    const standard = DEFAULTS[/** @type {keyof Settings} */ (name)];
    const text = typeof value === "string" ? value : JSON.stringify(value);
    if (text !== (typeof standard === "string" ? standard : JSON.stringify(standard))) parameters.set(name, text);
  }
  return parameters.toString();
}

/**
 * The settings in the fragment of a URL; what is unknown or of another type is left out.
 * @param {string} fragment
 * @returns {Settings}
 */
export function fromFragment(fragment) {
  /** @type {Record<string, unknown>} */
  const settings = { ...DEFAULTS };
  for (const [name, text] of new URLSearchParams(fragment.replace(/^#/, ""))) {
    if (!Object.hasOwn(DEFAULTS, name)) continue;
    const standard = DEFAULTS[/** @type {keyof Settings} */ (name)];
    const value = typeof standard === "string" ? text : parse(text);
    if (isLike(value, standard, name)) settings[name] = value;
  }
  return /** @type {Settings} */ (/** @type {unknown} */ (settings));
}

/** @param {string} text */
function parse(text) {
  try {
    return /** @type {unknown} */ (JSON.parse(text));
  } catch {
    return undefined;
  }
}

/** @param {unknown} value @param {unknown} standard @param {string} name */
function isLike(value, standard, name) {
  if (standard === null && value === null) return true;
  if (name === "query" || name === "key") return Number.isInteger(value);
  if (name === "random")
    return Number.isInteger(/** @type {any} */ (value)?.seed) && typeof (/** @type {any} */ (value).sizes) === "object";
  if (name === "other") return typeof value === "object";
  if (Array.isArray(standard)) return Array.isArray(value);
  return typeof value === typeof standard && value !== null && !Array.isArray(value);
}
