// The texts of a model with a tokenizer: one, a pair, and a decoder's; and a picture for a model that reads it in its text.
import { html, useEffect, useRef, useState } from "vendor/preact.js";
import { SENTENCE } from "heed/data/state.js";
import { aboutTest, DropTarget, PictureFile } from "heed/page/input/drop.js";
import { FieldError, invalid } from "heed/page/input/field.js";
import { requestOf, TEST, testPicture } from "heed/server/picture.js";
import { hasDecoderText, isGenerated, placeholderOf } from "heed/server/texts.js";

/** @typedef {import("heed/page/input/panel.js").PartProps & {setError: (error: Error | null) => void}} TextsProps */

/** @param {TextsProps} props */
export function Texts(props) {
  const { id, model, settings, set, answer, errors, isOpen, isSecond = false } = props;
  const [isPair, setPair] = useState(false);
  const { text, pair, target } = settings;
  const second = useRef(/** @type {HTMLElement | null} */ (null));
  const isMoved = useRef(false); // the element with the focus is removed
  const show = (/** @type {boolean} */ isShown) => {
    isMoved.current = true;
    setPair(isShown);
    if (!isShown) set({ pair: "" });
  };
  useEffect(() => {
    if (isMoved.current) second.current?.querySelector(/** @type {"button"} */ ("textarea, button"))?.focus();
    isMoved.current = false;
  }, [isPair]);
  const limits = /** @type {{max_tokens: number | null, truncates_to: number | null}} */ (model.tokenizer);
  const most = limits.truncates_to ?? limits.max_tokens;
  const count = text.trim() && answer ? answer.input.source.length : null;
  return html`
    <${TextBox} id=${id} label=${isSecond ? "text to compare with" : "text"} name="text" value=${text} errors=${errors} onText=${(/** @type {string} */ text) => set({ text })} />
    ${count !== null && html`<p class="count">${count}${most ? ` of ${most}` : ""} tokens</p>`}
    ${count !== null && answer?.input.truncated && html`<p class="note warning">The text is too long for the model: its end was cut off.</p>`}
    ${!text.trim() && html`<button onClick=${() => set({ text: SENTENCE })}>use an example sentence</button>`}
    ${placeholderOf(model) && model.preprocessor && html`<${PictureOfText} ...${props} preprocessor=${model.preprocessor} />`}
    <div class="second" ref=${second} hidden=${!isOpen && !isPair && !pair}>${
      isPair || pair
        ? html`<${TextBox} id=${id} label="second text" name="text_pair" value=${pair} errors=${errors} onText=${(/** @type {string} */ pair) => set({ pair })} />
        <button onClick=${() => show(false)}>remove the second text</button>`
        : html`<button onClick=${() => show(true)}>add a second text</button>`
    }</div>
    ${
      hasDecoderText(model) &&
      (isOpen || target || errors.text_target || (!isSecond && settings.view !== "generate")) &&
      html`<${TextBox} id=${id} label="text of the decoder" name="text_target" value=${target} errors=${errors} hint=${(isGenerated(model, settings) && answer?.settings.target) || "the same text"}
      onText=${(/** @type {string} */ target) => set({ target })} />`
    }`;
}

/** @param {{id: string, label: string, name: string, value: string, hint?: string, errors: Record<string, string>, onText: (text: string) => void}} props */
const TextBox = ({ id, label, name, value, hint = "", errors, onText }) => html`<div class="text">
  <label>${label} <textarea rows="2" dir="auto" value=${value} placeholder=${hint} ...${invalid(id, name, errors)}
    onInput=${(/** @type {any} */ event) => onText(event.currentTarget.value)}></textarea></label>
  <${FieldError} id=${id} name=${name} errors=${errors} /></div>`;

/** The picture that the text is about. @param {TextsProps & {preprocessor: import("heed/server/picture.js").Preprocessor}} props */
function PictureOfText({ model, settings, set, isSecond, request, setRequest, setError, preprocessor }) {
  const placeholder = /** @type {import("heed/server/api.js").Placeholder} */ (placeholderOf(model));
  const removed = useRef(/** @type {import("heed/server/run.js").Request | null} */ (null)); // comes again with Back
  const show = (/** @type {import("heed/server/run.js").Request | null} */ next) => {
    setError(null);
    if (next === null) removed.current = request;
    setRequest(next);
    const isViewGone = next === null && settings.view === "picture";
    // a link has no picture file, and starts with the test picture
    if (!isSecond) set({ picture: next !== null, ...(isViewGone && { view: "" }) });
  };
  const showTest = () => show({ fields: { pixel_values: testPicture(preprocessor) }, words: [], picture: TEST });
  useEffect(() => {
    removed.current = null;
  }, [model]);
  useEffect(() => {
    if (isSecond || settings.picture === (request !== null)) return;
    if (settings.picture) removed.current ? show(removed.current) : showTest();
    else setRequest(null); // the link was changed
  }, [model, settings.picture]);
  const open = async (/** @type {File[]} */ files) => {
    try {
      show(await requestOf(files, preprocessor));
    } catch (error) {
      setError(/** @type {Error} */ (error));
    }
  };
  return html`<div class="picture-of-text">
    <${PictureFile} onFiles=${open} />
    ${
      request?.picture
        ? html`<p class="note"><span title=${`It is inserted at ${placeholder.token}, or before the text if the text has none.`}>${request.picture === TEST ? aboutTest(model, Boolean(isSecond)) : request.picture}</span>
        <button onClick=${() => show(null)}>remove the picture</button></p>`
        : html`<button onClick=${showTest}>use the test picture</button>`
    }
    ${!isSecond && html`<${DropTarget} label="Drop a picture" onFiles=${open} />`}</div>`;
}
