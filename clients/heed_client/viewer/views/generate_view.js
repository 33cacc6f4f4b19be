// A text as it is generated: the weights of each token, and the tokens that were probable in its place.
import { html, useEffect, useLayoutEffect, useMemo, useRef, useState } from "vendor/preact.js";
import { faded, isOfWeights, levelOf, lineOf, mostOf, scaleOfWords, valueText } from "heed/data/display.js";
import { css, palette, textOn } from "heed/data/palettes.js";
import { joinPatches, nameIn, openingWord, patchesIn } from "heed/data/picture.js";
import { leftOut } from "heed/data/ranking.js";
import { DRAWING } from "heed/server/generation.js";
import { Alternatives } from "heed/views/alternatives.js";
import { Choice, hint, neighbour } from "heed/views/controls.js";
import { useFrame, useTheme } from "heed/views/draw/canvas.js";
import { AROUND, LINE } from "heed/views/draw/heat_map.js";
import { Legend } from "heed/views/draw/legend.js";
import { SeenBy } from "heed/views/seen_by.js";
import { placeOf, sentence, wordSpan, wordsIn } from "heed/views/generated_words.js";
import { EveryHead } from "heed/views/every_head.js";
import { useArrived, useShown } from "heed/views/hooks.js";
import { Ending, FIELDS, Parameters } from "heed/views/generate_tools.js";
import { HeatMap } from "heed/views/matrix_view.js";
import { RankedHeads } from "heed/views/pair_finder.js";
import { Selection } from "heed/views/selection.js";
import { WordPictures } from "heed/views/word_pictures.js";

/** @typedef {import("heed/data/attention.js").Label} Label */
/** @typedef {import("heed/data/display.js").Shown} Shown */
/** @typedef {import("heed/page/generation.js").Text} GeneratedText */
/** @typedef {import("heed/page/generation.js").Actions} Actions */
/** @typedef {import("heed/views/hooks.js").ViewProps} ViewProps */
/** @typedef {import("heed/views/pair_finder.js").Head} Head */
/** @typedef {{row: number | null, column: number | null}} Word  among the generated tokens, and among those that they look at */
/** @typedef {{name: string, value: number}} Other  a word with its place, or the picture, that is pointed at */
/** @typedef {ViewProps & {picture?: import("heed/views/picture_view.js").Seen | null, isOpening?: boolean, generation: {text: GeneratedText | null, actions: Actions | null}}} Props
 *   `isOpening`: no layer or head is chosen yet; no actions in a saved page */

const TALLEST = 0.75; // of the window's height
const BELOW = 68; // px between its end and the window's: the last note
const NO_LEVELS = new Float32Array(); // the legend has no sign for later words
const MOST_RANKED = 10; // heads, for which there is room
const FORMS = { picture: "a picture", row: "a row of the matrix" }; // of a word beside a picture in a prompt
const NEAR = 40; // px from the end of a text that count as its end

/** @param {Props} props */
export function GenerateView(props) {
  const settings = useArrived(props.attention, props.settings);
  return html`<${Generated} ...${props} settings=${settings} />`;
}

/** @param {Props} props */
function Generated({ attention, settings, set, picture, isOpening = false, generation: { text, actions } }) {
  const count = text?.tokens.length ?? 0;
  const isDrawn = text !== null && count > 0 && attention.m === count; // otherwise it is the attention of the prompt
  const [pointed, setPointed] = useState(/** @type {Word | null} */ (null));
  const isRunning = text?.status === "running";
  useEffect(() => {
    if (isRunning) setPointed(null); // the newest word is looked at
  }, [isRunning]);
  useEffect(() => {
    if (settings.query === null && settings.key !== null) setPointed(null); // a word of the prompt or a patch is pinned
  }, [settings.query, settings.key]);
  const isHeld = settings.query !== null || settings.key !== null;
  const isCross = settings.kind === "cross_weights";
  const patches = !isCross && text && picture ? patchesIn(text.prompt, picture.patches) : null;
  const hasPicture = isDrawn && picture && (isCross || patches);
  const { shown } = useShown(attention, settings);
  const seen = hasPicture && !isRunning ? picture.patches : null;
  const first = useRef({ attention: /** @type {ViewProps["attention"] | null} */ (null), word: 0 }).current;
  const opening = useMemo(() => {
    if (shown && seen && first.attention !== attention)
      Object.assign(first, { attention, word: openingWord(shown, seen) }); // another head shows the same word
    if (seen && first.attention === attention) return first.word;
    const last = isRunning ? -1 : (text?.words.findLastIndex(({ special }) => !special) ?? -1);
    return last < 0 ? count - 1 : last; // while it runs, the newest one
  }, [shown, seen, attention, count, isRunning]);
  const strongest = useMemo(
    () => shown && mostOf(lineOf(shown, null, settings.query === null ? settings.key : null)),
    [shown, settings.query, settings.key],
  ); // weight on the pinned word or patch
  const own = isHeld ? (settings.query ?? pointed?.row ?? strongest?.place ?? null) : pointed ? pointed.row : opening;
  const inText = (/** @type {number | null} */ row) => (isDrawn && row !== null && row < count ? row : null);
  const place = inText(own);
  const looked = place ?? inText(opening);
  const ranked = isRunning ? null : isHeld ? (settings.query ?? strongest?.place ?? null) : inText(opening);
  const isPinned = isDrawn && !isRunning && settings.query !== null;
  const marked = isHeld
    ? { ...settings, query: inText(settings.query) }
    : { ...settings, query: place, key: pointed?.column ?? null };
  const choice =
    hasPicture &&
    patches &&
    html`<${Choice} label="each word as" value=${settings.asRows ? "row" : "picture"} options=${FORMS} onChange=${(/** @type {string} */ form) => set({ asRows: form === "row" })} />`;
  const alignment = (/** @type {unknown} */ legend = null) =>
    isDrawn &&
    html`<${Alignment} attention=${attention} settings=${marked} set=${set} text=${text} patches=${patches}>${legend}<//>`;
  const words = (/** @type {unknown} */ legend) =>
    choice && settings.asRows
      ? alignment(legend)
      : html`<${WordPictures} attention=${attention} settings=${settings} set=${set} seen=${picture} place=${place} point=${setPointed}>${legend}<//>`;
  return html`
    ${
      actions &&
      html`<${Parameters} settings=${settings} set=${set} actions=${actions} isRunning=${isRunning}>
      ${text && html`<${Ending} text=${text} settings=${settings} />`}<//>`
    }
    ${actions?.error && ![...FIELDS, ...DRAWING].includes(/** @type {any} */ (actions.error).field) && html`<p role="alert">${count ? `It ended after ${count} tokens: ` : ""}${actions.error.message}</p>`}
    ${
      text &&
      html`<div class="generation">
      <${Passage} text=${text} patches=${patches} hasPicture=${Boolean(hasPicture)} opening=${opening} attention=${isDrawn ? attention : null} settings=${settings} set=${set} pointed=${pointed} setPointed=${setPointed} />
      ${hasPicture && html`<${SeenBy} attention=${attention} settings=${settings} set=${set} picture=${picture} place=${place} hasHeads=${isPinned} choice=${choice}>${words}<//>`}
      <div class="beside-text" style=${{ "--rows": Math.min(MOST_RANKED, attention.layers * attention.heads) }}><${Alternatives} text=${text} place=${looked} actions=${actions} isWarm=${settings.temperature > 0} />
        ${
          ranked !== null &&
          isDrawn &&
          html`<${Ranking} attention=${attention} settings=${settings} set=${set} place=${ranked} isOther=${place !== ranked} leave=${() => setPointed(null)}
          onBest=${isOpening ? (/** @type {Head} */ { layer, head }) => set({ layer, head }) : undefined} />`
        }</div>
      ${!hasPicture && alignment()}</div>`
    }
    ${isDrawn && html`<${Selection} attention=${attention} settings=${settings} set=${set} hint="" />`}
    ${isPinned && !hasPicture && html`<${Heads} attention=${attention} settings=${settings} set=${set} />`}`;
}

/** The matrix of all generated words; the patches in a prompt are one column, as the picture is beside it.
 *  @param {ViewProps & {text: GeneratedText, patches: ReturnType<typeof patchesIn>, children?: unknown}} props  the children are behind the title */
function Alignment({ attention, settings, set, text, patches, children }) {
  const { shown } = useShown(attention, settings);
  const own = useMemo(
    () => shown && (patches ? joinPatches(shown, patches, settings) : shown),
    [shown, patches?.start, patches?.end],
  );
  const labels = useMemo(
    () => (patches ? withPicture(attention, patches.start) : attention),
    [attention, patches?.start],
  );
  if (!own) return null;
  const isCross = settings.kind === "cross_weights";
  const title = isCross
    ? "Alignment: generated words down, source across"
    : children
      ? "Each word and the words before it"
      : "Each generated word (down) and the words before it (across)";
  const hasScale = (!isCross || text.source?.length) && settings.query !== null && settings.hidePadding; // as the words
  const names = isCross ? {} : { masked: "a later word", hatched: "" };
  return html`<section class="alignment" aria-label="alignment"><h2>${title}</h2>${children}
    <${HeatMap} attention=${labels} settings=${settings} set=${set} shown=${own} legend=${hasScale ? "" : undefined}
      hasBars=${false} height=${Math.min(innerHeight * TALLEST, attention.m * LINE + AROUND)} below=${BELOW} ...${names} /></section>`;
}

/** Labels with a name for the column of all patches. @param {ViewProps["attention"]} attention @param {number} start  of the patches */
function withPicture({ rows, columns }, start) {
  const joined = columns.map((label, place) => (place === start ? { ...label, text: "picture" } : label));
  return { rows, columns: joined };
}

/** All heads by the largest weight of the pinned word, or of the opening one, or by its weight on the pinned word or patch;
 *  paler while another one is pointed at.
 *  @param {ViewProps & {place: number, isOther: boolean, leave: () => void, onBest?: (head: Head) => void}} props  `leave` the other one */
function Ranking({ attention, settings, set, place, isOther, leave, onBest }) {
  const { key } = settings;
  const name = nameIn(attention, settings, "rows", place);
  const title =
    key === null
      ? `Heads ranked by their largest weight from ${name}${leftOut(attention, true)}`
      : `Heads ranked by their weight from ${name} on ${nameIn(attention, settings, "columns", key)}`;
  return html`<div class=${isOther ? "ranked other" : "ranked"} onPointerEnter=${leave}>
    <${RankedHeads} attention=${attention} settings=${{ ...settings, query: place, key }} title=${title} hasSmall=${false} onBest=${onBest}
      set=${(/** @type {Partial<ViewProps["settings"]>} */ head) => set({ query: place, ...head })} /></div>`;
}

/** The weights of the pinned word in all heads of the layer. @param {ViewProps} props */
function Heads({ attention, settings, set }) {
  const { query, kind } = settings;
  const { m, n } = attention;
  const { shown } = useShown(attention, settings);
  const before = kind === "cross_weights" ? n : n - m + Number(query) + 1; // it looked at no later words
  const seen = useMemo(
    () => shown && { ...shown, columns: shown.columns.filter((place) => place < before) },
    [shown?.columns, before],
  );
  if (!seen) return null;
  return html`<${EveryHead} attention=${attention} settings=${settings} set=${set} shown=${seen} />`;
}

/**
 * The source and the text as running text. The words that a generated token looked at have the colours of their weights;
 * for a token of the source or the prompt, the words that looked at it have them.
 * @param {{text: GeneratedText, patches: ReturnType<typeof patchesIn>, hasPicture: boolean, opening: number, attention: ViewProps["attention"] | null,
 *   settings: ViewProps["settings"], set: ViewProps["set"], pointed: Word | null, setPointed: (word: Word | null) => void}} props
 */
function Passage(props) {
  return props.attention ? html`<${Coloured} ...${props} />` : html`<${Words} ...${props} shown=${null} />`;
}

/** @param {Parameters<typeof Passage>[0]} props */
function Coloured(props) {
  const attention = /** @type {ViewProps["attention"]} */ (props.attention);
  const { shown, error } = useShown(attention, props.settings);
  if (error) return html`<div><p role="alert">${error.message}</p><${Words} ...${props} shown=${null} /></div>`;
  return html`<${Words} ...${props} shown=${shown} />`;
}

/** @param {Parameters<typeof Passage>[0] & {shown: Shown | null}} props */
function Words({ text, patches, hasPicture, opening, attention, settings, set, pointed, setPointed, shown }) {
  const frame = useRef(/** @type {HTMLElement | null} */ (null));
  const theme = useTheme();
  const table = useMemo(() => palette(settings.palette, false), [settings.palette, theme]);
  const isCross = settings.kind === "cross_weights";
  const { source, prompt, words, status } = text;
  const isRunning = status === "running";
  const held = settings.query !== null || settings.key !== null ? { row: settings.query, column: settings.key } : null;
  const first = words.length > 0 ? { row: Math.min(opening, words.length - 1), column: null } : null;
  const active = held ?? pointed ?? first;
  const line = shown && active && lineOf(shown, active.row, active.column);
  const isOfPicture = isCross && !source?.length; // words have colours only while a patch is pinned
  const hasColours = !isOfPicture || active?.row === null;

  const joined = useMemo(
    () => shown && (patches ? joinPatches(shown, patches, settings) : shown),
    [shown, patches?.start, patches?.end],
  );
  const drawn = joined && line?.isFrom ? lineOf(joined, Number(active?.row), null) : line;
  const sum = drawn?.isFrom && patches ? (drawn.values[drawn.places.indexOf(patches.start)] ?? NaN) : NaN;
  const picture = Number.isFinite(sum) ? valueText(settings.kind, sum) : "";

  const looks = scaleOfWords(settings, drawn?.top ?? 1);
  /** The level of a word, NaN = none, and its weight. @param {HTMLElement} word */
  const weightOf = (word) => {
    if (!shown || !drawn) return { level: NaN, value: NaN };
    const { isFrom, places, values } = drawn;
    const own = values[places.indexOf(placeOf(word, isFrom ? "column" : "row") ?? -1)] ?? NaN;
    const value = "picture" in word.dataset ? sum : own;
    return { level: levelOf(value, looks.top, shown.isDiverging, looks), value };
  };
  const paint = useFrame(() => {
    for (const word of wordsIn(frame.current, "[data-word], [data-picture]")) {
      const { level } = weightOf(word);
      const share = faded(level);
      word.style.background = share > 0 ? `color-mix(in srgb, ${css(table, level)} ${100 * share}%, transparent)` : "";
      word.style.color = share > 0.5 ? textOn(table, level) : "";
      if ("picture" in word.dataset) word.dataset.picture = picture;
      const isActive =
        active !== null &&
        (active.row !== null ? placeOf(word, "row") === active.row : placeOf(word, "column") === active.column);
      word.classList.toggle("active", isActive);
    }
  });
  useEffect(paint);
  const [other, setOther] = useState(/** @type {Other | null} */ (null)); // under the pointer, with its weight
  useLayoutEffect(() => setOther(null), [shown, settings.query, settings.key]); // it was the weight of another pair
  useLayoutEffect(() => {
    const all = wordsIn(frame.current);
    const reached = all.find((word) => word.tabIndex === 0);
    if (!reached && all.length) all[all.length - 1].tabIndex = 0;
  });

  const passage = useRef(/** @type {HTMLElement | null} */ (null));
  const isFollowed = useRef(true); // a long text is scrolled to its end, unless the reader has scrolled back
  useLayoutEffect(() => {
    if (isRunning && isFollowed.current && passage.current) passage.current.scrollTop = passage.current.scrollHeight;
  }, [text]);
  useLayoutEffect(() => {
    const [box, word] = [passage.current, wordsIn(passage.current).find((one) => placeOf(one, "row") === held?.row)];
    if (isRunning || !box || !word) return;
    const top = word.offsetTop - box.scrollTop;
    if (top < 0 || top > box.clientHeight - NEAR) box.scrollTop = word.offsetTop - box.clientHeight / 2;
  }, [isRunning]);
  const scroll = (/** @type {any} */ { currentTarget: { scrollTop, scrollHeight, clientHeight } }) => {
    isFollowed.current = scrollHeight - scrollTop - clientHeight < NEAR;
  };

  const wordOf = (/** @type {Event} */ event) => {
    const word = /** @type {HTMLElement} */ (event.target).closest?.("[data-word]");
    return word instanceof HTMLElement ? word : null;
  };
  const point = (/** @type {Event} */ event) => {
    const chip = /** @type {HTMLElement} */ (event.target).closest?.("[data-picture]");
    if (chip instanceof HTMLElement) {
      const { value } = weightOf(chip);
      return setOther(Number.isFinite(value) ? { name: "the picture", value } : null);
    }
    const word = wordOf(event);
    if (!word) return;
    const at = { row: placeOf(word, "row"), column: placeOf(word, "column") };
    if (at.row !== pointed?.row || at.column !== pointed?.column) setPointed(at);
    const { value } = weightOf(word);
    const isRow = line?.isFrom === false;
    const isKnown = attention && held && Number.isFinite(value);
    setOther(
      isKnown
        ? { name: nameIn(attention, settings, isRow ? "rows" : "columns", Number(isRow ? at.row : at.column)), value }
        : null,
    );
  };
  const hold = (/** @type {Word | null} */ word) => {
    const isHeld =
      word !== null &&
      (word.row !== null ? word.row === held?.row : word.column === held?.column && held?.row === null);
    if (!word || isHeld) set({ query: null, key: null });
    else set(word.row !== null ? { query: word.row, key: null } : { query: null, key: word.column });
  };
  const click = (/** @type {Event} */ event) => {
    const word = wordOf(event);
    if (word) hold({ row: placeOf(word, "row"), column: placeOf(word, "column") });
  };
  const press = (/** @type {KeyboardEvent} */ event) => {
    const word = wordOf(event);
    if (!word || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Enter" || event.key === " ") click(event);
    else if (event.key === "Escape") {
      hold(null);
      setPointed(null);
    } else {
      const all = wordsIn(frame.current);
      const next = neighbour(all, all.indexOf(word), event.key);
      if (next === null) return;
      word.tabIndex = -1;
      all[next].tabIndex = 0;
      all[next].focus();
      if (held) hold({ row: placeOf(all[next], "row"), column: placeOf(all[next], "column") });
    }
    event.preventDefault();
  };
  const sourceWords = useMemo(
    () => source?.map((label, i) => wordSpan(label, null, isCross ? i : null, "")),
    [source, isCross],
  );
  const promptWords = useMemo(
    () =>
      prompt.map((label, i) => {
        if (!patches || i < patches.start || i >= patches.end)
          return wordSpan(label, null, isCross ? null : i, "prompt");
        const count = patches.end - patches.start;
        return (
          i === patches.start &&
          html` <span class="word prompt special" data-picture="">picture (${count} patches)</span>`
        );
      }),
    [prompt, isCross, patches?.start, patches?.end],
  );
  const top = Math.max(...text.tokens.map(({ probability }) => probability ?? 0)) || 1;
  const chanceOf = (/** @type {number | null} */ probability) => (probability === null ? undefined : probability / top);
  const generatedWords = useMemo(
    () =>
      words.map((label, i) =>
        wordSpan(
          label,
          i,
          isCross ? null : prompt.length + i,
          text.tokens[i].isChosen ? "new chosen" : "new",
          chanceOf(text.tokens[i].probability),
        ),
      ),
    [text, isCross],
  );
  const legend =
    shown &&
    html`<${Legend} shown=${{ ...shown, high: line?.isFrom === false ? looks.top : Number(joined?.high), levels: NO_LEVELS }} table=${table} scale=${settings.scale} isShare=${isOfWeights(settings.kind)} name=${patches && hasPicture ? "words, picture" : ""} />`;
  const isBelow = !isRunning && held !== null && held.row !== null && attention !== null && attention.heads > 1;
  const ofLayer = attention && attention.layers > 1 ? ` of layer ${settings.layer}` : "";
  const howTo = isBelow
    ? `${hint("Click the word again to unpin it", "Tap the word again to unpin it")}; its weights in every head${ofLayer} are below`
    : html`${hint("Point at a word", "Tap a word to pin it")}${hasPicture && hint(" or click a patch", ", or a patch")}${hint("; a click, or Enter, pins a word", "")}`;
  return html`<div class="passages" ref=${frame} onPointerOver=${point} onPointerLeave=${() => setOther(null)} onFocusIn=${point} onClick=${click} onKeyDown=${press}>
    <div class="passages-head"><p class="headline readout">${sentence(attention, settings, active, line, other, shown?.error)}</p>
      <span class=${hasColours ? "" : "of-no-word"}>${legend}</span></div>
    ${source && source.length > 0 && html`<h2>source</h2><p class="passage" role="group" aria-label="source">${sourceWords}</p><h2>generated</h2>`}
    <p class="passage" ref=${passage} onScroll=${scroll} role="group" aria-label=${source ? "generated" : "prompt and generated text"} aria-busy=${isRunning}>
      ${promptWords}${generatedWords}${isRunning && html`<i class="caret" aria-hidden="true"></i>`}</p>
    ${words.length > 0 && html`<p class="note">${howTo}. The stronger its line, the more probable it was.</p>`}
  </div>`;
}
