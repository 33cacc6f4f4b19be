// The tensors of a head as pictures, from the inputs to the output; a pointed query or key is marked in each of them.
import { html, useEffect, useMemo, useRef, useState } from "vendor/preact.js";
import { percent, short, significant } from "heed/data/display.js";
import { largestChange } from "heed/data/matrix.js";
import { palette, picture, textOn } from "heed/data/palettes.js";
import { beginsLine, beginsPair, COLOURS, heightOf, isTransposed, stagesOf } from "heed/server/head_tensors.js";
import { useSize, useTheme } from "heed/views/draw/canvas.js";
import { hint } from "heed/views/controls.js";
import { usePromise } from "heed/views/hooks.js";
import { Formula } from "heed/views/formula.js";

/** @typedef {import("heed/views/hooks.js").ViewProps} ViewProps */
/** @typedef {import("heed/server/head_tensors.js").Stage} Stage */
/** @typedef {{query: number | null, key: number | null}} Rows  of a query and a key */
/** @typedef {{title: string, row: number | null, column: number, isOfKeys: boolean}} Cell  a number of a tensor; no row: that of the selected query or key */
/** @typedef {{cell: Cell | null, setCell: (cell: Cell | null) => void}} Pointed  here or in the vectors of the pair */

const WITH_NUMBERS = 46; // px of a square that has its number in it
const LEAST = 36; // px of one that has it in smaller digits
const DIGITS = 0.3; // of its width
const FEW = 4; // columns that are made as wide as numbers
const SOME = 8; // of a tensor after the scores, in a window with room for them
const LINE = 16; // px
/** @type {Record<string, [down: number, right: number]>} */
const STEPS = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
const THIN = 12; // px of a row whose frame is around it, not in it

/** @param {ViewProps & Pointed & {run: import("heed/views/hooks.js").Run, pair: Rows & {query: number}, weight: number | null}} props  `weight` of the pair */
export function StepsTensors({ attention, settings, set, run, pair, weight, cell, setCell }) {
  const { model, input, settings: asked } = run;
  const { head, batch } = settings;
  const { value } = usePromise(() => stagesOf(model, { ...asked, head, batch }, input), [input, head, batch]);
  const [pointed, setPointed] = useState(/** @type {Rows | null} */ (null));
  const { query, key } = { query: pointed?.query ?? pair.query, key: pointed?.key ?? pair.key };
  const weights = pointed && value?.find(({ title }) => title === "weights");
  const shown = weights && key !== null ? weights.numbers[query * weights.columns + key] : weight;
  const headline = html`<p class="headline">${key !== null && shown !== null && html`${named("Query", attention.rows, query)} → ${named("key", attention.columns, key)}: <b>${percent(shown)}</b>`}</p>`;
  if (!value?.length) return headline;
  const line = value.findIndex(beginsLine); // the stage after which there is room
  return html`${headline}<p class="readout">${hint("Point at a number, or go to it by Tab and arrow keys, to mark its query or key; a click or Enter selects them.", "Tap a number to select its query or key.")}</p>
    <ol class="stages" aria-label="tensors of the head" onPointerLeave=${() => setPointed(null)}>${value.map(
      (
        stage,
        i,
      ) => html`${beginsLine(stage) && html`<li class="break" aria-hidden="true"></li>`}${beginsPair(stage) && html`<li class="break of-pair" aria-hidden="true"></li>`}<li key=${stage.title} style=${{ "--share": heightOf(stage, value) }} class=${stage.sign && value[i + 1]?.sign === "" ? "pair-end" : ""}>
        <div class="sign">${stage.sign && html`<${Formula} formula=${stage.sign} isInline=${true} />`}${beginsLine(stage) && OPERANDS}</div>
        <h3>${stage.title} <small>${stage.rows} × ${stage.columns}</small></h3>
        <${Formula} formula=${stage.formula} isInline=${true} />
        <${Tensor} stage=${stage} isBelow=${line >= 0 && i >= line} query=${query} shownKey=${key} setPointed=${setPointed} cell=${cell?.title === stage.title ? cell : null} setCell=${setCell}
          onSelect=${(/** @type {Rows} */ { query, key }) => set({ ...(query !== null && { query }), ...(key !== null && { key }) })} />
      </li>`,
    )}</ol>
    <p class="note">${COLOURS}</p>`;
}

/** The letters of the product, which is not drawn. */
const OPERANDS = html`<small><i>q</i>: projected query<br /><i>k</i>: projected key</small>`;

/** @param {Pointed & {stage: Stage, isBelow: boolean, query: number | null, shownKey: number | null, setPointed: (rows: Rows | null) => void, onSelect: (rows: Rows) => void}} props */
function Tensor({ stage, isBelow, query, shownKey, setPointed, cell, setCell, onSelect }) {
  const { title, rows, columns, numbers, isOfKeys, isOfPairs } = stage;
  const canvas = useRef(/** @type {HTMLCanvasElement | null} */ (null));
  const size = useSize(canvas);
  const theme = useTheme();
  const table = useMemo(() => palette("auto", true), [theme]);
  const top = useMemo(() => largestChange(numbers) || 1, [stage]);
  const levels = useMemo(() => {
    const strongest = title === "weights" ? 1 : top;
    return numbers.map((one) => (Number.isFinite(one) ? 0.5 + one / strongest / 2 : NaN));
  }, [stage]);
  useEffect(() => {
    canvas.current?.getContext("2d")?.putImageData(picture(levels, rows, columns, table), 0, 0);
  }, [levels, table]);
  const isLow = size.height / rows > LINE;
  const cellWidth = size.width / columns;
  const hasNumbers = cellWidth >= LEAST && isLow;
  const isWide = isBelow && isLow && columns > FEW && columns <= SOME;
  const at = (/** @type {PointerEvent | MouseEvent} */ { offsetX, offsetY, currentTarget }) => {
    const { clientWidth, clientHeight } = /** @type {HTMLElement} */ (currentTarget);
    const within = (/** @type {number} */ share, /** @type {number} */ count) =>
      Math.min(count - 1, Math.max(0, Math.floor(share * count)));
    const [row, column] = [within(offsetY / clientHeight, rows), within(offsetX / clientWidth, columns)];
    return { row, column };
  };
  const rowsOf = (/** @type {number} */ row, /** @type {number} */ column) => ({
    query: isOfKeys ? null : row,
    key: isOfKeys ? row : isOfPairs ? column : null,
  });
  const point = ({ row, column } = { row: -1, column: -1 }) => {
    setPointed(row < 0 ? null : rowsOf(row, column));
    setCell(row < 0 ? null : { title, row, column, isOfKeys });
  };
  const row = isOfKeys ? shownKey : query;
  const own = cell && { row: cell.row ?? row ?? 0, column: cell.column };
  const press = (/** @type {KeyboardEvent} */ event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const from = own ?? { row: row ?? 0, column: 0 };
    const step = STEPS[event.key];
    if (step) {
      const [down, right] = own ? step : [0, 0]; // it begins with the first number
      point({
        row: Math.min(rows - 1, Math.max(0, from.row + down)),
        column: Math.min(columns - 1, Math.max(0, from.column + right)),
      });
    } else if (event.key === "Enter" || event.key === " ") onSelect(rowsOf(from.row, from.column));
    else if (event.key === "Escape") point();
    else return;
    event.preventDefault();
  };
  const place = own && {
    left: `${(100 * own.column) / columns}%`,
    top: `${(100 * own.row) / rows}%`,
    width: `${100 / columns}%`,
    height: `${100 / rows}%`,
  };
  const along = own ? (100 * own.column) / Math.max(1, columns - 1) : 0; // %, so that no tip begins or ends far outside
  const said = own
    ? `${title} [${own.row}, ${own.column}] = ${significant(numbers[own.row * columns + own.column])}`
    : "";
  const thin = (/** @type {boolean} */ isThin) => (isThin ? "thin" : "");
  return html`<div class=${isTransposed(stage) ? "tensor transposed" : "tensor"}>
    <canvas ref=${canvas} width=${columns} height=${rows} tabindex="0" role="application" aria-roledescription="tensor" class=${isWide ? "wide" : ""}
      style=${{ aspectRatio: `${columns} / ${rows}`, "--columns": columns, minWidth: isLow && columns <= FEW ? `${columns * WITH_NUMBERS}px` : "" }}
      aria-label=${`${title}, ${rows} × ${columns}; arrow keys point at a number, Enter selects its query or key`} aria-description=${said}
      onPointerMove=${(/** @type {PointerEvent} */ event) => point(at(event))} onPointerLeave=${() => setCell(null)} onBlur=${() => point()} onKeyDown=${press}
      onClick=${(/** @type {MouseEvent} */ event) => {
        const { row, column } = at(event);
        onSelect(rowsOf(row, column));
      }}></canvas>
    ${
      hasNumbers &&
      html`<div class="numbers" aria-hidden="true" style=${{ fontSize: cellWidth < WITH_NUMBERS ? `${DIGITS * cellWidth}px` : "", gridTemplate: `repeat(${rows}, 1fr) / repeat(${columns}, 1fr)` }}>${Array.from(
        numbers,
        (number, place) =>
          html`<span style=${{ color: Number.isFinite(number) ? textOn(table, levels[place]) : "" }}>${Number.isFinite(number) ? short(number, top) : "−∞"}</span>`,
      )}</div>`
    }
    ${own && html`<div class="tip" style=${{ left: `${along}%`, transform: `translate(-${along}%)` }}>${said}</div>`}
    ${row !== null && html`<i class=${`row ${thin(size.height / rows < THIN)}`} style=${{ top: `${(100 * row) / rows}%`, height: `${100 / rows}%` }}></i>`}
    ${isOfPairs && shownKey !== null && html`<i class=${`column ${thin(size.width / columns < THIN)}`} style=${{ left: `${(100 * shownKey) / columns}%`, width: `${100 / columns}%` }}></i>`}
    ${place && html`<i class="cell" style=${place}></i>`}
  </div>`;
}

/** A word, or the number of a query or key without one. @param {string} kind @param {import("heed/data/attention.js").Label[]} labels @param {number} place */
const named = (kind, labels, place) =>
  labels[place].text === String(place) ? `${kind} ${place}` : `“${labels[place].text}”`;
