// The selection in words. Screen readers say the selected weight, or the largest, and find the others in the list.
import { html } from "vendor/preact.js";
import { drawnHeads, format, isOfWeights, LEAST_SHARE, valueText, LOOKS } from "heed/data/display.js";
import { firstQuery, inQuotes, nameIn } from "heed/data/picture.js";
import { focusTab, hint } from "heed/views/controls.js";
import { useNumbers } from "heed/views/hooks.js";

/** @typedef {import("heed/views/hooks.js").ViewProps} ViewProps */

const LISTED = 8; // largest weights
const FEWEST = 3; // that are listed however small they are
export const HINT = hint("Point at a token or a cell; click to pin it.", "Tap a token or a cell to pin it.");

/** @param {ViewProps & {hint?: string}} props */
export function Selection({ attention, settings, set, hint = HINT }) {
  const { shown } = useNumbers(attention, settings);
  const { query, key, direction } = settings;
  const place = direction === "from" ? query : key;
  const ownAxis = direction === "from" ? "rows" : "columns";
  const otherAxis = direction === "from" ? "columns" : "rows";
  const [owns, labels] = [attention[ownAxis], attention[otherAxis]];
  const listed = place === null || !shown ? null : weightsOf(shown, settings, place);
  const most = Math.max(...(listed ?? []).map(({ value }) => value));
  const verb = LOOKS[direction];
  const pair = direction === "from" ? key : query;
  const first = firstQuery(attention, settings);
  const [ownFirst, otherFirst] = direction === "from" ? [first, 0] : [0, first];
  const own = place === null ? "" : inQuotes(owns[place].text);
  const isPatch = place !== null && own === owns[place].text;
  const count = drawnHeads(attention, settings).length;
  const inMean = count > 1 ? ` in the mean of ${count} heads` : "";
  const numberOf = (/** @type {number} */ value) => valueText(settings.kind, value, shown?.error);
  const name = place === null ? "" : nameIn(attention, settings, ownAxis, place);
  const said = listed?.length
    ? `${name} ${verb} ${nameIn(attention, settings, otherAxis, listed[0].other)}: ${numberOf(listed[0].value)}`
    : "";
  return html`<div class="selection">
    <span class="unseen" role="status">${listed && !listed.length ? `${name} is hidden.` : said}</span>
    ${!listed && hint && html`<span class="hint">${hint}</span>`}
    ${listed && !listed.length && html`<span aria-hidden="true">${name} is hidden.</span>`}
    ${
      listed &&
      listed.length > 0 &&
      html`<button onClick=${() => {
        set({ query: null, key: null });
        focusTab();
      }}>clear</button>
      <b class=${isPatch ? "patch-name" : ""}>${own}</b>${isPatch ? "" : ` (${Number(place) + ownFirst})`}${`${inMean} ${verb} `}
    <ol>${listed.map(({ other, value }) => html`<li data-place=${other + otherFirst} style=${{ "--share": `${Math.max(0, (100 * value) / most) || 0}%` }}>${nameOf(labels[other].text, other + otherFirst)}${" "}<data class="value" value=${value} title=${format(value, shown?.error)}>${numberOf(value)}</data>${other === pair && " (pinned)"}</li>`)}</ol>`
    }
  </div>`;
}

/** A word with its place, which the name of a patch has. @param {string} text @param {number} place */
const nameOf = (text, place) => (inQuotes(text) === text ? text : `“${text}” (${place})`);

/** The weights of a token, that of the selected cell first, then the largest that are neither masked nor tiny; none if it is hidden.
 *  @param {import("heed/data/display.js").Shown} shown @param {ViewProps["settings"]} settings @param {number} place */
function weightsOf({ n, rows, columns, values, levels }, { kind, query, key, direction }, place) {
  const index = (direction === "from" ? rows : columns).indexOf(place);
  if (index < 0) return [];
  const pair = direction === "from" ? key : query;
  const weights = (direction === "from" ? columns : rows).map((other, i) => {
    const cell = direction === "from" ? index * n + i : i * n + index;
    return { other, value: Number.isNaN(levels[cell]) ? -Infinity : values[cell] };
  });
  const seen = weights.filter(({ other, value }) => other !== pair && value !== -Infinity);
  const sorted = seen.sort((one, another) => another.value - one.value);
  const largest = sorted.filter(({ value }, i) => i < FEWEST || !isOfWeights(kind) || value >= LEAST_SHARE);
  const listed = [...weights.filter(({ other }) => other === pair), ...largest];
  return (listed.length ? listed : weights).slice(0, LISTED);
}
