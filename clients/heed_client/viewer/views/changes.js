// The largest changes of weights in words.
import { html } from "vendor/preact.js";
import { isOfWeights, percent, points, valueText, visible } from "heed/data/display.js";
import { nameIn } from "heed/data/picture.js";
import { leftOut, namedPlaces } from "heed/data/ranking.js";
import { LEAST } from "heed/server/ablation.js";
import { focusTab } from "heed/views/controls.js";
import { HINT } from "heed/views/selection.js";

/** @typedef {import("heed/data/matrix.js").Matrix} Matrix */

const LISTED = 5;
const DIGITS = 4; // of percentages that are almost alike

/** @typedef {{attention: Pick<import("heed/data/attention.js").Attention, "rows" | "columns">, before: Matrix, change: Matrix, settings: import("heed/data/state.js").Settings, isComparison?: boolean}} Props
 *    `isComparison`: nothing changes between the sides */

/** The places of the largest changes, among the pinned words or all that are visible and not left out.
 *  @param {Pick<Props, "attention" | "change" | "settings">} props */
function largestOf({ attention: { rows, columns }, change, settings: { query, key, ...settings } }) {
  const { n, values } = change;
  const size = (/** @type {number} */ place) => Math.abs(values[place]);
  const looks = /** @type {Props["settings"]} */ ({ ...settings, query, key });
  const listed = (/** @type {typeof rows} */ labels, /** @type {number | null} */ pinned) => {
    const named = new Set(pinned === null ? namedPlaces(labels) : [pinned]);
    return visible(labels, looks).filter((i) => named.has(i));
  };
  const [queries, keys] = [listed(rows, query), listed(columns, key)];
  /** @type {number[]} */
  const places = [];
  for (const i of queries)
    for (const j of keys) {
      const place = i * n + j;
      if (!(size(place) > LEAST) || !Number.isFinite(values[place])) continue;
      if (places.length === LISTED && !(size(place) > size(places[LISTED - 1]))) continue;
      places.push(place);
      places.sort((one, other) => size(other) - size(one)).splice(LISTED);
    }
  return places;
}

/** The pair of the first sentence of a list. @param {Parameters<typeof largestOf>[0]} props */
export function largestChangeOf(props) {
  const [place] = largestOf(props);
  const { n } = props.change;
  return place === undefined ? null : { row: Math.floor(place / n), column: place % n };
}

/** How much attention is elsewhere in the second side, which has the same words. @param {Props} props */
export function Moved(props) {
  const share = movedShare(props);
  return (
    share > LEAST && html`<span class="note">On average ${percent(share)} of a word’s attention is elsewhere.</span>`
  );
}

/** The mean share of a query's weights that is at other keys: half the sum of the absolute differences, which is the total
 *  variation distance; NaN of other numbers than weights. @param {Pick<Props, "attention" | "change" | "settings">} props */
function movedShare({ attention: { rows, columns }, change: { n, values }, settings }) {
  const [queries, keys] = [rows, columns].map((labels) => visible(labels, settings));
  if (!isOfWeights(settings.kind)) return NaN;
  const moved = (/** @type {number} */ change) => (change === -Infinity ? 0 : Math.abs(change) / 2); // masked in both
  const share = (/** @type {number} */ i) => keys.reduce((sum, j) => sum + moved(values[i * n + j]), 0);
  return queries.reduce((sum, i) => sum + share(i), 0) / queries.length;
}

/** The words that sentences of changes leave out, in brackets. @param {Pick<Props["attention"], "rows" | "columns">} labels */
export const ignored = ({ rows, columns }) => leftOut({ isSelf: false, rows, columns }).trim();

/** A number before and after a change, and the change: weights as percentages with one decimal, of which the change is the
 *  difference, or with more digits if these are alike.
 *  @param {string} kind  the output @param {number} before @param {number} change */
function textsOf(kind, before, change) {
  if (!isOfWeights(kind)) return [valueText(kind, before), valueText(kind, before + change), ""];
  const after = Math.max(0, before + change); // without an error of rounding
  const [one, other] = [percent(before, true), percent(after, true)];
  const exact = (/** @type {number} */ share) => `${Number((100 * share).toPrecision(DIGITS))}\u00a0%`;
  if (one === other) return [exact(before), exact(after), points(change)];
  const rounded = (/** @type {number} */ share) => Math.round(1000 * share) / 1000;
  return [one, other, points(rounded(after) - rounded(before), "+", true)];
}

/** A change in words. @param {Props} props @param {number} place @param {[before: string, after: string]} [names]  of the sides */
export function sentence({ attention, before, change, settings }, place, names) {
  const { n, values } = change;
  const [one, other, by] = textsOf(settings.kind, before.values[place], values[place]);
  const [first, second] = names?.map((name) => `${name}\u00a0`) ?? ["", ""];
  return html`${nameIn(attention, settings, "rows", Math.floor(place / n))} looks ${values[place] > 0 ? "more" : "less"} at
      ${" "}${nameIn(attention, settings, "columns", place % n)}: ${first}<b>${one}</b> → ${second}<b>${other}</b>${by && `, ${by}`}`;
}

/** The pinned pair, or the largest difference of the pinned word or of all, as the first sentence of a comparison. @param {Props} props */
export function LargestDifference(props) {
  const { query, key } = props.settings;
  const isPair = query !== null && key !== null;
  const name = (/** @type {"rows" | "columns"} */ axis, /** @type {number} */ place) =>
    nameIn(props.attention, props.settings, axis, place);
  const word = query !== null ? name("rows", query) : key !== null ? name("columns", key) : "";
  const [place] = largestOf(props);
  const left = isPair ? "" : ignored(props.attention);
  if (place === undefined)
    return html`<p class="headline largest-change">No weight${isPair ? " of the pinned pair" : word && ` of ${word}`} differs <small>${left}</small></p>`;
  const start = isPair ? "" : `Largest difference${word && ` ${query === null ? "to" : "from"} ${word}`}: `;
  return html`<p class="headline largest-change">${start}${sentence(props, place, ["first", "second"])}${left && html` <small>${left}</small>`}</p>`;
}

/** The largest changes; in a comparison those after the sentence above. With a query and a key pinned, the others of the query.
 *  @param {Props & {set: import("heed/views/hooks.js").Set | null}} props  `set` unpins, null: it is done elsewhere */
export function Changes({ set, ...props }) {
  const { isComparison, settings: pinned } = props;
  const { query, key } = pinned;
  const isPair = query !== null && key !== null;
  const [pair] = isPair ? largestOf(props) : [];
  const settings = isPair ? { ...pinned, key: null } : pinned;
  const places = largestOf({ ...props, settings }).filter((place) => place !== pair);
  const first = places.slice(0, LISTED - 1);
  if (isComparison) {
    const others = isPair ? first : places.slice(1);
    return html`<div class="changes">${others.length > 0 && html`<p>${isPair ? "Others:" : "Then:"}</p><${Listed} props=${props} places=${others} start=${isPair ? 1 : 2} name="largest differences" />`}</div>`;
  }
  const of = isPair ? " of the pinned query" : query !== null || key !== null ? " of the pinned word" : "";
  const unpin = () => {
    set?.({ query: null, key: null });
    focusTab();
  };
  const tail =
    set &&
    (query === null && key === null
      ? html`<span class="hint">${HINT}</span>`
      : html`<button onClick=${unpin}>clear</button>`);
  if (places.length === 0 && pair === undefined) return html`<p class="note">No weight${of} changes. ${tail}</p>`;
  return html`<div class="changes">${pair !== undefined && html`<p role="status">Pinned: ${sentence(props, pair)} ${tail}</p>`}
    ${places.length > 0 && html`<p>Largest ${isPair ? "other " : ""}changes${of} <span class="note">${ignored(props.attention)}</span> ${pair === undefined && tail}</p><${Listed} props=${props} places=${first} start=${1} name="largest changes" />`}</div>`;
}

/** @param {{props: Props, places: number[], start: number, name: string}} props */
const Listed = ({ props, places, start, name }) =>
  html`<ol aria-label=${name} start=${start}>${places.map((place) => html`<li>${sentence(props, place)}</li>`)}</ol>`;
