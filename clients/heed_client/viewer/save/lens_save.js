// A lens as a table, as JSON and as SVG.
import { css, palette, textOn } from "heed/data/palettes.js";
import { escape } from "heed/save/document.js";
import { colourScale, FONT, heading, round, svg, TITLE, TITLE_CHARACTER, width as widthOf } from "heed/save/svg.js";
import { quoted } from "heed/save/quoted.js";
import { layerTitle } from "heed/server/lens.js";
import { differs, hasNext, levelsOf, marksOf, target, uncoloured } from "heed/views/lens_view.js";

/** @typedef {import("heed/server/lens.js").Lens} Lens */

const WIDTH = 72; // px of a cell
const HEIGHT = 20;
const LEFT = 96;
const CHARACTERS = 10; // of a word
const CORNER = 5; // px
const OTHER = "#a4161a"; // a corner, as on a light page

/** CSV (RFC 4180) with a line for each cell. @param {Lens} lens */
export function lensCsv(lens) {
  const { layers, positions, words, guesses, ranks, outputProbabilities, change } = lens;
  const count = guesses[0]?.[0]?.length ?? 0;
  const head = ["layer", "after", "position", "token", "rank_of_next"];
  for (let k = 1; k <= count; k++) head.push(`token_${k}`, `probability_${k}`);
  if (outputProbabilities) head.push("probability_of_output");
  if (change !== null) head.push("change");
  const lines = layers.flatMap((layer, i) =>
    positions.map((position, j) =>
      [
        layer,
        quoted(layerTitle(lens, i)),
        position,
        quoted(words[j]),
        ranks[i][j] ?? "",
        ...guesses[i][j].flatMap(({ word, probability }) => [quoted(word), probability]),
        ...(outputProbabilities ? [outputProbabilities[i][j]] : []),
        ...(change === null ? [] : [quoted(change)]),
      ].join(","),
    ),
  );
  return [head.join(","), ...lines, ""].join("\r\n");
}

/** @param {Lens} lens */
export const lensJson = ({
  model,
  text,
  layers,
  positions,
  words,
  guesses,
  ranks,
  outputProbabilities,
  change,
  before,
}) =>
  JSON.stringify({
    model,
    text,
    ...(change !== null && { change, without_change: before }),
    layers,
    positions,
    tokens: words,
    lens: guesses,
    output_probabilities: outputProbabilities,
    ranks,
  });

/** @param {Lens} lens @param {import("heed/data/state.js").Settings} settings */
export function lensSvg(lens, settings) {
  const { layers, words, guesses, ranks, model, change } = lens;
  const table = palette(settings.palette, false, false);
  const isByRank = settings.lens.by === "rank";
  const cut = (/** @type {string} */ word) =>
    escape([...word].length > CHARACTERS ? `${[...word].slice(0, CHARACTERS - 1).join("")}…` : word);
  const final = guesses[layers.length - 1];
  const top = TITLE + HEIGHT;
  const parts = words.map(
    (word, j) =>
      `<text x="${round(LEFT + (j + 0.5) * WIDTH)}" y="${top - 6}" text-anchor="middle" font-weight="600">${cut(word)}</text>`,
  );
  const levelOf = levelsOf(lens, isByRank);
  layers.forEach((_, i) => {
    const y = top + i * HEIGHT;
    parts.push(`<text x="${LEFT - 6}" y="${y + 14}" text-anchor="end">${layerTitle(lens, i)}</text>`);
    words.forEach((_, j) => {
      const level = levelOf({ row: i, column: j });
      const isColoured = level === level;
      const x = LEFT + j * WIDTH;
      const [{ id, word }] = guesses[i][j];
      const bold = id === final[j][0].id ? ' font-weight="700"' : "";
      const line = ranks[i][j] === 1 ? ' text-decoration="underline"' : "";
      parts.push(
        `<rect x="${x}" y="${y}" width="${WIDTH}" height="${HEIGHT}" fill="${isColoured ? css(table, level) : "#fff"}" stroke="#fff"/>` +
          `<text x="${x + WIDTH / 2}" y="${y + 14}" text-anchor="middle" font-size="${FONT - 1}" fill="${isColoured ? textOn(table, level) : "#000"}"${bold}${line}>${cut(word)}</text>` +
          (differs(lens, { row: i, column: j })
            ? `<path d="M${x + WIDTH - CORNER} ${y}h${CORNER}v${CORNER}z" fill="${OTHER}"/>`
            : ""),
      );
    });
  });
  const by = isByRank ? `the rank of the ${target(lens)}` : "its probability";
  const name = `${model}: the most likely next token of each layer, coloured by ${by}${change === null ? "" : `; with ${change}`}`;
  const marks = marksOf(lens, isByRank).map((text, i) => ({ level: i / 2, text }));
  const below = top + layers.length * HEIGHT + 8;
  parts.push(
    colourScale(table, { marks, name: isByRank ? `rank of the ${target(lens)}` : "probability" }, LEFT, below),
  );
  const corner = change === null ? "" : ` Corner: another token than without the change (${change}).`;
  const note = `Bold: already the most likely token of the output.${hasNext(lens) ? ` Underlined: the ${target(lens)}.` : ""}${uncoloured(isByRank)}${corner}`;
  parts.push(`<text x="${LEFT}" y="${below + 54}">${escape(note)}</text>`);
  const width = Math.max(
    LEFT + words.length * WIDTH + 8,
    16 + TITLE_CHARACTER * name.length,
    LEFT + widthOf([note], 1),
  );
  return svg(width, below + 66, [heading(name), ...parts]);
}
