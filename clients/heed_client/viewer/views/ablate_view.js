// Switches heads off, and shows the changes: of the other heads' weights, of the output, of the next tokens.
import { html, useEffect, useMemo, useRef, useState } from "vendor/preact.js";
import {
  changeShown,
  changesOf,
  distance,
  effectsOf,
  keepEffects,
  LEAST,
  moved,
  nextTokens,
  outputOf,
  runWhole,
  withoutHeads,
} from "heed/server/ablation.js";
import { format, isOfWeights, minus, percent, points, short } from "heed/data/display.js";
import { largestChange } from "heed/data/matrix.js";
import { css, palette, textOn } from "heed/data/palettes.js";
import { nameIn } from "heed/data/picture.js";
import { namedPlaces } from "heed/data/ranking.js";
import { NextTokens } from "heed/views/chances.js";
import { hint } from "heed/views/controls.js";
import { paintSmall, useTheme } from "heed/views/draw/canvas.js";
import { ablatedTitles, headsOff, placeOf } from "heed/views/comparison.js";
import { usePromise } from "heed/views/hooks.js";
import { ignored, sentence } from "heed/views/changes.js";
import { LargeHead } from "heed/views/model_view.js";
import { SideBySide } from "heed/views/side_by_side.js";

/** @typedef {import("heed/views/hooks.js").ViewProps} ViewProps */
/** @typedef {import("heed/data/state.js").Place} Place */
/** @typedef {import("heed/data/state.js").Settings} Settings */
/** @typedef {import("heed/data/attention.js").Attention} Attention */
/** @typedef {import("heed/data/matrix.js").Matrix} Matrix */

const LISTED = 8; // heads by change
const MOST_EFFECTS = 5; // heads by effect
const MOST_BARS = 60; // tokens
const BARS = 20; // one below the other
const RELATIVE = "‖after − before‖ / ‖before‖".replaceAll(" ", "\u00a0"); // no line break divides it

/** @typedef {import("heed/server/ablation.js").Change} Change */
/** @typedef {(number | null)[][]} Effects  of each head on the output [layers][heads], null if it is not measured yet */
/** @typedef {{layer: number, head: number, effect: number}} Effect */
/** @typedef {{each: {word: string, cosine: number, share: number}[], whole: number}} Move  of the output of each token, and of all of it */

/** @param {ViewProps & {run: import("heed/views/hooks.js").Run & {wanted: Settings}, isOpening?: boolean}} props
 *    `isOpening`: no layer or head is chosen yet; `wanted` are the settings of the page, to which the run that is shown may not be the answer yet */
export function AblateView({ attention, settings, set, run, isOpening = false }) {
  const { model, input, request, wanted } = run;
  const asked = JSON.stringify(withoutHeads(run.settings));
  const whole = usePromise(
    async () => ({ model, request, asked, ...(await runWhole(model, run.settings, input)) }),
    [model, request, asked],
  );
  const part = usePromise(async () => {
    const [output, tokens] = await Promise.all([
      outputOf(model, run.settings, input),
      nextTokens(model, run.settings, input),
    ]);
    return { input, output, tokens };
  }, [input]);
  const error = whole.error ?? part.error;
  const { value } = whole;
  // With all heads, of the input and the options of the run that is shown.
  const same = value?.model === model && value.request === request && value.asked === asked ? value : null;
  const isCurrent =
    JSON.stringify([withoutHeads(wanted), wanted.ablated]) ===
    JSON.stringify([withoutHeads(run.settings), run.settings.ablated]);
  const before = same?.attention ?? null;
  const { ablated } = run.settings;
  const isReady = before !== null && before.isWhole && attention.isWhole && ablated.length > 0;
  const changes = useMemo(() => (isReady ? changesOf(attention, before, ablated) : []), [attention, before, isReady]);
  const [picked, setPicked] = useState(""); // a head
  const [opened, setOpened] = useState("0.0"); // a head that is shown without being chosen
  useEffect(() => {
    if (isOpening) setOpened(nameOf(settings));
  }, [isOpening, settings.layer, settings.head]);
  const [pointed, setPointed] = useState(""); // a head
  const at = pointed ? { ...settings, ...placeNamed(pointed) } : settings;
  const isSteady = isReady && !(changes[0]?.largest > LEAST);
  const shown = isSteady ? null : changeShown(changes, at, pointed !== "" || picked === nameOf(settings));
  const choose = (/** @type {{layer: number, head: number}} */ place) => {
    setPicked(nameOf(place));
    set({ layer: place.layer, head: place.head, combine: "none" });
  };
  const grid = { ...settings, ablated: wanted.ablated };
  const measured = useEffects(run, attention, same?.output ?? null, same);
  const isChosen = picked === nameOf(settings) || opened !== nameOf(settings) || settings.combine !== "none";
  const most = wanted.ablated.length ? null : measured.ranked?.[0];
  useEffect(() => {
    if (!most || isChosen) return;
    setOpened(nameOf(most));
    set({ layer: most.layer, head: most.head });
  }, [most]);
  const setHeads = (/** @type {Partial<Settings>} */ changes) => {
    const isLeft = !isChosen && opened !== "0.0"; // the changes have a head of their own
    setOpened("0.0");
    set({ ...changes, ...(isLeft && { layer: 0, head: 0 }) });
  };
  const heads = isReady && shown && { attention, before, changes, shown, settings, set, choose };
  const outputs = same && part.value?.input === input && ablated.length > 0 ? part.value : null;
  const visibility = isCurrent ? "visible" : "hidden";
  // The last layer changes no weights: this is known before the answer.
  const isSame = isCurrent && isReady ? isSteady : wanted.ablated.every(([layer]) => layer === attention.layers - 1);
  const tokens =
    outputs && same?.tokens && outputs.tokens
      ? html`<${NextTokens} before=${same.tokens} after=${outputs.tokens} titles=${["all heads on", headsOff(attention, run.settings)]} />`
      : null;
  const moving = outputs && moveOf(attention.rows, same?.output ?? null, outputs.output);
  const isKnown = Boolean(same?.output && outputs?.output);
  const changed =
    outputs &&
    (isKnown
      ? moving && html`<${OutputChanges} ...${moving} isLarge=${isSteady} />`
      : html`<p class="note">The output is too large to compare here.</p>`);
  const below = html`<div style=${{ visibility }}>${!isSteady && (tokens ?? changed)}</div>`;
  const squares = isSame
    ? "No weights change, because only heads of later layers see what a head adds. Each square: the head’s weights."
    : `Each square: the head’s largest change of a weight${isOfWeights(settings.kind) ? ", in points" : ""}. In the map, orange is more, violet less.`;
  return html`<p class="note">${
    wanted.ablated.length
      ? squares
      : "A head that is switched off adds nothing to the output. Heads of later layers change, and so does the output."
  }</p>
    ${(error ?? measured.error) && html`<p role="alert">${(error ?? measured.error)?.message}</p>`}
    <${Grid} attention=${attention} before=${before} changes=${isCurrent ? changes : []} moving=${isCurrent && isSteady ? moving : null} isSame=${isSame} shown=${shown ?? null} settings=${grid} set=${setHeads} choose=${choose} setPointed=${setPointed} measured=${measured} below=${below}>
      ${
        wanted.ablated.length === 0
          ? attention.isWhole &&
            attention.isSmall &&
            html`<${LargeHead} attention=${attention} settings=${at} set=${set} />`
          : html`<div class=${isSteady ? "of-output" : ""} style=${{ visibility }}>${isSteady ? html`${changed}${tokens}` : heads && html`<${Head} ...${heads} /><${Ranking} ...${heads} />`}</div>`
      }<//>
    <div style=${{ visibility }}>${!isSteady && tokens && changed}</div>`;
}

/** The colours of a square. @param {number} share  of the largest change of all heads */
function squareOf(share) {
  const colours = palette("auto");
  return { background: css(colours, share), color: textOn(colours, share) };
}

/** The size of a change of a weight, or of another output. @param {string} kind @param {number} size */
const sizeText = (kind, size) => (isOfWeights(kind) ? points(size, "") : format(size));

/** @param {{layer: number, head: number}} place */
const nameOf = ({ layer, head }) => `${layer}.${head}`;

/** @param {string} name  as `nameOf` makes it */
function placeNamed(name) {
  const [layer, head] = name.split(".").map(Number);
  return { layer, head };
}

/** Measures on demand the effect of each head alone on the output, until the input changes.
 *  @param {import("heed/views/hooks.js").Run} run @param {Attention} attention
 *  @param {import("heed/server/ablation.js").Output | null} before @param {unknown} of  the run of the numbers */
function useEffects({ model, input, settings, request }, attention, before, of) {
  const [state, setState] = useState(
    /** @type {{of: unknown, effects: Effects | null, ranked: Effect[] | null, count: number, error: Error | null}} */ ({
      of: null,
      effects: null,
      ranked: null,
      count: 0,
      error: null,
    }),
  );
  const running = useRef(/** @type {AbortController | null} */ (null));
  useEffect(() => () => running.current?.abort(), [of]);
  const measure = async () => {
    if (!before) return;
    const { signal } = (running.current = new AbortController());
    const tell = (/** @type {object} */ news) =>
      signal.aborted || setState({ of, effects: null, ranked: null, count: 0, error: null, ...news });
    tell({});
    try {
      const { layers, heads } = attention;
      const arrived = (/** @type {Effects} */ effects, /** @type {number} */ count) => tell({ effects, count });
      const effects = await effectsOf(model, settings, input, layers, heads, before, signal, arrived);
      keepEffects({ model, settings, request }, effects);
      tell({ effects, ranked: rankedOf(effects), count: -1 });
    } catch (error) {
      tell({ error, count: -1 });
    }
  };
  const isOwn = of !== null && state.of === of;
  return {
    measure: before ? measure : null,
    effects: isOwn ? state.effects : null,
    ranked: isOwn ? state.ranked : null,
    count: isOwn && state.count >= 0 ? state.count : null,
    error: isOwn ? state.error : null,
  };
}

/** The effects, the largest first. @param {Effects} effects @returns {Effect[]} */
const rankedOf = (effects) =>
  effects
    .flatMap((row, layer) => row.map((effect, head) => ({ layer, head, effect: Number(effect) })))
    .sort((one, other) => other.effect - one.effect);

/** Layers x heads: a picture of what changes, in the layers after a head that is off, and a switch.
 *  @param {ViewProps & {before: Attention | null, changes: Change[], moving: Move | null, isSame: boolean, shown: Change | null, choose: (place: {layer: number, head: number}) => void, setPointed: (name: string) => void, measured: ReturnType<typeof useEffects>, below: unknown, children?: unknown}} props
 *    `moving` where no weights change; `isSame`: the squares show weights; `below` the grid, `children` beside it */
function Grid({
  attention,
  before,
  changes,
  moving,
  isSame,
  shown,
  settings,
  set,
  choose,
  setPointed,
  measured,
  below,
  children,
}) {
  useTheme(); // draws again when it changes
  const { layers, heads } = attention;
  const { ablated } = settings;
  const grid = useRef(/** @type {HTMLElement | null} */ (null));
  const all = (/** @type {number} */ count) => [...Array(count).keys()];
  const isOff = (/** @type {number} */ layer, /** @type {number} */ head) =>
    ablated.some(([l, h]) => l === layer && h === head);
  const without = (/** @type {(place: Place) => boolean} */ left) => ablated.filter((place) => !left(place));
  const toggle = (/** @type {number} */ layer, /** @type {number} */ head) =>
    set({ ablated: isOff(layer, head) ? without(([l, h]) => l === layer && h === head) : [...ablated, [layer, head]] });
  const isFixed = isSame && ablated.length > 0; // no head has a change to show
  const current = shown ?? (ablated.length ? null : settings);
  const top = changes[0]?.largest ?? 0;
  const { effects, ranked, count } = measured;
  const isMeasured = effects !== null || count !== null; // or is being measured
  const most = Math.max(...(effects ?? []).flatMap((row) => row.map(Number))) || 1;
  const [focused, setFocused] = useState(""); // Tab reaches one picture and one switch, arrow keys the others
  const { layer, head } = placeNamed(focused);
  const isThere = focused !== "" && layer < layers && head < heads;
  const reached = isThere ? focused : shown ? nameOf(shown) : "0.0";
  const focus = (/** @type {any} */ { target: { dataset } }) => dataset.place && setFocused(dataset.place);
  const point = (/** @type {any} */ { target }) =>
    setPointed(target.closest("[data-kind=change]")?.dataset.place ?? "");
  const move = (/** @type {KeyboardEvent} */ event) => {
    const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    const { place, kind } = /** @type {HTMLElement} */ (event.target).dataset;
    if (!step || !place) return;
    const { layer, head } = placeNamed(place);
    const next = grid.current?.querySelector(
      /** @type {"button"} */ (`[data-kind="${kind}"][data-place="${layer + step[0]}.${head + step[1]}"]`),
    );
    next?.focus();
    event.preventDefault();
  };
  const switched =
    ablated.length === 0 ? `all ${layers * heads} heads on` : `${ablated.length} of ${layers * heads} heads off`;
  const said = count === null ? switched : `${count} of ${layers * heads} heads measured`;
  return html`<${Answer} attention=${attention} settings=${settings} before=${before} isWhole=${ablated.length === 0} moving=${moving} change=${ablated.length ? changes[0] : null} most=${ablated.length ? null : ranked?.[0]} />
    <div class="heads-tools"><button disabled=${ablated.length === 0} onClick=${() => set({ ablated: [] })}>switch all on</button>${" "}
        ${measured.measure && html`<button disabled=${count !== null} onClick=${measured.measure}>measure every head</button>${" "}`}
        <span role="status">${said}${isMeasured && ". Below each head: the change of the output without it alone, in %."}</span></div>
    <div class="ablation" style=${{ "--heads": heads, "--layers": layers }}><div><div class="grid-of-heads"><table class="heads" ref=${grid} onKeyDown=${move} onFocusIn=${focus} onPointerOver=${point} onPointerLeave=${() => setPointed("")}>
      <thead><tr><th scope="col">head</th>${all(heads).map((head) => html`<th scope="col">${head}</th>`)}</tr></thead>
      <tbody>${all(layers).map(
        (layer) => html`<tr>
        <th scope="row">${layers > 1 && html`<span>layer ${layer}</span>`}
          <${LayerSwitch} layer=${layer} isOff=${all(heads).every((head) => isOff(layer, head))}
            set=${(/** @type {boolean} */ off) => set({ ablated: [...without(([l]) => l === layer), ...all(off ? heads : 0).map((head) => /** @type {Place} */ ([layer, head]))] })} /></th>
        ${all(heads).map((head) => {
          const off = isOff(layer, head);
          const change = changes.find((one) => one.layer === layer && one.head === head);
          const isChanged = !off && change !== undefined && change.largest > LEAST;
          const whole = isSame && attention.isWhole ? attention.small(layer, head) : null;
          const effect = effects?.[layer][head] ?? null;
          const state = off ? "off" : "on";
          const label = `${state}${effect === null ? "" : ` ${percent(effect)}`}: switch off layer ${layer}, head ${head}`;
          return html`<td>
            <button class=${`thumbnail ${off ? "is-off" : ""}`} style=${isChanged ? squareOf(change.largest / top) : {}} data-kind="change" data-place=${`${layer}.${head}`} tabindex=${reached === nameOf({ layer, head }) ? 0 : -1} aria-pressed=${current !== null && current.layer === layer && current.head === head}
              aria-label=${`layer ${layer}, head ${head}${off ? ": is off" : change ? `: changes by at most ${sizeText(settings.kind, change.largest)}` : ""}`}
              aria-disabled=${off || isFixed} onClick=${() => off || isFixed || choose({ layer, head })}>
              ${
                whole
                  ? html`<${Picture} matrix=${whole} attention=${attention} settings=${settings}
                      top=${largestChange(whole.values) || 1} />`
                  : isChanged &&
                    html`<span aria-hidden="true">${short(change.largest, top, isOfWeights(settings.kind), 4)}</span>`
              }</button>
            <button class="toggle" data-kind="switch" data-place=${`${layer}.${head}`} tabindex=${reached === nameOf({ layer, head }) ? 0 : -1} aria-pressed=${off}
              aria-label=${label} onClick=${() => toggle(layer, head)}>${state}</button>
            ${isMeasured && html`<small class="head-effect" aria-hidden="true" style=${{ "--share": `${(100 * (effect ?? 0)) / most}%` }}>${effect !== null && percent(effect).replace(/\u00a0%?/g, "")}</small>`}</td>`;
        })}</tr>`,
      )}</tbody></table></div>
      ${ranked && html`<${EffectsList} layers=${layers} strongest=${ranked.slice(0, MOST_EFFECTS)} isOff=${isOff} toggle=${toggle} />`}${below}</div><div class="results">${children}</div></div>`;
}

/** The heads with the largest effects, as switches.
 *  @param {{layers: number, strongest: Effect[], isOff: (layer: number, head: number) => boolean, toggle: (layer: number, head: number) => void}} props */
const EffectsList = ({ layers, strongest, isOff, toggle }) =>
  html`<section class="effects"><h2>Largest effects: ${hint("click", "tap")} to switch off</h2>
    <ol class="ranking" aria-label="heads by effect">${strongest.map(({ layer, head, effect }) => html`<li><button aria-pressed=${isOff(layer, head)} onClick=${() => toggle(layer, head)}>${layers > 1 ? `layer ${layer}, ` : ""}head ${head} <b>${percent(effect)}</b></button></li>`)}</ol></section>`;

/** Switches all heads of a layer off, or on if all are off. @param {{layer: number, isOff: boolean, set: (off: boolean) => void}} props */
function LayerSwitch({ layer, isOff, set }) {
  const name = isOff ? "all on" : "all off";
  return html`<button aria-label=${`layer ${layer}: ${name}`} onClick=${() => set(!isOff)}>${name}</button>`;
}

/** The head that matters most, in a sentence. @param {{attention: Attention, settings: Settings, before: Attention | null, isWhole: boolean, moving: Move | null, change?: Change | null, most?: Effect | null}} props */
function Answer({ attention, settings, before, isWhole, moving, change = null, most = null }) {
  const { layers, axis, rows, columns } = attention;
  const name = (/** @type {{layer: number, head: number}} */ { layer, head }) =>
    `${layers > 1 ? `${axis} ${layer}, ` : ""}head ${head}`;
  const ofWhole = (/** @type {number} */ effect) =>
    html`<small>${percent(effect)}: ${RELATIVE} of the whole output</small>`;
  if (most)
    return html`<p class="headline">The output moves most without ${name(most)}: <b>${percent(most.effect)}</b> ${ofWhole(most.effect)}</p>`;
  if (isWhole) return html`<p class="headline">Switch a head off to see what changes</p>`;
  if (moving) {
    const shares = moving.each.map(({ share }) => share);
    const at = shares.length === rows.length && shares.length > 1 && moving.whole > 0;
    const top = namedPlaces(rows).reduce((best, place) => (shares[place] > shares[best] ? place : best));
    const left = at && ignored({ rows, columns: [] });
    return html`<p class="headline">Without ${headsOff(attention, settings).replace(/ off$/, "")} the output changes by <b>${percent(moving.whole)}</b>${at && html`, most at ${nameIn(attention, settings, "rows", top)}: <b>${percent(shares[top])}</b>${left && html` <small>${left}</small>`}`} ${ofWhole(moving.whole)}</p>`;
  }
  if (!before || !change || !(change.largest > LEAST)) return html`<p class="headline"></p>`; // no click moves the grid
  const weights = before.small(change.layer, change.head);
  const left = ignored(attention);
  if (weights.m !== rows.length || weights.n !== columns.length)
    return html`<p class="headline">${name(change)} changes most: one weight by <b>${sizeText(settings.kind, change.largest)}</b></p>`;
  return html`<p class="headline">${name(change)} changes most: ${sentence({ attention, before: weights, change: change.matrix, settings }, change.place)}${left && html` <small>${left}</small>`}</p>`;
}

/** @param {{matrix: Matrix, attention: Attention, settings: Settings, top: number}} props */
function Picture({ matrix, attention, settings, top }) {
  useTheme(); // draws again when it changes
  const canvas = useRef(/** @type {HTMLCanvasElement | null} */ (null));
  useEffect(() => {
    const looks = { ...settings, range: /** @type {const} */ ("global"), renormalise: false };
    paintSmall(/** @type {HTMLCanvasElement} */ (canvas.current), matrix, attention, looks, top);
  });
  return html`<canvas ref=${canvas} aria-hidden="true"></canvas>`;
}

/** @typedef {ViewProps & {before: Attention, changes: Change[], shown: Change, choose: (place: {layer: number, head: number}) => void}} HeadsProps */

/** The heads that change most. @param {HeadsProps} props */
function Ranking({ attention, changes, shown, settings, choose }) {
  const name = (/** @type {{layer: number, head: number}} */ { layer, head }) =>
    placeOf(attention, { ...settings, layer, head, combine: "none" });
  const listed = changes.filter(({ largest }) => largest > LEAST).slice(0, LISTED);
  return html`<section aria-label="heads by change"><h2>Largest change of a weight, by head</h2>
    <ol class="ranking">${listed.map((one) => html`<li><button aria-current=${one === shown} onClick=${() => choose(one)}>${name(one)} <b>${sizeText(settings.kind, one.largest)}</b></button></li>`)}</ol></section>`;
}

/** One head before and after. @param {HeadsProps} props */
function Head({ attention, before, shown, settings, set }) {
  const own = { ...settings, layer: shown.layer, head: shown.head, combine: /** @type {const} */ ("none") };
  const [first, second] = ablatedTitles(attention, own);
  return html`<section aria-label="selected head"><${SideBySide} first=${{ attention: before, settings: own, set }} second=${{ attention, settings: own, set }}
    titles=${[first, second, `${placeOf(attention, own)}: change`]} /></section>`;
}

/** How far the output moves; null if it is too large or has another length.
 *  @param {import("heed/data/attention.js").Label[]} labels @param {import("heed/server/ablation.js").Output | null} before
 *  @param {import("heed/server/ablation.js").Output | null} after @returns {Move | null} */
function moveOf(labels, before, after) {
  if (!before || !after || before.rows.length !== after.rows.length) return null;
  const hasWords = before.rows.length === labels.length;
  const each = before.rows.map((row, i) => ({
    word: hasWords ? labels[i].text : before.rows.length > 1 ? String(i) : "",
    ...distance(row, after.rows[i]),
  }));
  return { each, whole: moved(before, after) };
}

/** The change of the output of each token. @param {{each: Move["each"], whole?: number, isLarge?: boolean}} props  large: as bars */
export function OutputChanges({ each, whole, isLarge = false }) {
  useTheme(); // draws again when it changes
  const top = Math.max(...each.map(({ share }) => share)) || 1;
  const colours = palette("auto");
  const isBars = isLarge && each.length > 1 && each.length <= MOST_BARS;
  const looks = (/** @type {number} */ level) =>
    isBars ? { "--share": `${100 * level}%` } : { background: css(colours, level), color: textOn(colours, level) };
  return html`<section aria-label="change of the output"><h2>Change of the output${each.length > 1 && " of each token"}</h2>
    <p class="note">${RELATIVE} of the ${each.length > 1 && "token’s "}vector${whole !== undefined && each.length > 1 && `; whole output: ${percent(whole)}`}.</p>
    <ol class=${isBars ? "bars" : "chips"} style=${{ "--rows": Math.ceil(each.length / Math.ceil(each.length / BARS)) }}>${each.map(
      ({
        word,
        cosine,
        share,
      }) => html`<li title=${`cosine similarity of the vectors before and after: ${minus(cosine.toFixed(4))}`}
      style=${looks(share / top)}>
      <b>${word}</b> ${percent(share)}</li>`,
    )}</ol></section>`;
}
