// The output that is shown, and the model's parameters: every change runs the model at once.
import { html, useState } from "vendor/preact.js";
import { kindsOf } from "heed/server/run.js";
import { FieldError, invalid } from "heed/page/input/field.js";
import { Choice, NumberField, Switch, titlesOf } from "heed/views/controls.js";

/** @typedef {import("heed/server/api.js").ParameterDescription} ParameterDescription */

/** Ranges of sliders: lowest, highest, step. @type {[RegExp, number, number, number][]} */
const SLIDERS = [
  [/^scale$/, 0, 4, 0.01],
  [/softcap/, 0, 50, 0.5],
  [/window_size$/, -1, 32, 1],
  [/bandwidth|temperature/, 0.05, 5, 0.05],
];

/** @param {import("heed/page/input/panel.js").PartProps} props */
export function Options({ id, model, settings, set, answer, errors, isSecond = false }) {
  const kinds = kindsOf(model);
  const first = model.inputs.find(({ required, shape }) => required && ["batch", "images"].includes(String(shape[0])));
  const rows = (first && answer?.input.tensors[first.name]?.shape[0]) ?? 1;
  const change = (/** @type {string} */ name, /** @type {unknown} */ value) => {
    const { [name]: _, ...others } = settings.parameters;
    set({ parameters: value === undefined ? others : { ...others, [name]: value } });
  };
  return html`<div class="options" role="group" aria-label="options">
    ${
      isSecond && // of the first side it is above the picture
      kinds.length > 1 &&
      html`<${Choice} label="look at" value=${settings.kind}
      options=${titlesOf(kinds)} onChange=${(/** @type {string} */ kind) => set({ kind })} />`
    }
    ${
      rows > 1 &&
      html`<${Choice} label="row of the batch" value=${Math.min(settings.batch, rows - 1)}
      options=${Object.fromEntries(Array.from({ length: rows }, (_, i) => [i, String(i)]))}
      onChange=${(/** @type {string} */ batch) => set({ batch: Number(batch) })} />`
    }
    ${model.generate && settings.view === "generate" && !isSecond && html`<${Drawing} id=${id} settings=${settings} set=${set} errors=${errors} />`}
    ${model.parameters.map(
      (parameter) => html`<${Parameter} key=${parameter.name} id=${id} parameter=${parameter}
      value=${settings.parameters[parameter.name]} onChange=${(/** @type {unknown} */ value) => change(parameter.name, value)} errors=${errors} />`,
    )}
  </div>`;
}

/** The tokens from which the next one is drawn, and the texts that end it; length, temperature and seed are above it.
 *  @param {Pick<import("heed/page/input/panel.js").PartProps, "id" | "settings" | "set" | "errors">} props */
function Drawing({ id, settings, set, errors }) {
  const { topK, topP, stop, temperature } = settings;
  const [draft, setDraft] = useState(/** @type {string | null} */ (null));
  const written = stop.map((text) => text.replaceAll("\\", "\\\\").replaceAll("\n", "\\n")).join("\n");
  const write = (/** @type {any} */ { currentTarget: { value } }) => {
    setDraft(value);
    set({ stop: value.split("\n").filter(Boolean).map(unescaped) });
  };
  return html`<div class="parameter"><label><code>top_k</code> <${NumberField} min="1" step="1" value=${topK || ""} placeholder="all tokens" ...${invalid(id, "top_k", errors)}
      isAllowed=${(/** @type {number} */ number) => Number.isSafeInteger(number) && number > 0} onNumber=${(/** @type {number | undefined} */ number) => set({ topK: number ?? 0 })} /></label>
      <${FieldError} id=${id} name="top_k" errors=${errors} /></div>
    <div class="parameter"><label><code>top_p</code> <${NumberField} min="0" max="1" step="0.05" value=${topP < 1 ? topP : ""} placeholder="all tokens" ...${invalid(id, "top_p", errors)}
      isAllowed=${(/** @type {number} */ number) => number > 0 && number <= 1} onNumber=${(/** @type {number | undefined} */ number) => set({ topP: number ?? 1 })} /></label>
      <${FieldError} id=${id} name="top_p" errors=${errors} /></div>
    ${temperature === 0 && html`<p class="note"><code>top_k</code> and <code>top_p</code> apply only with a temperature above 0.</p>`}
    <div class="text"><label><code>stop</code>, one text per line <textarea rows="2" value=${draft ?? written} placeholder="none; \\n is a new line" ...${invalid(id, "stop", errors)}
      onInput=${write} onBlur=${() => setDraft(null)}></textarea></label>
      <${FieldError} id=${id} name="stop" errors=${errors} /></div>`;
}

/** @param {string} line */
const unescaped = (line) => line.replace(/\\([n\\])/g, (_, letter) => (letter === "n" ? "\n" : letter));

/** @param {{id: string, parameter: ParameterDescription, value: unknown, onChange: (value: unknown) => void, errors: Record<string, string>}} props */
function Parameter({ id, parameter, value, onChange, errors }) {
  const { name, dtype, default: standard, description } = parameter;
  const plain = name.replace(/^is_/, "").replaceAll("_", " ");
  const label = plain === name ? name : html`<span>${plain} <code>${name}</code></span>`;
  if (dtype === "bool")
    return html`<div class="parameter" title=${description}>
    <${Switch} label=${label} checked=${value ?? standard} onChange=${(/** @type {boolean} */ checked) => onChange(checked === standard ? undefined : checked)} />
    <${FieldError} id=${id} name=${name} errors=${errors} /></div>`;
  const [, low, high, step] = SLIDERS.find(([pattern]) => pattern.test(name)) ?? [];
  const isSet = value !== undefined;
  return html`<div class="parameter" title=${description}>
    <label>${label} <${NumberField} step=${dtype.startsWith("int") ? 1 : "any"} value=${isSet ? value : ""}
      placeholder=${standard === null ? "default" : `default ${standard}`} aria-description=${description} ...${invalid(id, name, errors)}
      onNumber=${onChange} /></label>
    ${isSet && html`<button onClick=${() => onChange(undefined)} aria-label=${`${name}: default`}>default</button>`}
    ${
      low !== undefined &&
      html`<input type="range" aria-label=${`${name}, slider`} min=${low} max=${high} step=${step}
      value=${isSet ? value : (standard ?? low)} onInput=${(/** @type {any} */ event) => onChange(Number(event.currentTarget.value))} />`
    }
    <${FieldError} id=${id} name=${name} errors=${errors} /></div>`;
}
