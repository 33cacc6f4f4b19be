// From the settings of the page to the attention of a run on the server.
import { describe, infer, tensor, tokenize } from "heed/server/api.js";
import { Arrival } from "heed/data/arrival.js";
import { Attention, complete, plainLabels, POOL } from "heed/data/attention.js";
import { toMatrix } from "heed/data/matrix.js";
import { decoderStart, patchLabels, preprocessorOf, testPicture } from "heed/server/picture.js";
import { randomFields, toInput } from "heed/server/request.js";
import { fromTexts, placeholderOf } from "heed/server/texts.js";

/** @typedef {import("heed/server/api.js").Model} Model */
/** @typedef {import("heed/server/api.js").Tensor} Tensor */
/** @typedef {import("heed/data/attention.js").Label} Label */
/** @typedef {import("heed/data/state.js").Settings} Settings */
/** @typedef {import("heed/views/picture_view.js").Patches} Patches */
/**
 * @typedef {object} Request  tensors for a model that takes no text
 * @property {Record<string, unknown>} fields  Tensor, or as a JSON request has them
 * @property {string[]} words  labels of the tokens; empty = their places
 * @property {number[]} [special]  places of the tokens that begin, separate or end texts
 * @property {string} [picture]  a description of the picture whose pixel_values the tensors are
 */
/**
 * @typedef {object} Input  the input of a run, and the labels of its tokens
 * @property {Record<string, Tensor>} tensors
 * @property {Label[]} source  of keys, and of queries if the model has one input
 * @property {Label[]} target  of the decoder's tokens, or of queries that are not the keys; empty = the source's
 * @property {string} [decoderText]  that the target's tokens are of, if the input is of texts
 * @property {{id: number, text: string}[]} [generated]  tokens of that text, if the model has generated it
 * @property {boolean} truncated
 * @property {Patches | null} [patches]  of the picture in its text: which tokens are which patches
 * @property {Record<string, unknown>} [texts]  the fields of a request with the same texts, if there is a picture
 */

export const EXACT = 1 << 20; // up to this number, weights are float32; more are uint8

/** Outputs that are attention, in the order in which they are offered. */
export const KINDS = ["weights", "cross_weights", "encoder_weights", "vision_weights", "scores", "weights_by_norm"];
const OF_IMAGES = ["pixel_values", "vision_head_mask"]; // inputs of the tower for images

/** The kinds of attention of a model; for one that reads pictures in its text, those of the language model.
 *  @param {Model} model @returns {string[]} */
export const kindsOf = (model) =>
  KINDS.filter((kind) => model.outputs.some(({ name }) => name === kind)).filter(
    (kind) => kind !== "vision_weights" || !placeholderOf(model),
  );

/** The kind of attention that is shown first: for a model with an encoder and a decoder, that between them.
 *  @param {Model} model */
export const openingKind = (model) => {
  const kinds = kindsOf(model);
  const reads = model.tokenizer || preprocessorOf(model); // a text or a picture, about which a decoder says more
  return reads && kinds.includes("cross_weights") ? "cross_weights" : (kinds[0] ?? "weights");
};

/** The tower of a model that returns this output, as a model of texts or of images; another model is unchanged.
 *  @param {Model} model @param {string} kind @returns {Model} */
export function towerOf(model, kind) {
  if (!model.outputs.some(({ name }) => name === "text_embedding")) return model;
  const isOfImages = kind === "vision_weights";
  const inputs = model.inputs.filter(({ name }) => OF_IMAGES.includes(name) === isOfImages);
  const own = isOfImages
    ? { tokenizer: null, answer: "image_embedding" }
    : { preprocessor: null, answer: "text_embedding" };
  return { ...model, inputs, ...own, interventions: null };
}

/** Whether heads of the model can be switched off. @param {Model} model */
export const hasHeadMask = (model) =>
  model.inputs.some(({ name }) => name === "head_mask" || name === "vision_head_mask");

/** @type {Map<string, Promise<Model>>} */
const described = new Map();

/** The description of a model, which is requested once. @param {string} name */
export function modelOf(name) {
  let model = described.get(name);
  if (!model) {
    model = describe(name).then(asShown);
    model.catch(() => described.delete(name));
    described.set(name, model);
  }
  return model;
}

/** A model that reads no text, but writes one, takes tensors. @param {Model} model @returns {Promise<Model>} */
async function asShown(model) {
  if (!model.tokenizer || model.inputs.some(({ name }) => name === "input_ids")) return model;
  const begin = await tokenize(model.block, { text_target: "." }).catch(() => null); // without it, the id is shown
  const start = begin && { id: begin.decoder_input_ids[0], token: begin.target_tokens[0] };
  return { ...model, tokenizer: null, start };
}

/** The tensors of a JSON request. @param {Model} model @param {Record<string, unknown>} request
 *  @param {string[]} [words]  labels of the tokens @param {number[]} [special]  places of special ones @returns {Input} */
export function fromRequest(model, request, words = [], special = []) {
  /** @type {Record<string, Tensor>} */
  const tensors = {};
  for (const spec of model.inputs) {
    const given = request[spec.name];
    if (given !== undefined && given !== null) tensors[spec.name] = toInput(spec, given);
  }
  const named = plainLabels(words).map((label, place) => ({ ...label, special: special.includes(place) }));
  return { tensors, source: words.length ? named : patchLabels(model), target: [], truncated: false };
}

/**
 * A sentence about the input that is missing before the model can be run; "" if nothing is.
 * @param {Model} model @param {Settings} settings @param {Request | null} request
 */
export function neededFor(model, { text, random }, request) {
  if (model.tokenizer) return text.trim() ? "" : "Type a text to see the attention between its tokens.";
  if (!request && !random && !preprocessorOf(model) && !Object.keys(model.example).length)
    return "This model has no example, which would be long: choose random tensors, or a file.";
  const known = ["value", ...Object.keys(decoderStart(model))]; // the weights do not need value
  const missing = model.inputs.filter(
    ({ name, required }) => request && required && !known.includes(name) && !request.fields[name],
  );
  return missing.length ? `Missing: ${missing.map(({ name }) => name).join(", ")}.` : "";
}

/**
 * The input of the model, from the settings and the given tensors.
 * @param {Model} model @param {Settings} settings @param {Request | null} request
 *   null = random tensors, a built-in picture or the example
 * @returns {Promise<Input>}
 */
export async function inputOf(model, settings, request) {
  if (model.tokenizer) return fromTexts(model, settings, request);
  const given = request ?? (settings.sentence && !settings.random ? await builtIn() : null);
  const preprocessor = preprocessorOf(model);
  const example = () => (preprocessor ? { pixel_values: testPicture(preprocessor) } : model.example);
  const own = given?.fields ?? (settings.random ? randomFields(model, settings.random) : example());
  const fields = { ...decoderStart(model), ...own };
  return fromRequest(model, fields, settings.words.length ? settings.words : given?.words, given?.special);
}

/** The query, key and value of a sentence, one layer of a trained encoder, which come with the page.
 *  @returns {Promise<Request>} */
export async function builtIn() {
  const { words, special, ...fields } = await (await fetch(new URL("example.json", import.meta.url))).json();
  return { fields, words, special };
}

/** Sizes of the symbols in the shapes of a model's inputs. @param {Model} model @param {Record<string, Tensor>} tensors */
export function sizesOf(model, tensors) {
  /** @type {Record<string, number>} */
  const sizes = { past: 0 };
  for (const { name, shape } of model.inputs)
    shape.forEach((dim, axis) => {
      const size = tensors[name]?.shape[axis];
      if (size !== undefined && typeof dim === "string") sizes[dim] = Math.max(sizes[dim] ?? 1, size);
    });
  return sizes;
}

/** @param {string | number} dim  a number, a symbol, or a sum of them @param {Record<string, number>} sizes */
export const evaluate = (dim, sizes) =>
  String(dim)
    .split(" + ")
    .reduce((sum, term) => sum + (/^\d+$/.test(term) ? Number(term) : sizes[term]), 0);

/**
 * Run the model and return its attention.
 * @param {Model} model @param {Settings} settings @param {Input} input @param {AbortSignal} [signal]
 * @param {(attention: Attention) => void} [begin]  is called when the first numbers of the answer have arrived
 * @returns {Promise<Attention>} when all of it has arrived
 */
export async function run(model, settings, input, signal, begin = () => {}) {
  const { kind, batch } = settings;
  const output = model.outputs.find(({ name }) => name === kind);
  if (!output) throw new Error(`${model.block} has no output ${kind}`);
  const isStack = output.shape.length === 5;
  const tensors = { ...input.tensors, ...headMask(model, settings, input) };
  const sizes = sizesOf(model, tensors);
  const [m, n] = output.shape.slice(-2).map((dim) => evaluate(dim, sizes));
  const axis = Number(isStack); // of the batch
  const isSmall = m <= POOL && n <= POOL;
  const compressed = (/** @type {number} */ count) =>
    isWeights(kind) && count > EXACT ? { weights_dtype: "uint8" } : {};
  const statistics = kind === "weights" && model.derived.some(({ name }) => name === "head_statistics");
  const ask = (
    /** @type {string[]} */ outputs,
    /** @type {object} */ options,
    /** @type {AbortSignal | undefined} */ end = undefined,
    /** @type {import("heed/server/api.js").Watch | undefined} */ watch = undefined,
  ) => infer(model.block, tensors, outputs, { ...settings.parameters, ...options }, end, watch);
  const arrival = new Arrival();
  const one = async (/** @type {string} */ name, /** @type {object} */ options, from = axis) => {
    const part = await ask([name], { ...options, ...(name === kind ? compressed(m * n) : {}) });
    return toMatrix(rowOfBatch(part[name], batch, from), m, n, unitOf(part));
  };
  const layerOption = (/** @type {number} */ layer) => (isStack ? { layers: String(layer) } : {});
  /** @param {Record<string, Tensor>} answer  which may have only its first numbers */
  const toAttention = (answer) => {
    const { shape } = answer[kind];
    const [layers, heads] = [isStack ? shape[0] : 1, shape[shape.length - 3]];
    const values = rowOfBatch(answer[kind], batch, axis);
    const [own, others] = output.shape.slice(-2).map(String);
    const { rows, columns } = labels(kind, m, n, input, others.split(" + ").includes(own));
    if (isSmall) return complete(values, 1, layers, heads, rows, columns, "layer", arrival);
    const [pm, pn] = shape.slice(-2);
    const numbers = statistics ? rowOfBatch(answer.head_statistics, batch, axis) : null;
    return new Attention({
      layers,
      heads,
      m,
      n,
      rows,
      columns,
      axis: "layer",
      arrival,
      all: async () => {
        const whole = await ask([kind], compressed(layers * heads * m * n));
        return { numbers: rowOfBatch(whole[kind], batch, axis), unit: unitOf(whole) };
      },
      row: async (query) => {
        const part = await ask([kind], { queries: String(query) });
        return { numbers: /** @type {Float32Array} */ (rowOfBatch(part[kind], batch, axis)), unit: unitOf(part) };
      },
      small: (layer, head) => {
        const start = (layer * heads + head) * pm * pn;
        return toMatrix(values.subarray(start, start + pm * pn), pm, pn, unitOf(answer));
      },
      statistics:
        numbers &&
        ((layer, head) => {
          const width = numbers.length / (layers * heads);
          return Array.from(
            numbers.subarray((layer * heads + head) * width, (layer * heads + head + 1) * width),
            Number,
          );
        }),
      received:
        kind === "weights" && model.derived.some(({ name }) => name === "received")
          ? async () => rowOfBatch((await ask(["received"], {})).received, batch, axis)
          : null,
      load: (layer, head) => one(kind, { ...layerOption(layer), heads: String(head) }),
      combine: ({ combine, layer, head }) => {
        if (combine === "rollout") return one("rollout", {}, 0);
        if (combine.startsWith("layers")) return one(kind, { heads: String(head), reduce_layers: combine.slice(7) }, 0);
        return one(kind, { ...layerOption(layer), reduce_heads: combine });
      },
    });
  };
  const names = statistics && !isSmall ? ["head_statistics", kind] : [kind];
  /** @type {Attention | null} */
  let attention = null;
  try {
    const answer = await ask(
      names,
      isSmall ? {} : { ...compressed(Infinity), weights_pool: POOL, weights_pool_by: "max" },
      signal,
      (parts, name, share) => {
        if (name !== kind || parts[kind].shape[axis] > 1) return; // of several rows of a batch one is copied at the end
        if (!attention) begin((attention = toAttention(parts)));
        arrival.advance(Math.floor(share * attention.layers * attention.heads));
      },
    );
    if (!attention) begin((attention = toAttention(answer)));
  } catch (error) {
    arrival.end(error);
    throw error;
  }
  arrival.end();
  return attention;
}

/** @param {string} kind */
const isWeights = (kind) => kind === "weights" || /^(encoder|cross|vision)_weights$/.test(kind);

/** The value of 1. The scale of uint8 arrives after its numbers: until then the largest weight is assumed to be 1.
 *  @param {Record<string, Tensor>} answer */
export const unitOf = ({ weights_scale: scale, ...others }) =>
  Number(scale?.data[0]) || (Object.values(others).some(({ dtype }) => dtype === "UINT8") ? 1 / 255 : 1);

/** One row of the batch, without that axis.
 *  @param {Tensor} tensor @param {number} batch @param {number} axis  of the batch: 1 after layers, else 0 @returns {any} */
export function rowOfBatch({ shape, data }, batch, axis) {
  const inner = shape.slice(axis + 1).reduce((size, length) => size * length, 1);
  const [outer, rows] = [axis === 1 ? shape[0] : 1, shape[axis]];
  if (rows === 1) return data;
  const row = Math.min(batch, rows - 1);
  const result = /** @type {any} */ (data).slice(0, outer * inner);
  for (let i = 0; i < outer; i++) {
    const start = (i * rows + row) * inner;
    result.set(data.subarray(start, start + inner), i * inner);
  }
  return result;
}

/** Queries and keys with the same tokens have the same labels: one list.
 *  @param {string} kind @param {number} m @param {number} n @param {Input} input @param {boolean} isSelf */
function labels(kind, m, n, { source, target }, isSelf) {
  const own = kind === "encoder_weights" || target.length === 0 ? source : target;
  const rows = own.length === m ? own : plainLabels(places(m));
  const keys = kind === "cross_weights" ? source : own;
  if (m === n && isSelf) return { rows, columns: rows };
  return { rows, columns: keys.length === n ? keys : plainLabels(places(n)) };
}

/** The names of the inputs that switch heads off, by the shown output: transformers', and those of Heed's own blocks.
 *  @type {Record<string, string[]>} */
const HEAD_MASKS = {
  weights: ["decoder_head_mask", "head_mask"],
  cross_weights: ["cross_attn_head_mask", "memory_head_mask"],
  vision_weights: ["vision_head_mask"],
};

/** @param {number} count */
const places = (count) => Array.from({ length: count }, (_, i) => String(i));

/** The input that switches heads off in the shown attention: [layers, heads] for stacks, else [batch, heads].
 *  @param {Model} model @param {Settings} settings @param {Input} input @returns {Record<string, Tensor>} */
export function headMask(model, { ablated, kind }, { tensors }) {
  const names = HEAD_MASKS[kind] ?? ["head_mask"];
  const mask = names.flatMap((name) => model.inputs.filter((input) => input.name === name))[0];
  if (!mask || ablated.length === 0) return {};
  const [first, heads] = mask.shape.map((dim) => evaluate(dim, sizesOf(model, tensors)));
  const isOfLayers = mask.shape[0] !== "batch";
  const values = new Array(first * heads).fill(1);
  for (const [layer, head] of ablated)
    for (let row = 0; row < first; row++)
      if (head < heads && (!isOfLayers || row === layer)) values[row * heads + head] = 0;
  return { [mask.name]: tensor("float32", [first, heads], values) };
}
