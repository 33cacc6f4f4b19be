// What the page shows, as one object that is kept in the URL.

/** @typedef {[layer: number, head: number]} Place  one head of one layer, both from 0 */

/**
 * @typedef {object} Settings
 * @property {string} model  name of the model; "" = the first one
 * @property {string} text
 * @property {string} pair  second text of a pair
 * @property {import("heed/server/request.js").Random | null} random  seed and sizes of random tensors; null = the example
 * @property {boolean} picture  start with the test picture, for a model that reads a picture in its text
 * @property {string[]} words  labels of the tokens of tensors; empty = those given with the tensors, or places
 * @property {string} target  text for the decoder of a model with two stacks
 * @property {boolean} sentence  run the sentence whose tensors come with the page
 * @property {Record<string, unknown>} parameters  of the model, by name
 * @property {string} kind  output that is shown: weights, scores, weights_by_norm, cross_weights, ...; difference or difference_of_weights in comparisons; "" = the model's first
 * @property {"" | "model" | "head" | "matrix" | "tokens" | "compare" | "generate" | "ablate" | "patch" | "lens" | "neurons" | "steps" | "picture"} view
 *   "" = the first one
 * @property {number} layer
 * @property {number} head
 * @property {number[]} heads  heads of the layer whose lines are drawn
 * @property {string} lines  which lines between a pair of texts the head view draws
 * @property {boolean} allLines  whether it draws all of them, or the strongest of each query
 * @property {number} batch  row of the batch
 * @property {number | null} query  selected query
 * @property {number | null} key  selected key
 * @property {"from" | "to"} direction  weights from a token, or weights to it
 * @property {"none" | "mean" | "max" | "layers-mean" | "layers-max" | "rollout"} combine  over heads, or over layers
 * @property {"linear" | "sqrt" | "log"} scale
 * @property {"row" | "matrix" | "global"} range  range of the largest colour
 * @property {string} palette
 * @property {number} threshold  smaller weights are not drawn
 * @property {boolean} hideSpecial
 * @property {boolean} hideFirst
 * @property {boolean} hidePadding
 * @property {boolean} renormalise  divide the visible weights of a row by their sum
 * @property {number} opacity  of the colours over a picture, 0 to 1
 * @property {string} sort  order of the heads in the model view
 * @property {boolean} byWeight  order the keys of the view Neurons by weight, not as in the text
 * @property {boolean} asRows  draw the words that are generated beside a picture as rows of a matrix, not as pictures
 * @property {boolean} oneScale  colour the pictures of all generated words on one scale, not each on its own
 * @property {Place[]} ablated  heads that are switched off
 * @property {number} length  most tokens that are generated
 * @property {number} temperature  0 = the most probable token @property {number} seed
 * @property {number} topK  number of most probable tokens to draw from; 0 = all @property {number} topP  their share of probability; 1 = all
 * @property {string[]} stop  texts before which the generation ends
 * @property {[id: number, token: string][]} chosen  the first generated tokens, of which the reader has chosen the last
 * @property {number | null} token  selected one of the generated tokens
 * @property {number | null} seen  selected one of those that they look at
 * @property {Record<string, any>} patch  choices of the view Patch; see data/patch.js
 * @property {Record<string, any>} lens  of the view Lens; see data/lens.js
 * @property {Partial<Settings> | null} other  the settings of the second side of a comparison, where they differ
 */
/** @typedef {Omit<Settings, "layer" | "head"> & {layer: number | null, head: number | null}} Chosen  settings in a URL; without
 *   a layer and a head the page chooses them */

/** The text on which a model is run until another text is typed. */
export const SENTENCE = "The animal didn't cross the street because it was too tired.";

/** @type {Readonly<Chosen>} */
export const DEFAULTS = Object.freeze({
  model: "",
  text: SENTENCE,
  pair: "",
  target: "",
  random: null,
  picture: true,
  words: [],
  sentence: false,
  parameters: {},
  kind: "",
  view: "",
  layer: null,
  head: null,
  heads: [],
  lines: "both",
  allLines: false,
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
  opacity: 0.8,
  sort: "layer",
  byWeight: false,
  asRows: false,
  oneScale: false,
  ablated: [],
  length: 20,
  temperature: 0,
  seed: 0,
  topK: 0,
  topP: 1,
  stop: [],
  chosen: [],
  token: null,
  seen: null,
  patch: {},
  lens: {},
  other: null,
});

/** The settings with a layer and a head: the first ones, unless they are chosen. @param {Chosen} chosen @returns {Settings} */
export const withHead = (chosen) => ({ ...chosen, layer: chosen.layer ?? 0, head: chosen.head ?? 0 });

/** Whether the page chooses the layer and the head. @param {Chosen} chosen */
export const isWithoutHead = ({ layer, head }) => layer === null && head === null;

/** Settings that change the run. @type {(keyof Settings)[]} */
const RUN = [
  "model",
  "text",
  "pair",
  "target",
  "kind",
  "batch",
  "parameters",
  "sentence",
  "random",
  "words",
  "ablated",
];

/** @param {Settings} settings @returns {Partial<Settings>} */
export const runPart = (settings) => Object.fromEntries(RUN.map((name) => [name, settings[name]]));

/** Whether two settings have the same run. @param {Settings} one @param {Settings} other */
export const isSameRun = (one, other) => JSON.stringify(runPart(one)) === JSON.stringify(runPart(other));

/**
 * The settings of the second side of a comparison. Unless they choose a layer or a head, the second side has the next
 * head of the same run, or the first side's layer and head if something else differs.
 * @param {Settings} settings @param {number} heads @param {boolean} [isSameInput]  whether both have the same tensors
 * @returns {Settings}
 */
export function secondOf(settings, heads, isSameInput = true) {
  const { other } = settings;
  const second = { ...settings, ...other };
  const isChosen = other?.layer !== undefined || other?.head !== undefined;
  if (isChosen || !isSameInput || !isSameRun(settings, second)) return second;
  return { ...second, head: (settings.head + 1) % heads };
}

/** `other` with changes; undefined removes a setting. @param {Settings} settings @param {Partial<Settings>} changes */
export function changedOther({ other }, changes) {
  const left = Object.entries({ ...other, ...changes }).filter(([, value]) => value !== undefined);
  return left.length ? /** @type {Partial<Settings>} */ (Object.fromEntries(left)) : null;
}

/**
 * The settings that differ from the defaults, as the fragment of a URL.
 * @param {Chosen} settings
 */
export function toFragment(settings) {
  const parameters = new URLSearchParams();
  for (const [name, value] of Object.entries(changed(settings)))
    parameters.set(name, typeof value === "string" ? value : JSON.stringify(value));
  return parameters.toString();
}

/** The settings that differ from the defaults. @param {Chosen} settings @returns {Partial<Chosen>} */
export const changed = (settings) =>
  Object.fromEntries(
    Object.entries(settings).filter(
      ([name, value]) => JSON.stringify(value) !== JSON.stringify(DEFAULTS[/** @type {keyof Settings} */ (name)]),
    ),
  );

/**
 * The settings in the fragment of a URL; unknown names and values of another type are left out.
 * @param {string} fragment
 * @returns {Chosen}
 */
export function fromFragment(fragment) {
  /** @type {Record<string, unknown>} */
  const given = {};
  for (const [name, text] of new URLSearchParams(fragment.replace(/^#/, ""))) {
    const isText = typeof DEFAULTS[/** @type {keyof Settings} */ (name)] === "string";
    given[name] = isText ? text : parse(text);
  }
  return { ...DEFAULTS, ...valid(given) };
}

/** Those of the settings that are known and of the right type. @param {Record<string, unknown>} given
 *  @returns {Partial<Settings>} */
function valid(given) {
  const settings = Object.entries(given).filter(([name, value]) => {
    if (!Object.hasOwn(DEFAULTS, name)) return false;
    const check = CHECKS[name];
    return check ? check(value) : typeof value === typeof DEFAULTS[/** @type {keyof Settings} */ (name)];
  });
  const { other, ...rest } = /** @type {Partial<Settings>} */ (Object.fromEntries(settings));
  return other === undefined ? rest : { ...rest, other: other && valid(other) };
}

/** @param {unknown} value @returns {value is Record<string, any>} */
const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);

/** @param {unknown} value */
const isPlace = (value) => Number.isSafeInteger(value) && Number(value) >= 0;

/** @param {unknown} value @param {(part: any) => boolean} check */
const isList = (value, check) => Array.isArray(value) && value.every(check);

/** Checks of settings whose default does not show their type. @type {Record<string, (value: any) => boolean>} */
const CHECKS = {
  ...Object.fromEntries(["layer", "head", "batch", "length", "seed", "topK"].map((name) => [name, isPlace])),
  ...Object.fromEntries(
    ["query", "key", "token", "seen"].map((name) => [
      name,
      (/** @type {unknown} */ value) => value === null || isPlace(value),
    ]),
  ),
  parameters: isObject,
  patch: isObject,
  lens: isObject,
  heads: (value) => isList(value, isPlace),
  words: (value) => isList(value, (word) => typeof word === "string"),
  stop: (value) => isList(value, (text) => typeof text === "string"),
  ablated: (value) => isList(value, (place) => isList(place, isPlace) && place.length === 2),
  chosen: (value) => isList(value, (pair) => Array.isArray(pair) && isPlace(pair[0]) && typeof pair[1] === "string"),
  random: (value) => value === null || (isObject(value) && isPlace(value.seed) && isObject(value.sizes)),
  other: (value) => value === null || isObject(value),
};

/** @param {string} text */
function parse(text) {
  try {
    return /** @type {unknown} */ (JSON.parse(text));
  } catch {
    return undefined;
  }
}
