// The query of one token and the keys of all, of one head: the numbers whose products are its scores.
import { infer } from "heed/server/api.js";
import { headMask } from "heed/server/run.js";

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
 */

/** The outputs with the queries and keys, by the output that is their attention. @type {Record<string, [string, string]>} */
const VECTORS = {
  weights: ["query", "key"],
  encoder_weights: ["encoder_query", "encoder_key"],
  cross_weights: ["cross_query", "cross_key"],
  vision_weights: ["vision_query", "vision_key"],
};

/** Whether a model answers the queries and keys of this output. @param {Model} model @param {string} kind */
export const hasNeurons = (model, kind) =>
  VECTORS[kind]?.every((name) => model.outputs.some((output) => output.name === name)) ?? false;

/**
 * @param {Model} model @param {Settings} settings @param {import("heed/server/run.js").Input} input @param {number} query
 * @returns {Promise<Neurons>}
 */
export async function neuronsOf(model, settings, input, query) {
  const { kind, layer, head, parameters } = settings;
  const [queries, keys] = VECTORS[kind];
  const answer = await infer(
    model.block,
    { ...input.tensors, ...headMask(model, settings, input) },
    [kind, queries, keys],
    { ...parameters, layers: String(layer), heads: String(head), queries: String(query) },
  );
  const scale = model.outputs.some(({ name }) => name === "scores") ? answer[queries].shape[4] ** -0.5 : 1; // in a block's query it is not
  const q = rowsOf(answer[queries])[0].map((number) => number * scale);
  const all = rowsOf(answer[keys]);
  const products = all.map((k) => k.map((number, l) => number * q[l]));
  return {
    query: q,
    keys: all,
    products,
    scores: products.map((row) => row.reduce((sum, number) => sum + number, 0)),
    weights: rowsOf(answer[kind])[0],
  };
}

/** The rows of a tensor's last axis. @param {Tensor} tensor @returns {Float32Array[]} */
function rowsOf({ shape, data }) {
  const width = shape[shape.length - 1];
  const numbers = /** @type {Float32Array} */ (data);
  return Array.from({ length: numbers.length / width }, (_, row) => numbers.subarray(row * width, (row + 1) * width));
}
