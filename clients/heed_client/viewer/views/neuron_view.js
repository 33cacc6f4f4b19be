// Why a head's scores are what they are: the query of one token, the keys of all, their products, sums and weights.
import { html, useEffect, useMemo, useRef } from "vendor/preact.js";
import { format } from "heed/data/display.js";
import { palette } from "heed/data/palettes.js";
import { neuronsOf } from "heed/server/neurons.js";
import { openingToken } from "heed/server/start.js";
import { useTheme } from "heed/views/draw/canvas.js";
import { Choice } from "heed/views/controls.js";
import { usePromise } from "heed/views/hooks.js";

/** @typedef {import("heed/views/hooks.js").ViewProps} ViewProps */

const MAX_KEYS = 256; // those with the largest weights, in their order

/** @param {ViewProps & {run: import("heed/views/hooks.js").Run}} props */
export function NeuronView({ attention, settings, set, run }) {
  const { model, input } = run;
  const { kind, layer, head } = settings;
  const query = settings.query ?? openingToken(attention.rows);
  const { value, error } = usePromise(
    () => neuronsOf(model, { ...run.settings, kind, layer, head }, input, query),
    [input, kind, layer, head, query],
  );
  const theme = useTheme();
  const table = useMemo(() => palette("auto", true), [theme]);
  const options = Object.fromEntries(attention.rows.map((label, place) => [place, numbered(label, place)]));
  const shown = value ? largestKeys(value.weights) : [];
  const tops = useMemo(() => value && topsOf(value), [value]);
  return html`<div class="tools">
      <${Choice} label="query" value=${query} options=${options} onChange=${(/** @type {string} */ place) => set({ query: Number(place) })} />
      <span>A square is one number: orange is positive, violet negative, and stronger is larger in its column.</span>
    </div>
    ${error && html`<p role="alert">${error.message}</p>`}
    ${
      value &&
      tops &&
      html`<table class="neurons">
      <thead>
        <tr><th scope="row">query ${numbered(attention.rows[query], query)}</th>
          <td><${Strip} label="query vector q" numbers=${value.query} top=${tops[0]} table=${table} /></td><td class="note">query vector q, times the scale</td><td></td><td></td></tr>
        <tr><th scope="col">key</th><th scope="col">key vector k</th><th scope="col">q × k</th><th scope="col">sum</th><th scope="col">weight</th></tr>
      </thead>
      <tbody>${shown.map(
        (place) => html`<tr class=${`${place === settings.key ? "held" : ""} ${value.masked[place] ? "masked" : ""}`}>
          <th scope="row"><button aria-pressed=${place === settings.key} onClick=${() => set({ query, key: place === settings.key ? null : place })}>
            ${numbered(attention.columns[place], place)}</button></th>
          <td><${Strip} label=${`key ${place}`} numbers=${value.keys[place]} top=${tops[1]} table=${table} /></td>
          <td><${Strip} label=${`products with key ${place}`} numbers=${value.products[place]} top=${tops[2]} table=${table} /></td>
          <td><data value=${value.scores[place]}>${format(value.scores[place])}</data></td>
          <td class="share" style=${{ "--share": `${100 * value.weights[place]}%` }}><data value=${value.weights[place]}>${value.masked[place] ? "masked" : format(value.weights[place])}</data></td>
        </tr>`,
      )}</tbody></table>
      <p class="note">${shown.length < value.keys.length && `The ${shown.length} keys with the largest weights of ${value.keys.length}. `}A sum is
        the score before softcap, biases and masks; the weights are the softmax of the scores of keys that are not masked.</p>`
    }`;
}

/** A word with its place, which is all that words without a text have. @param {import("heed/data/attention.js").Label} label @param {number} place */
export const numbered = ({ text }, place) => (text === String(place) ? text : `${place} ${text}`);

/** The keys that are shown. @param {Float32Array} weights */
export const largestKeys = (weights) =>
  [...weights.keys()]
    .sort((one, other) => weights[other] - weights[one])
    .slice(0, MAX_KEYS)
    .sort((one, other) => one - other);

/** The numbers of the strongest colours of the query, the keys and the products.
 *  @param {import("heed/server/neurons.js").Neurons} neurons */
export const topsOf = ({ query, keys, products }) => [[query], keys, products].map(topOf);

/** The largest absolute number. @param {Float32Array[]} rows */
const topOf = (rows) =>
  rows.reduce((top, row) => row.reduce((most, number) => Math.max(most, Math.abs(number)), top), 0) || 1;

/** The numbers of a vector as squares; pointing shows one.
 *  @param {{label: string, numbers: Float32Array, top: number, table: Uint32Array}} props */
function Strip({ label, numbers, top, table }) {
  const canvas = useRef(/** @type {HTMLCanvasElement | null} */ (null));
  useEffect(() => {
    const context = canvas.current?.getContext("2d");
    if (!context) return;
    const image = context.createImageData(numbers.length, 1);
    const pixels = new Uint32Array(image.data.buffer);
    numbers.forEach((number, l) => (pixels[l] = table[Math.round(127.5 * (1 + number / top))]));
    context.putImageData(image, 0, 0);
  }, [numbers, top, table]);
  const point = (/** @type {PointerEvent} */ { offsetX, currentTarget }) => {
    const element = /** @type {HTMLCanvasElement} */ (currentTarget);
    const l = Math.min(numbers.length - 1, Math.max(0, Math.floor((offsetX * numbers.length) / element.clientWidth)));
    element.title = `${l}: ${format(numbers[l])}`;
  };
  return html`<canvas ref=${canvas} class="strip" width=${numbers.length} height="1" role="img" aria-label=${label} onPointerMove=${point}></canvas>`;
}
