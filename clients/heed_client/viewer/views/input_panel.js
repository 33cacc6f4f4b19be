// What the model is run on: texts or tensors, and the model's options.
import { html } from "vendor/preact.js";

/** @typedef {import("heed/data/api.js").Model} Model */
/** @typedef {import("heed/data/state.js").Settings} Settings */
/** @typedef {import("heed/views/server_app.js").Request} Request */

/**
 * @param {{model: Model, settings: Settings, set: import("heed/views/hooks.js").Set, request: Request | null,
 *   setRequest: (request: Request | null) => void, error: Error | null, isBusy: boolean,
 *   input: import("heed/data/run.js").Input | null}} props
 */
export function InputPanel({ model, settings, set, error, isBusy }) {
  return html`<section class="input" aria-label="input" aria-busy=${isBusy}>
    <h2>${model.title}</h2>
    ${model.tokenizer && html`<label>text <textarea rows="3" value=${settings.text}
      onInput=${(/** @type {any} */ event) => set({ text: event.currentTarget.value })}></textarea></label>`}
    ${error && html`<p role="alert">${error.message}</p>`}
  </section>`;
}
