// A sweep: an intervention at each place of a grid, as POST v1/sweep/{model} streams it, and one of its cells alone.
import { events, post, ServerError } from "heed/server/api.js";
import { counterparts, textsOf } from "heed/data/alignment.js";
import { beginsWord, isMarked } from "heed/data/tokens.js";
import { axesOf, choicesOf, defaultPosition, indexName, isOfPosition, TOKENS } from "heed/data/patch.js";
import { headMask } from "heed/server/run.js";
import { fromTexts, generatedFrom, pictureOf, placed } from "heed/server/texts.js";

/** @typedef {import("heed/data/attention.js").Label} Label */
/** @typedef {import("heed/data/patch.js").Axis} Axis */
/** @typedef {import("heed/data/patch.js").Choices} Choices */
/** @typedef {import("heed/data/patch.js").Grid} Grid */
/** @typedef {import("heed/data/state.js").Settings} Settings */
/** @typedef {import("heed/server/api.js").Model} Model */
/** @typedef {import("heed/server/run.js").Input} Input */
/** @typedef {import("heed/server/generation.js").NextToken} NextToken */
/** @typedef {{[field: string]: any}} Body */
/**
 * @typedef {object} Pair  tokens of both texts that are at the same place
 * @property {number} own  place in the text @property {number} other  in the other one
 */

const LISTED = 100; // next tokens, the most of a request: those of two lists have a number in each

/** The texts of the page and the heads that are switched off, as a request has them. @param {Model} model @param {Settings} settings
 *  @param {Input} input @returns {Body} */
export function textsAndMasks(model, settings, input) {
  const { text, pair, target, parameters } = settings;
  const masks = Object.entries(headMask(model, settings, input));
  return {
    text,
    ...input.texts,
    ...(pair && { text_pair: pair }),
    ...(input.target.length && { text_target: target || text }),
    ...parameters,
    ...Object.fromEntries(masks.map(([name, { shape, data }]) => [name, { shape, data: Array.from(data, Number) }])),
  };
}

/** The words of the positions of a site. @param {Input} input @param {string} at @param {Axis} [axis] */
export function wordsAt({ source, target }, at, axis = "positions") {
  const isOfEncoder = at.startsWith("encoder_") || (at.startsWith("cross_") && axis === "keys");
  return isOfEncoder || target.length === 0 ? source : target;
}

/** The ids of these words. @param {Input} input @param {string} at */
export const idsAt = (input, at) =>
  Array.from(
    input.tensors[wordsAt(input, at) === input.target ? "decoder_input_ids" : "input_ids"]?.data ?? [],
    Number,
  );

/** Whether both texts are the same for the model. @param {Input} one @param {Input} other */
export const hasSameTokens = (one, other) =>
  ["input_ids", "decoder_input_ids"].every(
    (name) => String(one.tensors[name]?.data) === String(other.tensors[name]?.data),
  );

/** The tokens of the text that have a counterpart in the other one. @param {Label[]} own @param {Label[]} other @returns {Pair[]} */
export function pairsOf(own, other) {
  const isSameLength = own.length === other.length;
  const places = isSameLength ? own.map((_, i) => i) : counterparts(textsOf(own), textsOf(other));
  return places.map((other, own) => ({ own, other })).filter(({ other }) => other >= 0);
}

/** The fields of the other run, whose text has the same picture. @param {Model} model @param {Settings} settings
 *  @param {Input} input @param {string} source */
function otherRun(model, { target }, input, source) {
  const { text: _, text_pair: __, text_target: ___, ...picture } = input.texts ?? {};
  const text = input.texts ? placed(model, source) : source;
  return { text, ...picture, ...(input.target.length && { text_target: target || source }) };
}

/** The tokens of the other text. @param {Model} model @param {Settings} settings @param {Input} input @param {string} source */
export const otherInput = (model, settings, input, source) =>
  fromTexts(model, { ...settings, text: source, pair: "" }, pictureOf(model, input));

/** A metric in the form of a request. @param {Choices} choices */
function metricOf({ metric, tokens }) {
  const count = TOKENS[metric];
  if (!count) return metric;
  const given = tokens.slice(0, count).map((token) => (/^#\d+$/.test(token) ? Number(token.slice(1)) : token));
  return { [metric]: count === 1 ? given[0] : given };
}

/** The body of the request. If the texts have different lengths, the tokens that both have are patched.
 *  @param {Model} model @param {Settings} settings @param {Input} input @param {Choices} choices
 *  @param {Input | null} other  the tokens of the other text @returns {Body} */
export function sweepBody(model, settings, input, choices, other) {
  const { at, action, over, fixed, position, renormalize, source, minus, scale } = choices;
  const axes = /** @type {Axis[]} */ (over.split(","));
  const intervention = /** @type {Body} */ ({ at, ...fixed });
  const grid = /** @type {Body} */ (Object.fromEntries(axes.map((axis) => [axis, "all"])));
  if (action === "scale")
    Object.assign(intervention, { scale: 0 }, at.endsWith("weights") && renormalize && { renormalize });
  else if (action === "mean") intervention.replace = "mean";
  else if (action === "add")
    intervention.add = {
      ...otherRun(model, settings, input, source),
      ...(minus.trim() && { minus: otherRun(model, settings, input, minus) }),
      scale,
    };
  else {
    intervention.from = otherRun(model, settings, input, source);
    const [own, theirs] = [input, other].map((one) => (one ? wordsAt(one, at) : []));
    if (other && own.length !== theirs.length && axesOf(at).includes("positions")) {
      const pairs = pairsOf(own, theirs).filter(
        (pair) => fixed.positions === undefined || pair.own === fixed.positions,
      );
      intervention.from.positions = pairs.map(({ other }) => other);
      (axes.includes("positions") ? grid : intervention).positions = pairs.map(({ own }) => own);
    }
  }
  return {
    ...textsAndMasks(model, settings, input),
    intervention,
    over: grid,
    metric: metricOf(choices),
    ...(position !== null && isOfPosition(model, choices.metric) && { position }),
  };
}

/** The intervention of one cell alone. @param {Body} body  of the sweep @param {[Axis, Axis]} axes @param {[number, number]} cell */
export function cellIntervention({ intervention, over }, axes, cell) {
  const one = { ...intervention, ...Object.fromEntries(axes.map((axis, i) => [axis, cell[i]])) };
  const along = axes.indexOf("positions");
  if (along >= 0 && Array.isArray(over.positions)) {
    const place = over.positions.indexOf(cell[along]);
    if (place >= 0) one.from = { ...intervention.from, positions: intervention.from.positions[place] };
  }
  return one;
}

/** The likeliest tokens of a run that may be changed: the next ones, or those after another position; in masked models, at it.
 *  @param {Model} model @param {Body} texts @param {Body[]} interventions @param {number | null} position
 *  @returns {Promise<NextToken[]>} */
export async function likelyTokens(model, texts, interventions, position) {
  const name = encodeURIComponent(model.block);
  const body = { ...texts, ...(interventions.length && { interventions }) };
  const vocabulary = Number(model.outputs.find(({ name }) => name === (model.answer ?? "output"))?.shape.at(-1));
  const count = Math.min(LISTED, vocabulary || LISTED);
  if (model.tokenizer?.next_tokens && position === null)
    return (await post(`v1/text/${name}`, { ...body, outputs: [], next_tokens: count })).next_tokens;
  const place = { layers: -1, positions: position ?? defaultPosition(model) }; // of the output
  const { lens } = await post(`v1/lens/${name}`, { ...body, ...place, lens_top_k: count });
  return lens.indices[0][0].map((/** @type {number} */ id, /** @type {number} */ k) => ({
    id,
    token: lens.tokens?.[0][0][k] ?? null,
    probability: lens.probabilities[0][0][k],
  }));
}

/** The output of a changed run. @param {Model} model @param {Body} texts @param {Body[]} interventions @returns {Promise<number[][]>} */
export const changedOutput = async (model, texts, interventions) =>
  (await post(`v1/text/${encodeURIComponent(model.block)}`, { ...texts, interventions, outputs: ["output"] })).output;

/** The likeliest tokens of the text, and of the other one. @param {Model} model @param {Settings} settings @param {Input} input
 *  @param {string} source @param {number | null} position @returns {Promise<{own: NextToken[], other: NextToken[]}>} */
export async function likeliest(model, settings, input, source, position) {
  const of = (/** @type {Body} */ texts) => likelyTokens(model, texts, [], position).catch(() => []); // they are only suggestions
  const [own, other] = await Promise.all([
    of(textsAndMasks(model, settings, input)),
    source.trim() ? of(otherRun(model, settings, input, source)) : [],
  ]);
  return { own, other };
}

/** The number of tokens that a model generates alike from both texts: the next one is the first that the other text may change.
 *  @param {Model} model @param {Input} input  of the text @param {string} source @returns {Promise<number>} */
export async function generatedAlike(model, { generated: own = [] }, source) {
  const other = await generatedFrom(model, source);
  const first = own.findIndex(({ id }, i) => id !== other[i]?.id);
  return first < 0 ? own.length : first;
}

/** The intervention of the pinned cell, null if none is pinned, or its text is missing.
 *  @param {Model} model @param {Settings} settings @param {Input} input @returns {Promise<Body | null>} */
export async function pinnedIntervention(model, settings, input) {
  const choices = choicesOf(model, settings);
  const { cell, action, source, over } = choices;
  const needsText = action === "from" || action === "add";
  if (!cell || (needsText && !source.trim())) return null;
  const other = action === "from" ? await otherInput(model, settings, input, source) : null;
  const axes = /** @type {[Axis, Axis]} */ (over.split(","));
  return cellIntervention(sweepBody(model, settings, input, choices, other), axes, cell);
}

/** A token in the form of a metric's field. @param {NextToken} token */
export function tokenText({ id, token }) {
  if (token === null || isMarked(token) || /[^\u0020-\u007e\u0120\u2581]/.test(token)) return `#${id}`;
  return beginsWord(token) ? ` ${token.slice(1)}` : token.startsWith("##") ? `#${id}` : token;
}

/** The numbers of a sweep, as they arrive. */
export class Sweep {
  /** @param {Model} model @param {Body} body @param {Grid} grid  without its numbers */
  constructor(model, body, grid) {
    this.model = model;
    this.body = body;
    this.grid = grid;
    this.rows = 0; // that are measured
    this.error = /** @type {Error | null} */ (null);
    this._controller = new AbortController();
  }

  /** @param {() => void} onRow  is called after each row, and at the end */
  async run(onRow) {
    const path = `v1/sweep/${encodeURIComponent(this.model.block)}`;
    const { grid } = this;
    try {
      for await (const { name, data } of events(path, { ...this.body, stream: true }, this._controller.signal)) {
        if (name === "error") throw new ServerError(data.status, data.detail, data.field ?? null);
        if (name === "start") this._begin(data);
        if (name === "row") {
          grid.values[data.index] = data.values;
          this.rows++;
        }
        if (name === "done") {
          grid.values = data.values;
          grid.status = "done";
          break;
        }
        onRow();
      }
    } catch (error) {
      const isStopped = /** @type {Error} */ (error).name === "AbortError";
      grid.status = isStopped ? "stopped" : "failed";
      if (!isStopped) this.error = /** @type {Error} */ (error);
    }
    onRow();
  }

  stop() {
    this._controller.abort();
  }

  /** @param {Body} start */
  _begin({ metric, unchanged, source = null, ...answer }) {
    const { grid } = this;
    const [rows, columns] = grid.axes.map((axis) => /** @type {number[]} */ (answer[axis]));
    const named = (/** @type {number} */ axis, /** @type {number[]} */ places) =>
      places.map((place) => grid.labels[axis][place] ?? String(place));
    grid.labels = [named(0, rows), named(1, columns)];
    grid.indices = [rows, columns];
    Object.assign(grid, { metric, unchanged, source });
    grid.values = rows.map(() => columns.map(() => null));
  }
}

/** A grid without its numbers: the names of all indices.
 *  @param {Model} model @param {Settings} settings @param {Input} input @param {Choices} choices @returns {Grid} */
export function emptyGrid(model, settings, input, choices) {
  const shape = model.interventions?.[choices.at] ?? [];
  const axes = /** @type {[Axis, Axis]} */ (choices.over.split(","));
  const labels = axes.map((axis) => {
    const words = () => wordsAt(input, choices.at, axis).map(({ text }) => `“${text}”`);
    const count = axis === "layers" ? Number(shape[0]) : Number(shape[2]);
    if (axis !== "layers" && axis !== "heads") return words();
    return Array.from({ length: count }, (_, i) => indexName(choices.at, axis, i));
  });
  return {
    model: model.block,
    text: settings.text,
    choices,
    axes,
    indices: [[], []],
    labels: /** @type {[string[], string[]]} */ (labels),
    metric: choices.metric,
    unchanged: NaN,
    source: null,
    values: [],
    status: "running",
  };
}
