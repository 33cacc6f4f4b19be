// Find the head that looks most from one word to another: two words are held, and all heads are ranked by that weight.
import { html, useEffect, useMemo, useRef } from "vendor/preact.js";
import { drawnHeads, valueText } from "heed/data/display.js";
import { briefly, nameIn } from "heed/data/picture.js";
import { heldWeight, inOrder, largestPair, leftOut, rank, rankedPair } from "heed/data/ranking.js";
import { placeOf } from "heed/views/comparison.js";
import { arrowKeys, hint } from "heed/views/controls.js";
import { drawn, useNumbers, usePromise, useReady, useShown } from "heed/views/hooks.js";

/** @typedef {import("heed/data/attention.js").Label} Label */
/** @typedef {import("heed/data/ranking.js").Ranked} Ranked */
/** @typedef {import("heed/data/state.js").Settings} Settings */
/** @typedef {import("heed/views/hooks.js").ViewProps} ViewProps */
/** @typedef {{layer: number, head: number}} Head */
/** @typedef {(head: Head) => void} Point  at a head of the ranking */

const LISTED = 10; // heads
const RANK = `${hint("Click", "Tap")} a word to rank all heads by its weights.`;
const MOST_WORDS = 512; // of a text whose words are all buttons

/** @param {ViewProps & {point?: Point, pointed?: Head | null}} props  `pointed` is the head that is current in Model */
export function PairFinder({ attention, settings, set, point, pointed = null }) {
  const isHeld = settings.query !== null || settings.key !== null;
  useReady(attention); // renders again when all heads have arrived
  const { heads } = useRanking(attention, settings);
  const [best] = heads;
  useEffect(() => {
    if (best) point?.(best);
  }, [best]);
  if (Math.max(attention.m, attention.n) > MOST_WORDS && !isHeld) return null;
  return html`<section class="pair" aria-label="find a pair">
    <${Words} attention=${attention} settings=${settings} set=${set} />
    ${
      isHeld
        ? html`<${Headline} attention=${attention} settings=${settings} best=${best ?? null} />`
        : settings.view === "model"
          ? html`<p class="headline">${best ? html`<${Pair} attention=${attention} settings=${{ ...settings, combine: "none" }} pair=${best} isRanked />` : html`All heads <small>${RANK}</small>`}</p>`
          : html`<${Largest} attention=${attention} settings=${settings} />`
    }
    ${
      attention.layers * attention.heads > 1 &&
      (isHeld || best
        ? html`<${Ranking} attention=${attention} settings=${settings} set=${set} heads=${heads} point=${point} current=${pointed ?? settings} />`
        : html`<p class="before-ranking"></p>`)
    }
  </section>`;
}

/** All heads by the weight of the held words, below a title.
 *  @param {ViewProps & {title: string, before?: string, hasSmall?: boolean, onBest?: (best: Ranked) => void}} props  `before`: a line
 *    in their place while no word is held, `hasSmall`: whether there are small pictures */
export function RankedHeads({ attention, settings, set, title, before = "", hasSmall = true, onBest }) {
  const isHeld = settings.query !== null || settings.key !== null;
  const { heads, error } = useRanking(attention, settings, hasSmall);
  const isWaiting = !isHeld && heads.length === 0;
  useEffect(() => {
    if (heads.length) onBest?.(heads[0]);
  }, [heads[0]]);
  if (error) return html`<p role="alert">${error.message}</p>`;
  if (attention.layers * attention.heads === 1) return null;
  return html`<section class="heads-by-weight" aria-label="heads by weight"><h2>${title}</h2>
    ${
      isWaiting
        ? html`<p class="note before-ranking">${before}</p>`
        : html`<${Ranking} attention=${attention} settings=${settings} set=${set} heads=${heads} />`
    }</section>`;
}

/** Heads by the weight of the held words. @param {ViewProps & {heads: Ranked[], point?: Point, current?: Head}} props */
function Ranking({ attention, settings, set, heads, point = () => {}, current = settings }) {
  const { query, key, kind } = settings;
  const name = (/** @type {"rows" | "columns"} */ axis, /** @type {number} */ place) =>
    nameIn(attention, settings, axis, place);
  const shown = current === settings ? drawnHeads(attention, settings) : [current.head];
  return html`<ol class="ranking" aria-label=${`heads by weight${query === null ? "" : ` from ${name("rows", query)}`}${key === null ? "" : ` to ${name("columns", key)}`}`}>
      ${heads.slice(0, LISTED).map(
        ({
          layer,
          head,
          weight,
          other,
          row,
          column,
        }) => html`<li><button aria-current=${layer === current.layer && shown.includes(head)} onPointerEnter=${() => point({ layer, head })} onFocus=${() => point({ layer, head })}
        onClick=${() => set({ layer, head, heads: [], combine: "none", view: settings.view === "model" ? "head" : settings.view })}>
        ${attention.layers > 1 ? `layer ${layer}, ` : ""}head ${head} <b>${valueText(kind, weight)}</b>${
          row !== undefined && column !== undefined
            ? ` ${name("rows", row)} → ${name("columns", column)}`
            : other === null
              ? ""
              : ` ${query === null ? "from" : "to"} ${name(query === null ? "rows" : "columns", other)}`
        }</button></li>`,
      )}</ol>`;
}

/** The largest weight of the heads that are drawn, while no word is held. @param {Omit<ViewProps, "set">} props */
function Largest({ attention, settings }) {
  const { layer, head, hideSpecial, hideFirst, hidePadding, renormalise } = settings;
  const { shown } = useShown(attention, settings);
  const heads = drawnHeads(attention, settings);
  const one = shown && largestPair(shown, attention);
  const { value: several } = usePromise(async () => {
    if (heads.length < 2) return null;
    const shown = heads.map(async (head) => drawn(await attention.matrix(layer, head), attention, settings));
    const pairs = (await Promise.all(shown)).map((one, i) => rankedPair(layer, heads[i], largestPair(one, attention)));
    return inOrder(attention, settings, pairs.flat())[0] ?? null;
  }, [attention, layer, heads.join(), hideSpecial, hideFirst, hidePadding, renormalise]);
  const isOne = heads.length < 2;
  const pair = isOne ? rankedPair(layer, head, one)[0] : several;
  if (!pair) return html`<p class="headline"></p>`;
  return html`<p class="headline"><${Pair} attention=${attention} settings=${{ ...settings, heads: [] }} pair=${pair} error=${shown?.error} isRanked=${!isOne} /></p>`;
}

/** The heads by the weight of the held words, or each by its largest weight.
 *  @param {ViewProps["attention"]} attention @param {Settings} settings @param {boolean} [hasSmall]  whether there are small pictures
 *  @param {boolean} [isWanted] @returns {{heads: Ranked[], error: Error | null}} */
export function useRanking(attention, settings, hasSmall = true, isWanted = true) {
  const { query, key, view, hideSpecial, hideFirst, hidePadding } = settings;
  const isHeld = isWanted && (query !== null || key !== null);
  const largest = useLargest(attention, settings, isWanted && !isHeld);
  const { value, error } = usePromise(
    async () => ({
      attention,
      query,
      key,
      view,
      heads: attention.isWhole && isHeld ? await rank(attention, settings, hasSmall) : [],
    }),
    [attention, attention.isWhole, isHeld, query, key, view, hideSpecial, hideFirst, hidePadding],
  );
  const isCurrent = value?.attention === attention && value.query === query && value.key === key && value.view === view;
  return { heads: !isHeld ? largest : isCurrent ? value.heads : [], error };
}

/** Each head's largest weight, the largest first, if the small pictures have every weight.
 *  @param {ViewProps["attention"]} attention @param {Settings} settings @param {boolean} isWanted @returns {Ranked[]} */
function useLargest(attention, settings, isWanted) {
  const { layers, heads, isWhole, isSmall } = attention;
  const { hideSpecial, hideFirst, hidePadding, renormalise } = settings;
  return useMemo(() => {
    if (!isWanted || !isWhole || !isSmall) return [];
    const all = Array.from({ length: layers * heads }, (_, i) => {
      const [layer, head] = [Math.floor(i / heads), i % heads];
      return rankedPair(layer, head, largestPair(drawn(attention.small(layer, head), attention, settings), attention));
    });
    return inOrder(attention, settings, all.flat());
  }, [attention, isWanted, isWhole, hideSpecial, hideFirst, hidePadding, renormalise]);
}

/** A pair of words, its weight and its head. @param {Omit<ViewProps, "set"> & {pair: Ranked, error?: number, isRanked?: boolean}} props  `isRanked`: it is of several heads */
const Pair = ({ attention, settings, pair: { layer, head, row = 0, column = 0, weight }, error, isRanked = false }) =>
  html`<bdi>${nameIn(attention, settings, "rows", row)}</bdi> → <bdi>${nameIn(attention, settings, "columns", column)}</bdi>: <b>${valueText(settings.kind, weight, error)}</b>${" "}
    <small>largest in ${placeOf(attention, { ...settings, layer, head })}${leftOut(attention, isRanked)}. ${RANK}</small>`;

/** The weight of the held pair in what is drawn; in Model in the first head of the ranking.
 *  @param {Omit<ViewProps, "set"> & {best: Ranked | null}} props */
function Headline({ attention, settings, best }) {
  const { kind, query, key, view, layer, head } = settings;
  const { matrix } = useNumbers(attention, settings);
  const isBest = view === "model";
  const isPair = query !== null && key !== null;
  const own = useMemo(
    () => matrix && heldWeight(attention, settings, (i, j) => matrix.values[i * matrix.n + j]),
    [matrix, query, key, settings.hideSpecial, settings.hideFirst, settings.hidePadding],
  );
  const found = isBest ? best : own && { ...own, layer, head };
  const known = found && (isPair || Number.isFinite(found.weight)) ? found : null;
  const name = (/** @type {"rows" | "columns"} */ axis, /** @type {number | null} */ place) => {
    const at = place ?? known?.other ?? null;
    return at === null ? "…" : html`<bdi>${nameIn(attention, settings, axis, at)}</bdi>`;
  };
  const where =
    known &&
    placeOf(attention, isBest ? { ...settings, layer: known.layer, head: known.head, combine: "none" } : settings);
  const held = nameIn(attention, settings, query === null ? "columns" : "rows", query ?? Number(key));
  const next = `${hint("Click", "Tap")} the word that ${query === null ? "looks" : "it looks at"}`;
  return html`<p class="headline">${name("rows", query)} → ${name("columns", key)}${
    known && html`: <b>${valueText(kind, known.weight, isBest ? 0 : matrix?.error)}</b>`
  }
    ${" "}<small>${known && `${isPair && !isBest ? "" : "largest in "}${where}`}${
      isPair ? "" : `${leftOut(attention, isBest)}. ${next}, or ${held} again to unpin it.`
    }</small></p>`;
}

/** The words as buttons: the first click holds the query, the second the key. @param {ViewProps} props */
function Words({ attention, settings, set }) {
  const { m, n, rows, columns, isSelf } = attention;
  const { query, key, kind } = settings;
  const names = kind === "cross_weights" ? ["decoder", "encoder"] : ["queries", "keys"];
  const both = useMemo(() => (isSelf ? [rows] : [rows, columns]), [attention]);
  if (Math.max(m, n) > MOST_WORDS) return null;
  const click = (/** @type {boolean} */ isQuery, /** @type {number} */ place) => {
    if (!isSelf) {
      if (isQuery) set({ query: place === query ? null : place, direction: "from" });
      else set({ key: place === key ? null : place, direction: query === null ? "to" : "from" });
    } else if (query === null) set({ query: place, direction: "from", key: place === key ? null : key });
    else if (key === null) set(place === query ? { query: null } : { key: place, direction: "from" });
    else if (place === key) set({ key: null });
    else set({ query: place === query ? null : place, key: null, direction: "from" });
  };
  return both.map(
    (labels, side) => html`<${Line} labels=${labels} name=${isSelf ? "words" : names[side]} isNamed=${!isSelf}
      query=${side === 0 ? query : null} held=${isSelf || side === 1 ? key : null} onClick=${(/** @type {number} */ place) => click(side === 0, place)} />`,
  );
}

/** One line of words: Tab reaches one of them, arrow keys the others.
 *  @param {{labels: Label[], name: string, query: number | null, held: number | null, isNamed: boolean, onClick: (place: number) => void}} props */
export function Line({ labels, name, isNamed, query, held, onClick }) {
  const box = useRef(/** @type {HTMLElement | null} */ (null));
  const tab = Math.min(query ?? held ?? 0, labels.length - 1);
  useEffect(() => {
    const word = /** @type {HTMLElement | undefined} */ (box.current?.children[query ?? held ?? 0]);
    if (word && box.current) box.current.scrollLeft = word.offsetLeft - box.current.clientWidth / 2; // on a phone
  }, [query, held]);
  const words = html`<div class="pair-words" role="group" aria-label=${name} ref=${box} onKeyDown=${arrowKeys}>
    ${labels.map(
      ({ text, special, padding }, place) => html`<button key=${place} tabindex=${place === tab ? 0 : -1}
      class=${`${place === query ? "query" : ""} ${place === held ? "key" : ""} ${padding ? "padding" : special ? "special" : ""}`}
      aria-pressed=${place === query || place === held} onClick=${() => onClick(place)} title=${`${text} (${place})`} dir="auto">${briefly(text)}</button>`,
    )}
  </div>`;
  return isNamed ? html`<div class="pair-line"><span class="note">${name}</span>${words}</div>` : words;
}
