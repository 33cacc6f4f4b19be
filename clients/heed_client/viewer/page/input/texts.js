// The texts of a model with a tokenizer: one, a pair, and a decoder's.
import { html, useEffect, useRef, useState } from "vendor/preact.js";
import { SENTENCE } from "heed/data/state.js";
import { FieldError, invalid } from "heed/page/input/field.js";

/** @param {import("heed/page/input/panel.js").PartProps} props */
export function Texts({ id, model, settings, set, answer, errors, isOpen, isSecond = false }) {
  const [isPair, setPair] = useState(false);
  const { text, pair, target } = settings;
  const second = useRef(/** @type {HTMLElement | null} */ (null));
  const isMoved = useRef(false); // what had the focus goes
  const show = (/** @type {boolean} */ isShown) => {
    isMoved.current = true;
    setPair(isShown);
    if (!isShown) set({ pair: "" });
  };
  useEffect(() => {
    if (isMoved.current) second.current?.querySelector(/** @type {"button"} */ ("textarea, button"))?.focus();
    isMoved.current = false;
  }, [isPair]);
  const hasTarget = model.inputs.some(({ name }) => name === "decoder_input_ids");
  const limits = /** @type {{max_tokens: number | null, truncates_to: number | null}} */ (model.tokenizer);
  const most = limits.truncates_to ?? limits.max_tokens;
  const count = text.trim() && answer ? answer.input.source.length : null;
  return html`
    <${TextBox} id=${id} label=${isSecond ? "text to compare with" : "text"} name="text" value=${text} errors=${errors} onText=${(/** @type {string} */ text) => set({ text })} />
    ${count !== null && html`<p class="count">${count}${most ? ` of ${most}` : ""} tokens</p>`}
    ${count !== null && answer?.input.truncated && html`<p class="note warning">The text is too long for the model: its end was cut off.</p>`}
    ${!text.trim() && html`<button onClick=${() => set({ text: SENTENCE })}>use an example sentence</button>`}
    <div class="second" ref=${second} hidden=${!isOpen && !isPair && !pair}>${
      isPair || pair
        ? html`<${TextBox} id=${id} label="second text" name="text_pair" value=${pair} errors=${errors} onText=${(/** @type {string} */ pair) => set({ pair })} />
        <button onClick=${() => show(false)}>remove the second text</button>`
        : html`<button onClick=${() => show(true)}>add a second text</button>`
    }</div>
    ${
      hasTarget &&
      (isOpen || target || errors.text_target) &&
      html`<${TextBox} id=${id} label="text of the decoder" name="text_target" value=${target} errors=${errors} hint="the same text"
      onText=${(/** @type {string} */ target) => set({ target })} />`
    }`;
}

/** @param {{id: string, label: string, name: string, value: string, hint?: string, errors: Record<string, string>, onText: (text: string) => void}} props */
const TextBox = ({ id, label, name, value, hint = "", errors, onText }) => html`<div class="text">
  <label>${label} <textarea rows="2" dir="auto" value=${value} placeholder=${hint} ...${invalid(id, name, errors)}
    onInput=${(/** @type {any} */ event) => onText(event.currentTarget.value)}></textarea></label>
  <${FieldError} id=${id} name=${name} errors=${errors} /></div>`;
