// The view Neurons as SVG: a query's vector, and for each key its vector, the products, the sum and the weight.
import { format, percent } from "heed/data/display.js";
import { css, palette } from "heed/data/palettes.js";
import { escape } from "heed/save/document.js";
import { heading, MARK, round, svg, TITLE_CHARACTER } from "heed/save/svg.js";
import { COLOURS, largestKeys, numbered, topsOf } from "heed/views/neuron_view.js";
import { placeOf } from "heed/views/comparison.js";

/** @typedef {import("heed/data/attention.js").Attention} Attention */
/** @typedef {import("heed/data/state.js").Settings} Settings */

const ROW = 20; // px of a key
const CELL = 8; // px of a number
const CHARACTER = 7.5; // px, at most
const NUMBER = 72; // px of a sum
const BAR = 80; // px of the weight 1
const GAP = 16;
const TOP = 40; // px of the title
const HEAD = 28; // px of the names of the columns

/**
 * @param {import("heed/server/neurons.js").Neurons} neurons @param {Attention} attention @param {Settings} settings
 * @param {number} query @param {string} title  name of the model
 */
export function neuronsSvg(neurons, attention, settings, query, title) {
  const table = palette("auto", true, false);
  const keys = largestKeys(neurons.weights, settings.byWeight);
  const [ofQuery, ofKeys, ofProducts] = topsOf(neurons);
  const word = (/** @type {number} */ place) => numbered(attention.columns[place], place);
  const own = `query ${numbered(attention.rows[query], query)}, times the scale`;
  const names = CHARACTER * Math.max(own.length, ...keys.map((place) => word(place).length)) + 8;
  const breadth = neurons.query.length * CELL;
  const [products, sums] = [names + breadth + GAP, names + 2 * (breadth + GAP)];
  const weights = sums + 2 * NUMBER + BAR + GAP; // where they end
  const strip = (
    /** @type {Float32Array} */ numbers,
    /** @type {number} */ top,
    /** @type {number} */ x,
    /** @type {number} */ y,
  ) =>
    Array.from(
      numbers,
      (number, i) =>
        `<rect x="${round(x + i * CELL)}" y="${y}" width="${CELL}" height="${ROW - 4}" fill="${css(table, (1 + number / top) / 2)}"/>`,
    ).join("");
  const text = (/** @type {string} */ content, /** @type {number} */ x, /** @type {number} */ y, more = "") =>
    `<text x="${round(x)}" y="${y}"${more}>${escape(content)}</text>`;
  const bar = (/** @type {number} */ share, /** @type {number} */ x, /** @type {number} */ y) =>
    `<rect x="${round(x)}" y="${y}" width="${round(share * BAR)}" height="6" rx="2" fill="${MARK}"/>`;
  const end = ' text-anchor="end"';
  const start = TOP + ROW + HEAD; // of the keys
  const parts = [
    text(own, 8, TOP + 12),
    strip(neurons.query, ofQuery, names, TOP),
    text("key", 8, start - 8),
    text("key vector k", names, start - 8),
    text("q × k", products, start - 8),
    text("sum", sums + NUMBER, start - 8, end),
    text("weight", weights, start - 8, end),
    ...keys.map((place, i) => {
      const y = start + i * ROW;
      return [
        place === settings.key
          ? `<rect x="3" y="${y - 2}" width="${round(weights + 2)}" height="${ROW}" fill="none" stroke="${MARK}" stroke-width="2"/>`
          : "",
        text(word(place), 8, y + 12),
        strip(neurons.keys[place], ofKeys, names, y),
        strip(neurons.products[place], ofProducts, products, y),
        text(format(neurons.scores[place]), sums + NUMBER, y + 12, end),
        bar(neurons.weights[place], sums + NUMBER + GAP, y + 5),
        text(neurons.masked[place] ? "masked" : percent(neurons.weights[place]), weights, y + 12, end),
      ].join("");
    }),
  ];
  const bottom = start + keys.length * ROW + 16;
  const strongest = `query ${format(ofQuery)}, keys ${format(ofKeys)}, products ${format(ofProducts)}`;
  const said = [...COLOURS.split(/(?<=\.) /), `The strongest colour stands for: ${strongest}.`];
  parts.push(...said.map((line, i) => text(line, 8, bottom + 8 + i * ROW)));
  const breadthOfText = CHARACTER * Math.max(...said.map(({ length }) => length));
  const name = `${title}, ${placeOf(attention, settings)}: how the weights of “${attention.rows[query].text}” arise: query × key`;
  const whole = Math.max(weights + 8, breadthOfText, TITLE_CHARACTER * name.length) + 16;
  return svg(whole, bottom + 4 + said.length * ROW, [heading(name), ...parts]);
}
