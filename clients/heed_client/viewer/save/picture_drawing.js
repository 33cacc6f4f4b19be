// A picture with its patches in the colours of their weights as SVG, alone or above the matrix or text that they are from.
import { isOfWeights, LOOKS, ticks, valueText } from "heed/data/display.js";
import { css, picturePalette, textOn } from "heed/data/palettes.js";
import { beyond, cover, inQuotes, isCoarse, strongest, weightsOf } from "heed/data/picture.js";
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
import { urlOf } from "heed/save/saved.js";
import { placeOf } from "heed/views/comparison.js";
import { FADED, PatchDrawing } from "heed/views/draw/patches.js";
import { highOf, listedWords } from "heed/views/word_pictures.js";

/** @typedef {import("heed/data/attention.js").Attention} Attention */
/** @typedef {import("heed/data/display.js").Shown} Shown */
/** @typedef {import("heed/data/state.js").Settings} Settings */

const SIDE = 448; // of the longer side
const EDGE = 8;
const SCALED = 56; // height of the scale
const SMALL = 104; // of the longer side of a generated word's picture
const IN_LINE = 6; // of them
const CHIP = 20; // height of a token that is no patch
const GAP = 4;
const MARKED = `stroke="${MARK}" stroke-width="2"`;
const DASHED = 'stroke="#4d5666" stroke-width="1" stroke-dasharray="3 2"'; // of a special token

/** The drawn weights: those from or to the position that the view shows; null = only a pinned patch.
 *  @param {Settings} settings @returns {{place: number | null, direction: Settings["direction"]}} */
function drawnOf({ view, query, key, direction }) {
  if (view === "generate") return { place: query, direction: "from" };
  return { place: (direction === "from" ? query : key) ?? 0, direction };
}

/** @param {Attention} attention @param {Shown} shown @param {Settings} settings @param {string} title  name of the model
 *  @param {import("heed/views/picture_view.js").Seen} seen @param {string} [text]  an SVG of the text, which comes below; the tokens
 *  that are no patches are in it. Without it they are above the picture, and below it is a picture of each generated word */
export function toPictureSvg(attention, shown, settings, title, seen, text = "") {
  const { image, patches } = seen;
  const { place, direction } = drawnOf(settings);
  const isOfText = settings.view === "generate";
  const count = Math.max(attention.m, attention.n);
  const high = isOfText ? highOf(shown, patches, settings) : undefined;
  const weights = weightsOf(shown, count, patches, direction, place ?? -1, settings, high);
  const table = picturePalette(settings.palette, weights.isDiverging, false);
  const lower = !text && isOfText ? wordPictures(attention, shown, settings, seen, table, place, high) : text;
  const under = place === null ? 2 * EDGE : SCALED;
  const opacity = place === null ? 0 : settings.opacity; // else no patch has a colour
  const zoom = SIDE / Math.max(image.width, image.height);
  const drawing = new PatchDrawing(patches, zoom);
  const [width, height] = [image.width * zoom, image.height * zoom].map(round);
  const isOfKey = place === null || direction === "to";
  const own = (isOfKey ? attention.columns : attention.rows)[place ?? Number(settings.key)].text;
  const what = isOfKey
    ? `which ${attention.isSelf ? "tokens" : "words"} look at ${inQuotes(own)}`
    : `what ${inQuotes(own)} ${LOOKS.from}`;
  const name = `${title}, ${placeOf(attention, settings)}: ${what}`;
  const [breadth, below] = sizeOf(lower);
  const whole = Math.max(breadth, width, TITLE_CHARACTER * name.length) + 2 * EDGE;
  const labels = direction === "from" ? attention.columns : attention.rows;
  const held = isOfText ? settings.key : place;
  const others = tokensBeside(weights, text ? [] : labels, drawing, settings, shown.error, whole - EDGE, held);
  const top = TITLE + others.height;
  const largest = isOfText && place !== null ? strongest(weights, patches) : null; // however pale its colour is
  const framed = held !== null && drawing.isPatch(held) ? held : largest;
  const ring =
    framed === null
      ? ""
      : patch(drawing, framed, EDGE, top, `fill="none" stroke="${MARK}" stroke-width="${framed === held ? 3 : 2}"`);
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
    `<symbol id="picture" viewBox="0 0 ${width} ${height}"><image width="${width}" height="${height}" preserveAspectRatio="none"${isCoarse(image) ? ' style="image-rendering: pixelated"' : ""} filter="url(#faded)" href="${urlOf(seen.sharp ?? image)}"/></symbol>`,
    ...coloured(drawing, [width, height], weights, table, opacity, EDGE, top),
    ring,
    place === null
      ? ""
      : `<g>${colourScale(table, named, EDGE, top + height + EDGE, (level) => opacity * cover(weights, level))}</g>`,
    lower && `<g transform="translate(0 ${top + height + under})">${lower}</g>`,
  ]);
}

/** @param {PatchDrawing} drawing @param {number} position @param {number} left @param {number} top @param {string} more  attributes */
function patch(drawing, position, left, top, more) {
  const { x, y } = drawing.place(position);
  return `<rect x="${round(left + x)}" y="${round(top + y)}" width="${round(drawing.side)}" height="${round(drawing.side)}" ${more}/>`;
}

/** The picture and the colours of its patches. @param {PatchDrawing} drawing @param {[width: number, height: number]} size
 *  @param {import("heed/data/picture.js").Weights} weights @param {Uint32Array} table @param {number} opacity @param {number} left @param {number} top */
function coloured(drawing, [width, height], weights, table, opacity, left, top) {
  const picture = `<use href="#picture" x="${round(left)}" y="${round(top)}" width="${width}" height="${height}"/>`;
  const colours = Array.from({ length: drawing.end - drawing.special }, (_, i) => {
    const level = weights.levels[drawing.special + i];
    const isHidden = weights.hidden[drawing.special + i] === 1;
    const share = isHidden ? 0 : round(opacity * cover(weights, level));
    const fill = `fill="${css(table, level)}" fill-opacity="${share}"`;
    return patch(drawing, drawing.special + i, left, top, fill);
  });
  return [picture, ...colours];
}

/** The picture of each generated word. @param {Attention} attention @param {Shown} shown @param {Settings} settings
 *  @param {import("heed/views/picture_view.js").Seen} seen @param {Uint32Array} table @param {number | null} place  of the selected one
 *  @param {number} [high]  value of the strongest colour */
function wordPictures(attention, shown, settings, { image, patches }, table, place, high) {
  const zoom = SMALL / Math.max(image.width, image.height);
  const drawing = new PatchDrawing(patches, zoom);
  const [width, height] = [image.width * zoom, image.height * zoom].map(round);
  const [across, down] = [width + GAP, height + CHIP + GAP];
  const rows = listedWords(shown.rows, place);
  const parts = rows.flatMap((row, i) => {
    const weights = weightsOf(shown, attention.n, patches, "from", row, settings, high);
    const best = strongest(weights, patches);
    const number = best === null ? "" : valueText(settings.kind, weights.values[best]);
    const [left, top] = [EDGE + (i % IN_LINE) * across, Math.floor(i / IN_LINE) * down];
    return [
      ...coloured(drawing, [width, height], weights, table, settings.opacity, left, top),
      `<text x="${round(left + width / 2)}" y="${round(top + height + 14)}" text-anchor="middle">${escape(attention.rows[row].text)} <tspan font-weight="600">${escape(number)}</tspan></text>`,
    ];
  });
  return svg(2 * EDGE + IN_LINE * across, Math.ceil(rows.length / IN_LINE) * down, parts);
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
    const opacity = isMasked ? 0 : round(cover(weights, level));
    const colour = isMasked ? "#555" : textOn(table, level, opacity, false);
    const frame = place === held ? MARKED : special ? DASHED : 'stroke="#999" stroke-width=".5"';
    return (
      `<rect x="${left}" y="${y}" width="${width}" height="${CHIP}" rx="3" fill="${css(table, level)}" fill-opacity="${opacity}" ${frame}/>` +
      `<text x="${round(left + width / 2)}" y="${y + 14}" text-anchor="middle" fill="${colour}">${escape(said)}</text>`
    );
  });
  return { parts, height: parts.length ? y - TITLE + CHIP + 2 * GAP : 0 };
}
