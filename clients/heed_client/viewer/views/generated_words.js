// The words of a generated text, and the headline about one of them.
import { html } from "vendor/preact.js";
import { LOOKS, LOOKS_MOST, mostOf, valueText } from "heed/data/display.js";
import { nameIn } from "heed/data/picture.js";
import { isLeftOut, leftOut } from "heed/data/ranking.js";

/** @typedef {import("heed/data/attention.js").Label} Label */
/** @typedef {import("heed/views/hooks.js").ViewProps} ViewProps */

const SMALLER = 0.6; // of a note, to its headline

/** @param {ViewProps["attention"] | null} attention @param {ViewProps["settings"]} settings @param {import("heed/views/generate_view.js").Word | null} active
 *  @param {Parameters<typeof mostOf>[0]} line  its weights @param {import("heed/views/generate_view.js").Other | null} other @param {number} [error] */
export function sentence(attention, settings, active, line, other, error) {
  if (!active || !attention) return "";
  const isFrom = active.row !== null;
  const place = active.row ?? active.column ?? -1;
  const own = (isFrom ? attention.rows : attention.columns)[place]?.text;
  if (own === undefined) return "";
  const name = nameIn(attention, settings, isFrom ? "rows" : "columns", place);
  const labels = isFrom ? attention.columns : attention.rows;
  const largest = mostOf(line);
  const most = mostOf(line, (at) => !isLeftOut(labels[at])) ?? largest;
  const isIgnored = other === null && most?.place !== largest?.place; // the largest one
  const said =
    other ?? (most && { name: nameIn(attention, settings, isFrom ? "columns" : "rows", most.place), ...most });
  const verb = (other ? LOOKS : LOOKS_MOST)[isFrom ? "from" : "to"];
  const start = `${name} ${verb} ${said?.name ?? "…"}`.replace(/^[a-z]/, (letter) => letter.toUpperCase()); // of a patch
  const left = isIgnored ? leftOut({ isSelf: false, rows: labels, columns: labels }) : "";
  const number = said ? valueText(settings.kind, said.value, error) : "";
  const length = start.length + number.length + SMALLER * left.length;
  return html`<span style=${{ "--length": length }}>${start}${said && html`: <b>${number}</b>`}${left && html` <small>${left.trim()}</small>`}</span>`;
}

/** A word of running text; a blank is before it unless it continues a word.
 *  @param {Label} label @param {number | null} row @param {number | null} column @param {string} kind
 *  @param {number} [probability]  as a share of that of the most probable word */
export function wordSpan({ text, special, joined }, row, column, kind, probability) {
  const look = `word ${kind} ${special ? "special" : ""}`;
  const word =
    row === null && column === null
      ? html`<span class=${look}>${text}</span>`
      : html`<span role="button" tabindex="-1" data-word="" data-row=${row} data-column=${column} class=${look}
          style=${probability === undefined ? null : { "--chance": `${100 * probability}%` }}>${text}</span>`;
  return html`${joined ? "" : " "}${word}${text.includes("⏎") ? html`<br />` : ""}`;
}

/** @param {HTMLElement | null} element @param {string} [which] @returns {HTMLElement[]} */
export const wordsIn = (element, which = "[data-word]") => [
  .../** @type {NodeListOf<HTMLElement>} */ (element?.querySelectorAll(which) ?? []),
];

/** @param {HTMLElement} word @param {"row" | "column"} name */
export const placeOf = ({ dataset }, name) => (dataset[name] === undefined ? null : Number(dataset[name]));
