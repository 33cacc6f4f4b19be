// The input of a model without a tokenizer: tensors that were given by name, or random ones.
import { fromNested, tensor } from "heed/server/api.js";

/** @typedef {import("heed/server/api.js").Model} Model */
/** @typedef {import("heed/server/api.js").Tensor} Tensor */
/** @typedef {import("heed/server/api.js").TensorDescription} TensorDescription */
/** @typedef {{seed: number, sizes: Record<string, number>}} Random */
/**
 * @typedef {object} Given  the entries of an object of tensors and options, by kind
 * @property {Record<string, Tensor>} fields @property {Record<string, unknown>} parameters
 * @property {string[]} words  labels of the tokens
 * @property {Record<string, unknown>} others  whose names the model lacks
 */

const MAX_RANDOM = 2e7; // numbers

/** An error of one input. */
export class InputError extends Error {
  /** @param {string} field @param {string} message */
  constructor(field, message) {
    super(`${field}: ${message}`);
    this.field = field;
  }
}

/** A tensor as nested lists; null is -infinity. @param {Tensor} tensor */
export function toJson({ shape, data, dtype }) {
  /** @type {unknown[]} */
  let parts = Array.from(/** @type {ArrayLike<number | bigint>} */ (data), (value) => {
    if (dtype === "BOOL") return Boolean(value);
    if (value === -Infinity) return null;
    if (!Number.isFinite(Number(value))) throw new Error(`${value} cannot be written in JSON`);
    return Number(value);
  });
  for (const length of shape.slice(1).reverse())
    parts = Array.from({ length: parts.length / length }, (_, i) => parts.slice(i * length, (i + 1) * length));
  return parts;
}

/** @param {Model} model @param {Record<string, unknown>} values  as a JSON request or a file has them @returns {Given} */
export function sortGiven(model, values) {
  /** @type {Given} */
  const given = { fields: {}, parameters: {}, words: [], others: {} };
  for (const [name, value] of Object.entries(values)) {
    const spec = model.inputs.find((input) => input.name === name);
    if (spec && value !== null) given.fields[name] = toInput(spec, value);
    else if (model.parameters.some((parameter) => parameter.name === name)) given.parameters[name] = value;
    else if (name === "words" && Array.isArray(value)) given.words = value.map(String);
    else if (!spec) given.others[name] = value;
  }
  return given;
}

/**
 * A tensor of an input's type, with the leading axes that were left out.
 * @param {TensorDescription} spec
 * @param {any} value  Tensor, nested lists, {shape, data} or {shape, dtype, base64}
 * @returns {Tensor}
 */
export function toInput(spec, value) {
  const given = read(spec, value);
  const missing = Math.max(0, spec.shape.length - given.shape.length);
  return { ...given, shape: [...Array(missing).fill(1), ...given.shape] };
}

/** @param {TensorDescription} spec @param {any} value @returns {Tensor} */
function read({ name, dtype }, value) {
  const type = dtype.replace(" or bool", "");
  if (ArrayBuffer.isView(value?.data)) return cast(name, dtype, value);
  try {
    if (value && Object.hasOwn(value, "base64")) return cast(name, dtype, fromBase64(value));
    if (value && Object.hasOwn(value, "data")) {
      const flat = fromNested(value.data, type);
      const count = Array.isArray(value.shape)
        ? value.shape.reduce((/** @type {number} */ all, /** @type {number} */ length) => all * length, 1)
        : -1;
      if (flat.shape.length !== 1 || flat.shape[0] !== count)
        throw new Error("expected a shape and a flat list of as many numbers");
      return { ...flat, shape: value.shape };
    }
    return fromNested(value, type);
  } catch (error) {
    throw new InputError(name, /** @type {Error} */ (error).message);
  }
}

/** @param {{shape?: unknown, dtype?: unknown, base64?: unknown}} value @returns {Tensor} */
function fromBase64({ shape, dtype, base64 }) {
  const buffer = Uint8Array.from(atob(String(base64)), (character) => character.charCodeAt(0)).buffer;
  if (!Array.isArray(shape)) throw new Error("expected a shape with base64");
  if (dtype !== "float32" && dtype !== "int64" && dtype !== "bool")
    throw new Error("base64 supports float32, int64 and bool");
  const bytes = { float32: 4, int64: 8, bool: 1 }[dtype] * shape.reduce((size, length) => size * length, 1);
  if (bytes !== buffer.byteLength)
    throw new Error(`shape [${shape}] needs ${bytes} bytes, base64 has ${buffer.byteLength}`);
  if (dtype === "float32") return { shape, dtype: "FP32", data: new Float32Array(buffer) };
  return dtype === "int64"
    ? { shape, dtype: "INT64", data: new BigInt64Array(buffer) }
    : { shape, dtype: "BOOL", data: new Uint8Array(buffer) };
}

/** @param {string} name @param {string} dtype  of the input @param {Tensor} given @returns {Tensor} */
function cast(name, dtype, given) {
  const [isBoolean, isWhole] = [given.dtype === "BOOL", given.dtype.startsWith("INT")];
  const isMask = dtype.endsWith(" or bool"); // integers may be booleans or numbers
  const wanted = isBoolean && isMask ? "bool" : dtype.replace(" or bool", "");
  const isAllowed =
    wanted === "bool" ? isBoolean : wanted.startsWith("int") ? isWhole : !isBoolean && !(isMask && isWhole);
  if (!isAllowed)
    throw new InputError(name, `expected ${dtype}, got ${given.dtype.toLowerCase().replace("fp", "float")}`);
  const empty = tensor(wanted, [], []);
  const isSame = given.data.constructor === empty.data.constructor;
  return {
    ...given,
    dtype: empty.dtype,
    data: isSame ? given.data : tensor(wanted, [], Array.from(given.data, Number)).data,
  };
}

/** The symbols in the shapes of the inputs that are required: batch, heads, m, ... @param {Model} model */
export function symbolsOf(model) {
  const required = model.inputs.filter((input) => input.required !== false);
  return [...new Set(required.flatMap(({ shape }) => shape.filter((dim) => typeof dim === "string")))];
}

/**
 * Random numbers for the required inputs: standard normal, and token ids where an input has integers.
 * @param {Model} model @param {Random} random @returns {Record<string, Tensor>}
 */
export function randomFields(model, { seed, sizes }) {
  const uniform = generator(seed);
  /** @type {Record<string, Tensor>} */
  const fields = {};
  let total = 0;
  for (const { name, dtype, shape: dims, required } of model.inputs) {
    if (required === false) continue;
    const shape = dims.map((dim) => (typeof dim === "number" ? dim : Math.max(1, Math.floor(Number(sizes[dim])) || 1)));
    const count = shape.reduce((size, length) => size * length, 1);
    if ((total += count) > MAX_RANDOM) throw new InputError(name, `expected at most ${MAX_RANDOM} random numbers`);
    const top = Number(model.config.vocab_size) || 2;
    const values = dtype.startsWith("int")
      ? Array.from({ length: count }, () => Math.floor(uniform() * top))
      : normal(uniform, count);
    fields[name] = tensor(dtype, shape, values);
  }
  return fields;
}

/** Mulberry32: 32 bits of state, numbers from 0 to below 1. @param {number} seed */
function generator(seed) {
  let state = seed | 0;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

/** Standard normal numbers by the method of Box and Muller. @param {() => number} uniform @param {number} count */
function normal(uniform, count) {
  const values = new Array(count);
  for (let i = 0; i < count; i += 2) {
    const [radius, angle] = [Math.sqrt(-2 * Math.log(1 - uniform())), 2 * Math.PI * uniform()];
    values[i] = radius * Math.cos(angle);
    if (i + 1 < count) values[i + 1] = radius * Math.sin(angle);
  }
  return values;
}
