// The choices of the view Patch (what is patched, where, and how its effect is measured), and its grid.
import { minus } from "heed/data/display.js";
import { DEFAULTS, SENTENCE } from "heed/data/state.js";

/** @typedef {import("heed/data/display.js").Shown} Shown */
/** @typedef {import("heed/data/state.js").Settings} Settings */
/** @typedef {"from" | "scale" | "mean" | "add"} Action  replace by another text's activation, by zero or by the mean over the
 *    positions; or add a direction */
/** @typedef {"logit_difference" | "probability" | "kl" | "total_variation" | "cosine_distance"} Metric */
/** @typedef {"layers" | "heads" | "positions" | "queries" | "keys"} Axis */
/**
 * @typedef {object} Choices  as the URL has them, completed by defaults
 * @property {string} source  the text whose activations replace others, or are added
 * @property {string} minus  the text whose activation is subtracted from the added one @property {number} scale  factor of the added one
 * @property {string} at  site @property {Action} action
 * @property {string} over  the two axes of the grid
 * @property {Partial<Record<Axis, number>>} fixed  the selected index on other axes; all on those that are not named
 * @property {Metric} metric @property {string[]} tokens  of the metric: texts, or #id
 * @property {number | null} position  of the output that is measured; null = the last
 * @property {boolean} renormalize  of removed weights
 * @property {[number, number] | null} cell  the pinned cell: its indices on both axes
 */
/**
 * @typedef {object} Grid  the numbers of a sweep, also in a saved page
 * @property {string} model @property {string} text @property {Choices} choices
 * @property {[Axis, Axis]} axes @property {[number[], number[]]} indices @property {[string[], string[]]} labels
 * @property {unknown} metric  as in the server's answer
 * @property {number} unchanged  the metric without changes @property {number | null} source  that of the other text
 * @property {(number | null)[][]} values  null = not measured
 * @property {"running" | "done" | "stopped" | "failed"} status
 */

const OTHER = SENTENCE.replace("tired", "wide"); // "it" is then the street

const STRENGTH = 2; // factor of the added activation
const NOTHING = 1e-12; // largest rounding error of 0
const LEAST = 1e-3; // smallest listed share of the largest change
const FAR = 2; // largest shown share of the way

/** @type {Record<Action, string>} */
export const ACTIONS = {
  from: "insert the other text’s activation",
  scale: "remove",
  mean: "put in the mean",
  add: "add a direction",
};
/** @type {Record<Metric, string>} */
export const METRICS = {
  logit_difference: "logit difference",
  probability: "probability",
  kl: "KL divergence",
  total_variation: "total variation",
  cosine_distance: "cosine distance",
};
/** The meaning of each choice, in one line. */
export const MEANINGS = {
  change: {
    from: "One place at a time is replaced by the other text’s activation.",
    scale: "One place at a time is set to 0.",
    mean: "One place at a time gets the mean over the positions.",
    add: "The other text’s activation, less that of the third, is added at one place at a time.",
  },
  at: {
    hidden: "The vectors that enter a layer.",
    attention_output: "What attention adds to the residual stream.",
    mlp_output: "What the MLP adds to the residual stream.",
    head_output: "What each head adds, before the heads are joined.",
    weights: "How much each query looks at each key.",
  },
  grid: "What the rows and the columns of the map are.",
  fixed: "Changed all at once, or one of them alone.",
  measure: {
    logit_difference: "The logit of the first token minus that of the second.",
    probability: "How probable the model finds the token.",
    kl: "How far all probabilities move; 0 means no change.",
    total_variation: "How much probability goes to other tokens; 0 is none, 1 is all.",
    cosine_distance: "How far the output turns; 0 means no change.",
  },
  position: "The prediction after this token is measured.",
  times: "How often the direction is added; below 0 it is subtracted.",
  renormalise: "The other weights of the query grow until they sum to 1.",
};

/** Metrics that are 0 without changes, and never below. */
export const DISTANCES = ["kl", "total_variation", "cosine_distance"];
/** The number of tokens of a metric. @type {Partial<Record<Metric, number>>} */
export const TOKENS = { logit_difference: 2, probability: 1 };

/** @type {Record<string, string>} */
const SITES = {
  hidden: "residual stream",
  attention_output: "output of attention",
  mlp_output: "output of the MLP",
  head_output: "outputs of heads",
  weights: "attention weights",
};

/** @param {string} site */
const partsOf = (site) => site.match(/^(encoder_|cross_)?(.*)$/)?.slice(1) ?? ["", site];

/** The activation at a site, in one line. @param {string} site */
export const siteMeaning = (site) => /** @type {Record<string, string>} */ (MEANINGS.at)[partsOf(site)[1]] ?? "";

/** A site in words. @param {string} site */
export const siteTitle = (site) => {
  const [prefix, name] = partsOf(site);
  const title = SITES[name] ?? name;
  return prefix ? `${prefix.slice(0, -1)}: ${title}` : title;
};

const ORDER = ["encoder_", "", "cross_"].flatMap((stack) => Object.keys(SITES).map((name) => stack + name));
const OPENING = ["encoder_hidden", "head_output", "hidden"]; // in one stack the stream has the whole effect where texts differ

/** The sites of a model, by stack and then from the stream to the weights. @param {import("heed/server/api.js").Model} model */
export const sitesOf = ({ interventions }) =>
  Object.keys(interventions ?? {}).sort((one, other) => ORDER.indexOf(one) - ORDER.indexOf(other));

/** One layer or head in words. @param {string} site @param {string} axis @param {number} index */
export const indexName = (site, axis, index) =>
  `${axis === "layers" && site.endsWith("hidden") ? "into " : ""}${axis.slice(0, -1)} ${index}`;

/** The actions that a site allows. @param {string} site @returns {Partial<Record<Action, string>>} */
export function actionsOf(site) {
  const { add, ...others } = ACTIONS;
  return site.endsWith("weights") ? others : ACTIONS;
}

/** The axes of a site. @param {string} site @returns {Axis[]} */
export function axesOf(site) {
  if (site.endsWith("weights")) return ["layers", "heads", "queries", "keys"];
  return site.endsWith("head_output") ? ["layers", "heads", "positions"] : ["layers", "positions"];
}

/** The grids of a site, by the names of their axes. @param {string} site @returns {Record<string, string>} */
export function gridsOf(site) {
  const pairs = site.endsWith("weights")
    ? ["layers,heads", "queries,keys"]
    : site.endsWith("head_output")
      ? ["layers,heads", "layers,positions", "heads,positions"]
      : ["layers,positions"];
  return Object.fromEntries(pairs.map((pair) => [pair, pair.replace(",", " × ")]));
}

/** The metrics of a model. @param {import("heed/server/api.js").Model} model @returns {Record<string, string>} */
export function metricsOf(model) {
  if (predictsTokens(model)) return METRICS;
  const { cosine_distance } = METRICS;
  return isOfScores(model) ? { ...METRICS } : { cosine_distance };
}

/** @param {import("heed/server/api.js").Model} model @param {string} name */
const outputOf = ({ outputs }, name) => outputs.find((output) => output.name === name);

/** Whether the output is the logits of tokens. @param {import("heed/server/api.js").Model} model */
export const predictsTokens = (model) =>
  model.tokenizer !== null && outputOf(model, "output")?.shape.at(-1) === model.config.vocab_size;

/** Whether the output is scores, and not hidden states. @param {import("heed/server/api.js").Model} model */
function isOfScores(model) {
  const [output, hidden] = ["output", "hidden_states"].map((name) => outputOf(model, name)?.shape);
  return String(output) !== String(hidden?.slice(1));
}

/** Whether a metric is of one position of the output. @param {import("heed/server/api.js").Model} model @param {Metric} metric */
export const isOfPosition = (model, metric) =>
  (metric !== "cosine_distance" || !outputOf(model, "embedding")) && (outputOf(model, "output")?.shape.length ?? 0) > 2;

/** The default position of a metric: after the last token if the model predicts next tokens, else the first.
 *  @param {import("heed/server/api.js").Model} model */
export const defaultPosition = (model) => (model.tokenizer?.next_tokens ? -1 : 0);

/** Whether activations of the model can be changed. @param {import("heed/server/api.js").Model} model */
export const hasPatch = ({ tokenizer, interventions }) =>
  tokenizer !== null && Object.keys(interventions ?? {}).length > 0;

/** The choices of the settings, with a default for those that are absent or that the model does not have.
 *  @param {import("heed/server/api.js").Model} model @param {Settings} settings @returns {Choices} */
export function choicesOf(model, { patch, text }) {
  const sites = sitesOf(model);
  const at = [patch.at, ...OPENING].find((site) => sites.includes(site)) ?? sites[0];
  const [grids, metrics] = [Object.keys(gridsOf(at)), Object.keys(metricsOf(model))];
  const over = grids.includes(patch.over) ? patch.over : grids[0];
  const free = axesOf(at).filter((axis) => !over.split(",").includes(axis));
  const isIndex = (/** @type {unknown} */ value) => Number.isSafeInteger(value) && Number(value) >= 0;
  const isList = (/** @type {unknown} */ value) => Array.isArray(value) && value.every(isIndex);
  const fixed = Object.entries(patch.fixed ?? {}).filter(
    ([axis, index]) => free.includes(/** @type {Axis} */ (axis)) && isIndex(index),
  );
  const isDefault = metrics.includes(patch.metric) ? patch.metric : metrics.includes("kl") ? "kl" : metrics[0];
  const tokens = Array.isArray(patch.tokens) ? patch.tokens : [];
  const hasSource = typeof patch.source === "string" || text === SENTENCE; // else it is the text itself
  return {
    source: typeof patch.source === "string" ? patch.source : text === SENTENCE ? OTHER : text, // to be changed in a word
    minus: typeof patch.minus === "string" ? patch.minus : text,
    scale: Number.isFinite(patch.scale) ? patch.scale : STRENGTH,
    at,
    action: Object.hasOwn(actionsOf(at), patch.action) ? patch.action : hasSource ? "from" : "scale",
    over,
    fixed: Object.fromEntries(fixed),
    metric: isDefault,
    tokens: [0, 1].map((i) => (typeof tokens[i] === "string" ? tokens[i] : "")),
    position: isIndex(patch.position) ? patch.position : null,
    renormalize: patch.renormalize === true,
    cell: isList(patch.cell) && patch.cell.length === 2 ? [patch.cell[0], patch.cell[1]] : null,
  };
}

/** The row and column of the pinned cell in a grid; null if it is not in the grid. @param {Grid} grid */
export function pinnedIn({ indices: [rows, columns], choices: { cell } }) {
  if (!cell) return null;
  const [row, column] = [rows.indexOf(cell[0]), columns.indexOf(cell[1])];
  return row >= 0 && column >= 0 ? { row, column } : null;
}

/** The row and column of the cell whose change is run alone: the pinned one, else the strongest of a measured grid. @param {Grid} grid */
export const shownIn = (grid) => pinnedIn(grid) ?? (grid.status === "running" ? null : (ranked(grid)[0] ?? null));

/** The settings that show one weight cut, in each head: the renormalised weight of a query and a key.
 *  @param {import("heed/server/api.js").Model} model @param {Settings} settings @returns {Partial<Settings> | null}  null: it cannot be */
export function edgeCut(model, { kind, layer, head, query, key, patch }) {
  if (!hasPatch(model) || !model.interventions?.[kind] || query === null || key === null) return null;
  const cut = {
    at: kind,
    action: "scale",
    over: "layers,heads",
    fixed: { queries: query, keys: key },
    renormalize: true,
  };
  return { view: "patch", patch: { ...patch, ...cut, cell: [layer, head] } };
}

/** A saved grid with the cell that is pinned now. @param {Grid} grid @param {Settings["patch"]} patch @returns {Grid} */
export const pinnedPart = (grid, { cell = null }) => ({ ...grid, choices: { ...grid.choices, cell } });

/** The colours of a grid: around the number without changes, as far as the largest change; of distances from 0 on.
 *  @param {Grid} grid @returns {Shown & {unchanged: number, least: number, most: number}}
 *    `least` and `most` are the smallest and largest number */
export function showGrid({ values, unchanged, choices: { metric } }) {
  const [m, n] = [values.length, values[0]?.length ?? 0];
  const flat = values.flat();
  const isDiverging = !DISTANCES.includes(metric);
  const top =
    flat.reduce(
      (/** @type {number} */ most, value) => Math.max(most, Math.abs(Number(value ?? unchanged) - unchanged)),
      0,
    ) || 1;
  const known = flat.filter((value) => value !== null);
  const share = (/** @type {number} */ value) => (value - unchanged) / top;
  const levels = flat.map((value) => (value === null ? NaN : isDiverging ? 0.5 + share(value) / 2 : share(value)));
  const all = (/** @type {number} */ count) => [...Array(count).keys()];
  return {
    m,
    n,
    rows: all(m),
    columns: all(n),
    values: Float32Array.from(flat, (value) => value ?? NaN),
    levels: Float32Array.from(levels),
    low: isDiverging ? unchanged - top : unchanged,
    high: unchanged + top,
    isDiverging,
    error: 0,
    unchanged,
    least: Math.min(unchanged, ...known),
    most: Math.max(unchanged, ...known),
  };
}

/** The cells, by their distance from the number without changes. @param {Grid} grid
 *  @returns {{row: number, column: number, value: number}[]} */
export function ranked({ values, unchanged }) {
  const change = (/** @type {{value: number}} */ { value }) => Math.abs(value - unchanged);
  const all = values
    .flatMap((line, row) => line.map((value, column) => ({ row, column, value: value ?? unchanged })))
    .sort((one, other) => change(other) - change(one));
  return all.filter((one) => change(one) > Math.max(NOTHING, LEAST * change(all[0])));
}

/** A cell in words; a repeated word has its place. @param {Grid} grid @param {{row: number, column: number}} cell */
export function cellTitle({ axes, labels, indices }, { row, column }) {
  const [first, second] = [row, column].map((at, axis) => {
    const own = labels[axis];
    const isAlone = own.indexOf(own[at]) === own.lastIndexOf(own[at]);
    return isAlone ? own[at] : `${own[at]} (${indices[axis][at]})`;
  });
  return axes[1] === "keys" ? `${first} → ${second}` : `${first}, ${second}`;
}

/** A number of a metric as text. @param {number} value @param {number} [digits]  that count */
export function number(value, digits = 4) {
  const size = Math.abs(value);
  if (size < NOTHING) return "0";
  return minus(size < 1e-3 ? value.toExponential(2) : String(Number(value.toPrecision(digits))));
}

/** The change of a metric, with its sign. @param {number} value */
export const signed = (value) => (value > 0 ? `+${number(value)}` : number(value));

/** How the numbers of a list are written, all with the decimals of the largest. @param {number} largest @param {boolean} hasSign */
export function alike(largest, hasSign) {
  const decimals = Math.max(0, 3 - Math.floor(Math.log10(Math.abs(largest) || 1)));
  if (decimals > 6) return hasSign ? signed : number;
  return (/** @type {number} */ value) => `${hasSign && value > 0 ? "+" : ""}${minus(value.toFixed(decimals))}`;
}

/** The share of the change from the unchanged number to that of the other text, as text; "" if it is not meaningful.
 *  @param {Grid} grid @param {number} value */
export function recovered({ unchanged, source }, value) {
  const share = source === null ? NaN : (value - unchanged) / (source - unchanged);
  if (!(Math.abs(share) <= FAR)) return ""; // the other text's number is too near to be a measure
  const percents = Math.round(100 * share);
  const text = percents || !share ? minus(String(percents)) : share > 0 ? "< 1" : "> −1"; // 0 % is none
  return `${text}\u00a0% of the other text’s effect`;
}

/** The choices of the settings with changes; undefined, null and {} remove one. @param {Settings["patch"]} patch @param {Partial<Choices>} changes */
export function changedPatch(patch, changes) {
  const isEmpty = (/** @type {unknown} */ value) =>
    value === undefined || value === null || JSON.stringify(value) === "{}";
  const left = Object.entries({ ...patch, ...changes }).filter(([, value]) => !isEmpty(value));
  return left.length ? Object.fromEntries(left) : DEFAULTS.patch;
}

/** The measurement as a sentence. @param {Grid} grid */
export function measurementOf({ choices: { action, at, source, minus, scale, metric } }) {
  const what = {
    from: `is taken from “${source}”`,
    scale: "is removed",
    mean: "is its mean over the positions",
    add: `has ${number(scale)} times that of “${source}”${minus ? ` less that of “${minus}”` : ""} added`,
  };
  return `${METRICS[metric]} when the ${siteTitle(at)} ${what[action]}, one place at a time.`;
}
