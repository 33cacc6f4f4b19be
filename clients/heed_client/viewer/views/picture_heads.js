// The picture once for each head of a layer, coloured by the weights from or to the selected position.
import { html } from "vendor/preact.js";
import { coloured, shareOfPatches, strongest } from "heed/data/picture.js";
import { percent, valueText } from "heed/data/display.js";
import { rootSize } from "heed/views/draw/canvas.js";
import { inEveryHead, inEveryLayer } from "heed/views/every_head.js";
import { usePromise } from "heed/views/hooks.js";
import { tallest } from "heed/views/draw/patches.js";
import { SmallPicture } from "heed/views/small_picture.js";

/** @typedef {import("heed/views/hooks.js").ViewProps} ViewProps */
/** @typedef {import("heed/views/picture_view.js").Seen} Seen */

const SIDE = 240; // px of the width, at least
const LABEL = 32; // px of the name below a picture
const LAYERS = [12, 11]; // rem that the pictures of the layers take beside those of the heads, or below
const GAP = 12; // px between two pictures
export const FEW = 4; // layers, whose pictures are beside those of the heads
const [STRIP, HIGHER] = [72, 100]; // px of the height of the picture of a layer, of many, at least, or of few
const OTHERS = 28.75; // rem of the page without the large picture and those of many layers
const BORDERS = 24; // px beside a layer's picture

/** @typedef {ViewProps & {seen: Seen, place: number, table: Uint32Array, width: number, height: number, hasLayers: boolean, weights: import("heed/data/picture.js").Weights, isWord?: boolean, hasShare?: boolean}} Props
 *    `place` of a patch, or of a generated word if it `isWord`; with `hasShare` the share of the picture is said, too; `weights` of the large picture, `width` and `height` for all pictures in px, those of the layers, too, if it `hasLayers` */

/** @param {Props} props */
export function PictureHeads({
  attention,
  settings,
  set,
  seen,
  place,
  table,
  width,
  height,
  hasLayers,
  weights,
  isWord,
  hasShare,
}) {
  const { layer, head, direction, combine } = settings;
  const { value } = usePromise(
    async () => ({ attention, layer, rows: await inEveryHead(attention, layer, place, direction) }),
    [attention, layer, place, direction],
  );
  if (attention.heads < 2 || value?.attention !== attention || value.layer !== layer) return null;
  const where = attention.layers > 1 ? ` of ${attention.axis} ${layer}` : "";
  const [beside, below] = hasLayers && attention.layers > 1 ? LAYERS.map((rem) => rem * rootSize()) : [0, 0];
  const grids = [
    grid(attention.heads, width - beside, height, seen.image),
    grid(attention.heads, width, height - below, seen.image),
  ];
  const { columns, side } = grids[Number(grids[1].side > grids[0].side)];
  return html`<section class="picture-heads" aria-label="every head"><h2>Every head${where}${isWord && " with its largest weight on a patch"}, each on its own scale</h2>
    <div class="head-pictures" style=${{ "--columns": columns, "--side": `${side}px` }}>${value.rows.map(
      (row, index) => {
        const own = coloured(row, weights.hidden, seen.patches, weights.isDiverging, settings);
        const best = strongest(own, seen.patches);
        return html`<${SmallPicture} key=${index} seen=${seen} weights=${own} table=${table} opacity=${settings.opacity} width=${Math.max(SIDE, side)} place=${isWord ? null : place}
        isShown=${index === head && combine === "none"} onClick=${() => set({ head: index, heads: [], combine: "none" })}>head ${index}${
          best !== null && html`${isWord ? " " : ", up to "}<b>${valueText(settings.kind, own.values[best])}</b>`
        }${hasShare && html`<br />picture <b>${percent(shareOfPatches(own, seen.patches))}</b>`}<//>`;
      },
    )}</div></section>`;
}

/** The picture once for each layer, coloured by the means of its heads, on one scale; nothing for the weights to a position.
 *  @param {ViewProps & Pick<Props, "seen" | "place" | "table" | "weights"> & {room: number}} props  `room`: px for all */
export function PictureLayers({ attention, settings, set, seen, place, table, weights, room }) {
  const { layers, isSelf } = attention;
  const isShown = layers > 1 && isSelf && settings.direction === "from";
  const { value } = usePromise(
    async () => ({ attention, rows: isShown ? await inEveryLayer(attention, place) : [] }),
    [attention, place, isShown],
  );
  if (!isShown || value?.attention !== attention) return null;
  const { image, patches } = seen;
  const high = Math.max(...value.rows.map((row) => coloured(row, weights.hidden, patches, false, settings).high));
  const shape = image.width / image.height;
  const most = Math.min(innerHeight - tallest() - OTHERS * rootSize(), (room / layers - BORDERS) / shape);
  const width = (layers > FEW ? Math.max(STRIP, most) : HIGHER) * shape;
  return html`<section class="picture-layers" aria-label="every layer"><h2>${attention.axis} means, one scale</h2>
    <div class="layer-pictures">${value.rows.map((row, layer) => {
      const own = coloured(row, weights.hidden, patches, false, settings, high);
      const best = strongest(own, patches);
      return html`<${SmallPicture} key=${layer} seen=${seen} weights=${own} table=${table} opacity=${settings.opacity} width=${width} place=${place}
        isShown=${layer === settings.layer} onClick=${() => set({ layer })}>${attention.axis} ${layer}${
          best !== null && html`, up to <b>${valueText(settings.kind, own.values[best])}</b>`
        }<//>`;
    })}</div></section>`;
}

/** The number of columns in which pictures are widest, and their width. @param {number} count @param {number} width
 *  @param {number} height @param {Seen["image"]} image */
function grid(count, width, height, image) {
  const sides = Array.from({ length: count }, (_, i) => {
    const rows = Math.ceil(count / (i + 1));
    return Math.min(width / (i + 1) - GAP, ((height / rows - LABEL) * image.width) / image.height);
  });
  const side = Math.max(...sides);
  return { columns: sides.indexOf(side) + 1, side };
}
