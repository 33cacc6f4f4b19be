// The weights from a generated word to the patches of the picture that the model reads.
import { html, useEffect, useMemo, useRef } from "vendor/preact.js";
import { isOfWeights, percent, valueText } from "heed/data/display.js";
import { inQuotes, nameIn, shareOfPatches, strongest, weightsOf } from "heed/data/picture.js";
import { Choice } from "heed/views/controls.js";
import { useFrame, usePicturePalette, useSize } from "heed/views/draw/canvas.js";
import { Legend } from "heed/views/draw/legend.js";
import { edge, PatchDrawing, PatchNumbers, scaleOf } from "heed/views/draw/patches.js";
import { useShown } from "heed/views/hooks.js";
import { isBeyond, Opacity, OtherTokens } from "heed/views/picture_view.js";
import { PictureHeads } from "heed/views/picture_heads.js";
import { highOf } from "heed/views/word_pictures.js";

/** @typedef {import("heed/views/hooks.js").ViewProps} ViewProps */
/** @typedef {ViewProps & {picture: import("heed/views/picture_view.js").Seen, place: number | null, hasHeads: boolean, choice: unknown, children: (legend: unknown) => unknown}} Props
 *    `place` of the word that is looked at; with `hasHeads` the picture is drawn for each head, too; the children are the words beside it, `choice` is how they are drawn */

const SCALES = { each: "each word", all: "all words" };
const TALLEST = 0.42; // of the window's height, or all but so many px: the text is above
const HEADS = 136; // px of the height of the pictures of all heads, if they are in one row
const BESIDE = { picture: 490, text: 560 }; // px; with the prompt, the text is longer

/** @param {Props} props */
export function SeenBy(props) {
  const { shown } = useShown(props.attention, props.settings);
  const { special, rows, columns } = props.picture.patches;
  if (!shown || props.attention.n < special + rows * columns) return null;
  return html`<${Picture} ...${props} shown=${shown} />`;
}

/** @param {Props & {shown: import("heed/data/display.js").Shown}} props */
function Picture({ attention, settings, set, shown, picture: seen, place, hasHeads, choice, children }) {
  const { image, patches } = seen;
  const frame = useRef(/** @type {HTMLElement | null} */ (null));
  const canvas = useRef(/** @type {HTMLCanvasElement | null} */ (null));
  const size = useSize(frame);
  const table = usePicturePalette(settings.palette, shown.isDiverging);
  const high = useMemo(() => highOf(shown, patches, settings), [shown, settings.oneScale]);
  const weights = useMemo(
    () => weightsOf(shown, attention.n, patches, "from", place ?? -1, settings, high),
    [shown, place, settings.scale, high],
  );
  const { key } = settings;
  const hasTokens = settings.kind === "cross_weights"; // those of the picture; other tokens are in the text
  const tallest = Math.max(innerHeight * TALLEST, innerHeight - (hasTokens ? BESIDE.picture : BESIDE.text));
  const beside = edge();
  const scale = scaleOf(image, size.width - beside, tallest - beside);
  const drawing = new PatchDrawing(patches, scale);
  const best = strongest(weights, patches);
  const isFirst = best !== null && !weights.values.some((value) => value > weights.values[best]); // as the headline says
  const paint = useFrame(() => {
    const element = canvas.current;
    if (!element || !(scale > 0)) return;
    drawing.paint(element, seen, weights, table, settings.opacity);
    if (key !== null && drawing.isPatch(key)) drawing.outline(element, key, "mark", 3);
    else if (place !== null && best !== null) drawing.outline(element, best, "mark", 2); // however pale its colour is
  });
  useEffect(paint);
  const patchAt = (/** @type {PointerEvent | MouseEvent} */ event) =>
    drawing.at(/** @type {HTMLElement} */ (canvas.current), event);
  const point = (/** @type {PointerEvent} */ event) => {
    const patch = patchAt(event);
    const known = patch !== null && !weights.hidden[patch];
    const weight = known ? `: ${valueText(settings.kind, weights.values[patch], shown.error)}` : "";
    /** @type {HTMLElement} */ (event.currentTarget).title =
      patch === null ? "" : attention.columns[patch].text + weight;
  };
  const hold = (/** @type {number} */ position) =>
    set({ query: null, key: position === key && settings.query === null ? null : position });
  const word = place === null ? "" : attention.rows[place].text;
  const hasScale = place !== null || (settings.oneScale && (hasTokens || !settings.asRows)); // or the small pictures
  const ofPatches = { ...weights, levels: weights.levels.subarray(drawing.special, drawing.end) };
  const isOfKey = settings.query === null && key !== null; // the headline names no word that looks
  const title =
    place === null
      ? `Picture${key === null ? "" : `: ${inQuotes(attention.columns[key].text)} is selected`}`
      : `Picture: ${percent(shareOfPatches(weights, patches))} of the attention${isOfKey ? ` of ${nameIn(attention, settings, "rows", place)}` : isFirst || best === null ? "" : `, most on ${attention.columns[best].text} (${percent(weights.values[best])})`}`;
  const legend = html`<span class="of-patches" style=${{ visibility: hasScale ? "" : "hidden" }}><${Legend} shown=${ofPatches} table=${table} scale=${settings.scale} opacity=${settings.opacity} name="patches" isShare=${isOfWeights(settings.kind)} /></span>`;
  return html`<section class="seen" aria-label="picture" ref=${frame}><div class="seen-words">
    <div class="tools">${choice}<${Choice} label="scale of" value=${settings.oneScale ? "all" : "each"} options=${SCALES} onChange=${(/** @type {string} */ scale) => set({ oneScale: scale === "all" })} />
      <${Opacity} settings=${settings} set=${set} /></div>
    ${children(legend)}</div>
    <div class="picture" style=${{ "--edge": `${beside}px` }}>
      <${PatchNumbers} drawing=${drawing} />
      <canvas ref=${canvas} style=${{ width: `${image.width * scale}px`, height: `${image.height * scale}px` }} role="img"
        aria-label=${`the picture in ${patches.rows} × ${patches.columns} patches${word && `, coloured by what “${word}” looks at`}`}
        onPointerMove=${point} onClick=${(/** @type {MouseEvent} */ event) => {
          const patch = patchAt(event);
          if (patch !== null) hold(patch);
        }}></canvas>
      <div class="picture-title"><h2>${title}</h2>
    ${
      hasTokens &&
      html`<div class="beyond"><${OtherTokens} labels=${attention.columns} weights=${place === null ? null : weights} drawing=${drawing} table=${table} kind=${settings.kind} error=${shown.error} place=${settings.query === null ? key : null} onSelect=${hold} />
      ${place !== null && isBeyond(weights, drawing) && html`<span class="note">▲ beyond the scale</span>`}</div>`
    }</div></div>
    ${hasHeads && place !== null && html`<${PictureHeads} attention=${attention} settings=${settings} set=${set} seen=${seen} place=${place} table=${table} width=${size.width} height=${HEADS} hasLayers=${false} weights=${weights} isWord=${true} hasShare=${!hasTokens} />`}
  </section>`;
}
