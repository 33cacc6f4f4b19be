// The tensors of a model without a tokenizer: an example, a picture, random ones, files, JSON; labels of their tokens.
import { html, useMemo, useState } from "vendor/preact.js";
import { parseJson, readFile, SUFFIXES } from "heed/server/files.js";
import { preprocessorOf, requestOf, TEST } from "heed/server/picture.js";
import { sortGiven, symbolsOf } from "heed/server/request.js";
import { fromRequest, sizesOf } from "heed/server/run.js";
import { DropTarget } from "heed/page/input/drop.js";
import { FieldError } from "heed/page/input/field.js";
import { Choice, NumberField } from "heed/views/controls.js";

/** @typedef {import("heed/page/input/panel.js").PanelProps} PanelProps */
/** @typedef {import("heed/page/input/panel.js").PartProps & {setError: (error: Error | null) => void, hasError: boolean}} TensorsProps */

const SOURCES = { example: "example", random: "random", own: "file or JSON" };
const OF_PICTURES = { example: TEST, picture: "picture file", random: "random tensors", own: "tensors" };

/** @param {TensorsProps} props */
export function Tensors({
  id,
  isSecond = false,
  model,
  settings,
  set,
  request,
  setRequest,
  answer,
  errors,
  setError,
  hasError,
}) {
  const [chosen, setChosen] = useState(""); // "own" or "picture", also before there is one
  const [others, setOthers] = useState(/** @type {Record<string, unknown>} */ ({})); // whose names the model lacks
  const preprocessor = preprocessorOf(model);
  const given = request ? (request.picture ? "picture" : "own") : chosen;
  const source = given || (settings.random ? "random" : "example");
  const choose = (/** @type {string} */ next) => {
    setError(null);
    setOthers({});
    setChosen(next === "own" || next === "picture" ? next : "");
    setRequest(null);
    if (next === "random") set({ random: { seed: 1, sizes: exampleSizes(model) }, sentence: false });
    else set({ random: null });
  };
  /** Sets tensors and options; `kept` are the arrays that still need a name. */
  const give = (/** @type {Record<string, unknown>} */ values, isWhole = false, kept = {}) => {
    const { fields, parameters, words, others } = sortGiven(model, withoutShort(model, values));
    const before = isWhole || chosen !== "own" || !request ? {} : request.fields;
    setError(null);
    setOthers({ ...kept, ...others });
    setChosen("own");
    if (!Object.keys(fields).length) return;
    setRequest({ fields: { ...before, ...fields }, words: words.length || isWhole ? words : (request?.words ?? []) });
    set({
      random: null,
      sentence: false,
      ...(Object.keys(parameters).length && { parameters: { ...settings.parameters, ...parameters } }),
    });
  };
  const attempt = async (/** @type {() => void | Promise<void>} */ action) => {
    try {
      await action();
    } catch (error) {
      setError(/** @type {Error} */ (error));
    }
  };
  const open = (/** @type {File[]} */ files) =>
    attempt(async () => {
      if (!preprocessor || files.every(({ name }) => hasTensors(name)))
        return give(Object.assign({}, ...(await Promise.all(files.map(readFile)))));
      const next = await requestOf(files, preprocessor);
      setError(null);
      setOthers({});
      setChosen("picture");
      setRequest(next);
      set({ random: null, sentence: false });
    });
  return html`<fieldset class="sources"><legend>${preprocessor ? "picture" : "tensors"}</legend>
      ${Object.entries(preprocessor ? OF_PICTURES : SOURCES).map(
        ([name, title]) => html`<label>
        <input type="radio" name=${`${id}-source`} checked=${source === name} onChange=${() => choose(name)} /> ${title}</label>`,
      )}
    </fieldset>
    ${source === "random" && settings.random && html`<${RandomSizes} model=${model} random=${settings.random} set=${set} />`}
    ${
      source === "picture" &&
      preprocessor &&
      html`<p class="note">${
        request?.picture ? `${request.picture}, ` : "Choose a file above, or drop it on the page. It is "
      }${preprocessor.resize ? "center-cropped and " : ""}resized to ${preprocessor.width} × ${preprocessor.height}.</p>`
    }
    ${
      source === "own" &&
      html`<label>files <input type="file" multiple accept=${SUFFIXES} aria-describedby=${`${id}-files`}
        onChange=${(/** @type {any} */ event) => {
          open([...event.currentTarget.files]);
          event.currentTarget.value = "";
        }} /></label>
      <p class="note" id=${`${id}-files`}>.npy, .npz, .safetensors or .json; you can also drop them on the page. Names of the
        tensors: ${model.inputs
          .filter(({ required }) => required)
          .map(({ name }) => name)
          .join(", ")}, …</p>
      <${Json} id=${id} model=${model} hasError=${hasError} onValues=${(
        /** @type {() => Record<string, unknown>} */ read,
        /** @type {boolean} */ isWhole,
      ) => attempt(() => give(read(), isWhole))} />`
    }
    <${Others} model=${model} others=${others} onName=${(/** @type {string} */ name, /** @type {string} */ input) => {
      const { [name]: value, ...rest } = others;
      attempt(() => give({ [input]: value }, false, rest));
    }} />
    <${Shapes} id=${id} model=${model} request=${request} answer=${answer} errors=${errors} />
    ${!preprocessor && html`<${Words} id=${id} settings=${settings} set=${set} request=${request} answer=${answer} />`}
    ${!isSecond && html`<${DropTarget} label=${`Drop ${preprocessor ? "a picture, or " : ""}tensors: .npy, .npz, .safetensors, .json`} onFiles=${open} />`}`;
}

/** @type {Record<string, string>} */
const SHORT = { q: "query", k: "key", v: "value" };

/** Values with the inputs' names in place of q, k and v, in either case; names of the model itself are kept.
 *  @param {import("heed/server/api.js").Model} model @param {Record<string, unknown>} values @returns {typeof values} */
function withoutShort(model, values) {
  const known = [...model.inputs, ...model.parameters].map(({ name }) => name);
  const long = (/** @type {string} */ name) => {
    const found = known.includes(name) ? undefined : SHORT[name.toLowerCase()];
    return found && known.includes(found) && !Object.hasOwn(values, found) ? found : name;
  };
  return Object.fromEntries(Object.entries(values).map(([name, value]) => [long(name), value]));
}

/** @param {string} name  of a file */
const hasTensors = (name) => SUFFIXES.split(",").some((suffix) => name.toLowerCase().endsWith(suffix));

/** @param {import("heed/server/api.js").Model} model */
function exampleSizes(model) {
  const sizes = sizesOf(model, fromRequest(model, model.example).tensors);
  return Object.fromEntries(symbolsOf(model).map((symbol) => [symbol, sizes[symbol] ?? 1]));
}

/** @param {Pick<PanelProps, "model" | "set"> & {random: import("heed/server/request.js").Random}} props */
function RandomSizes({ model, random, set }) {
  const { seed, sizes } = random;
  const isSize = (/** @type {number} */ number) => Number.isSafeInteger(number) && number >= 1;
  const isSeed = (/** @type {number} */ number) => Number.isSafeInteger(number) && number >= 0;
  return html`<div class="sizes" role="group" aria-label="random tensors">
    ${symbolsOf(model).map(
      (symbol) => html`<label>${symbol} <${NumberField} min="1" step="1" value=${sizes[symbol] ?? 1} isAllowed=${isSize}
      onNumber=${(/** @type {number | undefined} */ size) => size && set({ random: { seed, sizes: { ...sizes, [symbol]: size } } })} /></label>`,
    )}
    <label>seed <${NumberField} min="0" step="1" value=${seed} isAllowed=${isSeed}
      onNumber=${(/** @type {number | undefined} */ next) => next !== undefined && set({ random: { seed: next, sizes } })} /></label>
  </div>`;
}

/** @param {Pick<PanelProps, "model"> & {id: string, hasError: boolean, onValues: (read: () => Record<string, unknown>, isWhole: boolean) => void}} props */
function Json({ id, model, hasError, onValues }) {
  const [name, setName] = useState("");
  const [text, setText] = useState("");
  const enter = (/** @type {string} */ text) => {
    setText(text);
    if (text.trim()) onValues(() => readJson(text, name), name === "");
  };
  const names = model.inputs.map((input) => input.name);
  const { name: own, dtype } = model.inputs.find((input) => input.name === name) ?? model.inputs[0];
  const example = /^float|^bfloat/.test(dtype) ? "[[0.1, 0.2], [0.3, 0.4]]" : "[[5, 9, 12]]";
  return html`<${Choice} label="paste" value=${name} options=${{ "": "a whole request", ...Object.fromEntries(names.map((name) => [name, name])) }}
      onChange=${(/** @type {string} */ next) => {
        setName(next);
        setText("");
      }} />
    <label>JSON <textarea rows="6" class="code" spellcheck="false" value=${text} placeholder=${name ? example : `{"${own}": ${example}, …}`}
      aria-invalid=${hasError ? "true" : undefined} aria-describedby=${hasError ? `${id}-given` : undefined}
      onInput=${(/** @type {any} */ event) => enter(event.currentTarget.value)}></textarea></label>
    <button onClick=${() => enter(JSON.stringify(name ? (model.example[name] ?? []) : model.example))}>use the example</button>`;
}

/** @param {string} text @param {string} name  of the tensor; "" = a whole request @returns {Record<string, unknown>} */
function readJson(text, name) {
  const value = parseJson(text);
  if (name) return { [name]: value };
  if (Array.isArray(value)) throw new Error("expected an object with the tensors by name");
  return /** @type {Record<string, unknown>} */ (value);
}

/** Asks for the input of each array that does not have the name of one. Options of a request are left out.
 *  @param {{model: import("heed/server/api.js").Model, others: Record<string, any>, onName: (name: string, input: string) => void}} props */
function Others({ model, others, onName }) {
  const isArray = (/** @type {any} */ value) =>
    Array.isArray(value) ? typeof value[0] !== "string" : ArrayBuffer.isView(value?.data);
  const options = { "": "nothing", ...Object.fromEntries(model.inputs.map(({ name }) => [name, name])) };
  const left = Object.keys(others).filter((name) => !isArray(others[name]));
  return html`${Object.keys(others)
    .filter((name) => isArray(others[name]))
    .map(
      (name) => html`<${Choice} label=${`take ${name} as`} value=""
      options=${options} onChange=${(/** @type {string} */ input) => input && onName(name, input)} />`,
    )}
    ${left.length > 0 && html`<p class="note">Not used: ${left.join(", ")}.</p>`}`;
}

/** The tensors, each with its shape and its error.
 *  @param {Pick<TensorsProps, "id" | "model" | "request" | "answer" | "errors">} props */
function Shapes({ id, model, request, answer, errors }) {
  const tensors =
    useMemo(() => (request ? fromRequest(model, request.fields).tensors : answer?.input.tensors), [request, answer]) ??
    {};
  const names = model.inputs.map(({ name }) => name).filter((name) => tensors[name] || errors[name]);
  return html`<ul class="shapes" aria-label="given tensors">${names.map(
    (name) => html`<li>
    <b>${name}</b> <span>${tensors[name]?.shape.join(" × ")}</span><${FieldError} id=${id} name=${name} errors=${errors} /></li>`,
  )}</ul>`;
}

/** @param {Pick<TensorsProps, "id" | "settings" | "set" | "request" | "answer">} props */
function Words({ id, settings, set, request, answer }) {
  const words = settings.words.length ? settings.words : (request?.words ?? []);
  const [draft, setDraft] = useState(/** @type {string | null} */ (null)); // while it is written
  const enter = (/** @type {string} */ text) => {
    setDraft(text);
    set({ words: readWords(text) });
  };
  const { m, n } = answer?.attention ?? { m: 0, n: 0 };
  const fits = words.length === 0 || !answer || words.length === m || words.length === n;
  return html`<div><label>token labels <input type="text" class="wide" value=${draft ?? words.map(quoted).join(" ")} placeholder="the cat sat"
      aria-describedby=${fits ? undefined : `${id}-words`} onInput=${(/** @type {any} */ event) => enter(event.currentTarget.value)}
      onBlur=${() => setDraft(null)} /></label>
    ${!fits && html`<p class="note" id=${`${id}-words`}>${words.length} labels, ${m} queries, ${n} keys: positions are shown instead.</p>`}</div>`;
}

/** A label without blanks, as it is written between blanks. @param {string} word */
const quoted = (word) => word.replaceAll(/\s/gu, "␣");

/** @param {string} text  words separated by blanks, or a JSON list @returns {string[]} */
function readWords(text) {
  try {
    const list = JSON.parse(text);
    if (Array.isArray(list)) return list.map(String);
  } catch {
    // words
  }
  return text.split(/\s+/u).filter((word) => word);
}
