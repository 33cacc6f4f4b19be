// The text itself, each token coloured by the weight from or to the one that is pointed at.
import { html, useEffect, useLayoutEffect, useMemo, useRef } from "vendor/preact.js";
import { format } from "heed/data/display.js";
import { css, palette, textOn } from "heed/data/palettes.js";
import { useFrame, useTheme } from "heed/views/draw/canvas.js";
import { Legend } from "heed/views/draw/legend.js";
import { useShown } from "heed/views/hooks.js";
import { Choice } from "heed/views/controls.js";

/** @typedef {import("heed/data/attention.js").Label} Label */
/** @typedef {import("heed/views/hooks.js").ViewProps} ViewProps */
/** @typedef {{direction: "from" | "to", index: number}} Token  a visible query if from, else a visible key */

const DIRECTIONS = { from: "looks at", to: "is looked at by" };

/** @param {ViewProps} props */
export function TokenView(props) {
  const { shown, error } = useShown(props.attention, props.settings);
  if (error) return html`<p role="alert">${error.message}</p>`;
  return shown ? html`<${Text} ...${props} shown=${shown} />` : html`<p class="note">…</p>`;
}

/** @param {ViewProps & {shown: import("heed/data/display.js").Shown}} props */
function Text({ attention, settings, set, shown }) {
  const { direction, query, key } = settings;
  const { m, n, rows, columns, values, levels, error } = shown;
  const { isSelf } = attention;
  const theme = useTheme();
  const table = useMemo(
    () => palette(settings.palette, shown.isDiverging),
    [settings.palette, shown.isDiverging, theme],
  );
  const colours = useMemo(
    () => Array.from({ length: 256 }, (_, i) => [css(table, i / 255), textOn(table, i / 255)]),
    [table],
  );
  const place = direction === "from" ? query : key;
  const heldIndex = place === null ? -1 : (direction === "from" ? rows : columns).indexOf(place);
  const held = heldIndex < 0 ? null : /** @type {Token} */ ({ direction, index: heldIndex });
  const box = useRef(/** @type {HTMLElement | null} */ (null));
  const readout = useRef(/** @type {HTMLElement | null} */ (null));
  const { current: live } = useRef({
    hover: /** @type {Token | null} */ (null),
    painted: /** @type {Token | null} */ (null),
    /** @type {Record<"from" | "to", {chips: HTMLElement[], painted: Int16Array}>} */
    texts: { from: { chips: [], painted: new Int16Array() }, to: { chips: [], painted: new Int16Array() } },
  });
  const word = (/** @type {"from" | "to"} */ side, /** @type {number} */ index) =>
    side === "from" ? attention.rows[rows[index]].text : attention.columns[columns[index]].text;

  const paint = useFrame(() => {
    const token = held ?? live.hover;
    const other = (token?.direction ?? direction) === "from" ? "to" : "from";
    for (const side of /** @type {const} */ (["from", "to"])) {
      const { chips, painted } = live.texts[isSelf ? "from" : side];
      if (isSelf && side !== other) continue; // one text is both
      for (let index = 0; index < chips.length; index++) {
        const level =
          !token || side !== other
            ? NaN
            : token.direction === "from"
              ? levels[token.index * n + index]
              : levels[index * n + token.index];
        const colour = level === level ? Math.round(255 * level) : -1;
        if (painted[index] === colour) continue;
        painted[index] = colour;
        const { style } = chips[index];
        style.backgroundColor = colour < 0 ? "" : colours[colour][0];
        style.color = colour < 0 ? "" : colours[colour][1];
      }
    }
    const chipOf = (/** @type {Token | null} */ one) =>
      one && live.texts[isSelf ? "from" : one.direction].chips[one.index];
    chipOf(live.painted)?.classList.remove("active");
    chipOf(token)?.classList.add("active");
    live.painted = token;
    const pointed = held && live.hover && (isSelf || live.hover.direction !== held.direction) ? live.hover.index : null;
    if (readout.current) readout.current.textContent = sentence(token, pointed);
  });
  /** @param {Token | null} token @param {number | null} other  the one whose weight is told */
  const sentence = (token, other) => {
    if (!token) return "Point at a token; click, or press Enter, to hold it.";
    const start = `“${word(token.direction, token.index)}” ${DIRECTIONS[token.direction]}`;
    if (other === null) return `${start} …`;
    const value = values[token.direction === "from" ? token.index * n + other : other * n + token.index];
    return `${start} “${word(token.direction === "from" ? "to" : "from", other)}”: ${format(value, error)}`;
  };

  useLayoutEffect(() => {
    for (const side of /** @type {const} */ (["from", "to"])) {
      const chips = /** @type {HTMLElement[]} */ ([...(box.current?.querySelectorAll(`[data-side="${side}"]`) ?? [])]);
      chips.forEach((chip, index) => {
        chip.style.backgroundColor = chip.style.color = "";
        chip.tabIndex = index === 0 ? 0 : -1;
      });
      live.texts[side] = { chips, painted: new Int16Array(chips.length).fill(-1) };
    }
    if (live.hover && live.hover.index >= (live.hover.direction === "from" ? m : n)) live.hover = null;
    live.painted = null;
  }, [shown, colours, attention]);
  useEffect(paint);

  const hold = (/** @type {Token | null} */ token) => {
    if (!token) set({ query: null, key: null });
    else if (token.direction === "from") set({ query: rows[token.index], key: null, direction: "from" });
    else set({ query: null, key: columns[token.index], direction: "to" });
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
    live.hover = tokenOf(event);
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
      const chips = live.texts[isSelf ? "from" : token.direction].chips;
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
  return html`<div class="tools">
      <${Choice} label="a token" value=${direction} options=${DIRECTIONS} onChange=${turn} />
      <${Legend} shown=${shown} table=${table} scale=${settings.scale} />
      <span ref=${readout}></span>
    </div>
    <div ref=${box} onPointerOver=${point} onPointerLeave=${point} onFocusIn=${point} onFocusOut=${point} onClick=${click} onKeyDown=${press}>
      ${keys && html`<h3>queries</h3>`}
      <div class="token-text" role="group" aria-label=${keys ? "queries" : "tokens"}>${queries}</div>
      ${keys && html`<h3>keys</h3><div class="token-text" role="group" aria-label="keys">${keys}</div>`}
    </div>`;
}

/** @param {Label[]} labels @param {number[]} places @param {"from" | "to"} side */
const chipsOf = (labels, places, side) =>
  places.map((place, index) => {
    const { text, special, padding } = labels[place];
    return html`<span role="button" data-side=${side} data-index=${index} tabindex=${index === 0 ? 0 : -1} title=${`${text} (${place})`}
    class=${`chip ${padding ? "padding" : special ? "special" : ""}`}>${text}</span>`;
  });

/** The chip that a key leads to: the next one, or the nearest of the next line; null for other keys.
 *  @param {HTMLElement[]} chips @param {number} index @param {string} key */
function neighbour(chips, index, key) {
  if (key === "ArrowLeft") return Math.max(0, index - 1);
  if (key === "ArrowRight") return Math.min(chips.length - 1, index + 1);
  if (key === "Home") return 0;
  if (key === "End") return chips.length - 1;
  if (key !== "ArrowUp" && key !== "ArrowDown") return null;
  const step = key === "ArrowUp" ? -1 : 1;
  const middle = (/** @type {HTMLElement} */ chip) => chip.offsetLeft + chip.offsetWidth / 2;
  let [line, best] = [-1, index];
  for (let at = index + step; at >= 0 && at < chips.length; at += step) {
    const { offsetTop } = chips[at];
    if (offsetTop === chips[index].offsetTop) continue;
    if (line < 0) [line, best] = [offsetTop, at];
    else if (offsetTop !== line) break;
    if (Math.abs(middle(chips[at]) - middle(chips[index])) < Math.abs(middle(chips[best]) - middle(chips[index])))
      best = at;
  }
  return best;
}
