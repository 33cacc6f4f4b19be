// The most likely next token in each layer, after each token of the text.
import { html, useEffect, useMemo, useRef, useState } from "vendor/preact.js";
import { LEAST_SHARE, percent } from "heed/data/display.js";
import { isMarked } from "heed/data/tokens.js";
import { css, palette, textOn } from "heed/data/palettes.js";
import { firstOf } from "heed/page/lens.js";
import { layerName, layerTitle, MOST } from "heed/server/lens.js";
import { below, Chance } from "heed/views/chances.js";
import { Choice, Switch } from "heed/views/controls.js";
import { fontOf, useTheme } from "heed/views/draw/canvas.js";

/** @typedef {import("heed/server/lens.js").Lens} Lens */
/** @typedef {import("heed/views/hooks.js").ViewProps} ViewProps */
/** @typedef {{row: number, column: number}} Cell */

const STOPS = 16; // of the gradient
const CHART = { width: 320, height: 100, left: 62, right: 24, top: 18, bottom: 6, axis: 18 }; // units of the drawing
const DOT = 3; // radius
const MOST_STEPS = 5; // between the marks of a chart
const WIDE_SPAN = 20; // of a logarithmic axis: the largest number over the least
const PLAIN = 1e-5; // the least share without a power of ten
const NAMED = 22; // units between the names of layers

/** Whether the most likely token is another one without the change. @param {Lens} lens @param {Cell} cell */
export const differs = ({ guesses, before }, { row, column }) =>
  before !== null && before[row][column][0].id !== guesses[row][column][0].id;

/** The token whose rank is shown. @param {Lens} lens */
export const target = ({ isMasked }) => (isMasked ? "token itself" : "token that comes next");

/** The largest probability after a layer; the embeddings, which often only repeat the token, would hide the layers' differences.
 *  @param {Lens} lens */
const largestIn = ({ layers, guesses }) =>
  Math.max(...guesses.flatMap((row, i) => (layers[i] === 0 ? [] : row.map(([{ probability }]) => probability))));

/** How strong the colour of a cell is, from 0 to 1; NaN = none.
 *  @param {Lens} lens @param {boolean} isByRank @returns {(cell: Cell) => number} */
export function levelsOf(lens, isByRank) {
  const { layers, guesses, ranks, vocabulary } = lens;
  const top = largestIn(lens);
  if (!isByRank) return ({ row, column }) => (layers[row] === 0 ? NaN : guesses[row][column][0].probability / top);
  return ({ row, column }) => 1 - Math.log(ranks[row][column] ?? NaN) / Math.log(vocabulary);
}

/** Which cells have no colour, as a sentence. @param {boolean} isByRank */
export const uncoloured = (isByRank) =>
  isByRank ? "" : " No colour: the embeddings, which often only repeat the token.";

/** A cell in words. @param {Lens} lens @param {Cell} cell */
const placeIn = (lens, { row, column }) => `${layerTitle(lens, row)}, at “${lens.words[column]}”`;

const measure = /** @type {CanvasRenderingContext2D} */ (document.createElement("canvas").getContext("2d"));

/** The width of a word in its cell, in em. @param {string} word @param {number} weight  of the font */
function widthOf(word, weight) {
  measure.font = `${weight} ${fontOf(100)}`;
  return Math.max(1, measure.measureText(word).width / 100);
}

/** The whole of a word that has no room, as a tooltip. @param {Event} event */
function showWhole({ target }) {
  const word = target instanceof Element ? target.closest("th, td")?.querySelector("span") : null;
  if (word) word.title = word.scrollWidth > word.clientWidth ? (word.textContent ?? "") : "";
}

/** Whether the token that comes next, or the token itself, is anywhere the most likely. @param {Lens} lens */
export const hasNext = ({ ranks }) => ranks.some((row) => row.includes(1));

/** The content of a cell as a sentence. @param {Lens} lens @param {Cell} cell */
const sentence = (lens, { row, column }) => {
  const [{ word, probability }] = lens.guesses[row][column];
  return `${placeIn(lens, { row, column })}: “${word}” ${percent(probability)}`;
};

/** The last token, or the one before if the text ends with the last. @param {Lens} lens */
function openingColumn({ guesses, words, isMasked }) {
  const last = words.length - 1;
  const [{ word }] = guesses[guesses.length - 1][last];
  return last > 0 && !isMasked && isMarked(word) ? last - 1 : last;
}

/** @param {ViewProps & {lens: import("heed/page/lens.js").LensState}} props */
export function LensView({ settings, set, lens: { lens, error, pinned } }) {
  if (!lens) return error ? html`<p role="alert">${error.message}</p>` : html`<p class="note">…</p>`;
  return html`${error && html`<p role="alert">${error.message}</p>`}<${Table} lens=${lens} settings=${settings} set=${set} pinned=${pinned} />`;
}

/** @param {{lens: Lens, settings: ViewProps["settings"], set: ViewProps["set"], pinned: string | null}} props */
function Table({ lens, settings, set, pinned }) {
  const theme = useTheme();
  const table = useMemo(() => palette(settings.palette, false), [settings.palette, theme]);
  const frame = useRef(/** @type {HTMLElement | null} */ (null));
  const [pointed, setPointed] = useState(/** @type {Cell | null} */ (null));
  const change = (/** @type {Record<string, unknown>} */ changes) => {
    const left = Object.entries({ ...settings.lens, ...changes }).filter(([, value]) => value !== undefined);
    set({ lens: Object.fromEntries(left) });
  };
  const { layers, positions, words, guesses, ranks } = lens;
  const isByRank = settings.lens.by === "rank";
  const held = heldIn(lens, settings);
  const last = { row: layers.length - 1, column: openingColumn(lens) };
  const shown = pointed ?? held ?? last;
  const isThere = shown.row < layers.length && shown.column < words.length;
  const cell = isThere ? shown : last;
  useEffect(() => setPointed(null), [lens]);
  useEffect(() => {
    const box = frame.current;
    const { row, column } = held ?? last;
    const word = box?.querySelector(`[data-place="${row}.${column}"]`);
    if (!box || !(word instanceof HTMLElement)) return;
    const isHidden =
      word.offsetLeft + word.offsetWidth > box.scrollLeft + box.clientWidth || word.offsetLeft < box.scrollLeft;
    if (isHidden) box.scrollLeft = word.offsetLeft - box.clientWidth / 2;
  }, [lens, held?.row, held?.column]);
  const cellOf = (/** @type {any} */ { target }) => {
    const { place } = target.closest?.("[data-place]")?.dataset ?? {};
    if (!place) return null;
    const [row, column] = place.split(".").map(Number);
    return { row, column };
  };
  const hold = (/** @type {Cell | null} */ next) => {
    const isHeld = next && held?.row === next.row && held.column === next.column;
    change({ cell: !next || isHeld ? undefined : [layers[next.row], positions[next.column]] });
  };
  const press = (/** @type {KeyboardEvent} */ event) => {
    const at = cellOf(event);
    /** @type {Record<string, [number, number]>} */
    const steps = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
    const ends = { Home: 0, End: words.length - 1 }[event.key];
    const step = steps[event.key];
    if (!at || event.ctrlKey || event.metaKey || event.altKey) return;
    if (step || ends !== undefined) {
      const [row, column] = step ? [at.row + step[0], at.column + step[1]] : [at.row, ends];
      const next = frame.current?.querySelector(`[data-place="${row}.${column}"]`);
      if (next instanceof HTMLElement) next.focus();
    } else if (event.key === "Enter" || event.key === " ") hold(at);
    else if (event.key === "Escape") {
      hold(null);
      setPointed(null);
    } else return;
    event.preventDefault();
  };
  const final = guesses[layers.length - 1];
  const hasRight = hasNext(lens);
  const cells = useMemo(() => {
    const levelOf = levelsOf(lens, isByRank);
    return layers.map(
      (layer, row) =>
        html`<tr><th scope="row">${layerTitle(lens, row)}</th>${positions.map((position, column) => {
          const level = levelOf({ row, column });
          const [{ id, word }] = guesses[row][column];
          const marks = [
            id === final[column][0].id && "settled",
            ranks[row][column] === 1 && "right",
            differs(lens, { row, column }) && "differs",
          ].filter(Boolean);
          const isHeld = held?.row === row && held.column === column;
          const isReached = held ? isHeld : row === last.row && column === last.column;
          if (isReached && !held) marks.push("described");
          const colours = level === level ? { backgroundColor: css(table, level), color: textOn(table, level) } : {};
          const width = widthOf(word, marks.includes("settled") ? 700 : 400);
          return html`<td role="gridcell" data-place=${`${row}.${column}`} tabindex=${isReached ? 0 : -1} aria-selected=${isHeld}
          aria-label=${sentence(lens, { row, column })} class=${marks.join(" ")} style=${{ ...colours, "--word": width }} key=${`${layer}.${position}`}><span>${word}</span></td>`;
        })}</tr>`,
    );
  }, [lens, isByRank, table, held?.row, held?.column]);
  return html`<div class="tools" role="group" aria-label="how it is drawn">
      <${Choice} label="colour" value=${isByRank ? "rank" : "probability"} options=${{ probability: "probability", rank: `rank of the ${target(lens)}` }} onChange=${(/** @type {string} */ by) => change({ by: by === "rank" ? by : undefined })} />
      ${pinned !== null && html`<${Switch} label=${`with the change that is pinned in Patch (${pinned})`} checked=${settings.lens.changed === true} onChange=${(/** @type {boolean} */ changed) => change({ changed: changed || undefined })} />`}
      <${Scale} lens=${lens} isByRank=${isByRank} table=${table} />
      ${lens.count > lens.words.length && html`<${Pages} lens=${lens} settings=${settings} change=${change} />`}
    </div>
    <p class="headline">${lens.isMasked ? "At" : "After"} “${words[cell.column]}”: ${settledIn(lens, cell.column)}</p>
    <div class="lens-body"><div><div class="lens-frame" ref=${frame} style=${{ "--rows": layers.length, "--columns": words.length }}><table class="lens-table" role="grid" aria-label="the most likely next token, by layer and token"
      onPointerOver=${(/** @type {Event} */ event) => (showWhole(event), setPointed(cellOf(event)))} onPointerLeave=${() => setPointed(null)}
      onFocusIn=${(/** @type {Event} */ event) => setPointed(cellOf(event))} onClick=${(/** @type {Event} */ event) => cellOf(event) && hold(cellOf(event))} onKeyDown=${press}>
      <thead><tr><th scope="col">token</th>${words.map((word) => html`<th scope="col" style=${{ "--word": widthOf(word, 600) }}><span>${word}</span></th>`)}</tr></thead>
      <tbody>${cells}</tbody></table></div>
    <p class="note"><b>Bold</b>: already the most likely token of the output.${hasRight && html` <u>Underlined</u>: the ${target(lens)}.`}${uncoloured(isByRank)}${lens.change !== null && ` Corner: another token than without the change (${lens.change}).`}</p></div>
    <${Guesses} lens=${lens} cell=${cell} isHeld=${held !== null && cell === held} /></div>`;
}

/** The pinned cell. @param {Lens} lens @param {ViewProps["settings"]} settings @returns {Cell | null} */
export function heldIn({ layers, positions }, { lens: { cell } }) {
  if (!Array.isArray(cell)) return null;
  const [row, column] = [layers.indexOf(cell[0]), positions.indexOf(cell[1])];
  return row >= 0 && column >= 0 ? { row, column } : null;
}

/** The numbers at the ends and in the middle of the scale. @param {Lens} lens @param {boolean} isByRank */
export function marksOf(lens, isByRank) {
  const { vocabulary } = lens;
  if (isByRank) return [String(vocabulary), String(Math.round(Math.sqrt(vocabulary))), "1"];
  const top = largestIn(lens);
  return ["0", percent(top / 2), percent(top)];
}

/** @param {{lens: Lens, isByRank: boolean, table: Uint32Array}} props */
function Scale({ lens, isByRank, table }) {
  const gradient = Array.from({ length: STOPS + 1 }, (_, i) => css(table, i / STOPS)).join(",");
  const marks = marksOf(lens, isByRank);
  return html`<div class="legend" role="img" aria-label=${`colours from ${marks[0]} to ${marks[2]}`}>
    <div class="scale" style=${{ backgroundImage: `linear-gradient(to right, ${gradient})` }}>
      ${marks.map((text, i) => html`<small style=${{ left: `${50 * i}%` }}>${text}</small>`)}</div></div>`;
}

/** Which part of a long text is shown. @param {{lens: Lens, settings: ViewProps["settings"], change: (changes: Record<string, unknown>) => void}} props */
function Pages({ lens, settings, change }) {
  const first = firstOf(settings, lens.count);
  const go = (/** @type {number} */ from) =>
    change({ from: Math.max(0, Math.min(from, lens.count - MOST)) || undefined });
  return html`<span role="group" aria-label="tokens that are shown">
    <button disabled=${first === 0} onClick=${() => go(first - MOST)}>before</button>
    ${" "}tokens ${first} to ${first + lens.words.length - 1} of ${lens.count}${" "}
    <button disabled=${first + MOST >= lens.count} onClick=${() => go(first + MOST)}>after</button></span>`;
}

/** From which layer on the output's token stays the most likely, as a sentence. @param {Lens} lens @param {number} column */
function settledIn(lens, column) {
  const last = lens.guesses.length - 1;
  const [{ id, word }] = lens.guesses[last][column];
  const isOf = (/** @type {Lens["guesses"][0]} */ layer) => layer[column][0].id === id;
  const row = lens.guesses.findLastIndex((layer) => !isOf(layer)) + 1;
  const first = lens.guesses.findIndex(isOf);
  const name = (/** @type {number} */ at) => layerName(lens, at).replace(/^emb/, "the emb");
  const where = name(row);
  if (first < row) {
    const end = lens.guesses.findIndex((layer, at) => at > first && !isOf(layer)) - 1; // of the first layers that have it
    const before = end > first ? `from ${name(first)} to ${name(end)}` : `of ${name(first)}`;
    return `“${word}” is the most likely token ${before}, but the prediction settles only ${row === last ? "in the last layer" : `from ${where} on`}.`;
  }
  return row === last
    ? `“${word}” becomes the prediction only in the last layer.`
    : `from ${where} on, the prediction is “${word}”.`;
}

/** The most likely tokens of a cell. @param {{lens: Lens, cell: Cell, isHeld: boolean}} props */
function Guesses({ lens, cell: { row, column }, isHeld }) {
  const [rank, next] = [lens.ranks[row][column], lens.next[column]];
  const guesses = lens.guesses[row][column];
  return html`<section class="guesses" aria-label="most likely tokens"><h2 role=${isHeld ? "status" : undefined}>${placeIn(lens, { row, column })}</h2>
    <table class="chances"><tbody>${guesses.map(
      ({ word, probability }) =>
        html`<tr><th scope="row" title=${word}>${word}</th><td><${Chance} share=${probability / guesses[0].probability}>${percent(probability)}<//></td></tr>`,
    )}</tbody></table>
    ${lens.before && html`<p>Without the change: “${lens.before[row][column][0].word}” ${percent(lens.before[row][column][0].probability)}.</p>`}
    <p>${rank === null || next === null ? "The text ends here: no token to compare with." : html`The ${lens.isMasked ? "token itself" : "next token"}, “${next}”, has rank <b>${rank}</b> of ${lens.vocabulary}.`}</p>
    <${Charts} lens=${lens} cell=${{ row, column }} /></section>`;
}

/** @typedef {{at: number | null, text: string}} Point  `at` from 0, below, to 1; null = only a bound is known */
/** @typedef {{at: number, text: string}} Mark  of an axis */

/** A power of ten in per cent. @param {number} exponent */
const powerText = (exponent) =>
  `${10 ** exponent < PLAIN * 100 ? `10${superscript(exponent)}` : 10 ** exponent}\u00a0%`;

/** @param {number | string} exponent */
const superscript = (exponent) =>
  String(exponent).replace(/./g, (sign) => (sign === "-" ? "⁻" : "⁰¹²³⁴⁵⁶⁷⁸⁹"[Number(sign)]));

/** A probability in per cent, however small. @param {number} share */
function shareText(share) {
  if (share === 0 || share >= LEAST_SHARE) return percent(share);
  if (share >= PLAIN) return `${Number((100 * share).toPrecision(2))}\u00a0%`;
  const [factor, exponent] = (100 * share).toExponential(1).split("e");
  return `${factor}\u2009·\u200910${superscript(exponent)}\u00a0%`;
}

/** Whole numbers from `from` towards `to`, not too many. @param {number} from @param {number} to */
function exponents(from, to) {
  const step = Math.ceil(Math.abs(to - from) / MOST_STEPS) || 1;
  const count = Math.floor(Math.abs(to - from) / step) + 1;
  return Array.from({ length: count }, (_, i) => from + Math.sign(to - from) * i * step);
}

/** The axis of probabilities, logarithmic if they differ much. @param {number[]} shares
 *  @returns {{place: (share: number) => number, marks: Mark[]}} */
function axisOf(shares) {
  const top = Math.max(...shares);
  const least = Math.min(...shares.filter((share) => share > 0));
  if (!(top / least > WIDE_SPAN)) {
    const marks = [0, top].map((share) => ({ at: share / (top || 1), text: share ? shareText(share) : "0" }));
    return { place: (share) => share / (top || 1), marks };
  }
  const [first, last] = [Math.floor(Math.log10(least)), Math.ceil(Math.log10(top))];
  const place = (/** @type {number} */ exponent) => Math.max(0, (exponent - first) / (last - first));
  const marks = exponents(last, first).map((exponent) => ({ at: place(exponent), text: powerText(exponent + 2) }));
  return { place: (share) => place(Math.log10(share)), marks };
}

/** The probability of the output's token in each layer, and the rank of the token that comes next.
 *  @param {{lens: Lens, cell: Cell}} props */
function Charts({ lens, cell: { row, column } }) {
  const { guesses, ranks, vocabulary } = lens;
  const [{ id, word }] = guesses[guesses.length - 1][column];
  const known = guesses.map((layer) => layer[column].find((guess) => guess.id === id)?.probability ?? null);
  const shares = lens.outputProbabilities?.map((layer) => layer[column]) ?? known;
  const { place, marks } = axisOf(shares.filter((share) => share !== null));
  const chances = shares.map((share, i) =>
    share === null
      ? { at: null, text: below(guesses[i][column][guesses[i][column].length - 1].probability) }
      : { at: place(share), text: shareText(share) },
  );
  const ofNext = ranks.map((layer) => layer[column]);
  const placeOf = (/** @type {number} */ rank) => 1 - Math.log(rank) / Math.log(vocabulary);
  const places = ofNext.map((rank) => ({ at: placeOf(rank ?? 1), text: String(rank) }));
  const tens = exponents(0, Math.floor(Math.log10(vocabulary))).map((exponent) => 10 ** exponent);
  const hasRanks = !ofNext.includes(null);
  return html`<div class="layer-charts">
    <${Chart} lens=${lens} row=${row} points=${chances} marks=${marks} hasAxis=${!hasRanks} title=${`Probability of the output’s token, “${word}”`} />
    ${hasRanks && html`<${Chart} lens=${lens} row=${row} points=${places} marks=${tens.map((rank) => ({ at: placeOf(rank), text: String(rank) }))} hasAxis=${true} title=${`Rank of the ${target(lens)}, “${lens.next[column]}”`} />`}</div>`;
}

/** A line over the layers.
 *  @param {{lens: Lens, row: number, points: Point[], marks: Mark[], hasAxis: boolean, title: string}} props */
function Chart({ lens, row, points, marks, hasAxis, title }) {
  const { width, height, left, right, top, bottom, axis } = CHART;
  const step = (width - left - right) / Math.max(1, points.length - 1);
  const x = (/** @type {number} */ layer) => left + step * layer;
  const y = (/** @type {number} */ level) => top + (height - top - bottom) * (1 - level);
  const line = points.map(({ at }, i) =>
    at === null ? "" : `${i && points[i - 1].at !== null ? "L" : "M"}${x(i).toFixed(1)} ${y(at).toFixed(1)}`,
  );
  const dot = Math.min(DOT, step / 3);
  const every = Math.ceil(NAMED / step);
  const names = lens.layers.map((layer, i) => {
    const isNamed = i === 0 || (i % every === 0 && x(i) - left > 1.5 * NAMED) || i === row;
    const isCovered = i !== row && Math.abs(i - row) * step < NAMED && i > 0;
    return isNamed && !isCovered ? (layer === 0 ? "emb." : String(layer - 1)) : "";
  });
  const all = points.map((point, i) => `${layerTitle(lens, i)} ${point.text}`).join(", ");
  return html`<figure><figcaption title=${title}>${title}</figcaption>
    <svg viewBox=${`0 0 ${width} ${height + (hasAxis ? axis : 0)}`} role="img" aria-label=${`${title}: ${all}`}>
      <path class="rule" d=${marks.map(({ at }) => `M${left} ${y(at)}H${width}`).join("")} />
      <path class="layer" d=${`M${x(row)} ${y(1)}V${height}`} />
      ${marks.map(({ at, text }) => html`<text x=${left - 8} y=${y(at) + 4} text-anchor="end">${text}</text>`)}
      <path class="line" d=${line.join("")} />
      ${points.map(({ at }, i) => at !== null && html`<circle cx=${x(i)} cy=${y(at)} r=${i === row ? 1.5 * dot : dot} />`)}
      <text class="value" x=${x(row)} y=${top - 6} text-anchor=${row ? "middle" : "start"}>${points[row].text}</text>
      ${hasAxis && html`<text x="0" y=${height + 13}>layer</text>`}
      ${hasAxis && names.map((name, i) => html`<text class=${i === row ? "value" : ""} x=${x(i)} y=${height + 13} text-anchor="middle">${name}</text>`)}
    </svg></figure>`;
}
