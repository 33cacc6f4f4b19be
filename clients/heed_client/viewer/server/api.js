// The server's API: JSON for descriptions and texts, the Open Inference Protocol with binary tensors for runs.

const KEY = "heed-api-key"; // in sessionStorage: it ends with the tab

/** An answer with an error status, with the server's message; `field` is the name of the input at fault. */
export class ServerError extends Error {
  /** @param {number} status @param {string} message @param {string | null} field */
  constructor(status, message, field) {
    super(message);
    this.status = status;
    this.field = field;
  }
}

/** @typedef {{name: string, dtype: string, shape: (string | number)[], required?: boolean, description: string}} TensorDescription */
/** @typedef {{name: string, dtype: string, default: unknown, description: string}} ParameterDescription */
/**
 * @typedef {object} Preprocessor  how a picture becomes pixel_values
 * @property {number} height @property {number} width @property {number} channels
 * @property {number[] | null} [resize]  [shortest edge] or [height, width] before the middle is cut out; null = all is resized
 * @property {number[] | null} image_mean @property {number[] | null} image_std  of each channel; null = it is left out
 * @property {number | null} rescale_factor  null = values stay from 0 to 255
 * @property {number | null} patch_size  null = unknown
 * @property {number | null} special_tokens  positions before the patches; null = unknown
 */
/**
 * @typedef {object} Model  as GET v1/attention/{block} describes it
 * @property {string} block @property {string} title @property {string} description @property {string} formula
 * @property {number} version @property {string} source @property {string} weights
 * @property {Record<string, any>} config
 * @property {TensorDescription[]} inputs @property {ParameterDescription[]} parameters
 * @property {TensorDescription[]} outputs @property {TensorDescription[]} derived
 * @property {{max_tokens: number | null, truncates_to: number | null, next_tokens?: boolean, placeholders?: Placeholder[]} | null} tokenizer
 * @property {Preprocessor | null} [preprocessor]
 * @property {{quantized: {bits: number, errors: Record<string, number>} | null} | null} [generate]  null = cannot
 * @property {Record<string, (string | number)[]> | null} [interventions]  shapes of the activations that can be changed
 * @property {{id: number, token: string} | null} [start]  the first token of its decoder, if it has a tokenizer for it alone
 * @property {string} [answer]  the name of its main output, if it is not `output`
 * @property {string[]} providers @property {Record<string, any>} example
 */
/** @typedef {{input: string, token: string | null, id: number, count: number}} Placeholder  the tokens that stand for a picture in a text */
/**
 * @typedef {object} Tokens  one text in the answer of POST v1/tokenize/{model}
 * @property {string[]} tokens @property {number[]} input_ids @property {number[]} attention_mask
 * @property {number[]} token_type_ids @property {(number | null)[]} sequence_ids  0 or 1 in a pair; null = special
 * @property {[start: number, end: number][] | null} [offsets]  of each token in its text, in characters
 * @property {boolean} truncated
 */
/** @typedef {Float32Array | BigInt64Array | Int32Array | Uint8Array | Float64Array} Numbers */
/** @typedef {{shape: number[], data: Numbers, dtype: string}} Tensor  dtype as the protocol names it: FP32, INT64, ... */
/** @typedef {(tensors: Record<string, Tensor>, name: string, share: number) => void} Watch
 *    is called when more of an answer has arrived: all outputs before `name`, and a `share` of the numbers of `name` */

/** @type {Record<string, {new (buffer: ArrayBuffer): Numbers, BYTES_PER_ELEMENT: number}>} */
const ARRAYS = {
  FP32: Float32Array,
  FP64: Float64Array,
  INT64: BigInt64Array,
  INT32: Int32Array,
  UINT8: Uint8Array,
  BOOL: Uint8Array,
};

/** Numbers from the bytes of an answer; those of half precision become float32.
 *  @param {string} datatype @param {ArrayBuffer} buffer @returns {Numbers} */
function toNumbers(datatype, buffer) {
  if (datatype === "FP16") return Float32Array.from(new Float16Array(buffer));
  if (datatype === "BF16")
    return new Float32Array(Uint32Array.from(new Uint16Array(buffer), (word) => word << 16).buffer);
  return new ARRAYS[datatype](buffer);
}

/** The bytes of a tensor in its own type. @param {Tensor} tensor @returns {Numbers | Float16Array | Uint16Array} */
function toBytes({ dtype, data }) {
  if (dtype === "FP16") return Float16Array.from(/** @type {Float32Array} */ (data));
  if (dtype !== "BF16") return data;
  const words = new Uint32Array(Float32Array.from(/** @type {Float32Array} */ (data)).buffer);
  return Uint16Array.from(words, (word) => (word + 0x7fff + ((word >>> 16) & 1)) >>> 16); // to the nearest, halves to even
}

/** @param {string} key  "" removes it */
export function setKey(key) {
  if (key) sessionStorage.setItem(KEY, key);
  else sessionStorage.removeItem(KEY);
}

export const hasKey = () => sessionStorage.getItem(KEY) !== null;

/** @param {string} path @param {RequestInit} [options] */
async function call(path, options = {}) {
  const headers = new Headers(options.headers);
  const key = sessionStorage.getItem(KEY);
  if (key) headers.set("Authorization", `Bearer ${key}`);
  const response = await fetch(path, { ...options, headers }).catch((error) => {
    if (error.name === "AbortError") throw error;
    throw new ServerError(0, "the server does not respond", null);
  });
  if (!response.ok) throw await toError(response);
  return response;
}

/** @param {Response} response */
async function toError(response) {
  const body = await response.json().catch(() => ({}));
  const message = body.detail ?? body.error ?? `${response.status} ${response.statusText}`;
  return new ServerError(response.status, String(message), body.field ?? fieldIn(String(message)));
}

/** The input or parameter that a message of the Open Inference Protocol begins with, or has in quotes. @param {string} message */
const fieldIn = (message) =>
  (message.match(/^(\w+): /) ??
    message.match(/ input '(\w+)'/) ??
    message.match(/missing required input\(s\) \['(\w+)'/))?.[1] ?? null;

/** @param {string} path @param {unknown} body @param {AbortSignal} [signal] */
export async function post(path, body, signal) {
  const headers = { "Content-Type": "application/json" };
  return (await call(path, { method: "POST", body: JSON.stringify(body), headers, signal })).json();
}

/**
 * The events of an answer, as they arrive.
 * @param {string} path @param {unknown} body @param {AbortSignal} signal
 * @returns {AsyncGenerator<{name: string, data: any}>}
 */
export async function* events(path, body, signal) {
  const headers = { "Content-Type": "application/json" };
  const response = await call(path, { method: "POST", body: JSON.stringify(body), headers, signal });
  const stream = /** @type {ReadableStream<Uint8Array<ArrayBuffer>>} */ (response.body);
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  for (let text = ""; ;) {
    text += await next(reader);
    const blocks = text.split("\n\n");
    text = blocks.pop() ?? "";
    for (const block of blocks) {
      const [name, data] = block.split("\n").map((line) => line.slice(line.indexOf(":") + 2));
      yield { name, data: JSON.parse(data) };
    }
  }
}

/** @param {string} path */
async function get(path) {
  return (await call(path)).json();
}

/** @returns {Promise<{name: string, version: string, provider: string, provider_reason: string}>} */
export const server = () => get("v2");

/** @typedef {{block: string, title: string, description: string, weights: string}} Line  of the list of models */

/** Whether its weights are trained, and not random. @param {{weights: string}} model */
export const isTrained = ({ weights }) => weights !== "none" && !weights.startsWith("random ");

/** The origin of weights, with the first digits of a hash. @param {string} weights */
export const shortened = (weights) => weights.replace(/\b([0-9a-f]{8})[0-9a-f]{24,}\b/g, "$1");

/** @returns {Promise<Line[]>} */
export const models = async () => (await get("v1/attention")).blocks;

/** Whether the server answers and is ready. @returns {Promise<boolean>} */
export const isReady = () =>
  fetch("v2/health/ready").then(
    ({ ok }) => ok,
    () => false,
  );

/** Every model of the repository, including those that failed to load.
 *  @returns {Promise<{name: string, version: string, state: string, reason?: string}[]>} */
export const index = () => post("v2/repository/index", {});

/** @param {string} name @returns {Promise<Model>} */
export const describe = (name) => get(`v1/attention/${encodeURIComponent(name)}`);

/** The stored keys and values that the API key may use. @returns {Promise<{memories: {bytes: number}[], limit_bytes: number}>} */
export const memories = () => get("v1/memories");

/** @param {string} model @param {Record<string, unknown>} texts  text, text_pair, truncation, ...
 *  @returns {Promise<Tokens & Record<string, any>>} */
export const tokenize = (model, texts) => post(`v1/tokenize/${encodeURIComponent(model)}`, texts);

/**
 * Run a model.
 * @param {string} model
 * @param {Record<string, Tensor>} inputs
 * @param {string[]} outputs  names
 * @param {Record<string, unknown>} parameters  of the model, and options that select weights
 * @param {AbortSignal} [signal]
 * @param {Watch} [watch]
 * @returns {Promise<Record<string, Tensor>>}
 */
export async function infer(model, inputs, outputs, parameters, signal, watch) {
  const data = Object.values(inputs).map(toBytes);
  const header = new TextEncoder().encode(
    JSON.stringify({
      inputs: Object.entries(inputs).map(([name, { shape, dtype }], i) => ({
        name,
        shape,
        datatype: dtype,
        parameters: { binary_data_size: data[i].byteLength },
      })),
      outputs: outputs.map((name) => ({ name, parameters: { binary_data: true } })),
      parameters,
    }),
  );
  const body = new Blob([header, .../** @type {BlobPart[]} */ (data)]);
  const headers = {
    "Content-Type": "application/octet-stream",
    "Inference-Header-Content-Length": String(header.length),
  };
  const response = await call(`v2/models/${encodeURIComponent(model)}/infer`, {
    method: "POST",
    body,
    headers,
    signal,
  });
  return tensorsOf(response, watch);
}

/** The tensors of a binary answer, as they arrive. @param {Response} response @param {Watch} [watch] */
async function tensorsOf(response, watch) {
  const reader = /** @type {ReadableStream<Uint8Array<ArrayBuffer>>} */ (response.body).getReader();
  let chunk = new Uint8Array();
  /** @param {Uint8Array} target  is filled
   *  @param {(count: number) => void} [received]  is called with the number of bytes that have arrived */
  const fill = async (target, received) => {
    for (let offset = 0; offset < target.length;) {
      if (chunk.length === 0) chunk = await next(reader);
      const part = chunk.subarray(0, target.length - offset);
      target.set(part, offset);
      offset += part.length;
      chunk = chunk.subarray(part.length);
      received?.(offset);
    }
    return target;
  };
  const header = await fill(new Uint8Array(Number(response.headers.get("Inference-Header-Content-Length"))));
  /** @type {Record<string, Tensor>} */
  const tensors = {};
  for (const { name, shape, datatype, parameters } of JSON.parse(new TextDecoder().decode(header)).outputs) {
    const bytes = new Uint8Array(parameters.binary_data_size);
    const isLive = datatype in ARRAYS; // other types are converted when all bytes have arrived
    if (isLive) tensors[name] = { shape, dtype: datatype, data: toNumbers(datatype, bytes.buffer) };
    await fill(bytes, (count) => isLive && watch?.(tensors, name, count / bytes.length));
    tensors[name] ??= { shape, dtype: datatype, data: toNumbers(datatype, bytes.buffer) };
  }
  return tensors;
}

/** More of an answer. @template T @param {ReadableStreamDefaultReader<T>} reader @returns {Promise<T>} */
async function next(reader) {
  const { value } = await reader.read().catch((error) => {
    if (error.name === "AbortError") throw error;
    return { value: undefined };
  });
  if (!value) throw new ServerError(0, "the connection was lost before the response was complete", null);
  return value;
}

/** @param {string} dtype  as numpy names it @param {number[]} shape @param {number[]} values @returns {Tensor} */
export function tensor(dtype, shape, values) {
  if (dtype.startsWith("int64")) return { dtype: "INT64", shape, data: BigInt64Array.from(values, BigInt) };
  if (dtype.startsWith("int32")) return { dtype: "INT32", shape, data: Int32Array.from(values) };
  if (dtype === "bool") return { dtype: "BOOL", shape, data: Uint8Array.from(values) };
  const names = { float16: "FP16", bfloat16: "BF16" }; // in half precision only on the way to the server
  return { dtype: names[/** @type {"float16"} */ (dtype)] ?? "FP32", shape, data: Float32Array.from(values) };
}

/** Nested lists as a tensor; null is -infinity, as in masks. Lists of booleans are BOOL.
 *  @param {unknown} nested @param {string} dtype @returns {Tensor} */
export function fromNested(nested, dtype) {
  /** @type {number[]} */
  const shape = [];
  for (let level = nested; Array.isArray(level); level = level[0]) shape.push(level.length);
  /** @type {(number | boolean | null)[]} */
  const flat = [];
  const walk = (/** @type {unknown} */ level, /** @type {number} */ depth) => {
    if (Array.isArray(level) !== depth < shape.length || (Array.isArray(level) && level.length !== shape[depth]))
      throw new Error("rows of different lengths");
    if (Array.isArray(level)) for (const part of level) walk(part, depth + 1);
    else if (level === null || typeof level === "number" || typeof level === "boolean") flat.push(level);
    else throw new Error(`expected numbers, got ${JSON.stringify(level)?.slice(0, 40)}`);
  };
  walk(nested, 0);
  const isInteger = dtype.startsWith("int");
  if (isInteger && !flat.every((value) => Number.isSafeInteger(value))) throw new Error("expected whole numbers");
  const kind = !isInteger && flat.length > 0 && flat.every((value) => typeof value === "boolean") ? "bool" : dtype;
  return tensor(
    kind,
    shape,
    flat.map((value) => (value === null ? -Infinity : Number(value))),
  );
}
