// The picture once for each generated word, coloured by the word's weights.
import { html, useEffect, useMemo, useRef } from "vendor/preact.js";
import { valueText } from "heed/data/display.js";
import { largestOfPatches, strongest, weightsOf } from "heed/data/picture.js";
import { usePicturePalette } from "heed/views/draw/canvas.js";
import { useShown } from "heed/views/hooks.js";
import { SmallPicture } from "heed/views/small_picture.js";

/** @typedef {import("heed/views/hooks.js").ViewProps} ViewProps */

const WIDTH = 192; // px of a picture
const MOST = 60; // pictures, around the selected word

/** @typedef {ViewProps & {seen: import("heed/views/picture_view.js").Seen, place: number | null, point: (word: import("heed/views/generate_view.js").Word) => void, children?: unknown}} Props
 *    `place` of the word that is looked at, `point` looks at another; the children are behind the title */

/** The value of the strongest colour of the pictures of all words; undefined = each has its own.
 *  @param {import("heed/data/display.js").Shown} shown @param {import("heed/views/picture_view.js").Patches} patches @param {ViewProps["settings"]} settings */
export const highOf = (shown, patches, { oneScale }) => (oneScale ? largestOfPatches(shown, patches) : undefined);

/** The generated words that have a picture. @param {number[]} rows  all of them @param {number | null} place  of the selected one */
export function listedWords(rows, place) {
  const start = Math.max(0, Math.min(rows.length - MOST, rows.indexOf(place ?? -1) - MOST / 2));
  return rows.slice(start, start + MOST);
}

/** @param {Props} props */
export function WordPictures(props) {
  const { shown } = useShown(props.attention, props.settings);
  return shown && html`<${Pictures} ...${props} shown=${shown} />`;
}

/** @param {Props & {shown: import("heed/data/display.js").Shown}} props */
function Pictures({ attention, settings, set, shown, seen, place, point, children }) {
  const table = usePicturePalette(settings.palette, shown.isDiverging);
  const high = useMemo(() => highOf(shown, seen.patches, settings), [shown, settings.oneScale]);
  const { rows } = shown;
  const listed = listedWords(rows, place);
  const all = useMemo(
    () =>
      listed.map((row) => ({
        row,
        weights: weightsOf(shown, attention.n, seen.patches, "from", row, settings, high),
      })),
    [shown, listed[0], seen, settings.scale, high],
  );
  const box = useRef(/** @type {HTMLElement | null} */ (null));
  useEffect(() => {
    const frame = box.current;
    const own = frame?.querySelector("[aria-pressed=true]");
    if (!frame || !(own instanceof HTMLElement)) return;
    if (frame.matches(":hover")) return; // the pointer stays on its picture
    const top = own.offsetTop - frame.offsetTop;
    const end = top + own.offsetHeight - frame.clientHeight;
    if (top < frame.scrollTop) frame.scrollTop = top;
    else if (end > frame.scrollTop) frame.scrollTop = end;
  }, [place]);
  const words = rows.length > MOST ? `${all.length} of ${rows.length} words` : "Each word";
  const scales = settings.oneScale ? "all on one scale" : "on its own scale";
  return html`<section class="word-pictures" aria-label="picture of each word"><h2>${words} with its largest weight on a patch, ${scales}</h2>${children}
    <div class="head-pictures" ref=${box}>${all.map(({ row, weights }) => {
      const best = strongest(weights, seen.patches);
      const on = () => point({ row, column: null });
      return html`<${SmallPicture} key=${row} seen=${seen} weights=${weights} table=${table} opacity=${settings.opacity} width=${WIDTH} isShown=${row === place}
        onPointerEnter=${on} onFocus=${on} onClick=${() => set({ query: row === settings.query ? null : row, key: null })}><span style=${{ "--length": attention.rows[row].text.length }}>${attention.rows[row].text}</span> ${best !== null && html`<b>${valueText(settings.kind, weights.values[best])}</b>`}<//>`;
    })}</div></section>`;
}
