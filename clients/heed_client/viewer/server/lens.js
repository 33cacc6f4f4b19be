// The lens: the tokens that the hidden states of each layer predict, from POST v1/lens/{model}.
import { post } from "heed/server/api.js";
import { hasPatch, predictsTokens } from "heed/data/patch.js";
import { tokenName } from "heed/data/tokens.js";
import { textsAndMasks } from "heed/server/sweep.js";

/** @typedef {import("heed/server/api.js").Model} Model */
/** @typedef {import("heed/data/state.js").Settings} Settings */
/** @typedef {import("heed/server/run.js").Input} Input */
/** @typedef {{id: number, word: string, probability: number}} Guess */
/**
 * @typedef {object} Lens  also in a saved page
 * @property {string} model @property {string} text
 * @property {number[]} layers  0 = the embeddings, the last = the output @property {number[]} positions
 * @property {string[]} words  of these positions
 * @property {(string | null)[]} next  the token that is predicted; null at the end
 * @property {boolean} isMasked  whether it is the token itself, as in masked models, and not the next one
 * @property {Guess[][][]} guesses  [layers][positions], the most likely first
 * @property {(number | null)[][]} ranks  [layers][positions] of the token that is predicted
 * @property {number[][]} [outputProbabilities]  [layers][positions] of the output's token; older files have none
 * @property {string | null} change  the change with which the model was run, in words @property {Guess[][][] | null} before  without it
 * @property {number} count  tokens of the text @property {number} vocabulary
 */

const LISTED = 5;
export const MOST = 64; // tokens that are shown at once

/** Whether the hidden states of a model predict tokens. @param {Model} model */
export const hasLens = (model) => hasPatch(model) && predictsTokens(model);

/** The tokens that are read. @param {Input} input */
export const wordsRead = ({ source, target }) => (target.length ? target : source);

/** @param {Model} model @param {Settings} settings @param {Input} input @param {number} from  the first token that is shown */
export function lensBody(model, settings, input, from) {
  const count = wordsRead(input).length;
  const positions = count > MOST ? { positions: `${from}:${Math.min(count, from + MOST)}` } : {};
  return { ...textsAndMasks(model, settings, input), lens_top_k: LISTED, ...positions };
}

/** @param {Model} model @param {Settings} settings @param {Input} input @param {ReturnType<typeof lensBody>} body
 *  @returns {Promise<Lens>} */
export async function lensOf(model, settings, input, body) {
  const { layers, positions, lens, ranks } = await post(`v1/lens/${encodeURIComponent(model.block)}`, body);
  const all = wordsRead(input);
  const isMasked = model.tokenizer?.next_tokens !== true;
  return {
    model: model.block,
    text: settings.text,
    layers,
    positions,
    words: positions.map((/** @type {number} */ place) => all[place]?.text ?? String(place)),
    next: positions.map((/** @type {number} */ place) => all[place + Number(!isMasked)]?.text ?? null),
    isMasked,
    change: null,
    before: null,
    guesses: lens.indices.map((/** @type {number[][]} */ row, /** @type {number} */ i) =>
      row.map((ids, j) =>
        ids.map((id, k) => ({
          id,
          word: tokenName(lens.tokens?.[i][j][k] ?? null, id),
          probability: lens.probabilities[i][j][k],
        })),
      ),
    ),
    ranks,
    outputProbabilities: lens.output_probabilities,
    count: all.length,
    vocabulary: Number(model.config.vocab_size),
  };
}

/** A layer in words: its hidden states are those after it. @param {Lens} lens @param {number} row */
export const layerName = ({ layers }, row) => (layers[row] === 0 ? "embeddings" : `layer ${layers[row] - 1}`);

/** Where hidden states are. @param {Lens} lens @param {number} row */
export const layerTitle = (lens, row) => `${lens.layers[row] === 0 ? "" : "after "}${layerName(lens, row)}`;
