// The largest changes of weights in words.
import { html } from "vendor/preact.js";
import { format, visible } from "heed/data/display.js";
import { LEAST } from "heed/server/ablation.js";

/** @typedef {import("heed/data/matrix.js").Matrix} Matrix */

const LISTED = 5;

/** Of all visible words, or of those that are pinned.
 *  @param {{attention: import("heed/data/attention.js").Attention, before: Matrix, change: Matrix, settings: import("heed/data/state.js").Settings}} props */
export function Changes({ attention: { rows, columns }, before, change, settings }) {
  const { n, values } = change;
  const size = (/** @type {number} */ place) => Math.abs(values[place]);
  const { query, key } = settings;
  const queries = visible(rows, settings).filter((i) => query === null || i === query);
  const keys = visible(columns, settings).filter((j) => key === null || j === key);
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
  const of = query === null && key === null ? "" : " of the pinned words";
  if (places.length === 0) return html`<p class="note">No weight${of} changes.</p>`;
  return html`<div class="changes"><p>Largest changes${of}</p><ol aria-label="largest changes">${places.map(
    (place) => html`<li>“${rows[Math.floor(place / n)].text}” looks ${values[place] > 0 ? "more" : "less"} at
      ${" "}“${columns[place % n].text}”: <b>${format(before.values[place])}</b> → <b>${format(before.values[place] + values[place])}</b></li>`,
  )}</ol></div>`;
}
