// A generated text as SVG: its words in the colours of the selected token's weights, and the scale.
import { faded, levelOf, lineOf, scaleOfWords, valueText } from "heed/data/display.js";
import { css, palette, textOn } from "heed/data/palettes.js";
import { joinPatches, patchesIn } from "heed/data/picture.js";
import { escape } from "heed/save/document.js";
import { heading, MARK, ofWord, PAGE, round, scale, svg, TITLE, widths } from "heed/save/svg.js";
import { placeOf } from "heed/views/comparison.js";

const EDGE = 8;
const LINE = 24; // height of a line
const BOLD = 600; // of a generated word
const BLANK = 4;
const UNKNOWN = 0.6; // opacity of the line below a word of unknown probability

/** @typedef {import("heed/page/generation.js").Text} Text */
/** @typedef {import("heed/views/picture_view.js").Patches} Patches */

/** @param {import("heed/data/attention.js").Attention} attention @param {import("heed/data/display.js").Shown} shown
 *  @param {import("heed/data/state.js").Settings} settings @param {string} title  name of the model
 *  @param {Text} text @param {Patches} [patches]  in the prompt of a picture that is above: one word for all, and no title */
export function toTextSvg(attention, shown, settings, title, { prompt, words, tokens }, patches) {
  const table = palette(settings.palette, false, false);
  const { key } = settings;
  const query = settings.query ?? (key === null ? words.length - 1 : null); // as in the view, the last word
  const isFrom = query !== null;
  const span = patches ? patchesIn(prompt, patches) : null;
  const joined = isFrom && span ? joinPatches(shown, span, settings) : shown;
  const line = lineOf(joined, query, key);
  const looks = scaleOfWords(settings, line?.top ?? 1);
  const [first, count] = span ? [span.start, span.end - span.start] : [-1, 0];
  const isOfPicture = (/** @type {number} */ place) => place >= first && place < first + count;
  const picture = line && isFrom && span ? ` ${valueText(settings.kind, line.values[line.places.indexOf(first)])}` : "";
  const level = (/** @type {number} */ place) => {
    if (!line || (place === first && !isFrom)) return NaN;
    const { places, values } = line;
    const own = values[places.indexOf(isFrom ? place : place - prompt.length)] ?? NaN;
    return levelOf(own, looks.top, false, looks);
  };
  const held = !line ? -1 : isFrom ? prompt.length + query : Number(key);
  const all = [...prompt, ...words];
  const texts = all.map(({ text }, place) => (place === first ? `picture (${count} patches)${picture}` : text));
  const breadths = [...widths(texts.slice(0, prompt.length)), ...widths(texts.slice(prompt.length), BOLD)];
  const most = Math.max(...tokens.map(({ probability }) => probability ?? 0)) || 1;
  const top = patches ? EDGE : TITLE;
  let [x, y] = [EDGE, top];
  const parts = all.map(({ joined, special }, place) => {
    if (isOfPicture(place) && place > first) return "";
    const [text, width] = [texts[place], 4 + breadths[place]];
    if (!joined && x > EDGE) x += BLANK;
    const isFirst = place === prompt.length && y > top; // no line has the end of a prompt and the generated words
    if (x > EDGE && (isFirst || x + width > PAGE - EDGE)) [x, y] = [EDGE, y + LINE];
    const own = level(place);
    const share = faded(own);
    const [left, isNew] = [x, place >= prompt.length];
    const font = isNew ? ` font-weight="${BOLD}"` : special ? ' font-style="italic"' : "";
    x += width;
    const ring = place === held ? ` stroke="${MARK}" stroke-width="2"` : "";
    const colour = share > 0.5 ? textOn(table, own) : isNew ? "#000" : "#555";
    const chance = isNew ? (tokens[place - prompt.length].probability ?? UNKNOWN * most) / most : 0;
    return (
      (isNew
        ? `<line x1="${round(left)}" x2="${round(x)}" y1="${y + 19}" y2="${y + 19}" stroke="${MARK}" stroke-width="2" stroke-opacity="${round(chance)}"/>`
        : "") +
      `<rect x="${round(left)}" y="${y}" width="${round(width)}" height="18" rx="3" fill="${css(table, own)}" fill-opacity="${round(share)}"${ring}/>` +
      `<text x="${round(left + width / 2)}" y="${y + 13}" text-anchor="middle" fill="${colour}"${font}>${escape(text)}</text>`
    );
  });
  const high = line && !isFrom ? looks.top : joined.high;
  parts.push(
    `<text x="${EDGE}" y="${y + LINE + 78}">The stronger the line below a word, the more probable it was.</text>`,
  );
  parts.push(scale({ ...shown, high, levels: new Float32Array() }, settings, EDGE, y + LINE + 8));
  parts.push(
    `<text x="${EDGE}" y="${y + LINE + 60}">bold: generated${isFrom ? "; no box: weight near 0, or a later word" : ""}</text>`,
  );
  const height = y + LINE + 88;
  if (patches) return svg(PAGE, height, parts);
  const word = held >= 0 ? ofWord(all[held].text, isFrom) : "";
  parts.push(heading(`${title}, ${placeOf(attention, settings)}${word}`));
  return svg(PAGE, height, parts);
}
