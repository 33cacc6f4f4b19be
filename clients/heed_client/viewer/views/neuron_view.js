// The origin of a head's scores: the query of one token, the keys of all, their products, sums and weights.
import { html, useEffect, useMemo, useRef, useState } from "vendor/preact.js";
import { format, percent, significant } from "heed/data/display.js";
import { palette, signedNote } from "heed/data/palettes.js";
import { largestPair } from "heed/data/ranking.js";
import { openingToken } from "heed/data/tokens.js";
import { neuronsOf } from "heed/server/neurons.js";
import { Chance } from "heed/views/chances.js";
import { useTheme } from "heed/views/draw/canvas.js";
import { Choice, hint } from "heed/views/controls.js";
import { Legend } from "heed/views/draw/legend.js";
import { Line } from "heed/views/pair_finder.js";
import { usePromise, useShown } from "heed/views/hooks.js";

/** @typedef {import("heed/views/hooks.js").ViewProps} ViewProps */

/** @typedef {{name: string, place: number, number: number, left: number, top: number}} Pointed  a number of a vector */

export const COLOURS = `${signedNote()} The query, the keys and the products each have a scale of their own.`;
const SCALE = "The query is times the scale (1/√dₖ in most models): the products of a key add up to its score.";
const CHOOSE = hint("Click a word to choose the query.", "Tap a word to choose the query.");
const HINT = hint("Click a key to keep its score above the table.", "Tap a key to see its score above the table.");
const TIP = 224; // px, the widest tip
const NO_LEVELS = new Float32Array(); // no number is masked
const MAX_WORDS = 256; // of a text whose words are all buttons
const MAX_KEYS = 256; // those with the largest weights, in their order

/** @typedef {ViewProps & {run: import("heed/views/hooks.js").Run}} Props */

/** @param {Props} props */
export function NeuronView(props) {
  const { attention, settings } = props;
  const { shown } = useShown(attention, settings);
  const query = settings.query ?? (shown && openingQuery(shown, attention));
  return query === null ? html`<p class="note">…</p>` : html`<${Neurons} ...${props} query=${query} />`;
}

/** @param {Props & {query: number}} props */
function Neurons({ attention, settings, set, run, query }) {
  const { model, input } = run;
  const { kind, layer, head, byWeight } = settings;
  const { value, error } = usePromise(
    () => neuronsOf(model, { ...run.settings, kind, layer, head }, input, query),
    [input, kind, layer, head, query],
  );
  const theme = useTheme();
  const table = useMemo(() => palette("auto", true), [theme]);
  const shown = value ? largestKeys(value.weights, byWeight) : [];
  const title = (/** @type {number} */ place) => `query ${numbered(attention.rows[place], place)}`;
  const ofKeys = Math.max(0, ...shown.map((place) => numbered(attention.columns[place], place).length));
  const longest = Math.max(ofKeys, ...attention.rows.map((_, place) => title(place).length));
  const most = Math.max(...shown.map((place) => value?.weights[place] ?? 0)) || 1;
  const tops = useMemo(() => value && topsOf(value), [value]);
  const [pointed, setPointed] = useState(/** @type {Pointed | null} */ (null));
  const [row, setRow] = useState(/** @type {number | null} */ (null)); // the key that is pointed at
  const toldAt = value && (row !== null && row < value.weights.length ? row : toldKey(value, settings.key));
  const told = value && largestIn(value.products[Number(toldAt)]);
  const strip = (
    /** @type {string} */ label,
    /** @type {string} */ name,
    /** @type {Float32Array} */ numbers,
    /** @type {number} */ which,
    isTold = true,
  ) =>
    html`<${Strip} label=${label} name=${name} numbers=${numbers} top=${tops?.[which] ?? 1} table=${table} marked=${pointed?.place ?? (isTold ? told : null)} setPointed=${setPointed} />`;
  const legend = (/** @type {number} */ which) =>
    html`<${Legend} shown=${{ high: tops?.[which] ?? 1, levels: NO_LEVELS, isDiverging: true }} table=${table} scale="linear" />`;
  const choose = (/** @type {number | string} */ place) => set({ query: Number(place) });
  const isLong = attention.rows.length > MAX_WORDS;
  const options = () => Object.fromEntries(attention.rows.map((label, place) => [place, numbered(label, place)]));
  return html`<div class="tools">
      ${isLong && html`<${Choice} label="query" value=${query} options=${options()} onChange=${choose} />`}
      <span>${!isLong && CHOOSE} ${HINT}</span>
    </div>
    ${!isLong && html`<${Line} labels=${attention.rows} name="query" isNamed=${true} query=${query} held=${null} onClick=${choose} />`}
    ${error && html`<p role="alert">${error.message}</p>`}
    ${
      value &&
      tops &&
      html`<p class="headline">${sentence(attention, value, query, Number(toldAt), Number(told))}</p>
      <div class="neurons-frame"><table class="neurons" style=${{ "--name": longest, "--keys": ofKeys, "--rows": shown.length + 1 }} onPointerLeave=${() => {
        setPointed(null);
        setRow(null);
      }}>
      <colgroup><col /><col /><col /><col /><col /></colgroup>
      <thead>
        <tr><td></td><th scope="col"><div class="colours">query vector q${legend(0)}</div></th></tr>
        <tr><th scope="row">${title(query)}</th><td>${strip("query vector q", "q", value.query, 0)}</td></tr>
        <tr><th scope="col">key</th>
          <th scope="col"><div class="colours">key vector k${legend(1)}</div></th>
          <th scope="col"><div class="colours">q × k${legend(2)}</div></th><th scope="col">sum</th>
          <th scope="col" aria-sort=${byWeight ? "descending" : "none"}><button title=${byWeight ? "order the keys as in the text" : "order the keys by weight"} onClick=${() => set({ byWeight: !byWeight })}>weight <span aria-hidden="true">${byWeight ? "▼" : "↕"}</span></button></th></tr>
      </thead>
      <tbody>${shown.map(
        (
          place,
        ) => html`<tr key=${place} onPointerEnter=${() => setRow(place)} class=${`${place === settings.key ? "held" : ""} ${value.masked[place] ? "masked" : ""}`}>
          <th scope="row"><button aria-pressed=${place === settings.key} onClick=${() => set({ query, key: place === settings.key ? null : place })}>
            ${numbered(attention.columns[place], place)}</button></th>
          <td>${strip(`key ${place}`, `k of “${attention.columns[place].text}”`, value.keys[place], 1, place === toldAt)}</td>
          <td>${strip(`products with key ${place}`, `q × k of “${attention.columns[place].text}”`, value.products[place], 2, place === toldAt)}</td>
          <td><data value=${value.scores[place]}>${format(value.scores[place])}</data></td>
          <td><${Chance} share=${value.weights[place] / most}><data value=${value.weights[place]} title=${format(value.weights[place])}>${value.masked[place] ? "masked" : percent(value.weights[place])}</data><//></td>
        </tr>`,
      )}</tbody></table>
      ${pointed && html`<div class="tip" style=${{ transform: `translate(${pointed.left}px, ${pointed.top}px)` }}>${pointed.name} [${pointed.place}] = ${significant(pointed.number)}</div>`}</div>
      <p class="note">${COLOURS} ${SCALE} ${shown.length < value.keys.length && `The ${shown.length} keys with the largest weights of ${value.keys.length}. `}A sum is
        the score before softcap, biases and masks; the weights are the softmax of the scores of keys that are not masked.</p>`
    }`;
}

/** The query that is shown at first: that of the largest weight.
 *  @param {import("heed/data/display.js").Shown} shown @param {ViewProps["attention"]} attention */
export const openingQuery = (shown, attention) => largestPair(shown, attention)?.row ?? openingToken(attention.rows);

/** A word with its place; a word without a text is only its place. @param {import("heed/data/attention.js").Label} label @param {number} place */
export const numbered = ({ text }, place) => (text === String(place) ? text : `${place} ${text}`);

/** The keys that are shown. @param {Float32Array} weights @param {boolean} byWeight  the largest first, else as in the text */
export function largestKeys(weights, byWeight) {
  const largest = [...weights.keys()].sort((one, other) => weights[other] - weights[one]).slice(0, MAX_KEYS);
  return byWeight ? largest : largest.sort((one, other) => one - other);
}

/** The numbers of the strongest colours of the query, the keys and the products.
 *  @param {import("heed/server/neurons.js").Neurons} neurons */
export const topsOf = ({ query, keys, products }) => [[query], keys, products].map(topOf);

/** The largest absolute number. @param {Float32Array[]} rows */
const topOf = (rows) =>
  rows.reduce((top, row) => row.reduce((most, number) => Math.max(most, Math.abs(number)), top), 0) || 1;

/** The score and weight of the selected key, or of the one with the largest weight, and the dimension that adds most to the score.
 *  @param {ViewProps["attention"]} attention
 *  @param {import("heed/server/neurons.js").Neurons} neurons @param {number} query @param {number} place  of the key @param {number} most  the dimension */
function sentence({ rows, columns }, { scores, weights, masked, products }, query, place, most) {
  const after = masked[place] ? "which is masked" : html`<b>${percent(weights[place])}</b> after the softmax`;
  return html`Score of “${rows[query].text}” and “${columns[place].text}”: <b>${significant(scores[place])}</b>, ${after}
    ${" "}<small>strongest product: ${significant(products[place][most])}, in dimension ${most}</small>`;
}

/** The dimension with the largest absolute number. @param {Float32Array} numbers */
const largestIn = (numbers) =>
  numbers.reduce((best, number, l) => (Math.abs(number) > Math.abs(numbers[best]) ? l : best), 0);

/** The key that the sentence is about. @param {import("heed/server/neurons.js").Neurons} neurons @param {number | null} key */
const toldKey = ({ weights }, key) => key ?? weights.indexOf(Math.max(...weights));

/** The numbers of a vector as squares; pointing shows one, and marks those of its dimension.
 *  @param {{label: string, name: string, numbers: Float32Array, top: number, table: Uint32Array, marked: number | null,
 *    setPointed: (change: (before: Pointed | null) => Pointed | null) => void}} props */
function Strip({ label, name, numbers, top: strongest, table, marked, setPointed }) {
  const canvas = useRef(/** @type {HTMLCanvasElement | null} */ (null));
  useEffect(() => {
    const context = canvas.current?.getContext("2d");
    if (!context) return;
    const image = context.createImageData(numbers.length, 1);
    const pixels = new Uint32Array(image.data.buffer);
    numbers.forEach((number, l) => (pixels[l] = table[Math.round(127.5 * (1 + number / strongest))]));
    context.putImageData(image, 0, 0);
  }, [numbers, strongest, table]);
  const point = (/** @type {PointerEvent} */ { offsetX, currentTarget }) => {
    const element = /** @type {HTMLElement} */ (currentTarget);
    const l = Math.min(numbers.length - 1, Math.max(0, Math.floor((offsetX * numbers.length) / element.clientWidth)));
    const [own, frame] = [element.parentElement, element.closest(".neurons-frame")].map((one) =>
      one?.getBoundingClientRect(),
    );
    if (!own || !frame || !frame.width) return;
    const left = Math.min(own.left - frame.left + ((l + 0.5) * own.width) / numbers.length + 8, frame.width - TIP);
    const top = own.bottom - frame.top + 4;
    setPointed((before) =>
      before?.name === name && before.place === l ? before : { name, place: l, number: numbers[l], left, top },
    );
  };
  const width = 100 / numbers.length;
  return html`<div class="strip"><canvas ref=${canvas} width=${numbers.length} height="1" role="img" aria-label=${label} onPointerMove=${point} onPointerLeave=${() => setPointed(() => null)}></canvas>
    ${marked !== null && html`<i style=${{ left: `${marked * width}%`, width: `${width}%` }}></i>`}</div>`;
}
