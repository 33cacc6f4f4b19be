// A small copy of the picture, coloured by weights, as a button.
import { html, useEffect, useRef } from "vendor/preact.js";
import { useTheme } from "heed/views/draw/canvas.js";
import { PatchDrawing } from "heed/views/draw/patches.js";

/**
 * @param {{seen: import("heed/views/picture_view.js").Seen, weights: import("heed/data/picture.js").Weights, table: Uint32Array, opacity: number,
 *   width: number, place?: number | null, isShown: boolean, children?: unknown} & Record<string, unknown>} props  `place` of the outlined patch, `width` in px;
 *   the children are below the picture, other properties are those of the button
 */
export function SmallPicture({ seen, weights, table, opacity, width, place = null, isShown, children, ...button }) {
  const canvas = useRef(/** @type {HTMLCanvasElement | null} */ (null));
  const theme = useTheme();
  const { image, patches } = seen;
  const scale = width / image.width;
  useEffect(() => {
    if (!canvas.current) return;
    const drawing = new PatchDrawing(patches, scale);
    drawing.paint(canvas.current, seen, weights, table, opacity);
    if (place !== null && drawing.isPatch(place)) drawing.outline(canvas.current, place, "mark", 1);
  }, [seen, weights, table, opacity, place, scale, theme]);
  return html`<button class="thumbnail" aria-pressed=${isShown} ...${button}><canvas ref=${canvas}></canvas>${children}</button>`;
}
