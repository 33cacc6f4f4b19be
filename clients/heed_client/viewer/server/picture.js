// Pictures for a vision model: pixel_values from a file or a built-in picture, and a picture from pixel_values.
import { isCoarse, patchName } from "heed/data/picture.js";
import { tensor } from "heed/server/api.js";
import { MAX_BYTES } from "heed/server/files.js";

/** @typedef {import("heed/server/api.js").Model} Model */
/** @typedef {import("heed/server/api.js").Preprocessor} Preprocessor */
/** @typedef {import("heed/server/api.js").Tensor} Tensor */
/** @typedef {import("heed/data/attention.js").Label} Label */
/** @typedef {import("heed/views/picture_view.js").Patches} Patches */

export const FORMATS = "image/png,image/jpeg,image/webp,image/gif,image/bmp,image/avif";
const READABLE = "PNG, JPEG, WebP, GIF, BMP and AVIF";
const MAX_PIXELS = 64e6; // of a file: 256 MB when it is unpacked
const BACKGROUND = "#fff"; // of transparent pixels

/** The preprocessor of a model that needs nothing but a picture of one or three channels; else null.
 *  @param {Model} model @returns {Preprocessor | null} */
export function preprocessorOf(model) {
  const { inputs, preprocessor, tokenizer } = model;
  if (!preprocessor || tokenizer || ![1, 3].includes(preprocessor.channels)) return null;
  const others = decoderStart(model);
  const names = inputs.filter(({ name, required }) => required && !(name in others)).map(({ name }) => name);
  return names.length === 1 && names[0] === "pixel_values" ? preprocessor : null;
}

/** The first token of a decoder, for a request that does not give one.
 *  @param {Model} model @returns {Record<string, number[][]>} */
export function decoderStart({ inputs, config }) {
  const id = config.decoder_start_token_id ?? config.decoder?.decoder_start_token_id;
  const hasDecoder = inputs.some(({ name }) => name === "decoder_input_ids");
  return hasDecoder && typeof id === "number" ? { decoder_input_ids: [[id]] } : {};
}

/** Which positions of a model are which patches; null = unknown, or not those of its queries.
 *  @param {Model} model @returns {Patches | null} */
export function patchesOf(model) {
  if (model.inputs.some(({ name }) => name === "decoder_input_ids")) return null;
  const { height, width, patch_size: size, special_tokens: special } = preprocessorOf(model) ?? {};
  if (!height || !width || !size || typeof special !== "number") return null;
  return { special, rows: Math.floor(height / size), columns: Math.floor(width / size), size };
}

const MOST_SPECIAL = 2; // tokens before the patches of an encoder

/** Which positions of an encoder, that a decoder looks at, are which patches; null = unknown.
 *  @param {Model} model @returns {Patches | null} */
export function patchesOfEncoder(model) {
  const { height, width } = preprocessorOf(model) ?? {};
  const count = model.outputs.find(({ name }) => name === "cross_weights")?.shape.at(-1);
  if (!height || !width || typeof count !== "number") return null;
  for (let size = 1; size <= Math.min(height, width); size++) {
    const special = count - (height / size) * (width / size);
    if (height % size || width % size || special < 0) continue;
    return special > MOST_SPECIAL ? null : { special, rows: height / size, columns: width / size, size };
  }
  return null;
}

/** The patches of a square picture that stands in a text; null if its tokens are no square.
 *  @param {number} count  of its tokens @param {number} special  tokens before them @param {Tensor} pixels @returns {Patches | null} */
export function patchesIn(count, special, { shape }) {
  const side = Math.round(Math.sqrt(count));
  return side * side === count ? { special, rows: side, columns: side, size: shape[3] / side } : null;
}

/** Labels of the positions: special tokens, then the patches; empty if they are unknown. @param {Model} model @returns {Label[]} */
export function patchLabels(model) {
  const patches = patchesOf(model) ?? patchesOfEncoder(model);
  if (!patches) return [];
  const { special, rows, columns } = patches;
  const registers = Math.min(special, Number(model.config.num_register_tokens) || 0);
  const label = (/** @type {string} */ text, isSpecial = false) => ({
    text,
    special: isSpecial,
    padding: false,
    part: 0,
  });
  const names = Array.from({ length: special }, (_, i) =>
    i < special - registers ? (["[CLS]", "[DIST]"][i] ?? `[${i}]`) : `[REG${i - special + registers}]`,
  );
  return [
    ...names.map((name) => label(name, true)),
    ...Array.from({ length: rows * columns }, (_, i) => label(patchName(i, columns))),
  ];
}

/** @typedef {{width: number, height: number}} Size  in px */

const SHARPEST = 1536; // px of the longer side of a picture that is drawn, at most
/** Pictures with more pixels than the pixel_values that were made of them. @type {WeakMap<Tensor["data"], HTMLCanvasElement>} */
const sharper = new WeakMap();

/** Whether a picture of this size is drawn in place of the model's. @param {Size} size @param {Preprocessor} preprocessor */
const isSharper = ({ width, height }, preprocessor) =>
  !isCoarse(preprocessor) && (width > preprocessor.width || height > preprocessor.height);

/** A size with a longer side of so many px. @param {Size} size @param {number} longer @returns {Size} */
function scaled({ width, height }, longer) {
  const scale = longer / Math.max(width, height);
  return { width: Math.max(1, Math.round(scale * width)), height: Math.max(1, Math.round(scale * height)) };
}

/** A white canvas. @param {Size} size @returns {CanvasRenderingContext2D} */
function paper({ width, height }) {
  const options = /** @type {CanvasRenderingContext2DSettings} */ ({ willReadFrequently: true, colorSpace: "srgb" });
  const canvas = Object.assign(document.createElement("canvas"), { width, height });
  const context = canvas.getContext("2d", options);
  if (!context) throw new Error("this browser cannot draw pictures");
  context.fillStyle = BACKGROUND;
  context.fillRect(0, 0, width, height);
  return context;
}

/**
 * The part of a picture that becomes the model's: its middle, or all of it.
 * @param {number} width @param {number} height  of the picture @param {Preprocessor} preprocessor
 * @returns {[left: number, top: number, width: number, height: number]} in its pixels
 */
function partOf(width, height, preprocessor) {
  const { resize } = preprocessor;
  if (!resize) return [0, 0, width, height];
  const scale = resize[0] / Math.min(width, height);
  const [whole, wide] = resize.length === 1 ? [height * scale, width * scale] : resize;
  const part = (/** @type {number} */ length, /** @type {number} */ wanted, /** @type {number} */ resized) =>
    Math.max(1, Math.round(length * Math.min(1, wanted / resized)));
  const [w, h] = [part(width, preprocessor.width, wide), part(height, preprocessor.height, whole)];
  return [Math.floor((width - w) / 2), Math.floor((height - h) / 2), w, h];
}

/**
 * The pixel_values of a picture in a file, from which the model's part is cut and resized; the first of several pictures.
 * @param {File} file @param {Preprocessor} preprocessor @returns {Promise<{pixels: Tensor, width: number, height: number}>}
 *   with the file's size
 */
export async function readPicture(file, preprocessor) {
  if (file.type === "image/svg+xml" || /\.svgz?$/i.test(file.name))
    throw new Error(`${file.name}: an SVG has no pixels; save it as PNG`);
  if (file.size > MAX_BYTES) throw new Error(`${file.name}: has more than ${MAX_BYTES / 2 ** 20} MiB`);
  const url = URL.createObjectURL(file);
  try {
    const image = new Image();
    const loaded = new Promise((resolve, reject) => ([image.onload, image.onerror] = [resolve, reject]));
    image.src = url;
    await loaded.catch(() => {
      throw new Error(`${file.name}: is not a readable picture; supported: ${READABLE}`);
    });
    const { naturalWidth, naturalHeight } = image; // known before it is unpacked
    if (naturalWidth * naturalHeight > MAX_PIXELS)
      throw new Error(
        `${file.name}: has ${naturalWidth} × ${naturalHeight} pixels; the limit is ${MAX_PIXELS / 1e6} million`,
      );
    const part = partOf(naturalWidth, naturalHeight, preprocessor);
    /** @param {Size} size  to which the part is resized */
    const cut = async ({ width, height }) => {
      const options = /** @type {const} */ ({ resizeWidth: width, resizeHeight: height, resizeQuality: "high" });
      const bitmap = await createImageBitmap(image, ...part, options).catch(() => {
        throw new Error(`${file.name}: cannot be decoded; is the file complete?`);
      });
      const context = paper({ width, height });
      context.drawImage(bitmap, 0, 0);
      bitmap.close();
      return context;
    };
    const pixels = toPixels(await cut(preprocessor), preprocessor);
    const [, , width, height] = part;
    const own = scaled({ width, height }, Math.min(SHARPEST, Math.max(width, height)));
    if (isSharper(own, preprocessor)) keep(pixels, await cut(own), preprocessor);
    return { pixels, width: naturalWidth, height: naturalHeight };
  } finally {
    URL.revokeObjectURL(url);
  }
}

/** The request of the picture in the one of `files`. @param {File[]} files @param {Preprocessor} preprocessor
 *  @returns {Promise<import("heed/server/run.js").Request>} */
export async function requestOf(files, preprocessor) {
  if (files.length > 1) throw new Error("one picture at a time");
  const { pixels, width, height } = await readPicture(files[0], preprocessor);
  return { fields: { pixel_values: pixels }, words: [], picture: `${files[0].name}, ${width} × ${height} pixels` };
}

export const TEST = "test picture"; // its name

/** The built-in pictures that were drawn. @type {WeakMap<Preprocessor, Tensor>} */
const drawn = new WeakMap();

/** The pixel_values of a built-in picture, drawn once for each model. @param {Preprocessor} preprocessor @returns {Tensor} */
export function testPicture(preprocessor) {
  const known = drawn.get(preprocessor);
  if (known) return known;
  const pixels = toPixels(house(preprocessor), preprocessor);
  const own = scaled(preprocessor, SHARPEST);
  if (isSharper(own, preprocessor)) keep(pixels, house(own), preprocessor);
  drawn.set(preprocessor, pixels);
  return pixels;
}

/** A house, a tree and the sun. @param {Size} size */
function house({ width, height }) {
  const context = paper({ width, height });
  context.scale(width / 100, height / 100);
  const shape = (/** @type {string} */ colour, /** @type {() => void} */ trace) => {
    context.fillStyle = colour;
    context.beginPath();
    trace();
    context.fill();
  };
  const triangle = (/** @type {number[]} */ ...[left, right, bottom, top]) => {
    context.moveTo(left, bottom);
    context.lineTo(right, bottom);
    context.lineTo((left + right) / 2, top);
  };
  shape("#9fd3f5", () => context.rect(0, 0, 100, 100));
  shape("#6aa84f", () => context.rect(0, 72, 100, 28));
  shape("#ffd23f", () =>
    context.ellipse(80, 19, 11 * Math.min(1, height / width), 11 * Math.min(1, width / height), 0, 0, 2 * Math.PI),
  );
  shape("#f4e3c1", () => context.rect(14, 46, 36, 36));
  shape("#c0392b", () => triangle(9, 55, 47, 24));
  shape("#3b5b8c", () => context.rect(35, 53, 9, 9));
  shape("#6b4226", () => context.rect(21, 62, 9, 20));
  shape("#6b4226", () => context.rect(74, 66, 5, 20));
  shape("#2e6b34", () => triangle(62, 91, 70, 36));
  return context;
}

/** Of a pixel, by ITU-R BT.601, as Pillow computes it. @param {ImageData["data"]} data @param {number} i */
const luminance = (data, i) => (19595 * data[4 * i] + 38470 * data[4 * i + 1] + 7471 * data[4 * i + 2] + 32768) >> 16;

/** Keeps a picture to be drawn for pixel_values, in the colours that the model sees.
 *  @param {Tensor} pixels @param {CanvasRenderingContext2D} context @param {Preprocessor} preprocessor */
function keep({ data: values }, context, { channels }) {
  const { canvas } = context;
  sharper.set(values, canvas);
  if (channels > 1) return;
  const image = context.getImageData(0, 0, canvas.width, canvas.height);
  for (let i = 0; i < canvas.width * canvas.height; i++) image.data.fill(luminance(image.data, i), 4 * i, 4 * i + 3);
  context.putImageData(image, 0, 0);
}

/** The number of a channel, or the single number for all. @param {number[] | null} list @param {number} channel @param {number} otherwise */
const of = (list, channel, otherwise) => list?.[list.length === 1 ? 0 : channel] ?? otherwise;

/**
 * pixel_values [1, channels, height, width]: (value * rescale_factor - mean) / std of values from 0 to 255.
 * @param {CanvasRenderingContext2D} context @param {Preprocessor} preprocessor @returns {Tensor}
 */
function toPixels(context, { width, height, channels, image_mean, image_std, rescale_factor }) {
  const { data } = context.getImageData(0, 0, width, height);
  const area = width * height;
  const values = new Float32Array(channels * area);
  for (let channel = 0; channel < channels; channel++) {
    const [mean, std] = [of(image_mean, channel, 0), of(image_std, channel, 1)];
    for (let i = 0; i < area; i++) {
      const value = channels === 1 ? luminance(data, i) : data[4 * i + channel];
      values[channel * area + i] = (value * (rescale_factor ?? 1) - mean) / std;
    }
  }
  return { ...tensor("float32", [], []), shape: [1, channels, height, width], data: values };
}

/**
 * The picture that a model was run on, and its patches; null if there are none.
 * @param {Model} model @param {import("heed/server/run.js").Input} input @param {number} batch  which one
 * @returns {import("heed/views/picture_view.js").Seen | null}
 */
export function seenBy(model, { tensors: { pixel_values: pixels }, patches }, batch) {
  patches ??= patchesOf(model) ?? patchesOfEncoder(model);
  if (!patches || !pixels || !model.preprocessor) return null;
  const image = fromPixels(pixels, batch, model.preprocessor);
  const context = paper(image);
  context.putImageData(image, 0, 0);
  return { patches, image: context.canvas, sharp: sharper.get(pixels.data) ?? null };
}

/**
 * The picture that a model sees: one of `pixel_values` [batch, channels, height, width] with values from 0 to 255 again.
 * @param {Tensor} pixels @param {number} batch @param {Preprocessor} preprocessor @returns {ImageData}
 */
function fromPixels({ shape, data }, batch, { image_mean, image_std, rescale_factor }) {
  const [rows, channels, height, width] = shape;
  const area = width * height;
  const start = Math.min(batch, rows - 1) * channels * area;
  const image = new ImageData(width, height);
  for (let colour = 0; colour < 3; colour++) {
    const channel = Math.min(colour, channels - 1);
    const [mean, std] = [of(image_mean, channel, 0), of(image_std, channel, 1)];
    for (let i = 0; i < area; i++)
      image.data[4 * i + colour] = (Number(data[start + channel * area + i]) * std + mean) / (rescale_factor || 1);
  }
  for (let i = 0; i < area; i++) image.data[4 * i + 3] = 255;
  return image;
}
