// The texts of a model with a tokenizer as the input of a run: their tokens, and the picture that stands in a text.
import { post, tensor, tokenize } from "heed/server/api.js";
import { plainLabels } from "heed/data/attention.js";
import { patchName } from "heed/data/picture.js";
import { wordsOf } from "heed/data/tokens.js";
import { patchesIn } from "heed/server/picture.js";
import { toJson } from "heed/server/request.js";

/** @typedef {import("heed/server/api.js").Model} Model */
/** @typedef {import("heed/server/api.js").Tensor} Tensor */
/** @typedef {import("heed/data/state.js").Settings} Settings */
/** @typedef {import("heed/server/run.js").Input} Input */
/** @typedef {import("heed/server/run.js").Request} Request */

/** The placeholder of a picture in a text; null = the model reads no pictures. @param {Model} model */
export const placeholderOf = ({ tokenizer }) => tokenizer?.placeholders?.find(({ token }) => token !== null) ?? null;

/** The picture in the text of an input, as a request; null without one. @param {Model} model @param {Input} input
 *  @returns {Request | null} */
export function pictureOf(model, { tensors }) {
  const name = placeholderOf(model)?.input;
  return name && tensors[name] ? { fields: { [name]: tensors[name] }, words: [] } : null;
}

/** A text with the placeholder of its picture, which is put before the text if the text has none. @param {Model} model @param {string} text */
export function placed(model, text) {
  const token = placeholderOf(model)?.token;
  return !token || text.includes(token) ? text : `${token} ${text}`;
}

const UNKNOWN = /^(\[UNK\]|<unk>)$/i;

/** Words, with the original text for those that the tokenizer does not know.
 *  @param {string[]} words @param {import("heed/server/api.js").Tokens} tokens @param {string[]} texts  indexed by the sequence id of a token */
function withSources(words, { tokens, offsets, sequence_ids }, texts) {
  const characters = texts.map((text) => [...text]);
  return words.map((word, i) => {
    const part = sequence_ids[i];
    if (part === null || !offsets || !UNKNOWN.test(tokens[i])) return word;
    return `${word} ${characters[part]?.slice(...offsets[i]).join("") ?? ""}`.trim();
  });
}

/** Which tokens continue the word before them. @param {import("heed/server/api.js").Tokens} tokens @param {string[]} texts
 *  @returns {boolean[]} */
function joins({ offsets, sequence_ids }, texts) {
  const characters = texts.map((text) => [...text]);
  return sequence_ids.map((part, i) => {
    if (i === 0 || part === null || !offsets || sequence_ids[i - 1] !== part) return false;
    const [start] = offsets[i];
    return start === offsets[i - 1][1] && !/\s/.test(characters[part]?.[start] ?? "");
  });
}

const READS_ON = ["patch", "lens"]; // views of the next token, which the model itself would write after its own text

/** Whether the decoder's text is the one that the model generates, not the same text or another. @param {Model} model
 *  @param {Pick<Settings, "view" | "target">} settings */
export const isGenerated = (model, { view, target }) =>
  target === "" && READS_ON.includes(view) && Boolean(model.generate && model.tokenizer) && hasDecoderText(model);

/** Whether the model has a decoder with a text of its own. @param {Model} model */
export const hasDecoderText = (model) => model.inputs.some(({ name }) => name === "decoder_input_ids");

/** The tokens that the model generates from a text. @param {Model} model @param {string} text
 *  @returns {Promise<{id: number, text: string}[]>} */
export const generatedFrom = (model, text) =>
  post(`v1/generate/${encodeURIComponent(model.block)}`, { text, outputs: [] }).then(
    ({ generated }) => generated,
    () => [], // the same text is used
  );

/** The text of tokens. @param {{text: string}[]} tokens */
const joined = (tokens) =>
  tokens
    .map(({ text }) => text)
    .join("")
    .trim();

/** The tokens of texts, and the picture of `request`, which is put before a text without a placeholder.
 *  @param {Model} model @param {Settings} settings @param {Request | null} [request] @returns {Promise<Input>} */
export async function fromTexts(model, settings, request = null) {
  const { text: typed, pair, target } = settings;
  const placeholder = placeholderOf(model);
  const pixels = /** @type {Tensor | undefined} */ (placeholder && request?.fields[placeholder.input]);
  const text = pixels ? placed(model, typed) : typed;
  const generated = isGenerated(model, settings) ? await generatedFrom(model, text) : [];
  const decoderText = target || joined(generated) || text;
  const texts = { text, ...(pair && { text_pair: pair }), ...(hasDecoderText(model) && { text_target: decoderText }) };
  const tokens = await tokenize(model.block, texts);
  /** @type {Record<string, Tensor>} */
  const tensors = {};
  for (const { name, dtype } of model.inputs)
    if (Array.isArray(tokens[name])) tensors[name] = tensor(dtype, [1, tokens[name].length], tokens[name]);
  const words = withSources(wordsOf(tokens.tokens), tokens, [text, pair]);
  const continues = joins(tokens, [text, pair]);
  const source = tokens.tokens.map((_, i) => ({
    text: words[i],
    ...(continues[i] && { joined: true }),
    special: (tokens.sequence_ids[i] ?? null) === null,
    padding: tokens.attention_mask[i] === 0,
    part: tokens.sequence_ids[i] ?? 0,
  }));
  const specials = new Set(source.filter(({ special }) => special).map((label) => label.text));
  const decoded = plainLabels(wordsOf(tokens.target_tokens ?? []), specials);
  if (decoded[0]) decoded[0].special = true; // where the decoder starts
  const input = { tensors, source, target: decoded, decoderText, generated, truncated: tokens.truncated };
  if (!placeholder || !pixels) return input;
  tensors[placeholder.input] = pixels;
  const special = tokens.input_ids.indexOf(placeholder.id);
  const patches = patchesIn(placeholder.count, special, pixels);
  for (let i = 0; patches && i < placeholder.count; i++) source[special + i].text = patchName(i, patches.columns);
  return { ...input, patches, texts: { ...texts, [placeholder.input]: toJson(pixels) } };
}
