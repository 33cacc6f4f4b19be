// The largest changes of weights in words.
import { html } from "vendor/preact.js";
import { isOfWeights, points, valueText, visible } from "heed/data/display.js";
import { LEAST } from "heed/server/ablation.js";

/** @typedef {import("heed/data/matrix.js").Matrix} Matrix */

const LISTED = 5;
const DIGITS = 4; // of percentages that are almost alike

/** @typedef {{attention: Pick<import("heed/data/attention.js").Attention, "rows" | "columns">, before: Matrix, change: Matrix, settings: import("heed/data/state.js").Settings}} Props */

/** The places of the largest changes, among all visible words or the pinned ones.
 *  @param {Pick<Props, "attention" | "change" | "settings">} props */
function largestOf({ attention: { rows, columns }, change, settings: { query, key, ...settings } }) {
  const { n, values } = change;
  const size = (/** @type {number} */ place) => Math.abs(values[place]);
  const looks = /** @type {Props["settings"]} */ ({ ...settings, query, key });
  const queries = visible(rows, looks).filter((i) => query === null || i === query);
  const keys = visible(columns, looks).filter((j) => key === null || j === key);
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

/** A number before and after a change: weights as percentages, with more digits if these are alike.
 *  @param {string} kind  the output @param {number} before @param {number} change @returns {[before: string, after: string]} */
function bothTexts(kind, before, change) {
  const after = isOfWeights(kind) ? Math.max(0, before + change) : before + change; // without an error of rounding
  const [one, other] = [valueText(kind, before), valueText(kind, after)];
  const exact = (/** @type {number} */ share) => `${Number((100 * share).toPrecision(DIGITS))}\u00a0%`;
  return one === other && isOfWeights(kind) ? [exact(before), exact(after)] : [one, other];
}

/** A change in words. @param {Props} props @param {number} place @param {[before: string, after: string]} [names]  of the sides */
export function sentence({ attention: { rows, columns }, before, change, settings: { kind } }, place, names) {
  const { n, values } = change;
  const [one, other] = bothTexts(kind, before.values[place], values[place]);
  const [first, second] = names?.map((name) => `${name}\u00a0`) ?? ["", ""];
  return html`“${rows[Math.floor(place / n)].text}” looks ${values[place] > 0 ? "more" : "less"} at
      ${" "}“${columns[place % n].text}”: ${first}<b>${one}</b> → ${second}<b>${other}</b>${isOfWeights(kind) && `, ${points(values[place])}`}`;
}

/** The largest change as the view's first sentence, whatever is pinned. @param {Props & {isComparison: boolean}} props */
export function LargestChange({ isComparison, ...props }) {
  const { attention, change, settings } = props;
  const [place] = largestOf({ attention, change, settings: { ...settings, query: null, key: null } });
  if (place === undefined) return null;
  return html`<p class="headline largest-change">Largest ${isComparison ? "difference" : "change"}: ${sentence(props, place, isComparison ? ["first", "second"] : undefined)}</p>`;
}

/** The largest changes; with a query and a key pinned those of the query, first that of the pair.
 *  @param {Props & {isComparison: boolean}} props  `isComparison`: nothing changes between the sides */
export function Changes({ isComparison, ...props }) {
  const { query, key } = props.settings;
  const isPair = query !== null && key !== null;
  const ofQuery = isPair ? largestOf({ ...props, settings: { ...props.settings, key: null } }) : [];
  const places = [...new Set([...largestOf(props), ...ofQuery])].slice(0, LISTED);
  const of = isPair ? " of the pinned query" : query !== null || key !== null ? " of the pinned word" : "";
  if (places.length === 0) return html`<p class="note">No weight${of} ${isComparison ? "differs" : "changes"}.</p>`;
  const kind = isComparison ? "differences" : "changes";
  const unit = isOfWeights(props.settings.kind) ? "; points are percentage points" : "";
  return html`<div class="changes"><p>Largest ${kind}${of}${isComparison && `, first → second${unit}`}</p><ol aria-label=${`largest ${kind}`}>${places.map(
    (place) => html`<li>${sentence(props, place)}</li>`,
  )}</ol></div>`;
}
