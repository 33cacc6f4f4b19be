// Pictures for papers: the views as SVG, and that as PNG.
import { escape } from "heed/save/document.js";
import { drawnHeads, minus, received, show, showSmall, strength, ticks } from "heed/data/display.js";
import { placeOf } from "heed/views/comparison.js";
import { css, headColour, palette, textOn } from "heed/data/palettes.js";

/** @typedef {import("heed/data/attention.js").Attention} Attention */
/** @typedef {import("heed/data/display.js").Shown} Shown */
/** @typedef {import("heed/data/state.js").Settings} Settings */

export const FONT = 12;
const CELL = 16;
const VECTOR = 128; // rows and columns up to which cells are rectangles, and every word is written
const LINES = 20_000; // of the head view
export const TITLE = 32; // height of a title
const LINE = 18; // of a further line of it
export const TITLE_CHARACTER = 0.62 * 14; // width of its characters, on average
export const PAGE = 720; // width of the words of a text
const NUMBER = 44; // room for a weight beside a word
const GAP = 24; // between two matrices
const SCALE = 192; // width of the colours of the scale

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
  let last = null;
  for (let layer = 0; layer < layers; layer++)
    for (let head = 0; head < heads; head++) {
      const shown = (last = showSmall(attention.small(layer, head), attention, settings, top));
      const [x, y] = [left + head * step, TITLE + 24 + layer * step];
      parts.push(cells(shown, settings, x, y, size / shown.n, size / shown.m));
      parts.push(
        `<rect x="${x}" y="${y}" width="${size}" height="${size}" fill="none" stroke="#888" stroke-width=".5"/>`,
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

/** An output as a title has it. @param {string} kind */
const said = (kind) => kind.replaceAll("_", " ");

/** Of what a colour is a share. @param {Settings} settings */
const ofLargest = ({ range }) => (range === "row" ? "of the row’s largest" : "of the head’s largest");

/** @param {string} text */
export const heading = (text) => `<text x="8" y="20" font-weight="600" font-size="14">${escape(text)}</text>`;

/** The coloured cells of a matrix. @param {Shown} shown @param {Settings} settings
 *  @param {number} left @param {number} top @param {number} width @param {number} height  of a cell */
function cells({ m, n, levels, isDiverging }, settings, left, top, width, height) {
  const table = palette(settings.palette, isDiverging, false);
  const parts = [];
  for (let i = 0; i < m; i++)
    for (let j = 0; j < n; j++) {
      const level = levels[i * n + j];
      if (level !== level || (m > VECTOR && level === 0)) continue;
      const [x, y] = [round(left + j * width), round(top + i * height)];
      parts.push(
        `<rect x="${x}" y="${y}" width="${round(width)}" height="${round(height)}" fill="${css(table, level)}"/>`,
      );
    }
  return parts.join("\n");
}

/** @typedef {{marks: {level: number, text: string}[], name: string}} Named  the numbers of a scale, and what they are */
/** @typedef {{attention: Attention, shown: Shown, settings: Settings, title: string, named?: Named}} Panel  a matrix; `named` if it is not of attention */
/** @typedef {{cell: number, every: number, left: number, top: number}} Room  size of a cell; which words are written; room for them */

/** Heat maps side by side, with cells of one size, and each with its scale. @param {Panel[]} panels */
export function heatMaps(panels) {
  const most = Math.max(...panels.map(({ shown }) => Math.max(shown.m, shown.n)));
  const cell = most <= VECTOR ? CELL : Math.max(1, Math.min(CELL, 1600 / most));
  const every = most <= VECTOR ? 1 : Math.ceil(CELL / cell);
  const [left, top] = /** @type {const} */ (["rows", "columns"]).map((axis) =>
    Math.max(...panels.map(({ attention, shown }) => width(wordsOf(attention, shown, axis), every))),
  );
  const breadth = Math.max(left + most * cell + 4, left + 300);
  const titles = panels.map(({ title }) => wrapped(title, Math.floor(breadth / TITLE_CHARACTER)));
  const title = TITLE + LINE * (Math.max(...titles.map((lines) => lines.length)) - 1);
  let [x, bottom] = [0, 0];
  const parts = panels.map((panel, i) => {
    const named = `<text y="20" font-weight="600" font-size="14">${tspans(titles[i])}</text>`;
    const part = `<g transform="translate(${round(x)} 0)">${named}<g transform="translate(0 ${title})">${heatMap(panel, { cell, every, left, top })}</g></g>`;
    x += breadth + (panels.length > 1 ? GAP : 0);
    bottom = Math.max(bottom, title + top + panel.shown.m * cell + 58);
    return part;
  });
  return svg(x, bottom, parts);
}

/** A title in lines. @param {string} text @param {number} most  characters of a line */
function wrapped(text, most) {
  /** @type {string[]} */
  const lines = [];
  for (const word of text.split(" ")) {
    const last = lines[lines.length - 1];
    if (last !== undefined && last.length + word.length < most) lines[lines.length - 1] = `${last} ${word}`;
    else lines.push(word);
  }
  return lines;
}

/** @param {string[]} lines */
const tspans = (lines) => {
  const spaced = lines.map((line, i) => (i < lines.length - 1 ? `${line} ` : line));
  return spaced.map((line, i) => `<tspan x="8" dy="${i ? LINE : 0}">${escape(line)}</tspan>`).join("");
};

/** @param {Attention} attention @param {Shown} shown @param {"rows" | "columns"} axis */
const wordsOf = (attention, shown, axis) => shown[axis].map((place) => attention[axis][place].text);

/** @param {Panel} panel @param {Room} room */
function heatMap({ attention, shown, settings, named }, { cell, every, left, top }) {
  const { m, n } = shown;
  const parts = [cells(shown, settings, left, top, cell, cell)];
  parts.push(
    `<rect x="${left}" y="${top}" width="${round(n * cell)}" height="${round(m * cell)}" fill="none" stroke="#888" stroke-width=".5"/>`,
  );
  wordsOf(attention, shown, "rows").forEach(
    (word, i) =>
      i % every === 0 &&
      parts.push(
        `<text x="${left - 4}" y="${round(top + (i + 0.5) * cell + 4)}" text-anchor="end">${escape(word)}</text>`,
      ),
  );
  wordsOf(attention, shown, "columns").forEach((word, j) => {
    if (j % every) return;
    const x = round(left + (j + 0.5) * cell + 4);
    parts.push(`<text transform="translate(${x} ${top - 4}) rotate(-90)">${escape(word)}</text>`);
  });
  parts.push(scale(shown, settings, left, top + m * cell + 8, undefined, named));
  return parts.join("\n");
}

/** The colours with their numbers, and what they stand for. @param {Shown} shown @param {Settings} settings
 *  @param {number} x @param {number} y @param {string} [of]  of what a colour is a share, where that differs
 *  @param {Named} [named]  of a matrix that is not of attention */
export function scale(shown, settings, x, y, of = Number.isNaN(shown.high) ? ofLargest(settings) : "", named) {
  const table = palette(settings.palette, shown.isDiverging, false);
  const parts = Array.from(
    { length: 64 },
    (_, i) =>
      `<rect x="${round(x + (SCALE / 64) * i)}" y="${y}" width="${SCALE / 64 + 0.2}" height="8" fill="${css(table, i / 63)}"/>`,
  );
  for (const { level, text } of named?.marks ?? ticks(shown, settings.scale))
    parts.push(
      `<text x="${round(x + SCALE * level)}" y="${y + 18}" text-anchor="middle" font-size="9">${escape(text)}</text>`,
    );
  const white = settings.kind === "difference" ? "white: masked or in one text only" : "white: masked";
  const names = [`${said(settings.kind)}${of && ` in per cent ${of}`}`, `${settings.scale} scale`];
  const name = [...names, ...(shown.levels.some(Number.isNaN) ? [white] : [])].join(", ");
  parts.push(`<text x="${round(x)}" y="${y + 34}">${escape(named?.name ?? name)}</text>`);
  return parts.join("\n");
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
    width(rows, 1) + (held >= 0 && !isFrom ? NUMBER : 0),
    width(columns, 1) + (held >= 0 && isFrom ? NUMBER : 0),
  ];
  const [step, gap] = [CELL + 2, 160];
  const isHeld = (/** @type {number} */ from, /** @type {number} */ to) =>
    direction === "from" || key === null ? query === null || shown.rows[from] === query : shown.columns[to] === key;
  const number = (/** @type {number} */ cell) => {
    const mean = bundles.reduce((sum, { shown: one }) => sum + one.values[cell], 0) / bundles.length;
    return `<tspan fill="#555">${Number.isFinite(mean) ? minus(mean.toFixed(3)) : "masked"}</tspan>`;
  };
  const mark =
    held >= 0
      ? `<rect x="${isFrom ? 0 : left + gap}" y="${held * step}" width="${isFrom ? left : right}" height="${step}" fill="#d6e4f5"/>`
      : "";
  const parts = bundles.flatMap(({ head, shown: one }) => {
    const levels = one.levels.map((level) => strength(one, level));
    return Array.from(levels.keys())
      .filter((index) => levels[index] > 0.01 && isHeld(Math.floor(index / n), index % n))
      .sort((first, second) => levels[second] - levels[first])
      .slice(0, LINES / bundles.length)
      .map((index) => {
        const [from, to] = [(Math.floor(index / n) + 0.5) * step, ((index % n) + 0.5) * step];
        const middle = left + gap / 2;
        return (
          `<path d="M${left} ${from}C${middle} ${from} ${middle} ${to} ${left + gap} ${to}" fill="none" ` +
          `stroke="${headColour(head, attention.heads, false)}" stroke-opacity="${round(levels[index])}" stroke-width="${round(0.5 + 3 * levels[index])}"/>`
        );
      });
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
  const several = `${attention.layers > 1 ? `${attention.axis} ${layer}, ` : ""}heads ${bundles.map(({ head }) => head).join(", ")}`;
  const head = `${title}: ${bundles.length > 1 ? several : placeOf(attention, settings)}`;
  return svg(Math.max(left + gap + right, 8 + TITLE_CHARACTER * head.length), TITLE + Math.max(m, n) * step, [
    heading(head),
    `<g transform="translate(0 ${TITLE})">${mark}${parts.join("\n")}</g>`,
  ]);
}

/** The words in the colours of the weights from or to the held one, with their scale; of two texts one below the other.
 *  @param {Attention} attention @param {Shown} shown @param {Settings} settings @param {string} title  name of the model */
function tokens(attention, shown, settings, title) {
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
      parts.push(
        `<rect x="${round(x)}" y="${y}" width="${round(breadth)}" height="20" rx="3" fill="${level === level ? css(table, level) : "#fff"}" ` +
          `stroke="${isHeld ? "#1d4e89" : "#999"}" stroke-width="${isHeld ? 2 : 0.5}"/>` +
          `<text x="${round(x + breadth / 2)}" y="${y + 14}" text-anchor="middle" fill="${level === level ? textOn(table, level) : "#000"}">${escape(word)}</text>`,
      );
      x += breadth + 4;
    });
    y += 34;
  };
  text("rows");
  if (!attention.isSelf) text("columns");
  parts.push(scale(average ?? shown, settings, 8, y));
  const own = held < 0 ? "" : (isFrom ? attention.rows[shown.rows[held]] : attention.columns[shown.columns[held]]).text;
  const what = own
    ? `: what “${own}” ${isFrom ? "looks at" : "is looked at by"}`
    : average
      ? ": how much attention each token gets, on average"
      : "";
  parts.push(heading(`${title}, ${placeOf(attention, settings)}${what}`));
  return svg(PAGE, y + 44, parts);
}

/** @param {number} width @param {number} height @param {string[]} parts */
export const svg = (width, height, parts) =>
  `<svg xmlns="http://www.w3.org/2000/svg" width="${Math.ceil(width)}" height="${Math.ceil(height)}" ` +
  `font-family="system-ui, sans-serif" font-size="${FONT}"><rect width="100%" height="100%" fill="#fff"/>${parts.join("\n")}</svg>\n`;

/** Room for the longest word that is written. @param {string[]} words @param {number} every */
const width = (words, every) =>
  10 + 0.62 * FONT * words.reduce((most, word, i) => (i % every ? most : Math.max(most, word.length)), 1);

/** @param {number} number */
export const round = (number) => Number(number.toFixed(2));

/** An SVG in pixels. @param {string} text @param {number} scale  pixels of one of its units @returns {Promise<Blob>} */
export async function toPng(text, scale = 2) {
  const url = URL.createObjectURL(new Blob([text], { type: "image/svg+xml" }));
  try {
    const image = new Image();
    image.src = url;
    await image.decode();
    const canvas = document.createElement("canvas");
    [canvas.width, canvas.height] = [image.naturalWidth * scale, image.naturalHeight * scale];
    canvas.getContext("2d")?.drawImage(image, 0, 0, canvas.width, canvas.height);
    const png = await new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
    if (!(png instanceof Blob)) throw new Error("the picture is too large for this browser");
    return png;
  } finally {
    URL.revokeObjectURL(url);
  }
}
