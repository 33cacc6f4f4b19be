// How probable tokens are, as bars and numbers.
import { html } from "vendor/preact.js";
import { percent } from "heed/data/display.js";
import { tokenName } from "heed/data/tokens.js";

/** @typedef {import("heed/server/ablation.js").NextToken} NextToken */

const SHOWN = 5; // most probable tokens of each list
const UNLISTED = "–"; // in place of the probability of a token that a list does not have

/** A bar and a number. @param {{share: number, children?: unknown}} props  `share` of the longest bar */
export const Chance = ({ share, children }) =>
  html`<div><span class="chance" style=${{ width: `${100 * share}%` }}></span><b>${children}</b></div>`;

/** The chance of a token that is less probable than the last of a list. @param {number} last */
export const below = (last) => percent(last).replace(/^(?!<)/, "<\u00a0");

/** Bars before and after of the most probable tokens.
 *  @param {{before: NextToken[], after: NextToken[], title?: string, titles?: [string, string]}} props */
export function NextTokens({ before, after, title = "Next token", titles = ["unchanged", "changed"] }) {
  const shown = [...before.slice(0, SHOWN), ...after.slice(0, SHOWN)].sort((a, b) => b.probability - a.probability);
  const tokens = new Map(shown.map(({ id, token }) => [id, token]));
  const top = Math.max(...shown.map(({ probability }) => probability));
  const isShort = [...tokens.keys()].some(
    (id) => ![before, after].every((list) => list.some((token) => token.id === id)),
  );
  const bar = (/** @type {NextToken[]} */ list, /** @type {number} */ id) => {
    const found = list.find((token) => token.id === id);
    return html`<td><${Chance} share=${(found?.probability ?? 0) / top}>${found ? percent(found.probability) : UNLISTED}<//></td>`;
  };
  return html`<section aria-label="next tokens"><h2>${title}</h2><table class="chances">
    <thead><tr><th scope="col">token</th><th scope="col">${titles[0]}</th><th scope="col">${titles[1]}</th></tr></thead>
    <tbody>${[...tokens].map(([id, token]) => html`<tr><th scope="row" title=${tokenName(token, id)}>${tokenName(token, id)}</th>${bar(before, id)}${bar(after, id)}</tr>`)}</tbody>
  </table>${isShort && html`<p class="note">${UNLISTED}: not among the ${before.length} most probable</p>`}</section>`;
}
