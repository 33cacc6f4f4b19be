// The picture that a model saw, its patches coloured by the weights from or to the selected one.
import { html, useEffect, useLayoutEffect, useMemo, useRef } from "vendor/preact.js";
import { format, strength } from "heed/data/display.js";
import { css, palette, textOn } from "heed/data/palettes.js";
import { prepare, themeColours, useFrame, useSize, useTheme } from "heed/views/draw/canvas.js";
import { Legend } from "heed/views/draw/legend.js";
import { Choice } from "heed/views/controls.js";
import { useShown } from "heed/views/hooks.js";

/** @typedef {import("heed/views/hooks.js").ViewProps} ViewProps */
/** @typedef {{special: number, rows: number, columns: number, size: number}} Patches  rows x columns of squares, behind so many other tokens */
/** @typedef {{patches: Patches, image: HTMLCanvasElement | HTMLImageElement}} Seen  the picture at the model's size */
/** @typedef {ViewProps & {picture: Seen | null}} PictureProps */
/** @typedef {{values: Float32Array, levels: Float32Array, hidden: Uint8Array}} Weights  of each position; 1 = it is hidden */

const DIRECTIONS = { from: "looks at", to: "is looked at by" };
const WIDEST = 640; // px
const TALLEST = 0.55; // of the window's height
const COARSE = 8; // px of a pixel that is drawn as a square

/** @param {PictureProps} props */
export function PictureView(props) {
  const { attention, settings, picture } = props;
  const { shown, error } = useShown(attention, settings);
  if (error) return html`<p role="alert">${error.message}</p>`;
  if (!shown) return html`<p class="note">…</p>`;
  const { special, rows, columns } = picture?.patches ?? { special: 0, rows: 0, columns: 0 };
  const count = special + rows * columns;
  if (!picture || count > attention.m || attention.m !== attention.n)
    return html`<p class="note">Its positions are not the patches of one picture.</p>`;
  return html`<${Picture} ...${props} shown=${shown} seen=${picture} />`;
}

/** @param {ViewProps & {shown: import("heed/data/display.js").Shown, seen: Seen}} props */
function Picture({ attention, settings, set, shown, seen: { image, patches } }) {
  const { direction } = settings;
  const frame = useRef(/** @type {HTMLElement | null} */ (null));
  const canvas = useRef(/** @type {HTMLCanvasElement | null} */ (null));
  const tip = useRef(/** @type {HTMLElement | null} */ (null));
  const hover = useRef(/** @type {number | null} */ (null)); // position of the patch under the pointer
  const size = useSize(frame);
  const theme = useTheme();
  const table = useMemo(
    () => palette(settings.palette, shown.isDiverging),
    [settings.palette, shown.isDiverging, theme],
  );
  const held = direction === "from" ? settings.query : settings.key;
  const place = held ?? 0;
  const weights = useMemo(() => weightsOf(shown, attention.m, direction, place), [shown, direction, place]);
  const { special, rows, columns } = patches;
  const scale = Math.min(Math.min(WIDEST, size.width) / image.width, (innerHeight * TALLEST) / image.height);
  const [width, height] = [image.width * scale, image.height * scale];
  const side = patches.size * scale;
  const end = special + rows * columns;
  const isPatch = (/** @type {number} */ position) => position >= special && position < end;
  const patch = (/** @type {number} */ position) => ({
    x: ((position - special) % columns) * side,
    y: Math.floor((position - special) / columns) * side,
  });
  const select = (/** @type {number} */ position, to = direction) =>
    set(to === "from" ? { query: position, key: null, direction: to } : { query: null, key: position, direction: to });
  useEffect(() => {
    if (held === null) select(0);
  }, [held, direction]);

  const paint = useFrame(() => {
    const element = canvas.current;
    if (!element || !(width > 0)) return;
    const context = prepare(element, width, height);
    context.imageSmoothingEnabled = scale < COARSE;
    context.imageSmoothingQuality = "high";
    context.drawImage(image, 0, 0, width, height);
    const opacity = Math.min(1, Math.max(0, settings.opacity));
    for (let position = special; position < end; position++) {
      const level = weights.levels[position];
      if (weights.hidden[position] || Number.isNaN(level)) continue;
      const { x, y } = patch(position);
      const [left, top] = [snap(x), snap(y)]; // no seams between patches
      context.globalAlpha = opacity * strength(shown, level); // the picture is seen where the weights are low
      context.fillStyle = css(table, level);
      context.fillRect(left, top, snap(x + side) - left, snap(y + side) - top);
    }
    context.globalAlpha = 1;
    const colours = themeColours(element);
    const outline = (/** @type {number} */ position, /** @type {string} */ colour, /** @type {number} */ breadth) => {
      const { x, y } = patch(position);
      for (const [style, line] of /** @type {[string, number][]} */ ([
        [colours.back, breadth + 2],
        [colour, breadth],
      ])) {
        context.strokeStyle = style;
        context.lineWidth = line;
        context.strokeRect(x + breadth / 2 + 1, y + breadth / 2 + 1, side - breadth - 2, side - breadth - 2);
      }
    };
    if (isPatch(place)) outline(place, colours.mark, 3);
    if (hover.current !== null && hover.current !== place) outline(hover.current, colours.text, 1);
    placeTip();
  });
  const weightOf = (/** @type {number} */ position) =>
    weights.hidden[position] ? "hidden" : format(weights.values[position], shown.error);
  const placeTip = () => {
    const element = /** @type {HTMLElement} */ (tip.current);
    element.hidden = hover.current === null;
    if (hover.current === null) return;
    element.textContent = `${attention.columns[hover.current].text}: ${weightOf(hover.current)}`;
    const { x, y } = patch(hover.current);
    const [right, below] = [x + side + 6, y + side + 6];
    const left = right + element.offsetWidth > width ? Math.max(0, x - 6 - element.offsetWidth) : right;
    const top = below + element.offsetHeight > height ? Math.max(0, y - 6 - element.offsetHeight) : below;
    element.style.transform = `translate(${Math.round(left)}px, ${Math.round(top)}px)`;
  };
  useLayoutEffect(() => {
    hover.current = null;
  }, [attention]);
  useEffect(paint);

  /** The patch of an event; null beside the patches. @param {PointerEvent | MouseEvent} event */
  const patchAt = (event) => {
    const box = /** @type {HTMLElement} */ (canvas.current).getBoundingClientRect();
    const [column, row] = [Math.floor((event.clientX - box.left) / side), Math.floor((event.clientY - box.top) / side)];
    return column >= 0 && row >= 0 && column < columns && row < rows ? special + row * columns + column : null;
  };
  const point = (/** @type {number | null} */ position) => {
    if (hover.current === position) return;
    hover.current = position;
    paint();
  };
  const press = (/** @type {KeyboardEvent} */ event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const next = event.key === "Escape" ? 0 : moved(place, event.key, patches);
    if (next === null) return;
    hover.current = null;
    select(next);
    event.preventDefault();
  };
  const label = attention.rows[place].text;
  return html`<div class="tools">
      <${Choice} label="a patch" value=${direction} options=${DIRECTIONS} onChange=${(/** @type {"from" | "to"} */ next) => select(place, next)} />
      <label>opacity <input type="range" min="0" max="1" step="0.05" value=${settings.opacity}
        onInput=${(/** @type {any} */ event) => set({ opacity: Number(event.currentTarget.value) })} /></label>
      <${Legend} shown=${shown} table=${table} scale=${settings.scale} />
    </div>
    <div class="token-text" role="group" aria-label="tokens other than patches">
      ${attention.rows.map(({ text, special: isSpecial }, position) => {
        if (isPatch(position)) return null;
        const level = weights.hidden[position] ? NaN : weights.levels[position];
        const colours = level === level && { background: css(table, level), color: textOn(table, level) };
        return html`<button key=${position} class=${`chip ${isSpecial ? "special" : ""} ${position === place ? "active" : ""}`} aria-pressed=${position === place} style=${colours || {}}
          title=${`${text} (${position})`} onClick=${() => select(position)}>${text} ${weightOf(position)}</button>`;
      })}
    </div>
    <div class="picture" ref=${frame}>
      <canvas ref=${canvas} style=${{ width: `${width}px`, height: `${height}px` }}
        tabindex="0" role="application" aria-roledescription="picture"
        aria-label=${`the picture in ${rows} × ${columns} patches, coloured by what “${label}” ${DIRECTIONS[direction]}; arrow keys select a patch, Escape selects ${attention.rows[0].text}`}
        onPointerMove=${(/** @type {PointerEvent} */ event) => point(patchAt(event))} onPointerLeave=${() => point(null)}
        onClick=${(/** @type {MouseEvent} */ event) => {
          const position = patchAt(event);
          if (position !== null) select(position);
        }} onKeyDown=${press}></canvas>
      <div class="tip" ref=${tip} hidden></div>
    </div>`;
}

/** A length in CSS pixels that ends with a pixel of the device. @param {number} length */
const snap = (length) => Math.round(length * devicePixelRatio) / devicePixelRatio;

/** The weights from a query to each key, or to a key from each query; of a hidden one all are NaN.
 *  @param {import("heed/data/display.js").Shown} shown @param {number} count  positions @param {"from" | "to"} direction @param {number} place
 *  @returns {Weights} */
function weightsOf({ n, rows, columns, values, levels }, count, direction, place) {
  const [own, others] = direction === "from" ? [rows, columns] : [columns, rows];
  const index = own.indexOf(place);
  const weights = {
    values: new Float32Array(count).fill(NaN),
    levels: new Float32Array(count).fill(NaN),
    hidden: new Uint8Array(count).fill(1),
  };
  if (index < 0) return weights;
  others.forEach((position, i) => {
    const cell = direction === "from" ? index * n + i : i * n + index;
    weights.values[position] = values[cell];
    weights.levels[position] = levels[cell];
    weights.hidden[position] = 0;
  });
  return weights;
}

/** The patch that an arrow key leads to; from a special token the first one; null for other keys.
 *  @param {number} place @param {string} key @param {Patches} patches */
function moved(place, key, { special, rows, columns }) {
  const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[key];
  if (!step) return null;
  if (place < special || place >= special + rows * columns) return special;
  const [row, column] = [Math.floor((place - special) / columns) + step[0], ((place - special) % columns) + step[1]];
  return row < 0 || column < 0 || row >= rows || column >= columns ? place : special + row * columns + column;
}
