// The picture that a model saw, its patches coloured by the weights from or to the selected one.
import { html, useEffect, useLayoutEffect, useMemo, useRef, useState } from "vendor/preact.js";
import { isOfWeights, LOOKS, LOOKS_MOST, percent, valueText } from "heed/data/display.js";
import { beyond, cover, inQuotes, moved, nameIn, shareOfPatches, strongest, weightsOf } from "heed/data/picture.js";
import { openingToken } from "heed/data/tokens.js";
import { css, textOn } from "heed/data/palettes.js";
import { useFrame, usePicturePalette, useSize } from "heed/views/draw/canvas.js";
import { Legend } from "heed/views/draw/legend.js";
import { edge, PatchDrawing, PatchNumbers, scaleOf, tallest } from "heed/views/draw/patches.js";
import { Choice, hint } from "heed/views/controls.js";
import { useReady, useShown } from "heed/views/hooks.js";
import { RankedHeads } from "heed/views/pair_finder.js";
import { FEW, PictureHeads, PictureLayers } from "heed/views/picture_heads.js";

/** @typedef {import("heed/views/hooks.js").ViewProps} ViewProps */
/** @typedef {{special: number, rows: number, columns: number, size: number}} Patches  rows x columns of squares, after `special` other tokens */
/** @typedef {HTMLCanvasElement | HTMLImageElement} Image */
/** @typedef {{patches: Patches, image: Image, sharp: Image | null}} Seen  the picture at the model's size, and with more pixels, if there are more */
/** @typedef {ViewProps & {picture: Seen | null}} PictureProps */

const WIDE = 900; // px from which the heads are beside the picture
const SHARE = 0.56; // of them that the picture has
const BETWEEN = 32; // px between it and the heads
const BESIDE = 2; // tokens beside the patches, as most vision models have
const RANKED = { alone: 44, other: 28 }; // px of the height of the heads that their ranking takes
const SEEN = 0.05; // opacity of a colour that is seen
const HINT = hint("Point at a patch to see its weights; click to pin it.", "Tap a patch to see its weights.");

/** @param {PictureProps} props */
export function PictureView(props) {
  const { attention, settings, picture } = props;
  const { shown, error } = useShown(attention, settings);
  if (error) return html`<p role="alert">${error.message}</p>`;
  if (!shown) return html`<p class="note">…</p>`;
  const { special, rows, columns } = picture?.patches ?? { special: 0, rows: 0, columns: 0 };
  const count = special + rows * columns;
  if (!picture || count > attention.m || attention.m !== attention.n)
    return html`<p class="note">The positions of these weights are not the patches of one picture.</p>`;
  return html`<${Picture} ...${props} shown=${shown} seen=${picture} />`;
}

/** @param {ViewProps & {shown: import("heed/data/display.js").Shown, seen: Seen}} props */
function Picture({ attention, settings, set, shown, seen }) {
  const { image, patches } = seen;
  const { direction } = settings;
  const frame = useRef(/** @type {HTMLElement | null} */ (null));
  const canvas = useRef(/** @type {HTMLCanvasElement | null} */ (null));
  const head = useRef(/** @type {HTMLElement | null} */ (null));
  const tip = useRef(/** @type {HTMLElement | null} */ (null));
  const [pointed, setPointed] = useState(/** @type {number | null} */ (null)); // position of the patch under the pointer
  useReady(attention); // ranks the heads when all have arrived
  const size = useSize(frame);
  const table = usePicturePalette(settings.palette, shown.isDiverging);
  const held = direction === "from" ? settings.query : settings.key;
  const first = useMemo(() => firstOf(attention, shown, patches, direction), [shown, direction]);
  const selected = held ?? first;
  const place = selected === first && pointed !== null ? pointed : selected; // pointing shows a patch until one is pinned
  const weightsAt = (/** @type {number} */ position) =>
    weightsOf(shown, attention.m, patches, direction, position, settings);
  const weights = useMemo(() => weightsAt(place), [shown, direction, place, settings.scale]);
  const { rows, columns } = patches;
  const isNarrow = size.width < WIDE;
  const isAlone = attention.layers < FEW && attention.n - rows * columns <= BESIDE;
  const height = tallest(isAlone);
  const beside = edge();
  const room = isNarrow || attention.heads < 2 ? size.width : SHARE * size.width;
  const scale = scaleOf(image, room - beside, height - beside);
  const [width, high] = [image.width * scale, image.height * scale];
  const drawing = new PatchDrawing(patches, scale);
  const select = (/** @type {number} */ position, to = direction) =>
    set(to === "from" ? { query: position, key: null, direction: to } : { query: null, key: position, direction: to });
  useEffect(() => {
    if (held === null) select(first);
  }, [held, direction]);

  const best = strongest(weights, patches);
  const isNone = best === null || (weights.values[best] === 0 && shown.error === 0);
  const paint = useFrame(() => {
    const element = canvas.current;
    if (!element || !(width > 0)) return;
    drawing.paint(element, seen, weights, table, settings.opacity);
    if (drawing.isPatch(place)) drawing.outline(element, place, "mark", 3);
    else if (!isNone) drawing.outline(element, best, "mark", 2); // that the headline names
    if (pointed !== null && pointed !== place) drawing.outline(element, pointed, "text", 1);
    placeTip();
  });
  const weightOf = (/** @type {number} */ position, of = weights) =>
    of.hidden[position] ? "hidden" : valueText(settings.kind, of.values[position], shown.error);
  const placeTip = () => {
    const element = /** @type {HTMLElement} */ (tip.current);
    element.hidden = pointed === null || place === pointed; // the headline is about it
    if (pointed === null) return;
    const ends = [selected, pointed].map((position) => inQuotes(attention.rows[position].text));
    const pair = (direction === "from" ? ends : ends.reverse()).join(" → ");
    element.textContent = `${pair}: ${weightOf(pointed, weightsAt(selected))}`;
    const { x, y } = drawing.place(pointed);
    const [right, below] = [x + drawing.side + 6, y + drawing.side + 6];
    const left = right + element.offsetWidth > width ? Math.max(0, x - 6 - element.offsetWidth) : right;
    const top = below + element.offsetHeight > high ? Math.max(0, y - 6 - element.offsetHeight) : below;
    element.style.transform = `translate(${Math.round(left)}px, ${Math.round(top)}px)`;
  };
  useLayoutEffect(() => setPointed(null), [attention]);
  useEffect(paint);

  const patchAt = (/** @type {PointerEvent | MouseEvent} */ event) =>
    drawing.at(/** @type {HTMLElement} */ (canvas.current), event);
  /** Show a patch; words and numbers of another size do not move the picture. @param {PointerEvent} event */
  const point = (event) => {
    if (event.pointerType === "touch") return;
    if (pointed === null) hold(head.current?.getBoundingClientRect().height ?? null);
    setPointed(patchAt(event));
  };
  const hold = (/** @type {number | null} */ px) =>
    head.current &&
    Object.assign(
      head.current.style,
      px === null ? { height: "", overflow: "" } : { height: `${px}px`, overflow: "clip" },
    );
  useEffect(() => {
    if (pointed === null) hold(null);
  }, [pointed === null]);
  const press = (/** @type {KeyboardEvent} */ event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const next = event.key === "Escape" ? first : moved(selected, event.key, patches);
    if (next === null) return;
    setPointed(null);
    select(next);
    event.preventDefault();
  };
  const label = attention.rows[place].text;
  const name = inQuotes(label);
  const isShare = direction === "from" && isOfWeights(settings.kind) && rows * columns < attention.n;
  const sentence = weights.hidden.every(Boolean)
    ? html`${name} is hidden`
    : isNone
      ? direction === "from"
        ? html`${name} looks at no patch`
        : html`no patch looks at ${name}`
      : html`${drawing.isPatch(place) ? html`<span class="patch-name">${name}</span>` : name} ${LOOKS_MOST[direction]} ${attention.columns[best].text}: <b>${weightOf(best)}</b>
        ${isShare && html` <small>${percent(shareOfPatches(weights, patches))} of its attention is on the picture</small>`}`;
  const every = { attention, settings, set, seen, place, table, weights };
  const own = nameIn(attention, settings, direction === "from" ? "rows" : "columns", selected);
  const title = `Heads ranked by their largest weight ${direction === "from" ? `from ${own} on a patch` : `from a patch on ${own}`}`;
  const ranking =
    held !== null &&
    attention.layers > 1 &&
    html`<${RankedHeads} attention=${attention} settings=${settings} set=${set} title=${title} />`;
  const layers = html`<${PictureLayers} ...${every} room=${size.width} />`;
  return html`<div class="tools">
      <${Choice} label="selected patch or token" value=${direction} options=${LOOKS} onChange=${(/** @type {"from" | "to"} */ next) => select(place, next)} />
      <${Opacity} settings=${settings} set=${set} />
      <${Legend} shown=${{ ...weights, levels: shown.levels }} table=${table} scale=${settings.scale} opacity=${settings.opacity} isShare=${isOfWeights(settings.kind)} isBeyond=${isBeyond(weights, drawing)} />
    </div>
    <div class="picture-head" ref=${head}><p class="headline">${sentence}</p>
    <${OtherTokens} labels=${attention.rows} weights=${weights} drawing=${drawing} table=${table} kind=${settings.kind} error=${shown.error} place=${place} onSelect=${select} /></div>
    <div class=${`pictures ${place === selected ? "" : "of-pointed"}`} ref=${frame}><div class="picture" style=${{ "--edge": `${beside}px` }}>
      <${PatchNumbers} drawing=${drawing} />
      <canvas ref=${canvas} style=${{ width: `${width}px`, height: `${high}px` }}
        tabindex="0" role="application" aria-roledescription="picture"
        aria-label=${`the picture in ${rows} × ${columns} patches, coloured by what ${name} ${LOOKS[direction]}; arrow keys select a patch, Escape selects ${attention.rows[first].text}`}
        onPointerMove=${point} onPointerLeave=${() => setPointed(null)}
        onClick=${(/** @type {MouseEvent} */ event) => {
          const position = patchAt(event);
          if (position !== null) select(position === selected ? first : position);
        }} onKeyDown=${press}></canvas>
      <div class="tip" ref=${tip} hidden></div>
      <p class="note">${HINT} The model sees the picture at ${image.width} × ${image.height} pixels.</p></div>
      <div class=${`beside-picture ${isAlone && !isNarrow ? "alone" : ""}`}><${PictureHeads} ...${every} width=${isNarrow ? size.width : size.width - beside - width - BETWEEN} height=${height - (ranking && !isNarrow ? RANKED[isAlone ? "alone" : "other"] : 0)} hasLayers=${isAlone && !isNarrow} />
        ${attention.layers <= FEW && layers}${ranking}</div></div>
    ${attention.layers > FEW && layers}`;
}

/** Whether a token that is not a patch has a larger weight than all patches.
 *  @param {import("heed/data/picture.js").Weights} weights @param {PatchDrawing} drawing */
export const isBeyond = (weights, drawing) =>
  weights.values.some((_, position) => !drawing.isPatch(position) && beyond(weights, position));

/** The tokens that are not patches, with their weights and colours.
 *  @param {{labels: import("heed/data/attention.js").Label[], weights: import("heed/data/picture.js").Weights | null,
 *   drawing: PatchDrawing, table: Uint32Array, kind: string, error: number, place: number | null,
 *   onSelect: (position: number) => void}} props  without `weights` only the tokens are shown */
export function OtherTokens({ labels, weights, drawing, table, kind, error, place, onSelect }) {
  return html`<div class="token-text" role="group" aria-label="tokens other than patches"><span class="note">other tokens:</span>
      ${labels.map(({ text, special: isSpecial }, position) => {
        if (drawing.isPatch(position)) return null;
        const isHidden = weights?.hidden[position] === 1;
        const level = weights && !isHidden ? weights.levels[position] : NaN;
        const isMasked = weights !== null && !isHidden && Number.isNaN(level);
        const opacity = weights ? cover(weights, level) : 0; // as that of patches
        const colours = level === level &&
          opacity > SEEN && {
            background: css(table, level, opacity),
            color: textOn(table, level, opacity),
          };
        const said = isHidden
          ? "hidden"
          : weights && !isMasked
            ? `${beyond(weights, position)}${valueText(kind, weights.values[position], error)}`
            : "";
        return html`<button key=${position} class=${`chip ${isSpecial ? "special" : ""} ${isMasked ? "masked" : ""} ${position === place ? "active" : ""}`} aria-pressed=${position === place} style=${colours || {}}
          title=${`${text} (${position})${isMasked ? ": masked" : ""}`} onClick=${() => onSelect(position)}>${text}${weights && html` <span class="number">${said}</span>`}</button>`;
      })}
    </div>`;
}

/** The position that is selected at first: the first one; of a text whose beginning attends to no patch, the word that
 *  other views select at first, or the last one.
 *  @param {ViewProps["attention"]} attention @param {import("heed/data/display.js").Shown} shown @param {Patches} patches
 *  @param {"from" | "to"} direction */
function firstOf(
  { rows: labels },
  { n, rows, columns, values },
  { special, rows: lines, columns: breadth },
  direction,
) {
  const end = special + lines * breadth;
  const isPatch = (/** @type {number} */ place) => place >= special && place < end;
  const sees = (/** @type {number} */ row) =>
    columns.some((place, j) => isPatch(place) && ![0, -Infinity].includes(values[row * n + j]));
  if (direction === "to" || rows[0] !== 0 || sees(0)) return 0;
  const [word, last] = [openingToken(labels), labels.findLastIndex(({ padding }) => !padding)];
  return !isPatch(word) && rows.includes(word) && sees(rows.indexOf(word)) ? word : last;
}

/** The opacity of the colours over the picture. @param {Pick<ViewProps, "settings" | "set">} props */
export const Opacity = ({
  settings,
  set,
}) => html`<label>colour strength <input type="range" min="0" max="1" step="0.05" value=${settings.opacity}
  onInput=${(/** @type {any} */ event) => set({ opacity: Number(event.currentTarget.value) })} /></label>`;
