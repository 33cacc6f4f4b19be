// Pictures for papers: the views as SVG.
import { cells } from "heed/save/cells.js";
import { escape } from "heed/save/document.js";
import { heatMaps } from "heed/save/heat_maps.js";
import {
  CELL,
  FONT,
  heading,
  MARK,
  ofLargest,
  ofWord,
  ofLine,
  PAGE,
  round,
  said,
  scale,
  sizeOf,
  svg,
  TITLE,
  TITLE_CHARACTER,
  width,
  wordsOf,
} from "heed/save/svg.js";
import { drawnHeads, received, show, showSmall, strength } from "heed/data/display.js";
import { placeOf } from "heed/views/comparison.js";
import { everyHead, mapOf } from "heed/views/every_head.js";
import { outlineOf } from "heed/views/model_view.js";
import { css, headColour, palette, textOn } from "heed/data/palettes.js";
import { average } from "heed/views/draw/word_lists.js";
import { FAINTEST, largestOf, opacityOf, STRIP, STRONGEST, strongestOf } from "heed/views/draw/lines.js";

/** @typedef {import("heed/data/attention.js").Attention} Attention */
/** @typedef {import("heed/data/display.js").Shown} Shown */
/** @typedef {import("heed/data/state.js").Settings} Settings */

const LINES = 20_000; // of the head view
const NUMBER = 44; // room for a weight beside a word
const NAMES = 18; // height of what the words are
const BELOW = 8;

/**
 * The view as SVG: lines in the head view, all heads in the model view, coloured words in the token view, else the selected matrix with its scale.
 * @param {Attention} attention @param {Shown} shown @param {Settings} settings @param {string} title  name of the model
 * @param {number} [top]  the global range
 */
export async function toSvg(attention, shown, settings, title, top) {
  if (settings.view === "model") return overview(attention, settings, title, top);
  if (settings.view === "tokens") return tokens(attention, shown, settings, title);
  if (settings.view !== "head")
    return heatMaps([
      { attention, shown, settings, title: `${title}: ${said(settings.kind)}, ${placeOf(attention, settings)}` },
    ]);
  const heads = drawnHeads(attention, settings);
  const bundles = (heads.length ? heads : [settings.head]).map(async (head) => {
    if (head === settings.head) return { head, shown };
    const matrix = await attention.matrix(settings.layer, head);
    return { head, shown: show(matrix, attention.rows, attention.columns, settings, top) };
  });
  return lines(attention, await Promise.all(bundles), settings, title);
}

/** All heads as small pictures, a layer in each row. @param {Attention} attention @param {Settings} settings
 *  @param {string} title  name of the model @param {number} [top] */
function overview(attention, settings, title, top) {
  const { layers, heads, axis, m, n } = attention;
  const [size, step] = [96, 108];
  const left = layers > 1 ? 12 + 0.62 * FONT * `${axis} ${layers - 1}`.length : 8;
  const parts = [];
  const frame = outlineOf({ attention, settings });
  const share = (/** @type {number} */ percents) => round((size * percents) / 100);
  let last = null;
  for (let layer = 0; layer < layers; layer++)
    for (let head = 0; head < heads; head++) {
      const shown = (last = showSmall(attention.small(layer, head), attention, settings, top));
      const [x, y] = [left + head * step, TITLE + 24 + layer * step];
      const table = palette(settings.palette, shown.isDiverging, false);
      parts.push(cells(shown, table, { left: x, top: y, width: size / shown.n, height: size / shown.m }));
      parts.push(
        `<rect x="${x}" y="${y}" width="${size}" height="${size}" fill="none" stroke="#888" stroke-width=".5"/>`,
      );
      if (frame)
        parts.push(
          `<rect x="${x + share(frame.left)}" y="${y + share(frame.top)}" width="${share(frame.width)}" height="${share(frame.height)}" fill="none" stroke="#c2410c"/>`,
        );
      if (layer === 0)
        parts.push(`<text x="${x + size / 2}" y="${TITLE + 16}" text-anchor="middle">head ${head}</text>`);
      if (head === 0 && layers > 1)
        parts.push(`<text x="${left - 6}" y="${y + size / 2 + 4}" text-anchor="end">${axis} ${layer}</text>`);
    }
  const bottom = TITLE + 24 + layers * step;
  const name = `${title}: ${said(settings.kind)} of ${layers * heads} heads, ${m} queries from top to bottom, ${n} keys from left to right`;
  const ofAll = settings.range === "global"; // else each head has a scale of its own
  if (last)
    parts.push(
      scale({ ...last, high: ofAll ? last.high : NaN }, settings, left, bottom, ofAll ? "" : ofLargest(settings)),
    );
  return svg(Math.max(left + heads * step, 16 + TITLE_CHARACTER * name.length), bottom + 44, [heading(name), ...parts]);
}

/** Words and lines, with the numbers of the held word. @param {Attention} attention @param {{head: number, shown: Shown}[]} bundles
 *  @param {Settings} settings @param {string} title  name of the model */
function lines(attention, bundles, settings, title) {
  const [{ shown }] = bundles;
  const { m, n } = shown;
  const rows = shown.rows.map((place) => attention.rows[place].text);
  const columns = shown.columns.map((place) => attention.columns[place].text);
  const { query, key, direction, layer } = settings;
  const isFrom = query !== null && (direction === "from" || key === null);
  const held = isFrom ? shown.rows.indexOf(query) : key === null ? -1 : shown.columns.indexOf(key);
  const [left, right] = [
    width(["queries", ...rows], 1) + (held >= 0 && !isFrom ? NUMBER : 0),
    width(["keys", ...columns], 1) + (held >= 0 && isFrom ? NUMBER : 0),
  ];
  const [step, gap] = [CELL + 2, 160];
  const isHeld = (/** @type {number} */ from, /** @type {number} */ to) =>
    direction === "from" || key === null ? query === null || shown.rows[from] === query : shown.columns[to] === key;
  const number = (/** @type {number} */ cell) => `<tspan fill="#555">${escape(average(bundles, cell))}</tspan>`;
  const mark =
    held >= 0
      ? `<rect x="${isFrom ? 4 : left + gap}" y="${held * step}" width="${isFrom ? left - 4 : right}" height="${step}" fill="#d6e4f5"/>`
      : "";
  const colourOf = (/** @type {number} */ head) => headColour(head, attention.heads, false);
  // Behind the other words, strips in the colours of the heads, as strong as the weights.
  const breadth = (isFrom ? right : left) / bundles.length;
  const strips = bundles.flatMap(({ head, shown: one }, k) =>
    (held < 0 ? [] : isFrom ? columns : rows).map((_, i) => {
      const opacity = round(STRIP * strength(one, one.levels[isFrom ? held * n + i : i * n + held]));
      const x = round((isFrom ? left + gap : 0) + k * breadth);
      return `<rect x="${x}" y="${i * step}" width="${round(breadth)}" height="${step}" fill="${colourOf(head)}" fill-opacity="${opacity}"/>`;
    }),
  );
  const word = held < 0 ? null : { side: /** @type {"query" | "key"} */ (isFrom ? "query" : "key"), index: held };
  const ofHeads = bundles.map(({ head, shown: one }) => ({ shown: one, colour: colourOf(head) }));
  const most = largestOf(ofHeads, { word, isDrawn: () => true });
  const hasAll = word !== null || settings.allLines || n <= STRONGEST;
  const parts = ofHeads
    .flatMap(({ shown: one, colour }) => {
      const least = rows.map((_, i) => Math.max(FAINTEST, hasAll ? 0 : strongestOf(one, i, () => true)));
      return Array.from(one.levels, (level, index) => ({ level: strength(one, level) / most, index, colour }))
        .filter(({ level, index }) => level >= least[Math.floor(index / n)] && isHeld(Math.floor(index / n), index % n))
        .sort((first, second) => second.level - first.level)
        .slice(0, LINES / bundles.length);
    })
    .sort((first, second) => first.level - second.level)
    .map(({ level, index, colour }) => {
      const [from, to] = [(Math.floor(index / n) + 0.5) * step, ((index % n) + 0.5) * step];
      const middle = left + gap / 2;
      return (
        `<path d="M${left} ${from}C${middle} ${from} ${middle} ${to} ${left + gap} ${to}" fill="none" ` +
        `stroke="${colour}" stroke-opacity="${round(opacityOf(level, bundles.length, false))}" stroke-width="${round(0.5 + 3 * level)}"/>`
      );
    });
  rows.forEach((word, i) =>
    parts.push(
      `<text x="${left - 4}" y="${(i + 0.5) * step + 4}" text-anchor="end">${held >= 0 && !isFrom ? `${number(i * n + held)} ` : ""}${escape(word)}</text>`,
    ),
  );
  columns.forEach((word, j) =>
    parts.push(
      `<text x="${left + gap + 4}" y="${(j + 0.5) * step + 4}">${escape(word)}${held >= 0 && isFrom ? ` ${number(held * n + j)}` : ""}</text>`,
    ),
  );
  const hasSeveral = bundles.length > 1;
  const several = `${attention.layers > 1 ? `${attention.axis} ${layer}, ` : ""}heads `;
  const name = `${title}${held < 0 ? `: ${said(settings.kind)}` : ""}, ${hasSeveral ? several : placeOf(attention, settings)}`;
  const what = held < 0 ? "" : ofWord((isFrom ? rows : columns)[held], isFrom);
  const numbers = hasSeveral ? bundles.map(({ head }) => head) : [];
  const coloured = numbers.map((head) => `<tspan fill="${colourOf(head)}">${head}</tspan>`);
  const top = TITLE + NAMES;
  const end = top + Math.max(m, n) * step + BELOW;
  const note = hasAll
    ? ""
    : `<text x="8" y="${end + FONT}" fill="#555">The ${STRONGEST} strongest lines of each query.</text>`;
  const length = name.length + numbers.join(", ").length + what.length;
  return svg(Math.max(left + gap + right, 8 + TITLE_CHARACTER * length), end + (note ? CELL : 0), [
    heading(name, coloured.join(", ") + escape(what)),
    `<text x="${left - 4}" y="${top - 5}" text-anchor="end" fill="#555">queries</text>`,
    `<text x="${left + gap + 4}" y="${top - 5}" fill="#555">keys</text>`,
    `<g transform="translate(0 ${top})">${mark}${strips.join("")}${parts.join("\n")}</g>`,
    note,
  ]);
}

/** The words in the colours of the weights from or to the held one, with their scale; two texts are below each other. Below
 *  is the matrix with a row for each head, if the page has one, on a scale of its own.
 *  @param {Attention} attention @param {Shown} shown @param {Settings} settings @param {string} title  name of the model */
async function tokens(attention, shown, settings, title) {
  const all = await everyHead(attention, settings, shown);
  const heads = all && { all, ...mapOf(all, attention, settings, shown) };
  const table = palette(settings.palette, shown.isDiverging, false);
  const { query, key, direction } = settings;
  const isFrom = direction === "from";
  const held = isFrom ? shown.rows.indexOf(query ?? -1) : shown.columns.indexOf(key ?? -1);
  const average = held < 0 ? received(shown, settings.scale) : null;
  /** @type {string[]} */
  const parts = [];
  let y = TITLE;
  const text = (/** @type {"rows" | "columns"} */ axis) => {
    const isOwn = attention.isSelf || isFrom === (axis === "rows");
    const isOther = attention.isSelf || isFrom !== (axis === "rows");
    let x = 8;
    wordsOf(attention, shown, axis).forEach((word, i) => {
      const breadth = 4 + 0.62 * FONT * Math.max(1, word.length) + 4;
      if (x > 8 && x + breadth > PAGE) [x, y] = [8, y + 26];
      const level =
        average && (attention.isSelf || axis === "columns")
          ? average.levels[i]
          : isOther && held >= 0
            ? shown.levels[isFrom ? held * shown.n + i : i * shown.n + held]
            : NaN;
      const isHeld = isOwn && i === held;
      const { special } = attention[axis][shown[axis][i]];
      const [dashes, italic] = special ? [' stroke-dasharray="3 2"', ' font-style="italic"'] : ["", ""];
      parts.push(
        `<rect x="${round(x)}" y="${y}" width="${round(breadth)}" height="20" rx="3" fill="${level === level ? css(table, level) : "#fff"}" ` +
          `stroke="${isHeld ? MARK : "#999"}" stroke-width="${isHeld ? 2 : 0.5}"${dashes}/>` +
          `<text x="${round(x + breadth / 2)}" y="${y + 14}" text-anchor="middle"${italic} fill="${level === level ? textOn(table, level) : "#000"}">${escape(word)}</text>`,
      );
      x += breadth + 4;
    });
    y += 34;
  };
  text("rows");
  if (!attention.isSelf) text("columns");
  parts.push(scale(average ?? (isFrom ? ofLine(shown, held, -1) : ofLine(shown, -1, held)), settings, 8, y));
  const own = held < 0 ? "" : (isFrom ? attention.rows[shown.rows[held]] : attention.columns[shown.columns[held]]).text;
  const what = own ? ofWord(own, isFrom) : average ? ": how much attention each token gets, on average" : "";
  parts.push(heading(`${title}, ${placeOf(attention, settings)}${what}`));
  const lower = heads ? headsSvg(heads) : "";
  parts.push(`<g transform="translate(0 ${y + 44 + BELOW})">${lower}</g>`);
  const [breadth, below] = sizeOf(lower);
  return svg(Math.max(PAGE, breadth), y + 44 + BELOW + below, parts);
}

/** @param {{all: Attention} & ReturnType<typeof mapOf>} heads  a row for each head of a layer */
function headsSvg({ all, looks, top, title, axes }) {
  const shown = show(all.small(0, 0), all.rows, all.columns, looks, top);
  return heatMaps([{ attention: all, shown, settings: looks, title, axes }]);
}
