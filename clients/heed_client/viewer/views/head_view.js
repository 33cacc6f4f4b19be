// One head, or several heads of a layer, as lines between words.
import { html, useMemo } from "vendor/preact.js";
import { drawnHeads } from "heed/data/display.js";
import { headColour } from "heed/data/palettes.js";
import { inOrder, largestPair, rankedPair } from "heed/data/ranking.js";
import { useTheme } from "heed/views/draw/canvas.js";
import { STRONGEST } from "heed/views/draw/lines.js";
import { WordLists } from "heed/views/draw/word_lists.js";
import { drawn, usePromise, useShown } from "heed/views/hooks.js";
import { arrowKeys, Choice } from "heed/views/controls.js";

/** @typedef {import("heed/data/attention.js").Label} Label */
/** @typedef {import("heed/views/draw/lines.js").Bundle} Bundle */
/** @typedef {import("heed/views/draw/lines.js").Word} Word */
/** @typedef {import("heed/views/hooks.js").ViewProps} ViewProps */

const STRENGTHS = { strongest: `the ${STRONGEST} strongest of each query`, all: "all" };
const PARTS = { both: "both texts", "0 1": "first to second", "1 0": "second to first", within: "within a text" };

/** @param {ViewProps} props */
export function HeadView({ attention, settings, set }) {
  const parts = Object.hasOwn(PARTS, settings.lines) ? settings.lines : "both";
  const { bundles, error } = useBundles(attention, settings);
  if (error) return html`<p role="alert">${error.message}</p>`;
  if (!bundles) return html`<p class="note">…</p>`;
  const { rows, columns } = bundles[0].shown;
  const held = heldWord(settings, rows, columns);
  const { layer, query, key } = settings;
  const pairs = bundles.flatMap(({ shown }, head) => rankedPair(layer, head, largestPair(shown, attention)));
  const isPinned = query !== null && key !== null;
  const named = isPinned ? { row: query, column: key } : held ? null : inOrder(attention, settings, pairs)[0];
  const isPair = attention.rows.some(({ part }) => part === 1) && attention.columns.some(({ part }) => part === 1);
  const isDrawn = (/** @type {number} */ query, /** @type {number} */ key) =>
    !isPair || parts === "both" || joins(attention.rows[rows[query]], attention.columns[columns[key]], parts);
  /** Pin a word alone; by a click together with the pinned word of the other column. */
  const hold = (/** @type {Word | null} */ word, isClicked = false) => {
    if (!word) return set({ query: null, key: null });
    const isQuery = word.side === "query";
    const place = (isQuery ? rows : columns)[word.index];
    if (!isClicked || (isQuery ? key === null || query !== null : query === null))
      return set(
        isQuery ? { query: place, key: null, direction: "from" } : { query: null, key: place, direction: "to" },
      );
    set({ ...(isQuery ? { query: place } : { key: place === key ? null : place }), direction: "from" });
  };
  return html`<div class="tools">
      <${HeadChips} attention=${attention} settings=${settings} set=${set} />
      ${columns.length > STRONGEST && settings.query === null && settings.key === null && html`<${Choice} label="lines" value=${settings.allLines ? "all" : "strongest"} options=${STRENGTHS} onChange=${(/** @type {string} */ which) => set({ allLines: which === "all" })} />`}
      ${isPair && html`<${Choice} label="between" value=${parts} options=${PARTS} onChange=${(/** @type {string} */ lines) => set({ lines })} />`}
    </div>
    <${WordLists} bundles=${bundles} attention=${attention} held=${held} named=${named} hold=${hold} isDrawn=${isDrawn} hasAll=${settings.allLines} />`;
}

/** The held word; null if none is held or it is hidden. @param {ViewProps["settings"]} settings @param {number[]} rows
 *  @param {number[]} columns @returns {Word | null} */
function heldWord({ query, key, direction }, rows, columns) {
  const side = query !== null && (direction === "from" || key === null) ? "query" : "key";
  const place = side === "query" ? query : key;
  const index = place === null ? -1 : (side === "query" ? rows : columns).indexOf(place);
  return index < 0 ? null : { side, index };
}

/** Whether a line from one token to another is within or between the texts of a pair; special tokens belong to none.
 *  @param {Label} from @param {Label} to @param {string} parts  of PARTS */
function joins(from, to, parts) {
  if (from.special || to.special) return false;
  return parts === "within" ? from.part === to.part : parts === `${from.part} ${to.part}`;
}

/** A switch for each head of the layer. @param {ViewProps} props */
function HeadChips({ attention, settings, set }) {
  const shown = drawnHeads(attention, settings);
  const all = [...Array(attention.heads).keys()];
  const toggle = (/** @type {number} */ head) => {
    const next = shown.includes(head)
      ? shown.filter((other) => other !== head)
      : [...shown, head].sort((one, other) => one - other);
    if (next.length === 0) return;
    const told = next.includes(settings.head) ? settings.head : next[0];
    set({ head: told, heads: next.length === 1 ? [] : next, combine: "none" });
  };
  const others = shown.length === all.length;
  return html`<div class="head-chips" role="group" aria-label="heads" onKeyDown=${arrowKeys}>
    ${all.map(
      (
        head,
      ) => html`<button key=${head} aria-label=${`head ${head}`} aria-pressed=${shown.includes(head)} tabindex=${head === settings.head ? 0 : -1}
      style=${{ borderColor: headColour(head, all.length), "--head": headColour(head, all.length) }} onClick=${() => toggle(head)}>${head}</button>`,
    )}
    ${
      all.length > 1 &&
      html`<button tabindex="-1" onClick=${() => set({ heads: others ? [] : all, combine: "none" })}>${
        others ? `only head ${settings.head}` : "all heads"
      }</button>`
    }
  </div>`;
}

/**
 * The lines of each head that is switched on; null until all have arrived.
 * @param {ViewProps["attention"]} attention @param {ViewProps["settings"]} settings
 * @returns {{bundles: Bundle[] | null, error: Error | null}}
 */
function useBundles(attention, settings) {
  const single = useShown(attention, settings);
  const theme = useTheme();
  const { layer, combine } = settings;
  const heads = drawnHeads(attention, settings);
  const several = usePromise(
    async () => ({
      attention,
      layer,
      heads,
      matrices: heads.length > 1 ? await Promise.all(heads.map((head) => attention.matrix(layer, head))) : [],
    }),
    [attention, layer, heads.join()],
  );
  const isLoaded = several.value?.attention === attention && several.value.layer === layer;
  const loaded = isLoaded ? several.value : null;
  const others = (loaded?.matrices ?? []).map((matrix) => drawn(matrix, attention, settings));
  const bundles = useMemo(() => {
    if (heads.length <= 1)
      return (
        single.shown && [
          { shown: single.shown, colour: combine === "none" ? headColour(heads[0], attention.heads) : "" },
        ]
      );
    if (!loaded || others.length === 0) return null;
    return others.map((shown, i) => ({ shown, colour: headColour(loaded.heads[i], attention.heads) }));
  }, [single.shown, loaded, heads.length <= 1, combine, theme, ...others]);
  return { bundles, error: single.error ?? several.error };
}
