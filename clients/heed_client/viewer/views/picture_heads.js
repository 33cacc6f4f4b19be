// The picture once for each head of a layer, coloured by the weights from or to the selected position.
import { html, useEffect, useRef } from "vendor/preact.js";
import { coloured, strongest } from "heed/data/picture.js";
import { valueText } from "heed/data/display.js";
import { useTheme } from "heed/views/draw/canvas.js";
import { PatchDrawing } from "heed/views/draw/patches.js";
import { inEveryHead } from "heed/views/every_head.js";
import { usePromise } from "heed/views/hooks.js";

/** @typedef {import("heed/views/hooks.js").ViewProps} ViewProps */
/** @typedef {import("heed/views/picture_view.js").Seen} Seen */

const SIDE = 240; // px of the longer side

/** @param {ViewProps & {seen: Seen, place: number, table: Uint32Array, weights: import("heed/data/picture.js").Weights}} props
 *    `weights` of the large picture */
export function PictureHeads({ attention, settings, set, seen, place, table, weights }) {
  const { layer, head, direction, combine } = settings;
  const { value } = usePromise(
    async () => ({ attention, layer, rows: await inEveryHead(attention, layer, place, direction) }),
    [attention, layer, place, direction],
  );
  if (attention.heads < 2 || value?.attention !== attention || value.layer !== layer) return null;
  const where = attention.layers > 1 ? ` of ${attention.axis} ${layer}` : "";
  return html`<section class="picture-heads" aria-label="every head"><h2>The same in every head${where}</h2>
    <div class="head-pictures" style=${{ "--columns": Math.ceil(Math.sqrt(attention.heads)) }}>${value.rows.map(
      (row, index) =>
        html`<${Small} key=${index} kind=${settings.kind} index=${index} isShown=${index === head && combine === "none"} seen=${seen} place=${place}
          weights=${coloured(row, weights.hidden, seen.patches, weights.isDiverging, settings)} table=${table} opacity=${settings.opacity}
          onClick=${() => set({ head: index, heads: [], combine: "none" })} />`,
    )}</div></section>`;
}

/** @param {{kind: string, index: number, isShown: boolean, seen: Seen, place: number, weights: import("heed/data/picture.js").Weights,
 *   table: Uint32Array, opacity: number, onClick: () => void}} props */
function Small({ kind, index, isShown, seen: { image, patches }, place, weights, table, opacity, onClick }) {
  const canvas = useRef(/** @type {HTMLCanvasElement | null} */ (null));
  const theme = useTheme();
  const best = strongest(weights, patches);
  const scale = SIDE / Math.max(image.width, image.height);
  useEffect(() => {
    if (!canvas.current) return;
    const drawing = new PatchDrawing(patches, scale);
    drawing.paint(canvas.current, image, weights, table, opacity);
    if (drawing.isPatch(place)) drawing.outline(canvas.current, place, "mark", 1);
  }, [image, weights, table, opacity, place, theme]);
  return html`<button class="thumbnail" aria-pressed=${isShown} onClick=${onClick}><canvas ref=${canvas}></canvas>head ${index}${best === null ? "" : html`, up to <b>${valueText(kind, weights.values[best])}</b>`}</button>`;
}
