// Labelled choices, switches and numbers.
import { html, useState } from "vendor/preact.js";
import { drawnHeads, minus } from "heed/data/display.js";
import { isTrained } from "heed/server/api.js";

/** A hint for a device whose pointer can be over a thing without a click, or for fingers.
 *  @template T @param {T} pointing @param {T} tapping */
export const hint = (pointing, tapping) => (matchMedia("(hover: none)").matches ? tapping : pointing);

/** Give the focus of a button that goes away to the tab of the view. */
export const focusTab = () =>
  /** @type {HTMLElement | null} */ (document.querySelector("[role=tab][aria-selected=true]"))?.focus();

/** @typedef {Record<string, string | Record<string, string>>} Choices  titles by name; those of a group by the group's title */

/**
 * A labelled choice.
 * @param {{label: unknown, value: string | number, options: Choices, onChange: (value: string) => void}} props
 */
export const Choice = ({ label, value, options, onChange }) => html`<label>${label}
  <select value=${String(value)} onChange=${(/** @type {any} */ event) => onChange(event.currentTarget.value)}>
    ${optionsOf(options, String(value))}
  </select></label>`;

/** @param {Choices} options @param {string} value @returns {unknown[]} */
const optionsOf = (options, value) =>
  Object.entries(options).map(([name, title]) =>
    typeof title === "string"
      ? html`<option value=${name} selected=${name === value}>${title}</option>`
      : html`<optgroup label=${name}>${optionsOf(title, value)}</optgroup>`,
  );

/** The models of a server, by where their weights are from. @param {import("heed/server/api.js").Line[]} models @returns {Choices} */
export function modelChoices(models) {
  /** @type {Record<string, Record<string, string>>} */
  const groups = { "exported models": {}, "random demonstration weights": {}, "without learned weights": {} };
  const [trained, random, without] = Object.keys(groups);
  for (const model of models) {
    const { block, title, weights } = model;
    if (isTrained(model)) groups[trained][block] = block;
    else groups[weights === "none" ? without : random][block] = `${block}: ${title}`;
  }
  return Object.fromEntries(Object.entries(groups).filter(([, group]) => Object.keys(group).length > 0));
}

/** @param {{label: unknown, checked: boolean, onChange: (checked: boolean) => void}} props */
export const Switch = ({ label, checked, onChange }) => html`<label>
  <input type="checkbox" checked=${checked} onChange=${(/** @type {any} */ event) => onChange(event.currentTarget.checked)} /> ${label}</label>`;

/**
 * A button that opens a small box below itself; the box closes when the focus goes elsewhere, and by Escape.
 * @param {{name: string, title: unknown, children?: unknown}} props  `name` is a class
 */
export function Popup({ name, title, children }) {
  const leave = (/** @type {any} */ { currentTarget, relatedTarget }) => {
    if (relatedTarget && !currentTarget.contains(relatedTarget)) currentTarget.open = false;
  };
  const press = (/** @type {any} */ { key, currentTarget }) => {
    if (key !== "Escape") return;
    currentTarget.open = false;
    currentTarget.firstElementChild.focus();
  };
  return html`<details class=${`popup ${name}`} onFocusOut=${leave} onKeyDown=${press}><summary>${title}</summary>
    <div class="menu">${children}</div></details>`;
}

/** @type {Record<string, string>} */
const KINDS = { weights: "weights", scores: "scores", weights_by_norm: "weights by norm" };
/** Of a model with an encoder and a decoder. @type {Record<string, string>} */
const STACKS = { weights: "decoder", cross_weights: "cross: decoder to encoder", encoder_weights: "encoder" };
/** Of a model with a tower for texts and one for images. @type {Record<string, string>} */
const TOWERS = { weights: "texts", vision_weights: "images" };

/** Titles of the outputs of a model. @param {string[]} kinds @returns {Record<string, string>} */
export const titlesOf = (kinds) => {
  const towers = kinds.includes("vision_weights") ? TOWERS : {};
  const known = { ...KINDS, ...(kinds.includes("cross_weights") ? STACKS : towers) };
  return Object.fromEntries(kinds.map((kind) => [kind, known[kind] ?? kind]));
};

/** The arrow keys move between the buttons of a group, of which Tab reaches one. @param {any} event */
export function arrowKeys(event) {
  const buttons = [...event.currentTarget.querySelectorAll("button")];
  const next = neighbour(buttons, buttons.indexOf(event.target), event.key);
  if (next === null) return;
  buttons[next].focus();
  event.preventDefault();
}

/** The element to which a key moves: the next one, or the nearest of the next line; null for other keys.
 *  @param {HTMLElement[]} elements @param {number} index @param {string} key */
export function neighbour(elements, index, key) {
  if (index < 0) return null;
  if (key === "ArrowLeft") return Math.max(0, index - 1);
  if (key === "ArrowRight") return Math.min(elements.length - 1, index + 1);
  if (key === "Home") return 0;
  if (key === "End") return elements.length - 1;
  if (key !== "ArrowUp" && key !== "ArrowDown") return null;
  const step = key === "ArrowUp" ? -1 : 1;
  const middle = (/** @type {HTMLElement} */ one) => one.offsetLeft + one.offsetWidth / 2;
  let [line, best] = [-1, index];
  for (let at = index + step; at >= 0 && at < elements.length; at += step) {
    const { offsetTop } = elements[at];
    if (offsetTop === elements[index].offsetTop) continue;
    if (line < 0) [line, best] = [offsetTop, at];
    else if (offsetTop !== line) break;
    if (
      Math.abs(middle(elements[at]) - middle(elements[index])) <
      Math.abs(middle(elements[best]) - middle(elements[index]))
    )
      best = at;
  }
  return best;
}

/** The options 0, 1, ... of a choice. @param {number} count @returns {Record<string, string>} */
export const numbers = (count) => Object.fromEntries(Array.from({ length: count }, (_, i) => [i, String(i)]));

const SEVERAL = { "": "several" };

/** The choice of a layer and of a head. @param {import("heed/views/hooks.js").ViewProps} props */
export function HeadChoice({ attention, settings, set }) {
  const { layers, heads, axis } = attention;
  const isOne = drawnHeads(attention, settings).length < 2;
  return html`${
    layers > 1 &&
    html`<${Choice} label=${axis} value=${settings.layer} options=${numbers(layers)}
      onChange=${(/** @type {string} */ value) => set({ layer: Number(value) })} />`
  }<${Choice} label="head" value=${isOne ? settings.head : ""} options=${isOne ? numbers(heads) : { ...numbers(heads), ...SEVERAL }}
      onChange=${(/** @type {string} */ value) => set({ head: Number(value), heads: [] })} />`;
}

/**
 * A field for a number, which applies as soon as it is valid; the text is kept until the field is left, and then corrected.
 * As a text it has the minus sign of other numbers, but no steps.
 * @param {{value: number | string, type?: "number" | "text", isAllowed?: (number: number) => boolean, onNumber: (number: number | undefined) => void} & Record<string, unknown>} props
 *   undefined = nothing is written
 */
export function NumberField({ value, type = "number", isAllowed = Number.isFinite, onNumber, ...attributes }) {
  const [draft, setDraft] = useState(/** @type {string | null} */ (null));
  const enter = (/** @type {any} */ event) => {
    const { value: text, validity } = event.currentTarget;
    setDraft(text);
    const number = Number(text.replaceAll("−", "-"));
    if (validity.badInput || Number.isNaN(number)) return; // "-" or "1e": the number is incomplete
    if (text.trim() === "") onNumber(undefined);
    else if (isAllowed(number)) onNumber(number);
  };
  const end = (/** @type {any} */ event) => {
    if (event.currentTarget.validity.badInput) event.currentTarget.value = "";
    setDraft(null);
  };
  const written = type === "text" ? minus(String(value)) : value;
  return html`<input type=${type} ...${attributes} value=${draft ?? written} onInput=${enter} onBlur=${end} />`;
}
