// Two matrices on one scale, and the difference of the second from the first, as maps and in words.
import { html, useMemo, useRef } from "vendor/preact.js";
import { renormalised, visible } from "heed/data/display.js";
import { briefly } from "heed/data/picture.js";
import { between, ofDifference, pairsOf, shared, topOf } from "heed/views/comparison.js";
import { Changes, largestChangeOf, LargestDifference, Moved } from "heed/views/changes.js";
import { rootSize, useSize, useTopEdge } from "heed/views/draw/canvas.js";
import { AROUND, besideOf, LINE, WITHOUT_WORDS } from "heed/views/draw/heat_map.js";
import { MatrixView } from "heed/views/matrix_view.js";
import { usePromise } from "heed/views/hooks.js";
import { HINT, Selection } from "heed/views/selection.js";

/** @typedef {import("heed/views/hooks.js").Set} Set */
/** @typedef {import("heed/views/comparison.js").One} One */

const [IN_A_ROW, IN_ROW_OF_RESULTS] = [1088, 768]; // px from which the three maps are in a row, with the words of the queries once
const OTHERS_OF_RESULTS = 544; // px of what is above and below the maps in a row of results
const BELOW = 101; // px below the maps of a comparison
const BETWEEN = 16; // px between two maps of texts of two lengths
const NARROWEST = 0.75; // of the columns of the longer text, for the title of the other
const TIMES = 1.5; // as wide as the maps before and after is that of the change
const MANY = 24; // rows; of more not each has its word in a narrow map

/** Three maps of texts of two lengths with cells of one width: that of the cells, and those of the maps.
 *  @param {import("heed/data/attention.js").Attention[]} maps @param {import("heed/data/state.js").Settings} settings
 *  @param {number} names  px of the words beside each @param {number} width  px of all maps */
function columnsOf(maps, settings, names, width) {
  const counts = maps.map(({ columns }) => visible(columns, settings).length);
  const shares = counts.map((count) => Math.max(count, NARROWEST * Math.max(...counts)));
  const around = names + WITHOUT_WORDS;
  const cell = (width - maps.length * around) / shares.reduce((sum, share) => sum + share);
  return { cell, widths: shares.map((share) => `${Math.floor(around + share * cell)}px`).join(" ") };
}

/** A title that breaks neither between a name and its number nor after an ellipsis. @param {string} title */
const unbroken = (title) => title.replace(/ (?=\d)/g, "\u00a0").replaceAll("“…", "“…\u2060");

/**
 * The largest value of both sides, for one scale of both; null if they have none in common, or have not arrived.
 * @param {One} one @param {One | null} other
 */
function useTop({ attention, settings }, other) {
  const looks = ["layer", "head", "combine", "range", "renormalise", "hideSpecial", "hideFirst", "hidePadding"];
  const key = JSON.stringify(
    [settings, other?.settings].map(
      (one) => one && [one.kind, ...looks.map((name) => one[/** @type {"head"} */ (name)])],
    ),
  );
  const { value } = usePromise(
    async () => ({ key, top: other && (await topOf({ attention, settings }, other)) }),
    [attention, other?.attention, key],
  );
  return value?.key === key ? value.top : null;
}

/**
 * @param {{first: One & {set: Set}, second: (One & {set: Set}) | null, titles: [first: string, second: string, difference: string],
 *   isComparison?: boolean, tools?: unknown[], missing?: unknown}} props  `isComparison`: nothing changes between
 *   the sides, else the change is the first of the maps; `tools` choose the heads of the sides, `missing` is the reason for the absence of the second
 */
export function SideBySide({ first, second, titles, isComparison = false, tools = [], missing = null }) {
  const { attention, settings } = first;
  const other = second?.attention ?? null;
  const top = useTop(first, second);
  const pairs = useMemo(() => other && pairsOf(attention, other), [attention, other]);
  const linked = useMemo(() => pairs && new Set(), [pairs]);
  const isSame = pairs?.isSame ?? false;
  const change = useMemo(
    () => second && pairs && between(first, second, pairs),
    [
      pairs,
      ...[first, second].flatMap((one) => [one?.settings.layer, one?.settings.head, one?.settings.combine]),
      settings.renormalise,
      settings.hideSpecial,
      settings.hideFirst,
      settings.hidePadding,
    ],
  );
  const { value: words } = usePromise(
    async () =>
      change && {
        change,
        matrix: await change.matrix(0, 0),
        before: renormalised(await attention.selected(settings), attention.rows, attention.columns, settings),
      },
    [change],
  );
  const beside = useMemo(() => [attention, other, change].filter((one) => one !== null), [attention, other, change]);
  const scale = rootSize() / 16;
  const names = besideOf(
    beside.flatMap(({ rows }) => rows.map(({ text }) => briefly(text))),
    scale,
  );
  const sides = useRef(/** @type {HTMLElement | null} */ (null));
  const { width } = useSize(sides);
  const isWide = width >= (isComparison ? IN_A_ROW : IN_ROW_OF_RESULTS);
  const isRow = isWide && isSame;
  const unequal =
    isWide && isComparison && change && !isSame
      ? columnsOf(beside, settings, names, width - 2 * BETWEEN * scale)
      : null;
  const head = (
    /** @type {number} */ at,
    /** @type {unknown} */ own = tools[at],
  ) => html`<div class="side-head"><h2>${unbroken(titles[at])}</h2>
    ${own && html`<div class="tools">${own}</div>`}</div>`;
  const lowest = LINE * Math.min(MANY, Math.max(attention.m, other?.m ?? 0));
  const isWithList = isRow && !isComparison; // of changes, which has what is pinned
  const above = useTopEdge(sides, isComparison); // titles may take two lines
  const others = isComparison ? above + BELOW * scale : OTHERS_OF_RESULTS * scale;
  const height = isRow || unequal ? Math.max(lowest + AROUND, innerHeight - others) : 0;
  /** One of the maps of the same words has the buttons, one in a row has the words. */
  const map = (isFirst = false, isLast = false) => ({
    height,
    beside,
    lowest,
    linked,
    isSame,
    hasZoom: (isWithList ? isFirst : isLast) || !isSame,
    cell: unequal?.cell,
    hasBars: !isComparison && !isRow,
    wordsBeside: unequal ? names : !isRow ? undefined : isFirst || (isComparison && isLast) ? names : 0,
    ...(isWithList ? { lowest: Infinity, times: isFirst ? TIMES : 1 } : {}), // rows of one height
  });
  const side = (/** @type {One & {set: Set}} */ one, hint = "", isFirst = false, isLast = false) => html`
    <${MatrixView} ...${one} settings=${shared(one.settings, top)} top=${top ?? undefined} hasLegend=${!isRow || top === null || one !== second}
      counterparts=${one === second && !isSame ? pairs : null} ...${map(isFirst, isLast)} />
    ${isWithList ? null : html`<${Selection} ...${one} hint=${hint} />`}`;
  const isPinned = [first, second].some((one) => one && (one.settings.query ?? one.settings.key) !== null);
  const isKnown = change !== null && words?.change === change;
  const changes = isKnown && { attention: change, before: words.before, change: words.matrix, settings, isComparison };
  const named = changes && !isPinned ? largestChangeOf(changes) : null;
  const list = changes && html`<${Changes} ...${changes} set=${isWithList ? first.set : null} />`;
  const difference =
    change &&
    html`<section key="difference" aria-label="difference">${head(2, isComparison && isSame && changes && html`<${Moved} ...${changes} />`)}
      <${MatrixView} attention=${change} settings=${ofDifference(settings)} set=${first.set} named=${named} ...${map(!isComparison, isComparison)} ...${pairs?.isWhole ? {} : { masked: "not in both texts", hatched: "" }} />
      ${pairs?.isWhole === false && html`<p class="note">Hatched: not in both texts.</p>`}</section>`;
  return html`${isComparison && changes && html`<${LargestDifference} ...${changes} />`}${isComparison && list}<div class=${`sides ${isRow ? "row" : unequal ? "unequal" : ""}`} ref=${sides} style=${{ "--columns": unequal?.widths, "--names": `${names}px`, "--around": `${WITHOUT_WORDS}px`, "--times": TIMES }}>
    ${!isComparison && difference}${!isComparison && list}
    <section key="first" aria-label="first">${head(0)}${side(first, isPinned ? "" : HINT, isComparison)}</section>
    <section key="second" aria-label="second">${head(1)}
      ${second ? side(second, "", false, !isComparison) : html`<p class="note" role="status">${missing}</p>`}</section>
    ${isComparison && difference}
  </div>`;
}
