// The picture once for each generated word, coloured by the word's weights.
import { html, useMemo } from "vendor/preact.js";
import { valueText } from "heed/data/display.js";
import { strongest, weightsOf } from "heed/data/picture.js";
import { SmallPicture } from "heed/views/small_picture.js";

/** @typedef {import("heed/views/hooks.js").ViewProps} ViewProps */

const WIDTH = 192; // px of a picture
const MOST = 60; // pictures, around the selected word

/** @param {ViewProps & {shown: import("heed/data/display.js").Shown, seen: import("heed/views/picture_view.js").Seen, table: Uint32Array, high: number, place: number | null,
 *   point: (word: import("heed/views/generate_view.js").Word) => void}} props  `high` is the value of the strongest colour, `place` of the word that is looked at */
export function WordPictures({ attention, settings, set, shown, seen, table, high, place, point }) {
  const { rows } = shown;
  const start = Math.max(0, Math.min(rows.length - MOST, rows.indexOf(place ?? -1) - MOST / 2));
  const all = useMemo(
    () =>
      rows
        .slice(start, start + MOST)
        .map((row) => ({ row, weights: weightsOf(shown, attention.n, seen.patches, "from", row, settings, high) })),
    [shown, start, seen, settings.scale, high],
  );
  const words = rows.length > MOST ? `${all.length} of ${rows.length} words` : "Each word";
  return html`<section class="word-pictures" aria-label="picture of each word"><h2>${words}, with the largest weight on a patch</h2>
    <div class="head-pictures">${all.map(({ row, weights }) => {
      const best = strongest(weights, seen.patches);
      const on = () => point({ row, column: null });
      return html`<${SmallPicture} key=${row} seen=${seen} weights=${weights} table=${table} opacity=${settings.opacity} width=${WIDTH} isShown=${row === place}
        onPointerEnter=${on} onFocus=${on} onClick=${() => set({ query: row === settings.query ? null : row, key: null })}><span>${attention.rows[row].text}</span> ${best !== null && html`<b>${valueText(settings.kind, weights.values[best])}</b>`}<//>`;
    })}</div></section>`;
}
