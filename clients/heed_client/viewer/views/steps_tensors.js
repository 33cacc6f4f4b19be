// The tensors of a head as pictures, from the inputs to the output; a pointed query or key is marked in each of them.
import { html, useEffect, useMemo, useRef, useState } from "vendor/preact.js";
import { percent, short, significant } from "heed/data/display.js";
import { largestChange } from "heed/data/matrix.js";
import { palette, picture, textOn } from "heed/data/palettes.js";
import { beginsLine, COLOURS, heightOf, isTransposed, stagesOf } from "heed/server/head_tensors.js";
import { rootSize, useSize, useTheme } from "heed/views/draw/canvas.js";
import { hint } from "heed/views/controls.js";
import { usePromise } from "heed/views/hooks.js";
import { Formula } from "heed/views/formula.js";

/** @typedef {import("heed/views/hooks.js").ViewProps} ViewProps */
/** @typedef {import("heed/server/head_tensors.js").Stage} Stage */
/** @typedef {{query: number | null, key: number | null}} Rows  of a query and a key */
/** @typedef {{title: string, row: number | null, column: number, isOfKeys: boolean}} Cell  a number of a tensor; no row: that of the selected query or key */
/** @typedef {{cell: Cell | null, setCell: (cell: Cell | null) => void}} Pointed  here or in the vectors of the pair */
/** @typedef {Pointed & {query: number | null, shownKey: number | null, setPointed: (rows: Rows | null) => void,
 *    onSelect: (rows: Rows) => void}} Marked */

const FEW = 8; // columns that have room for numbers
const CELL = { least: 28, fair: 30, good: 34 }; // px of a column with numbers
const WIDEST = { least: 3.25, share: 0.04 }; // rem of such a column, or a share of the width
const LONG = { least: 6, most: 10.5, share: 0.122 }; // rem of a tensor with more columns; or a share of the width
const STACKED = 28; // rem; in less, the tensors are one below the other
const DIGIT = 0.61; // of the size of the font
const CHARACTERS = 5.3; // of most numbers, with a margin
const LINE = 16; // px
const BORDERS = 2; // px of a tensor's frame
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
  return html`${headline}<p class="readout">${hint("Point at a number, or go to it by Tab and arrow keys, to mark its query or key; a click or Enter selects them.", "Tap a number to select its query or key.")}</p>
    <${Stages} stages=${value} query=${query} shownKey=${key} setPointed=${setPointed} cell=${cell} setCell=${setCell}
      onSelect=${(/** @type {Rows} */ { query, key }) => set({ ...(query !== null && { query }), ...(key !== null && { key }) })} />
    <p class="note">${COLOURS}</p>`;
}

/** The tensors in lines, which read from left to right; in a narrow window one below the other.
 *  @param {Marked & {stages: Stage[]}} props */
function Stages({ stages, cell, ...marked }) {
  const list = useRef(/** @type {HTMLElement | null} */ (null));
  const { width } = useSize(list);
  const isStacked = width > 0 && width < STACKED * rootSize();
  const { lines, column, long } = layoutOf(stages, width - BORDERS, isStacked);
  const item = (/** @type {Stage} */ stage, /** @type {Stage | undefined} */ next) => {
    const { title, sign, rows, columns, formula } = stage;
    return html`<li key=${title} class=${next?.sign === "" ? "pair-end" : ""} style=${{ "--share": heightOf(stage, stages) }}>
        <div class="sign">${sign && html`<${Formula} key=${isStacked} formula=${isStacked ? downward(sign) : sign} isInline=${true} />`}</div>
        ${beginsLine(stage) && OPERANDS}
        <h3>${title} <small>${rows} × ${columns}</small></h3>
        <${Formula} formula=${formula} isInline=${true} />
        <${Tensor} ...${marked} stage=${stage} cell=${cell?.title === title ? cell : null} />
      </li>`;
  };
  return html`<ol class=${`stages ${isStacked ? "stacked" : ""}`} aria-label="tensors of the head" ref=${list} style=${{ "--column": `${column}px`, "--long": `${long}px` }} onPointerLeave=${() => marked.setPointed(null)}>
    ${lines.map((line, l) => html`${l > 0 && html`<li class="break" aria-hidden="true"></li>`}${line.map((stage, i) => item(stage, line[i + 1]))}`)}</ol>`;
}

/** The lines of the tensors, with as many pairs of an input and its projection as have room, and the px of a column and
 *  of a long tensor.
 *  @param {Stage[]} stages @param {number} width  px @param {boolean} isStacked */
function layoutOf(stages, width, isStacked) {
  const layouts = [3, 2, 1].map((pairs) => {
    const lines = linesOf(stages, pairs);
    return { lines, ...widthsOf(isStacked ? stages.map((stage) => [{ ...stage, sign: "" }]) : lines, width) };
  });
  return layouts.find(({ column }) => column >= CELL.fair) ?? layouts[layouts.length - 1];
}

/** @param {Stage[]} stages @param {number} most  pairs in a line */
function linesOf(stages, most) {
  const lines = /** @type {Stage[][]} */ ([]);
  let pairs = 0;
  for (const stage of stages) {
    const isPair = stage.sign === "";
    if (beginsLine(stage) || (isPair && pairs % most === 0)) lines.push([]);
    pairs += Number(isPair);
    lines[lines.length - 1].push(stage);
  }
  return lines;
}

/** The px of a column with numbers, the same in all tensors, and of a tensor with more columns.
 *  @param {Stage[][]} lines @param {number} width  px */
function widthsOf(lines, width) {
  const rem = rootSize();
  const parts = lines.map((line) => {
    const columns = line.reduce((sum, stage) => sum + (stage.columns <= FEW ? stage.columns : 0), 0);
    const signs = line.reduce((sum, stage, i) => sum + roomOf(stage, i), 0);
    return {
      columns,
      longs: line.filter((stage) => stage.columns > FEW).length,
      rest: width - signs * rem - BORDERS * line.length,
    };
  });
  const longest = parts.map(({ columns, longs, rest }) => (rest - columns * CELL.good) / longs);
  const most = Math.max(LONG.most * rem, LONG.share * width);
  const long = Math.max(LONG.least * rem, Math.min(most, ...longest.filter(Number.isFinite)));
  const widest = parts.map(({ columns, longs, rest }) => (rest - longs * long) / columns);
  return {
    long,
    column: Math.max(
      CELL.least,
      Math.min(Math.max(WIDEST.least * rem, WIDEST.share * width), ...widest.filter(Number.isFinite)),
    ),
  };
}

/** The rem of the sign before a tensor, or of the space before a pair. @param {Stage} stage @param {number} i  in its line */
function roomOf(stage, i) {
  if (stage.sign === "") return i > 0 ? 1.75 : 0;
  if (beginsLine(stage)) return 7.5;
  return /arrow/.test(stage.sign) ? 5.5 : stage.sign.length > 8 ? 4.5 : 2.5;
}

/** A sign whose arrow points down, to the tensor below. @param {string} sign */
const downward = (sign) => sign.replace(/\\xrightarrow\{(.*)\}$/, (_, operation) => `\\;\\downarrow\\;${operation}`);

/** The letters of the product, which is not drawn. */
const OPERANDS = html`<small class="operands"><span><i>q</i>: projected query</span> <span><i>k</i>: projected key</span></small>`;

/** @param {Marked & {stage: Stage}} props */
function Tensor({ stage, query, shownKey, setPointed, cell, setCell, onSelect }) {
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
  const column = size.width / columns;
  const hasNumbers = column >= CELL.least && size.height / rows > LINE;
  const texts = hasNumbers
    ? Array.from(numbers, (number) => (Number.isFinite(number) ? short(number, top) : "−∞"))
    : [];
  const characters = Math.max(CHARACTERS, ...texts.map((text) => text.length));
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
  return html`<div class=${`tensor ${isTransposed(stage) ? "transposed" : ""} ${columns <= FEW ? "" : isOfPairs ? "of-pairs" : "long"}`}>
    <canvas ref=${canvas} width=${columns} height=${rows} tabindex="0" role="application" aria-roledescription="tensor" style=${{ "--columns": columns, "--rows": rows }}
      aria-label=${`${title}, ${rows} × ${columns}; arrow keys point at a number, Enter selects its query or key`} aria-description=${said}
      onPointerMove=${(/** @type {PointerEvent} */ event) => point(at(event))} onPointerLeave=${() => setCell(null)} onBlur=${() => point()} onKeyDown=${press}
      onClick=${(/** @type {MouseEvent} */ event) => {
        const { row, column } = at(event);
        onSelect(rowsOf(row, column));
      }}></canvas>
    ${
      hasNumbers &&
      html`<div class="numbers" aria-hidden="true" style=${{ "--digits": `${column / (DIGIT * characters)}px`, gridTemplate: `repeat(${rows}, 1fr) / repeat(${columns}, 1fr)` }}>${texts.map(
        (text, place) =>
          html`<span style=${{ color: Number.isFinite(numbers[place]) ? textOn(table, levels[place]) : "" }}>${text}</span>`,
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
