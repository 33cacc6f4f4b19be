// The query of one token and the keys of all, of one head: the numbers whose products are its scores.
import { infer } from "heed/server/api.js";
import { evaluate, headMask, rowOfBatch, sizesOf } from "heed/server/run.js";

/** @typedef {import("heed/server/api.js").Model} Model */
/** @typedef {import("heed/server/api.js").Tensor} Tensor */
/** @typedef {import("heed/data/state.js").Settings} Settings */
/**
 * @typedef {object} Neurons
 * @property {Float32Array} query  times the scale
 * @property {Float32Array[]} keys
 * @property {Float32Array[]} products  of the query and each key, number by number
 * @property {number[]} scores  the sums of the products, before biases and masks
 * @property {Float32Array} weights  of the query, by the server
 * @property {boolean[]} masked  keys that the query may not look at
 */

/** The outputs with the queries and keys, by the output that is their attention. @type {Record<string, [string, string]>} */
const VECTORS = {
  weights: ["query", "key"],
  encoder_weights: ["encoder_query", "encoder_key"],
  cross_weights: ["cross_query", "cross_key"],
  vision_weights: ["vision_query", "vision_key"],
};

/**
 * The names of an output's queries and keys: outputs, or inputs of the block. null = its scores are not their products.
 * @param {Model} model @param {string} kind
 */
function vectorsOf(model, kind) {
  const hasOutput = (/** @type {string} */ name) => model.outputs.some((output) => output.name === name);
  const [query, key] = VECTORS[kind] ?? [];
  if (query && hasOutput(query) && hasOutput(key)) return { query, key, hasQuery: true };
  if (kind !== "weights" || !hasOutput("present_key")) return null;
  if (hasOutput("head_query")) return { query: "head_query", key: "present_key", hasQuery: true };
  const isOfHeads = model.inputs.some(({ name, shape }) => name === "query" && shape.length === 4);
  return isOfHeads ? { query: "query", key: "present_key", hasQuery: false } : null;
}

/** Whether the page knows the queries and keys of this output. @param {Model} model @param {string} kind */
export const hasNeurons = (model, kind) => vectorsOf(model, kind) !== null;

/**
 * @param {Model} model @param {Settings} settings @param {import("heed/server/run.js").Input} input @param {number} query
 * @returns {Promise<Neurons>}
 */
export async function neuronsOf(model, settings, input, query) {
  const { kind, layer, head, batch, parameters } = settings;
  const found = vectorsOf(model, kind);
  if (!found) throw new Error(`the scores of ${model.block} are not products of queries and keys`);
  if (parameters.rope_theta) throw new Error("Neurons shows vectors before rotary positions: remove rope_theta");
  const output = model.outputs.find(({ name }) => name === kind);
  const isStack = output?.shape.length === 5;
  const answer = await infer(
    model.block,
    { ...input.tensors, ...headMask(model, settings, input) },
    [kind, found.key, ...(found.hasQuery ? [found.query] : [])],
    { ...parameters, ...(isStack && { layers: String(layer) }), heads: String(head), queries: String(query) },
  );
  const heads = Number(isStack ? 1 : evaluate(output?.shape.at(-3) ?? 1, sizesOf(model, input.tensors)));
  const [row, axis] = [(/** @type {Tensor} */ tensor) => rowOfBatch(tensor, batch, axis), Number(isStack)];
  const own = found.hasQuery ? rowsOf(row(answer[found.query]), answer[found.query].shape) : null;
  const asGiven = input.tensors[found.query];
  const q = own ? own[0] : rowsOf(row(asGiven), asGiven.shape)[head * asGiven.shape[2] + query];
  const scaled = q.map((number) => number * scaleOf(model, parameters, q.length));
  const groups = rowsOf(row(answer[found.key]), answer[found.key].shape);
  const [keyHeads, n] = answer[found.key].shape.slice(-3, -1);
  const first = keyHeads > 1 ? Math.floor((head * keyHeads) / heads) * n : 0; // several heads may share one
  const keys = groups.slice(first, first + n);
  const products = keys.map((k) => k.map((number, l) => number * scaled[l]));
  const scores = products.map((numbers) => numbers.reduce((sum, number) => sum + number, 0));
  const weights = rowsOf(row(answer[kind]), answer[kind].shape)[0];
  return { query: scaled, keys, products, scores, weights, masked: maskedOf(scores, weights) };
}

const TINY = 1e-30; // a softmax in float32 is above 0 here

/** Keys that are masked: they have no weight, though their scores would give one.
 *  @param {number[]} scores @param {Float32Array} weights */
function maskedOf(scores, weights) {
  const top = Math.max(...scores);
  const sum = scores.reduce((total, score) => total + Math.exp(score - top), 0);
  return scores.map((score, place) => weights[place] === 0 && Math.exp(score - top) / sum > TINY);
}

/** The factor of a query: 1 for models of transformers, whose queries are already scaled.
 *  @param {Model} model @param {Settings["parameters"]} parameters @param {number} width */
function scaleOf(model, parameters, width) {
  if (!model.outputs.some(({ name }) => name === "scores")) return 1;
  const known = parameters.scale ?? model.parameters.find(({ name }) => name === "scale")?.default;
  return Number(known ?? width ** -0.5);
}

/** The rows of a tensor's last axis. @param {Float32Array} numbers @param {number[]} shape @returns {Float32Array[]} */
function rowsOf(numbers, shape) {
  const width = shape[shape.length - 1];
  return Array.from({ length: numbers.length / width }, (_, row) => numbers.subarray(row * width, (row + 1) * width));
}
