// A picture with its patches in the colours of their weights as SVG, alone or above the matrix or text that they are from.
import { isOfWeights, LOOKS, strength, ticks, valueText } from "heed/data/display.js";
import { css, picturePalette, textOn } from "heed/data/palettes.js";
import { beyond, inQuotes, weightsOf } from "heed/data/picture.js";
import {
  colourScale,
  heading,
  MARK,
  round,
  scaleName,
  sizeOf,
  svg,
  TITLE,
  TITLE_CHARACTER,
  width as widthOf,
} from "heed/save/svg.js";
import { escape } from "heed/save/document.js";
import { fromPicture } from "heed/save/saved.js";
import { placeOf } from "heed/views/comparison.js";
import { COARSE, FADED, PatchDrawing } from "heed/views/draw/patches.js";

/** @typedef {import("heed/data/attention.js").Attention} Attention */
/** @typedef {import("heed/data/display.js").Shown} Shown */
/** @typedef {import("heed/data/state.js").Settings} Settings */

const SIDE = 448; // of the longer side
const EDGE = 8;
const SCALED = 56; // height of the scale
const CHIP = 20; // height of a token that is no patch
const GAP = 4;
const MARKED = `stroke="${MARK}" stroke-width="2"`;
const DASHED = 'stroke="#4d5666" stroke-width="1" stroke-dasharray="3 2"'; // of a special token

/** The drawn weights: those from or to the position that the view shows; null = only a pinned patch.
 *  @param {Attention} attention @param {Settings} settings @returns {{place: number | null, direction: Settings["direction"]}} */
function drawnOf({ m }, { view, query, key, direction }) {
  if (view === "generate") return { place: query ?? (key === null ? m - 1 : null), direction: "from" };
  return { place: (direction === "from" ? query : key) ?? 0, direction };
}

/** @param {Attention} attention @param {Shown} shown @param {Settings} settings @param {string} title  name of the model
 *  @param {import("heed/views/picture_view.js").Seen} seen @param {string} [lower]  an SVG that comes below
 *  @param {boolean} [hasTokens]  whether the tokens that are no patches are above: not those of a text that is below */
export function toPictureSvg(attention, shown, settings, title, seen, lower = "", hasTokens = true) {
  const { image, patches } = seen;
  const { place, direction } = drawnOf(attention, settings);
  const count = Math.max(attention.m, attention.n);
  const weights = weightsOf(shown, count, patches, direction, place ?? -1, settings);
  const under = place === null ? 2 * EDGE : SCALED;
  const opacity = place === null ? 0 : settings.opacity; // else no patch has a colour
  const zoom = SIDE / Math.max(image.width, image.height);
  const drawing = new PatchDrawing(patches, zoom);
  const [width, height] = [image.width * zoom, image.height * zoom].map(round);
  const rect = (/** @type {number} */ position, /** @type {string} */ more) => {
    const { x, y } = drawing.place(position);
    return `<rect x="${round(EDGE + x)}" y="${round(top + y)}" width="${round(drawing.side)}" height="${round(drawing.side)}" ${more}/>`;
  };
  const isOfKey = place === null || direction === "to";
  const own = (isOfKey ? attention.columns : attention.rows)[place ?? Number(settings.key)].text;
  const what = isOfKey
    ? `which ${attention.isSelf ? "tokens" : "words"} look at ${inQuotes(own)}`
    : `what ${inQuotes(own)} ${LOOKS.from}`;
  const name = `${title}, ${placeOf(attention, settings)}: ${what}`;
  const [breadth, below] = sizeOf(lower);
  const whole = Math.max(breadth, width, TITLE_CHARACTER * name.length) + 2 * EDGE;
  const labels = direction === "from" ? attention.columns : attention.rows;
  const held = settings.view === "generate" ? settings.key : place;
  const others = tokensBeside(weights, hasTokens ? labels : [], drawing, settings, shown.error, whole - EDGE, held);
  const top = TITLE + others.height;
  const table = picturePalette(settings.palette, weights.isDiverging, false);
  const colours = Array.from({ length: drawing.end - patches.special }, (_, i) => {
    const level = weights.levels[patches.special + i];
    const isHidden = weights.hidden[patches.special + i] === 1;
    const share = isHidden ? 0 : round(opacity * strength(weights, level));
    return rect(patches.special + i, `fill="${css(table, level)}" fill-opacity="${share}"`);
  });
  const ring =
    held !== null && drawing.isPatch(held) ? rect(held, `fill="none" stroke="${MARK}" stroke-width="3"`) : "";
  const isShown = { ...shown, high: weights.high, levels: new Float32Array() }; // without a word for masked patches, which have no colour
  const isBeyond = others.parts.some((part) => part.includes("▲"));
  const named = {
    marks: ticks(weights, settings.scale, isOfWeights(settings.kind)),
    name: `${scaleName(isShown, settings)}${isBeyond ? ", ▲ beyond the scale" : ""}`,
  };
  return svg(whole, top + height + under + below, [
    `<filter id="faded" color-interpolation-filters="sRGB"><feColorMatrix type="saturate" values="${round(1 - FADED * opacity)}"/></filter>`,
    heading(name),
    ...others.parts,
    `<image x="${EDGE}" y="${top}" width="${width}" height="${height}" preserveAspectRatio="none"${zoom < COARSE ? "" : ' style="image-rendering: pixelated"'} filter="url(#faded)" href="${fromPicture(seen).url}"/>`,
    ...colours,
    ring,
    place === null
      ? ""
      : `<g>${colourScale(table, named, EDGE, top + height + EDGE, (level) => opacity * strength(weights, level))}</g>`,
    lower && `<g transform="translate(0 ${top + height + under})">${lower}</g>`,
  ]);
}

/** The tokens that are not patches, with their weights, in lines above the picture.
 *  @param {import("heed/data/picture.js").Weights} weights @param {import("heed/data/attention.js").Label[]} labels @param {PatchDrawing} drawing
 *  @param {Settings} settings @param {number} error @param {number} breadth @param {number | null} held  the selected one */
function tokensBeside(weights, labels, drawing, settings, error, breadth, held) {
  const { values, levels, hidden, isDiverging } = weights;
  const table = picturePalette(settings.palette, isDiverging, false);
  let [x, y] = [EDGE, TITLE];
  const parts = labels.flatMap(({ text, special }, place) => {
    if (drawing.isPatch(place) || hidden[place]) return [];
    const isMasked = levels[place] !== levels[place];
    const level = isMasked ? 0 : levels[place];
    const number = `${beyond(weights, place)}${valueText(settings.kind, values[place], error)}`;
    const said = `${text} ${isMasked ? "(masked)" : number}`;
    const width = widthOf([said], 1);
    if (x > EDGE && x + width > breadth) [x, y] = [EDGE, y + CHIP + GAP];
    const left = x;
    x += width + GAP;
    const opacity = isMasked ? 0 : round(strength(weights, level));
    const colour = isMasked ? "#555" : textOn(table, level, opacity, false);
    const frame = place === held ? MARKED : special ? DASHED : 'stroke="#999" stroke-width=".5"';
    return (
      `<rect x="${left}" y="${y}" width="${width}" height="${CHIP}" rx="3" fill="${css(table, level)}" fill-opacity="${opacity}" ${frame}/>` +
      `<text x="${round(left + width / 2)}" y="${y + 14}" text-anchor="middle" fill="${colour}">${escape(said)}</text>`
    );
  });
  return { parts, height: parts.length ? y - TITLE + CHIP + 2 * GAP : 0 };
}
