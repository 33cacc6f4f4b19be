// Attention in a page of its own: compressed weights as text.
import { complete } from "heed/data/attention.js";

/** @typedef {import("heed/data/attention.js").Attention} Attention */
/** @typedef {import("heed/data/attention.js").Label} Label */
/** @typedef {import("heed/data/state.js").Settings} Settings */
/**
 * @typedef {object} Weights
 * @property {string} axis  name of the first axis
 * @property {number[]} shape  [layers, heads, m, n]
 * @property {"float32" | "uint8"} dtype
 * @property {number} unit  what 1 of uint8 stands for
 * @property {Label[]} rows @property {Label[] | null} columns  null = queries and keys are the same tokens
 * @property {string} weights  little-endian numbers, compressed by zlib, in base64
 */
/**
 * @typedef {object} Page
 * @property {string} title
 * @property {string} kind  the output: weights, scores, ...
 * @property {Partial<Settings>} settings
 * @property {Weights & {settings: Partial<Settings>}} [second]  the second side of a comparison with another answer
 * @property {Record<string, string>} [about]  origin of the weights
 * @property {{patches: import("heed/views/picture_view.js").Patches, url: string, sharp?: string | null} | null} [picture]  in data: URLs
 * @property {import("heed/page/generation.js").Text | null} [generated]  whose tokens are the queries
 * @property {import("heed/page/sweep.js").SweepState} [sweep] @property {import("heed/server/lens.js").Lens} [lens]
 */
/** @typedef {Page & Weights} Saved */

const [LARGE, QUALITY] = [2 ** 20, 0.92]; // characters of an exact picture, at most; of a JPEG in its place

/** @param {Attention} attention @returns {Promise<Weights>} */
export async function fromAttention(attention) {
  const { numbers, unit } = await attention.all();
  const { layers, heads, m, n, axis, rows, columns } = attention;
  return {
    axis,
    shape: [layers, heads, m, n],
    dtype: numbers instanceof Uint8Array ? "uint8" : "float32",
    unit,
    rows,
    columns: attention.isSelf ? null : columns,
    weights: await toBase64(numbers),
  };
}

/** @param {Weights} saved @returns {Promise<Attention>} */
export async function fromBase64({ shape: [layers, heads, m, n], axis, dtype, unit, rows, columns, weights }) {
  const packed = Uint8Array.fromBase64?.(weights) ?? Uint8Array.from(atob(weights), (text) => text.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  const buffer = await new Response(stream).arrayBuffer();
  const numbers = dtype === "uint8" ? new Uint8Array(buffer) : new Float32Array(buffer);
  if (numbers.length !== layers * heads * m * n)
    throw new Error("the page is incomplete: it has fewer weights than its shape requires");
  return complete(numbers, unit, layers, heads, rows, columns ?? rows, axis);
}

/** @param {NonNullable<Saved["picture"]>} picture @returns {Promise<import("heed/views/picture_view.js").Seen>} */
export async function toPicture({ patches, url, sharp }) {
  return { patches, image: await decoded(url), sharp: sharp ? await decoded(sharp) : null };
}

/** @param {string} url */
async function decoded(url) {
  const image = new Image();
  image.src = url;
  await image.decode();
  return image;
}

/** @param {import("heed/views/picture_view.js").Seen} seen @returns {NonNullable<Saved["picture"]>} */
export const fromPicture = ({ patches, image, sharp }) => ({
  patches,
  url: urlOf(image),
  sharp: sharp && urlOf(sharp),
});

/** A picture as a data: URL, with small losses if it is large. @param {import("heed/views/picture_view.js").Image} image */
export function urlOf(image) {
  if (!(image instanceof HTMLCanvasElement)) return image.src;
  const exact = image.toDataURL("image/png");
  return exact.length < LARGE ? exact : image.toDataURL("image/jpeg", QUALITY);
}

/** @param {Float32Array | Uint8Array} numbers @returns {Promise<string>} */
async function toBase64(numbers) {
  const stream = new Blob([/** @type {BlobPart} */ (numbers)]).stream().pipeThrough(new CompressionStream("deflate"));
  const bytes = new Uint8Array(await new Response(stream).arrayBuffer());
  const pieces = [];
  for (let start = 0; start < bytes.length; start += 0x6000)
    // a multiple of 3: no padding inside
    pieces.push(btoa(String.fromCharCode(...bytes.subarray(start, start + 0x6000))));
  return pieces.join("");
}
