// The legend of a view's colours.
import { html, useMemo } from "vendor/preact.js";
import { strength, ticks } from "heed/data/display.js";
import { css } from "heed/data/palettes.js";

const STOPS = 16; // of the gradient
const PALE = "#cfd8dc"; // a picture below transparent colours

/** @param {{shown: Pick<import("heed/data/display.js").Shown, "high" | "levels" | "isDiverging">, table: Uint32Array, scale: import("heed/data/state.js").Settings["scale"], masked?: string,
 *   isClear?: boolean}} props  `shown` has the largest value, `isClear`: low colours are transparent */
export function Legend({ shown, table, scale, masked = "masked", isClear = false }) {
  const { high, levels, isDiverging } = shown;
  const isMasked = useMemo(() => levels.some(Number.isNaN), [levels]);
  const gradient = useMemo(() => {
    const opacity = (/** @type {number} */ level) => (isClear ? strength({ isDiverging }, level) : 1);
    const stops = Array.from({ length: STOPS + 1 }, (_, i) => css(table, i / STOPS, opacity(i / STOPS)));
    return `linear-gradient(to right, ${stops.join(",")})`;
  }, [table, isClear, isDiverging]);
  const marks = ticks(shown, scale);
  const of = Number.isNaN(high) ? " of the row’s largest" : "";
  const [low, top] = [marks[0].text, marks[marks.length - 1].text];
  return html`<div class="legend" role="img" aria-label=${`colours from ${low} to ${top}${of}, ${scale} scale`}>
    <div class="scale" style=${{ backgroundImage: gradient, ...(isClear && { backgroundColor: PALE }) }}>
      ${marks.map(({ level, text }) => html`<small style=${{ left: `${100 * level}%` }}>${text}</small>`)}
    </div>
    ${of && html`<span>${of}</span>`}
    ${isMasked && masked && html`<i class="hatched"></i><span>${masked}</span>`}
  </div>`;
}
