// The text itself, each token coloured by the weight from or to the one that is pointed at.
import { html, useEffect, useLayoutEffect, useMemo, useRef, useState } from "vendor/preact.js";
import { isOfWeights, LOOKS, LOOKS_MOST, received, valueText } from "heed/data/display.js";
import { nameIn } from "heed/data/picture.js";
import { css, isDark, palette, textOn } from "heed/data/palettes.js";
import { isLeftOut, leftOut } from "heed/data/ranking.js";
import { themeColours, useFrame, useSize, useTheme } from "heed/views/draw/canvas.js";
import { ChipColours } from "heed/views/draw/chips.js";
import { Legend } from "heed/views/draw/legend.js";
import { RankedHeads } from "heed/views/pair_finder.js";
import { HeadRows, useHeads } from "heed/views/every_head.js";
import { useShown } from "heed/views/hooks.js";
import { Choice, hint, neighbour } from "heed/views/controls.js";

/** @typedef {import("heed/data/attention.js").Label} Label */
/** @typedef {import("heed/views/hooks.js").ViewProps} ViewProps */
/** @typedef {{direction: "from" | "to", index: number}} Token  a visible query if from, else a visible key */

const HINT = hint("Point at a token; click, or press Enter, to pin it.", "Tap a token to pin it.");
const PIN = "Pin a token to rank all heads by its weights.";
const LONG = 14; // characters of a token that may be cut
const LONG_TEXT = 200; // tokens of a text in smaller letters

/** @param {ViewProps} props */
export function TokenView(props) {
  const { shown, error } = useShown(props.attention, props.settings);
  if (error) return html`<p role="alert">${error.message}</p>`;
  return shown ? html`<${Text} ...${props} shown=${shown} />` : html`<p class="note">…</p>`;
}

/** @param {ViewProps & {shown: import("heed/data/display.js").Shown}} props */
function Text({ attention, settings, set, shown }) {
  const { direction, query, key } = settings;
  const { m, n, rows, columns, values, error } = shown;
  const { isSelf } = attention;
  const theme = useTheme();
  const table = useMemo(
    () => palette(settings.palette, shown.isDiverging),
    [settings.palette, shown.isDiverging, theme],
  );
  const colours = useMemo(() => {
    const own = isDark() ? "#fff" : "#000";
    return Array.from({ length: 256 }, (_, i) => ({
      fill: css(table, i / 255),
      isFlipped: textOn(table, i / 255) !== own,
    }));
  }, [table, theme]);
  const place = direction === "from" ? query : key;
  const [pointed, setPointed] = useState(/** @type {Token | null} */ (null)); // while none is pinned
  const looked = place === null && pointed ? { ...settings, ...settingsOf(pointed, rows, columns) } : settings;
  const heads = useHeads(attention, looked, shown);
  const { levels } = shown;
  const [ownWords, otherWords] = useMemo(
    () => [wordsAmong(attention.rows, rows), wordsAmong(attention.columns, columns)],
    [attention, rows, columns],
  );
  const average = useMemo(() => received(shown, settings.scale), [shown, settings.scale]); // without a pointed token
  const heldIndex = place === null ? -1 : (direction === "from" ? rows : columns).indexOf(place);
  const held = heldIndex < 0 ? null : /** @type {Token} */ ({ direction, index: heldIndex });
  const frame = useRef(/** @type {HTMLElement | null} */ (null));
  const size = useSize(frame);
  const readout = useRef(/** @type {HTMLElement | null} */ (null));
  const legends = useRef(/** @type {HTMLElement | null} */ (null)); // of a token, and of the average
  const { current: live } = useRef({
    hover: /** @type {Token | null} */ (null),
    mark: "", // colour
    column: /** @type {number | null} */ (null), // of the heads below, under the pointer
    texts: /** @type {Partial<Record<"from" | "to", ChipColours>>} */ ({}),
  });
  const { current: link } = useRef(
    /** @type {import("heed/views/matrix_view.js").Link} */ ({ mark: () => {}, onPoint: () => {} }),
  );
  const side = direction === "to" && place !== null ? "from" : "to"; // of the columns of the heads
  const word = (/** @type {"from" | "to"} */ side, /** @type {number} */ index) =>
    side === "from"
      ? nameIn(attention, settings, "rows", rows[index])
      : nameIn(attention, settings, "columns", columns[index]);

  const textOf = (/** @type {"from" | "to"} */ side) => live.texts[isSelf ? "from" : side];
  const paint = useFrame(() => {
    if (!frame.current) return;
    live.mark ||= themeColours(frame.current).mark;
    const token = held ?? live.hover;
    const pointedAt = live.column === null ? live.hover : { direction: isSelf ? direction : side, index: live.column };
    link.mark(live.hover && (isSelf || live.hover.direction === side) ? live.hover.index : null);
    const other = (token?.direction ?? direction) === "from" ? "to" : "from";
    const [pinned, places] = direction === "from" ? [key, columns] : [query, rows]; // the other word of a pinned pair
    const pair = held && pinned !== null ? places.indexOf(pinned) : -1;
    for (const [name, text] of Object.entries(live.texts)) {
      const isOther = token !== null && (isSelf || name === other); // one text is both
      const [start, step] = token?.direction === "from" ? [token.index * n, 1] : [token?.index ?? 0, n];
      const isOwn = token !== null && (isSelf || name === token.direction);
      const isAverage = token === null && average !== null && (isSelf || name === "to");
      const isLinked = live.column !== null && (isSelf || name === side);
      text.draw(
        isAverage ? (index) => average.levels[index] : isOther ? (index) => levels[start + index * step] : () => NaN,
        colours,
        [
          ...(isOwn ? [token.index] : []),
          ...(isOther && pair >= 0 ? [pair] : []),
          ...(isLinked ? [Number(live.column)] : []),
        ],
        live.mark,
      );
      text.chips.forEach((chip, index) =>
        chip.classList.toggle("masked", isOther && Number.isNaN(levels[start + index * step])),
      );
    }
    const isOther =
      held && pointedAt && (isSelf ? pointedAt.index !== held.index : pointedAt.direction !== held.direction);
    const parts = sentence(token, isOther ? pointedAt.index : pair < 0 ? null : pair);
    parts.forEach((text, i) => readout.current && (readout.current.children[i].textContent = text));
    readout.current?.classList.toggle("idle", token === null && !average);
    const isOfAll = token === null && average !== null;
    legends.current?.firstElementChild?.toggleAttribute("hidden", isOfAll);
    legends.current?.lastElementChild?.toggleAttribute("hidden", !isOfAll);
  });
  /** A sentence, its number, and what else can be done.
   *  @param {Token | null} token @param {number | null} other  the one whose weight is shown */
  const sentence = (token, other) => {
    if (!token) {
      if (!average) return ["", "", HINT];
      const isChosen = otherWords.length > 0 && otherWords.length < columns.length;
      const best = (isChosen ? otherWords : [...columns.keys()]).reduce((best, i) =>
        average.values[i] > average.values[best] ? i : best,
      );
      const mean = valueText(settings.kind, average.values[best], error);
      const left = isChosen ? `${leftOut({ ...attention, isSelf: false, rows: attention.columns })}. ` : "";
      return [`On average, tokens look most at ${word("to", best)}: `, mean, `${left}${HINT}`];
    }
    const isFrom = token.direction === "from";
    const valueOf = (/** @type {number} */ one) => values[isFrom ? token.index * n + one : one * n + token.index];
    const [places, words] = isFrom ? [columns, otherWords] : [rows, ownWords];
    const own = (isFrom ? rows : columns)[token.index];
    const chosen = words.filter((one) => !(isSelf && places[one] === own));
    const all = chosen.length ? chosen : [...places.keys()];
    const most = other ?? all.reduce((best, one) => (valueOf(one) > valueOf(best) ? one : best));
    const left = other === null && chosen.length < places.length && chosen.length ? leftOut(attention) : "";
    const start = `${word(token.direction, token.index)} ${(other === null ? LOOKS_MOST : LOOKS)[token.direction]}`;
    return [`${start} ${word(isFrom ? "to" : "from", most)}: `, valueText(settings.kind, valueOf(most), error), left];
  };

  useLayoutEffect(() => {
    live.texts = {};
    for (const box of /** @type {NodeListOf<HTMLElement>} */ (frame.current?.querySelectorAll("[data-text]"))) {
      const text = new ChipColours(box);
      live.texts[/** @type {"from" | "to"} */ (box.dataset.text)] = text;
      const isOfHeld = held !== null && (isSelf || box.dataset.text === held.direction);
      text.chips.forEach((chip, index) => {
        chip.tabIndex = index === (isOfHeld ? held.index : 0) ? 0 : -1;
        chip.classList.remove("flipped");
      });
    }
    if (live.column !== null && live.column >= (side === "from" ? m : n)) live.column = null;
    if (live.hover && live.hover.index >= (live.hover.direction === "from" ? m : n)) live.hover = null;
  }, [shown, attention]);
  useLayoutEffect(() => {
    for (const text of Object.values(live.texts)) text.measure();
  }, [shown, attention, size, theme]);
  useLayoutEffect(() => {
    live.mark = "";
  }, [theme]);
  useEffect(paint);

  link.onPoint = (column) => {
    if (column === live.column) return;
    live.column = column;
    paint();
  };
  const hold = (/** @type {Token | null} */ token) => {
    set(token ? settingsOf(token, rows, columns) : { query: null, key: null });
  };
  /** The token of an event: in one text by the switch, in two by the text. @param {Event} event @returns {Token | null} */
  const tokenOf = (event) => {
    const chip = /** @type {HTMLElement} */ (event.target).closest?.("[data-side]");
    if (!(chip instanceof HTMLElement)) return null;
    return {
      direction: isSelf ? direction : /** @type {"from" | "to"} */ (chip.dataset.side),
      index: Number(chip.dataset.index),
    };
  };
  const isHeld = (/** @type {Token | null} */ token) =>
    token !== null && token.index === held?.index && token.direction === held.direction;
  const point = (/** @type {Event} */ event) => {
    if (event.type === "pointerover" && !tokenOf(event)) return; // in the gap to the next token
    live.hover = tokenOf(event);
    const { hover } = live;
    setPointed((before) => (before?.index === hover?.index && before?.direction === hover?.direction ? before : hover));
    paint();
  };
  const click = (/** @type {Event} */ event) => {
    const token = tokenOf(event);
    if (token) hold(isHeld(token) ? null : token);
  };
  const press = (/** @type {KeyboardEvent} */ event) => {
    const token = tokenOf(event);
    if (!token || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Enter" || event.key === " ") click(event);
    else if (event.key === "Escape") hold(null);
    else {
      const chips = textOf(token.direction)?.chips ?? [];
      const index = neighbour(chips, token.index, event.key);
      if (index === null) return;
      chips[token.index].tabIndex = -1;
      chips[index].tabIndex = 0;
      chips[index].focus();
      if (held) hold({ ...token, index });
    }
    event.preventDefault();
  };
  const turn = (/** @type {any} */ next) => {
    if (!isSelf) return set({ direction: next, query: null, key: null });
    return set({
      direction: next,
      query: next === "from" ? (key ?? query) : null,
      key: next === "to" ? (query ?? key) : null,
    });
  };
  const queries = useMemo(() => chipsOf(attention.rows, rows, "from"), [attention, shown.rows]);
  const keys = useMemo(() => (isSelf ? null : chipsOf(attention.columns, columns, "to")), [attention, shown.columns]);
  const text = (/** @type {"from" | "to"} */ side, /** @type {string} */ label, /** @type {unknown} */ chips) =>
    html`<div class="chip-colours" data-text=${side}><canvas aria-hidden="true"></canvas>
      <div class=${`token-text ${Math.max(m, n) > LONG_TEXT ? "long" : ""}`} role="group" aria-label=${label} onScroll=${paint}>${chips}</div></div>`;
  return html`<div class="tools">
      <${Choice} label="a token" value=${direction} options=${LOOKS} onChange=${turn} />
      <span ref=${legends}><${Legend} shown=${shown} table=${table} scale=${settings.scale} isShare=${isOfWeights(settings.kind)} />
        ${average && html`<${Legend} shown=${average} table=${table} scale=${settings.scale} isShare=${isOfWeights(settings.kind)} />`}</span>
    </div>
    <p class="headline readout" ref=${readout}><span></span><b></b> <small></small></p>
    <div ref=${frame} onPointerOver=${point} onPointerLeave=${point} onFocusIn=${point} onFocusOut=${point} onClick=${click} onKeyDown=${press}>
      ${keys && html`<h2>queries</h2>`}
      ${text("from", keys ? "queries" : "tokens", queries)}
      ${keys && html`<h2>keys</h2>${text("to", "keys", keys)}`}
    </div>
    <${RankedHeads} attention=${attention} settings=${settings} set=${set} before=${PIN} title=${rankedBy(attention, settings)} />
    <${HeadRows} attention=${attention} settings=${looked} set=${set} shown=${shown} ...${heads} link=${link} />`;
}

/** The indices of the visible tokens that are not left out. @param {Label[]} labels @param {number[]} places  visible ones */
const wordsAmong = (labels, places) => [...places.keys()].filter((i) => !isLeftOut(labels[places[i]]));

/** The order of the heads, in words. @param {ViewProps["attention"]} attention @param {ViewProps["settings"]} settings */
function rankedBy(attention, settings) {
  const { direction, query, key } = settings;
  const from = query !== null && nameIn(attention, settings, "rows", query);
  const to = key !== null && nameIn(attention, settings, "columns", key);
  if (from && to) return `Heads ranked by ${from} → ${to}`;
  const word = direction === "from" ? from : to;
  return `Heads ranked by their largest weight${word ? ` ${direction} ${word}` : ""}${leftOut(attention, true)}`;
}

/** The settings in which a token is pinned. @param {Token} token @param {number[]} rows  visible queries @param {number[]} columns */
const settingsOf = ({ direction, index }, rows, columns) =>
  direction === "from" ? { query: rows[index], key: null, direction } : { query: null, key: columns[index], direction };

/** @param {Label[]} labels @param {number[]} places @param {"from" | "to"} side */
const chipsOf = (labels, places, side) =>
  places.map((place, index) => {
    const { text, special, padding } = labels[place];
    return html`<span role="button" data-side=${side} data-index=${index} tabindex=${index === 0 ? 0 : -1} title=${`${text} (${place})`}
    class=${`chip ${text.length > LONG ? "" : "short"} ${padding ? "padding" : special ? "special" : ""}`}>${text}</span>`;
  });
