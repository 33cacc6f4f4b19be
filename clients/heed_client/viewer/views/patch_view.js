// Changes activations at one place at a time, to another text's, to zero or to the mean; a heat map shows the effects.
import { html, useId, useMemo, useRef, useState } from "vendor/preact.js";
import {
  ACTIONS,
  actionsOf,
  alike,
  axesOf,
  cellTitle,
  changedPatch,
  defaultPosition,
  DISTANCES,
  gridsOf,
  isOfPosition,
  MEANINGS,
  measurementOf,
  METRICS,
  metricsOf,
  number,
  pinnedIn,
  ranked,
  recovered,
  showGrid,
  shownIn,
  signed,
  siteMeaning,
  sitesOf,
  siteTitle,
  TOKENS,
} from "heed/data/patch.js";
import { css, palette } from "heed/data/palettes.js";
import { FieldError, invalid } from "heed/page/input/field.js";
import { wordsAt } from "heed/server/sweep.js";
import { OutputChanges } from "heed/views/ablate_view.js";
import { NextTokens } from "heed/views/chances.js";
import { Choice, hint, NumberField, Switch } from "heed/views/controls.js";
import { rootSize, useTheme, useTopEdge } from "heed/views/draw/canvas.js";
import { AROUND, BAR } from "heed/views/draw/heat_map.js";
import { HeatMap } from "heed/views/matrix_view.js";

/** @typedef {import("heed/data/patch.js").Choices} Choices */
/** @typedef {import("heed/data/patch.js").Grid} Grid */
/** @typedef {import("heed/page/sweep.js").Actions} Actions */
/** @typedef {import("heed/page/sweep.js").SweepState} SweepState */
/** @typedef {import("heed/views/hooks.js").ViewProps} ViewProps */

const LISTED = 6; // cells
const [ROW, HIGHEST] = [30, 112]; // px of a row, at least and at most
const LOWEST = 40; // px of a row of many columns in a narrow window
const OF_WIDTH = 18; // between them a row is 1 / OF_WIDTH of the width of the window
const WIDE = 800; // px of a window in which rows may be higher than columns are wide
const [LEAST, BELOW] = [0.4, 64]; // of the window's height for the map, and px below it: the last note
const MOST = 20; // times a direction, by the slider
const NEAR = 0.15; // of the legend: numbers closer than this would overlap
const STOPS = 16; // of the gradient

/** @param {ViewProps & {sweep: SweepState}} props */
export function PatchView({ settings, set, sweep: { grid, aligned, cell, actions } }) {
  const change = (/** @type {Partial<Choices>} */ changes) => set({ patch: changedPatch(settings.patch, changes) });
  return html`${actions && html`<${Parameters} actions=${actions} change=${change} grid=${grid} aligned=${aligned} />`}
    ${!actions && grid && html`<p class="note">${measurementOf(grid)}</p><${Alignment} aligned=${aligned} />`}
    ${
      grid &&
      html`<p class="on-paper">${measurementOf(grid)}</p><div class=${actions && !actions.isCurrent ? "stale-grid" : ""}>
      <div class="places"><div><${Strongest} grid=${grid} /><${GridMap} grid=${grid} settings=${settings} change=${change} /></div>
      <div class="place"><div><${Largest} grid=${grid} change=${change} /></div>
      <${Effect} grid=${grid} run=${cell} change=${change} hasRun=${actions !== null} /></div></div></div>`
    }`;
}

/** An error by the name of its field. @param {Error | null} error @returns {Record<string, string>} */
function errorsOf(error) {
  const { field, message } = /** @type {{field?: string | null, message: string}} */ (error ?? { message: "" });
  if (!field) return {};
  const name = /^intervention\.(from|add)/.test(field) ? "source" : field.split(".")[0];
  return { [name]: message };
}

const SHOWN = ["source", "metric", "position", "over", "intervention"]; // fields beside which an error is written

/** @param {{actions: Actions, change: (changes: Partial<Choices>) => void, grid: Grid | null, aligned: import("heed/page/sweep.js").Aligned[]}} props */
function Parameters({ actions, change, grid, aligned }) {
  const id = useId();
  const { model, choices, input, defaults, known, needed, error, isWaiting, isCurrent, hasLast, cells } = actions;
  const { action, at, over, metric, tokens, position, renormalize, source, minus, scale } = choices;
  const errors = errorsOf(error);
  const isTold = Object.keys(errors).some((name) => SHOWN.includes(name));
  const metrics = metricsOf(model);
  const isOfText = action === "from" || action === "add";
  const grids = gridsOf(at);
  const free = axesOf(at).filter((axis) => !over.split(",").includes(axis));
  const places = input.target.length ? input.target : input.source;
  const fix = (/** @type {string} */ axis, /** @type {string} */ value) => {
    const { [axis]: _, ...others } = /** @type {Record<string, number>} */ (choices.fixed);
    change({ fixed: value === "" ? others : { ...others, [axis]: Number(value) } });
  };
  const indices = (/** @type {import("heed/data/patch.js").Axis} */ axis) => {
    if (axis !== "layers" && axis !== "heads") return named(wordsAt(input, at, axis));
    const count = Number(model.interventions?.[at]?.[axis === "layers" ? 0 : 2]);
    return Object.fromEntries(Array.from({ length: count }, (_, i) => [i, String(i)]));
  };
  const isRunning = isCurrent && grid?.status === "running";
  /** The controls, each with a name and what it means. @type {Record<string, [string, string]>} */
  const meanings = {
    change: [ACTIONS[action], MEANINGS.change[action]],
    at: [siteTitle(at), siteMeaning(at)],
    grid: ["grid", MEANINGS.grid],
    ...Object.fromEntries(free.map((axis) => [axis, [axis, MEANINGS.fixed]])),
    times: ["times", MEANINGS.times],
    renormalise: ["renormalise", MEANINGS.renormalise],
    measure: [metrics[metric], MEANINGS.measure[metric]],
    position: [model.tokenizer?.next_tokens ? "after" : "at token", MEANINGS.position],
  };
  const [told, setTold] = useState("change"); // the control that was reached or pointed at last
  const [name, meaning] = meanings[told] ?? meanings.change;
  return html`<div class="other-text text">
      <${TextBox} label=${action === "add" ? "add the direction of" : "other text"} value=${source} onText=${(/** @type {string} */ source) => change({ source, ...(isOfText ? {} : { action: "from" }) })} ...${invalid(id, "source", errors)} />
      <${FieldError} id=${id} name="source" errors=${errors} />
      ${action === "add" && html`<${TextBox} label="less that of" value=${minus} onText=${(/** @type {string} */ minus) => change({ minus })} />`}
      <${Alignment} aligned=${aligned} /></div>
    <div class="parameters"><div class="tools" role="group" aria-label="what is changed">
      <${Told} name="change" tell=${setTold}><${Choice} label="change" value=${action} options=${actionsOf(at)} onChange=${(/** @type {any} */ action) => change({ action })} /><//>
      <${Told} name="at" tell=${setTold}><${Choice} label="at" value=${at} options=${Object.fromEntries(sitesOf(model).map((site) => [site, siteTitle(site)]))} onChange=${(/** @type {string} */ at) => change({ at, over: undefined, fixed: {}, cell: null })} /><//>
      ${Object.keys(grids).length > 1 && html`<${Told} name="grid" tell=${setTold}><${Choice} label="grid" value=${over} options=${grids} onChange=${(/** @type {string} */ over) => change({ over, fixed: {}, cell: null })} /><//>`}
      ${free.map((axis) => html`<${Told} name=${axis} tell=${setTold}><${Choice} label=${axis} value=${choices.fixed[axis] ?? ""} options=${{ ...indices(axis), "": "all" }} onChange=${(/** @type {string} */ value) => fix(axis, value)} /><//>`)}
      ${
        action === "add" &&
        html`<${Told} name="times" tell=${setTold}><label>times <input type="range" min=${-MOST} max=${MOST} step="0.5" value=${scale} onInput=${(/** @type {any} */ event) => change({ scale: Number(event.currentTarget.value) })} />
        <${NumberField} aria-label="times" value=${scale} step="0.5" onNumber=${(/** @type {number | undefined} */ scale) => change({ scale })} /></label><//>`
      }
      ${action === "scale" && at.endsWith("weights") && html`<${Told} name="renormalise" tell=${setTold}><${Switch} label="renormalise" checked=${renormalize} onChange=${(/** @type {boolean} */ renormalize) => change({ renormalize })} /><//>`}
      <${FieldError} id=${id} name="intervention" errors=${errors} /><${FieldError} id=${id} name="over" errors=${errors} />
    </div>
    <div class="tools" role="group" aria-label="what is measured">
      <${Told} name="measure" tell=${setTold}><${Choice} label="measure" value=${metric} options=${metrics} onChange=${(/** @type {any} */ metric) => change({ metric })} />
      <span class="token-pair">${Array.from({ length: TOKENS[metric] ?? 0 }, (_, i) => {
        const write = (/** @type {string} */ text) =>
          change({ tokens: tokens.map((token, j) => (i === j ? text || (defaults[i] ?? "") : token)) });
        const value = tokens[i] || (defaults[i] ?? "");
        return html`<label>${i ? "minus" : "of"} <${TokenField} list=${`${id}-tokens`} value=${value} onToken=${write}
          ...${invalid(id, "metric", errors)} /></label>${value.startsWith("#") && known[value] && html`<span>“${known[value]}”</span>`}`;
      })}</span><//>
      <datalist id=${`${id}-tokens`}>${Object.entries(known).map(([token, name]) => html`<option value=${token} label=${token.startsWith("#") ? `${token} “${name}”` : token}></option>`)}</datalist>
      ${isOfPosition(model, metric) && html`<${Told} name="position" tell=${setTold}><${Choice} label=${meanings.position[0]} value=${position ?? ""} options=${{ ...(hasLast && { "": defaultPosition(model) ? "the last" : "the first" }), ...named(places) }} onChange=${(/** @type {string} */ value) => change({ position: value === "" ? null : Number(value) })} /><//>`}
      <div class="tools">${
        isRunning
          ? html`<button class="main" key="main" onClick=${actions.stop}>Stop</button>`
          : html`<button class="main" key="main" disabled=${needed !== ""} onClick=${actions.again}>${isWaiting ? `Measure ${cells} places` : "Measure"}</button>`
      }
      <span class="ending" role="status">${needed || statusOf(actions, grid)}</span>
      ${isRunning && html`<progress aria-label="measured rows" max=${grid.values.length} value=${grid.values.filter(([first]) => first !== null).length}></progress>`}</div>
    </div>
    <p class="note meaning">${told !== "change" && html`<b>${name}</b>: `}${meaning}${told === "change" && !isOfText && " Change the other text to insert its activations instead."}</p></div>
    ${["metric", "position"].map((name) => html`<${FieldError} id=${id} name=${name} errors=${errors} />`)}
    ${error && !isTold && html`<p role="alert">${error.message}</p>`}`;
}

/** A control whose meaning is told when it is reached or pointed at.
 *  @param {{name: string, tell: (name: string) => void, children?: unknown}} props */
const Told = ({ name, tell, children }) =>
  html`<span class="told" onFocusIn=${() => tell(name)} onPointerEnter=${() => tell(name)}>${children}</span>`;

/** A field for a token, which keeps the typed text until it is left. @param {{value: string, onToken: (text: string) => void} & Record<string, unknown>} props */
function TokenField({ value, onToken, ...attributes }) {
  const [typed, setTyped] = useState(/** @type {string | null} */ (null));
  const write = (/** @type {any} */ event) => {
    setTyped(null);
    onToken(event.currentTarget.value);
  };
  return html`<input type="text" class="token" value=${typed ?? value} title="a text that is one token, with its blank, or # and an id"
    ...${attributes} onInput=${(/** @type {any} */ event) => setTyped(event.currentTarget.value)} onChange=${write} />`;
}

/** @param {{label: string, value: string, onText: (text: string) => void} & Record<string, unknown>} props */
const TextBox = ({
  label,
  value,
  onText,
  ...attributes
}) => html`<label>${label} <textarea rows="1" dir="auto" value=${value} ...${attributes}
  onInput=${(/** @type {any} */ event) => onText(event.currentTarget.value)}></textarea></label>`;

/** Tokens by their places. @param {import("heed/data/attention.js").Label[]} labels */
const named = (labels) => Object.fromEntries(labels.map(({ text }, i) => [i, `${i} ${text}`]));

/** @param {Actions} actions @param {Grid | null} grid */
function statusOf({ isWaiting, isCurrent, error }, grid) {
  if (isWaiting) return "the grid is large";
  if (!isCurrent && !error) return "measuring …";
  if (!grid || error) return "";
  const [rows, count] = [grid.values.filter(([first]) => first !== null).length, grid.values.length];
  if (grid.status === "running") return "measuring …"; // the rows change too often to be said by a screen reader
  if (grid.status === "stopped") return `stopped after ${rows} of ${count} rows`;
  return `${count * (grid.values[0]?.length ?? 0)} places measured`;
}

/** The tokens of the text, and below them those that replace them. @param {{aligned: import("heed/page/sweep.js").Aligned[]}} props */
function Alignment({ aligned }) {
  if (!aligned.length) return null;
  const without = aligned.filter(({ other }) => other === null).length;
  return html`<div class="aligned"><div class="aligned-names" aria-hidden="true"><span>text</span><span>other text</span></div>
    <ol aria-label="tokens of the text, and what is put in their place">${aligned.map(
      ({ own, other, isSame }) =>
        html`<li class=${isSame ? "same" : other === null ? "none" : "other"}><span>${own}</span>${" "}${other === null ? html`<span>—</span>` : html`<span><span class="unseen">${isSame ? "the same, " : "in its place "}</span>${isSame ? other : html`<b>${other}</b>`}</span>`}</li>`,
    )}</ol></div>
    ${without > 0 && html`<p class="note">The texts have different lengths: ${without} ${without === 1 ? "token has" : "tokens have"} no counterpart and ${without === 1 ? "is" : "are"} not patched.</p>`}`;
}

/** @param {{grid: Grid, settings: ViewProps["settings"], change: (changes: Partial<Choices>) => void}} props */
function GridMap({ grid, settings, change }) {
  const shown = useMemo(() => showGrid(grid), [grid.values, grid.values.map(String).join(), grid.choices.metric]);
  const { labels, axes, indices, unchanged, choices } = grid;
  const named = useMemo(() => (grid.status === "running" ? null : (ranked(grid)[0] ?? null)), [grid]);
  const pinned = pinnedIn(grid);
  const asLabels = useMemo(() => {
    const of = (/** @type {string[]} */ names) =>
      names.map((text) => ({ text: text.replace(/^“(.*)”$/, "$1"), special: false, padding: false, part: 0 }));
    return { rows: of(labels[0]), columns: of(labels[1]) };
  }, [labels]);
  const tell = (/** @type {import("heed/views/matrix_view.js").Cell} */ cell) => {
    const value = grid.values[cell.row]?.[cell.column] ?? null;
    return `${cellTitle(grid, cell)}: ${value === null ? "not measured" : valueText(grid, value)}`;
  };
  const hold = (/** @type {Partial<ViewProps["settings"]>} */ { query = null, key = null }) =>
    change({ cell: query === null || key === null ? null : [indices[0][query], indices[1][key]] });
  const row = Math.min(HIGHEST, Math.max(ROW, innerWidth / OF_WIDTH));
  const frame = useRef(/** @type {HTMLElement | null} */ (null));
  const rest = innerHeight - useTopEdge(frame) - (BELOW * rootSize()) / 16;
  const tallest = Math.max(innerHeight * LEAST, rest);
  const isIn = unchanged !== 0 && choices.metric === "logit_difference";
  return html`<div ref=${frame}><${HeatMap} attention=${asLabels} shown=${shown} set=${hold} tell=${tell}
    settings=${{ ...settings, query: pinned?.row ?? null, key: pinned?.column ?? null }}
    height=${Math.min(tallest, shown.m * row + AROUND - BAR)} lowest=${shown.m * (innerWidth < WIDE ? LOWEST : HIGHEST)} axes=${axes} masked="not measured" whole="whole grid" named=${named} base=${isIn ? unchanged : 0} hasBars=${false}
    legend=${html`<${GridLegend} grid=${grid} shown=${shown} />`}
    label=${`${METRICS[choices.metric]} for ${shown.m} ${axes[0]}, from top to bottom, and ${shown.n} ${axes[1]}, from left to right${isIn ? `, ${number(unchanged)} without changes` : ""}`} /></div>`;
}

/** A number, its change, and the share of the change to the other text's number.
 *  @param {Grid} grid @param {number} value */
function valueText(grid, value) {
  const { unchanged } = grid;
  const way = recovered(grid, value);
  return [
    number(value),
    ...(unchanged !== 0 ? [`${signed(value - unchanged)} from unchanged`] : []),
    ...(way ? [way] : []),
  ].join(", ");
}

/** The colours: around the number without changes, with that of the other text. @param {{grid: Grid, shown: ReturnType<typeof showGrid>}} props */
function GridLegend({ grid, shown }) {
  const theme = useTheme();
  const { low, high, least, most, isDiverging } = shown;
  const { unchanged, source, choices } = grid;
  const [start, end] = isDiverging && most > least ? [least, most] : [low, high]; // of the colours in the map
  const gradient = useMemo(() => {
    const table = palette("auto", isDiverging);
    const level = (/** @type {number} */ i) => (start + ((end - start) * i) / STOPS - low) / (high - low);
    return `linear-gradient(to right, ${Array.from({ length: STOPS + 1 }, (_, i) => css(table, level(i))).join(",")})`;
  }, [isDiverging, theme, low, high, start, end]);
  const share = (/** @type {number} */ value) => (value - start) / (end - start);
  const isApart = [start, end].every((value) => Math.abs(share(value) - share(unchanged)) > NEAR);
  const marks = [start, end, ...(isApart ? [unchanged] : [])];
  const place = (/** @type {number} */ value) => `${100 * share(value)}%`;
  const isInside = source !== null && source >= start && source <= end;
  return html`<div class="legend grid-legend">
    <span>${METRICS[choices.metric]}</span>
    <div class="scale" role="img" aria-label=${`colours from ${number(start)} to ${number(end)}`} style=${{ backgroundImage: gradient }}>
      ${marks.map((value) => html`<small style=${{ left: place(value) }}>${number(value, 3)}</small>`)}
      ${isInside && html`<i class="source" style=${{ left: place(source) }} title=${`the other text: ${number(source)}`}></i>`}
    </div>
    <span>unchanged <b>${number(unchanged)}</b></span>
    ${source !== null && html`<span>${isInside && "▾ "}other text <b>${number(source)}</b></span>`}
    ${shown.levels.some(Number.isNaN) && html`<i class="hatched"></i><span>not measured</span>`}
  </div>`;
}

/** The place that changes the answer most, in words. @param {{grid: Grid}} props */
function Strongest({ grid }) {
  const [most] = useMemo(() => ranked(grid), [grid]);
  if (grid.status === "running" || !most) return null;
  const { unchanged, choices } = grid;
  const isDistance = DISTANCES.includes(choices.metric);
  return html`<p class="headline strongest">${isDistance ? `${METRICS[choices.metric]} is largest` : "Largest change"} at ${cellTitle(grid, most).replace(/^into/, "the input of")}:
    ${" "}${isDistance ? "" : `${number(unchanged)} → `}<b>${number(most.value)}</b> <small>${recovered(grid, most.value)}</small></p>`;
}

/** @param {{grid: Grid, change: (changes: Partial<Choices>) => void}} props */
function Largest({ grid, change }) {
  const listed = useMemo(() => ranked(grid).slice(0, LISTED), [grid]);
  const { indices, choices } = grid;
  const changeOf = (/** @type {{value: number}} */ { value }) => value - grid.unchanged;
  const text = listed.length ? alike(changeOf(listed[0]), !DISTANCES.includes(choices.metric)) : number;
  const pinned = pinnedIn(grid);
  if (grid.status === "running") return null;
  if (!listed.length) return html`<p class="note">Nothing changes.</p>`;
  return html`<h2>Largest changes</h2><ol class="ranking" aria-label="places by change">${listed.map(
    (one) =>
      html`<li><button aria-current=${pinned?.row === one.row && pinned.column === one.column} onClick=${() => change({ cell: [indices[0][one.row], indices[1][one.column]] })}>${cellTitle(grid, one)} <b>${text(changeOf(one))}</b></button></li>`,
  )}</ol>`;
}

/** @param {{grid: Grid, run: import("heed/page/sweep.js").CellRun | null, change: (changes: Partial<Choices>) => void, hasRun: boolean}} props */
function Effect({ grid, run, change, hasRun }) {
  const cell = shownIn(grid);
  const isPinned = pinnedIn(grid) !== null;
  const told = html`<p class="note">${hint("Point at a cell to see its number", "Tap a cell to see its number")}${hasRun ? hint("; click it to see what the model answers with this change", ", and what the model answers with this change") : ""}.</p>`;
  if (!cell) return told;
  const value = grid.values[cell.row][cell.column];
  const isOwn = run !== null && String(run.cell) === String([grid.indices[0][cell.row], grid.indices[1][cell.column]]);
  return html`<section class="effect" aria-label=${isPinned ? "pinned place" : "strongest place"}>
    <div class="effect-head"><p class="headline" role="status">${cellTitle(grid, cell)} ${value !== null && html`<b>${number(value)}</b> <small>${valueText(grid, value).split(", ").slice(1).join(", ")}</small>`}</p>
      ${isPinned && html`<button onClick=${() => change({ cell: null })}>unpin</button>`}</div>
    <div class=${isOwn && run.isStale ? "stale-grid" : ""}>${isOwn && run.tokens && html`<${NextTokens} ...${run.tokens} />`}
    ${isOwn && run.outputs && html`<${OutputChanges} each=${run.outputs} />`}</div>${!isPinned && told}
  </section>`;
}
