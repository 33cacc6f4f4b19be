// One pair of a query and a key, step by step with the numbers of the run; the vectors can be edited.
import { html, useEffect, useRef } from "vendor/preact.js";
import { format } from "heed/data/display.js";
import { fromRequest } from "heed/server/run.js";
import { stepsOf } from "heed/server/steps.js";
import { usePromise } from "heed/views/hooks.js";
import { Choice, NumberField } from "heed/views/controls.js";

/** @typedef {import("heed/views/hooks.js").ViewProps} ViewProps */
/** @typedef {import("heed/server/steps.js").Vector} Vector */

const MAX_CELLS = 128; // of a vector

/** @param {ViewProps & {run: import("heed/views/hooks.js").Run}} props */
export function StepsView({ attention, settings, set, run }) {
  const { model, input, setRequest } = run;
  const { head, batch } = settings;
  const query = settings.query ?? 0;
  const { value: steps, error } = usePromise(
    () => stepsOf(model, { ...run.settings, head, batch }, input, query, settings.key),
    [input, head, batch, query, settings.key],
  );
  const edit = (/** @type {string} */ name, /** @type {number} */ place, /** @type {number} */ number) => {
    set({ random: null });
    setRequest((before) => {
      const fields = before ? fromRequest(model, before.fields).tensors : input.tensors;
      const data = fields[name].data.slice();
      data[place] = number;
      const words = input.source.map(({ text }) => text); // those of the built-in sentence, too
      const special = input.source.flatMap((label, place) => (label.special ? [place] : []));
      return { words, special, ...before, fields: { ...fields, [name]: { ...fields[name], data } } };
    });
  };
  const cells = (
    /** @type {Vector} */ vector,
    /** @type {string} */ label,
  ) => html`<${Cells} label=${label} values=${vector.values}
    onEdit=${(/** @type {number} */ l, /** @type {number} */ number) => edit(vector.name, vector.start + l, number)} />`;
  return html`<${Formula} formula=${model.formula} />
    ${error && html`<p role="alert">${error.message}</p>`}
    <div class="tools">
      <${Place} label="query" labels=${attention.rows} value=${query} onChange=${(/** @type {number} */ query) => set({ query })} />
      ${steps && html`<${Place} label="key" labels=${attention.columns} value=${steps.key} onChange=${(/** @type {number} */ key) => set({ key })} />`}
    </div>
    ${
      steps &&
      html`<ol class="steps">
      <${Step} title=${`query ${query}`}>${cells(steps.query, "query")}<//>
      ${steps.keyVector.values.length > 0 && html`<${Step} title=${`key ${steps.key}`}>${cells(steps.keyVector, "key")}<//>`}
      ${
        steps.products.length > 0
          ? html`<${Step} title="products of query and key"><${Cells} label="products" values=${steps.products} /><//>
          ${steps.terms.map(({ name, text, value }) => html`<${Step} title=${name}><span>${text}</span><${Result} label=${name} value=${value} /><//>`)}
          <${Step} title="score"><span>from the server</span><${Result} label="score" value=${steps.score} /><//>`
          : html`<${Step} title="score"><span>by the block's formula above; from the server</span><${Result} label="score" value=${steps.score} /><//>`
      }
      ${
        steps.power !== null &&
        html`<${Step} title="softmax">
        <span>exp(score − lse) = exp(${format(steps.score)} − ${format(/** @type {number} */ (steps.lse))})</span><${Result} label="exp(score − lse)" value=${steps.power} /><//>`
      }
      <${Step} title="weight"><span>${steps.power === null ? "from the server; it is not exp(score − lse)" : "from the server"}</span>
        <${Result} label="weight" value=${steps.weight} /><//>
      ${steps.value && html`<${Step} title=${`value ${steps.key}`}>${cells(steps.value, "value")}<//>`}
      ${
        steps.output && steps.value
          ? html`<${Step} title="weight times value"><${Cells} label="weight times value" values=${steps.value.values.map((number) => number * steps.weight)} /><//>
          <${Step} title=${`output ${query}: the sum over all keys`}><${Cells} label="output" values=${steps.output} /><//>`
          : steps.value &&
            html`<${Step} title="output"><span>Not the sum of weights times these values: this block computes its output differently.</span><//>`
      }
    </ol>`
    }`;
}

/** @param {{title: string, children?: unknown}} props */
const Step = ({ title, children }) => html`<li><h3>${title}</h3><div class="step">${children}</div></li>`;

/** @param {{label: string, value: number}} props */
const Result = ({ label, value }) =>
  html`<data class="result" aria-label=${label} value=${value}>${format(value)}</data>`;

/** The numbers of a vector. @param {{label: string, values: number[], onEdit?: (place: number, number: number) => void}} props */
function Cells({ label, values, onEdit }) {
  const top = Math.max(...values.map(Math.abs)) || 1;
  return html`<ol class="cells" aria-label=${label}>
    ${values.slice(0, MAX_CELLS).map(
      (
        number,
        l,
      ) => html`<li style=${{ "--share": `${(100 * Math.abs(number)) / top}%` }} class=${number < 0 ? "negative" : ""}>
      ${
        onEdit
          ? html`<${NumberField} step="any" aria-label=${`${label} ${l}`} value=${Number(number.toPrecision(5))}
            onNumber=${(/** @type {number | undefined} */ next) => next !== undefined && onEdit(l, next)} />`
          : html`<data value=${number}>${format(number)}</data>`
      }</li>`,
    )}
    ${values.length > MAX_CELLS && html`<li>… ${values.length - MAX_CELLS} more</li>`}</ol>`;
}

/** A token among those of the queries or keys.
 *  @param {{label: string, labels: import("heed/data/attention.js").Label[], value: number, onChange: (place: number) => void}} props */
const Place = ({ label, labels, value, onChange }) => html`<${Choice} label=${label} value=${value}
  options=${Object.fromEntries(labels.map(({ text }, place) => [place, text === String(place) ? text : `${place} ${text}`]))}
  onChange=${(/** @type {string} */ place) => onChange(Number(place))} />`;

/** @param {{formula: string}} props */
function Formula({ formula }) {
  const element = useRef(/** @type {HTMLElement | null} */ (null));
  useEffect(() => {
    const href = new URL("../vendor/katex.css", import.meta.url).href;
    if (!document.querySelector(`link[href="${href}"]`))
      document.head.append(Object.assign(document.createElement("link"), { rel: "stylesheet", href }));
    import("vendor/katex.js").then(({ default: katex }) => {
      if (element.current) katex.render(formula, element.current, { displayMode: true, throwOnError: false });
    });
  }, [formula]);
  return html`<div class="formula" ref=${element} role="math" aria-label=${formula}></div>`;
}
