// One pair of a query and a key, step by step with the numbers of the run; the vectors can be edited.
import { html, useEffect, useRef, useState } from "vendor/preact.js";
import { format, percent } from "heed/data/display.js";
import { fromRequest } from "heed/server/run.js";
import { stepsOf } from "heed/server/steps.js";
import { usePromise } from "heed/views/hooks.js";
import { Choice, NumberField } from "heed/views/controls.js";
import { Formula } from "heed/views/formula.js";
import { StepsTensors } from "heed/views/steps_tensors.js";

/** @typedef {import("heed/views/hooks.js").ViewProps} ViewProps */
/** @typedef {import("heed/server/steps.js").Vector} Vector */
/** @typedef {import("heed/views/steps_tensors.js").Cell} Cell */

const MAX_CELLS = 128; // of a vector
const SHORT = 6; // numbers: two vectors are beside each other in a large window
const FOLDED = 16; // of a longer one, until it is opened
const FOLDED_NARROW = 7; // in a narrow window, in two rows with the button

/** @param {ViewProps & {run: import("heed/views/hooks.js").Run}} props */
export function StepsView({ attention, settings, set, run }) {
  const { model, input, setRequest } = run;
  const { head, batch } = settings;
  const query = settings.query ?? 0;
  const [cell, setCell] = useState(/** @type {Cell | null} */ (null)); // that is pointed at
  const { value: steps, error } = usePromise(
    () => stepsOf(model, { ...run.settings, head, batch }, input, query, settings.key),
    [input, head, batch, query, settings.key],
  );
  const edit = (/** @type {string} */ name, /** @type {number} */ place, /** @type {number} */ number) => {
    set({ random: null, query, key: settings.key ?? steps?.key ?? null }); // another key may get the largest weight
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
  return html`<div class="tools">
      <${Place} label="query" labels=${attention.rows} value=${query} onChange=${(/** @type {number} */ query) => set({ query })} />
      ${steps && html`<${Place} label="key" labels=${attention.columns} value=${steps.key} onChange=${(/** @type {number} */ key) => set({ key })} />`}
    </div>
    ${error && html`<p role="alert">${error.message}</p>`}
    <${Formula} formula=${model.formula} />
    <${StepsTensors} attention=${attention} settings=${settings} set=${set} run=${run} pair=${{ query, key: steps?.key ?? settings.key }} weight=${steps?.weight ?? null} cell=${cell} setCell=${setCell} />
    ${steps && html`<h2>Query ${query} and key ${steps.key}, number by number <small>Edit a number in a box to see what changes.</small></h2><${Pair} steps=${steps} query=${query} cells=${cells} cell=${cell} setCell=${setCell} />`}`;
}

/** @param {import("heed/views/steps_tensors.js").Pointed & {steps: import("heed/server/steps.js").Steps, query: number, cells: (vector: Vector, label: string) => unknown}} props */
function Pair({ steps, query, cells, cell, setCell }) {
  const { key, keyVector, projected, products, terms, scores, score, power, lse, weight, value, output, joined } =
    steps;
  const v = projected ? projected.value : (value?.values ?? null);
  const names = projected ? ["q", "k", "v"] : ["Q", "K", "V"];
  const last = terms.length - 1; // the score
  const chain = [
    ...terms.map(({ name, text, value }, i) => ({
      label: i < last ? name : "score",
      text,
      name,
      value: i < last ? value : score, // as the server rounds it
    })),
    ...(terms.length
      ? []
      : [{ label: "score", text: "", name: "the score, by the block’s formula above", value: score }]),
    {
      label: "weight",
      text: power === null ? "" : "softmax",
      name: `the weight, ${percent(weight)}: ${power === null ? "not " : ""}exp(score − lse)`,
      value: weight,
    },
  ];
  const own = (/** @type {Cell} */ { isOfKeys }) => (isOfKeys ? key : query);
  const list = useRef(/** @type {HTMLElement | null} */ (null));
  useEffect(() => {
    for (const vector of list.current?.querySelectorAll("[data-tensor]") ?? []) {
      const { tensor } = /** @type {HTMLElement} */ (vector).dataset;
      const isHere = cell !== null && cell.title === tensor && (cell.row ?? own(cell)) === own(cell);
      [...vector.children].forEach((number, l) => number.toggleAttribute("data-pointed", isHere && l === cell.column));
    }
  });
  const point = (/** @type {any} */ { target }) => {
    const [number, vector] = [target.closest("li"), target.closest("[data-tensor]")];
    const column = vector && number ? [...vector.children].indexOf(number) : -1;
    setCell(
      column < 0 || number.querySelector("button")
        ? null
        : { title: vector.dataset.tensor, row: null, column, isOfKeys: false },
    );
  };
  const leave = () => setCell(null);
  const isShort = [steps.query.values, keyVector.values, scores, value?.values, output, joined].every(
    (numbers) => (numbers?.length ?? 0) <= SHORT,
  );
  return html`<ol class=${`steps ${isShort ? "short" : ""}`} ref=${list} onPointerOver=${point} onPointerLeave=${leave} onFocusIn=${point} onFocusOut=${leave}>
    <${Step} title=${`query ${query}`} formula=${`Q[${query}]`} size=${steps.query.values.length}>${cells(steps.query, "query")}<//>
    <${Projected} name="query" letter="q" place=${query} values=${projected?.query} />
    ${keyVector.values.length > 0 && html`<${Step} title=${`key ${key}`} formula=${`K[${key}]`} size=${keyVector.values.length}>${cells(keyVector, "key")}<//>`}
    <${Projected} name="key" letter="k" place=${key} values=${projected?.key} />
    ${products.length > 0 && html`<${Step} title="products of query and key" formula=${`${names[0]}[${query}] × ${names[1]}[${key}]`} size=${products.length}><${Cells} label="products" values=${products} /><//>`}
    <${Step} title="score and weight" formula=${`of query ${query} and key ${key}`}><ol class="chain">${chain.map(({ label, text, name, value }) => html`<li>${text} ${text && "="} <data class="result" aria-label=${label} value=${value}>${fixed(value)}</data><small>${name}${label === "score" && terms.length > 1 && ": the score"}</small></li>`)}</ol><//>
    ${
      power !== null &&
      html`<${Step} title=${`scores of query ${query}`} formula=${`lse = ln Σ exp(score) = ${format(/** @type {number} */ (lse))}`} size=${scores.length}>
        <${Cells} label="scores of the query" tensor="scores" values=${scores} /><//>`
    }
    ${value && html`<${Step} title=${`value ${key}`} formula=${`V[${key}]`} size=${value.values.length}>${cells(value, "value")}<//>`}
    <${Projected} name="value" letter="v" place=${key} values=${projected?.value} />
    ${
      output && v
        ? html`<${Step} title="weight times value" formula=${`A[${query}, ${key}] × ${names[2]}[${key}]`} size=${v.length}><${Cells} label="weight times value" values=${v.map((number) => number * weight)} /><//>
        <${Step} title=${`output ${query}${joined ? " of the head" : ""}`} formula="the sum over all keys" size=${output.length}><${Cells} label=${joined ? "output of the head" : "output"} values=${output} /><//>`
        : v &&
          html`<${Step} title="output" formula="Not the sum of weights times these values: this block computes its output differently." />`
    }
    ${joined && html`<${Step} title=${`output ${query}`} formula="all heads joined and projected" size=${joined.length}><${Cells} label="output" values=${joined} /><//>`}
  </ol>`;
}

/** A vector after its projection, if there is one. @param {{name: string, letter: string, place: number, values?: number[] | null}} props */
const Projected = ({ name, letter, place, values }) =>
  values?.length
    ? html`<${Step} title=${`projected ${name} ${place}`} formula=${`${letter}[${place}], by the weights of the head`} size=${values.length}>
        <${Cells} label=${`projected ${name}`} values=${values} /><//>`
    : null;

/** @param {{title: string, formula?: string, size?: number, children?: unknown}} props  `size` of a vector */
const Step = ({ title, formula = "", size = 0, children }) => html`<li><div><h3>${title}</h3>
  <small>${[size > SHORT && `${size} numbers`, formula].filter(Boolean).join(", ")}</small></div><div class="step">${children}</div></li>`;

/** A number of the computation; 0 as in a box. @param {number} number */
const fixed = (number) => (number === 0 ? "0" : format(number));

/** A number with up to four digits, and at least the decimals of the pictures. @param {number} number */
function digitsOf(number) {
  const text = String(Number(number.toPrecision(4)));
  return number === 0 || text.includes("e") || (text.split(".")[1]?.length ?? 0) >= 2 ? text : number.toFixed(2);
}

/** The numbers of a vector, which is a row of a tensor. @param {{label: string, tensor?: string, values: number[], onEdit?: (place: number, number: number) => void}} props */
function Cells({ label, tensor = label, values, onEdit }) {
  const top = Math.max(...values.filter(Number.isFinite).map(Math.abs)) || 1; // a masked score is −∞
  const [isUnfolded, setUnfolded] = useState(false);
  const folded = matchMedia("(max-width: 30rem)").matches ? FOLDED_NARROW : FOLDED;
  const isOpen = isUnfolded || values.length <= folded + 1;
  return html`<ol class="cells" aria-label=${label} data-tensor=${tensor}>
    ${values.slice(0, isOpen ? MAX_CELLS : folded).map(
      (
        number,
        l,
      ) => html`<li style=${{ "--share": `${Number.isFinite(number) ? (100 * Math.abs(number)) / top : 0}%` }} class=${number < 0 ? "negative" : ""}>
      ${
        onEdit
          ? html`<${NumberField} type="text" inputmode="decimal" aria-label=${`${label} ${l}`} value=${digitsOf(number)}
            onNumber=${(/** @type {number | undefined} */ next) => next !== undefined && onEdit(l, next)} />`
          : html`<data value=${number}>${fixed(number)}</data>`
      }</li>`,
    )}
    ${!isOpen && html`<li><button onClick=${() => setUnfolded(true)}>${values.length - folded} more</button></li>`}
    ${isOpen && values.length > MAX_CELLS && html`<li>… ${values.length - MAX_CELLS} more</li>`}</ol>`;
}

/** A token among those of the queries or keys.
 *  @param {{label: string, labels: import("heed/data/attention.js").Label[], value: number, onChange: (place: number) => void}} props */
const Place = ({ label, labels, value, onChange }) => html`<${Choice} label=${label} value=${value}
  options=${Object.fromEntries(labels.map(({ text }, place) => [place, text === String(place) ? text : `${place} ${text}`]))}
  onChange=${(/** @type {string} */ place) => onChange(Number(place))} />`;
