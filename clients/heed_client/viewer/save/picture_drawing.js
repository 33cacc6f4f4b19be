// A picture with its patches in the colours of their weights as SVG, alone or above the matrix that they are from.
import { strength } from "heed/data/display.js";
import { css, picturePalette } from "heed/data/palettes.js";
import { weightsOf } from "heed/data/picture.js";
import { heading, round, scale, svg, TITLE, TITLE_CHARACTER } from "heed/save/svg.js";
import { fromPicture } from "heed/save/saved.js";
import { placeOf } from "heed/views/comparison.js";
import { FADED, PatchDrawing } from "heed/views/draw/patches.js";

/** @typedef {import("heed/data/attention.js").Attention} Attention */
/** @typedef {import("heed/data/display.js").Shown} Shown */
/** @typedef {import("heed/data/state.js").Settings} Settings */

const SIDE = 448; // of the longer side
const EDGE = 8;
const BELOW = 56; // height of the scale

/** What is drawn: the weights from or to the position that the view shows; null = a pinned patch alone.
 *  @param {Attention} attention @param {Settings} settings @returns {{place: number | null, direction: Settings["direction"], verb: string}} */
function drawnOf({ m }, { view, query, key, direction }) {
  if (view === "generate")
    return { place: query ?? (key === null ? m - 1 : null), direction: "from", verb: "looks at" };
  const isFrom = direction === "from";
  return { place: (isFrom ? query : key) ?? 0, direction, verb: isFrom ? "looks at" : "is looked at by" };
}

/** @param {Attention} attention @param {Shown} shown @param {Settings} settings @param {string} title  name of the model
 *  @param {import("heed/views/picture_view.js").Seen} seen @param {string} [matrix]  an SVG that comes below */
export function toPictureSvg(attention, shown, settings, title, seen, matrix = "") {
  const { image, patches } = seen;
  const { place, direction, verb } = drawnOf(attention, settings);
  const count = Math.max(attention.m, attention.n);
  const weights = weightsOf(shown, count, patches, direction, place ?? -1, settings);
  const zoom = SIDE / Math.max(image.width, image.height);
  const drawing = new PatchDrawing(patches, zoom);
  const [width, height] = [image.width * zoom, image.height * zoom].map(round);
  const rect = (/** @type {number} */ position, /** @type {string} */ more) => {
    const { x, y } = drawing.place(position);
    return `<rect x="${round(EDGE + x)}" y="${round(TITLE + y)}" width="${round(drawing.side)}" height="${round(drawing.side)}" ${more}/>`;
  };
  const table = picturePalette(settings.palette, weights.isDiverging, false);
  const colours = Array.from({ length: drawing.end - patches.special }, (_, i) => {
    const level = weights.levels[patches.special + i];
    const opacity = round(settings.opacity * strength(weights, level));
    return rect(patches.special + i, `fill="${css(table, level)}" fill-opacity="${opacity}"`);
  });
  const held = settings.view === "generate" ? settings.key : place;
  const ring =
    held !== null && drawing.isPatch(held) ? rect(held, 'fill="none" stroke="#1d4e89" stroke-width="3"') : "";
  const word = place === null ? "" : (direction === "from" ? attention.rows : attention.columns)[place].text;
  const name = `${title}, ${placeOf(attention, settings)}${word && `: what “${word}” ${verb}`}`;
  const colour = { ...shown, high: weights.high, levels: weights.levels };
  const [breadth, below] = (matrix.match(/(?<=(width|height)=")\d+/g) ?? ["0", "0"]).map(Number);
  return svg(Math.max(breadth, width, TITLE_CHARACTER * name.length) + 2 * EDGE, TITLE + height + BELOW + below, [
    `<filter id="faded"><feColorMatrix type="saturate" values="${round(1 - FADED * settings.opacity)}"/></filter>`,
    heading(name),
    `<image x="${EDGE}" y="${TITLE}" width="${width}" height="${height}" preserveAspectRatio="none" filter="url(#faded)" href="${fromPicture(seen).url}"/>`,
    ...colours,
    ring,
    scale(colour, settings, EDGE, TITLE + height + EDGE),
    matrix && `<g transform="translate(0 ${TITLE + height + BELOW})">${matrix}</g>`,
  ]);
}
