// The picture once for each head of a layer, coloured by the weights from or to the selected position.
import { html } from "vendor/preact.js";
import { coloured, strongest } from "heed/data/picture.js";
import { valueText } from "heed/data/display.js";
import { tallest } from "heed/views/draw/patches.js";
import { inEveryHead } from "heed/views/every_head.js";
import { usePromise } from "heed/views/hooks.js";
import { SmallPicture } from "heed/views/small_picture.js";

/** @typedef {import("heed/views/hooks.js").ViewProps} ViewProps */
/** @typedef {import("heed/views/picture_view.js").Seen} Seen */

const SIDE = 240; // px of the width, at least
const LABEL = 32; // px of the name below a picture
const GAP = 12; // px between two pictures

/** @param {ViewProps & {seen: Seen, place: number, table: Uint32Array, width: number, weights: import("heed/data/picture.js").Weights}} props
 *    `weights` of the large picture, `width` for all pictures in px */
export function PictureHeads({ attention, settings, set, seen, place, table, width, weights }) {
  const { layer, head, direction, combine } = settings;
  const { value } = usePromise(
    async () => ({ attention, layer, rows: await inEveryHead(attention, layer, place, direction) }),
    [attention, layer, place, direction],
  );
  if (attention.heads < 2 || value?.attention !== attention || value.layer !== layer) return null;
  const where = attention.layers > 1 ? ` of ${attention.axis} ${layer}` : "";
  const { columns, side } = grid(attention.heads, width, seen.image);
  return html`<section class="picture-heads" aria-label="every head"><h2>The same in every head${where}, each on its own scale of colours</h2>
    <div class="head-pictures" style=${{ "--columns": columns, "--side": `${side}px` }}>${value.rows.map(
      (row, index) => {
        const own = coloured(row, weights.hidden, seen.patches, weights.isDiverging, settings);
        const best = strongest(own, seen.patches);
        return html`<${SmallPicture} key=${index} seen=${seen} weights=${own} table=${table} opacity=${settings.opacity} width=${Math.max(SIDE, side)} place=${place}
        isShown=${index === head && combine === "none"} onClick=${() => set({ head: index, heads: [], combine: "none" })}>head ${index}${
          best !== null && html`, up to <b>${valueText(settings.kind, own.values[best])}</b>`
        }<//>`;
      },
    )}</div></section>`;
}

/** The number of columns in which pictures are widest, and their width. @param {number} count @param {number} width
 *  @param {Seen["image"]} image */
function grid(count, width, image) {
  const height = tallest();
  const sides = Array.from({ length: count }, (_, i) => {
    const rows = Math.ceil(count / (i + 1));
    return Math.min(width / (i + 1) - GAP, ((height / rows - LABEL) * image.width) / image.height);
  });
  const side = Math.max(...sides);
  return { columns: sides.indexOf(side) + 1, side };
}
