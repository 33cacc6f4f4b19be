// How a text is generated: its length, temperature and seed, and its progress.
import { html, useId } from "vendor/preact.js";
import { FieldError, invalid } from "heed/page/input/field.js";
import { NumberField } from "heed/views/controls.js";

/** @typedef {import("heed/page/generation.js").Text} GeneratedText */
/** @typedef {import("heed/page/generation.js").Actions} Actions */
/** @typedef {import("heed/views/hooks.js").ViewProps} ViewProps */

/** The reason for the end of the text. @type {Record<string, string>} */
const ENDS = {
  eos: ", then the end",
  stop: ", then a stop text",
  stopped: ", then stopped",
  failed: ", then an error",
  length: "",
  running: "",
};
const FULL = ", the most that the model has positions for";
export const FIELDS = ["max_new_tokens", "temperature", "seed"];

/** Length, temperature and seed. @param {{settings: ViewProps["settings"], set: ViewProps["set"], actions: Actions, isRunning: boolean, children?: unknown}} props */
export function Parameters({ settings, set, actions, isRunning, children }) {
  const id = useId();
  const { temperature, chosen, topK, topP, stop } = settings;
  const more = [
    temperature > 0 && topK > 0 && `top_k ${topK}`,
    temperature > 0 && topP < 1 && `top_p ${topP}`,
    stop.length > 0 && `stop ${stop.map((text) => JSON.stringify(text)).join(" ")}`,
  ].filter(Boolean);
  const { field, message } = /** @type {{field?: string, message?: string}} */ (actions.error ?? {});
  const errors =
    field && FIELDS.includes(field) ? { [field]: (message ?? "").replace(/^max_new_tokens/, "length") } : {};
  const isCount = (/** @type {number} */ number) => Number.isSafeInteger(number) && number >= 0;
  /** @param {"length" | "temperature" | "seed"} name @param {string} sent  its name in a request @param {Record<string, unknown>} more */
  const input = (name, sent, more) =>
    html`<label>${name} <${NumberField} value=${settings[name]} min="0" isAllowed=${isCount} ...${more} ...${invalid(id, sent, errors)}
      onNumber=${(/** @type {number | undefined} */ number) => number !== undefined && set({ [name]: number })} /></label>`;
  return html`<div class="tools" role="group" aria-label="how it is generated">
      ${input("length", "max_new_tokens", { min: 1, isAllowed: (/** @type {number} */ number) => isCount(number) && number > 0 })}
      ${input("temperature", "temperature", { step: 0.1, isAllowed: (/** @type {number} */ number) => number >= 0 })}
      ${
        temperature > 0 &&
        html`${input("seed", "seed", {})}
        <button onClick=${() => set({ seed: Math.floor(Math.random() * 1e6) })}>another seed</button>`
      }
      ${more.length > 0 && html`<span class="more">${more.join(", ")}</span>`}
      ${
        isRunning
          ? html`<button class="main" key="main" onClick=${actions.stop}>Stop</button>`
          : html`<button class="main" key="main" onClick=${actions.again}>Generate</button>`
      }
      ${chosen.length > 0 && html`<button onClick=${() => set({ chosen: [], token: null, seen: null })}>undo the choice</button>`}
      ${children}
    </div>
    ${FIELDS.map((name) => html`<${FieldError} id=${id} name=${name} errors=${errors} />`)}`;
}

/** The progress of the text, or the reason for its end, and the times. @param {{text: GeneratedText} & Pick<ViewProps, "settings">} props */
export function Ending({ text: { status, tokens, fresh, firstMs, totalMs }, settings: { chosen, length } }) {
  const kept = chosen.length > 0 ? `, ${chosen.length} of them kept` : "";
  const count = `${tokens.length} ${tokens.length === 1 ? "token" : "tokens"}${kept}`;
  const isFull = status === "length" && tokens.length - chosen.length < length;
  const each = fresh > 1 ? `, others ${brief((totalMs - firstMs) / (fresh - 1))}` : "";
  const times = fresh > 0 ? `: first ${brief(firstMs)}${each}` : "";
  const isRunning = status === "running"; // its numbers change too often to be said by a screen reader
  return html`<span class="ending"><span role="status">${isRunning ? "generating …" : count + (isFull ? FULL : ENDS[status])}</span>${isRunning ? ` ${count}` : ""}${times}</span>`;
}

/** @param {number} ms */
const brief = (ms) => (ms < 1000 ? `${ms < 10 ? ms.toFixed(1) : Math.round(ms)} ms` : `${(ms / 1000).toFixed(1)} s`);
