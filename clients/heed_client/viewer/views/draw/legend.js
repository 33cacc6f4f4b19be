// The legend of a view's colours.
import { html, useMemo } from "vendor/preact.js";
import { ticks } from "heed/data/display.js";
import { css, PALE } from "heed/data/palettes.js";
import { cover } from "heed/data/picture.js";

const STOPS = 16; // of the gradient

/** @param {{shown: Pick<import("heed/data/display.js").Shown, "high" | "levels" | "isDiverging">, table: Uint32Array, scale: import("heed/data/state.js").Settings["scale"], masked?: string,
 *   opacity?: number, isShare?: boolean, name?: string, isBeyond?: boolean}} props  `shown` has the largest value; with `opacity` the colours are over a picture;
 *   `isShare`: numbers are per cent, or percentage points; the `name` of what has the colours is in front;
 *   `isBeyond`: some numbers are larger than its end; false = not now, with room for it */
export function Legend({
  shown,
  table,
  scale,
  masked = "masked",
  opacity,
  isShare = false,
  name = "",
  isBeyond = undefined,
}) {
  const { high, levels, isDiverging } = shown;
  const isMasked = useMemo(() => levels.some(Number.isNaN), [levels]);
  const gradient = useMemo(() => {
    const opacityOf = (/** @type {number} */ level) =>
      opacity === undefined ? 1 : opacity * cover({ isDiverging }, level);
    const stops = Array.from({ length: STOPS + 1 }, (_, i) => css(table, i / STOPS, opacityOf(i / STOPS)));
    return `linear-gradient(to right, ${stops.join(",")})`;
  }, [table, opacity, isDiverging]);
  const marks = ticks(shown, scale, isShare);
  const of = Number.isNaN(high) ? " of the row’s largest" : "";
  const [low, top] = [marks[0].text, marks[marks.length - 1].text];
  return html`<div class="legend" role="img" aria-label=${`${name && `${name}: `}colours from ${low} to ${top}${of}, ${scale} scale`}>
    ${name && html`<span>${name}</span>`}
    <div class="scale" style=${{ backgroundImage: gradient, ...(opacity !== undefined && { backgroundColor: PALE }) }}>
      ${marks.map(({ level, text }) => html`<small style=${{ left: `${100 * level}%` }}>${text}</small>`)}
    </div>
    ${isBeyond !== undefined && html`<span style=${{ visibility: isBeyond ? "visible" : "hidden" }}>▲ beyond the scale</span>`}
    ${of && html`<span>${of}</span>`}
    ${isMasked && masked && html`<i class="hatched"></i><span>${masked}</span>`}
  </div>`;
}
