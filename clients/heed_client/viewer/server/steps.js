// One query and one key of one head, from their vectors to the output, with the numbers of a run.
import { infer } from "heed/server/api.js";
import { significant } from "heed/data/display.js";
import { isProjected } from "heed/server/head_tensors.js";
import { headMask } from "heed/server/run.js";

/** @typedef {import("heed/server/api.js").Model} Model */
/** @typedef {import("heed/server/api.js").Tensor} Tensor */
/** @typedef {import("heed/server/run.js").Input} Input */
/** @typedef {import("heed/data/state.js").Settings} Settings */
/** @typedef {{name: string, start: number, values: number[]}} Vector  of an input, and where it starts in the tensor */
/** @typedef {{name: string, text: string, value: number}} Term  a step from the sum of products to the score */
/**
 * @typedef {object} Steps
 * @property {number} key  the key that is shown
 * @property {Vector} query @property {Vector} keyVector @property {Vector | null} value
 * @property {{query: number[], key: number[], value: number[] | null} | null} projected  the vectors after the projections;
 *   null = the block has none
 * @property {number[]} products  of the pair; empty if the score is no scaled dot product
 * @property {Term[]} terms  from the sum of the products to the score, as they were computed here
 * @property {number[]} scores  of the query, by the server
 * @property {number} score @property {number | null} lse @property {number} weight  of the pair, by the server
 * @property {number | null} power  exp(score - lse); null if that is not the weight
 * @property {number[] | null} output  the query's row of the head; null if it is no sum of weights times values
 * @property {number[] | null} joined  the query's row of all heads, projected; null if "output" is already that
 */

const ERROR = 2e-5; // float32, of the sum of absolute terms

/** Whether a model has the tensors that are shown. @param {Model} model */
export const hasSteps = (model) =>
  ["query", "key"].every((name) =>
    model.inputs.some((input) => input.name === name && input.dtype.startsWith("float")),
  ) &&
  ["weights", "scores"].every((name) =>
    model.outputs.some((output) => output.name === name && output.shape.length === 4),
  );

/**
 * @param {Model} model @param {Settings} settings @param {Input} input
 * @param {number} query @param {number | null} key  null = the one with the largest weight
 * @returns {Promise<Steps>}
 */
export async function stepsOf(model, settings, input, query, key) {
  const { tensors } = input;
  const { head } = settings;
  const batch = Math.min(settings.batch, tensors.query.shape[0] - 1);
  const names = model.outputs.map(({ name }) => name);
  const outputs = [
    "weights",
    "scores",
    ...names.filter((name) => name === "lse" || (name === "output" && tensors.value)),
    ...(isProjected(model) ? ["head_query", "present_key"] : []),
    ...names.filter((name) => tensors.value && isProjected(model) && ["present_value", "head_output"].includes(name)),
  ];
  const answer = await infer(model.block, { ...tensors, ...headMask(model, settings, input) }, outputs, {
    ...settings.parameters,
    heads: String(head),
    queries: String(query),
  });
  const row = (/** @type {string} */ name) => numbersAt(answer[name], batch, head, query);
  const [weights, scores] = [row("weights"), row("scores")];
  const j = key ?? weights.indexOf(Math.max(...weights));
  const heads = /** @type {number} */ (headsOf(model, tensors));
  const past = tensors.past_key?.shape[2] ?? 0;
  const at = (/** @type {string} */ name, /** @type {number} */ place) =>
    vectorAt(name, tensors[name], batch, head, heads, place);
  const given = (/** @type {string} */ name, /** @type {number} */ place) =>
    place >= past ? at(name, place - past) : null;
  const answered = (/** @type {string} */ name) =>
    answer[name] && weights.map((_, place) => vectorAt(name, answer[name], batch, head, heads, place));
  const own = at("query", query);
  const q = answer.head_query ? { ...own, values: row("head_query") } : own;
  const keys = answered("present_key") ?? weights.map((_, place) => given("key", place));
  const computed = keys.map((k, place) => k && score(model, { ...settings, batch }, tensors, q, k, place, query));
  // The formula is true if it gives the server's scores of all keys.
  const isDot =
    (past === 0 || isProjected(model)) &&
    computed.every((one, place) => one && agrees(one.terms[one.terms.length - 1].value, scores[place], one.size));
  const lse = answer.lse
    ? Number(numbersAt({ ...answer.lse, shape: [...answer.lse.shape, 1] }, batch, head, query)[0])
    : null;
  const power = lse === null ? null : scores[j] === -Infinity ? 0 : Math.exp(scores[j] - lse);
  const asGiven = tensors.value && past === 0 ? weights.map((_, place) => at("value", place)) : null;
  const values = answered("present_value") ?? asGiven;
  const last = answer.output && rowOfOutput(answer.output, batch, head, query);
  const output = answer.head_output ? row("head_output") : last;
  const isSum = values && output && isAverage(output, weights, values);
  return {
    key: j,
    query: own,
    keyVector: given("key", j) ?? { name: "key", start: 0, values: [] },
    value: tensors.value ? given("value", j) : null,
    projected: isProjected(model)
      ? { query: q.values, key: keys[j]?.values ?? [], value: values && values[j].values }
      : null,
    products: isDot ? q.values.map((number, l) => number * /** @type {Vector} */ (keys[j]).values[l]) : [],
    terms: isDot ? /** @type {{terms: Term[]}} */ (computed[j]).terms : [],
    scores,
    score: scores[j],
    lse,
    weight: weights[j],
    power: power !== null && agrees(power, weights[j], 1) ? power : null,
    output: isSum ? output : null,
    joined: isSum && answer.head_output ? last : null,
  };
}

/** @param {Model} model @param {Record<string, Tensor>} tensors */
function headsOf(model, tensors) {
  const { shape } = /** @type {{shape: (string | number)[]}} */ (model.outputs.find(({ name }) => name === "weights"));
  return typeof shape[1] === "number" ? shape[1] : tensors.query.shape[1];
}

/** @param {number} one @param {number} other  by the server @param {number} size  sum of the absolute terms */
const agrees = (one, other, size) => one === other || Math.abs(one - other) <= ERROR * (1 + size);

/** @param {number[]} output @param {number[]} weights @param {Vector[]} values */
function isAverage(output, weights, values) {
  if (output.length !== values[0].values.length) return false;
  return output.every((number, l) => {
    let [sum, size] = [0, 0];
    weights.forEach((weight, j) => {
      sum += weight * values[j].values[l];
      size += Math.abs(weight * values[j].values[l]);
    });
    return agrees(sum, number, size);
  });
}

/** Scaled dot product, bias, softcap, mask: each step with its number.
 *  @param {Model} model @param {Settings} settings @param {Record<string, Tensor>} tensors @param {Vector} q @param {Vector} k
 *  @param {number} j @param {number} i */
function score(model, { parameters, head, batch }, tensors, q, k, j, i) {
  if (q.values.length !== k.values.length || parameters.rope_theta || tensors.alibi_slopes) return null;
  let [value, size] = [0, 0];
  q.values.forEach((number, l) => {
    value += number * k.values[l];
    size += Math.abs(number * k.values[l]);
  });
  /** @type {Term[]} */
  const terms = [{ name: "sum of the products", text: "q · k", value }];
  const add = (/** @type {string} */ name, /** @type {string} */ text, /** @type {number} */ next) =>
    terms.push({ name, text, value: (value = next) });
  const spec = model.parameters.find(({ name }) => name === "scale");
  if (spec) {
    const scale = Number(parameters.scale ?? spec.default ?? q.values.length ** -0.5);
    size *= Math.abs(scale);
    add("scaled product", `× ${Number(scale.toPrecision(4))}`, value * scale);
  }
  const place = (/** @type {Tensor} */ tensor) => Number(tensor.data[broadcast(tensor.shape, [batch, head, i, j])]);
  if (tensors.attn_bias)
    add("plus bias", `+ ${significant(place(tensors.attn_bias))}`, value + place(tensors.attn_bias));
  const softcap = Number(parameters.softcap ?? 0);
  if (softcap > 0) add("softcap", `${softcap} tanh(score / ${softcap})`, softcap * Math.tanh(value / softcap));
  const mask = tensors.attn_mask;
  if (mask && mask.dtype === "BOOL")
    add("mask", place(mask) ? "true: may attend" : "false: may not attend", place(mask) ? value : -Infinity);
  else if (mask) add("mask", `+ ${significant(place(mask))}`, value + place(mask));
  if (isForbidden(parameters, tensors, batch, i, j)) add("mask", "may not attend", -Infinity);
  return { terms, size };
}

/** Whether is_causal, the windows, the lengths or the documents forbid query i the key j; without a past.
 *  @param {Record<string, unknown>} parameters @param {Record<string, Tensor>} tensors @param {number} batch @param {number} i @param {number} j */
function isForbidden(parameters, tensors, batch, i, j) {
  const length = tensors.nonpad_kv_seqlen && Number(tensors.nonpad_kv_seqlen.data[batch]);
  const own = i + (length === undefined ? 0 : length - tensors.query.shape[tensors.query.shape.length - 2]);
  const [left, right] = [Number(parameters.left_window_size ?? -1), Number(parameters.right_window_size ?? -1)];
  const [one, other] = [tensors.query_document_ids, tensors.document_ids];
  const isOther =
    one && other && one.data[broadcast(one.shape, [batch, i])] !== other.data[broadcast(other.shape, [batch, j])];
  return (
    (length !== undefined && j >= length) ||
    (Boolean(parameters.is_causal) && j > own) ||
    (left >= 0 && j < own - left) ||
    (right >= 0 && j > own + right) ||
    Boolean(isOther)
  );
}

/** The index of an element; an axis of length 1 is shared by all places.
 *  @param {number[]} shape @param {number[]} places */
const broadcast = (shape, places) =>
  shape.reduce((index, length, axis) => index * length + (length === 1 ? 0 : places[axis]), 0);

/** The last axis at a row of the batch, a head and a query; an axis that was selected has length 1.
 *  @param {Tensor} tensor @param {number} batch @param {number} head @param {number} query @returns {number[]} */
function numbersAt({ shape, data }, batch, head, query) {
  const width = shape[shape.length - 1];
  const start = broadcast(shape.slice(0, -1), [batch, head, query]) * width;
  return Array.from(/** @type {Float32Array} */ (data).subarray(start, start + width));
}

/** @param {Tensor} tensor  [batch, heads, m, d_v] or [batch, m, d_v] @param {number} batch @param {number} head @param {number} query */
function rowOfOutput({ shape, data, dtype }, batch, head, query) {
  return numbersAt(
    { shape: shape.length === 4 ? shape : [shape[0], 1, ...shape.slice(1)], data, dtype },
    batch,
    head,
    query,
  );
}

/** @param {string} name @param {Tensor} tensor  [batch, heads, m, d] or [batch, m, d] @param {number} batch
 *  @param {number} head @param {number} heads  of the queries; keys may have fewer @param {number} place @returns {Vector} */
function vectorAt(name, { shape, data }, batch, head, heads, place) {
  const [rows, width] = shape.slice(-2);
  const groups = shape.length === 4 ? shape[1] : 1;
  const start = (((shape[0] === 1 ? 0 : batch) * groups + Math.floor((head * groups) / heads)) * rows + place) * width;
  return { name, start, values: Array.from(/** @type {Float32Array} */ (data).subarray(start, start + width)) };
}
