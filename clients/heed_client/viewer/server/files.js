// Arrays in files: .npy and .npz of numpy, .safetensors, .json. An error of a file is one sentence.

/** @typedef {import("heed/server/api.js").Tensor} Tensor */
/** @typedef {{dtype: string, read: (buffer: ArrayBuffer) => import("heed/server/api.js").Numbers, bytes: number}} Type */

export const MAX_BYTES = 256 * 2 ** 20; // of a file, and of its unpacked content
export const SUFFIXES = ".npy,.npz,.safetensors,.json";

/** @type {Record<"f2" | "f4" | "f8" | "i4" | "i8" | "b1", Type>} */
const TYPES = {
  f2: { dtype: "FP32", bytes: 2, read: (buffer) => Float32Array.from(new Float16Array(buffer)) },
  f4: { dtype: "FP32", bytes: 4, read: (buffer) => new Float32Array(buffer) },
  f8: { dtype: "FP64", bytes: 8, read: (buffer) => new Float64Array(buffer) },
  i4: { dtype: "INT32", bytes: 4, read: (buffer) => new Int32Array(buffer) },
  i8: { dtype: "INT64", bytes: 8, read: (buffer) => new BigInt64Array(buffer) },
  b1: { dtype: "BOOL", bytes: 1, read: (buffer) => new Uint8Array(buffer).map(Number) },
};
/** @type {Record<string, Type>} */
const SAFETENSORS = { F16: TYPES.f2, F32: TYPES.f4, F64: TYPES.f8, I32: TYPES.i4, I64: TYPES.i8, BOOL: TYPES.b1 };
const READABLE = "float16, float32, float64, int32, int64 and bool";

/** @param {number} bytes */
export const size = (bytes) => (bytes < 2 ** 20 ? `${bytes} bytes` : `${(bytes / 2 ** 20).toFixed(0)} MiB`);

/**
 * The arrays of a file by name; that of a .npy file, or of a list in a .json file, has the file's name without its ending.
 * @param {File} file @returns {Promise<Record<string, unknown>>} of Tensor, or what JSON has
 */
export async function readFile(file) {
  const [, stem, suffix] = file.name.match(/^(.*)\.(npy|npz|safetensors|json)$/i) ?? [];
  if (!suffix) throw new Error(`${file.name}: expected a file that ends with ${SUFFIXES.replaceAll(",", ", ")}`);
  if (file.size > MAX_BYTES) throw new Error(`${file.name}: has ${size(file.size)}; the limit is ${size(MAX_BYTES)}`);
  try {
    if (suffix.toLowerCase() === "json") {
      const value = parseJson(await file.text());
      return Array.isArray(value) ? { [stem]: value } : /** @type {Record<string, unknown>} */ (value);
    }
    const buffer = await file.arrayBuffer();
    if (suffix.toLowerCase() === "npy") return { [stem]: fromNpy(buffer) };
    return suffix.toLowerCase() === "npz" ? await fromNpz(buffer) : fromSafetensors(buffer);
  } catch (error) {
    throw new Error(`${file.name}: ${/** @type {Error} */ (error).message}`);
  }
}

/** An object or a list. @param {string} text @returns {object} */
export function parseJson(text) {
  let value;
  try {
    value = JSON.parse(text);
  } catch (error) {
    throw new Error(`is not JSON: ${/** @type {Error} */ (error).message}`);
  }
  if (value === null || typeof value !== "object") throw new Error("expected a list or an object of tensors");
  return value;
}

/** @param {Type} type @param {number[]} shape @param {ArrayBuffer} buffer @param {number} start @param {number} end @returns {Tensor} */
function toTensor(type, shape, buffer, start, end) {
  const expected = type.bytes * shape.reduce((count, length) => count * length, 1);
  if (end - start !== expected) throw new Error(`shape [${shape}] needs ${expected} bytes of data, got ${end - start}`);
  return { shape, dtype: type.dtype, data: type.read(buffer.slice(start, end)) };
}

/** numpy's format: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
 *  @param {ArrayBuffer} buffer @returns {Tensor} */
export function fromNpy(buffer) {
  const bytes = new Uint8Array(buffer);
  if (bytes.length < 12 || String.fromCharCode(...bytes.subarray(0, 6)) !== "\x93NUMPY")
    throw new Error("is not a .npy file");
  const view = new DataView(buffer);
  const isLong = bytes[6] > 1;
  const start = (isLong ? 12 : 10) + (isLong ? view.getUint32(8, true) : view.getUint16(8, true));
  if (start > bytes.length) throw new Error("ends within its header");
  const header = new TextDecoder().decode(bytes.subarray(isLong ? 12 : 10, start));
  const descr = header.match(/'descr': *'([^']*)'/)?.[1];
  const shape = header.match(/'shape': *\(([\d, ]*)\)/)?.[1];
  const order = header.match(/'fortran_order': *(True|False)/)?.[1];
  if (descr === undefined) throw new Error("is a structured array, or has a header that cannot be read");
  if (shape === undefined || order === undefined) throw new Error("has a header that cannot be read");
  if (order === "True") throw new Error("has Fortran order; save it with numpy.ascontiguousarray");
  if (descr.startsWith(">")) throw new Error(`is big-endian (${descr}); save it with .astype("<${descr.slice(1)}")`);
  const type = TYPES[/** @type {keyof typeof TYPES} */ (descr.slice(1))];
  const isHalf = descr.endsWith("V2") || descr === "bfloat16";
  if (!type) throw new Error(`has dtype ${descr}${isHalf ? " (bfloat16?)" : ""}; supported: ${READABLE}`);
  return toTensor(
    type,
    shape
      .split(",")
      .filter((part) => part.trim())
      .map(Number),
    buffer,
    start,
    bytes.length,
  );
}

/** numpy's archive of .npy files, stored or deflated (ZIP: https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT).
 *  @param {ArrayBuffer} buffer @returns {Promise<Record<string, Tensor>>} */
export async function fromNpz(buffer) {
  const view = new DataView(buffer);
  let end = buffer.byteLength - 22;
  while (end >= 0 && end > buffer.byteLength - 65558 && view.getUint32(end, true) !== 0x06054b50) end--;
  if (end < 0 || view.getUint32(end, true) !== 0x06054b50) throw new Error("is not a .npz file, or is truncated");
  /** @type {Record<string, Tensor>} */
  const tensors = {};
  let [place, total] = [view.getUint32(end + 16, true), 0];
  for (let left = view.getUint16(end + 10, true); left > 0; left--) {
    if (place + 46 > end || view.getUint32(place, true) !== 0x02014b50)
      throw new Error("has a table of contents that cannot be read");
    const [packed, unpacked] = [view.getUint32(place + 20, true), view.getUint32(place + 24, true)];
    const nameLength = view.getUint16(place + 28, true);
    const name = new TextDecoder().decode(new Uint8Array(buffer, place + 46, Math.min(nameLength, end - place - 46)));
    const local = view.getUint32(place + 42, true);
    total += unpacked;
    if (total > MAX_BYTES) throw new Error(`has more than ${size(MAX_BYTES)} after decompression`);
    if (local + 30 > end) throw new Error(`${name} is not where the table of contents says`);
    const start = local + 30 + view.getUint16(local + 26, true) + view.getUint16(local + 28, true);
    if (start + packed > end) throw new Error(`${name} declares ${packed} bytes, which is past the end of the file`);
    try {
      const content = await unpack(buffer.slice(start, start + packed), view.getUint16(place + 10, true), unpacked);
      tensors[name.replace(/\.npy$/, "")] = fromNpy(content);
    } catch (error) {
      throw new Error(`${name}: ${/** @type {Error} */ (error).message}`);
    }
    place += 46 + nameLength + view.getUint16(place + 30, true) + view.getUint16(place + 32, true);
  }
  return tensors;
}

/** @param {ArrayBuffer} packed @param {number} method  0 = stored, 8 = deflated @param {number} length  unpacked */
async function unpack(packed, method, length) {
  if (method !== 0 && method !== 8) throw new Error("has an unsupported compression method");
  const stream = new Blob([packed]).stream();
  const reader = (method ? stream.pipeThrough(new DecompressionStream("deflate-raw")) : stream).getReader();
  const content = new Uint8Array(length);
  let filled = 0;
  for (;;) {
    const { done, value } = await reader.read().catch(() => {
      throw new Error("cannot be decompressed");
    });
    if (done) break;
    if (filled + value.length > length) {
      await reader.cancel();
      throw new Error(`declares ${length} bytes, but has more`);
    }
    content.set(value, filled);
    filled += value.length;
  }
  if (filled < length) throw new Error(`declares ${length} bytes, but has ${filled}`);
  return content.buffer;
}

/** https://huggingface.co/docs/safetensors @param {ArrayBuffer} buffer @returns {Record<string, Tensor>} */
export function fromSafetensors(buffer) {
  if (buffer.byteLength < 8) throw new Error("is not a .safetensors file");
  const length = Number(new DataView(buffer).getBigUint64(0, true));
  if (length > buffer.byteLength - 8)
    throw new Error(`declares a header of ${length} bytes, which is past the end of the file`);
  const header = /** @type {Record<string, any>} */ (
    parseJson(new TextDecoder().decode(new Uint8Array(buffer, 8, length)))
  );
  /** @type {Record<string, Tensor>} */
  const tensors = {};
  for (const [name, entry] of Object.entries(header)) {
    if (name === "__metadata__") continue;
    const { dtype, shape, data_offsets: offsets } = entry ?? {};
    const isWhole = (/** @type {unknown} */ list) =>
      Array.isArray(list) && list.every((number) => Number.isSafeInteger(number) && number >= 0);
    if (!isWhole(shape) || !isWhole(offsets) || offsets.length !== 2)
      throw new Error(`${name} has no shape and data_offsets in the header`);
    if (!Object.hasOwn(SAFETENSORS, dtype))
      throw new Error(`${name} has dtype ${dtype === "BF16" ? "bfloat16" : dtype}; supported: ${READABLE}`);
    const [start, end] = offsets.map((/** @type {number} */ offset) => 8 + length + offset);
    if (start > end || end > buffer.byteLength)
      throw new Error(`${name} ends at byte ${end}, past the end of the file`);
    try {
      tensors[name] = toTensor(SAFETENSORS[dtype], shape, buffer, start, end);
    } catch (error) {
      throw new Error(`${name}: ${/** @type {Error} */ (error).message}`);
    }
  }
  return tensors;
}
