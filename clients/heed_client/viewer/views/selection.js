// What is selected, in words: read by screen readers, too.
import { html } from "vendor/preact.js";
import { format } from "heed/data/display.js";
import { useShown } from "heed/views/hooks.js";

/** @typedef {import("heed/views/hooks.js").ViewProps} ViewProps */

const LISTED = 8; // largest weights

/** @param {ViewProps} props */
export function Selection({ attention, settings, set }) {
  const { shown } = useShown(attention, settings);
  const { query, key, direction } = settings;
  const place = direction === "from" ? query : key;
  if (place === null || !shown) return html`<p class="selection">Point at a token or a cell; click to hold it.</p>`;
  const labels = direction === "from" ? attention.columns : attention.rows;
  const own = (direction === "from" ? attention.rows : attention.columns)[place];
  const index = (direction === "from" ? shown.rows : shown.columns).indexOf(place);
  if (index < 0) return html`<p class="selection" role="status">“${own.text}” is hidden.</p>`;
  const others = direction === "from" ? shown.columns : shown.rows;
  const weights = others
    .map((other, i) => ({
      other,
      value: direction === "from" ? shown.values[index * shown.n + i] : shown.values[i * shown.n + index],
    }))
    .sort((one, another) => another.value - one.value);
  const pair =
    query !== null && key !== null
      ? weights.find(({ other }) => other === (direction === "from" ? key : query))
      : undefined;
  const listed = pair ? [pair, ...weights.filter((weight) => weight !== pair)] : weights;
  return html`<div role="status" class="selection">
    <b>“${own.text}”</b> ${`(${place}) ${direction === "from" ? "looks at" : "is looked at by"} `}
    <ol>${listed.slice(0, LISTED).map(({ other, value }) => html`<li>“${labels[other].text}” (${other})${" "}<span class="value">${format(value, shown.error)}</span></li>`)}</ol>
    <button onClick=${() => {
      set({ query: null, key: null });
      /** @type {HTMLElement | null} */ (document.querySelector("[role=tab][aria-selected=true]"))?.focus();
    }}>clear</button>
  </div>`;
}
