// The model's input, texts or tensors, and its options.
import { html, useId, useState } from "vendor/preact.js";
import { isTrained, shortened } from "heed/server/api.js";
import { DRAWING } from "heed/server/generation.js";
import { preprocessorOf, requestOf } from "heed/server/picture.js";
import { neededFor } from "heed/server/run.js";
import { aboutTest, PictureFile } from "heed/page/input/drop.js";
import { Options } from "heed/page/input/options.js";
import { Tensors } from "heed/page/input/tensors.js";
import { Texts } from "heed/page/input/texts.js";

/** @typedef {import("heed/server/api.js").Model} Model */
/** @typedef {import("heed/server/run.js").Request} Request */
/** @typedef {import("heed/data/state.js").Settings} Settings */
/**
 * @typedef {object} PanelProps
 * @property {Model} model @property {Settings} settings @property {import("heed/views/hooks.js").Set} set
 * @property {Request | null} request @property {(request: Request | null) => void} setRequest
 * @property {Error | null} error  of the last run @property {boolean} isBusy
 * @property {import("heed/views/hooks.js").Answer | null} answer  of this model
 * @property {boolean} [isOpen]  whether more than the text is visible @property {(isOpen: boolean) => void} [setOpen]
 * @property {boolean} [isSecond]  beside another panel, which takes the files that are dropped
 */
/** @typedef {PanelProps & {id: string, errors: Record<string, string>}} PartProps  `id` begins the ids of elements */

const TEXTS = ["text", "text_pair", "text_target"];

/** @param {PanelProps} props */
export function InputPanel(props) {
  const { model, error, isBusy, isSecond = false, setOpen = () => {} } = props;
  const id = useId();
  const [given, setGiven] = useState(/** @type {{model: Model, error: Error} | null} */ (null)); // the error of a file or a text
  const own = given?.model === model ? given.error : null;
  const needed = neededFor(model, props.settings, props.request);
  const failed = needed ? null : error;
  const field = /** @type {any} */ (failed)?.field;
  const names = [
    ...(model.tokenizer ? TEXTS : model.inputs.map(({ name }) => name)),
    ...model.parameters.map(({ name }) => name),
    ...(model.generate && props.settings.view === "generate" ? DRAWING : []),
  ];
  const isPlaced = names.includes(field); // the message stands beside its field
  const errors = failed && isPlaced ? { [field]: failed.message } : {};
  const setError = (/** @type {Error | null} */ next) => setGiven(next && { model, error: next });
  const preprocessor = preprocessorOf(model);
  const open = async (/** @type {File[]} */ files) => {
    try {
      const next = await requestOf(files, /** @type {import("heed/server/picture.js").Preprocessor} */ (preprocessor));
      setError(null);
      props.setRequest(next);
      props.set({ random: null, sentence: false });
    } catch (error) {
      setError(/** @type {Error} */ (error));
    }
  };
  const isOpen = props.isOpen || own !== null || Object.keys(errors).some((name) => !TEXTS.includes(name));
  return html`<section class=${isOpen ? "input open" : "input"} aria-label=${isSecond ? "input of the second" : "input"} aria-busy=${isBusy && !needed}>
    ${model.tokenizer && html`<${Texts} ...${props} isOpen=${isOpen} id=${id} errors=${errors} setError=${setError} />`}
    <div class="summary">${!isSecond && html`<h2>${model.tokenizer || isTrained(model) ? model.block : model.title}</h2>`}
      ${preprocessor && html`<${PictureFile} onFiles=${open} /><span class="note">${props.request?.picture ?? (props.request || props.settings.random ? "" : aboutTest(model, isSecond))}</span>`}
      <button aria-expanded=${isOpen} aria-controls=${`${id}-controls`} onClick=${() => setOpen(!isOpen)}>${
        model.tokenizer ? "Options" : "Tensors and options"
      }</button></div>
    <div class="controls" id=${`${id}-controls`} hidden=${!isOpen}>
      <p class="note">${isTrained(model) && `${model.title}: `}${model.description}${model.weights !== "none" && ` Weights: ${shortened(model.weights)}.`}</p>
      ${
        !model.tokenizer &&
        html`<${Tensors} ...${props} key=${model.block} id=${id} errors=${errors} setError=${setError} hasError=${own !== null} />`
      }
      ${own && html`<p role="alert" id=${`${id}-given`}>${own.message}</p>`}
      <${Options} ...${props} id=${id} errors=${errors} />
    </div>
    ${needed && !own && html`<p class="note">${needed}</p>`}
    ${failed && !isPlaced && html`<p role="alert">${failed.message}</p>`}
  </section>`;
}
