// The changes when heads are switched off: of weights, of the output, of the next tokens.
import { poolLabels } from "heed/data/display.js";
import { difference, maskedChange, maskOf } from "heed/data/matrix.js";
import { namedPlaces } from "heed/data/ranking.js";
import { infer } from "heed/server/api.js";
import { headMask, rowOfBatch, run, sizesOf, evaluate } from "heed/server/run.js";
import { likelyTokens, textsAndMasks } from "heed/server/sweep.js";

/** @typedef {import("heed/data/attention.js").Attention} Attention */
/** @typedef {import("heed/server/api.js").Model} Model */
/** @typedef {import("heed/server/run.js").Input} Input */
/** @typedef {import("heed/data/state.js").Settings} Settings */
/** @typedef {{rows: Float32Array[]}} Output  one vector for each token */
/** @typedef {{id: number, token: string | null, probability: number}} NextToken */

const MAX_OUTPUT = 2e7; // numbers
const AT_ONCE = 4; // requests

/** The same run with all heads. @param {Model} model @param {Settings} settings @param {Input} input */
export async function runWhole(model, settings, input) {
  const whole = { ...settings, ablated: [] };
  const [attention, output, tokens] = await Promise.all([
    run(model, whole, input),
    outputOf(model, whole, input),
    nextTokens(model, whole, input),
  ]);
  return { attention, output, tokens };
}

/** The vectors of the model's answer; null if it is too large to be fetched for this.
 *  @param {Model} model @param {Settings} settings @param {Input} input @param {AbortSignal} [signal]
 *  @returns {Promise<Output | null>} */
export async function outputOf(model, settings, input, signal) {
  const answer = model.answer ?? "output";
  const shape = model.outputs.find(({ name }) => name === answer)?.shape;
  const sizes = sizesOf(model, input.tensors);
  if (!shape || !(shape.reduce((/** @type {number} */ all, dim) => all * evaluate(dim, sizes), 1) <= MAX_OUTPUT))
    return null;
  const tensors = { ...input.tensors, ...headMask(model, settings, input) };
  const { [answer]: output } = await infer(model.block, tensors, [answer], settings.parameters, signal);
  const values = /** @type {Float32Array} */ (rowOfBatch(output, settings.batch, 0));
  const width = output.shape[output.shape.length - 1];
  return { rows: Array.from({ length: values.length / width }, (_, i) => values.subarray(i * width, (i + 1) * width)) };
}

export const LEAST = 1e-5; // change of a weight that is more than rounding of float32

/** @typedef {{layer: number, head: number, matrix: import("heed/data/matrix.js").Matrix, largest: number, place: number}} Change  of a head,
 *    and the place of its largest number */

/** The change of the weights of each head that is on, the largest change first, without those of tokens that are left out.
 *  @param {Attention} attention @param {Attention} before @param {import("heed/data/state.js").Place[]} ablated
 *  @returns {Change[]} */
export function changesOf(attention, before, ablated) {
  const off = new Set(ablated.map(String));
  const { m, n } = attention.small(0, 0);
  const columns = namedPlaces(poolLabels(attention.columns, n));
  const pairs = namedPlaces(poolLabels(attention.rows, m)).flatMap((row) => columns.map((column) => row * n + column));
  const all = Array.from({ length: attention.layers * attention.heads }, (_, at) => {
    const [layer, head] = [Math.floor(at / attention.heads), at % attention.heads];
    const [one, other] = [before, attention].map((side) => side.small(layer, head));
    const [isMasked, isMaskedNow] = [one, other].map(maskOf);
    const matrix = maskedChange(
      difference(other, one),
      (row, column) => isMasked(row, column) && isMaskedNow(row, column),
    );
    const size = (/** @type {number} */ at) => (matrix.values[at] === -Infinity ? 0 : Math.abs(matrix.values[at]));
    const place = pairs.reduce((best, at) => (size(at) > size(best) ? at : best));
    return { layer, head, matrix, place, largest: size(place) > matrix.error ? size(place) : 0 }; // 8-bit weights may differ by rounding
  });
  return all
    .filter(({ layer, head }) => !off.has(String([layer, head])))
    .sort((one, other) => other.largest - one.largest);
}

/** The head to show: the selected one if it changes or was chosen for this, else the one that changes most.
 *  @param {Change[]} changes @param {Settings} settings @param {boolean} isChosen @returns {Change | undefined} */
export function changeShown(changes, { layer, head }, isChosen) {
  const selected = changes.find((one) => one.layer === layer && one.head === head);
  return selected && (isChosen || selected.largest > LEAST) ? selected : changes[0];
}

/**
 * The effect of each head: the change of the output when only this head is switched off, as the length of the change
 * divided by the output's own length, over all tokens.
 * @param {Model} model @param {Settings} settings @param {Input} input @param {number} layers @param {number} heads
 * @param {Output} before  with all heads on @param {AbortSignal} signal
 * @param {(effects: (number | null)[][], count: number) => void} tell  is called with the effects of the measured heads, null for others
 * @returns {Promise<number[][]>} [layers][heads]
 */
export async function effectsOf(model, settings, input, layers, heads, before, signal, tell) {
  const effects = Array.from({ length: layers }, () => new Array(heads).fill(null));
  let [next, count] = [0, 0];
  const work = async () => {
    for (let at = next++; at < layers * heads; at = next++) {
      const [layer, head] = [Math.floor(at / heads), at % heads];
      const after = await outputOf(model, { ...settings, ablated: [[layer, head]] }, input, signal);
      effects[layer][head] = after ? moved(before, after) : 0;
      tell(structuredClone(effects), ++count);
    }
  };
  await Promise.all(Array.from({ length: AT_ONCE }, work));
  return effects;
}

/** The settings of the run, without the heads that are off.
 *  @param {Settings} settings */
export const withoutHeads = ({ text, pair, target, random, sentence, kind, batch, parameters }) => [
  text,
  pair,
  target,
  random,
  sentence,
  kind,
  batch,
  parameters,
];

/** @typedef {Pick<import("heed/views/hooks.js").Run, "model" | "settings" | "request">} Measured */
/** The effects that were measured last. @type {WeakMap<Model, {request: unknown, of: string, effects: number[][]}>} */
const kept = new WeakMap();

/** @param {Measured} run @param {number[][]} effects */
export const keepEffects = ({ model, settings, request }, effects) =>
  kept.set(model, { request, of: JSON.stringify(withoutHeads(settings)), effects });

/** The effects of each head, if they were measured for this run. @param {Measured} run @returns {number[][] | null} */
export function measuredEffects({ model, settings, request }) {
  const known = kept.get(model);
  return known?.request === request && known.of === JSON.stringify(withoutHeads(settings)) ? known.effects : null;
}

/** The length of the change of the whole output, as a share of its length before. @param {Output} before @param {Output} after */
export function moved(before, after) {
  let [change, whole] = [0, 0];
  before.rows.forEach((row, i) =>
    row.forEach((number, j) => {
      change += (after.rows[i][j] - number) ** 2;
      whole += number ** 2;
    }),
  );
  return shareOf(change, whole);
}

/** The most probable next tokens of a language model; null for other models.
 *  @param {Model} model @param {Settings} settings @param {Input} input @returns {Promise<NextToken[] | null>} */
export async function nextTokens(model, settings, input) {
  return model.tokenizer?.next_tokens ? likelyTokens(model, textsAndMasks(model, settings, input), [], null) : null;
}

/** Cosine similarity of two vectors, two of zeros are alike; and the length of their difference, as a share of the first.
 *  @param {Float32Array} one @param {Float32Array} other */
export function distance(one, other) {
  let [product, first, second, change] = [0, 0, 0, 0];
  for (let i = 0; i < one.length; i++) {
    product += one[i] * other[i];
    first += one[i] ** 2;
    second += other[i] ** 2;
    change += (other[i] - one[i]) ** 2;
  }
  const cosine = first && second ? product / Math.sqrt(first * second) : Number(first === second);
  return { cosine, share: shareOf(change, first) };
}

/** The length of a change as a share of the length before; 1 if there was nothing before.
 *  @param {number} change @param {number} before  squares of the lengths */
const shareOf = (change, before) => (before ? Math.sqrt(change / before) : Number(change > 0));
